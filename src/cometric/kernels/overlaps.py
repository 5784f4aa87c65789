"""Common mass of sparse vectors, for l1 distances between all pairs, Numba.

For nonnegative vectors ``|x - y|_1 = |x|_1 + |y|_1 - 2 sum_c min(x_c, y_c)``, and only coordinates
where both are positive count in the sum. Values are integers, so that sums are exact and do not
depend on their order.
"""

import numpy as np
from numba import prange

from cometric.kernels.jit import njit
from cometric.kernels.launching import check_finished, parallel


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


@parallel
def l1_distances(left, right, upper):
    """The l1 distances of the rows of ``left`` (CSR) to the rows of ``right`` (CSC), as int64.

    ``left`` and ``right`` are (indptr, indices, values, sums of the rows). If ``upper``, both are
    the same rows: pairs i < j are computed, and the others filled in by symmetry.
    """
    starts, coordinates, values, totals = left
    columns, rows, others, other_totals = right
    n, k = len(starts) - 1, len(other_totals)
    distances = np.empty((n, k), np.int64)
    finished = np.zeros(n, np.bool_)
    for task in prange(n):
        i = task // 2 if task % 2 == 0 else n - 1 - task // 2  # long rows and short ones in turn
        first = i + 1 if upper else 0
        common = np.zeros(k, np.int64)
        for e in range(starts[i], starts[i + 1]):
            c, x = coordinates[e], values[e]
            end = columns[c + 1]
            for f in range(_first_at_least(rows, columns[c], end, first), end):
                common[rows[f]] += min(x, others[f])
        for j in range(first, k):
            distances[i, j] = totals[i] + other_totals[j] - 2 * common[j]
        finished[i] = True
    check_finished(finished)
    if upper:
        for i in range(n):
            distances[i, i] = 0
            for j in range(i):
                distances[i, j] = distances[j, i]
    return distances
