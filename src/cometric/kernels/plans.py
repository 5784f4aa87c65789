"""What stored trees prove and move: plans, costs, feasible duals and duality gaps, Numba.

A move is a cell ``source * d + sink`` of the cost matrix and the mass that goes there. Pairs
without a tree have equal histograms, and no moves.

Prices follow from a tree and the true costs. Two c-transforms, f_k = min_l c_kl - g_l and
g_l = min_k c_kl - f_k, make them feasible on the full pair, so that they bound the cost from below
even if the tree is not optimal. The price of the heaviest node is set to zero, which is exact;
prices of light nodes, which may be far away, have larger rounding errors.

Both transforms round down. So f_k + g_l <= c_kl holds in exact arithmetic, and where a sink shares
mass with its source, f + g is exactly 0: a bin with nearly all of the mass causes no loss of
digits. The gap is summed as <P, c - f - g>, with terms that are small for a good plan and exact to
the last bit; values are summed with compensation.
"""

import numpy as np

from cometric.kernels.compiling import njit, threaded
from cometric.kernels.nodes import (
    NO_TREE,
    NODE,
    QUANTUM,
    REDUCED_TREE,
    arrange,
    largest_pair,
    load_tree,
    plan_cost,
    reroot,
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


# -------------------------------------------------------------------------------------------- duals

UNIT_ROUNDOFF = 2.0**-53


@njit
def _rounding_error(a, b, difference):
    """Return a - b - difference, exactly, where ``difference`` is a - b rounded (Knuth)."""
    back = difference - a
    return (a - (difference - back)) - (b + back)


@njit
def _tree_prices(node, cost, price, s, t):
    """Set prices under the true costs, from the heaviest node, which becomes the root."""
    heaviest = 0
    for x in range(s + t):
        heaviest = x if node[x].mass > node[heaviest].mass else heaviest
    reroot(node, heaviest)
    arrange(node, s, t)
    price[heaviest] = 0.0
    for k in range(1, s + t):
        x = node[k].listed
        y = node[x].parent
        price[x] = cost[node[x].bin, node[y].bin] - price[y]


@njit
def _c_transform(row, bins, potential):
    """min_l row[bins_l] - potential_l, rounded down."""
    low = np.inf
    for l in range(len(bins)):
        low = min(low, row[bins[l]] - potential[l])
    for l in range(len(bins)):
        c = row[bins[l]]
        if c - potential[l] == low and _rounding_error(c, potential[l], low) < 0.0:
            return np.nextafter(low, -np.inf)
    return low


@njit
def _plan_sums(node, cost, bins_i, bins_j, f, g, s, t):
    """Sums of flow times c and of flow times c - f - g over the arcs of the tree, in quanta."""
    value, error, gap = 0.0, 0.0, 0.0
    for x in range(s + t):
        y = node[x].parent
        k, l = (x, y) if x < s else (y, x)
        if x != y and node[x].flow > 0:
            c = cost[node[k].bin, node[l].bin]
            term = node[x].flow * c
            total = value + term
            error += _rounding_error(value, -term, total)
            value = total
            fk = f[np.searchsorted(bins_i, node[k].bin)]
            gl = g[np.searchsorted(bins_j, node[l].bin)]
            rest = c - fk
            slack = rest - gl
            slack += _rounding_error(rest, gl, slack) + _rounding_error(c, fk, rest)
            gap += node[x].flow * slack
    return value + error, gap


@njit
def _subtract_shared_mass(histograms, i, j, f, g, gap):
    """Subtract from ``gap`` the sum of f + g over the mass that both histograms share."""
    indptr, bins, mass = histograms
    a, b = indptr[i], indptr[j]
    l = b
    for k in range(a, indptr[i + 1]):
        while l < indptr[j + 1] and bins[l] < bins[k]:
            l += 1
        if l < indptr[j + 1] and bins[l] == bins[k]:
            gap -= min(mass[k], mass[l]) * (f[k - a] + g[l - b])
    return gap


def values_and_gaps(histograms, trees, cost, source, sink, tasks):
    """The cost of each stored plan, and a bound on its excess over the true transport cost.

    The relative error of a value is below 8 ``UNIT_ROUNDOFF``, that of a gap below
    (nodes + 4) ``UNIT_ROUNDOFF``. Unless they are empty, ``source`` and ``sink`` receive f and g
    on the bins of each pair, starting at its offset in ``trees``.
    """
    values, gaps = np.zeros((2, len(trees.pairs)))
    _values_and_gaps(histograms, trees, cost, source, sink, values, gaps, tasks)
    return values, gaps


@threaded
def _values_and_gaps(histograms, trees, cost, source, sink, values, gaps, task, tasks):
    pairs, parents, offsets, states = trees
    indptr, bins = histograms.indptr, histograms.bins
    nodes, _ = largest_pair(indptr, pairs)
    node = np.empty(nodes, NODE)
    price, f, g = np.empty(nodes), np.empty(nodes), np.empty(nodes)
    sinks = np.empty(nodes, np.int32)
    for p in range(task, len(pairs), tasks):
        i, j, state = pairs[p, 0], pairs[p, 1], states[p]
        tree = parents[offsets[p] : offsets[p + 1]]
        bins_i, bins_j = bins[indptr[i] : indptr[i + 1]], bins[indptr[j] : indptr[j + 1]]
        s, t = 0, 0
        f[: len(bins_i)] = 0.0  # equal histograms have no tree
        if state != NO_TREE:
            s, t = load_tree(node, histograms, i, j, tree, state, False)
            _tree_prices(node, cost, price, s, t)
            for y in range(s, s + t):
                sinks[y - s] = node[y].bin
            for k in range(len(bins_i)):
                f[k] = _c_transform(cost[bins_i[k]], sinks[:t], price[s : s + t])
        for l in range(len(bins_j)):
            g[l] = _c_transform(cost[bins_j[l]], bins_i, f)
        if state != NO_TREE:
            value, gap = _plan_sums(node, cost, bins_i, bins_j, f, g, s, t)
            if state == REDUCED_TREE:
                gap = _subtract_shared_mass(histograms, i, j, f, g, gap)
            values[p], gaps[p] = value * QUANTUM, max(gap * QUANTUM, 0.0)
        if len(source) > 0:
            source[offsets[p] : offsets[p] + len(bins_i)] = f[: len(bins_i)]
            sink[offsets[p] : offsets[p] + len(bins_j)] = g[: len(bins_j)]
