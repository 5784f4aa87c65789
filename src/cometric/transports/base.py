"""The base class of transports: maps, solving, certificates, plans, cost estimates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from scipy import sparse

from cometric.certificates.certificate import Certificate
from cometric.certificates.diagnosis import Diagnosis, diagnose, pairs_to_diagnose, residual_of_some
from cometric.certificates.lifting import LiftCheck, check_lift, pairs_to_check
from cometric.core.arguments import shown
from cometric.core.histograms import Histograms
from cometric.core.problem import Problem
from cometric.core.trees import MetricTree
from cometric.core.types import DistanceMap, Index, Iterate, Matrix, Metrics, PlainMap, Vector
from cometric.maps.distributed import ColdMap
from cometric.runtime.devices import free_memory, usable_memory
from cometric.solvers.loop import Solution, Stage
from cometric.transports.solving import Solving, Stages

Kind = TypeVar("Kind", bound="Transport")

Lifts = tuple[Any, Any]
"""The maps to samples and to features."""

PRODUCTS = 1e-9
"""Relative accuracy of distances computed by matrix products, see ``maps.views``."""

PAIR = 2000.0
"""Fixed cost of a pair, in cells of a Sinkhorn problem; see ``work``."""


@dataclass(frozen=True)
class Resources:
    """Computing resources and accuracy of maps.

    ``memory_limit`` is the number of bytes that maps may store between calls, half of the free
    memory by default. ``sweeps`` is the number of sweeps per call, None for as many as needed.
    ``tol`` is the tolerance of the outer iteration, None for the highest accuracy; ``largest`` is
    the largest distance relative to the largest cost, if known.
    """

    n_threads: int | None = None
    memory_limit: float | None = None
    device: str | tuple[str, ...] = "cpu"  # several, for one process
    client: Any = None
    dtype: Any = np.float64
    sweeps: int | None = None
    tol: float | None = None
    largest: float = 1.0

    @property
    def memory(self) -> float:
        """Bytes that both maps together may store between calls."""
        if self.memory_limit is not None:
            return self.memory_limit
        return free_memory() / 2 if self.device == "cpu" else usable_memory(self.device)


class LowerBounds(NamedTuple):
    """Lower bounds of the transport between histograms a_i and a_j under one cost.

    The bound is the sum of ``p[i] + q[j] - <image(rows)[i], a_j>`` and the largest entry of
    ``|means[i] - means[j]|``.
    """

    p: Vector
    q: Vector
    means: Matrix
    image: Callable[[slice], Matrix]


def without_parameters(kind: type[Kind]) -> type[Kind]:
    """Class decorator for transports with fixed ``eps``: parameters raise a helpful TypeError."""
    plain: Callable[[Any], None] = kind.__init__

    @wraps(plain)
    def init(self: Any, *given: Any, **named: Any) -> None:
        if given or named:
            text = ", ".join([*map(shown, given), *(f"{k}={shown(v)}" for k, v in named.items())])
            name = kind.__name__
            raise TypeError(
                f"{name}({text}): {name} has no parameters, its eps is {kind.eps:g}. Pass "
                f"cm.{name}(), or cm.Entropic(0.1) for an eps of 0.1."
            )
        plain(self)

    vars_of: Any = kind
    vars_of.__init__ = init
    return kind


@dataclass(frozen=True)
class Transport:
    """A way of comparing histograms under a cost.

    A subclass must define :meth:`lift`, and may override the defaults below. Parameters are the
    fields of a frozen dataclass.
    """

    name: ClassVar[str] = "this transport"
    eps: ClassVar[float] = math.nan  # entropic regularization, where there is one
    monotone: ClassVar[bool] = False  # a larger cost never makes a distance smaller
    freezes: ClassVar[bool] = False  # maps have couplings that policy iteration can freeze
    on_devices: ClassVar[bool] = False  # maps can run on torch devices
    on_clusters: ClassVar[bool] = True  # maps can run on a cluster
    per_bin: ClassVar[float] = 1.0  # what maps store per bin of a pair, in any unit
    per_pair: ClassVar[float] = 0.0  # what they store per pair besides
    # The matrices that a solve stores, see ``learning.run.NEEDS``:
    history: ClassVar[str] = "accelerated"  # with a solver that stores metrics of earlier steps
    stores_history: ClassVar[bool] = True  # the default solver does
    closed_form: ClassVar[bool] = False  # without R, no solver is needed

    def lift(self, hist: Histograms, resources: Resources) -> DistanceMap:
        """The map from a cost between bins to distances between these histograms."""
        raise NotImplementedError(f"{type(self).__name__} does not define `lift`.")

    def parameters(self) -> dict[str, Any]:
        """The parameters by name, as JSON."""
        instance: Any = self
        return {field.name: getattr(self, field.name) for field in fields(instance)}

    def __str__(self) -> str:
        values = ", ".join(
            f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value!r}"
            for name, value in self.parameters().items()
        )
        return values or type(self).__name__.lower()

    # ---------------------------------------------------------------------------- maps

    def lifts(self, problem: Problem, resources: Resources | None = None) -> Lifts:
        """The maps to samples and to features; memory is divided in proportion to their needs."""
        resources = resources or Resources()
        hists = problem.samples.histograms, problem.features.histograms
        if resources.client is not None:
            to_samples, to_features = (self.distributed(hist, resources) for hist in hists)
            return to_samples, to_features
        memory, needs = resources.memory, []
        for hist in hists:
            n = hist.shape[0]
            needs.append(self.per_bin * hist.rows.nnz * n + self.per_pair * n * (n - 1) / 2)
        to_samples, to_features = (
            self.map_of(hist, replace(resources, memory_limit=memory * need / sum(needs)))
            for hist, need in zip(hists, needs, strict=True)
        )
        return to_samples, to_features

    def map_of(self, hist: Histograms, resources: Resources) -> DistanceMap:
        """The map of :meth:`lift`, with all that a :class:`DistanceMap` has."""
        phi: Any = self.lift(hist, resources)
        return phi if isinstance(phi, DistanceMap) else PlainMap(phi)

    def distributed(self, hist: Histograms, resources: Resources) -> DistanceMap:
        """The map of :meth:`lift`, computed on the workers of a client."""
        local = replace(resources, client=None, memory_limit=0.0)
        client = None if resources.client == "local" else resources.client
        return ColdMap(partial(_lift_some, self, local), hist, client)

    def bytes_promised(self, lifts: Lifts) -> float:
        """Bytes within ``memory_limit`` that both maps will use."""
        return float(sum(lift.memory_used for lift in lifts))

    def bases(self, lifts: Lifts) -> Any:
        """Data of the maps after a solve, for :meth:`reuse`; None by default."""
        return None

    def reuse(self, lifts: Lifts, bases: Any) -> None:
        """Warm-start new maps of the same problem from the ``bases`` of a solve."""

    # ------------------------------------------------------------------------- solving

    def default_solver(self, lifts: Lifts) -> str:
        """The name of the solver that "auto" stands for."""
        return "anderson"

    def stages(self, run: Solving) -> Stages:
        """The stages of a solve, by default one; returns the solution with its final status.

        None if the solution has a closed form, transport is plain, and the solver "auto".
        """
        if self.closed_form and run.problem.formula.is_plain and run.automatic:
            return self.closed(run)
        accepts = None if self.monotone else partial(self._has_features, run)
        solution = yield Stage(run.tol, run.max_iter, accepts=accepts)
        solution = yield from run.confirm(solution)
        return run.check_connected(solution)

    def closed(self, run: Solving) -> Solution:
        """The solution in closed form, if :attr:`closed_form`."""
        raise NotImplementedError(f"{type(self).__name__} does not define `closed`.")

    def _has_features(self, run: Solving, now: Iterate) -> bool:
        """Whether the features are those of the samples, on some pairs.

        The residual is that of the samples, whose last change maps may enlarge.
        """
        problem, (samples, features) = run.problem, now.metrics
        hist, R = problem.features.histograms, run.norms.features
        residual = residual_of_some(
            lambda index: self.lift(hist.take(index), Resources()),
            samples,
            features,
            problem.formula,
            R,
        )
        return residual <= max(run.tol, PRODUCTS)

    # ------------------------------------------------------------------------- answers

    def judge(self, problem: Problem, metrics: Metrics, lifts: Lifts) -> Certificate | Diagnosis:
        """A certificate or a diagnosis of a pair of metrics, from new maps."""
        return diagnose(problem, metrics, lifts, self.eps)

    def pairs_to_judge(self, problem: Problem) -> int:
        """The largest number of transport problems that :meth:`judge` solves."""
        return pairs_to_diagnose(problem)

    def judge_lift(
        self, problem: Problem, metrics: Metrics, lifts: Lifts, index: Index
    ) -> LiftCheck:
        """A check of a metric computed from a given one, for the pairs ``index``."""
        return check_lift(problem, metrics, lifts, index)

    def pairs_of_lift(self, problem: Problem) -> Index:
        """The pairs that :meth:`judge_lift` solves again: all if exact transport, else a sample."""
        return pairs_to_check(problem, every=self.freezes)

    def plan(self, pair: Histograms, cost: Matrix) -> tuple[Index, Index, Vector]:
        """Source bin, target bin and mass of every flow between two histograms."""
        raise NotImplementedError(f"{type(self).__name__} does not define `plan`.")

    def tree(self, cost: Matrix) -> MetricTree:
        """A tree of the bins, by average linkage of the distances between them."""
        return MetricTree.from_distances(cost)

    def plan_cost(self, cost: Matrix) -> Matrix:
        """The distances between bins by which :meth:`plan` moves mass; the cost itself."""
        return cost

    def between(self, phi: Any, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        """Distances from the histograms ``rows`` of a map to the histograms ``columns``."""
        return between_by_pairs(partial(phi.pairs, cost), rows, columns)

    def hold(self, known: Histograms, cost: Matrix, resources: Resources) -> Any:
        """What :meth:`to_known` needs of known histograms, computed once; nothing by default."""
        return None

    def to_known(
        self, phi: Any, cost: Matrix, new: Histograms, known: slice, held: Any
    ) -> Callable[[slice], Matrix]:
        """A function from some of the histograms ``new`` to their distances to all known ones.

        ``phi`` is a map of the new histograms, then the ``known`` ones, for which :meth:`hold`
        returned ``held`` under the same cost.
        """
        return lambda rows: self.between(phi, cost, rows, known)

    def pairs_under(
        self, phi: Any, cost: Matrix, own: Any = None, few: bool = False
    ) -> Callable[[Index], Vector]:
        """Distances of any pairs under one cost.

        ``own`` are the self terms of entropic transport, if known; ``few`` means few pairs of each
        histogram.
        """
        return partial(phi.pairs, cost)

    def lower_bounds(
        self, phi: Any, hist: sparse.csr_array, cost: Matrix, own: Vector | None = None
    ) -> LowerBounds:
        """Lower bounds of all distances, for finding neighbors; none by default.

        ``phi`` is the map of the histograms ``hist``. ``own`` are, for entropic transport, the
        entries of their scalings to themselves, if known.
        """
        n, d = hist.shape
        nothing = np.zeros(n)
        return LowerBounds(nothing, nothing, np.empty((n, 0)), partial(_zeros, d))

    # ------------------------------------------------------------------------ planning

    def engine(self, lifts: Lifts, solver: str) -> str:
        """A description of how distances will be computed."""
        return f"{type(self).__name__}, {solver}"

    def operations(self, problem: Problem) -> float:
        """Floating-point operations of a sweep of both sides; 0 if unknown."""
        return 0.0

    def work(self, lift: Any, hist: sparse.csr_array) -> float:
        """Modeled time of a call for these histograms, in any unit; NaN if there is no model.

        ``lift`` is a map of the same kind, possibly of other histograms.
        """
        return math.nan

    def peak_memory(self, lifts: Lifts, dense: float, plain: float, policy: bool) -> float:
        """Peak memory of maps and metrics in bytes.

        ``dense`` is the memory of the metrics and the solver, ``plain`` the same for a solver
        without history.
        """
        return dense + self.bytes_promised(lifts)


def between_by_pairs(pairs: Callable[[Index], Vector], rows: slice, columns: slice) -> Matrix:
    """The matrix of a function of pairs."""
    i, j = np.mgrid[rows, columns]
    return pairs(np.stack([i.ravel(), j.ravel()], axis=1)).reshape(i.shape)


def _zeros(d: int, rows: slice) -> Matrix:
    return np.zeros((rows.stop - rows.start, d))


def _lift_some(
    transport: Transport, resources: Resources, hist: Any, n_threads: int | None = None
) -> DistanceMap:
    return transport.map_of(Histograms.of(hist), replace(resources, n_threads=n_threads))


def product_operations(problem: Problem) -> float:
    """Floating-point operations of maps by matrix products, on both sides."""
    hists = problem.samples.hist, problem.features.hist
    return float(sum(2.0 * hist.nnz * sum(hist.shape) for hist in hists))


def cells_of(hist: sparse.csr_array) -> float:
    """The number of cost entries between the supports of a pair, summed over all pairs."""
    sizes = np.diff(hist.indptr).astype(float)
    return float(sizes.sum() ** 2 - (sizes**2).sum()) / 2


def quadratic_forms(hist: sparse.csr_array, cost: Matrix) -> Vector:
    """<a, C a> of every row a."""
    products: Vector = np.asarray(hist.multiply(hist @ cost).sum(axis=1)).ravel()
    return products
