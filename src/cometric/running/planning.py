"""Estimates of the memory and time of a call of ``learn``, without making it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.inputs import counted
from cometric.core.names import checks_options
from cometric.core.problem import Problem
from cometric.core.types import Metrics
from cometric.files.rows import as_rows
from cometric.machine.devices import free_memory, free_on_all
from cometric.machine.progress import counting, duration
from cometric.maps.distributed import worker_memory
from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.running import learning
from cometric.running.estimation import estimate
from cometric.running.memory import dense_memory, memory_for_maps
from cometric.running.presets import ALL, preset
from cometric.running.rehearsal import clock
from cometric.running.run import Run
from cometric.running.settings import Settings, mirrors_settings
from cometric.running.start import NOTHING, given_metrics
from cometric.solvers import SOLVERS
from cometric.transports.base import Lifts

HOURS = 3600.0
"""Seconds above which a plan has advice."""

MANY = 1000
"""Number of items of a side from which on a plan advises to take fewer."""

BYTES_PER_ENTRY = 120.0
"""Bytes of all copies of a nonzero entry of the data: as read, by rows, by columns, in maps."""

FIRST = 1_000_000
"""Entries that are read of data outside memory, to estimate how many are not zero."""

OVERHEAD = 15e6
"""Bytes of a run of any size, for the allocator and the threads."""


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
        Bytes at the peak, beside the data, and bytes that are free.
    operations
        Multiplications and additions of one sweep of both sides; 0 if not known in advance.
    seconds, sweeps
        Mean time of a sweep of both sides, and the expected number of sweeps.
    total, total_range
        Seconds of the whole call, and a likely range.
    iterations
        A likely range of the number of iterations.
    fits
        Whether ``memory`` is available.
    measured
        What was solved for the estimate.
    advice
        What to do if it does not fit, or takes hours.
    workers, worker_memory
        With ``client``: the number of its workers, and the bytes that each of them needs.
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
    workers: int = 0
    worker_memory: float = math.nan

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
            count = counted(low, "iteration") if low == high else f"{low} to {high} iterations"
            lines.append(
                f"  time        about {duration(self.total)} "
                f"({' to '.join(map(duration, self.total_range))}): {count}, "
                f"{duration(self.seconds)} each on average"
            )
            lines.append(f"  measured    {self.measured}")
        if self.workers:
            lines.append(
                f"  cluster     each of {counted(self.workers, 'worker')} needs "
                f"{_gigabytes(self.worker_memory)}; time is not predicted, see docs/scale.md"
            )
        lines += [f"  advice      {line}" for line in self.advice]
        return "\n".join(lines)


@checks_options
@mirrors_settings(without=("start", "random_state", "callback", "checkpoint", "checkpoint_every"))
def plan(X: Any, *, progress: bool = False, **options: Any) -> Plan:
    """Estimate what ``learn`` with these arguments takes: engine, memory, iterations, time.

    Two subproblems, with random samples and features, are solved to the tolerance with
    the same options, to find the number of iterations and the cost of each in calls of the maps.
    The time of a call is extrapolated from calls for some of the histograms. The number of
    iterations of a subproblem is close to that of the whole problem but not equal, so the plan has
    a range. A plan takes about 8 % of the time it predicts, within limits of about 5 and 30 seconds
    (and a minute to compile kernels, the first time).

    With ``client``, for exact and entropic transport, ``worker_memory`` is what each of its workers
    needs. The other fields are those of this process alone.

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
        ``fits`` tells whether there is enough memory; if not, no time is measured.

    Examples
    --------
    >>> import cometric as cm
    >>> planned = cm.plan(cm.datasets.torus("unimodal", 12, 10), eps=0)
    >>> planned.engine, planned.fits
    ('network simplex, policy iteration', True)
    """
    settings = Settings(progress=False, **options)
    source = as_rows(X)
    if source is not None:
        outside = _plan_outside(source, settings)
        if not outside.fits:
            return outside
        X = X if hasattr(X, "obs_names") else source.to_memory()
    began = clock()
    problem = Problem.from_data(
        X,
        normalization_steps=settings.normalization_steps,
        smoothing=settings.smoothing,
        drop_empty=settings.drop_empty,
        fixed=settings.fixed,
    )
    client, settings = settings.client, replace(settings.fitted(problem), client=None)
    problem = replace(problem, formula=settings.formula)
    reading = clock() - began
    start = nothing = Metrics(NOTHING, NOTHING)
    if problem.fixed:
        start = given_metrics(problem, getattr(settings, problem.fixed))
    try:
        memory = memory_for_maps(problem, settings)
    except MemoryError:  # the metrics alone do not fit
        memory = 0.0
    workers = 0 if client is None or client == "local" else len(client.nthreads())
    return _plan(Run(settings, problem, nothing, start, memory), reading, progress, workers)


def _plan_outside(source: Any, settings: Settings) -> Plan:
    """The plan for data that are not in memory, from their size and their first rows."""
    n, m = source.shape
    first = source[0 : max(1, min(n, FIRST // m))]
    filled = first.nnz if sparse.issparse(first) else np.count_nonzero(first)
    density = filled / math.prod(first.shape)
    saturated = settings.formula.saturate > 0.0
    memory = OVERHEAD + BYTES_PER_ENTRY * density * n * m
    memory += dense_memory(n, m, "plain", saturated)
    available = free_memory()
    return Plan(
        samples=n,
        features=m,
        density=density,
        engine="none: the data were not read",
        memory=memory,
        available=available,
        operations=0.0,
        seconds=math.nan,
        sweeps=0,
        fits=memory <= available,
        advice=("does not fit: `learn` will raise a MemoryError. Instead:", *preset(n)),
    )


def _plan(run: Run, reading: float, progress: bool, workers: int) -> Plan:
    """The plan of a run; ``reading`` are the seconds that reading the data took."""
    settings, hist = run.settings, run.problem.samples.hist
    lifts = settings.transport.lifts(run.problem, settings.resources(run.memory))
    memory = _memory(run, lifts, share_of_moves=1.0)
    on_cpu = settings.torch_device is None
    available = free_memory() if on_cpu else free_on_all(settings.torch_devices)
    planned = Plan(
        samples=hist.shape[0],
        features=hist.shape[1],
        density=hist.nnz / math.prod(hist.shape),
        engine=settings.transport.engine(lifts, _solver_name(run, lifts)),
        memory=memory,
        available=available,
        operations=0.0 if run.problem.fixed else settings.transport.operations(run.problem),
        seconds=math.nan,
        sweeps=0,
        fits=memory <= available,
    )
    if workers and all(isinstance(lift, ExactMap | EntropicMap) for lift in lifts):
        memory = sum(worker_memory(lift, workers) for lift in lifts)
        planned = replace(planned, workers=workers, worker_memory=memory)
    if planned.fits:
        if on_cpu:
            learning.warmup(["exact" if settings.transport.freezes else "entropic"])
        with counting(progress, "planning", "iterations of parts of the problem") as report:
            estimated = estimate(run, lifts, report)
        low, middle, high = (reading + seconds for seconds in estimated.seconds)
        planned = replace(
            planned,
            memory=_memory(run, lifts, estimated.moves),
            seconds=estimated.seconds[1] / max(1, estimated.iterations[1]),
            sweeps=estimated.iterations[1],
            total=middle,
            total_range=(low, high),
            iterations=(estimated.iterations[0], estimated.iterations[2]),
            measured=estimated.measured,
        )
    return replace(planned, advice=_advice(run, planned))


# Engines and their memory


def _solver_name(run: Run, lifts: Lifts) -> str:
    """The name of the solver, for the description of the engine."""
    solver = run.settings.solver
    if run.problem.fixed:
        return "one"
    if isinstance(solver, str):
        if run.settings.kind_of_memory == "closed":
            return "closed"
        return str(run.settings.transport.default_solver(lifts)) if solver == "auto" else solver
    names = {kind: name for name, kind in SOLVERS.items()}
    return names.get(type(solver), type(solver).__name__)


def _memory(run: Run, lifts: Lifts, share_of_moves: float) -> float:
    """Bytes at the peak: metrics, solver, maps and copies of the data."""
    n, m = (lift.shape[0] for lift in lifts)
    data = OVERHEAD + BYTES_PER_ENTRY * float(run.problem.samples.hist.nnz)
    policy = _solver_name(run, lifts) == "policy"
    kind = run.settings.kind_of_memory
    if run.settings.transport.freezes and not policy and not run.problem.fixed:
        kind = "plain"
    saturated = run.settings.formula.saturate > 0.0
    dense, plain = (dense_memory(n, m, name, saturated) for name in (kind, "plain"))
    peak = run.settings.transport.peak_memory(lifts, dense, plain, policy, share_of_moves)
    return data + float(peak)


# Advice


def _advice(run: Run, planned: Plan) -> tuple[str, ...]:
    """Alternatives if the run does not fit into memory, or takes hours."""
    advice, settings = [], run.settings
    if not planned.fits:
        advice.append("does not fit: `learn` will raise a MemoryError. Instead:")
    elif planned.total > HOURS:
        advice.append("takes hours. If that is too long:")
    else:
        return ()
    if planned.features >= MANY and planned.features >= planned.samples / 4:
        advice.append(
            "choose features, e.g. the 1000 most variable: time and memory fall as squares"
        )
    if planned.samples >= MANY:
        advice.extend(preset(max(planned.samples, ALL + 1)))
    if str(settings.device) == "cpu" and settings.transport.on_devices and planned.fits:
        advice.append("a GPU with device='cuda'")
    if not planned.fits and settings.kind_of_memory in ("accelerated", "linear"):
        size = planned.samples, planned.features
        power = dense_memory(*size, "plain", settings.formula.saturate > 0.0)
        if power < planned.available:
            advice.append(f"solver='power' needs {power / 1e9:.2g} GB and more iterations")
    if settings.transport.freezes:
        advice.append(
            "eps=0.1 (Sinkhorn) instead of 0 (exact): far faster from some hundred items on"
        )
    if planned.fits and settings.transport.on_clusters:
        advice.append("a cluster: learn(..., client=...), see docs/scale.md")
        advice.append("checkpoint='folder' lets an interrupted run continue")
    return tuple(advice)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count < 1e10 else f"{count / 1e9:.1f} GB"
