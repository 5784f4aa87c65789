"""The best of many candidates for each of some rows, by sums over common features, Numba.

Two sums of a pair are over the features that both have: sum min(low_i, low_j) and <z_i, z_j>. The
candidates are listed by feature, so that a row visits only those that share one with it; of sparse
data, a few features per pair. What the scores need besides is a number per pair from matrix
products, and a few numbers per row and candidate.
"""

import numpy as np
from numba import prange

from cometric.kernels.candidates import replace_top
from cometric.kernels.jit import njit
from cometric.kernels.launching import check_finished, parallel
from cometric.kernels.scaling import FAST

SMALL = np.float32(1e-6)


@njit
def by_feature(indptr, bins, low, z, members, m):
    """Entries of the rows ``members`` by feature: starts, places in ``members``, two values."""
    starts = np.zeros(m + 1, np.int64)
    for j in members:
        for e in range(np.uint64(indptr[j]), np.uint64(indptr[j + 1])):
            starts[np.uint64(bins[e]) + np.uint64(1)] += 1
    for k in range(m):
        starts[k + 1] += starts[k]
    place, free = np.empty(starts[m], np.int32), starts[:-1].copy()
    lows, zs = np.empty(starts[m], low.dtype), np.empty(starts[m], z.dtype)
    for number in range(len(members)):
        j = members[number]
        for e in range(np.uint64(indptr[j]), np.uint64(indptr[j + 1])):
            here = np.uint64(bins[e])
            p = np.uint64(free[here])
            place[p], lows[p], zs[p] = number, low[e], z[e]
            free[here] += 1
    return starts, place, lows, zs


@njit(**FAST)
def _add_common(starts, place, lows, zs, bins, low, z, first, last, sums):
    """Add both sums of one row, entries ``first`` to ``last``, with all candidates to ``sums``."""
    one = np.uint64(1)
    for e in range(np.uint64(first), np.uint64(last)):
        k, a, b = np.uint64(bins[e]), low[e], z[e]
        for p in range(np.uint64(starts[k]), np.uint64(starts[k + one])):
            here = np.uint64(2) * np.uint64(place[p])
            sums[here] += min(a, lows[p])
            sums[here + one] += b * zs[p]


@njit(**FAST)
def _local_scores(sums, p, q, products, dots, row, columns, weight, farthest, scores):
    """Transport plus the reference "local", from the parts of a row and of all candidates.

    The parts: for each of three distances the root of its weight over its scale, the noise, one
    over the spread, and the squared length of the LSA vector.
    """
    zero, two = np.float32(0), np.float32(2)
    for c in range(np.uint64(len(scores))):
        common, cosine = sums[np.uint64(2) * c], sums[np.uint64(2) * c + np.uint64(1)]
        gap = row[5] + columns[np.uint64(5), c] - two * dots[c]
        total = row[0] * columns[np.uint64(0), c] * max(two - two * common, zero)
        total += row[1] * columns[np.uint64(1), c] * np.sqrt(max(two - two * cosine, zero))
        total += row[2] * columns[np.uint64(2), c] * np.sqrt(max(gap, zero))
        above = max(total - row[3], SMALL * total)
        above *= max(total - columns[np.uint64(3), c], SMALL * total)
        root = np.sqrt(above * row[4] * columns[np.uint64(4), c])
        reference = min(root * np.sqrt(root), farthest)  # to the power 3/4
        scores[c] = max(p + q[c] - products[c], zero) + weight * reference


@njit(**FAST)
def _l1_scores(sums, p, q, products, weight, scores):
    """Transport plus the l1 norm."""
    zero, two = np.float32(0), np.float32(2)
    for c in range(np.uint64(len(scores))):
        norm = two - two * sums[np.uint64(2) * c]
        scores[c] = max(p + q[c] - products[c], zero) + weight * norm


@parallel
def shortlist(
    starts, place, lows, zs, indptr, bins, low, z, own, p, q, products, dots, rows, columns,
    weight, farthest, index, tasks,
):  # fmt: skip
    """Write the places of the candidates of lowest score to ``index``, increasing, for each row.

    Transport is about ``p_i + q_c - products_ic``. ``own`` is the place of the row among the
    candidates, which is left out. ``rows`` (n, 6) and ``columns`` (6, candidates) are the parts of
    the reference "local"; without them, it is the l1 norm.
    """
    n, count = index.shape
    candidates = len(q)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        sums, scores = np.empty(2 * candidates, np.float32), np.empty(candidates, np.float32)
        best = np.empty(count, np.float32)
        for i in range(task, n, tasks):
            sums[:] = 0
            _add_common(starts, place, lows, zs, bins, low, z, indptr[i], indptr[i + 1], sums)
            if len(columns):
                _local_scores(
                    sums, p[i], q, products[i], dots[i], rows[i], columns, weight, farthest, scores
                )
            else:
                _l1_scores(sums, p[i], q, products[i], weight, scores)
            scores[own[i]] = np.inf
            best[:] = np.inf
            for c in range(candidates):
                if scores[c] < best[0]:
                    replace_top(best, index[i], scores[c], c)
            index[i].sort()
        finished[task] = True
    check_finished(finished)
