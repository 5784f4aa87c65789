"""Norms of differences of given pairs of histograms, Numba. Histograms are sorted CSR rows."""

import numpy as np
from numba import prange

from cometric.kernels.geometry import norm_of_difference
from cometric.kernels.launching import parallel


@parallel
def pair_norms(indptr, bins, values, index, p):
    """||a_i - a_j||_p for every row (i, j) of ``index``."""
    norms = np.empty(len(index))
    for e in prange(len(index)):
        i, j = index[e]
        norms[e] = norm_of_difference(
            indptr[i], indptr[i + 1], indptr[j], indptr[j + 1], bins, values, p
        )
    return norms


@parallel
def pair_squares(indptr, bins, values, index):
    """||x_i - x_j||_2^2 for every row (i, j) of ``index``; the rows are any numbers."""
    squares = np.empty(len(index))
    for e in prange(len(index)):
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
    return squares
