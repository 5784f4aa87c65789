"""Norms of differences of given pairs of histograms, Numba. Histograms are sorted CSR rows."""

import numpy as np

from cometric.kernels import chosen_threads
from cometric.kernels.geometry import l1_of_difference, norm_of_difference, sums_exactly
from cometric.kernels.launching import threaded


def pair_norms(indptr, bins, values, index, p):
    """||a_i - a_j||_p for every row (i, j) of ``index``."""
    norms = np.empty(len(index))
    if sums_exactly(values, p):
        _pair_l1(indptr, bins, values, index, norms, chosen_threads())
    else:
        _pair_norms(indptr, bins, values, index, p, norms, chosen_threads())
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
    _pair_squares(indptr, bins, values, index, squares, chosen_threads())
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
