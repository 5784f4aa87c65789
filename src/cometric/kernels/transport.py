"""Exact optimal transport for many pairs of histograms under one shared cost, Numba.

A pair is a transportation problem on the supports of its two histograms, solved by the
network simplex. The marginals of a pair never change, only the cost does, so the optimal
spanning tree of one call is a feasible start for the next: callers keep the trees.

Conventions
-----------
Histograms are CSR rows: ``indptr``, ``bins``, and ``mass`` as int64 quanta, each row summing
to ``TOTAL``. A pair's costs are rounded to integers as well, with some 52 bits below the
largest. All arithmetic of the simplex is therefore exact: a tie is a tie, nothing
accumulates, the strongly feasible trees below can never cycle, and integer minima vectorize
where floating-point ones do not. Values are summed from the true costs.

Sources are numbered 0 .. s-1, sinks s .. s+t-1, in the order of their bins. A tree is the
array of parents, the root, always a sink, being its own parent. The arc between a node and
its parent runs from the source to the sink, whichever is the child. A tree is *strongly
feasible* when every arc without flow has the source as its child.

``cost`` is (d, d), symmetric, nonnegative with zero diagonal. Where it obeys the triangle
inequality the mass that two histograms share stays in place, so that with ``cancel`` only
the differences are transported. Without it that would be wrong.

Validation belongs to the map that calls us; this file imports no other kernel.
"""

import numpy as np
from numba import njit, prange

from cometric.kernels.launching import check_finished, parallel

TOTAL = 2**62
QUANTUM = 2.0**-62

UNIT_ROUNDOFF = 2.0**-53

# What ``state`` says of a pair's stored tree.
NO_TREE, REDUCED_TREE, FULL_TREE = 0, 1, 2

# A pricing block covers about this many arcs: the scan then costs about as much as a pivot.
BLOCK = 2048

# No price reaches it, and adding a cost and two prices to it does not overflow.
FAR = 2**61


# One node of a pair's problem and of its tree. Prices are the duals: on every arc of the tree
# the cost is the sum of the prices at its ends. Those of the sinks live in an array of their
# own, side by side as the costs of a row are, so that pricing vectorizes.
NODE = np.dtype(
    [
        ("mass", np.int64),
        ("flow", np.int64),  # on the arc to the parent
        ("price", np.int64),  # of a source
        ("slack", np.int64),  # infinitesimal part of the mass left, in the greedy start
        ("bin", np.int32),
        ("parent", np.int32),
        ("size", np.int32),  # of its subtree
        ("first", np.int32),  # child list: first child, next and previous sibling
        ("after", np.int32),
        ("before", np.int32),
        ("twin", np.int32),  # this node's number in the whole pair, or its parent there
        ("stack", np.int32),  # not of this node: a list of nodes to visit
        ("candidate", np.int32),  # not of this node: a list of rows that may enter
    ]
)


# --------------------------------------------------------------------------- the problem


@njit(cache=True)
def _differences(node, indptr, bins, mass, i, j):
    """Sources where histogram i has more mass than j, sinks where it has less."""
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
            left = mass[a]
            if b < b_end and bins[b] == bins[a]:
                left -= mass[b]
            if left > 0:
                node[x].mass = left
                node[x].bin = bins[a]
                x += 1
            a += 1
    return sources, x - sources


@njit(cache=True)
def _whole(node, indptr, bins, mass, i, j):
    """Every bin of histogram i as a source, every bin of j as a sink."""
    x = 0
    for h in (i, j):
        for a in range(indptr[h], indptr[h + 1]):
            node[x].mass = mass[a]
            node[x].bin = bins[a]
            x += 1
    return indptr[i + 1] - indptr[i], indptr[j + 1] - indptr[j]


@njit(cache=True)
def _round(costs, nodes):
    """Turn the bits of nonnegative doubles into integers; return what one unit is worth.

    Doubles that are not negative are ordered as their bits are: the largest is an integer
    maximum, which vectorizes.
    """
    top = np.int64(0)
    for e in range(len(costs)):
        c = costs[e]
        top = c if c > top else top
    if top == 0:
        return 0.0
    # Prices are sums of at most as many costs as there are nodes: leave room for them.
    bits = min(52, 60 - int(np.ceil(np.log2(nodes))))
    units = 2.0**bits / np.int64(top).view(np.float64)
    doubles = costs.view(np.float64)
    for e in range(len(costs)):
        costs[e] = np.int64(doubles[e] * units + 0.5)
    return 1.0 / units


@njit(cache=True)
def _gather(node, costs, spots, cost, s, t):
    """The pair's costs as integers, side by side; return what one unit is worth."""
    for j in range(t):
        spots[j] = node[s + j].bin
    for x in range(s):
        given = cost[node[x].bin].view(np.int64)
        row = costs[x * t : x * t + t]
        for j in range(t):
            row[j] = given[spots[j]]
    return _round(costs[: s * t], s + t)


# ------------------------------------------------------------------------ starting trees


@njit(cache=True)
def _smallest(costs, x, t, prices):
    """min_j costs[x, j] - prices[j], in the form that vectorizes."""
    row = costs[x * t : x * t + t]
    best = np.int64(4 * FAR - 1)
    for j in range(t):
        reduced = row[j] - prices[j]
        best = reduced if reduced < best else best
    return best


@njit(cache=True)
def _position(costs, x, t, prices, value):
    """The first j with costs[x, j] - prices[j] == value."""
    j = 0
    while costs[x * t + j] - prices[j] != value:
        j += 1
    return j


@njit(cache=True)
def _turn(node, root):
    """Make another node the root: the path from it to the old one changes direction."""
    x, above = root, root
    while node[x].parent != x:
        up = node[x].parent
        node[x].parent = above
        x, above = up, x
    node[x].parent = above


@njit(cache=True)
def _greedy(node, costs, prices, s, t):
    """A strongly feasible tree: each source in turn sends to its nearest open sinks.

    Strong feasibility is kept by the usual perturbation, carried in ``slack``: every source
    has an infinitesimal of mass more, which the root (the last sink) takes in. Then no
    partial sum of supplies meets one of demands, and each step closes exactly one node: the
    tree grows by the arc to it. ``flow`` is the mass not yet sent or received.
    """
    root = s + t - 1
    for x in range(s + t):
        node[x].flow = node[x].mass
        node[x].slack = 1 if x < s else 0
    node[root].slack = s
    prices[:t] = 0  # -FAR once the sink is closed, so that no source picks it
    x = 0
    for step in range(s + t - 1):
        j = _position(costs, x, t, prices, _smallest(costs, x, t, prices))
        y = s + j
        a, b = node[x].flow, node[y].flow
        if step < s + t - 2 and (a < b or (a == b and node[x].slack < node[y].slack)):
            node[y].flow -= a
            node[y].slack -= node[x].slack
            node[x].parent = y
            x += 1
        else:
            node[x].flow -= b
            node[x].slack -= node[y].slack
            node[y].parent = x
            prices[j] = -FAR
    # Each node now points to the one it was open to when it closed; the last stayed open.
    node[x].parent = x
    _turn(node, root)


@njit(cache=True)
def _lift(node, indptr, bins, i, j, s, t):
    """Turn the tree of the differences into one of the whole pair.

    Shared mass travels from a bin to itself. Where one histogram has more, the other's bin
    becomes a leaf; where both have the same, the source hangs on the root without flow and
    carries the sink. Zero-flow arcs added here have a source as child, as they must.
    """
    a, b = indptr[i], indptr[j]
    rows, columns = indptr[i + 1] - a, indptr[j + 1] - b
    k = 0
    for x in range(s + t):  # nodes and histograms are both in the order of the bins
        if x == s:
            k = 0
        while bins[(a if x < s else b) + k] != node[x].bin:
            k += 1
        node[x].twin = k if x < s else rows + k
    for x in range(rows + columns):
        node[x].stack = -1  # the parents in the whole pair
    root = 0
    for x in range(s + t):
        node[node[x].twin].stack = node[node[x].parent].twin
        if node[x].parent == x:
            root = node[x].twin
    y = 0
    for x in range(rows):
        while y < columns and bins[b + y] < bins[a + x]:
            y += 1
        if y == columns or bins[b + y] != bins[a + x]:
            continue
        sink = rows + y
        if node[x].stack >= 0:
            node[sink].stack = x
        else:
            node[x].stack = root if node[sink].stack < 0 else sink
            if node[sink].stack < 0:
                node[sink].stack = x
    for x in range(rows + columns):
        node[x].parent = node[x].stack


# --------------------------------------------------------------------------- the simplex


@njit(cache=True)
def _arrange(node, s, t):
    """Child lists, subtree sizes and flows of the tree in ``parent``; return its root."""
    root = 0
    for x in range(s + t):
        node[x].first = -1
    for x in range(s + t):
        if node[x].parent == x:
            root = x
        else:
            _hang(node, x, node[x].parent)
    node[0].stack = root
    found = 1
    for k in range(s + t):  # ``stack`` ends as a list of all nodes, parents before children
        x = node[k].stack
        y = node[x].first
        while y >= 0:
            node[found].stack = y
            found += 1
            y = node[y].after
    for x in range(s + t):
        node[x].flow = node[x].mass
        node[x].size = 1
    for k in range(s + t - 1, 0, -1):
        # What a source cannot use below it goes up; what a sink cannot get comes down.
        x = node[k].stack
        node[node[x].parent].flow -= node[x].flow
        node[node[x].parent].size += node[x].size
    node[root].flow = 0
    return root


@njit(cache=True)
def _price(node, costs, prices, s, t):
    """Duals from the root down, in the order that _arrange left."""
    prices[node[0].stack - s] = 0
    for k in range(1, s + t):
        x = node[k].stack
        y = node[x].parent
        if x < s:
            node[x].price = costs[x * t + y - s] - prices[y - s]
        else:
            prices[x - s] = costs[y * t + x - s] - node[y].price


@njit(cache=True)
def _hang(node, x, parent):
    """Make x a child of ``parent``."""
    head = node[parent].first
    node[x].parent = parent
    node[x].before = -1
    node[x].after = head
    if head >= 0:
        node[head].before = x
    node[parent].first = x


@njit(cache=True)
def _unlink(node, x):
    """Take x out of its parent's list of children."""
    before, after = node[x].before, node[x].after
    if before >= 0:
        node[before].after = after
    else:
        node[node[x].parent].first = after
    if after >= 0:
        node[after].before = before


@njit(cache=True)
def _pivot(node, prices, s, t, source, sink, reduced):
    """Bring the arc source -> sink into the tree; push as much flow as the cycle lets through.

    Of the arcs that run empty the one leaving is the last met on the way from the apex along
    the cycle (down to the source, over the new arc, up from the sink): this keeps the tree
    strongly feasible (Cunningham). The apex is found by sizes: of two nodes not above one
    another the one with the smaller subtree steps up.
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
    apex = p
    on_sink_side = out_q >= 0 and (out_p < 0 or room_q <= room_p)
    if on_sink_side:
        push, leaving, inner, outer = room_q, out_q, sink, source
    else:
        push, leaving, inner, outer = room_p, out_p, source, sink
    moved = node[leaving].size

    # Flows around the cycle, sizes where the subtree leaves and where it arrives.
    x = outer
    while x != apex:
        gains = (x < s) == on_sink_side  # on the way out the arc of a source loses flow
        node[x].flow += -push if gains else push
        node[x].size += moved
        x = node[x].parent
    x, cut_off = inner, True
    while x != apex:
        gains = (x < s) == on_sink_side
        node[x].flow += push if gains else -push
        if x == leaving:
            cut_off = False
        elif not cut_off:
            node[x].size -= moved
        x = node[x].parent

    # Re-root the cut-off subtree at its end of the new arc, and hang it on the other end.
    x, above, carried, below = inner, outer, push, 0
    while True:
        up, old, size = node[x].parent, node[x].flow, node[x].size
        _unlink(node, x)
        _hang(node, x, above)
        node[x].flow = carried
        node[x].size = moved - below
        if x == leaving:
            break
        x, above, carried, below = up, x, old, size

    # Prices count up to a constant, added at sources and taken off at sinks: change the
    # subtree that moved or all the rest, whichever is smaller.
    rise = reduced if inner < s else -reduced
    start, skip = inner, -1
    if 2 * moved > s + t:
        rise, skip, start = -rise, inner, apex
        while node[start].parent != start:
            start = node[start].parent
    node[0].stack = start
    size = 1
    while size > 0:
        size -= 1
        x = node[size].stack
        if x < s:
            node[x].price += rise
        else:
            prices[x - s] -= rise
        y = node[x].first
        while y >= 0:
            if y != skip:
                node[size].stack = y
                size += 1
            y = node[y].after


@njit(cache=True)
def _optimize(node, costs, prices, spots, s, t):
    """Pivot until no arc has a negative reduced cost; return the number of pivots.

    Rows are priced in blocks, round robin. The most negative arc of every row of a block is
    a candidate; the best of them enters, and the next best, as long as one is still negative:
    one scan pays for several pivots.
    """
    block = max(1, BLOCK // t)
    row, clean, pivots = 0, 0, 0
    while clean < s:
        found = 0
        for _ in range(min(block, s - clean)):
            reduced = _smallest(costs, row, t, prices)
            if reduced < node[row].price:
                node[found].candidate = row
                spots[found] = _position(costs, row, t, prices, reduced)
                found += 1
            row = row + 1 if row + 1 < s else 0
        clean += block
        first = np.int64(0)
        while found > 0:
            best, at = np.int64(0), -1
            kept = 0
            for c in range(found):  # drop what is no longer negative
                x, j = node[c].candidate, spots[c]
                reduced = costs[x * t + j] - prices[j] - node[x].price
                if reduced < 0:
                    node[kept].candidate, spots[kept] = x, j
                    if reduced < best:
                        best, at = reduced, kept
                    kept += 1
            found = kept
            if first == 0:
                first = best
            if best > first // 2:  # not half as good as the first: look for better ones
                break
            if at >= 0:
                x, j = node[at].candidate, spots[at]
                found -= 1
                node[at].candidate, spots[at] = node[found].candidate, spots[found]
                _pivot(node, prices, s, t, x, s + j, best)
                pivots += 1
                clean = 0
    return pivots


# ------------------------------------------------------------------------------ one pair


@njit(cache=True)
def _value(node, prices, cost, s, t, unit):
    """Cost of the plan, and how much the dual value may lie below it.

    The integer prices are feasible for the integer costs, which lie within half a unit of
    the true ones: lowering the duals by half a unit makes them feasible for those.
    """
    value, gap = 0.0, 0.0
    for x in range(s + t):
        y = node[x].parent
        if x == y:
            continue
        c = cost[node[x].bin, node[y].bin]
        dual = node[x].price + prices[y - s] if x < s else node[y].price + prices[x - s]
        value += node[x].flow * c
        gap += node[x].flow * abs(c - unit * dual)
    for x in range(s):
        gap += node[x].mass * 0.5 * unit
    return value * QUANTUM, gap * QUANTUM


@njit(cache=True)
def _load(node, indptr, bins, mass, i, j, tree, state, whole):
    """The pair's nodes and the tree it has; one of the differences is lifted if ``whole``."""
    s, t = _differences(node, indptr, bins, mass, i, j)
    for x in range(len(tree) if state == FULL_TREE else s + t):
        node[x].parent = tree[x]
    if whole and state == REDUCED_TREE:
        _lift(node, indptr, bins, i, j, s, t)
    if whole or state == FULL_TREE:
        return _whole(node, indptr, bins, mass, i, j)
    return s, t


@njit(cache=True)
def _solve(
    node,
    costs,
    prices,
    spots,
    shared,
    unit_of_shared,
    indptr,
    bins,
    mass,
    cost,
    i,
    j,
    cancel,
    tree,
    state,
):
    """Solve one pair from its stored tree, if any, and store the new one if there is room."""
    whole = state == FULL_TREE or not cancel
    if state == NO_TREE:
        s, t = _differences(node, indptr, bins, mass, i, j)
        if s == 0:
            return 0.0, 0.0, 0, NO_TREE
        unit = _gather(node, costs, spots, cost, s, t)
        _greedy(node, costs, prices, s, t)
        if whole:
            _lift(node, indptr, bins, i, j, s, t)
            s, t = _whole(node, indptr, bins, mass, i, j)
    else:
        s, t = _load(node, indptr, bins, mass, i, j, tree, state, whole)
    if len(shared) == s * t and whole:
        costs, unit = shared, unit_of_shared
    elif whole or state != NO_TREE:
        unit = _gather(node, costs, spots, cost, s, t)
    _arrange(node, s, t)
    _price(node, costs, prices, s, t)
    pivots = _optimize(node, costs, prices, spots, s, t)
    value, gap = _value(node, prices, cost, s, t, unit)
    if len(tree) == 0:
        return value, gap, pivots, NO_TREE
    for x in range(s + t):
        tree[x] = node[x].parent
    return value, gap, pivots, FULL_TREE if whole else REDUCED_TREE


@njit(cache=True)
def _largest(indptr, index):
    """Nodes and cells of the largest pair."""
    nodes, cells = 1, 1
    for p in range(len(index)):
        s = indptr[index[p, 0] + 1] - indptr[index[p, 0]]
        t = indptr[index[p, 1] + 1] - indptr[index[p, 1]]
        nodes, cells = max(nodes, s + t), max(cells, s * t)
    return nodes, cells


@parallel
def transport(indptr, bins, mass, cost, index, cancel, tree, room, state, tasks):
    """Transport costs of the pairs ``index`` (p, 2), with their duality gaps and pivot counts.

    ``tree[room[p] : room[p + 1]]`` and ``state[p]`` hold the tree of pair p between calls and
    are updated; an empty ``tree`` (``room`` all zero) keeps none. ``tasks`` is the number of
    threads; every pair is solved on its own, so the answer does not depend on it.
    """
    values, gaps = np.empty(len(index)), np.empty(len(index))
    pivots = np.empty(len(index), np.int64)
    nodes, cells = _largest(indptr, index)
    # Pairs that use every bin have the whole cost matrix in common: round it once.
    shared = np.empty(0, np.int64)
    unit_of_shared = 0.0
    if not cancel and cells == cost.size:
        shared = cost.copy().view(np.int64).reshape(-1)
        unit_of_shared = _round(shared, 2 * len(cost))
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        node = np.empty(nodes, NODE)
        costs, prices = np.empty(cells, np.int64), np.empty(nodes, np.int64)
        spots = np.empty(nodes, np.int64)
        for p in range(task, len(index), tasks):
            i, j = index[p, 0], index[p, 1]
            own = tree[room[p] : room[p + 1]]
            values[p], gaps[p], pivots[p], state[p] = _solve(
                node,
                costs,
                prices,
                spots,
                shared,
                unit_of_shared,
                indptr,
                bins,
                mass,
                cost,
                i,
                j,
                cancel,
                own,
                state[p],
            )
        finished[task] = True
    check_finished(finished)
    return values, gaps, pivots


# --------------------------------------------------------------- what stored trees tell us


@parallel
def count_moves(indptr, bins, mass, index, tree, room, state, whole, tasks):
    """Number of entries of each pair's stored plan; those that stay in place only if ``whole``."""
    counts = np.zeros(len(index), np.int64)
    nodes, _ = _largest(indptr, index)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        node = np.empty(nodes, NODE)
        for p in range(task, len(index), tasks):
            if state[p] == NO_TREE:
                continue
            own = tree[room[p] : room[p + 1]]
            s, t = _load(node, indptr, bins, mass, index[p, 0], index[p, 1], own, state[p], whole)
            _arrange(node, s, t)
            for x in range(s + t):
                moves = whole or node[x].bin != node[node[x].parent].bin
                counts[p] += moves and node[x].flow > 0
        finished[task] = True
    check_finished(finished)
    return counts


@parallel
def moves(indptr, bins, mass, index, tree, room, state, whole, d, start, cells, amounts, tasks):
    """Write each pair's stored plan: cell ``source * d + sink`` and the mass that goes there.

    Pair p fills ``start[p] : start[p + 1]`` of ``cells`` and ``amounts``; ``start`` comes from
    the counts of :func:`count_moves`.
    """
    nodes, _ = _largest(indptr, index)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        node = np.empty(nodes, NODE)
        for p in range(task, len(index), tasks):
            if state[p] == NO_TREE:
                continue
            own = tree[room[p] : room[p + 1]]
            s, t = _load(node, indptr, bins, mass, index[p, 0], index[p, 1], own, state[p], whole)
            _arrange(node, s, t)
            e = start[p]
            for x in range(s + t):
                y = node[x].parent
                if node[x].flow > 0 and (whole or node[x].bin != node[y].bin):
                    source, sink = (x, y) if x < s else (y, x)
                    cells[e] = np.int64(node[source].bin) * d + node[sink].bin
                    amounts[e] = node[x].flow * QUANTUM
                    e += 1
        finished[task] = True
    check_finished(finished)


@parallel
def replay(indptr, bins, mass, cost, index, tree, room, state, tasks):
    """Cost of each pair's stored plan under another cost; nothing is optimized."""
    values = np.zeros(len(index))
    nodes, _ = _largest(indptr, index)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        node = np.empty(nodes, NODE)
        for p in range(task, len(index), tasks):
            if state[p] == NO_TREE:
                continue
            own = tree[room[p] : room[p + 1]]
            s, t = _load(node, indptr, bins, mass, index[p, 0], index[p, 1], own, state[p], False)
            _arrange(node, s, t)
            value = 0.0
            for x in range(s + t):
                value += node[x].flow * cost[node[x].bin, node[node[x].parent].bin]
            values[p] = value * QUANTUM
        finished[task] = True
    check_finished(finished)
    return values


@parallel
def weigh(start, cells, amounts, cost, tasks):
    """Cost of written plans: sum of amounts times costs, ``cost`` flattened, for each pair."""
    count = len(start) - 1
    values = np.empty(count)
    for task in prange(tasks):
        for p in range(task * count // tasks, (task + 1) * count // tasks):
            value = 0.0
            for e in range(start[p], start[p + 1]):
                value += amounts[e] * cost[cells[e]]
            values[p] = value
    return values


@njit(cache=True)
def _lost(a, b, difference):
    """Return a - b - difference, exactly, where ``difference`` is a - b rounded (Knuth)."""
    back = difference - a
    return (a - (difference - back)) - (b + back)


@parallel
def duals(indptr, bins, mass, cost, index, tree, room, state, source, sink, tasks):
    """The cost of each stored plan, and how far it can be above the true transport cost.

    Prices are read off the tree with the true costs and made feasible on the whole pair by
    two c-transforms, f_k = min_l c_kl - g_l and back, so that they bound the cost from below
    whether or not the tree was optimal. Prices count from the heaviest node, whose price of zero
    is exact: those of light ones, which may lie far away, are rounded more.

    Both transforms round down. So f_k + g_l <= c_kl holds in exact arithmetic, and where a sink
    shares mass with its source, f + g is exactly 0: one bin with nearly all of the mass costs no
    digits. The gap is summed as <P, c - f - g>, every term of which is small where the plan is
    good, and known to the last bit; values are summed with compensation. The relative error of a
    value is below 8 ``UNIT_ROUNDOFF``, that of a gap below one per node and 4 more. Where
    ``source`` and ``sink`` have room (as ``tree``, from ``room[p]`` on) they receive f and g on
    the bins of the pair.
    """
    values, gaps = np.zeros(len(index)), np.zeros(len(index))
    nodes, _ = _largest(indptr, index)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        node = np.empty(nodes, NODE)
        price, f, g = np.empty(nodes), np.empty(nodes), np.empty(nodes)
        for p in range(task, len(index), tasks):
            i, j = index[p, 0], index[p, 1]
            own = tree[room[p] : room[p + 1]]
            a, a_end, b, b_end = indptr[i], indptr[i + 1], indptr[j], indptr[j + 1]
            s, t = 0, 0
            f[: a_end - a] = 0.0  # equal histograms have no tree
            if state[p] != NO_TREE:
                s, t = _load(node, indptr, bins, mass, i, j, own, state[p], False)
                heaviest = 0
                for x in range(s + t):
                    heaviest = x if node[x].mass > node[heaviest].mass else heaviest
                _turn(node, heaviest)
                _arrange(node, s, t)
                price[heaviest] = 0.0
                for k in range(1, s + t):
                    x = node[k].stack
                    y = node[x].parent
                    price[x] = cost[node[x].bin, node[y].bin] - price[y]
                for k in range(a, a_end):
                    row, low = cost[bins[k]], np.inf
                    for y in range(s, s + t):
                        low = min(low, row[node[y].bin] - price[y])
                    for y in range(s, s + t):
                        c = row[node[y].bin]
                        if c - price[y] == low and _lost(c, price[y], low) < 0.0:
                            low = np.nextafter(low, -np.inf)
                            break
                    f[k - a] = low
            for l in range(b, b_end):
                row, low = cost[bins[l]], np.inf
                for k in range(a, a_end):
                    low = min(low, row[bins[k]] - f[k - a])
                for k in range(a, a_end):
                    c = row[bins[k]]
                    if c - f[k - a] == low and _lost(c, f[k - a], low) < 0.0:
                        low = np.nextafter(low, -np.inf)
                        break
                g[l - b] = low
            if state[p] != NO_TREE:
                # The plan: what moves along the tree and, in a reduced one, what both share.
                value, missed, gap = 0.0, 0.0, 0.0
                for x in range(s + t):
                    y = node[x].parent
                    k, l = (x, y) if x < s else (y, x)
                    if x != y and node[x].flow > 0:
                        c = cost[node[k].bin, node[l].bin]
                        spent = node[x].flow * c
                        total = value + spent
                        missed += _lost(value, -spent, total)
                        value = total
                        fk = f[np.searchsorted(bins[a:a_end], node[k].bin)]
                        gl = g[np.searchsorted(bins[b:b_end], node[l].bin)]
                        left = c - fk
                        slack = left - gl
                        slack += _lost(left, gl, slack) + _lost(c, fk, left)
                        gap += node[x].flow * slack
                values[p] = (value + missed) * QUANTUM
                if state[p] == REDUCED_TREE:
                    l = b
                    for k in range(a, a_end):
                        while l < b_end and bins[l] < bins[k]:
                            l += 1
                        if l < b_end and bins[l] == bins[k]:
                            gap -= min(mass[k], mass[l]) * (f[k - a] + g[l - b])
                gaps[p] = max(gap * QUANTUM, 0.0)
            if len(source) > 0:
                source[room[p] : room[p] + a_end - a] = f[: a_end - a]
                sink[room[p] : room[p] + b_end - b] = g[: b_end - b]
        finished[task] = True
    check_finished(finished)
    return values, gaps
