"""Sinkhorn sweeps for sources with few targets, Numba.

The kernel of ``sinkhorn_numba`` copies all columns of K that belong to a source, once per sweep:
cheap for hundreds of targets, but nearly the whole time for twenty. Here each pair gets its own
block of K, copied once, and is swept until solved.
"""

import numpy as np

from cometric.kernels.compiling import for_both, njit, threaded
from cometric.kernels.scaling import (
    FAST,
    aligned_zeros,
    combine_rows,
    divide_damped,
    divide_lanes,
    extrapolations,
    multiply_by,
    next_rate,
    project_rows,
    update,
    update_damped,
)
from cometric.kernels.simd import BYTES
from cometric.kernels.sinkhorn_numba import mass_sums, pad, relaxed_value


@njit(**FAST)
def _copy_block(kernel, bins, first, count, begin, size, width, block):
    """Rows ``bins[first : first + count]`` of the kernel on ``size`` bins from ``begin`` on.

    The rows of a source stay in the cache for all its targets. Padded with ones.
    """
    for k in range(count):
        row = kernel[np.uint64(bins[np.uint64(first + k)])]
        for l in range(size):
            block[np.uint64(k * width + l)] = row[np.uint64(bins[np.uint64(begin + l)])]
        for l in range(size, width):
            block[np.uint64(k * width + l)] = 1


def _sweep_pairs(balanced):
    @threaded
    def sweep_pairs(
        indptr, bins, weight, kernel, start, target, state, offsets, values, errors,
        ratio, sweeps, tol, task, tasks,
    ):  # fmt: skip
        """As ``sinkhorn_numba.sweep``, but faster for few targets per source."""
        lanes = BYTES // kernel.itemsize
        largest = np.max(indptr[1:] - indptr[:-1])
        widest = -(-largest // lanes) * lanes
        power = 1.0 / (ratio + 1.0)
        mass = mass_sums(indptr, weight)
        place, _, padded = pad(indptr, bins, weight, kernel)
        block = aligned_zeros(widest * widest, kernel.dtype)
        u, v = aligned_zeros(widest, kernel.dtype), aligned_zeros(widest, kernel.dtype)
        ku, tail = aligned_zeros(widest, kernel.dtype), aligned_zeros(lanes, kernel.dtype)
        numbers, exponent = np.empty(largest + BYTES), np.empty(largest + BYTES)
        rows = np.arange(widest)
        for i in range(task, len(start) - 1, tasks):
            first, count = indptr[i], indptr[i + 1] - indptr[i]
            height = place[i + 1] - place[i]
            for p in range(start[i], start[i + 1]):
                if not errors[p] > tol or np.isnan(values[p]):
                    continue
                begin, size = indptr[target[p]], indptr[target[p] + 1] - indptr[target[p]]
                width = -(-size // lanes) * lanes
                _copy_block(kernel, bins, first, count, begin, size, width, block)
                v[:size] = state[offsets[p] : offsets[p] + size]
                v[size:] = 0
                rate = 0.0
                for _ in range(sweeps):
                    u[:height] = 0
                    project_rows(block, rows, 0, count, v, u, 0, width)
                    u[count:height] = 1
                    if balanced:
                        values[p] = divide_lanes(padded, place[i], u, height)
                    else:
                        lost = divide_damped(
                            weight, first, count, height, u, power, numbers, exponent
                        )
                    combine_rows(block, rows, 0, count, u, 0, ku, width)
                    if balanced:
                        mine = place[target[p]]
                        if rate > 0.0:
                            extrapolations(padded, mine, size, v, 0, ku, 0, rate, numbers)
                        value, error = update(padded, mine, size, v, 0, ku, 0, tail)
                        values[p] += value
                        if rate > 0.0:
                            multiply_by(v, 0, size, numbers)
                        if tol > 0.0:
                            rate = next_rate(rate, errors[p], error)
                        errors[p] = error
                    else:
                        columns, errors[p] = update_damped(
                            weight, begin, size, v, 0, ku, 0, power, numbers, exponent
                        )
                        values[p], shift = relaxed_value(
                            ratio, mass[i], mass[target[p]], lost, columns
                        )
                        v *= np.exp(shift)
                    if not errors[p] > tol:
                        break
                state[offsets[p] : offsets[p] + size] = v[:size]
                if not (np.isfinite(values[p]) and np.isfinite(errors[p])):
                    values[p], errors[p] = np.nan, np.inf

    return sweep_pairs


sweep_pairs = for_both(_sweep_pairs, 10)
