"""Exact optimal transport for many pairs of histograms under one shared cost, Numba.

A pair is a transportation problem on the supports of its two histograms, solved by the network
simplex. The masses of a pair never change, only the cost does, so the optimal tree of one call is
a feasible start for the next: callers store the trees.

``cost`` is (d, d), symmetric, nonnegative with zero diagonal. If it satisfies the triangle
inequality, ``cancel`` may be set: the common mass of two histograms then stays in place, and only
the differences are transported, which is wrong for other costs. The simplex rounds costs to
integers; values are summed from the true costs.

Validation belongs to the map that calls us.

The network simplex works in integers. Costs are rounded (about 52 bits for the largest); masses are
integers already. Arithmetic is therefore exact: ties are ties, no error accumulates, strongly
feasible trees cannot cycle, and integer minima vectorize where floating-point ones do not.

``costs`` is the flat (s, t) matrix of the problem and ``prices`` the duals of the sinks; ``nodes``
defines nodes and trees. ``columns`` stores the bins of sinks for gathering costs, then the sinks of
the candidates.
"""

from typing import NamedTuple

import numpy as np

from cometric.kernels.compiling import njit, threaded
from cometric.kernels.nodes import (
    FULL_TREE,
    NO_TREE,
    NODE,
    REDUCED_TREE,
    TOTAL,
    arrange,
    attach,
    detach,
    largest_pair,
    lift_tree,
    load_tree,
    plan_cost,
    reroot,
    set_full_nodes,
    set_reduced_nodes,
)

# A pricing block has about this many arcs, and at least this many per node: a scan then takes about
# as long as a pivot, which is slower in larger trees.
BLOCK = 2048
BLOCK_PER_NODE = 24

# Candidates of a block enter if their reduced cost is at least 1 / 8 of the best one.
PART_OF_BEST = 8

# Larger than any price; adding a cost and two prices to it does not overflow.
FAR = 2**61


# -------------------------------------------------------------------------------- costs


@njit
def round_costs(costs, nodes):
    """Replace the bits of nonnegative doubles by integers proportional to the doubles.

    Nonnegative doubles have the same order as their bits, so the largest is an integer maximum,
    which vectorizes.
    """
    top = np.int64(0)
    for e in range(len(costs)):
        c = costs[e]
        top = c if c > top else top
    if top == 0:
        return
    # A price is a sum of at most ``nodes`` costs, which must not overflow.
    bits = min(52, 60 - int(np.ceil(np.log2(nodes))))
    units = 2.0**bits / np.int64(top).view(np.float64)
    doubles = costs.view(np.float64)
    for e in range(len(costs)):
        costs[e] = np.int64(doubles[e] * units + 0.5)


@njit
def gather_costs(node, costs, columns, cost, s, t):
    """Copy the costs between sources and sinks, and round them."""
    for j in range(t):
        columns[j] = node[s + j].bin
    for x in range(s):
        doubles = cost[node[x].bin].view(np.int64)
        row = costs[x * t : x * t + t]
        for j in range(t):
            row[j] = doubles[columns[j]]
    round_costs(costs[: s * t], s + t)


@njit
def _smallest(costs, x, t, prices):
    """min_j costs[x, j] - prices[j], in a form that vectorizes."""
    row = costs[x * t : x * t + t]
    best = np.int64(4 * FAR - 1)
    for j in range(t):
        reduced = row[j] - prices[j]
        best = reduced if reduced < best else best
    return best


@njit
def _position(costs, x, t, prices, value):
    """The first j with costs[x, j] - prices[j] == value."""
    j = 0
    while costs[x * t + j] - prices[j] != value:
        j += 1
    return j


@njit
def _first_smallest(keys):
    """The first position of the smallest key."""
    best = np.int64(4 * FAR - 1)
    for x in range(len(keys)):
        best = keys[x] if keys[x] < best else best
    x = 0
    while keys[x] != best:
        x += 1
    return x


# ------------------------------------------------------------------------- initial tree


@njit
def _smallest_key(costs, x, t, largest, mask):
    """The smallest key of a source, see ``greedy_tree``, without the source's largest cost."""
    row = costs[x * t : x * t + t]
    best = np.int64(4 * FAR - 1)
    for j in range(t):
        key = ((row[j] - largest[j]) & ~mask) + j
        best = key if key < best else best
    return best


@njit
def greedy_tree(node, costs, prices, s, t):
    """A strongly feasible tree, built greedily: match the open arc with the smallest key, repeat.

    The key of an arc is its cost minus the largest cost of its source and of its sink (Russell):
    bins that are far from all others come first. Its last bits are the number of the sink, so
    that one pass over a row finds both. The key in ``keys`` may belong to a closed sink; then it is
    a lower bound, and is recomputed when it is the smallest.

    Strong feasibility comes from the usual perturbation, stored in ``slack``: every source has an
    infinitesimal extra mass, which the root (the last sink) absorbs. Then no partial sum of
    supplies equals one of demands, and each step closes exactly one node: the tree grows by the
    arc to it. ``flow`` is the mass not yet sent or received.
    """
    root = s + t - 1
    for x in range(s + t):
        node[x].flow = node[x].mass
        node[x].slack = 1 if x < s else 0
    node[root].slack = s
    keys = prices[t : t + s]
    largest = prices[:t]  # of each sink; -FAR once it is closed, so that no source picks it
    largest[:] = 0
    for x in range(s):
        row = costs[x * t : x * t + t]
        top = np.int64(0)
        for j in range(t):
            c = row[j]
            top = c if c > top else top
            largest[j] = c if c > largest[j] else largest[j]
        node[x].price = top
    mask = np.int64(1)
    while mask < t:
        mask = 2 * mask + 1
    for x in range(s):
        node[x].price &= ~mask
        keys[x] = _smallest_key(costs, x, t, largest, mask) - node[x].price
    x, y, left = 0, root, s + t
    while left > 1:
        x = _first_smallest(keys)
        j = keys[x] & mask
        if largest[j] == -FAR:
            keys[x] = _smallest_key(costs, x, t, largest, mask) - node[x].price
            continue
        y = s + j
        a, b = node[x].flow, node[y].flow
        if left > 2 and (a < b or (a == b and node[x].slack < node[y].slack)):
            node[y].flow -= a
            node[y].slack -= node[x].slack
            node[x].parent = y
            keys[x] = 2 * FAR
        else:
            node[x].flow -= b
            node[x].slack -= node[y].slack
            node[y].parent = x
            largest[j] = -FAR
        left -= 1
    # Each node now points to the node with which it was matched when it closed; the last one
    # stayed open.
    node[x].parent = x
    reroot(node, root)


@njit
def set_prices(node, costs, prices, s, t):
    """Duals from the root down, in the order of ``listed`` after ``arrange``."""
    prices[node[0].listed - s] = 0
    for k in range(1, s + t):
        x = node[k].listed
        y = node[x].parent
        if x < s:
            node[x].price = costs[x * t + y - s] - prices[y - s]
        else:
            prices[x - s] = costs[y * t + x - s] - node[y].price


# ------------------------------------------------------------------------------- pivots

# The steps of a pivot are always inlined: as calls they made cold solves 3 % slower.


@njit(forceinline=True)
def _leaving_arc(node, s, source, sink):
    """The arc that leaves when source -> sink enters, given by its child node.

    Also returns its flow, the apex of the cycle, and whether the arc is between apex and sink.

    The leaving arc is the last blocking arc on the cycle, from the apex down to the source, over
    the new arc and up from the sink: this keeps the tree strongly feasible (Cunningham). To find
    the apex, the node with the smaller subtree moves up until both meet.
    """
    p, q = source, sink
    room_p, room_q = np.int64(TOTAL), np.int64(TOTAL)
    out_p, out_q = -1, -1
    while p != q:
        if node[p].size <= node[q].size:
            if p < s and node[p].flow < room_p:
                room_p, out_p = node[p].flow, p
            p = node[p].parent
        else:
            if q >= s and node[q].flow <= room_q:
                room_q, out_q = node[q].flow, q
            q = node[q].parent
    on_sink_side = out_q >= 0 and (out_p < 0 or room_q <= room_p)
    leaving, push = (out_q, room_q) if on_sink_side else (out_p, room_p)
    return leaving, push, p, on_sink_side


@njit(forceinline=True)
def _push_flow(node, s, inner, outer, leaving, push, apex, on_sink_side):
    """Update flows around the cycle, and subtree sizes above both ends of the moving subtree.

    ``inner`` is the end of the entering arc inside that subtree, ``outer`` the other end.
    """
    moved = node[leaving].size
    x = outer
    while x != apex:
        loses = (x < s) == on_sink_side
        node[x].flow += -push if loses else push
        node[x].size += moved
        x = node[x].parent
    x, inside = inner, True
    while x != apex:
        gains = (x < s) == on_sink_side
        node[x].flow += push if gains else -push
        if x == leaving:
            inside = False
        elif not inside:
            node[x].size -= moved
        x = node[x].parent


@njit(forceinline=True)
def _move_subtree(node, inner, outer, leaving, push):
    """Re-root the subtree below the leaving arc at ``inner``, and attach it to ``outer``."""
    moved = node[leaving].size
    x, parent, carried, below = inner, outer, push, 0
    while True:
        above, flow, size = node[x].parent, node[x].flow, node[x].size
        detach(node, x)
        attach(node, x, parent)
        node[x].flow = carried
        node[x].size = moved - below
        if x == leaving:
            break
        x, parent, carried, below = above, x, flow, size


@njit(forceinline=True)
def _shift_prices(node, prices, s, t, inner, apex, rise):
    """Add ``rise`` to the prices of sources below ``inner``, subtract it from those of sinks.

    Prices are defined up to such a shift, so if the rest of the tree is smaller, it is shifted
    oppositely instead.
    """
    start, skip = inner, -1
    if 2 * node[inner].size > s + t:
        rise, skip, start = -rise, inner, apex
        while node[start].parent != start:
            start = node[start].parent
    node[0].listed = start
    count = 1
    while count > 0:
        count -= 1
        x = node[count].listed
        if x < s:
            node[x].price += rise
        else:
            prices[x - s] -= rise
        y = node[x].first_child
        while y >= 0:
            if y != skip:
                node[count].listed = y
                count += 1
            y = node[y].next


@njit
def _pivot(node, prices, s, t, source, sink, reduced):
    """Add the arc source -> sink to the tree, with as much flow as the cycle allows."""
    leaving, push, apex, on_sink_side = _leaving_arc(node, s, source, sink)
    if on_sink_side:
        inner, outer = sink, source
    else:
        inner, outer = source, sink
    _push_flow(node, s, inner, outer, leaving, push, apex, on_sink_side)
    _move_subtree(node, inner, outer, leaving, push)
    _shift_prices(node, prices, s, t, inner, apex, reduced if inner < s else -reduced)


@njit
def optimize(node, costs, prices, columns, s, t):
    """Pivot until no arc has a negative reduced cost.

    Rows are priced in blocks, round robin. The most negative arc of each row of a block is a
    candidate. The best candidate enters, then the next best, until they are much less negative than
    the first: one scan serves several pivots.
    """
    block = max(1, max(BLOCK, BLOCK_PER_NODE * (s + t)) // t)
    row, rows_clean = 0, 0
    while rows_clean < s:
        count = 0
        for _ in range(min(block, s - rows_clean)):
            reduced = _smallest(costs, row, t, prices)
            if reduced < node[row].price:
                node[count].candidate = row
                columns[count] = _position(costs, row, t, prices, reduced)
                count += 1
            row = row + 1 if row + 1 < s else 0
        rows_clean += block
        first = np.int64(0)
        while count > 0:
            best, best_at = np.int64(0), -1
            negative = 0
            for c in range(count):  # drop the candidates that are no longer negative
                x, j = node[c].candidate, columns[c]
                reduced = costs[x * t + j] - prices[j] - node[x].price
                if reduced < 0:
                    node[negative].candidate, columns[negative] = x, j
                    if reduced < best:
                        best, best_at = reduced, negative
                    negative += 1
            count = negative
            if first == 0:
                first = best
            if best > first // PART_OF_BEST:
                break
            if best_at >= 0:
                x, j = node[best_at].candidate, columns[best_at]
                count -= 1
                node[best_at].candidate, columns[best_at] = node[count].candidate, columns[count]
                _pivot(node, prices, s, t, x, s + j, best)
                rows_clean = 0


# ---------------------------------------------------------------------------------------- all pairs


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
