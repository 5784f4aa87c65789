"""The trees of a result, and the vectors of items whose l1 distances are transport along a tree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.answers.extension import HeldDistances
from cometric.core.arguments import other_side
from cometric.core.arrays import to_numpy
from cometric.core.trees import MetricTree
from cometric.transports.tree import Tree

if TYPE_CHECKING:
    from cometric.answers.result import Result


def tree_of(result: Result, of: str) -> MetricTree:
    """The tree of all kept items of a side."""
    return _distinct_tree(result, of).expand(getattr(result.problem, of).labels)


def _distinct_tree(result: Result, of: str) -> MetricTree:
    """The tree of the distinct items of a side, as the map of the other side built it."""
    side = getattr(result.problem, of)
    metric = np.asarray(side.reduce(to_numpy(getattr(result, of))), np.float64)
    tree: MetricTree = result.parameters.transport.tree(result.problem.formula.saturated(metric))
    return tree


def vectors_of(result: Result, of: str, X: Any = None) -> sparse.csr_array:
    """Vectors of the learned items, or of new ones; see :meth:`Result.vectors`."""
    transport = result.parameters.transport
    if not isinstance(transport, Tree):
        raise ValueError(
            f"the distances of {transport.name} are not l1 distances of vectors. Learn with "
            "transport=cm.Tree()."
        )
    formula, (lam, mu) = result.problem.formula, result.values
    side = getattr(result.problem, of)
    value = mu if of == "samples" else lam
    tree = _distinct_tree(result, other_side(of))
    lengths = tree.lengths * (formula.transport_weight / value)
    if formula.has_norm and result.parameters.norm == "l1":
        # Adding the l1 norm of a difference of histograms lengthens the edges of the leaves.
        lengths[: tree.n_leaves] += HeldDistances(result, of, side.hist, side.full).weight
    items = side if X is None else result.problem.read_new(X, of)
    return replace(tree, lengths=lengths).vectors(items.hist)[items.labels]
