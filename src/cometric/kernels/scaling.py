"""The inner loops of a Sinkhorn sweep, on contiguous vectors, Numba.

A chunk holds some columns of K = exp(-C / eps), copied side by side: row l starts at ``l * width``,
and ``width`` is a multiple of the lanes, padded with ones. ``rows[begin:end]`` are the bins of a
target, and its scalings start at ``place`` of their array.

These loops take nearly all of the time. Ranges are therefore passed as numbers, not as slices or
records, whose reference counts would be updated in every call. Computed indices are unsigned: for
signed ones, Numba checks for negative values, which prevents vectorization.
"""

import numpy as np

from cometric.kernels.compiling import BORROWED, njit
from cometric.kernels.simd import (
    BYTES,
    WHOLE,
    add,
    add_double,
    add_products,
    add_totals,
    distance,
    divide,
    item,
    load,
    log,
    mark_abnormal,
    multiply_add,
    spread,
    store,
    total,
    zeros,
    zeros_like,
)

# error_model: a division that may raise prevents vectorization of its loop
FAST = {"fastmath": {"contract", "nsz"}, "error_model": "numpy", **BORROWED}
# Without "contract": in a b + c d, either product may be fused with the sum, and copies of one
# function in several kernels may differ in this choice.
EXACT = {"error_model": "numpy", **BORROWED}
LOG_2 = float(np.log(2.0))
SMALLEST, LARGEST = 0x0010000000000000, 0x7FEFFFFFFFFFFFFF  # normal positive doubles, as bits
ROOT_HALF = 0x3FE6A09E667F3BCD  # sqrt(1/2), as bits
LOG_2_HIGH = float.fromhex("0x1.62e42feep-1")  # few digits: its products with integers are exact
LOG_2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
SLOWEST = 0.9
"""The largest convergence rate of errors that is extrapolated."""
TILE = 16
"""Entries of a row of K that are copied at a time."""
ONE, TWO, THREE = np.uint64(1), np.uint64(2), np.uint64(3)
ROUNDER, ROUNDER_BITS = 1.5 * 2.0**52, 0x4338000000000000


@njit(**FAST)
def combine_rows(chunk, rows, begin, end, v, place, out, width):
    """Write sum_l v_l chunk[l], the product K v on the bins of the chunk, to ``out``.

    Uses as many accumulators as registers can hold (12 vectors of 32 bytes), to hide latency; for
    the last few lanes, several rows at a time.
    """
    lanes = BYTES // chunk.itemsize
    zero = zeros_like(chunk)
    shift, k = place - begin, 0
    while k + 6 * lanes <= width:
        x0, x1, x2, x3, x4, x5 = zero, zero, zero, zero, zero, zero
        for e in range(begin, end):
            i, x = np.int64(item(rows, e)) * width + k, spread(item(v, e + shift))
            x0 = multiply_add(x, load(chunk, i), x0)
            x1 = multiply_add(x, load(chunk, i + lanes), x1)
            x2 = multiply_add(x, load(chunk, i + 2 * lanes), x2)
            x3 = multiply_add(x, load(chunk, i + 3 * lanes), x3)
            x4 = multiply_add(x, load(chunk, i + 4 * lanes), x4)
            x5 = multiply_add(x, load(chunk, i + 5 * lanes), x5)
        store(out, k, x0)
        store(out, k + lanes, x1)
        store(out, k + 2 * lanes, x2)
        store(out, k + 3 * lanes, x3)
        store(out, k + 4 * lanes, x4)
        store(out, k + 5 * lanes, x5)
        k += 6 * lanes
    while k + 3 * lanes <= width:
        x0, x1, x2, y0, y1, y2 = zero, zero, zero, zero, zero, zero
        e = begin
        while e < end:
            i, x = np.int64(item(rows, e)) * width + k, spread(item(v, e + shift))
            x0 = multiply_add(x, load(chunk, i), x0)
            x1 = multiply_add(x, load(chunk, i + lanes), x1)
            x2 = multiply_add(x, load(chunk, i + 2 * lanes), x2)
            e += 1
            if e < end:
                j, y = np.int64(item(rows, e)) * width + k, spread(item(v, e + shift))
                y0 = multiply_add(y, load(chunk, j), y0)
                y1 = multiply_add(y, load(chunk, j + lanes), y1)
                y2 = multiply_add(y, load(chunk, j + 2 * lanes), y2)
            e += 1
        store(out, k, add(x0, y0))
        store(out, k + lanes, add(x1, y1))
        store(out, k + 2 * lanes, add(x2, y2))
        k += 3 * lanes
    while k < width:
        x0, x1, x2, x3 = zero, zero, zero, zero
        e = begin
        while e + 4 <= end:
            i0, i1 = np.int64(item(rows, e)) * width, np.int64(item(rows, e + 1)) * width
            i2, i3 = np.int64(item(rows, e + 2)) * width, np.int64(item(rows, e + 3)) * width
            x0 = multiply_add(spread(item(v, e + shift)), load(chunk, i0 + k), x0)
            x1 = multiply_add(spread(item(v, e + shift + 1)), load(chunk, i1 + k), x1)
            x2 = multiply_add(spread(item(v, e + shift + 2)), load(chunk, i2 + k), x2)
            x3 = multiply_add(spread(item(v, e + shift + 3)), load(chunk, i3 + k), x3)
            e += 4
        while e < end:
            i0 = np.int64(item(rows, e)) * width + k
            x0 = multiply_add(spread(item(v, e + shift)), load(chunk, i0), x0)
            e += 1
        store(out, k, add(add(x0, x1), add(x2, x3)))
        k += lanes


@njit(**FAST)
def project_rows(chunk, rows, begin, end, u, out, place, width):
    """Add <chunk[l], u>, the part of K u from the bins of the chunk, to each ``out_l``.

    Four rows at a time, or eight for float64 if registers hold whole vectors, to hide the latency
    of additions. Both ``rows`` and ``out`` are padded to a multiple of eight. The sum of a row does
    not depend on the number of rows.
    """
    lanes = BYTES // chunk.itemsize
    wide = WHOLE and lanes == 8  # in float32, adding up lanes costs more than latency does
    zero = zeros_like(chunk)
    shift = place - begin
    for e in range(begin, end, 8 if wide else 4):
        i0, i1 = np.int64(item(rows, e)) * width, np.int64(item(rows, e + 1)) * width
        i2, i3 = np.int64(item(rows, e + 2)) * width, np.int64(item(rows, e + 3)) * width
        i4, i5, i6, i7 = i0, i1, i2, i3
        d0, d1, d2, d3 = zero, zero, zero, zero
        d4, d5, d6, d7 = zero, zero, zero, zero  # defined even if unused, for type inference
        if wide:
            i4, i5 = np.int64(item(rows, e + 4)) * width, np.int64(item(rows, e + 5)) * width
            i6, i7 = np.int64(item(rows, e + 6)) * width, np.int64(item(rows, e + 7)) * width
        for k in range(0, width, lanes):
            y = load(u, k)
            d0 = multiply_add(y, load(chunk, i0 + k), d0)
            d1 = multiply_add(y, load(chunk, i1 + k), d1)
            d2 = multiply_add(y, load(chunk, i2 + k), d2)
            d3 = multiply_add(y, load(chunk, i3 + k), d3)
            if wide:
                d4 = multiply_add(y, load(chunk, i4 + k), d4)
                d5 = multiply_add(y, load(chunk, i5 + k), d5)
                d6 = multiply_add(y, load(chunk, i6 + k), d6)
                d7 = multiply_add(y, load(chunk, i7 + k), d7)
        add_totals(out, e + shift, d0, d1, d2, d3)
        if wide:
            add_totals(out, e + shift + 4, d4, d5, d6, d7)


@njit(**FAST)
def divide_lanes(mass, begin, u, width):
    """Replace u by a / u; return <a, log u>, or NaN if a u is not a positive normal number.

    Beyond its bins ``mass`` is zero and u positive, up to whole lanes.
    """
    lanes = BYTES // u.itemsize
    marks, sums = zeros_like(u), zeros(np.float64)
    for k in range(0, width, lanes):
        a = load(mass, begin + k)
        x = divide(a, load(u, k))
        store(u, k, x)
        marks = mark_abnormal(marks, x, a)
        sums = add_products(sums, a, log(x))
    return total(sums) if total(marks) == 0 else np.nan


@njit(**FAST)
def update(mass, begin, count, state, place, ku, ku_place, tail):
    """Replace v by b / (K u); return <b, log v> and the marginal error before.

    The first is NaN if a v is not a positive normal number. ``mass`` is padded with zeros to whole
    lanes; ``state`` is not, so its last bins are read and written through ``tail``.
    """
    lanes = BYTES // ku.itemsize
    marks, sums, errors = zeros_like(ku), zeros(np.float64), zeros(np.float64)
    for e in range(0, count, lanes):
        b, product = load(mass, begin + e), load(ku, ku_place + e)
        v = divide(b, product)
        rest = count - e
        if rest >= lanes:
            errors = add_double(errors, distance(load(state, place + e), product, b))
            store(state, place + e, v)
        else:
            for k in range(lanes):
                tail[k] = state[np.uint64(place + e + k)] if k < rest else 0
            errors = add_double(errors, distance(load(tail, 0), product, b))
            store(tail, 0, v)
            for k in range(rest):
                state[np.uint64(place + e + k)] = tail[k]
        marks = mark_abnormal(marks, v, b)
        sums = add_products(sums, b, log(v))
    return total(sums) if total(marks) == 0 else np.nan, total(errors)


@njit(**EXACT)
def next_rate(rate, before, error):
    """The convergence rate of errors after a sweep; zero or negative if unknown.

    If ``rate`` is positive, an extrapolation took place. The error of the next sweep (marked -1)
    cannot be compared with the one before.
    """
    if rate > 0.0:
        return -1.0
    if rate < 0.0 or not before < np.inf:
        return 0.0
    falling = error / before
    return min(falling, SLOWEST) if 0.0 < falling < 1.0 else 0.0


@njit(**EXACT)
def extrapolations(mass, begin, count, state, place, ku, ku_place, rate, factor):
    """Write x^(rate / (1 - rate)), with x = b / (v K u) and the old v, to ``factor``.

    If all errors fell by ``rate`` in every sweep, b / (K u) times this would be the solution. The
    power is approximate and clipped: sweeps correct it.
    """
    weight = rate / (1.0 - rate)
    for e in range(count):
        product = state[np.uint64(place + e)] * ku[np.uint64(ku_place + e)]
        growth = np.float64(mass[np.uint64(begin + e)]) / np.float64(product) - 1.0
        x = min(max(growth, -0.5), 1.0)
        power = weight * x * (6.0 + x) / (6.0 + 4.0 * x)  # log(1 + x)
        y = min(max(power, -1.0), 1.0)
        factor[e] = 1.0 + y * (1.0 + y * (0.5 + y * (1 / 6 + y * (1 / 24))))


@njit(**EXACT)
def multiply_by(state, place, count, factor):
    """Multiply scalings by the factors."""
    for e in range(count):
        state[np.uint64(place + e)] *= factor[e]


@njit(**EXACT)
def split(values, place, count, numbers, exponent):
    """Write values = m 2^e as m in [sqrt 1/2, sqrt 2) to ``numbers`` and e to ``exponent``.

    Returns False if a value is not a positive normal number; the outputs are then invalid.
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


@njit(**EXACT)
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


@njit(**EXACT)
def power_minus_one(values, place, count, power, numbers, exponent):
    """Write x^power - 1 of all values x to ``numbers``, |power| at most 1.

    Accurate for small powers, too. Returns False if a value is not a positive normal number. Uses
    power log x = n log 2 + z, |z| at most log(2) / 2. Adding a large number rounds to the integer
    n, in the last bits of the sum; exp(z) - 1 is computed by its series.
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

    The compiler's order can differ between newly compiled and cached code; the last bits of a
    result must not depend on it.
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
    """Columns ``bins[first : first + count]`` of the kernel, side by side, padded with ones.

    The kernel is symmetric, so its contiguous rows are read instead, four at a time, in tiles of
    ``TILE`` entries, so that the output stays in the cache.
    """
    d = len(kernel)
    for top in range(0, d, TILE):
        bottom = min(top + TILE, d)
        k = 0
        while k + 4 <= count:
            r0, r1 = np.uint64(item(bins, first + k)), np.uint64(item(bins, first + k + 1))
            r2, r3 = np.uint64(item(bins, first + k + 2)), np.uint64(item(bins, first + k + 3))
            for l in range(np.uint64(top), np.uint64(bottom)):
                i = np.uint64(l * width + k)
                chunk[i] = kernel[r0, l]
                chunk[i + ONE] = kernel[r1, l]
                chunk[i + TWO] = kernel[r2, l]
                chunk[i + THREE] = kernel[r3, l]
            k += 4
        while k < count:
            row = np.uint64(item(bins, first + k))
            for l in range(np.uint64(top), np.uint64(bottom)):
                chunk[np.uint64(l * width + k)] = kernel[row, l]
            k += 1
        for l in range(top, bottom):
            for k in range(count, width):
                chunk[np.uint64(l * width + k)] = 1


@njit(**EXACT)
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


@njit(**EXACT)
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


@njit(**BORROWED)
def multiply(matrix, vector, out):
    """Write matrix times vector to ``out``. BLAS would start threads in addition to ours.

    Four rows at a time, to hide the latency of additions; the order of each sum is the same.
    """
    n, lanes = len(vector), BYTES // vector.itemsize
    whole = n // lanes * lanes
    for k in range(0, n, 4):
        k1, k2, k3 = min(k + 1, n - 1), min(k + 2, n - 1), min(k + 3, n - 1)
        s0, s1, s2, s3 = (
            zeros_like(vector), zeros_like(vector), zeros_like(vector), zeros_like(vector)
        )  # fmt: skip
        for l in range(0, whole, lanes):
            x = load(vector, l)
            s0 = multiply_add(load(matrix, k * n + l), x, s0)
            s1 = multiply_add(load(matrix, k1 * n + l), x, s1)
            s2 = multiply_add(load(matrix, k2 * n + l), x, s2)
            s3 = multiply_add(load(matrix, k3 * n + l), x, s3)
        d0, d1, d2, d3 = total(s0), total(s1), total(s2), total(s3)
        for l in range(whole, n):
            d0 += matrix[k, l] * vector[l]
            d1 += matrix[k1, l] * vector[l]
            d2 += matrix[k2, l] * vector[l]
            d3 += matrix[k3, l] * vector[l]
        out[k3], out[k2], out[k1], out[k] = d3, d2, d1, d0
