"""Validates stored warm-start trees, Numba.

The simplex does not check its trees: a cycle would make it run forever, a parent outside the pair
would be read out of bounds, and a tree that is not strongly feasible could make it cycle. Trees
from a file are therefore checked first.
"""

import numpy as np

from cometric.kernels.jit import njit
from cometric.kernels.launching import threaded
from cometric.kernels.nodes import (
    FULL_TREE,
    NO_TREE,
    NODE,
    REDUCED_TREE,
    arrange,
    attach,
    largest_pair,
    set_full_nodes,
    set_reduced_nodes,
)


@njit
def _is_spanning(node, tree, s, t):
    """Whether ``tree`` reaches all nodes from one sink, over arcs between sources and sinks.

    Also sets the parents.
    """
    root = -1
    for x in range(s + t):
        node[x].first_child = -1
    for x in range(s + t):
        y = np.int64(tree[x])
        if y < 0 or y >= s + t:
            return False
        if y == x:
            if x < s or root >= 0:
                return False
            root = x
        elif (x < s) == (y < s):
            return False
        else:
            attach(node, x, y)
    if root < 0:
        return False
    node[root].parent = root
    node[0].listed = root
    count, k = 1, 0
    while k < count:  # nodes on a cycle are not below the root, so they are not counted
        y = node[node[k].listed].first_child
        while y >= 0:
            node[count].listed = y
            count += 1
            y = node[y].next
        k += 1
    return count == s + t


@njit
def _is_valid(node, histograms, i, j, tree, state):
    """Whether one pair's tree spans its problem and is strongly feasible."""
    if state == REDUCED_TREE:
        s, t = set_reduced_nodes(node, histograms, i, j)
    elif state == FULL_TREE:
        s, t = set_full_nodes(node, histograms, i, j)
    else:
        return state == NO_TREE
    if s == 0 or len(tree) < s + t or not _is_spanning(node, tree, s, t):
        return False
    root = arrange(node, s, t)
    for x in range(s + t):
        if node[x].flow < 0 or (node[x].flow == 0 and x >= s and x != root):
            return False
    return True


def drop_invalid(histograms, trees, tasks):
    """Mark trees that do not match their histograms as missing; return their number."""
    invalid = np.zeros(tasks, np.int64)
    _drop_invalid(histograms, trees, invalid, tasks)
    return invalid.sum()


@threaded
def _drop_invalid(histograms, trees, invalid, task, tasks):
    pairs, parents, offsets, states = trees
    nodes, _ = largest_pair(histograms.indptr, pairs)
    node = np.empty(nodes, NODE)
    for p in range(task, len(pairs), tasks):
        tree = parents[offsets[p] : offsets[p + 1]]
        if not _is_valid(node, histograms, pairs[p, 0], pairs[p, 1], tree, states[p]):
            states[p] = NO_TREE
            invalid[task] += 1
