"""Sums over the bins of some rows and their own candidates, Numba.

In :func:`pair_sums`, rows i are dense; candidates j are CSR rows ``indptr``, ``bins`` with three
values per entry. For each pair the kernel returns three sums over the entries of j:

    <x_i, one_j>,    sum min(low_i, two_j),    <z_i, three_j>.

:func:`view_squares` is for dense vectors of several views, side by side.
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

    Negative entries of ``index`` mean no candidate, and get zeros.
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


def view_squares(vectors, cuts, rows, index, tasks):
    """Squared distances in each view of rows and their candidates, (views, rows, candidates).

    View v has the columns from ``cuts[v]`` to ``cuts[v + 1]``. Differences are squared, which is
    accurate for close vectors, unlike |a|^2 + |b|^2 - 2 <a, b>.
    """
    squares = np.empty((len(cuts) - 1, *index.shape), vectors.dtype)
    _view_squares(vectors, cuts, rows, index, squares, tasks)
    return squares


@threaded
def _view_squares(vectors, cuts, rows, index, squares, task, tasks):
    for i in range(task, len(rows), tasks):
        own = vectors[rows[i]]
        for c in range(index.shape[1]):
            other = vectors[index[i, c]]
            for v in range(len(cuts) - 1):
                squares[v, i, c] = _square(own, other, cuts[v], cuts[v + 1])


@njit(**FAST)
def _square(one, other, start, stop):
    """The squared distance of two vectors in the columns from ``start`` to ``stop``."""
    total = one.dtype.type(0)
    for k in range(start, stop):
        gap = one[k] - other[k]
        total += gap * gap
    return total
