"""Whether stored trees are ones that the network simplex may start from, Numba.

The simplex trusts its trees: a cycle would keep it busy for ever, a parent outside the pair would
be read, and a tree that is not strongly feasible could make it cycle. What comes from a file is
therefore looked at first.
"""

import numpy as np
from numba import njit, prange

from cometric.kernels.launching import check_finished, parallel
from cometric.kernels.transport import (
    FULL_TREE,
    NO_TREE,
    NODE,
    REDUCED_TREE,
    _arrange,
    _differences,
    _hang,
    _largest,
    _whole,
)


@njit(cache=True)
def _spans(node, tree, s, t):
    """Whether ``tree`` reaches all nodes from one sink, over arcs between sources and sinks."""
    root = -1
    for x in range(s + t):
        node[x].first = -1
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
            _hang(node, x, y)
    if root < 0:
        return False
    node[root].parent = root
    node[0].stack = root
    found, k = 1, 0
    while k < found:  # a cycle hangs on no root: its nodes are not found
        y = node[node[k].stack].first
        while y >= 0:
            node[found].stack = y
            found += 1
            y = node[y].after
        k += 1
    return found == s + t


@njit(cache=True)
def _is_sound(node, indptr, bins, mass, i, j, tree, state):
    """Whether one pair's tree is strongly feasible: no negative flow, no empty arc to a sink."""
    if state == REDUCED_TREE:
        s, t = _differences(node, indptr, bins, mass, i, j)
    elif state == FULL_TREE:
        s, t = _whole(node, indptr, bins, mass, i, j)
    else:
        return state == NO_TREE
    if s == 0 or len(tree) < s + t or not _spans(node, tree, s, t):
        return False
    root = _arrange(node, s, t)
    for x in range(s + t):
        if node[x].flow < 0 or (node[x].flow == 0 and x >= s and x != root):
            return False
    return True


@parallel
def count_unsound(indptr, bins, mass, index, tree, room, state, tasks):
    """How many pairs have a tree that is none; arguments as of ``transport``."""
    unsound = np.zeros(tasks, np.int64)
    nodes, _ = _largest(indptr, index)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        node = np.empty(nodes, NODE)
        for p in range(task, len(index), tasks):
            own = tree[room[p] : room[p + 1]]
            sound = _is_sound(node, indptr, bins, mass, index[p, 0], index[p, 1], own, state[p])
            unsound[task] += not sound
        finished[task] = True
    check_finished(finished)
    return unsound.sum()
