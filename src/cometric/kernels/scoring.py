"""Inner products and common masses of some rows with their own candidates, Numba.

Rows i are dense; candidates j are CSR rows ``indptr``, ``bins`` with three values per entry. For
each pair the kernel returns three sums over the entries of j:

    <x_i, one_j>,    sum min(low_i, two_j),    <z_i, three_j>.
"""

import numpy as np

from cometric.kernels.jit import njit
from cometric.kernels.launching import threaded
from cometric.kernels.scaling import FAST


@njit(**FAST)
def _add(k, e, one, two, three, x, low, z, product, common, cosine):
    """The sums with the terms of entry ``e``, in bin ``k``."""
    least = min(low[k], two[e])
    return product + x[k] * one[e], common + least, cosine + z[k] * three[e]


@njit(**FAST)
def _sums(bins, begin, end, one, two, three, x, low, z):
    """The three sums of one pair; two entries at a time, so that latencies overlap."""
    zero, step = x.dtype.type(0), np.uint64(1)
    p, c, s = zero, zero, zero
    q, d, t = zero, zero, zero
    e = begin
    while e + step < end:
        k, l = np.uint64(bins[e]), np.uint64(bins[e + step])
        p, c, s = _add(k, e, one, two, three, x, low, z, p, c, s)
        q, d, t = _add(l, e + step, one, two, three, x, low, z, q, d, t)
        e += step + step
    if e < end:
        p, c, s = _add(np.uint64(bins[e]), e, one, two, three, x, low, z, p, c, s)
    return p + q, c + d, s + t


def pair_sums(indptr, bins, one, two, three, x, low, z, index, tasks):
    """The three sums of row i with the candidates ``index[i]``, (3, rows, candidates).

    Entries of ``index`` below 0 stand for no candidate, and get zeros.
    """
    sums = np.zeros((3, *index.shape), x.dtype)
    _pair_sums(indptr, bins, one, two, three, x, low, z, index, sums, tasks)
    return sums


@threaded
def _pair_sums(indptr, bins, one, two, three, x, low, z, index, sums, task, tasks):
    rows, count = index.shape
    for i in range(task, rows, tasks):
        x_i, low_i, z_i = x[i], low[i], z[i]
        for c in range(count):
            j = index[i, c]
            if j >= 0:
                begin, end = np.uint64(indptr[j]), np.uint64(indptr[j + 1])
                sums[0, i, c], sums[1, i, c], sums[2, i, c] = _sums(
                    bins, begin, end, one, two, three, x_i, low_i, z_i
                )
