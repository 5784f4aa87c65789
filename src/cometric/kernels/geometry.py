"""Norms of differences of histograms, and the triangle inequality, Numba.

Histograms are CSR rows with sorted bins; their masses may be integers, whose sums and differences
are exact and do not depend on their order.
"""

import numpy as np

from cometric.kernels.compiling import njit, threaded


@njit
def norm_of_difference(a, a_end, b, b_end, bins, values, p):
    """The l_p norm of row a - row b, by merging their sorted bins.

    For p other than 1, 2 and inf, terms are divided by the largest so far before the power is
    taken, to avoid underflow.
    """
    total, top = 0.0, 0.0
    while a < a_end or b < b_end:
        if b == b_end or (a < a_end and bins[a] < bins[b]):
            gap = np.float64(values[a])
            a += 1
        elif a == a_end or bins[b] < bins[a]:
            gap = np.float64(values[b])
            b += 1
        else:
            gap = np.float64(abs(values[a] - values[b]))
            a += 1
            b += 1
        if p == 1.0:
            total += gap
        elif p == 2.0:
            total += gap * gap
        elif p == np.inf:
            total = max(total, gap)
        elif gap > top:
            total = total * (top / gap) ** p + 1.0
            top = gap
        elif gap > 0.0:
            total += (gap / top) ** p
    if p in (1.0, np.inf):
        return total
    return np.sqrt(total) if p == 2.0 else top * total ** (1.0 / p)


@njit
def l1_from_common(mass, other, common):
    """The sum of |a - b|, given the sums of a, b and min(a, b), all integers.

    Rounded once. The sum can be 2^63 (a histogram has mass 2^62), so it is an unsigned integer.
    """
    return np.float64(np.uint64(mass - common) + np.uint64(other - common))


@njit
def l1_of_difference(a, a_end, b, b_end, bins, values):
    """The l1 norm of row a - row b of integers, by merging their sorted bins."""
    mass, other, common = np.int64(0), np.int64(0), np.int64(0)
    for e in range(a, a_end):
        mass += values[e]
    for e in range(b, b_end):
        other += values[e]
    while a < a_end and b < b_end:
        if bins[a] == bins[b]:
            common += min(values[a], values[b])
        step_a, step_b = bins[a] <= bins[b], bins[b] <= bins[a]
        a += step_a
        b += step_b
    return l1_from_common(mass, other, common)


def sums_exactly(values, p):
    """Whether norms are sums of integers, hence exact in any order."""
    return p == 1.0 and values.dtype == np.int64


def pairwise_norms(indptr, bins, values, p):
    """All distances ||a_i - a_j||_p, symmetric with a zero diagonal."""
    n = len(indptr) - 1
    norms = np.zeros((n, n))
    if sums_exactly(values, p):
        _pairwise_l1(indptr, bins, values, norms, None)
    else:
        _pairwise_norms(indptr, bins, values, p, norms, None)
    return norms


@threaded
def _pairwise_l1(indptr, bins, values, norms, task, tasks):
    """For integers: sum |a - b| = sum a + sum b - 2 sum min(a, b), on the bins of b alone."""
    n = len(norms)
    mass, last = np.zeros(n, np.int64), 0
    for i in range(n):
        for e in range(indptr[i], indptr[i + 1]):
            mass[i] += values[e]
            last = max(last, bins[e])
    dense = np.zeros(last + 1, np.int64)
    for first in range(task, (n + 1) // 2, tasks):  # a long row and a short one: equal work
        for i in range(first, n - first, max(1, n - 1 - 2 * first)):
            for e in range(indptr[i], indptr[i + 1]):
                dense[bins[e]] = values[e]
            for j in range(i + 1, n):
                common = 0
                for e in range(indptr[j], indptr[j + 1]):
                    common += min(dense[np.uint64(bins[e])], values[e])
                norms[i, j] = l1_from_common(mass[i], mass[j], common)
                norms[j, i] = norms[i, j]
            for e in range(indptr[i], indptr[i + 1]):
                dense[bins[e]] = 0


@threaded
def _pairwise_norms(indptr, bins, values, p, norms, task, tasks):
    n = len(norms)
    for first in range(task, (n + 1) // 2, tasks):  # a long row and a short one: equal work
        for i in range(first, n - first, max(1, n - 1 - 2 * first)):
            for j in range(i + 1, n):
                norms[i, j] = norm_of_difference(
                    indptr[i], indptr[i + 1], indptr[j], indptr[j + 1], bins, values, p
                )
                norms[j, i] = norms[i, j]


# -------------------------------------------------------------------------------------- given pairs


def pair_norms(indptr, bins, values, index, p):
    """||a_i - a_j||_p for every row (i, j) of ``index``."""
    norms = np.empty(len(index))
    if sums_exactly(values, p):
        _pair_l1(indptr, bins, values, index, norms, None)
    else:
        _pair_norms(indptr, bins, values, index, p, norms, None)
    return norms


@threaded
def _pair_l1(indptr, bins, values, index, norms, task, tasks):
    for e in range(task, len(index), tasks):
        i, j = index[e]
        norms[e] = l1_of_difference(
            indptr[i], indptr[i + 1], indptr[j], indptr[j + 1], bins, values
        )


@threaded
def _pair_norms(indptr, bins, values, index, p, norms, task, tasks):
    for e in range(task, len(index), tasks):
        i, j = index[e]
        norms[e] = norm_of_difference(
            indptr[i], indptr[i + 1], indptr[j], indptr[j + 1], bins, values, p
        )


def pair_squares(indptr, bins, values, index):
    """||x_i - x_j||_2^2 for every row (i, j) of ``index``; values need not be masses."""
    squares = np.empty(len(index))
    _pair_squares(indptr, bins, values, index, squares, None)
    return squares


@threaded
def _pair_squares(indptr, bins, values, index, squares, task, tasks):
    for e in range(task, len(index), tasks):
        i, j = index[e]
        p, p_end, q, q_end = indptr[i], indptr[i + 1], indptr[j], indptr[j + 1]
        total = 0.0
        while p < p_end and q < q_end:
            if bins[p] == bins[q]:
                total += (values[p] - values[q]) ** 2
                p += 1
                q += 1
            elif bins[p] < bins[q]:
                total += values[p] ** 2
                p += 1
            else:
                total += values[q] ** 2
                q += 1
        while p < p_end:
            total += values[p] ** 2
            p += 1
        while q < q_end:
            total += values[q] ** 2
            q += 1
        squares[e] = total


# ----------------------------------------------------------------------------- rows of two matrices


@njit
def _first_at_least(rows, begin, end, bound):
    """The first position from ``begin`` to ``end`` of sorted ``rows`` with a row >= ``bound``."""
    while begin < end:
        middle = (begin + end) // 2
        if rows[middle] < bound:
            begin = middle + 1
        else:
            end = middle
    return begin


def l1_distances(left, right, upper):
    """The l1 distances of the rows of ``left`` (CSR) to the rows of ``right`` (CSC), as int64.

    ``left`` and ``right`` are (indptr, indices, values, sums of the rows). If ``upper``, both are
    the same rows: pairs i < j are computed, and the others filled in by symmetry.
    """
    distances = np.empty((len(left[-1]), len(right[-1])), np.int64)
    _l1_distances(left, right, upper, distances, None)
    if upper:
        for i, row in enumerate(distances):  # by rows: no copies of a large matrix
            row[i] = 0
            distances[i + 1 :, i] = row[i + 1 :]
    return distances


@threaded
def _l1_distances(left, right, upper, distances, task, tasks):
    starts, coordinates, values, totals = left
    columns, rows, others, other_totals = right
    n, k = distances.shape
    common = np.empty(k, np.int64)
    for turn in range(task, n, tasks):
        i = turn // 2 if turn % 2 == 0 else n - 1 - turn // 2  # alternate long and short rows
        first = i + 1 if upper else 0
        common[:] = 0
        for e in range(starts[i], starts[i + 1]):
            c, x = coordinates[e], values[e]
            end = columns[c + 1]
            for f in range(_first_at_least(rows, columns[c], end, first), end):
                common[rows[f]] += min(x, others[f])
        for j in range(first, k):
            distances[i, j] = totals[i] + other_totals[j] - 2 * common[j]


# -------------------------------------------------------------------------- the triangle inequality

ROWS, CHUNK = 32, 512
"""Rows and columns of a block of shortest detours, which stays in the cache."""


@njit
def _violation_of(cost, first):
    """:func:`triangle_violation` for ``first`` <= k < ``first + ROWS`` and l >= k."""
    d = len(cost)
    last = min(first + ROWS, d)
    worst = 0.0
    shortest = np.empty((ROWS, CHUNK))
    for left in range(first, d, CHUNK):
        width = min(CHUNK, d - left)
        for k in range(first, last):
            shortest[k - first, :width] = cost[k, left : left + width]
        for s in range(d):
            rest = cost[s, left : left + width]
            for k in range(first, last):
                leg, row = cost[s, k], shortest[k - first]
                for l in range(width):
                    detour = leg + rest[l]
                    row[l] = detour if detour < row[l] else row[l]
        for k in range(first, last):
            for l in range(width):
                worst = max(worst, cost[k, left + l] - shortest[k - first, l])
    return worst


def triangle_violation(cost):
    """Max over k, l, s of C_kl - (C_ks + C_sl), C symmetric: positive when a detour is shorter."""
    worst = np.zeros(-(-len(cost) // ROWS))
    _triangle_violation(cost, worst, None)
    return worst.max(initial=0.0)


@threaded
def _triangle_violation(cost, worst, task, tasks):
    blocks = len(worst)
    for one in range(task, (blocks + 1) // 2, tasks):  # a long and a short block: equal work
        for block in range(one, blocks - one, max(1, blocks - 1 - 2 * one)):
            worst[block] = _violation_of(cost, block * ROWS)
