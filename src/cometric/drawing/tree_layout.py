"""The tree of some items as a dendrogram for the page: depths, and an order of its leaves."""

from __future__ import annotations

from typing import Any

import numpy as np

from cometric.core.trees import MetricTree
from cometric.core.types import Index
from cometric.drawing.packing import pack


def prune(tree: MetricTree, leaves: Index) -> MetricTree:
    """The tree of some of the leaves, in this order: nodes with a single child are left out."""
    count = len(tree)
    below = np.zeros(count, np.int64)
    below[leaves] = 1
    branches = np.zeros(count, np.int64)  # children with chosen leaves
    for node, parent in enumerate(tree.parents[:-1]):
        below[parent] += below[node]
        branches[parent] += below[node] > 0
    stays = (branches > 1) & (below > 0)
    stays[: tree.n_leaves] = False
    inner = np.flatnonzero(stays)
    number = np.full(count, -1, np.int64)
    number[leaves] = np.arange(len(leaves))
    number[inner] = len(leaves) + np.arange(len(inner))
    old = np.concatenate([leaves, inner])
    depths = tree.depths
    parents, lengths = np.full(len(old), -1, np.int64), np.zeros(len(old))
    for new, node in enumerate(old[:-1]):
        above = int(tree.parents[node])
        while number[above] < 0:
            above = int(tree.parents[above])
        parents[new] = number[above]
        lengths[new] = depths[node] - depths[above]
    return MetricTree(parents, lengths, len(leaves))


def leaf_ranks(tree: MetricTree) -> Index:
    """The place of each leaf, from 0, so that branches do not cross; larger subtrees last."""
    sizes = np.zeros(len(tree), np.int64)
    sizes[: tree.n_leaves] = 1
    for node, parent in enumerate(tree.parents[:-1]):
        sizes[parent] += sizes[node]
    first = np.zeros(len(tree), np.int64)
    taken = np.zeros(len(tree), np.int64)  # leaves of the children that are placed
    for node in np.lexsort((sizes, tree.levels)):  # from the root down
        parent = tree.parents[node]
        if parent >= 0:
            first[node] = first[parent] + taken[parent]
            taken[parent] += sizes[node]
    return first[: tree.n_leaves]


def payload(tree: MetricTree) -> dict[str, Any]:
    """The tree in the format of the page, with depths relative to the largest."""
    depths = tree.depths
    top = float(depths.max())
    return {
        "parents": pack(np.where(tree.parents < 0, 0, tree.parents), np.uint16),
        "depths": pack(np.rint(65535 * depths / top) if top > 0 else depths, np.uint16),
        "ranks": pack(leaf_ranks(tree), np.uint16),
    }
