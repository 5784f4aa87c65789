"""Transport along trees; the tree of each side is built from the metric of that side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from cometric.core.arguments import shown
from cometric.core.histograms import QUANTUM, Histograms
from cometric.core.trees import LINKAGES, MetricTree
from cometric.core.types import Accuracy, Coupled, DistanceMap, Index, Matrix, Status, Vector
from cometric.kernels import geometry
from cometric.maps.checking import check_cost, check_index
from cometric.runtime.interruption import is_interruption
from cometric.solvers.loop import Solution, Stage
from cometric.solvers.power import power_step
from cometric.transports.base import Lifts, Resources, Transport
from cometric.transports.solving import Solving, Stages

PATIENCE = 3
"""Iterations without a lower residual after which the loop stops although trees still change."""


@dataclass(frozen=True)
class Tree(Transport):
    """Transport along a tree of the bins: an l1 distance of masses below its nodes.

    The tree is built from the metric of the bins by a linkage, and determines the metric of the
    other side, from which the next tree is built. No transport problem is solved::

        W(a, b) = sum over nodes v of length_v |a(below v) - b(below v)|.

    A small change of the metric can change the tree, so iterations need not converge. They end when
    the residual no longer falls. If the trees still change then, the status says so, and
    ``result.change`` is the mean change of distances in one more iteration: about 1 % with average
    and complete linkage, 2 to 7 % with Ward's. Such results can be used. With ``linkage="single"``
    iterations converge: this map is continuous and monotone.

    Parameters
    ----------
    linkage
        How trees are built from distances: "average", "complete", "ward" (which separates groups
        more clearly) or "single" (for which the theorems on exact transport hold).

    Examples
    --------
    >>> import cometric as cm
    >>> result = cm.learn(cm.datasets.torus("unimodal", 12, 10), transport=cm.Tree(), tau=0)
    >>> result.tree("features")
    MetricTree(10 leaves, 19 nodes)
    >>> result.vectors("samples").shape
    (12, 18)
    """

    linkage: str = "average"

    name: ClassVar[str] = "transport along trees"
    stores_history: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.linkage, str) or self.linkage not in LINKAGES:
            raise ValueError(
                f"`linkage` is {shown(self.linkage)}; choose {', '.join(map(repr, LINKAGES))}."
            )

    def __str__(self) -> str:
        return f"trees by {self.linkage} linkage"

    def lift(self, hist: Histograms, resources: Resources) -> TreeMap:
        return TreeMap(hist, self.linkage)

    def default_solver(self, lifts: Lifts) -> str:
        return "power"

    def stages(self, run: Solving) -> Stages:
        """One stage, which also ends if the residual no longer falls."""
        stall = math.inf if self.linkage == "single" else PATIENCE
        solution = yield Stage(run.tol, run.max_iter, stall)
        if solution.status is Status.MAX_ITER and len(solution.history) < run.max_iter:
            return _with_change(run.phi, solution)
        solution = yield from run.confirm(solution)
        return run.check_connected(solution)

    # ------------------------------------------------------------------------- answers

    def tree(self, cost: Matrix) -> MetricTree:
        return MetricTree.from_distances(cost, self.linkage)

    def plan_cost(self, cost: Matrix) -> Matrix:
        """Distances between the bins along the tree."""
        return self.tree(cost).distances()

    def plan(self, pair: Histograms, cost: Matrix) -> tuple[Index, Index, Vector]:
        """Common mass stays in place; the rest moves within the smallest possible subtrees.

        At each node, from the leaves to the root, the remaining excess of the first histogram below
        the node is moved to the remaining deficits below it.
        """
        return _flows(pair, self.tree(cost))

    def between(self, phi: TreeMap, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        return phi.between(cost, rows, columns)

    def hold(self, known: Histograms, cost: Matrix, resources: Resources) -> MetricTree:
        """The tree of the cost."""
        return self.tree(cost)

    def to_known(
        self, phi: TreeMap, cost: Matrix, new: Histograms, known: slice, held: MetricTree
    ) -> Callable[[slice], Matrix]:
        vectors = TreeVectors.of(phi.histograms, held)
        return lambda rows: phi.between_vectors(vectors, rows, known)

    def pairs_under(
        self, phi: Any, cost: Matrix, own: Any = None, few: bool = False
    ) -> Callable[[Index], Vector]:
        """Distances of any pairs under one cost, with its tree built once."""
        pairs: Callable[[Index], Vector] = phi.vectors(cost).pairs
        return pairs

    # ------------------------------------------------------------------------ planning

    def engine(self, lifts: Lifts, solver: str) -> str:
        return f"{self}, {solver} iteration"


def _with_change(phi: Coupled, solution: Solution) -> Solution:
    """The solution if trees keep changing, with the change in one more iteration."""
    now = solution.iterate
    try:
        after = power_step(phi, now.metrics.samples, now).metrics
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interruption(error):
            raise
        return solution._replace(status=Status.INTERRUPTED)
    change = max(map(_mean_change, now.metrics, after))
    return solution._replace(status=Status.CHANGING, change=change)


def _mean_change(before: Matrix, after: Matrix) -> float:
    """The mean change of a distance relative to the mean distance, up to a common factor."""
    total = float(before.sum())
    return float(np.abs(after * (total / float(after.sum())) - before).sum()) / total


def _flows(pair: Histograms, tree: MetricTree) -> tuple[Index, Index, Vector]:
    """Source, target and mass of flows from the first histogram to the second, in integer units."""
    flows: list[tuple[int, int, int]] = []
    left: list[list[tuple[int, int]]] = [[] for _ in range(len(tree))]  # (bin, mass) below a node
    missing: list[list[tuple[int, int]]] = [[] for _ in range(len(tree))]
    rows = pair.rows
    first, second = (
        dict(zip(rows.indices[part].tolist(), pair.masses[part].tolist(), strict=True))
        for part in (slice(*rows.indptr[:2]), slice(*rows.indptr[1:3]))
    )
    for leaf in sorted(first.keys() | second.keys()):
        one, other = first.get(leaf, 0), second.get(leaf, 0)
        if min(one, other):
            flows.append((leaf, leaf, min(one, other)))
        if one != other:
            (left if one > other else missing)[leaf].append((leaf, abs(one - other)))
    for node in range(len(tree)):
        sources, targets = left[node], missing[node]
        while sources and targets:
            (source, one), (target, other) = sources.pop(), targets.pop()
            mass = min(one, other)
            flows.append((source, target, mass))
            if one > mass:
                sources.append((source, one - mass))
            if other > mass:
                targets.append((target, other - mass))
        parent = tree.parents[node]
        if parent >= 0:
            left[parent] += sources
            missing[parent] += targets
        left[node], missing[node] = [], []
    source, target, mass = np.array(flows, dtype=np.int64).T
    return source, target, QUANTUM * mass


TOTAL = 2.0**60
"""The largest sum of a vector, in integer units."""


class TreeMap(DistanceMap):
    """``phi(cost)_ij``: transport between a_i and a_j along the tree that ``cost`` determines.

    The tree is built by average linkage (or another linkage): the distance of two bins is the
    height at which they are joined. The tree scales with the cost, but is not a
    continuous function of it.

    Parameters
    ----------
    hist
        Histograms as rows, each summing to 1; sparse stays sparse.
    linkage
        "average", "complete", "ward" or "single", as in :func:`scipy.cluster.hierarchy.linkage`.

    Examples
    --------
    >>> import cometric as cm
    >>> cm.TreeMap([[1, 0, 0], [0, 1, 0], [0, 0, 1]])([[0, 1, 3], [1, 0, 5], [3, 5, 0]])
    array([[0., 1., 4.],
           [1., 0., 4.],
           [4., 4., 0.]])
    """

    def __init__(self, hist: Any, linkage: str = "average") -> None:
        self.histograms = Histograms.of(hist)
        self.shape = self.histograms.shape
        self.linkage = linkage

    def __repr__(self) -> str:
        return f"TreeMap({self.shape[0]} histograms on {self.shape[1]} bins, {self.linkage})"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        vectors = self.vectors(cost)
        return vectors.between(vectors, upper=True)

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        distances = self.vectors(cost).pairs(check_index(index, self.shape[0]))
        self.report(len(index), len(index))
        return distances

    def between(self, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        """Distances from the histograms ``rows`` to the histograms ``columns``."""
        return self.between_vectors(self.vectors(cost), rows, columns)

    def between_vectors(self, vectors: TreeVectors, rows: slice, columns: slice) -> Matrix:
        """The same, given the vectors of all histograms."""
        distances = vectors.take(rows).between(vectors.take(columns))
        self.report(distances.size, distances.size)
        return distances

    def tree(self, cost: Matrix) -> MetricTree:
        """The tree of the bins for a cost."""
        return MetricTree.from_distances(check_cost(cost, self.shape[1]), self.linkage)

    def vectors(self, cost: Matrix) -> TreeVectors:
        """The vectors of the histograms for a cost; their l1 distances are the distances."""
        return TreeVectors.of(self.histograms, self.tree(cost))


class TreeVectors:
    """Masses below the nodes of a tree times edge lengths, as integers: differences are exact.

    ``rows`` are the vectors in units of ``unit``.
    """

    def __init__(self, rows: sparse.csr_array, unit: float) -> None:
        self.rows, self.unit = rows, unit

    @classmethod
    def of(cls, hist: Histograms, tree: MetricTree) -> TreeVectors:
        """The vectors of histograms on the leaves of a tree."""
        parts = hist.rows
        masses = tree.masses(
            sparse.csr_array((hist.masses, parts.indices, parts.indptr), shape=parts.shape)
        )
        values = masses.data * (tree.lengths * QUANTUM)[masses.indices]
        top = 2.0 * float(tree.depths[: tree.n_leaves].max())  # bounds the sum of two vectors
        unit = top / TOTAL if top > 0.0 else 1.0
        whole = np.rint(values / unit).astype(np.int64)
        rows = sparse.csr_array((whole, masses.indices, masses.indptr), shape=masses.shape)
        rows.sort_indices()
        return cls(rows, unit)

    def take(self, rows: slice) -> TreeVectors:
        """Some of the vectors."""
        return TreeVectors(self.rows[rows], self.unit)

    def between(self, other: TreeVectors, upper: bool = False) -> Matrix:
        """l1 distances to other vectors; pass ``upper`` if these are the same vectors."""
        left, right = self.rows, other.rows.tocsc()
        distances: Matrix = self.unit * geometry.l1_distances(
            (left.indptr, left.indices, left.data, np.asarray(left.sum(axis=1)).ravel()),
            (right.indptr, right.indices, right.data, np.asarray(other.rows.sum(axis=1)).ravel()),
            upper,
        )
        return distances

    def pairs(self, index: Index) -> Vector:
        """l1 distances of the pairs ``index`` (p, 2)."""
        rows = self.rows
        parts = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
        norms: Vector = self.unit * geometry.pair_norms(*parts, index, 1.0)
        return norms
