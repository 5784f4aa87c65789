"""A dry run: what a call of ``learn`` will take, before it is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cometric.maps.coupled import entropic_lifts, exact_lifts
from cometric.maps.device import free_memory
from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.regularized import norm_matrix
from cometric.options import check_options
from cometric.problem import Problem, Side
from cometric.progress import duration
from cometric.types import DistanceMap

PROBE_SECONDS = 0.5
"""How long each side is tried out for the estimate."""

TYPICAL_SWEEPS = {"exact": 8, "entropic": 40, "limit": 30}
"""Sweeps (both sides) a solve takes where nothing is special about the data."""

MATRICES = {"accelerated": 20.0, "plain": 8.0}
"""Copies of the metrics alive at the peak of a solve (measured): iterates, norms, logarithms,
numbers of pairs, and Anderson's memory."""


def dense_memory(n: int, m: int, accelerated: bool) -> float:
    """Bytes that matrices of the size of the metrics take at the peak, whatever maps keep."""
    return MATRICES["accelerated" if accelerated else "plain"] * 8.0 * (n * n + m * m)


def check_memory(
    problem: Problem, accelerated: bool, kept: float = 0.0, taken: float = 0.0
) -> float:
    """Bytes that are left for maps to remember in, or an error before they are allocated.

    ``kept`` is what maps were promised, if they were, and ``taken`` what is allocated already.
    """
    n, m = problem.samples.hist.shape[0], problem.features.hist.shape[0]
    needed, free = dense_memory(n, m, accelerated), free_memory() + taken
    if needed + kept <= free:
        return free - needed
    cures = ["take fewer samples or features"]
    if accelerated and dense_memory(n, m, False) + kept <= free:
        light = dense_memory(n, m, False) / 1e9
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


@dataclass(frozen=True)
class Plan:
    """What a solve is expected to take on this machine.

    ``memory`` is in bytes and includes the metrics and what the solver keeps of them;
    ``operations`` are multiplications and additions of one sweep on both sides (0 where they
    cannot be told in advance); ``seconds`` is the measured time of one such sweep.
    """

    samples: int
    features: int
    density: float
    engine: str
    memory: float
    available: float
    operations: float
    seconds: float
    sweeps: int

    def __str__(self) -> str:
        lines = [
            f"{self.samples} samples, {self.features} features, "
            f"{100 * self.density:.1f} % of the entries nonzero",
            f"  engine      {self.engine}",
            f"  memory      {self.memory / 1e9:.2f} GB of {self.available / 1e9:.1f} GB available",
        ]
        if self.operations:
            lines.append(f"  operations  {self.operations / 1e9:.3g} billion per sweep")
        lines.append(
            f"  time        {duration(self.seconds)} per sweep of both sides (measured on a "
            f"part), about {duration(self.seconds * self.sweeps)} for {self.sweeps} sweeps"
        )
        return "\n".join(lines)


def plan(
    X: Any,
    eps: float = 0.1,
    *,
    dtype: Any = np.float64,
    n_threads: int | None = None,
    memory_limit: float | None = None,
    **histograms: Any,
) -> Plan:
    """What ``learn(X, eps, ...)`` will take: engine, memory, operations, time.

    A few pairs of each side are solved to measure the speed; nothing else is computed. The plan
    is for the CPU.

    Parameters
    ----------
    X, eps, dtype, n_threads, memory_limit
        As for :func:`learn`.
    histograms
        The options of :meth:`Problem.from_data`: normalization_steps, smoothing, drop_empty.

    Examples
    --------
    >>> import cometric as cm
    >>> cm.plan(cm.datasets.torus("unimodal", 12, 10), eps=0).engine
    'network simplex, policy iteration'
    """
    check_options(
        eps=eps, tau=0.0, tol=0.0, max_iter=1, dtype=dtype, n_threads=n_threads,
        memory_limit=memory_limit,
    )  # fmt: skip
    problem = Problem.from_data(X, **histograms)
    if eps == np.inf:
        found = _plan_limit(problem)
    elif eps == 0.0:
        found = _plan_exact(problem, n_threads, memory_limit)
    else:
        found = _plan_entropic(problem, eps, dtype, n_threads, memory_limit)
    n, m = problem.samples.hist.shape[0], problem.features.hist.shape[0]
    return Plan(
        samples=n,
        features=m,
        density=problem.samples.hist.nnz / (n * m),
        available=free_memory(),
        **found._asdict(),
    )


class _Engine(NamedTuple):
    """What depends on the kind of transport; the fields are those of :class:`Plan`."""

    engine: str
    memory: float
    operations: float
    seconds: float
    sweeps: int


def _plan_limit(problem: Problem) -> _Engine:
    n, m = problem.samples.hist.shape[0], problem.features.hist.shape[0]
    operations = 2.0 * problem.samples.hist.nnz * (n + m)
    return _Engine(
        "matrix products; closed form for tau = 0",
        dense_memory(n, m, accelerated=True),
        operations,
        operations / 1e9,
        TYPICAL_SWEEPS["limit"],
    )


def _plan_exact(problem: Problem, n_threads: int | None, memory_limit: float | None) -> _Engine:
    lifts = exact_lifts(problem, n_threads=n_threads, memory_limit=memory_limit)
    n, m = (lift.shape[0] for lift in lifts)
    keeps = all(lift.keeps_trees for lift in lifts)
    kept = sum(lift.memory.trees + lift.memory.moves for lift in lifts) if keeps else 0.0
    return _Engine(
        "network simplex, " + ("policy iteration" if keeps else "power iteration"),
        kept + dense_memory(n, m, accelerated=keeps),
        0.0,
        _probe_both(lambda hist: ExactMap(hist, n_threads=n_threads), problem, warm=False),
        TYPICAL_SWEEPS["exact"],
    )


def _plan_entropic(
    problem: Problem, eps: float, dtype: Any, n_threads: int | None, memory_limit: float | None
) -> _Engine:
    lifts = entropic_lifts(
        problem, eps, dtype=dtype, n_threads=n_threads, memory_limit=memory_limit
    )
    n, m = (lift.shape[0] for lift in lifts)
    names = ("samples", "features")
    return _Engine(
        "; ".join(
            f"{name}: Sinkhorn, {_form(lift)}" for name, lift in zip(names, lifts, strict=True)
        ),
        sum(lift.memory for lift in lifts) + dense_memory(n, m, accelerated=True),
        sum(2.0 * float(side.hist.nnz) ** 2 for side in (problem.samples, problem.features)),
        _probe_both(
            lambda hist: EntropicMap(hist, eps, sweeps=1, dtype=dtype, n_threads=n_threads),
            problem,
            warm=True,
        ),
        TYPICAL_SWEEPS["entropic"],
    )


def _probe_both(make: Callable[[Any], DistanceMap], problem: Problem, warm: bool) -> float:
    """Seconds of one call of both maps of a problem."""
    sides = (problem.samples, problem.features)
    return sum(_probe(make, side, bins, warm) for side, bins in (sides, sides[::-1]))


def _probe(make: Callable[[Any], DistanceMap], side: Side, bins: Side, warm: bool) -> float:
    """Seconds of one call of a map, from a call for some of its histograms.

    ``warm`` times the second of two calls, which starts where the first one ended.
    """
    cost = norm_matrix(bins.full, "l1")
    cost /= cost.max()
    sizes = np.diff(side.hist.indptr)
    order = np.random.default_rng(0).permutation(len(sizes))
    make(side.hist[order[:2]])(cost)  # compiles, or loads what is compiled
    count = 16
    while True:
        chosen = order[:count]
        phi = make(side.hist[chosen])
        if warm:
            phi(cost)
        began = time.perf_counter()
        phi(cost)
        spent = time.perf_counter() - began
        if spent > PROBE_SECONDS / 2 or count >= len(sizes):
            return spent * float(sizes.sum() / sizes[chosen].sum()) ** 2
        count *= 2


def _form(lift: EntropicMap) -> str:
    """What a map works in, and what it remembers in."""
    work = "logarithms" if lift.logs else lift.dtype.name
    return f"{work}, scalings kept in {lift.stored.name if lift.stored else 'no memory'}"
