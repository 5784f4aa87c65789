"""Entropic transport: debiased Sinkhorn divergences, 0 < eps < inf."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from scipy import sparse

from cometric.certificates.diagnosis import residual_of_some
from cometric.core.arrays import to_numpy
from cometric.core.histograms import Histograms, Side
from cometric.core.problem import Problem
from cometric.core.types import (
    Accuracies,
    Index,
    Iterate,
    Matrix,
    Status,
    Vector,
    traits_of,
)
from cometric.maps.distributed import DistributedEntropicMap
from cometric.maps.entropic_devices import DevicesMap
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.entropic_pairs import CELLS_PER_BLOCK
from cometric.maps.entropic_torch import TensorEntropicMap
from cometric.maps.sinkhorn_map import check_eps, inner_tolerance
from cometric.runtime.progress import Ahead
from cometric.solvers.loop import Solution, Stage
from cometric.solvers.power import PowerIteration
from cometric.solvers.trials import TrialIterate
from cometric.transports.base import (
    PAIR,
    Lifts,
    LowerBounds,
    Resources,
    Transport,
    between_by_pairs,
    cells_of,
)
from cometric.transports.solving import Solving, Stages

MARGIN = 0.03
"""Marginal errors up to this times the root of the residual do not slow down convergence."""

FULL_SOLVES = 3.0
"""Time of the final full solves, in units of an iteration with few sweeps (1 to 5)."""

STALL = 100
"""Iterations without a lower residual after which all Sinkhorn problems are solved fully."""

FINER = (0.1, 0.01, 0.001)
"""Factors of the inner tolerance that are tried in turn if more accuracy is needed."""

MUCH_FINER = 1e-3
"""Factor of the inner tolerance for the pairs that test whether more accuracy is needed."""

ACCEPTED = 1.25
"""Accepted residual of these test pairs, relative to the tolerance."""

TRUSTED = {"float32": 1e-3, "tf32": 0.3}
"""Residual down to which a lower precision is used; below it, rounding errors matter."""

LARGE = 1e9
"""Minimum number of cells per sweep and map for which early stages in float32 save time (a sweep
takes about half a second). Below, compiling kernels for another precision would take longer."""

COPY, SELF, EXPONENTIAL, LOG_CELL = 6.0, 3.0, 50.0, 50.0
"""Times in units of a cell of a Sinkhorn problem: per kernel entry copied for a source, per cell of
a self term, per exponential, per cell in the log domain. Fitted to calls for 16 to 256 histograms
of six data sets; they model how the time of calls grows.
"""


class Level(NamedTuple):
    """The accuracy of one stage: residual to reach, precision, sweeps per call."""

    tol: float
    precision: str
    sweeps: int | None  # per call; None solves every pair


@dataclass(frozen=True)
class Entropic(Transport):
    """Debiased Sinkhorn divergences.

    Parameters
    ----------
    eps
        Regularization relative to the largest cost, positive and at most 1e8; ``Limit()`` is
        infinity.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> cm.learn(X, tau=0.1, transport=cm.Entropic(0.1)).converged
    True
    """

    eps: float = 0.1  # type: ignore[misc]
    name: ClassVar[str] = "entropic transport"
    on_devices: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def lift(
        self, hist: Histograms, resources: Resources
    ) -> EntropicMap | TensorEntropicMap | DevicesMap:
        options = self.map_options() | {
            "sweeps": resources.sweeps,
            "memory_limit": resources.memory_limit,
        }
        if resources.tol is not None:
            options["tol"] = inner_tolerance(resources.tol, resources.largest)
        if isinstance(resources.device, tuple):
            return DevicesMap(hist, devices=resources.device, **options)
        if resources.device != "cpu":
            return TensorEntropicMap(hist, device=resources.device, **options)
        dtype = _precision(hist, resources.dtype)
        return EntropicMap(hist, dtype=dtype, n_threads=resources.n_threads, **options)

    def map_options(self) -> dict[str, Any]:
        """The parameters of the transport, as arguments of its maps."""
        return {"eps": self.eps}

    def distributed(self, hist: Histograms, resources: Resources) -> DistributedEntropicMap:
        client = None if resources.client == "local" else resources.client
        options = self.map_options() | {"sweeps": resources.sweeps}
        options["remember"] = resources.memory_limit != 0.0
        if resources.tol is not None:
            options["tol"] = inner_tolerance(resources.tol, resources.largest)
        dtype = _precision(hist, resources.dtype)
        return DistributedEntropicMap(hist, client=client, dtype=dtype, **options)

    # ------------------------------------------------------------------------- solving

    def stages(self, run: Solving) -> Stages:
        """Stages with a few sweeps per iteration, then those that solve every pair.

        A lower precision is used down to the residuals in ``TRUSTED``: on devices, for dense data,
        and if it was set. Iterations with unsolved pairs may not converge. So all pairs are solved
        after 100 iterations without a lower residual; if distances become negative, also starting
        from the initial metrics again.
        """
        solution, sampled = run.begun, run.traits.samples_pairs
        for level in _levels(run):
            left = run.max_iter - len(solution.history)
            if left <= 0 or solution.status in (Status.INTERRUPTED, Status.BOUNDARY):
                break
            final = level.sweeps is None
            solution = yield Stage(
                level.tol,
                left,
                math.inf if final or sampled else STALL,
                accuracy=_changed(solution.iterate, precision=level.precision, sweeps=level.sweeps),
                tighten=partial(_tightened, run.tol, run.traits.extrapolates_from),
                ahead=Ahead(
                    run.tol,
                    left,
                    extra=0.0 if final else FULL_SOLVES,
                    name="last stage: solving every pair" if final else "",
                ),
                afresh=solution.status is Status.NOT_PSD,
            )
        solution = yield from run.confirm(solution)
        if solution.status is Status.CONVERGED:
            solution = yield from self._solve_accurately(run, solution)
        return run.check_connected(solution)

    def _solve_accurately(self, run: Solving, solution: Solution) -> Stages:
        """Stages with pairs solved more accurately, as long as test pairs are not accurate.

        A marginal error determines the error of a distance only up to a factor that depends on the
        pair: small distances and small ``eps`` need more accuracy. A few test pairs show how much.
        """
        accuracy: Any = solution.iterate.accuracy
        if accuracy[0].sweeps is not None:
            return solution._replace(status=Status.MAX_ITER)
        unsolved = any(
            lift.error > part.tol for lift, part in zip(run.lifts, accuracy, strict=True)
        )
        if unsolved and not _is_replayed(solution):
            return solution._replace(status=Status.INNER_NOT_CONVERGED)
        solver = PowerIteration() if run.traits.samples_pairs else run.solver
        for share in FINER:
            if self._is_accurate(run, solution):
                return solution
            left = run.max_iter - len(solution.history)
            if left <= 0:
                break
            begin = traits_of(solver).extrapolates_from
            solution = yield Stage(
                run.tol,
                left,
                accuracy=_tightened(run.tol, -math.inf, solution.iterate, share),
                tighten=partial(_tightened, run.tol, begin, share=share),
                ahead=Ahead(run.tol, left, name="last stage: solving pairs more accurately"),
                solver=solver,
            )
            if solution.status is not Status.CONVERGED:
                return solution
        if self._is_accurate(run, solution):
            return solution
        return solution._replace(status=Status.INNER_NOT_CONVERGED)

    def _is_accurate(self, run: Solving, solution: Solution) -> bool:
        """Whether the metrics satisfy their equations on some pairs, solved very accurately."""
        if _is_replayed(solution):  # another stage followed
            return False
        problem, iterate = run.problem, solution.iterate
        samples, features = map(to_numpy, iterate.metrics)
        R_samples, R_features = map(to_numpy, run.norms)
        lam, mu = iterate.values
        device = run.lifts[0].device
        resources = Resources(
            n_threads=run.lifts[0].n_threads,
            memory_limit=0.0,
            device="cpu" if device is None else str(device),
            tol=MUCH_FINER**2 * run.tol,
        )

        def residual(side: Side, cost: Matrix, metric: Matrix, R: Matrix, largest: float) -> float:
            def lift(index: Index) -> Any:
                return self.lift(side.histograms.take(index), replace(resources, largest=largest))

            return residual_of_some(lift, cost, metric, problem.formula, R)

        worst = max(
            residual(problem.samples, features, samples, R_samples, mu),
            residual(problem.features, samples, features, R_features, lam),
        )
        return worst <= ACCEPTED * run.tol

    # ------------------------------------------------------------------------- answers

    def plan(self, pair: Histograms, cost: Matrix) -> tuple[Index, Index, Vector]:
        sources, targets, mass = EntropicMap(pair, **self.map_options()).plan(cost, 0, 1)
        source, target = np.meshgrid(sources, targets, indexing="ij")
        return source.ravel(), target.ravel(), mass.ravel()

    def hold(self, known: Histograms, cost: Matrix, resources: Resources) -> tuple[Vector, Vector]:
        """The scalings of the known histograms to themselves, and their self terms."""
        phi: Any = self.lift(known, resources)
        own: tuple[Vector, Vector] = phi.own_terms(cost)
        return own

    def to_known(
        self,
        phi: EntropicMap,
        cost: Matrix,
        new: Histograms,
        known: slice,
        held: tuple[Vector, Vector],
    ) -> Callable[[slice], Matrix]:
        own = self.hold(new, cost, Resources(phi.n_threads, memory_limit=0.0))
        scalings, values = map(np.concatenate, zip(own, held, strict=True))
        pairs = self.pairs_under(phi, cost, (scalings, values))
        return lambda rows: between_by_pairs(pairs, rows, known)

    def pairs_under(
        self, phi: EntropicMap, cost: Matrix, own: Any = None, few: bool = False
    ) -> Callable[[Index], Vector]:
        return phi.under(cost, own, few)

    def lower_bounds(
        self, phi: Any, hist: sparse.csr_array, cost: Matrix, own: Vector | None = None
    ) -> LowerBounds:
        """Dual values at the potentials of the self terms."""
        self._check_bounds(phi)
        unit = self.eps * float(cost.max())
        scalings, kernel = self._own_scalings(phi, hist, cost, own), np.exp(-cost / unit)
        logs = scalings.copy()  # of K u = a / u, on the support of a
        logs.data = np.log(hist.data / scalings.data)
        q = unit * np.asarray(hist.multiply(logs).sum(axis=1)).ravel()

        def image(rows: slice) -> Matrix:
            potentials: Matrix = unit * np.log(scalings[rows] @ kernel)
            return potentials

        return super().lower_bounds(phi, hist, cost)._replace(q=q, image=image)

    def _own_scalings(
        self, phi: Any, hist: sparse.csr_array, cost: Matrix, own: Vector | None
    ) -> sparse.csr_array:
        """The scalings of histograms to themselves, from ``own`` if they are known."""
        own = phi.own_terms(cost)[0] if own is None else own
        return sparse.csr_array((own, hist.indices, hist.indptr), hist.shape)

    def _check_bounds(self, phi: Any) -> None:
        """Raise if ``eps`` is too small for :meth:`lower_bounds`."""
        if phi.logs:
            raise ValueError(
                f"`eps` is {self.eps:g}, too small for the bounds that find neighbors. "
                "Learn with eps = 0 or eps >= 0.01."
            )

    # ------------------------------------------------------------------------ planning

    def engine(self, lifts: Lifts, solver: str) -> str:
        engines = _engines(lifts)
        if engines:
            return f"Sinkhorn on {lifts[0].device_names}, {' and '.join(engines)}"
        sides = zip(("samples", "features"), lifts, strict=True)
        return "; ".join(f"{name}: Sinkhorn, {_form(lift)}" for name, lift in sides)

    def operations(self, problem: Problem) -> float:
        return sum(2.0 * float(side.hist.nnz) ** 2 for side in (problem.samples, problem.features))

    def work(self, lift: Any, hist: sparse.csr_array) -> float:
        (n, d), squares = hist.shape, float((np.diff(hist.indptr).astype(float) ** 2).sum())
        cells, pairs = cells_of(hist), n * (n - 1) / 2
        if _engines([lift]):
            return float(cells + PAIR * n)
        if lift.logs:
            return float(LOG_CELL * (cells + SELF * squares) + PAIR * pairs)
        kernels = COPY * d * hist.nnz + EXPONENTIAL * d * d
        return float(cells + kernels + SELF * squares + PAIR * pairs)

    def peak_memory(self, lifts: Lifts, dense: float, plain: float, policy: bool) -> float:
        return dense + self.bytes_promised(lifts) + max(map(_copies, lifts))


def _precision(hist: Histograms, dtype: Any) -> Any:
    """The precision of early sweeps for these histograms."""
    if not isinstance(dtype, str) or dtype != "auto":
        return dtype
    return np.float32 if float(hist.rows.nnz) ** 2 / 2 >= LARGE else np.float64


def _levels(run: Solving) -> Iterable[Level]:
    """The accuracy of each stage; the last one solves every pair."""
    accuracy, tol = run.lifts[0].accuracy, run.tol
    rough, sweeps = accuracy.precision, accuracy.sweeps
    engines = _engines(run.lifts)
    if engines:
        rough = "tf32" if engines == ["dense"] else "float32"
    if run.traits.samples_pairs:  # full sweeps follow
        return [Level(tol, "float64", sweeps)]
    trusted = TRUSTED.get(rough, math.inf)
    levels = []
    if rough in TRUSTED:
        levels.append(Level(max(tol, trusted), rough, sweeps))
    if tol < trusted:
        levels.append(Level(tol, "float64", sweeps))
    return [*levels, Level(tol, "float64", None)]


def _is_replayed(solution: Solution) -> bool:
    """Whether this stage was already finished in the checkpoint from which the run continues."""
    return math.isinf(solution.iterate.residual)


def _changed(now: Iterate, **changes: Any) -> Accuracies:
    """The accuracy of both maps with these changes."""
    to_samples, to_features = cast(Accuracies, now.accuracy)
    return to_samples._replace(**changes), to_features._replace(**changes)


def _tightened(tol: float, begin: float, now: Iterate, share: float = 1.0) -> Accuracies:
    """The accuracy of both maps after an iteration.

    While steps are extrapolated, from a residual of ``begin`` on, pairs with marginal errors above
    a margin get more sweeps. The margin is proportional to the root of the residual, because values
    are accurate to second order, and is halved after each failed trial. ``share`` multiplies the
    tolerance of the pairs.
    """
    lam, mu = now.values
    to_samples, to_features = cast(Accuracies, now.accuracy)
    if now.residual <= begin:
        failures = now.failures if isinstance(now, TrialIterate) else 0
        margin = MARGIN * math.sqrt(now.residual) * 0.5**failures
        to_samples, to_features = _changed(now, margin=margin)
    return (
        to_samples._replace(tol=inner_tolerance(tol, mu, share)),
        to_features._replace(tol=inner_tolerance(tol, lam, share)),
    )


def _engines(lifts: Iterable[Any]) -> list[str]:
    """The engines of torch maps, on any device; empty for Numba maps."""
    return list(dict.fromkeys(lift.engine for lift in lifts if lift.device is not None))


def _form(lift: EntropicMap) -> str:
    """The precisions in which a map computes and stores scalings, as text."""
    work = "log domain" if lift.logs else lift.dtype.name
    return f"{work}, scalings {f'stored in {lift.stored.name}' if lift.stored else 'not stored'}"


def _copies(lift: Any) -> float:
    """Bytes for float64 copies of the scalings of a block, if stored in another precision."""
    if not isinstance(lift, EntropicMap) or lift.stored == np.float64:
        return 0.0
    cells = float(lift.histograms.nnz) ** 2 / 2
    return 8.0 * float(lift.scalings) * min(1.0, CELLS_PER_BLOCK / cells)
