"""Estimates of the memory and time of a call of ``learn``, without making it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.arguments import with_options
from cometric.core.inputs import counted
from cometric.core.types import Metrics
from cometric.files.rows import as_rows
from cometric.learning.estimation import estimate
from cometric.learning.learn import read, warmup
from cometric.learning.run import NOTHING, Run, dense_memory, given_metrics, memory_for_maps
from cometric.learning.settings import AUTO, Settings, options
from cometric.runtime.devices import free_memory, free_on_all
from cometric.runtime.progress import counting, duration
from cometric.runtime.threads import workers
from cometric.solvers import SOLVERS
from cometric.transports.base import Lifts

UNUSED = ("start", "random_state", "callback", "checkpoint", "checkpoint_every")
"""Options of ``learn`` that have no effect on a plan."""

HOURS, MANY = 3600.0, 1000
"""Longer plans come with advice, and with this many items it is to take fewer."""

BYTES_PER_ENTRY = 120.0
"""Bytes per nonzero entry of the data, over all copies: as read, by rows, by columns, in maps."""

FIRST, IN_MEMORY = 1_000_000, 50_000
"""Entries to read from data outside memory, to estimate their density; and the number of samples
above which data better stay there."""

OVERHEAD = 60e6
"""Bytes of a run of any size, for libraries, the allocator and the threads."""


@dataclass(frozen=True)
class Plan:
    """The memory and time that a solve is expected to take on this machine.

    Parameters
    ----------
    samples, features, density
        Size of the data, without empty and repeated items.
    engine
        How the distances will be computed.
    memory, available
        Peak bytes in addition to the data, and free bytes.
    fits
        Whether ``memory`` is available.
    total, total_range
        Seconds of the whole call: a range, and its middle. NaN if the time is not estimated:
        where memory does not suffice, and for transports without a model of their time.
    iterations
        The range of iterations behind ``total_range``.
    seconds, measured
        Seconds of one call of both maps, and the samples that were timed.
    advice
        What to do if it does not fit, or takes hours.
    """

    samples: int
    features: int
    density: float
    engine: str
    memory: float
    available: float
    fits: bool = True
    total: float = math.nan
    total_range: tuple[float, float] = (math.nan, math.nan)
    iterations: tuple[int, int] = (0, 0)
    seconds: float = math.nan
    measured: str = ""
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        low, high = self.iterations
        count = counted(low, "iteration") if low == high else f"{low} to {high} iterations"
        time = f"{' to '.join(map(duration, self.total_range))}, for {count}"
        return "\n".join(
            [
                f"{self.samples} samples, {self.features} features, "
                f"{100 * self.density:.1f} % of the entries nonzero",
                f"  engine    {self.engine}",
                f"  memory    {_gigabytes(self.memory)} of {_gigabytes(self.available)} available"
                f"{'' if self.fits else ': does not fit'}",
                *[f"  time      {time if self.measured else 'not estimated'}"] * self.fits,
                *[f"  measured  {self.measured}"] * bool(self.measured),
                *(f"  advice    {line}" for line in self.advice),
            ]
        )


@with_options(options(without=UNUSED))
def plan(
    X: Any,
    eps: float | str = AUTO,
    tau: float | str = AUTO,
    *,
    progress: bool = False,
    **options: Any,
) -> Plan:
    """Estimate what ``learn`` with these arguments takes: engine, memory, time.

    Memory is computed by a formula. For the time, two calls of each map are timed on some of the
    samples and features, and multiplied by a range of iterations that depends on the options. The
    range covers most data; its ends differ by a factor of up to five. The measurement takes
    seconds, or a minute to compile kernels the first time. For trees, quadratic forms and solvers
    of your own the time is not estimated. ``client`` is ignored: the plan is for this process.

    Parameters
    ----------
    X
        As for :func:`learn`; or data outside memory, see :func:`open_store`. They are read only if
        they and the distances fit into memory.
    progress
        Show what is being done, after 2 seconds.
    options
        As for :func:`learn`.

    Returns
    -------
    Plan
        ``fits`` tells whether there is enough memory; if not, no time is estimated.

    Examples
    --------
    >>> import cometric as cm
    >>> planned = cm.plan(cm.datasets.torus("unimodal", 12, 10), eps=0)
    >>> planned.engine, planned.fits
    ('network simplex, policy iteration', True)
    """
    settings = Settings(eps, tau, **options)
    source = as_rows(X)
    if source is not None:
        outside = _plan_outside(source, settings)
        if not outside.fits:
            return outside
        X = X if hasattr(X, "obs_names") else source.to_memory()
    settings, problem = read(settings, X)
    settings = replace(settings, client=None)
    start = nothing = Metrics(NOTHING, NOTHING)
    if problem.fixed:
        start = given_metrics(problem, getattr(settings, problem.fixed))
    try:
        memory = memory_for_maps(problem, settings)
    except MemoryError:  # the metrics alone do not fit
        memory = 0.0
    return _plan(Run(settings, problem, nothing, start, memory), progress)


def _plan_outside(source: Any, settings: Settings) -> Plan:
    """The plan for data that are not in memory, from their size and their first rows."""
    n, m = source.shape
    first = source[0 : max(1, min(n, FIRST // m))]
    filled = first.nnz if sparse.issparse(first) else np.count_nonzero(first)
    density, available = filled / math.prod(first.shape), free_memory()
    memory = OVERHEAD + float(BYTES_PER_ENTRY * density * n * m)
    memory += dense_memory(n, m, "plain", settings.formula.saturate > 0.0)
    fits, engine = memory <= available, "none: the data were not read"
    planned = Plan(n, m, density, engine, memory, available, fits)
    return replace(planned, advice=_advice(settings, planned))


def _plan(run: Run, progress: bool) -> Plan:
    """The plan of a run."""
    settings, hist = run.settings, run.problem.samples.hist
    lifts = settings.transport.lifts(run.problem, run.resources)
    solver, memory = _solver_name(run, lifts), _memory(run, lifts)
    on_cpu, density = settings.torch_device is None, hist.nnz / math.prod(hist.shape)
    available = free_memory() if on_cpu else free_on_all(settings.torch_devices)
    engine, fits = settings.transport.engine(lifts, solver), memory <= available
    planned = Plan(hist.shape[0], hist.shape[1], density, engine, memory, available, fits)
    if fits:
        if on_cpu:
            warmup(["exact" if settings.transport.freezes else "entropic"])
        with workers(settings.n_threads), counting(progress, "planning", "call") as report:
            planned = replace(planned, **estimate(run, lifts, solver, report))
    return replace(planned, advice=_advice(settings, planned))


def _solver_name(run: Run, lifts: Lifts) -> str:
    """The name of the solver, for the description of the engine."""
    solver = run.settings.solver
    if run.problem.fixed:
        return "one"
    if isinstance(solver, str):
        if run.settings.kind_of_memory == "closed":
            return "closed"
        return str(run.settings.transport.default_solver(lifts)) if solver == "auto" else solver
    names = {type(solver): name for name, solver in SOLVERS.items()}
    return names.get(type(solver), type(solver).__name__)


def _memory(run: Run, lifts: Lifts) -> float:
    """Bytes at the peak: metrics, solver, maps and copies of the data."""
    n, m = (lift.shape[0] for lift in lifts)
    data = OVERHEAD + BYTES_PER_ENTRY * float(run.problem.samples.hist.nnz)
    policy = _solver_name(run, lifts) == "policy"
    kind = run.settings.kind_of_memory
    if run.settings.transport.freezes and not policy and not run.problem.fixed:
        kind = "plain"
    saturated = run.settings.formula.saturate > 0.0
    dense, plain = (dense_memory(n, m, name, saturated) for name in (kind, "plain"))
    peak = run.settings.transport.peak_memory(lifts, dense, plain, policy)
    return data + float(peak)


def _advice(settings: Settings, planned: Plan) -> tuple[str, ...]:
    """Alternatives if the run does not fit into memory, or takes hours."""
    fits = planned.fits
    exact, on_devices = (
        bool(getattr(settings.transport, name, False)) for name in ("freezes", "on_devices")
    )
    if fits and not planned.total > HOURS:
        return ()
    power = dense_memory(planned.samples, planned.features, "plain", settings.formula.saturate > 0)
    lines = {
        "does not fit: `learn` will raise a MemoryError. Instead:": not fits,
        "takes hours. If that is too long:": fits,
        "choose features, e.g. the 1000 most variable: time and memory fall as squares": (
            planned.features >= max(MANY, planned.samples / 4)
        ),
        "learn_landmarks(X) learns from some samples only and finds the neighbors of all": (
            planned.samples >= MANY
        ),
        "the data may stay in their file: pass open_store(path), or a backed AnnData": (
            planned.samples > IN_MEMORY
        ),
        "a GPU with device='cuda'": fits and on_devices and settings.device == "cpu",
        f"solver='power' needs {power / 1e9:.2g} GB and more iterations": (
            not fits
            and settings.kind_of_memory in ("accelerated", "linear")
            and power < planned.available
        ),
        "eps=0.1 (Sinkhorn) instead of 0 (exact): far faster from some hundred items on": exact,
        "checkpoint='folder' lets an interrupted run continue": fits,
    }
    return tuple(line for line, holds in lines.items() if holds)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count < 1e10 else f"{count / 1e9:.1f} GB"
