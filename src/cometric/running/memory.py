"""How much memory a solve needs for its metrics, and whether there is as much."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cometric.core.problem import Problem
from cometric.machine.devices import free_memory
from cometric.solvers.power import PowerIteration
from cometric.solvers.stochastic import StochasticIteration


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
        kept = self.samples * n * n + self.features * m * m
        return 8.0 * (kept + max(self.step_samples * n * n, self.step_features * m * m))


NEEDS = {
    "accelerated": Matrices(18.0, 5.8, 6.0, 4.6),
    "plain": Matrices(6.5, 5.6, 4.9, 4.7),
    "linear": Matrices(16.0, 5.0, 6.0, 3.4),
    "closed": Matrices(3.5, 5.4, 0.7, 2.0),
}
"""By kind of solve: with a history of metrics, without, of the linear limit, its closed form."""


def kind_of_solve(eps: float, plain: bool, solver: Any) -> str:
    """The kind of a solve as ``NEEDS`` knows it; ``plain`` is one without tau or restart."""
    if eps == math.inf and plain and isinstance(solver, str) and solver == "auto":
        return "closed"
    light = isinstance(solver, PowerIteration | StochasticIteration) or (
        isinstance(solver, str) and solver in ("power", "stochastic")
    )
    if light:
        return "plain"
    return "linear" if eps == math.inf else "accelerated"


def dense_memory(n: int, m: int, kind: str) -> float:
    """Bytes that matrices of the size of the metrics take at the peak, whatever maps keep."""
    return NEEDS[kind].bytes(n, m)


def check_memory(problem: Problem, kind: str, kept: float = 0.0, taken: float = 0.0) -> float:
    """Bytes that are left for maps to remember in, or an error before they are allocated.

    ``kept`` is what maps were promised, if they were, and ``taken`` what is allocated already.
    """
    n, m = problem.samples.hist.shape[0], problem.features.hist.shape[0]
    needed, free = dense_memory(n, m, kind), free_memory() + taken
    if needed + kept <= free:
        return free - needed
    cures = ["take fewer samples or features", "learn from landmarks (learn_landmarks)"]
    if kind in ("accelerated", "linear") and dense_memory(n, m, "plain") + kept <= free:
        light = dense_memory(n, m, "plain") / 1e9
        cures.insert(0, f"pass solver='power', which needs about {light:.3g} GB")
    if kept and needed <= free:
        cures.insert(0, f"pass a `memory_limit` of at most {free - needed:.2g} bytes")
    advice = ", or ".join(cures)
    promised = f", and `memory_limit` promises {kept / 1e9:.3g} GB more" if kept else ""
    raise MemoryError(
        f"{n} samples and {m} features need about {needed / 1e9:.3g} GB for their metrics and "
        f"what the solver keeps of them{promised}; {free / 1e9:.3g} GB are available. "
        f"{advice[0].upper()}{advice[1:]}."
    )
