"""Inner products and common masses of some rows with their own candidates, Numba.

Rows i are dense; candidates j are CSR rows ``indptr``, ``bins`` with three values per entry. For
each pair the kernel returns three sums over the entries of j:

    <x_i, one_j>,    sum min(low_i, two_j),    <z_i, three_j>.
"""

import numpy as np
from numba import prange

from cometric.kernels.launching import check_finished, parallel


@parallel
def pair_sums(indptr, bins, one, two, three, x, low, z, index, tasks):
    """The three sums of row i with the candidates ``index[i]``, (3, rows, candidates).

    Entries of ``index`` below 0 stand for no candidate, and get zeros.
    """
    rows, count = index.shape
    sums = np.zeros((3, rows, count), x.dtype)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        for i in range(task, rows, tasks):
            for c in range(count):
                j = index[i, c]
                if j < 0:
                    continue
                product, common, cosine = x.dtype.type(0), x.dtype.type(0), x.dtype.type(0)
                for e in range(indptr[j], indptr[j + 1]):
                    k = bins[e]
                    product += x[i, k] * one[e]
                    common += min(low[i, k], two[e])
                    cosine += z[i, k] * three[e]
                sums[0, i, c], sums[1, i, c], sums[2, i, c] = product, common, cosine
        finished[task] = True
    check_finished(finished)
    return sums
