"""For each row, the histograms with the lowest bounds, without storing all pairs, Numba.

Histograms are CSR rows ``indptr``, ``bins``, ``weight``. The bound of row i and histogram b_j is

    p_i + q_j - <x_i, b_j> + max_l |r_il - s_jl| + share (2 - 2 sum min(a_i, b_j)) + extra_ij,

with x_i dense, so that only the bins of b_j are visited. Rows are compared with all histograms in
groups, one row per vector lane; the lowest bounds of each row are collected in a heap.
"""

import numpy as np

from cometric.kernels.jit import njit
from cometric.kernels.lanes import (
    BYTES,
    add,
    load,
    maximum,
    minimum,
    multiply_add,
    spread,
    store,
    zeros_like,
)
from cometric.kernels.launching import threaded
from cometric.kernels.scaling import aligned_zeros

LANES = BYTES // 8


@njit
def _bounds(indptr, bins, weight, j, x, a, share, out):
    """Write -<x_i, b_j> - 2 share sum min(a_i, b_j) for all lanes to ``out``."""
    zero = zeros_like(x)
    products, products_2, common, common_2 = zero, zero, zero, zero
    e, end = indptr[j], indptr[j + 1]
    while e + 2 <= end:  # two accumulators each, to hide the latency of additions
        b, b_2 = spread(weight[e]), spread(weight[e + 1])
        k, k_2 = bins[e] * LANES, bins[e + 1] * LANES
        products = multiply_add(b, load(x, k), products)
        products_2 = multiply_add(b_2, load(x, k_2), products_2)
        if share > 0.0:
            common = add(common, minimum(b, load(a, k)))
            common_2 = add(common_2, minimum(b_2, load(a, k_2)))
        e += 2
    if e < end:
        b, k = spread(weight[e]), bins[e] * LANES
        products = multiply_add(b, load(x, k), products)
        common = add(common, minimum(b, load(a, k)))
    both = multiply_add(spread(-2.0 * share), add(common, common_2), zero)
    store(out, 0, multiply_add(spread(-1.0), add(products, products_2), both))


@njit
def _largest_gap(means, j, r, out):
    """Add max_l |r_il - s_jl| to ``out`` for all lanes."""
    gaps = zeros_like(r)
    for l in range(means.shape[1]):
        gap = add(load(r, l * LANES), spread(-means[j, l]))
        gaps = maximum(gaps, maximum(gap, multiply_add(spread(-1.0), gap, zeros_like(r))))
    store(out, 0, add(load(out, 0), gaps))


@njit
def replace_top(values, index, value, j):
    """Replace the largest entry of a heap by (value, j)."""
    size, here = len(values), 0
    while True:
        below = 2 * here + 1
        if below >= size:
            break
        if below + 1 < size and values[below + 1] > values[below]:
            below += 1
        if values[below] <= value:
            break
        values[here], index[here] = values[below], index[below]
        here = below
    values[here], index[here] = value, j


def lowest(indptr, bins, weight, first, p, q, images, means, share, extra, count, tasks):
    """The ``count`` lowest bounds of each row, in increasing order, and their histograms.

    Rows are the histograms from ``first`` on, one for each of the ``images``; a row is not its own
    candidate. Negative bounds are clipped to zero; then ``extra`` is added, unless it is empty.
    """
    bounds = np.full((len(images), count), np.inf)
    index = np.zeros((len(images), count), np.int64)
    _lowest(
        indptr, bins, weight, first, p, q, images, means, share, extra, bounds, index, tasks
    )  # fmt: skip
    return bounds, index


@threaded
def _lowest(
    indptr, bins, weight, first, p, q, images, means, share, extra, bounds, index, task, tasks
):  # fmt: skip
    rows, m = images.shape
    n, references = len(indptr) - 1, means.shape[1]
    x, a = aligned_zeros(m * LANES, np.float64), aligned_zeros(m * LANES, np.float64)
    r, out = aligned_zeros(references * LANES, np.float64), aligned_zeros(LANES, np.float64)
    for begin in range(task * LANES, rows, tasks * LANES):
        width = min(LANES, rows - begin)
        a[:] = 0.0
        for t in range(width):
            i = first + begin + t
            for k in range(m):
                x[k * LANES + t] = images[begin + t, k]
            for e in range(indptr[i], indptr[i + 1]):
                a[bins[e] * LANES + t] = weight[e]
            for l in range(references):
                r[l * LANES + t] = means[i, l]
        for j in range(n):
            _bounds(indptr, bins, weight, j, x, a, share, out)
            if references:
                _largest_gap(means, j, r, out)
            for t in range(width):
                row = begin + t
                value = max(0.0, p[row] + q[j] + 2.0 * share + out[t])
                if extra.size:
                    value += extra[row, j]
                if value < bounds[row, 0] and j != first + row:
                    replace_top(bounds[row], index[row], value, j)
        for t in range(width):
            order = np.argsort(bounds[begin + t])
            bounds[begin + t] = bounds[begin + t][order]
            index[begin + t] = index[begin + t][order]
