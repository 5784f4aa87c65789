"""One run: the norms R, the starting metrics and the maps of a problem, then the solve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from signal import SIGTERM
from typing import Any, NamedTuple

import numpy as np

from cometric.checkpoints.checkpoint import Checkpoint
from cometric.core.cones import normalize
from cometric.core.digest import digest
from cometric.core.errors import ConvergenceWarning, Interrupted, shortfall
from cometric.core.given import read_given
from cometric.core.histograms import Side
from cometric.core.problem import Problem
from cometric.core.types import Matrix, Metrics, Status
from cometric.core.warn import warn
from cometric.learning.settings import Settings
from cometric.maps.norms import norm_matrices, norm_name, side_norm
from cometric.results.parameters import Parameters
from cometric.results.result import Result
from cometric.runtime.devices import SHARE_ON_DEVICES, free_memory, free_on, free_on_all
from cometric.runtime.progress import Bar, duration
from cometric.runtime.threads import one_blas_thread, workers
from cometric.solvers.loop import Solution
from cometric.transports.base import Lifts, Resources
from cometric.transports.entropic import Entropic
from cometric.transports.solving import Solving

NOTHING = np.empty((0, 0))
"""A metric, or a norm, that a run does not have."""


@dataclass(frozen=True)
class Run:
    """A problem with its norms R, starting metrics and all options.

    ``memory`` is the number of bytes that maps may store between calls.
    """

    settings: Settings
    problem: Problem
    norms: Metrics
    start: Metrics
    memory: float
    checkpoint: Checkpoint | None = None

    @classmethod
    @one_blas_thread()  # on shared cores, several would mostly wait for one another
    def prepare(cls, settings: Settings, problem: Problem) -> Run:
        """A run with its norms and starting metrics; raises if there is not enough memory."""
        memory = memory_for_maps(problem, settings)
        norm = problem.formula.norm
        if problem.fixed:
            given = given_metrics(problem, getattr(settings, problem.fixed))
            return cls(settings, problem, _norm_of_lift(settings, problem), given, memory)
        norms = norm_matrices(problem, norm, settings.torch_device)
        if problem.formula.restart > 0.0:
            _check_positive(norms, norm)
        # With a restart, R is a part of the solution, hence a good start. But exact transport is
        # faster under a metric, and trees depend on the start.
        near = problem.formula.restart > 0.0 and isinstance(settings.transport, Entropic)
        same = near or (isinstance(norm, str) and norm == "l1")
        unused = isinstance(settings.start, str)
        default = norms if same or unused else norm_matrices(problem, "l1")
        start = starting_metrics(problem, settings.start, settings.random_state, default)
        return cls(settings, problem, norms, start, memory)

    def learn(self) -> Result:
        """Solve; warns if not converged, raises if interrupted."""
        with workers(self.settings.n_threads), Bar.shown(self.settings.progress) as bar:
            if self.checkpoint is not None:
                self.checkpoint.announce = bar.say
            lifts = self.lifts()
            try:
                solution = self.solve(lifts, bar)
                saved = self.checkpoint is not None and self.checkpoint.flush()
            finally:
                for lift in lifts:
                    lift.close()  # workers of a cluster free their memory
        signal = None if self.checkpoint is None else self.checkpoint.interruption.number
        if signal is not None:
            solution = solution._replace(status=Status.INTERRUPTED)
        if signal == SIGTERM:
            raise SystemExit(128 + SIGTERM)
        result = replace(self._result(solution), bases=self.settings.transport.bases(lifts))
        if result.status is Status.INTERRUPTED:
            raise self._interruption(result, saved)
        if result.status is Status.NOT_PSD and self.settings.careful is not None:
            return result  # the caller learns again
        if solution.remark:
            warn(solution.remark)
        if not result.status.is_expected:
            warn(
                shortfall(result.status, result.history, result.parameters.tol), ConvergenceWarning
            )
        return result

    @property
    def resources(self) -> Resources:
        """What maps may use.

        If one metric is given, a map is called once: this call solves all pairs in float64, and
        stores nothing for later calls.
        """
        settings, memory = self.settings, self.memory
        devices = settings.devices or ("cpu",)
        resources = Resources(
            settings.n_threads,
            memory,
            devices if len(devices) > 1 else devices[0],
            settings.client,
            settings.dtype,
            settings.sweeps,
            settings.tol,
        )
        if not self.problem.fixed:
            return resources
        memory = 0.0 if settings.torch_device is None else memory
        return replace(resources, memory_limit=memory, dtype=np.float64, sweeps=None)

    def lifts(self) -> Lifts:
        """The maps to samples and to features."""
        settings = self.settings
        lifts: Lifts = settings.transport.lifts(self.problem, self.resources)
        if settings.memory_limit is not None and settings.client is None:
            promised = settings.transport.bytes_promised(lifts)
            allocated = sum(matrix.nbytes for pair in (self.norms, self.start) for matrix in pair)
            memory_for_maps(self.problem, settings, promised, allocated)  # raises if too little
        return lifts

    def solve(self, lifts: Lifts, bar: Bar) -> Solution:
        """Find the singular vectors with these maps."""
        settings = self.settings
        return Solving(
            self.problem,
            self.norms,
            self.start,
            lifts,
            solver=settings.solver,
            tol=settings.tol,
            max_iter=int(settings.max_iter),
            callback=settings.callback,
            checkpoint=self.checkpoint,
            bar=bar,
        ).solve(settings.transport)

    def data(self) -> dict[str, Any]:
        """The histograms, and the norms if given as matrices, as named arrays."""
        arrays, matrices = self.problem.to_arrays(), self._norm_matrices()
        if matrices is not None:
            arrays |= {"samples_norm": matrices[0], "features_norm": matrices[1]}
        return arrays

    def to_json(self) -> dict[str, Any]:
        """All options that change the result; data and starting metrics as checksums."""
        stored = {"data": digest(self.data()), **self.settings.to_json()}
        if stored["start"] == "matrix":
            stored["start"] = digest(self.start._asdict())
        return stored

    def _norm_matrices(self) -> tuple[Matrix, Matrix] | None:
        """R between all kept items, if one or both were given as matrices."""
        if "matrix" not in norm_name(self.settings.norm):
            return None
        sides = self.problem.samples, self.problem.features
        samples, features = (
            np.zeros((len(side.labels),) * 2) if R is NOTHING else side.expand(R)
            for side, R in zip(sides, self.norms, strict=True)
        )
        return samples, features

    def _result(self, solution: Solution) -> Result:
        settings, metrics = self.settings, solution.iterate.metrics
        return Result(
            samples=self.problem.samples.expand(metrics.samples),
            features=self.problem.features.expand(metrics.features),
            values=solution.iterate.values,
            status=solution.status,
            history=solution.history,
            bracket=solution.iterate.bracket,
            parameters=Parameters(
                eps=float(settings.transport.eps),
                tau=settings.tau,
                norm=norm_name(settings.norm),
                solver=solution.solver,
                tol=float(settings.tol),
                max_iter=int(settings.max_iter),
                restart=settings.restart,
                transport=settings.transport,
                saturate=settings.formula.saturate,
                overlap=settings.overlap,
                chosen=settings.chosen,
            ),
            problem=self.problem,
            norms=self._norm_matrices(),
            change=solution.change,
        )

    def _interruption(self, result: Result, saved: bool) -> Interrupted:
        hint = ""
        if saved and self.checkpoint is not None:
            hint = f"; cometric.resume({str(self.checkpoint.folder)!r}) continues from here"
        interruption = Interrupted(f"interrupted; the partial result is in `.result`{hint}")
        interruption.result = result
        return interruption


def _check_positive(norms: Metrics, norm: Any) -> None:
    """Raise if R is 0 between all items of a side: R / |R| would be 0 / 0."""
    for of, R in zip(Metrics._fields, norms, strict=True):
        if not float(R.max()) > 0.0:
            raise ValueError(
                f"`norm` is {norm_name(norm)}, which is 0 between all {of}: nothing to restart "
                "with. Pass another `norm`, such as 'l1'."
            )


def _norm_of_lift(settings: Settings, problem: Problem) -> Metrics:
    """R of the side that is computed from a given metric, if there is one."""
    norms = Metrics(NOTHING, NOTHING)
    if not problem.formula.has_norm:
        return norms
    of = "samples" if problem.fixed == "features" else "features"
    R = side_norm(problem, problem.formula.norm, of, settings.torch_device)
    return norms._replace(**{of: R})


def starting_metrics(
    problem: Problem, start: Any, random_state: int | None, default: Metrics
) -> Metrics:
    """The starting metrics: ``default``, unless ``start`` replaces one or both."""
    sides = (problem.samples, problem.features)
    if isinstance(start, str) and start == "random":
        rng = np.random.default_rng(random_state)
        return Metrics(*(_random_metric(side.hist.shape[0], rng) for side in sides))
    if isinstance(start, str):
        raise ValueError(f"`start` is {start!r}; the only valid name is 'random'.")
    pair = start if isinstance(start, tuple) else (start, None)
    if len(pair) != 2:
        raise ValueError(f"`start` has {len(pair)} matrices; pass (samples, features) or one.")
    names = ("samples", "features")
    return Metrics(
        *(
            distances / distances.max() if matrix is None else _check_start(matrix, side, name)
            for matrix, side, name, distances in zip(pair, sides, names, default, strict=True)
        )
    )


def given_metrics(problem: Problem, given: Any) -> Metrics:
    """The metric of the side that is fixed, checked; an empty matrix for the other side."""
    side: Side = getattr(problem, problem.fixed)
    matrix = read_given(given, problem.fixed, side)
    return Metrics(NOTHING, NOTHING)._replace(**{problem.fixed: matrix})


def _random_metric(k: int, rng: np.random.Generator) -> Matrix:
    """Distances between random points of a cube: a generic metric."""
    points = rng.random((k, max(2, min(k, 10))))
    distances = np.empty((k, k))
    for i, point in enumerate(points):  # all differences at once: the memory of ten metrics
        distances[i] = np.abs(point - points).sum(axis=-1)
    return normalize(distances)[0]


def _check_start(matrix: Any, side: Side, name: str) -> Matrix:
    """A starting metric of the user between distinct items, normalized; raises if not valid."""
    n = len(side.labels)
    try:
        matrix = np.array(matrix)
        matrix = matrix.astype(np.float64, casting="same_kind" if matrix.size else "unsafe")
    except (TypeError, ValueError) as problem:
        raise ValueError(f"`start` for {name} cannot be read as a matrix: {problem}.") from problem
    if matrix.shape != (n, n):
        raise ValueError(f"`start` for {name} has shape {matrix.shape}; there are {n} {name}.")
    if not np.isfinite(matrix).all() or (matrix < 0).any() or np.diagonal(matrix).any():
        raise ValueError(f"`start` for {name} must be finite, nonnegative, zero on the diagonal.")
    if (matrix != matrix.T).any():
        raise ValueError(
            f"`start` for {name} is not symmetric; pass the mean of it and its transpose."
        )
    return normalize(matrix[np.ix_(side.first, side.first)])[0]


# Memory and time that a run needs, and what to do if there is too little


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
