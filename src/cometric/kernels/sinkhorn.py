"""Entropic transport costs for all pairs of histograms under one shared cost, Numba.

Conventions
-----------
Histograms are CSR rows ``indptr``, ``bins``, ``weight``; a bin without mass does not exist. The
pairs of source i are ``start[i] : start[i + 1]`` with the other histogram in ``target``. The
second scaling of pair p (v, or log v in the log domain) lives in ``room[p] : room[p + 1]`` of
``state`` between calls: one sweep after a small change of the cost is then worth a full solve.

A sweep is u = a / (K v), v = b / (K u), with K = exp(-C / eps) and eps absolute. After it the
columns of the plan u K v are exact, so that its dual value, a lower bound of the cost, is

    eps (<a, log u> + <b, log v>)      (entropy <P, log P>),

and the error reported is that of the columns just before v was updated, with exact rows.

For one source, the columns of K that its bins select are copied side by side, in chunks narrow
enough to stay in the cache. All its pairs run on contiguous rows of a chunk: no gathers, and as
few operations as the supports allow. Sources should be the larger histograms of their pairs:
``state`` holds the targets, and long rows are the quicker ones.

Validation belongs to the map that calls us.
"""

import numpy as np
from numba import njit, prange

from cometric.kernels.lanes import BYTES, add, load, multiply_add, spread, store, total, zeros_like
from cometric.kernels.launching import check_finished, parallel

# error_model: a division that may raise keeps its loop from being vectorized
FAST = {"fastmath": {"contract", "nsz"}, "error_model": "numpy"}
CHUNK_BYTES = 800_000  # of K at a time: most of the second-level cache of one core
LOG_2 = float(np.log(2.0))
SMALLEST, LARGEST = 0x0010000000000000, 0x7FEFFFFFFFFFFFFF  # normal positive doubles, as bits
ROOT_HALF = 0x3FE6A09E667F3BCD  # sqrt(1/2), as bits


# -------------------------------------------------------------------------- scaling form


@njit(cache=True, **FAST)
def _combine(chunk, rows, begin, end, v, place, out, width):
    """Write sum_l v_l chunk[l] to ``out``: the product K v on the bins of the chunk."""
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


@njit(cache=True, **FAST)
def _project(chunk, rows, begin, end, u, out, place, width):
    """out_l += <chunk[l], u>: the part of K u that the bins of the chunk give."""
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


@njit(cache=True, **FAST)
def _mean_log(weight, begin, values, place, count, numbers, exponent):
    """<weight, log values>, or NaN where a value is not a positive, normal number.

    With x = m 2^e, m in [sqrt 1/2, sqrt 2), and log m by the series of artanh: this vectorizes,
    unlike log.
    """
    bits = numbers.view(np.int64)
    for k in range(count):
        numbers[k] = values[np.uint64(place + k)]
    low, high = bits[0], bits[0]
    for k in range(count):
        low, high = min(low, bits[k]), max(high, bits[k])
    if low < SMALLEST or high > LARGEST:
        return np.nan
    for k in range(count):
        e = (bits[k] - ROOT_HALF) >> 52
        bits[k] -= e << 52
        exponent[k] = e
    for k in range(count):
        f = (numbers[k] - 1.0) / (numbers[k] + 1.0)
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
        numbers[k] = weight[np.uint64(begin + k)] * (2.0 * f * p + LOG_2 * exponent[k])
    return _total(numbers, count)


@njit(cache=True)
def _total(numbers, count):
    """The sum of the first numbers, in an order of our own; the lanes after them are cleared.

    The compiler's order is not the same in code just compiled and in code from the cache, and
    the last bits of an answer must not depend on that.
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


@njit(cache=True, **FAST)
def _copy_chunk(kernel, bins, first, count, width, chunk):
    """Columns ``bins[first : first + count]`` of the kernel, side by side, padded with zeros."""
    for l in range(len(kernel)):
        for k in range(count):
            chunk[np.uint64(l * width + k)] = kernel[l, bins[np.uint64(first + k)]]
        for k in range(count, width):
            chunk[np.uint64(l * width + k)] = 0


@njit(cache=True, **FAST)
def _divide(weight, begin, count, width, u):
    """Replace u by a / u, zero beyond the bins."""
    for k in range(count):
        u[k] = weight[np.uint64(begin + k)] / u[k]
    for k in range(count, width):
        u[k] = 0


@njit(cache=True, **FAST)
def _update(weight, begin, count, state, place, ku, ku_place, numbers):
    """Replace v by b / (K u); return the error that the columns had before."""
    for e in range(count):
        b, old = weight[np.uint64(begin + e)], state[np.uint64(place + e)]
        product = ku[np.uint64(ku_place + e)]
        numbers[e] = abs(old * product - b)
        state[np.uint64(place + e)] = b / product
    return _total(numbers, count)


@njit(cache=True)
def _aligned(count, dtype):
    """Zeros whose address is a multiple of the lanes' size."""
    raw = np.zeros(count + BYTES, dtype)
    shift = (-raw.ctypes.data % BYTES) // raw.itemsize
    return raw[shift : shift + count]


@njit(cache=True)
def _sweep_source(
    histograms, kernel, i, active, target, state, room, values, errors, chunk, u, ku, logs
):
    """One sweep of the pairs ``active`` of source i."""
    indptr, bins, weight = histograms
    numbers, exponent = logs
    lanes = BYTES // kernel.itemsize
    first_room = room[active[0]]
    ku[: room[active[-1] + 1] - first_room] = 0
    values[active] = 0.0
    size = indptr[i + 1] - indptr[i]
    pieces = -(-size // len(u))
    piece = -(-size // pieces)
    for first in range(indptr[i], indptr[i + 1], piece):
        count = min(piece, indptr[i + 1] - first)
        width = -(-count // lanes) * lanes
        _copy_chunk(kernel, bins, first, count, width, chunk)
        for p in active:
            begin, end = indptr[target[p]], indptr[target[p] + 1]
            _combine(chunk, bins, begin, end, state, room[p], u, width)
            _divide(weight, first, count, width, u)
            _project(chunk, bins, begin, end, u, ku, room[p] - first_room, width)
            values[p] += _mean_log(weight, first, u, 0, count, numbers, exponent)
    for p in active:
        begin, count = indptr[target[p]], indptr[target[p] + 1] - indptr[target[p]]
        errors[p] = _update(weight, begin, count, state, room[p], ku, room[p] - first_room, numbers)
        values[p] += _mean_log(weight, begin, state, room[p], count, numbers, exponent)
        if not (np.isfinite(values[p]) and np.isfinite(errors[p])):
            values[p], errors[p] = np.nan, np.inf


@parallel
def sweep(
    indptr, bins, weight, kernel, start, target, state, room, values, errors, sweeps, tol, tasks
):
    """Sweep the pairs whose error exceeds ``tol`` until it no longer does, ``sweeps`` at most.

    Sets ``values``, the dual value over eps, and ``errors``, the marginal error, of these pairs.
    ``kernel`` and ``state`` have the precision to work in; values are summed in float64. A pair
    whose scalings leave the range of numbers gets the value NaN and an infinite error.
    """
    sources = len(start) - 1
    d = len(kernel)
    lanes = BYTES // kernel.itemsize
    largest = np.max(indptr[1:] - indptr[:-1])
    widest = max(1, min(CHUNK_BYTES // (BYTES * d), -(-largest // lanes))) * lanes
    most_pairs, most_room = 0, 0
    for i in range(sources):
        most_pairs = max(most_pairs, start[i + 1] - start[i])
        most_room = max(most_room, room[start[i + 1]] - room[start[i]])
    histograms = (indptr, bins, weight)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        chunk, u = _aligned(d * widest, kernel.dtype), _aligned(widest, kernel.dtype)
        ku = np.empty(most_room, kernel.dtype)
        logs = (np.empty(largest + BYTES), np.empty(largest))  # the first with room for lanes
        pairs = np.empty(most_pairs, np.int64)
        for i in range(task, sources, tasks):
            for _ in range(sweeps):
                count = 0
                for p in range(start[i], start[i + 1]):
                    if errors[p] > tol and not np.isnan(values[p]):
                        pairs[count] = p
                        count += 1
                if count == 0:
                    break
                _sweep_source(
                    histograms, kernel, i, pairs[:count], target, state, room, values, errors,
                    chunk, u, ku, logs,
                )  # fmt: skip
        finished[task] = True
    check_finished(finished)
    return values, errors


@parallel
def copy_scalings(indptr, scaling, target, room, state):
    """Each pair's part of ``state`` becomes its target's part of ``scaling``."""
    for p in prange(len(target)):
        begin = indptr[target[p]]
        for e in range(room[p + 1] - room[p]):
            state[room[p] - room[0] + e] = scaling[begin + e]


@njit(cache=True)
def _multiply(matrix, vector, out):
    """Write matrix times vector to ``out``. BLAS would start threads of its own beside ours."""
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


@njit(cache=True)
def _self_term(bins, a, kernel, u, sweeps, tol):
    s = len(a)
    local, ku = np.empty((s, s)), np.empty(s)
    for k in range(s):
        for l in range(s):
            local[k, l] = kernel[bins[k], bins[l]]
    _multiply(local, u, ku)
    error, done = np.inf, 0
    while done < sweeps and error > tol:
        for k in range(s):
            u[k] = np.sqrt(u[k] * a[k] / ku[k])
        _multiply(local, u, ku)
        error = np.sum(np.abs(u * ku - a))
        done += 1
    value = 2.0 * np.sum(a * np.log(u)) + 1.0 - np.sum(u * ku)
    return value, error if np.isfinite(value) else np.inf


@parallel
def self_terms(indptr, bins, weight, kernel, scaling, sweeps, tol, tasks):
    """Cost over eps of every histogram to itself, by the symmetric fixed point u = a / (K u).

    ``scaling``, beside ``weight``, holds u between calls. The geometric mean of u and a / (K u)
    converges fast where the alternating updates oscillate.
    """
    n = len(indptr) - 1
    values, errors = np.empty(n), np.empty(n)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        for i in range(task, n, tasks):
            own = slice(indptr[i], indptr[i + 1])
            values[i], errors[i] = _self_term(
                bins[own], weight[own], kernel, scaling[own], sweeps, tol
            )
        finished[task] = True
    check_finished(finished)
    return values, errors


# ---------------------------------------------------------------------------- log domain


@njit(cache=True)
def _logarithms(weight):
    """On their own: an array expression in a parallel kernel makes Numba warn users."""
    return np.log(weight)


@njit(cache=True)
def _soft_minimum(log_mass, bins, begin, end, others, other_begin, other_end, potential, cost, out):
    """Write log_mass - log sum_l exp(potential_l - cost_kl) to ``out``, safe from overflow."""
    for k in range(begin, end):
        row = cost[bins[k]]
        top = -np.inf
        for l in range(other_begin, other_end):
            top = max(top, potential[l - other_begin] - row[others[l]])
        total = 0.0
        for l in range(other_begin, other_end):
            total += np.exp(potential[l - other_begin] - row[others[l]] - top)
        out[k - begin] = log_mass[k] - top - np.log(total)


@parallel
def sweep_log(
    indptr, bins, weight, cost, start, target, state, room, values, errors, sweeps, tol, tasks
):
    """The same as :func:`sweep` with log u and log v: slower, safe for every eps.

    ``cost`` is C / eps and ``state`` holds log v.
    """
    log_weight = _logarithms(weight)
    largest = np.max(indptr[1:] - indptr[:-1])
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        log_u, log_v = np.empty(largest), np.empty(largest)
        for i in range(task, len(start) - 1, tasks):
            a, a_end = indptr[i], indptr[i + 1]
            for p in range(start[i], start[i + 1]):
                if errors[p] <= tol:
                    continue
                b, b_end = indptr[target[p]], indptr[target[p] + 1]
                own = state[room[p] : room[p + 1]]
                error, done = np.inf, 0
                while done < sweeps and error > tol:
                    _soft_minimum(log_weight, bins, a, a_end, bins, b, b_end, own, cost, log_u)
                    _soft_minimum(log_weight, bins, b, b_end, bins, a, a_end, log_u, cost, log_v)
                    error = 0.0
                    for e in range(b_end - b):
                        # v K u against b: old v times the b / v that the update divided by
                        error += abs(np.expm1(own[e] - log_v[e])) * weight[b + e]
                        own[e] = log_v[e]
                    done += 1
                value = 0.0
                for k in range(a_end - a):
                    value += weight[a + k] * log_u[k]
                for e in range(b_end - b):
                    value += weight[b + e] * own[e]
                values[p], errors[p] = value, error
        finished[task] = True
    check_finished(finished)
    return values, errors


@parallel
def self_terms_log(indptr, bins, weight, cost, scaling, sweeps, tol, tasks):
    """The same as :func:`self_terms` with log u in ``scaling``; ``cost`` is C / eps."""
    n = len(indptr) - 1
    values, errors = np.empty(n), np.empty(n)
    log_weight = _logarithms(weight)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        for i in range(task, n, tasks):
            a, a_end = indptr[i], indptr[i + 1]
            own = scaling[a:a_end]
            image = np.empty(a_end - a)
            error, done = np.inf, 0
            while True:
                _soft_minimum(log_weight, bins, a, a_end, bins, a, a_end, own, cost, image)
                error, excess = 0.0, 0.0
                for k in range(a_end - a):
                    lack = np.expm1(own[k] - image[k]) * weight[a + k]  # u K u - a
                    error += abs(lack)
                    excess += lack
                if done >= sweeps or error <= tol:
                    break
                for k in range(a_end - a):
                    own[k] = 0.5 * (own[k] + image[k])
                done += 1
            value = -excess
            for k in range(a_end - a):
                value += 2.0 * weight[a + k] * own[k]
            values[i], errors[i] = value, error
        finished[task] = True
    check_finished(finished)
    return values, errors


@njit(cache=True)
def _bracket(log_u, log_v, a, b, cost):
    """Bounds of one pair; ``cost`` is its own part of C / eps.

    ``size`` adds up what was rounded: the terms of both sums, the exponents of the plan, and the
    marginals of the rounded plan, which any cost may multiply.
    """
    plan = np.exp(log_u.reshape(-1, 1) + log_v - cost)
    value = 1.0 + np.sum(a * log_u) + np.sum(b * log_v) - np.sum(plan)
    size = 1.0 + np.sum(np.abs(a * log_u)) + np.sum(np.abs(b * log_v)) + np.max(cost)
    size += np.sum(plan * (1.0 + np.abs(log_u).reshape(-1, 1) + np.abs(log_v) + cost))
    for k in range(len(a)):
        plan[k] *= min(1.0, a[k] / max(np.sum(plan[k]), 1e-300))
    for l in range(len(b)):
        plan[:, l] *= min(1.0, b[l] / max(np.sum(plan[:, l]), 1e-300))
    rows = np.maximum(a - np.sum(plan, axis=1), 0.0)
    columns = np.maximum(b - np.sum(plan, axis=0), 0.0)
    missing = np.sum(rows)
    total = 0.0
    for k in range(len(a)):
        for l in range(len(b)):
            x = plan[k, l]
            if missing > 0.0:
                x += rows[k] * columns[l] / missing
            if x > 0.0:
                total += x * (cost[k, l] + np.log(x))
                size += x * (cost[k, l] + abs(np.log(x)))
    slack = 2.0**-48 * size
    return value - slack, total + slack


@parallel
def brackets(indptr, bins, weight, cost, start, target, state, room, tasks):
    """Proved bounds of each pair's cost over eps, from any log v in ``state``.

    Below: the dual value <a, log u> + <b, log v> + 1 - sum P of the plan P = u K v. Above: the
    entropic cost of that plan rounded to the marginals. Both are widened by their rounding.
    """
    lower, upper = np.empty(len(target)), np.empty(len(target))
    log_weight = _logarithms(weight)
    largest = 0
    for i in range(len(indptr) - 1):
        largest = max(largest, indptr[i + 1] - indptr[i])
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        log_u = np.empty(largest)
        for i in range(task, len(start) - 1, tasks):
            a, s = indptr[i], indptr[i + 1] - indptr[i]
            for p in range(start[i], start[i + 1]):
                b, t = indptr[target[p]], indptr[target[p] + 1] - indptr[target[p]]
                log_v = state[room[p] : room[p + 1]]
                _soft_minimum(log_weight, bins, a, a + s, bins, b, b + t, log_v, cost, log_u)
                local = np.empty((s, t))
                for k in range(s):
                    for l in range(t):
                        local[k, l] = cost[bins[a + k], bins[b + l]]
                lower[p], upper[p] = _bracket(
                    log_u[:s], log_v, weight[a : a + s], weight[b : b + t], local
                )
        finished[task] = True
    check_finished(finished)
    return lower, upper
