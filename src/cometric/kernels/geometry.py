"""Norms of differences of histograms, and the triangle inequality, Numba.

Histograms are CSR rows with sorted indices; their masses may be integers, whose differences are
exact.
"""

import numpy as np
from numba import prange

from cometric.kernels.jit import njit
from cometric.kernels.launching import check_finished, parallel


@njit
def norm_of_difference(a, a_end, b, b_end, bins, values, p):
    """The l_p norm of row a - row b, by merging their sorted bins.

    For p other than 1, 2 and inf, terms are divided by the largest so far before the power is
    taken, so that they do not underflow.
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


@parallel
def pairwise_norms(indptr, bins, values, p):
    """All distances ||a_i - a_j||_p, symmetric with a zero diagonal."""
    n = len(indptr) - 1
    norms = np.zeros((n, n))
    for first in prange((n + 1) // 2):  # a long row and a short one: equal work for every thread
        for i in range(first, n - first, max(1, n - 1 - 2 * first)):
            for j in range(i + 1, n):
                norms[i, j] = norm_of_difference(
                    indptr[i], indptr[i + 1], indptr[j], indptr[j + 1], bins, values, p
                )
                norms[j, i] = norms[i, j]
    return norms


@njit
def _violation_from(cost, k):
    """The part of :func:`triangle_violation` with this k."""
    shortest = cost[k].copy()
    for s in range(len(cost)):
        leg, rest = cost[k, s], cost[s]
        for l in range(len(cost)):
            detour = leg + rest[l]
            shortest[l] = detour if detour < shortest[l] else shortest[l]
    worst = 0.0
    for l in range(len(cost)):
        worst = max(worst, cost[k, l] - shortest[l])
    return worst


@parallel
def triangle_violation(cost):
    """Max over k, l, s of C_kl - (C_ks + C_sl): positive when a detour is shorter."""
    worst = np.zeros(len(cost))
    finished = np.zeros(len(cost), np.bool_)
    for k in prange(len(cost)):
        worst[k] = _violation_from(cost, k)
        finished[k] = True
    check_finished(finished)
    largest = 0.0
    for k in range(len(cost)):
        largest = max(largest, worst[k])
    return largest
