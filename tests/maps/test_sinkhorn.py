"""What the Sinkhorn maps share: the stages of a call, and their accuracy."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from cometric.core.types import Accuracy
from cometric.maps.sinkhorn_map import SinkhornMap

HIST, COST = np.eye(2), 1.0 - np.eye(2)


class Recorder(SinkhornMap):
    """A backend that writes down the stages; task k becomes nonnegative in round k."""

    _rounding = {"float64": 0.0, "float32": 1e-4}  # noqa: RUF012
    rounds = ((10, 1e-2), (100, 1e-3))

    def __init__(self, precision="float64"):
        accuracy = Accuracy(tol=1e-6, precision=precision)
        super().__init__(sparse.csr_array(np.eye(2)), 0.5, None, accuracy, 1000)
        self.stages = []
        self.tasks = [SimpleNamespace(values=-k, errors=np.array([0.1 * k])) for k in range(2)]

    def _apply_precision(self):
        self.dtype = np.dtype(self.precision)

    def _kernel(self, cost, unit):
        return cost / unit

    def _self_terms(self, kernel, sweeps):
        self.stages.append(("self terms", sweeps))
        return np.zeros(2), np.full(2, 0.05)

    def _sweep(self, tasks, kernel, limit, tol, solve):
        assert solve == (tol > 0.0)
        self.stages.append(("sweep", limit, tol))

    def _resume(self, tasks, kernel, limit, tol):
        self.stages.append(("resume", limit, tol))

    def _negative_rounds(self, accuracy):
        return self.rounds

    def _is_negative(self, task, levels):
        return np.array([task.values < 0])

    def _sweep_negative(self, task, mask, kernel, limit, tol):
        self.stages.append(("negative", self.tasks.index(task), limit, tol))
        task.values += 1

    def run(self, cost=COST, accuracy=None, **options):
        unit, _ = self._solve(cost, [self.tasks], self._begin(accuracy), **options)
        return unit


@pytest.mark.parametrize(
    ("sweeps", "margin", "stages"),
    [
        (None, 1e-2, [("sweep", 1000, 1e-6)]),
        (3, np.inf, [("sweep", 3, 0.0)]),
        (3, 1e-2, [("sweep", 3, 0.0), ("resume", 20, 1e-2)]),
        (3, 1e-9, [("sweep", 3, 0.0), ("resume", 20, 1e-6)]),
    ],
)
def test_the_stages_follow_the_accuracy(sweeps, margin, stages):
    phi = Recorder()
    assert phi.run(accuracy=Accuracy(sweeps, 1e-6, margin)) == 0.5
    negative = [("negative", 1, 10, 1e-2)]  # the first task is not, nor the second after it
    assert phi.stages == [("self terms", sweeps), *stages, *negative]
    assert phi.error == 0.1


def test_rounding_limits_the_tolerance():
    phi = Recorder("float32")
    phi.run()
    assert phi.stages[1] == ("sweep", 1000, 1e-4)


def test_precisions_are_checked():
    with pytest.raises(ValueError, match="`dtype` is bfloat16; choose float64 or float32"):
        Recorder("bfloat16")
