"""Transport plans of stored trees, as lists of moves or applied directly, Numba.

A move is a cell ``source * d + sink`` of the cost matrix and the mass that goes there. Pairs
without a tree have equal histograms, and no moves.
"""

import numpy as np

from cometric.kernels.launching import threaded
from cometric.kernels.nodes import (
    NO_TREE,
    NODE,
    QUANTUM,
    arrange,
    largest_pair,
    load_tree,
    plan_cost,
)


def count_moves(histograms, trees, full, tasks):
    """The number of moves of each pair; moves from a bin to itself count only if ``full``."""
    counts = np.zeros(len(trees.pairs), np.int64)
    _count_moves(histograms, trees, full, counts, tasks)
    return counts


@threaded
def _count_moves(histograms, trees, full, counts, task, tasks):
    pairs, parents, offsets, states = trees
    nodes, _ = largest_pair(histograms.indptr, pairs)
    node = np.empty(nodes, NODE)
    for p in range(task, len(pairs), tasks):
        if states[p] == NO_TREE:
            continue
        tree = parents[offsets[p] : offsets[p + 1]]
        s, t = load_tree(node, histograms, pairs[p, 0], pairs[p, 1], tree, states[p], full)
        arrange(node, s, t)
        for x in range(s + t):
            moves = full or node[x].bin != node[node[x].parent].bin
            counts[p] += moves and node[x].flow > 0


@threaded
def write_moves(histograms, trees, full, d, start, cells, amounts, task, tasks):
    """Write the moves of pair p to ``start[p] : start[p + 1]`` of ``cells`` and ``amounts``.

    ``start`` are the cumulative sums of the result of :func:`count_moves`.
    """
    pairs, parents, offsets, states = trees
    nodes, _ = largest_pair(histograms.indptr, pairs)
    node = np.empty(nodes, NODE)
    for p in range(task, len(pairs), tasks):
        if states[p] == NO_TREE:
            continue
        tree = parents[offsets[p] : offsets[p + 1]]
        s, t = load_tree(node, histograms, pairs[p, 0], pairs[p, 1], tree, states[p], full)
        arrange(node, s, t)
        e = start[p]
        for x in range(s + t):
            y = node[x].parent
            if node[x].flow > 0 and (full or node[x].bin != node[y].bin):
                source, sink = (x, y) if x < s else (y, x)
                cells[e] = np.int64(node[source].bin) * d + node[sink].bin
                amounts[e] = node[x].flow * QUANTUM
                e += 1


def move_costs(start, cells, amounts, cost, tasks):
    """The sum of amounts times costs over the moves of each pair; ``cost`` is flat."""
    values = np.empty(len(start) - 1)
    _move_costs(start, cells, amounts, cost, values, tasks)
    return values


@threaded
def _move_costs(start, cells, amounts, cost, values, task, tasks):
    count = len(values)
    for p in range(task * count // tasks, (task + 1) * count // tasks):
        value = 0.0
        for e in range(start[p], start[p + 1]):
            value += amounts[e] * cost[cells[e]]
        values[p] = value


def tree_costs(histograms, trees, cost, tasks):
    """The cost of each pair's stored plan under any cost, without optimization."""
    values = np.zeros(len(trees.pairs))
    _tree_costs(histograms, trees, cost, values, tasks)
    return values


@threaded
def _tree_costs(histograms, trees, cost, values, task, tasks):
    pairs, parents, offsets, states = trees
    nodes, _ = largest_pair(histograms.indptr, pairs)
    node = np.empty(nodes, NODE)
    for p in range(task, len(pairs), tasks):
        if states[p] == NO_TREE:
            continue
        tree = parents[offsets[p] : offsets[p + 1]]
        s, t = load_tree(node, histograms, pairs[p, 0], pairs[p, 1], tree, states[p], False)
        arrange(node, s, t)
        values[p] = plan_cost(node, cost, s + t)
