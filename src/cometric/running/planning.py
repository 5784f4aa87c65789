"""A dry run: what a call of ``learn`` will take, before it is made."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cometric.core.problem import Problem
from cometric.core.types import Metrics, Solver
from cometric.machine.devices import free_memory, free_on, torch_device
from cometric.machine.progress import duration, redraws
from cometric.maps.coupled import entropic_lifts, exact_lifts, tensor_lifts
from cometric.maps.entropic import CELLS_PER_BLOCK, EntropicMap
from cometric.maps.exact import REPLAYED, ExactMap
from cometric.maps.limit import LimitMap
from cometric.running import learning
from cometric.running.estimation import estimate
from cometric.running.memory import dense_memory
from cometric.running.options import DEFAULT_TAU, DEFAULT_TOL, check_options
from cometric.running.rehearsal import Lifts, clock
from cometric.running.run import Run, rough_precision
from cometric.solvers import SOLVERS
from cometric.solvers.policy import PolicyIteration

TELL_AFTER = 2.0
"""Seconds after which progress is shown."""

HOURS = 3600.0
"""Seconds after which other ways are worth a word."""

MANY = 1000
"""Items of a side from which on taking fewer is worth a thought."""

BYTES_PER_ENTRY = 120.0
"""Of all copies of a nonzero entry of the data: as read, by rows, by columns, in the maps."""

MORE_MOVES = 1.15
"""Times as many of the possible moves that couplings of the whole have than those of parts."""

OVERHEAD = 15e6
"""Bytes of a run of any size: what the allocator and the threads keep for themselves."""


@dataclass(frozen=True)
class Plan:
    """What a solve is expected to take on this machine.

    Parameters
    ----------
    samples, features, density
        Size of the data, without empty and repeated items.
    engine
        How the distances will be computed.
    memory, available
        Bytes at the peak, beside the data, and bytes that there are.
    operations
        Multiplications and additions of one sweep of both sides; 0 where they cannot be told.
    seconds, sweeps
        Time of an average sweep of both sides, and the sweeps expected.
    total, total_range
        Seconds of the whole call, and between which bounds they are likely to be.
    iterations
        Between which bounds the number of iterations is likely to be.
    fits
        Whether ``memory`` is available.
    measured
        What was solved to find out.
    advice
        What to do where it does not fit, or takes hours.
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
    total: float = math.nan
    total_range: tuple[float, float] = (math.nan, math.nan)
    iterations: tuple[int, int] = (0, 0)
    fits: bool = True
    measured: str = ""
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.samples} samples, {self.features} features, "
            f"{100 * self.density:.1f} % of the entries nonzero",
            f"  engine      {self.engine}",
            f"  memory      {_gigabytes(self.memory)} of {_gigabytes(self.available)} available"
            f"{'' if self.fits else ': does not fit'}",
        ]
        if self.operations:
            lines.append(f"  operations  {self.operations / 1e9:.3g} billion per sweep")
        if self.measured:
            low, high = self.iterations
            often = f"{low}" if low == high else f"{low} to {high}"
            lines.append(
                f"  time        about {duration(self.total)} "
                f"({' to '.join(map(duration, self.total_range))}): {often} iterations, "
                f"{duration(self.seconds)} each on average"
            )
            lines.append(f"  measured    {self.measured}")
        lines += [f"  advice      {line}" for line in self.advice]
        return "\n".join(lines)


def plan(
    X: Any,
    eps: float = 0.1,
    tau: float | str = DEFAULT_TAU,
    *,
    restart: float = 0.0,
    norm: Any = "l1",
    solver: str | Solver[Any] = "auto",
    tol: float = DEFAULT_TOL,
    max_iter: int = 1000,
    sweeps: int = 1,
    device: str = "cpu",
    dtype: Any = np.float64,
    n_threads: int | None = None,
    memory_limit: float | None = None,
    progress: bool = False,
    normalization_steps: int = 1,
    smoothing: float = 0.0,
    drop_empty: bool = False,
) -> Plan:
    """What ``learn`` with these arguments will take: engine, memory, iterations, time.

    Two parts of the problem, with random samples and features, are solved to the tolerance with
    the same options: they give the number of iterations and what each costs, in calls of the
    maps. Calls for some of the histograms give the time of a call for all of them. The number of
    iterations of a part is close to that of the whole, not equal, hence a range. A plan takes
    about 8 % of the time it predicts, at least some 5 seconds and at most some 30 (and the time to
    compile kernels that are not compiled yet, about a minute).

    Parameters
    ----------
    X, eps, tau, restart, norm, solver, tol, max_iter, sweeps, device, dtype
        As for :func:`learn`.
    n_threads, memory_limit, normalization_steps, smoothing, drop_empty
        As for :func:`learn`.
    progress
        Show what is being done, after 2 seconds.

    Returns
    -------
    Plan
        ``fits`` says whether there is enough memory; where there is not, no time is measured.

    Examples
    --------
    >>> import cometric as cm
    >>> planned = cm.plan(cm.datasets.torus("unimodal", 12, 10), eps=0)
    >>> planned.engine, planned.fits
    ('network simplex, policy iteration', True)
    """
    weight, share = learning.resolve_weights(tau, restart, solver)
    check_options(
        eps=eps, tau=weight, tol=tol, max_iter=max_iter, sweeps=sweeps, device=device,
        dtype=dtype, n_threads=n_threads, memory_limit=memory_limit, solver=solver,
        solvers=SOLVERS, progress=progress, drop_empty=drop_empty,
    )  # fmt: skip
    learning.check_policy(solver, eps)
    began = clock()
    problem = Problem.from_data(
        X, normalization_steps=normalization_steps, smoothing=smoothing, drop_empty=drop_empty
    )
    reading = clock() - began
    nothing = Metrics(np.empty((0, 0)), np.empty((0, 0)))
    run = Run(
        problem, nothing, nothing, eps=eps, tau=weight, restart=share,
        norm=norm, solver=solver, tol=tol, max_iter=max_iter, sweeps=sweeps, device=str(device),
        dtype=dtype, n_threads=n_threads, memory_limit=memory_limit, client=None, progress=False,
        callback=None,
    )  # fmt: skip
    return _plan(run, reading, progress)


def _plan(run: Run, reading: float, progress: bool) -> Plan:
    """The plan of a run whose data took so many seconds to read."""
    lifts = _lifts(run)
    hist = run.problem.samples.hist
    memory = _memory(run, lifts, share_of_moves=1.0)
    available = free_memory() if run.device == "cpu" else free_on(torch_device(run.device))
    planned = Plan(
        samples=hist.shape[0],
        features=hist.shape[1],
        density=hist.nnz / math.prod(hist.shape),
        engine=_engine(run, lifts),
        memory=memory,
        available=available,
        operations=_operations(run, lifts),
        seconds=math.nan,
        sweeps=0,
        fits=memory <= available,
    )
    if planned.fits:
        if run.device == "cpu":
            learning.warmup(["exact" if run.eps == 0.0 else "entropic"])
        with _telling(progress) as note:
            found = estimate(run, lifts, note)
        low, middle, high = (reading + seconds for seconds in found.seconds)
        planned = replace(
            planned,
            memory=_memory(run, lifts, found.moves),
            seconds=found.seconds[1] / max(1, found.iterations[1]),
            sweeps=found.iterations[1],
            total=middle,
            total_range=(low, high),
            iterations=(found.iterations[0], found.iterations[2]),
            measured=found.measured,
        )
    return replace(planned, advice=_advice(run, planned))


# Engines and their memory


def _lifts(run: Run) -> Lifts:
    """The maps that the run would use; they allocate nothing yet."""
    if run.eps == 0.0:
        return exact_lifts(run.problem, n_threads=run.n_threads, memory_limit=_limit(run))
    if run.eps == math.inf:
        return LimitMap(run.problem.samples.hist), LimitMap(run.problem.features.hist)
    if run.device != "cpu":
        lifts = tensor_lifts(run.problem, run.eps, device=run.device, memory_limit=_limit(run))
        for lift in lifts:
            lift.precision = rough_precision(lifts)
        return lifts
    return entropic_lifts(
        run.problem, run.eps, dtype=run.dtype, n_threads=run.n_threads, memory_limit=_limit(run)
    )


def _limit(run: Run) -> float:
    """Bytes that maps may remember in; none where the metrics alone take all there are."""
    try:
        return run.usable_memory()
    except MemoryError:
        return 0.0


def _uses_policy(run: Run, lifts: Lifts) -> bool:
    if isinstance(run.solver, str) and run.solver == "auto":
        return all(isinstance(lift, ExactMap) and lift.has_room_to_freeze for lift in lifts)
    return run.solver == "policy" or isinstance(run.solver, PolicyIteration)


def _memory(run: Run, lifts: Lifts, share_of_moves: float) -> float:
    """Bytes at the peak: metrics, what the solver and the maps keep, copies of the data."""
    n, m = (lift.shape[0] for lift in lifts)
    data = OVERHEAD + BYTES_PER_ENTRY * float(run.problem.samples.hist.nnz)
    kind = "plain" if run.eps == 0.0 and not _uses_policy(run, lifts) else run.kind
    dense = dense_memory(n, m, kind)
    if isinstance(lifts[0], LimitMap):
        return data + dense
    if not isinstance(lifts[0], ExactMap):
        return data + dense + float(sum(lift.memory for lift in lifts)) + max(map(_copies, lifts))
    trees = float(sum(lift.memory.trees for lift in lifts if lift.keeps_trees))
    if not _uses_policy(run, lifts):
        return data + dense + trees
    if any(lift.kept < lift.memory.trees + lift.memory.moves for lift in lifts):
        return data + dense + REPLAYED * trees
    written = min(1.0, MORE_MOVES * share_of_moves)
    moves = written * float(sum(lift.memory.moves for lift in lifts))
    # Old couplings beside the history of a frozen solve, or beside new couplings.
    return data + trees + max(moves / 2 + dense, moves + dense_memory(n, m, "plain"))


def _copies(lift: Any) -> float:
    """Bytes of the scalings of a block of pairs in the precision of the finish."""
    if not isinstance(lift, EntropicMap) or lift.stored == np.float64:
        return 0.0
    cells = float(lift.histograms.nnz) ** 2 / 2
    return 8.0 * float(lift.scalings) * min(1.0, CELLS_PER_BLOCK / cells)


def _engine(run: Run, lifts: Lifts) -> str:
    if isinstance(lifts[0], LimitMap):
        return "closed form" if run.kind == "closed" else "matrix products"
    if isinstance(lifts[0], ExactMap):
        return f"network simplex, {'policy' if _uses_policy(run, lifts) else 'power'} iteration"
    if not isinstance(lifts[0], EntropicMap):
        return f"Sinkhorn on {run.device}, {' and '.join({lift.engine: 0 for lift in lifts})}"
    names = ("samples", "features")
    return "; ".join(
        f"{name}: Sinkhorn, {_form(lift)}" for name, lift in zip(names, lifts, strict=True)
    )


def _form(lift: EntropicMap) -> str:
    """What a map works in, and what it remembers in."""
    work = "logarithms" if lift.logs else lift.dtype.name
    return f"{work}, scalings {f'kept in {lift.stored.name}' if lift.stored else 'not kept'}"


def _operations(run: Run, lifts: Lifts) -> float:
    """Multiplications and additions of a sweep; a simplex takes as many as it takes."""
    if isinstance(lifts[0], ExactMap):
        return 0.0
    hists = run.problem.samples.hist, run.problem.features.hist
    if isinstance(lifts[0], LimitMap):
        return float(sum(2.0 * hist.nnz * sum(hist.shape) for hist in hists))
    return sum(2.0 * float(hist.nnz) ** 2 for hist in hists)


@contextmanager
def _telling(show: bool) -> Iterator[Callable[..., None]]:
    """What to call after each iteration of a part; a line of progress after two seconds.

    A log gets none: a plan takes half a minute at most.
    """
    if not show or not redraws():
        yield lambda *_: None
        return
    from tqdm.auto import tqdm

    layout = "{desc}: {n_fmt} iterations of parts of the problem [{elapsed}]"
    with tqdm(desc="planning", bar_format=layout, delay=TELL_AFTER, file=sys.stderr) as bar:
        yield lambda *_: bar.update()


# What to do about it


def _advice(run: Run, planned: Plan) -> tuple[str, ...]:
    """Other ways, where it does not fit or takes hours."""
    ways = []
    if not planned.fits:
        ways.append("does not fit: `learn` will refuse it. Instead:")
    elif planned.total > HOURS:
        ways.append("takes hours. If that is too long:")
    else:
        return ()
    if planned.features >= MANY and planned.features >= planned.samples / 4:
        ways.append("choose features, e.g. the 1000 most variable: time and memory fall as squares")
    if planned.samples >= MANY:
        ways.append("learn_landmarks(X, landmarks=400) learns from some samples, places the others")
    if run.device == "cpu" and 0.0 < run.eps < math.inf and planned.fits:
        ways.append("dtype='float32', or a GPU with device='cuda'")
    if not planned.fits and run.kind in ("accelerated", "linear"):
        light = dense_memory(planned.samples, planned.features, "plain") / 1e9
        if light * 1e9 < planned.available:
            ways.append(f"solver='power' needs {light:.2g} GB and more iterations")
    if run.eps == 0.0:
        ways.append(
            "eps=0.1 (Sinkhorn) instead of 0 (exact): far faster from some hundred items on"
        )
    if planned.fits and run.eps < math.inf:
        ways.append("a cluster: learn(..., client=...), see docs/scale.md")
        ways.append("checkpoint='folder' lets an interrupted run continue")
    return tuple(ways)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count < 1e10 else f"{count / 1e9:.1f} GB"
