"""How much memory a solve needs for its metrics, and whether there is as much."""

from __future__ import annotations

from typing import NamedTuple

from cometric.core.problem import Problem
from cometric.machine.devices import free_memory, free_on, torch_device
from cometric.running.settings import Settings


class Matrices(NamedTuple):
    """Matrices of the size of a metric that a solve holds.

    Those of the samples and of the features throughout, and what a step holds of one side at a
    time. Measured by ``benchmarks/planning.py --matrices``, as peak resident memory.
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
}
"""By kind of solve: with a history of metrics, without, of the linear limit, its closed form."""


def dense_memory(n: int, m: int, kind: str) -> float:
    """Bytes that matrices of the size of the metrics take at the peak, whatever maps keep."""
    return NEEDS[kind].bytes(n, m)


def check_memory(
    problem: Problem, settings: Settings, promised: float = 0.0, allocated: float = 0.0
) -> float:
    """Bytes that are left for maps to remember in, or an error before they are allocated.

    ``promised`` is what the ``memory_limit`` of maps allows them, and ``allocated`` what is
    already. On a device the metrics are there, and so must the memory be.
    """
    n, m = problem.samples.hist.shape[0], problem.features.hist.shape[0]
    kind, device = settings.kind_of_memory, str(settings.device)
    available = free_memory() if device == "cpu" else free_on(torch_device(device))
    needed, free = dense_memory(n, m, kind), available + allocated
    if needed + promised <= free:
        return free - needed
    remedies = ["take fewer samples or features", "learn from landmarks (learn_landmarks)"]
    if kind in ("accelerated", "linear") and dense_memory(n, m, "plain") + promised <= free:
        light = dense_memory(n, m, "plain") / 1e9
        remedies.insert(0, f"pass solver='power', which needs about {light:.3g} GB")
    if promised and needed <= free:
        remedies.insert(0, f"pass a `memory_limit` of at most {free - needed:.2g} bytes")
    advice = ", or ".join(remedies)
    more = f", and `memory_limit` promises {promised / 1e9:.3g} GB more" if promised else ""
    raise MemoryError(
        f"{n} samples and {m} features need about {needed / 1e9:.3g} GB for their metrics and "
        f"what the solver keeps of them{more}; {free / 1e9:.3g} GB are available. "
        f"{advice[0].upper()}{advice[1:]}."
    )
