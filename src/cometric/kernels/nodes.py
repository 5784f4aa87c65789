"""One pair of histograms as a transportation problem, and its spanning trees, Numba.

Conventions
-----------
A pair gives two problems. In the *full* one every bin of the first histogram is a source and
every bin of the second a sink. In the *reduced* one the sources are the bins where the first has
more mass and the sinks those where it has less, each with the difference: common mass stays in
place, which is optimal if the cost satisfies the triangle inequality.

Sources are numbered 0 .. s-1, sinks s .. s+t-1, in the order of their bins. A tree is the array of
parents; the root, always a sink, is its own parent. The arc between a node and its parent runs
from the source to the sink, whichever is the child. Masses never change, so the parents determine
the flows. A tree is *strongly feasible* when every arc without flow has the source as its child.

Trees from a file are checked by :func:`drop_invalid`, as the simplex does not check its trees: a
cycle would make it run forever, a parent outside the pair would be read out of bounds, and a tree
that is not strongly feasible could make it cycle.
"""

from typing import NamedTuple

import numpy as np

from cometric.kernels.compiling import njit, threaded

TOTAL = 2**62
QUANTUM = 2.0**-62

# The values of ``Trees.states``.
NO_TREE, REDUCED_TREE, FULL_TREE = 0, 1, 2


class Histograms(NamedTuple):
    """CSR rows with sorted bins; ``mass`` counts quanta, and each row sums to ``TOTAL``."""

    indptr: np.ndarray  # int64
    bins: np.ndarray  # int32
    mass: np.ndarray  # int64


class Trees(NamedTuple):
    """Pairs of histograms, and the tree stored for each.

    The tree of pair p is ``parents[offsets[p] : offsets[p + 1]]``; a reduced one fills the first
    entries only. Without storage all offsets are zero.
    """

    pairs: np.ndarray  # (p, 2) int64
    parents: np.ndarray  # uint16 or int32
    offsets: np.ndarray  # (p + 1,) int64
    states: np.ndarray  # (p,) uint8: NO_TREE, REDUCED_TREE or FULL_TREE


# One node of a problem and of its tree. Prices are the duals: on every arc of the tree the cost is
# the sum of the prices at its ends. Prices of sinks are in a separate array, contiguous like the
# costs of a row, so that pricing vectorizes. The last two fields are storage for lists of nodes,
# unrelated to the node itself.
NODE = np.dtype(
    [
        ("mass", np.int64),
        ("flow", np.int64),  # on the arc to the parent
        ("price", np.int64),  # of a source
        ("slack", np.int64),  # infinitesimal part of the mass left, in the greedy start
        ("bin", np.int32),
        ("parent", np.int32),
        ("size", np.int32),  # number of nodes in the subtree
        ("first_child", np.int32),
        ("next", np.int32),  # sibling
        ("previous", np.int32),  # sibling
        ("full_id", np.int32),  # number of the node in the full problem
        ("listed", np.int32),  # nodes to visit; parents in the full problem
        ("candidate", np.int32),  # rows with an arc that may enter
    ]
)


# -------------------------------------------------------------------------------- nodes


@njit
def set_reduced_nodes(node, histograms, i, j):
    """Set masses and bins of the reduced problem of (i, j); return s, t."""
    indptr, bins, mass = histograms
    sources = 0
    x = 0
    for side in range(2):
        a, a_end = indptr[i], indptr[i + 1]
        b, b_end = indptr[j], indptr[j + 1]
        if side == 1:
            a, a_end, b, b_end = b, b_end, a, a_end
            sources = x
        while a < a_end:
            while b < b_end and bins[b] < bins[a]:
                b += 1
            excess = mass[a]
            if b < b_end and bins[b] == bins[a]:
                excess -= mass[b]
            if excess > 0:
                node[x].mass = excess
                node[x].bin = bins[a]
                x += 1
            a += 1
    return sources, x - sources


@njit
def set_full_nodes(node, histograms, i, j):
    """Set masses and bins of the full problem of (i, j); return s, t."""
    indptr, bins, mass = histograms
    x = 0
    for h in (i, j):
        for a in range(indptr[h], indptr[h + 1]):
            node[x].mass = mass[a]
            node[x].bin = bins[a]
            x += 1
    return indptr[i + 1] - indptr[i], indptr[j + 1] - indptr[j]


@njit
def largest_pair(indptr, pairs):
    """The largest number of nodes and the largest number of arcs among the pairs."""
    nodes, arcs = 1, 1
    for p in range(len(pairs)):
        s = indptr[pairs[p, 0] + 1] - indptr[pairs[p, 0]]
        t = indptr[pairs[p, 1] + 1] - indptr[pairs[p, 1]]
        nodes, arcs = max(nodes, s + t), max(arcs, s * t)
    return nodes, arcs


# -------------------------------------------------------------------------------- trees


@njit
def attach(node, x, parent):
    """Make x a child of ``parent``."""
    head = node[parent].first_child
    node[x].parent = parent
    node[x].previous = -1
    node[x].next = head
    if head >= 0:
        node[head].previous = x
    node[parent].first_child = x


@njit
def detach(node, x):
    """Remove x from its parent's list of children."""
    left, right = node[x].previous, node[x].next
    if left >= 0:
        node[left].next = right
    else:
        node[node[x].parent].first_child = right
    if right >= 0:
        node[right].previous = left


@njit
def reroot(node, root):
    """Make ``root`` the root by reversing the path to the old root. Sets parents only."""
    x, below = root, root
    while node[x].parent != x:
        above = node[x].parent
        node[x].parent = below
        x, below = above, x
    node[x].parent = below


@njit
def arrange(node, s, t):
    """Set child lists, subtree sizes and flows from the parents; return the root.

    ``listed`` then holds all nodes, parents before children.
    """
    root = 0
    for x in range(s + t):
        node[x].first_child = -1
    for x in range(s + t):
        if node[x].parent == x:
            root = x
        else:
            attach(node, x, node[x].parent)
    node[0].listed = root
    count = 1
    for k in range(s + t):
        y = node[node[k].listed].first_child
        while y >= 0:
            node[count].listed = y
            count += 1
            y = node[y].next
    for x in range(s + t):
        node[x].flow = node[x].mass
        node[x].size = 1
    for k in range(s + t - 1, 0, -1):
        # A source sends up what its children do not take; a sink receives what they do not send.
        x = node[k].listed
        node[node[x].parent].flow -= node[x].flow
        node[node[x].parent].size += node[x].size
    node[root].flow = 0
    return root


@njit
def lift_tree(node, histograms, i, j, s, t):
    """Turn a tree of the reduced problem into one of the full problem.

    Common mass stays in its bin. If the two masses of a bin differ, the node with the smaller one
    becomes a leaf below the other; if they are equal, the source becomes a child of the root,
    without flow, and the sink its child. So arcs without flow have the source as child.
    """
    indptr, bins = histograms.indptr, histograms.bins
    a, b = indptr[i], indptr[j]
    sources, sinks = indptr[i + 1] - a, indptr[j + 1] - b
    k = 0
    for x in range(s + t):  # nodes and histograms are both in the order of the bins
        if x == s:
            k = 0
        while bins[(a if x < s else b) + k] != node[x].bin:
            k += 1
        node[x].full_id = k if x < s else sources + k
    for x in range(sources + sinks):
        node[x].listed = -1
    root = 0
    for x in range(s + t):
        node[node[x].full_id].listed = node[node[x].parent].full_id
        if node[x].parent == x:
            root = node[x].full_id
    l = 0
    for x in range(sources):
        while l < sinks and bins[b + l] < bins[a + x]:
            l += 1
        if l == sinks or bins[b + l] != bins[a + x]:
            continue
        y = sources + l
        if node[x].listed >= 0:
            node[y].listed = x
        elif node[y].listed >= 0:
            node[x].listed = y
        else:
            node[x].listed = root
            node[y].listed = x
    for x in range(sources + sinks):
        node[x].parent = node[x].listed


@njit
def load_tree(node, histograms, i, j, tree, state, full):
    """Set the nodes of a pair and the parents of its tree, lifted if ``full``; return s, t."""
    s, t = set_reduced_nodes(node, histograms, i, j)
    for x in range(len(tree) if state == FULL_TREE else s + t):
        node[x].parent = tree[x]
    if full and state == REDUCED_TREE:
        lift_tree(node, histograms, i, j, s, t)
    if full or state == FULL_TREE:
        return set_full_nodes(node, histograms, i, j)
    return s, t


@njit
def plan_cost(node, cost, nodes):
    """The cost of the plan: the sum of flows times costs, which are 0 at the root."""
    value = 0.0
    for x in range(nodes):
        value += node[x].flow * cost[node[x].bin, node[node[x].parent].bin]
    return value * QUANTUM


# ------------------------------------------------------------------------------------------- checks


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
