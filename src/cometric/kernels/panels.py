"""Sinkhorn sweeps of dense histograms by BLAS matrix products, for a panel of pairs at a time.

Same interface as :func:`cometric.kernels.sinkhorn.sweep`, for balanced transport. All pairs of a
source i share the columns of K that its bins select. If most bins of the targets are nonzero too,
K v for many targets is one matrix product, with v = 0 outside the supports:

    K v = V K[:, S_i],    K u = U K[S_i, :],

with a pair in each row of V and U. This multiplies zeros as well, but a matrix product reuses an
entry of K for many pairs while it is in a register, and needs no compilation.

Sources are distributed over threads, and each product uses one BLAS thread, so the result does not
depend on the number of threads.
"""

import numpy as np

from cometric.kernels.jit import njit
from cometric.kernels.lanes import BYTES, item
from cometric.kernels.launching import run_tasks
from cometric.kernels.scaling import (
    FAST,
    divide_lanes,
    extrapolations,
    multiply_by,
    next_rate,
    update,
)

HEIGHT = 256
"""Pairs in a panel."""


def sweep_panels(
    indptr, bins, weight, kernel, start, target, state, offsets, values, errors,
    sweeps, tol, threads,
):  # fmt: skip
    """Sweep pairs until their error is at most ``tol``, or ``sweeps`` times."""
    weight = weight.astype(kernel.dtype, copy=False)
    pairs = target, state, offsets, values, errors

    def sweep_source(i):
        with np.errstate(all="ignore"):  # pairs whose scalings overflow are marked
            _sweep_source(indptr, bins, weight, kernel, pairs, start, i, sweeps, tol)

    sources = np.flatnonzero(np.diff(start))
    run_tasks(lambda task: sweep_source(sources[task]), len(sources), threads)
    return values, errors


def _sweep_source(indptr, bins, weight, kernel, pairs, start, i, sweeps, tol):
    """Sweep the pairs of source i."""
    target, state, offsets, values, errors = pairs
    own = slice(indptr[i], indptr[i + 1])
    all_pairs = np.arange(start[i], start[i + 1])
    block = mass = None
    for _ in range(sweeps):
        part = slice(start[i], start[i + 1])
        active = all_pairs[(errors[part] > tol) & ~np.isnan(values[part])]
        if not len(active):
            return
        if block is None:  # rows of K, which is symmetric, padded with ones to whole lanes
            count, lanes = own.stop - own.start, BYTES // kernel.itemsize
            width = -(-count // lanes) * lanes
            block = np.ones((width, len(kernel)), kernel.dtype)
            np.take(kernel, bins[own], axis=0, out=block[:count], mode="clip")
            mass = np.zeros(width, kernel.dtype)
            mass[:count] = weight[own]
            height = min(HEIGHT, len(active))
            v, kv = (
                np.empty((height, len(kernel)), kernel.dtype),
                np.empty((height, width), kernel.dtype),
            )
            rates = np.zeros(len(all_pairs))  # convergence rates of the errors
            work = np.empty((4, np.diff(indptr).max() + BYTES), kernel.dtype)
        for first in range(0, len(active), height):
            panel = active[first : first + height]
            rows = len(panel)
            _scatter(indptr, bins, target, state, offsets, panel, v)
            np.matmul(v[:rows], block.T, out=kv[:rows])
            _divide(mass, kv, panel, values)
            np.matmul(kv[:rows], block, out=v[:rows])
            _update(
                indptr, bins, weight, target, state, offsets, panel, v, values, errors, work,
                rates, start[i], tol,
            )  # fmt: skip


@njit(nogil=True)
def _scatter(indptr, bins, target, state, offsets, panel, v):
    """The scalings of each pair as a row, zero outside the support of its target."""
    v[: len(panel)] = 0
    for row in range(len(panel)):
        p = panel[row]
        begin, place = indptr[target[p]], offsets[p]
        for e in range(offsets[p + 1] - place):
            v[np.uint64(row), np.uint64(item(bins, begin + e))] = item(state, place + e)


@njit(nogil=True, **FAST)
def _divide(mass, kv, panel, values):
    """Replace K v by u = a / (K v), and set the values to <a, log u>."""
    for row in range(len(panel)):
        values[panel[row]] = divide_lanes(mass, 0, kv[row], kv.shape[1])


@njit(nogil=True, **FAST)
def _update(
    indptr, bins, weight, target, state, offsets, panel, ku, values, errors, work,
    rates, pair, tol,
):  # fmt: skip
    """Replace v by b / (K u) on the support of each target; complete values and errors."""
    product, mass, tail, factor = work[0], work[1], work[2], work[3]
    mass[:] = 0
    for row in range(len(panel)):
        p = panel[row]
        begin, count = indptr[target[p]], indptr[target[p] + 1] - indptr[target[p]]
        for e in range(count):
            product[e] = ku[np.uint64(row), np.uint64(item(bins, begin + e))]
            mass[e] = item(weight, begin + e)
        for e in range(count, min(count + BYTES, len(mass))):
            product[e], mass[e] = 1, 0
        rate = rates[p - pair]
        if rate > 0.0:
            extrapolations(mass, 0, count, state, offsets[p], product, 0, rate, factor)
        value, error = update(mass, 0, count, state, offsets[p], product, 0, tail)
        values[p] += value
        if rate > 0.0:
            multiply_by(state, offsets[p], count, factor)
        if tol > 0.0:
            rates[p - pair] = next_rate(rate, errors[p], error)
        errors[p] = error
        if not (np.isfinite(values[p]) and np.isfinite(errors[p])):
            values[p], errors[p] = np.nan, np.inf
