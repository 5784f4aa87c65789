"""The memory that a solve needs for its metrics, whether it is available, and what to do if not."""

from __future__ import annotations

from typing import NamedTuple

from cometric.core.problem import Problem
from cometric.core.warn import warn
from cometric.machine.devices import SHARE_ON_DEVICES, free_memory, free_on, free_on_all
from cometric.machine.progress import duration
from cometric.running.settings import Settings


class Matrices(NamedTuple):
    """Numbers of metric-sized matrices in memory.

    ``samples`` and ``features`` throughout the solve, ``step_samples`` and ``step_features`` in
    addition during a step, one side at a time. Measured by ``benchmarks/planning.py --matrices``,
    as peak resident memory.
    """

    samples: float
    features: float
    step_samples: float
    step_features: float

    def bytes(self, n: int, m: int) -> float:
        """Bytes at the peak, for ``n`` samples and ``m`` features."""
        throughout = self.samples * n * n + self.features * m * m
        return 8.0 * (throughout + max(self.step_samples * n * n, self.step_features * m * m))


NEEDS = {
    "accelerated": Matrices(18.0, 5.8, 6.0, 4.6),
    "plain": Matrices(6.5, 5.6, 4.9, 4.7),
    "linear": Matrices(16.0, 5.0, 6.0, 3.4),
    "closed": Matrices(3.5, 5.4, 0.7, 2.0),
    "lift": Matrices(2.0, 2.0, 4.0, 4.0),
}
"""By kind of solve: with a history of metrics, without one, the linear limit, its closed form, and
a distance computed from a given metric."""


MANY = 3000
"""From this many features on, the advice is to select some of them."""

SELECT = (
    "fewer features, about a thousand: of cells the highly variable genes "
    "(sc.pp.highly_variable_genes, then adata[:, adata.var.highly_variable]), of texts the words "
    "of at least ten documents (min_df=10 of CountVectorizer)"
)

ITERATIONS, PER_ENTRY, PER_OPERATION = 8.0, 5e-7, 6e-11
"""Iterations of a typical solve, and seconds of each per entry of the metrics and per operation, on
two cores. From ``benchmarks/howlong.py``, good to a factor of three."""

LONG = 900.0
"""Warn if the estimate is more than this many seconds."""


def dense_memory(n: int, m: int, kind: str, saturated: bool = False) -> float:
    """Peak bytes of all metric-sized matrices, without those of maps.

    ``saturated`` costs add a matrix of the larger side.
    """
    return NEEDS[kind].bytes(n, m) + 8.0 * saturated * max(n, m) ** 2


def memory_for_maps(
    problem: Problem, settings: Settings, promised: float = 0.0, allocated: float = 0.0
) -> float:
    """Bytes that maps may store between calls; raises if the metrics alone do not fit.

    ``promised`` are the bytes of a ``memory_limit`` that maps will use, ``allocated`` those in use
    by the metrics. With devices, their memory counts; the metrics are on the first.
    """
    n, m = problem.samples.hist.shape[0], problem.features.hist.shape[0]
    kind, devices = settings.kind_of_memory, settings.torch_devices
    free = (free_on(devices[0]) if devices else free_memory()) + allocated
    promised *= devices.count(devices[0]) / len(devices) if devices else 1.0
    saturated = settings.formula.saturate > 0.0
    needed = dense_memory(n, m, kind, saturated)
    if needed + promised <= free:
        if not devices and settings.client is None:
            _warn_of_time(problem, settings)
        if settings.memory_limit is not None:
            return float(settings.memory_limit)
        if devices:
            return SHARE_ON_DEVICES * (free_on_all(devices) + allocated)
        return min(free / 2, free - needed)
    remedies = _remedies(n, m)
    power = dense_memory(n, m, "plain", saturated)
    if kind in ("accelerated", "linear") and power + promised <= free:
        remedies.insert(0, f"pass `solver='power'`, which needs about {power / 1e9:.3g} GB")
    if promised and needed <= free:
        most = free - needed
        remedies.insert(
            0, f"pass a `memory_limit` of at most {most:.2g} bytes, {most / 1e9:.2g} GB"
        )
    advice = ", or ".join(remedies)
    more = f", and `memory_limit` allows {promised / 1e9:.3g} GB more" if promised else ""
    raise MemoryError(
        f"{n} samples and {m} features need about {needed / 1e9:.3g} GB for their metrics and "
        f"copies in the solver{more}; {free / 1e9:.3g} GB are available. "
        f"{advice[0].upper()}{advice[1:]}."
    )


def _warn_of_time(problem: Problem, settings: Settings) -> None:
    """Warn before a call that will take long."""
    n, m = problem.samples.hist.shape
    entries, most = PER_ENTRY * (n * n + m * m), 4.0 * float(problem.samples.hist.nnz) ** 2
    if ITERATIONS * (entries + PER_OPERATION * most) <= LONG:
        return
    seconds = ITERATIONS * (entries + PER_OPERATION * settings.transport.operations(problem))
    if seconds > LONG and not problem.fixed:
        advice = ", or ".join(_remedies(n, m))
        warn(
            f"{n} samples and {m} features may take {duration(seconds)} on two cores; `plan` "
            f"measures it. {advice[0].upper()}{advice[1:]}."
        )


def _remedies(n: int, m: int) -> list[str]:
    """Advice for data that are too large."""
    landmarks = ["learn from landmarks (learn_landmarks)"] if n >= MANY or m < MANY else []
    return [f"take {SELECT if m >= MANY else 'fewer samples or features'}", *landmarks]
