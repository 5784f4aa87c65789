"""Transport along trees; the tree of each side is built from the metric of that side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cometric.core.arguments import shown
from cometric.core.histograms import QUANTUM, Histograms
from cometric.core.trees import LINKAGES, MetricTree
from cometric.core.types import Coupled, Index, Matrix, Status, Vector
from cometric.machine.interruption import is_interruption
from cometric.maps.tree import TreeMap
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

    def kind_of_memory(self, plain: bool, automatic: bool, keeps_history: bool) -> str:
        return "accelerated" if keeps_history and not automatic else "plain"

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

    def ground(self, cost: Matrix) -> Matrix:
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
