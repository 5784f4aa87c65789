"""Common mass of sparse vectors, for l1 distances between all pairs, Numba.

For nonnegative vectors ``|x - y|_1 = |x|_1 + |y|_1 - 2 sum_c min(x_c, y_c)``, and only coordinates
where both are positive count in the sum. Values are integers, so that sums are exact and do not
depend on their order.
"""

import numpy as np

from cometric.kernels import chosen_threads
from cometric.kernels.jit import njit
from cometric.kernels.launching import threaded


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
    _l1_distances(left, right, upper, distances, chosen_threads())
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
