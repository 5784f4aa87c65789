"""Exact optimal transport for many pairs of histograms under one shared cost, Numba.

A pair is a transportation problem on the supports of its two histograms, solved by the network
simplex. The masses of a pair never change, only the cost does, so the optimal tree of one call is
a feasible start for the next: callers store the trees.

``cost`` is (d, d), symmetric, nonnegative with zero diagonal. If it satisfies the triangle
inequality, ``cancel`` may be set: the common mass of two histograms then stays in place, and only
the differences are transported, which is wrong for other costs. The simplex rounds costs to
integers; values are summed from the true costs.

Validation belongs to the map that calls us.
"""

from typing import NamedTuple

import numpy as np

from cometric.kernels.jit import njit
from cometric.kernels.launching import threaded
from cometric.kernels.nodes import (
    FULL_TREE,
    NO_TREE,
    NODE,
    QUANTUM,
    REDUCED_TREE,
    TOTAL,
    Histograms,
    Trees,
    arrange,
    largest_pair,
    lift_tree,
    load_tree,
    plan_cost,
    set_full_nodes,
    set_reduced_nodes,
)
from cometric.kernels.simplex import (
    gather_costs,
    greedy_tree,
    optimize,
    round_costs,
    set_prices,
)

__all__ = [
    "FULL_TREE",
    "NO_TREE",
    "QUANTUM",
    "REDUCED_TREE",
    "TOTAL",
    "Histograms",
    "Trees",
    "transport",
]


class Costs(NamedTuple):
    """The cost matrix, and a rounded flat copy for pairs that use every bin, or an empty array."""

    given: np.ndarray
    rounded: np.ndarray


class Workspace(NamedTuple):
    """Work arrays of a thread, large enough for the largest pair."""

    node: np.ndarray
    costs: np.ndarray
    prices: np.ndarray
    columns: np.ndarray


@njit
def _solve(work, histograms, costs, i, j, cancel, pivots, tree, state):
    """Solve one pair from its stored tree, if any; return the value, and the new state and moves.

    The new tree is stored unless ``tree`` is empty. Without ``pivots`` it is the initial tree.
    """
    node, own_costs, prices, columns = work
    full = state == FULL_TREE or not cancel
    if state == NO_TREE:
        s, t = set_reduced_nodes(node, histograms, i, j)
        if s == 0:
            return 0.0, NO_TREE, 0
        gather_costs(node, own_costs, columns, costs.given, s, t)
        greedy_tree(node, own_costs, prices, s, t)
        if full:
            lift_tree(node, histograms, i, j, s, t)
            s, t = set_full_nodes(node, histograms, i, j)
    else:
        s, t = load_tree(node, histograms, i, j, tree, state, full)
    if full and len(costs.rounded) == s * t:
        own_costs = costs.rounded
    elif full or state != NO_TREE:
        gather_costs(node, own_costs, columns, costs.given, s, t)
    arrange(node, s, t)
    set_prices(node, own_costs, prices, s, t)
    if pivots:
        optimize(node, own_costs, prices, columns, s, t)
    value = plan_cost(node, costs.given, s + t)
    if len(tree) == 0:
        return value, NO_TREE, 0
    moves = 0
    for x in range(s + t):
        tree[x] = node[x].parent
        moves += node[x].flow > 0 and node[x].bin != node[node[x].parent].bin
    return value, FULL_TREE if full else REDUCED_TREE, moves


def transport(histograms, trees, cost, cancel, pivots, tasks):
    """Transport costs of all pairs of ``trees``, and the number of moves of every stored plan.

    Updates the parents and states of ``trees``. Moves from a bin to itself do not count. Without
    ``pivots``, trees are not optimized, and the costs are those of the initial plans.

    ``tasks`` is the number of threads; pairs are solved independently, so the result does not
    depend on it.
    """
    pairs = trees.pairs
    values, moves = np.empty(len(pairs)), np.empty(len(pairs), np.int32)
    # Full problems on all bins share the whole cost matrix: round it once.
    rounded = np.empty(0, np.int64)
    if not cancel and largest_pair(histograms.indptr, pairs)[1] == cost.size:
        rounded = cost.copy().view(np.int64).reshape(-1)
        round_costs(rounded, 2 * len(cost))
    _transport(histograms, trees, Costs(cost, rounded), cancel, pivots, values, moves, tasks)
    return values, moves


@threaded
def _transport(histograms, trees, costs, cancel, pivots, values, moves, task, tasks):
    pairs, parents, offsets, states = trees
    nodes, arcs = largest_pair(histograms.indptr, pairs)
    work = Workspace(
        np.empty(nodes, NODE),
        np.empty(arcs, np.int64),
        np.empty(nodes, np.int64),
        np.empty(nodes, np.int64),
    )
    for p in range(task, len(pairs), tasks):
        i, j = pairs[p, 0], pairs[p, 1]
        tree = parents[offsets[p] : offsets[p + 1]]
        values[p], states[p], moves[p] = _solve(
            work, histograms, costs, i, j, cancel, pivots, tree, states[p]
        )
