"""The inner loops of a Sinkhorn sweep, on contiguous vectors, Numba.

A chunk holds some columns of K = exp(-C / eps), copied side by side: row l starts at ``l * width``,
and ``width`` is a multiple of the lanes, padded with zeros. ``rows[begin:end]`` are the bins of a
target, and its scalings start at ``place`` of their array.

These loops take nearly all of the time. Ranges are therefore passed as numbers, not as slices or
records, whose reference counts would be updated in every call. Computed indices are unsigned: Numba
checks signed ones for being negative, which keeps a loop from being vectorized.
"""

import numpy as np

from cometric.kernels.jit import njit
from cometric.kernels.lanes import BYTES, add, load, multiply_add, spread, store, total, zeros_like

# error_model: a division that may raise keeps its loop from being vectorized
FAST = {"fastmath": {"contract", "nsz"}, "error_model": "numpy"}
LOG_2 = float(np.log(2.0))
SMALLEST, LARGEST = 0x0010000000000000, 0x7FEFFFFFFFFFFFFF  # normal positive doubles, as bits
ROOT_HALF = 0x3FE6A09E667F3BCD  # sqrt(1/2), as bits
LOG_2_HIGH = float.fromhex("0x1.62e42feep-1")  # few digits: its products with integers are exact
LOG_2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
ROUNDER, ROUNDER_BITS = 1.5 * 2.0**52, 0x4338000000000000


@njit(**FAST)
def combine_rows(chunk, rows, begin, end, v, place, out, width):
    """Write sum_l v_l chunk[l], the product K v on the bins of the chunk, to ``out``."""
    lanes = BYTES // chunk.itemsize
    k = 0
    while k + 4 * lanes <= width:
        zero = zeros_like(chunk)
        x0, x1, x2, x3, y0, y1, y2, y3 = zero, zero, zero, zero, zero, zero, zero, zero
        e, p = begin, place
        while e + 2 <= end:
            i, j = rows[e] * width + k, rows[e + 1] * width + k
            x, y = spread(v[p]), spread(v[p + 1])
            x0 = multiply_add(x, load(chunk, i), x0)
            x1 = multiply_add(x, load(chunk, i + lanes), x1)
            x2 = multiply_add(x, load(chunk, i + 2 * lanes), x2)
            x3 = multiply_add(x, load(chunk, i + 3 * lanes), x3)
            y0 = multiply_add(y, load(chunk, j), y0)
            y1 = multiply_add(y, load(chunk, j + lanes), y1)
            y2 = multiply_add(y, load(chunk, j + 2 * lanes), y2)
            y3 = multiply_add(y, load(chunk, j + 3 * lanes), y3)
            e += 2
            p += 2
        if e < end:
            i, x = rows[e] * width + k, spread(v[p])
            x0 = multiply_add(x, load(chunk, i), x0)
            x1 = multiply_add(x, load(chunk, i + lanes), x1)
            x2 = multiply_add(x, load(chunk, i + 2 * lanes), x2)
            x3 = multiply_add(x, load(chunk, i + 3 * lanes), x3)
        store(out, k, add(x0, y0))
        store(out, k + lanes, add(x1, y1))
        store(out, k + 2 * lanes, add(x2, y2))
        store(out, k + 3 * lanes, add(x3, y3))
        k += 4 * lanes
    while k < width:
        x0, y0 = zeros_like(chunk), zeros_like(chunk)
        e, p = begin, place
        while e + 2 <= end:
            x0 = multiply_add(spread(v[p]), load(chunk, rows[e] * width + k), x0)
            y0 = multiply_add(spread(v[p + 1]), load(chunk, rows[e + 1] * width + k), y0)
            e += 2
            p += 2
        if e < end:
            x0 = multiply_add(spread(v[p]), load(chunk, rows[e] * width + k), x0)
        store(out, k, add(x0, y0))
        k += lanes


@njit(**FAST)
def project_rows(chunk, rows, begin, end, u, out, place, width):
    """Add <chunk[l], u>, the part of K u from the bins of the chunk, to each ``out_l``."""
    lanes = BYTES // chunk.itemsize
    e, p = begin, place
    while e + 4 <= end:
        i0, i1 = rows[e] * width, rows[e + 1] * width
        i2, i3 = rows[e + 2] * width, rows[e + 3] * width
        zero = zeros_like(chunk)
        d0, d1, d2, d3 = zero, zero, zero, zero
        for k in range(0, width, lanes):
            y = load(u, k)
            d0 = multiply_add(y, load(chunk, i0 + k), d0)
            d1 = multiply_add(y, load(chunk, i1 + k), d1)
            d2 = multiply_add(y, load(chunk, i2 + k), d2)
            d3 = multiply_add(y, load(chunk, i3 + k), d3)
        out[p] += total(d0)
        out[p + 1] += total(d1)
        out[p + 2] += total(d2)
        out[p + 3] += total(d3)
        e += 4
        p += 4
    while e < end:
        d0 = zeros_like(chunk)
        for k in range(0, width, lanes):
            d0 = multiply_add(load(u, k), load(chunk, rows[e] * width + k), d0)
        out[p] += total(d0)
        e += 1
        p += 1


@njit(**FAST)
def split(values, place, count, numbers, exponent):
    """Write values = m 2^e as m in [sqrt 1/2, sqrt 2) to ``numbers`` and e to ``exponent``.

    Returns False, with nothing of use written, if a value is not a positive normal number.
    """
    bits = numbers.view(np.int64)
    for k in range(count):
        numbers[k] = values[np.uint64(place + k)]
    low, high = bits[0], bits[0]
    for k in range(count):
        low, high = min(low, bits[k]), max(high, bits[k])
    if low < SMALLEST or high > LARGEST:
        return False
    for k in range(count):
        e = (bits[k] - ROOT_HALF) >> 52
        bits[k] -= e << 52
        exponent[k] = e
    return True


@njit(**FAST)
def log_of_parts(m, e):
    """log(m 2^e) by the series of artanh, which vectorizes, unlike log."""
    f = (m - 1.0) / (m + 1.0)
    z = f * f
    p = 1 / 19
    p = p * z + 1 / 17
    p = p * z + 1 / 15
    p = p * z + 1 / 13
    p = p * z + 1 / 11
    p = p * z + 1 / 9
    p = p * z + 1 / 7
    p = p * z + 1 / 5
    p = p * z + 1 / 3
    p = p * z + 1.0
    return 2.0 * f * p + LOG_2 * e


@njit(**FAST)
def weighted_log_sum(weight, begin, values, place, count, numbers, exponent):
    """<weight, log values>, or NaN if a value is not a positive normal number.

    ``numbers`` and ``exponent`` are work arrays.
    """
    if not split(values, place, count, numbers, exponent):
        return np.nan
    for k in range(count):
        numbers[k] = weight[np.uint64(begin + k)] * log_of_parts(numbers[k], exponent[k])
    return ordered_sum(numbers, count)


@njit(**FAST)
def power_minus_one(values, place, count, power, numbers, exponent):
    """Write x^power - 1 of all values x to ``numbers``, |power| at most 1.

    Accurate for small powers, too. Returns False if a value is not a positive normal number. With
    power log x = n log 2 + z, |z| at most log(2) / 2: n by adding a number so large that the sum
    is rounded to an integer, which is then in its last bits; exp(z) - 1 by its series.
    """
    if not split(values, place, count, numbers, exponent):
        return False
    bits = exponent.view(np.int64)
    for k in range(count):
        numbers[k] = power * log_of_parts(numbers[k], exponent[k])
        exponent[k] = numbers[k] * (1.0 / LOG_2) + ROUNDER
    for k in range(count):
        n = exponent[k] - ROUNDER
        z = numbers[k] - n * LOG_2_HIGH - n * LOG_2_LOW
        p = 1 / 6227020800
        p = p * z + 1 / 479001600
        p = p * z + 1 / 39916800
        p = p * z + 1 / 3628800
        p = p * z + 1 / 362880
        p = p * z + 1 / 40320
        p = p * z + 1 / 5040
        p = p * z + 1 / 720
        p = p * z + 1 / 120
        p = p * z + 1 / 24
        p = p * z + 1 / 6
        p = p * z + 1 / 2
        p = p * z + 1.0
        numbers[k] = p * z
    for k in range(count):
        bits[k] = (bits[k] - ROUNDER_BITS + 1023) << 52  # of 2^n
    for k in range(count):
        numbers[k] = exponent[k] * numbers[k] + (exponent[k] - 1.0)
    return True


@njit
def ordered_sum(numbers, count):
    """The sum of the first ``count`` numbers in a fixed order; clears the rest of the last lanes.

    The order that the compiler chooses can differ between code just compiled and code from the
    cache, and the last bits of an answer must not depend on that.
    """
    lanes = BYTES // numbers.itemsize
    width = -(-count // lanes) * lanes
    for k in range(count, width):
        numbers[k] = 0.0
    x, y = zeros_like(numbers), zeros_like(numbers)
    k = 0
    while k + 2 * lanes <= width:
        x, y = add(x, load(numbers, k)), add(y, load(numbers, k + lanes))
        k += 2 * lanes
    if k < width:
        x = add(x, load(numbers, k))
    return total(add(x, y))


@njit(**FAST)
def copy_chunk(kernel, bins, first, count, width, chunk):
    """Columns ``bins[first : first + count]`` of the kernel, side by side, padded with zeros."""
    for l in range(len(kernel)):
        for k in range(count):
            chunk[np.uint64(l * width + k)] = kernel[l, bins[np.uint64(first + k)]]
        for k in range(count, width):
            chunk[np.uint64(l * width + k)] = 0


@njit(**FAST)
def divide(weight, begin, count, width, u):
    """Replace u by a / u, zero beyond the bins."""
    for k in range(count):
        u[k] = weight[np.uint64(begin + k)] / u[k]
    for k in range(count, width):
        u[k] = 0


@njit(**FAST)
def update(weight, begin, count, state, place, ku, ku_place, numbers):
    """Replace v by b / (K u); return the marginal error before."""
    for e in range(count):
        b, old = weight[np.uint64(begin + e)], state[np.uint64(place + e)]
        product = ku[np.uint64(ku_place + e)]
        numbers[e] = abs(old * product - b)
        state[np.uint64(place + e)] = b / product
    return ordered_sum(numbers, count)


@njit(**FAST)
def divide_damped(weight, begin, count, width, u, power, numbers, exponent):
    """Replace u by a u^power / u, zero beyond the bins; return <a, u^power - 1>, or NaN."""
    if not power_minus_one(u, 0, count, power, numbers, exponent):
        return np.nan
    for k in range(count):
        a = weight[np.uint64(begin + k)]
        u[k] = (a + a * numbers[k]) / u[k]
        numbers[k] *= a
    for k in range(count, width):
        u[k] = 0
    return ordered_sum(numbers, count)


@njit(**FAST)
def update_damped(weight, begin, count, state, place, ku, ku_place, power, numbers, exponent):
    """Replace v by b x / (K u) with x = (K u)^power.

    Returns <b, x - 1>, NaN if out of range, and the sum of |v_old K u - b x|.
    """
    if not power_minus_one(ku, ku_place, count, power, numbers, exponent):
        return np.nan, np.inf
    for e in range(count):
        b, old = weight[np.uint64(begin + e)], state[np.uint64(place + e)]
        product = ku[np.uint64(ku_place + e)]
        mass = b + b * numbers[e]
        exponent[e] = abs(old * product - mass)
        state[np.uint64(place + e)] = mass / product
        numbers[e] *= b
    return ordered_sum(numbers, count), ordered_sum(exponent, count)


@njit
def aligned_zeros(count, dtype):
    """Zeros whose address is a multiple of the size of a vector."""
    raw = np.zeros(count + BYTES, dtype)
    shift = (-raw.ctypes.data % BYTES) // raw.itemsize
    return raw[shift : shift + count]


@njit
def multiply(matrix, vector, out):
    """Write matrix times vector to ``out``. BLAS would start more threads beside ours."""
    n, lanes = len(vector), BYTES // vector.itemsize
    for k in range(n):
        sums = zeros_like(vector)
        l = 0
        while l + lanes <= n:
            sums = multiply_add(load(matrix, k * n + l), load(vector, l), sums)
            l += lanes
        dot = total(sums)
        while l < n:
            dot += matrix[k, l] * vector[l]
            l += 1
        out[k] = dot
