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
