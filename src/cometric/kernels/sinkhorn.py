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

For one source, the columns of K that its bins select are copied side by side once, padded to
whole vectors. All its pairs then run on contiguous rows of that block: no gathers, and as few
operations as the supports allow.

Validation belongs to the map that calls us; this file imports no other kernel.
"""

import numpy as np
from numba import njit, prange

from cometric.kernels import PARALLEL

FAST = {"reassoc", "contract", "nsz", "arcp"}
LANES = 16
LOG_2 = float(np.log(2.0))


# -------------------------------------------------------------------------- scaling form


@njit(cache=True, fastmath=FAST)
def _apply(block, rows, begin, end, v, offset, out, width):
    """Out = sum_l v_l block[l]: the product K v on the bins of the source, four rows at once."""
    for k in range(width):
        out[k] = 0
    e = begin
    while e + 4 <= end:
        r0, r1 = block[rows[e]], block[rows[e + 1]]
        r2, r3 = block[rows[e + 2]], block[rows[e + 3]]
        p = offset + e - begin
        x0, x1, x2, x3 = v[p], v[p + 1], v[p + 2], v[p + 3]
        for k in range(width):
            out[k] += x0 * r0[k] + x1 * r1[k] + x2 * r2[k] + x3 * r3[k]
        e += 4
    while e < end:
        row, x = block[rows[e]], v[offset + e - begin]
        for k in range(width):
            out[k] += x * row[k]
        e += 1


@njit(cache=True, fastmath=FAST)
def _project(block, rows, begin, end, u, out, width):
    """out_l = <block[l], u>: the product K u on the bins of the target, four rows at once."""
    e = begin
    while e + 4 <= end:
        r0, r1 = block[rows[e]], block[rows[e + 1]]
        r2, r3 = block[rows[e + 2]], block[rows[e + 3]]
        zero = u[0] * 0
        d0, d1, d2, d3 = zero, zero, zero, zero
        for k in range(width):
            y = u[k]
            d0 += y * r0[k]
            d1 += y * r1[k]
            d2 += y * r2[k]
            d3 += y * r3[k]
        p = e - begin
        out[p], out[p + 1], out[p + 2], out[p + 3] = d0, d1, d2, d3
        e += 4
    while e < end:
        row = block[rows[e]]
        dot = u[0] * 0
        for k in range(width):
            dot += u[k] * row[k]
        out[e - begin] = dot
        e += 1


@njit(cache=True, fastmath=FAST)
def _split(bits, mantissa, exponent, count):
    """X = m 2^e with m in [sqrt 1/2, sqrt 2), from and to the bits of doubles."""
    for k in range(count):
        e = (bits[k] - 0x3FE6A09E667F3BCD) >> 52
        mantissa[k] = bits[k] - (e << 52)
        exponent[k] = e


@njit(cache=True, fastmath=FAST)
def _weighted_log(weight, mantissa, exponent, count):
    """sum_k weight_k log(m_k 2^e_k) by the series of artanh; vectorizes, unlike log."""
    total = 0.0
    for k in range(count):
        f = (mantissa[k] - 1.0) / (mantissa[k] + 1.0)
        z = f * f
        p = 1 / 23
        p = p * z + 1 / 21
        p = p * z + 1 / 19
        p = p * z + 1 / 17
        p = p * z + 1 / 15
        p = p * z + 1 / 13
        p = p * z + 1 / 11
        p = p * z + 1 / 9
        p = p * z + 1 / 7
        p = p * z + 1 / 5
        p = p * z + 1 / 3
        p = p * z + 1.0
        total += weight[k] * (2.0 * f * p + LOG_2 * exponent[k])
    return total


@njit(cache=True)
def _mean_log(weight, values, doubles, mantissa, exponent, count):
    """<weight, log values>, the values positive and not subnormal."""
    for k in range(count):
        doubles[k] = values[k]
    _split(doubles.view(np.int64), mantissa, exponent, count)
    return _weighted_log(weight, mantissa.view(np.float64), exponent, count)


@njit(cache=True)
def _usable(values, count):
    """Whether all are positive and finite."""
    for k in range(count):
        if not 0.0 < values[k] < np.inf:
            return False
    return True


@njit(parallel=PARALLEL, cache=True)
def sweep(indptr, bins, weight, kernel, start, target, state, room, sweeps, tol, tasks):
    """Sweeps of all pairs: dual value over eps, and marginal error, of each.

    At least one sweep, then more until the error is at most ``tol``, ``sweeps`` at most.
    ``kernel`` and ``state`` have the precision to work in; values are summed in float64. A pair
    whose scalings leave the range of numbers reports an infinite error.
    """
    sources = len(start) - 1
    values, errors = np.empty(len(target)), np.empty(len(target))
    d = len(kernel)
    largest = 1
    for i in range(len(indptr) - 1):
        largest = max(largest, indptr[i + 1] - indptr[i])
    room_for = (largest + LANES - 1) // LANES * LANES
    for task in prange(tasks):
        block = np.zeros((d, room_for), kernel.dtype)
        a, kv = np.zeros(room_for, kernel.dtype), np.zeros(room_for, kernel.dtype)
        u, ku = np.zeros(room_for, kernel.dtype), np.zeros(room_for, kernel.dtype)
        v = np.zeros(room_for, kernel.dtype)
        doubles, exponent = np.ones(room_for), np.zeros(room_for)
        mantissa = np.zeros(room_for, np.int64)
        for i in range(task, sources, tasks):
            if start[i] == start[i + 1]:
                continue
            first, s = indptr[i], indptr[i + 1] - indptr[i]
            width = (s + LANES - 1) // LANES * LANES
            for l in range(d):
                row = kernel[l]
                for k in range(s):
                    block[l, k] = row[bins[first + k]]
                for k in range(s, width):
                    block[l, k] = 0
            for k in range(s):
                a[k] = weight[first + k]
            for k in range(s, width):
                u[k] = 0
            for p in range(start[i], start[i + 1]):
                begin, end = indptr[target[p]], indptr[target[p] + 1]
                t = end - begin
                error = np.inf
                done = 0
                while done < sweeps and (done == 0 or error > tol):
                    _apply(block, bins, begin, end, state, room[p], kv, width)
                    for k in range(s):
                        u[k] = a[k] / kv[k]
                    _project(block, bins, begin, end, u, ku, width)
                    error = 0.0
                    for e in range(t):
                        b, old = weight[begin + e], state[room[p] + e]
                        error += abs(old * ku[e] - b)
                        state[room[p] + e] = b / ku[e]
                    done += 1
                for e in range(t):
                    v[e] = state[room[p] + e]
                if _usable(u, s) and _usable(v, t) and error < np.inf:
                    values[p] = _mean_log(
                        weight[first : first + s], u, doubles, mantissa, exponent, s
                    ) + _mean_log(weight[begin:end], v, doubles, mantissa, exponent, t)
                    errors[p] = error
                else:
                    values[p] = np.nan
                    errors[p] = np.inf
    return values, errors


@njit(cache=True)
def _self_term(bins, a, kernel, u, sweeps, tol):
    s = len(a)
    local = np.empty((s, s))
    for k in range(s):
        for l in range(s):
            local[k, l] = kernel[bins[k], bins[l]]
    ku = np.dot(local, u)
    error, done = np.inf, 0
    while done < sweeps and error > tol:
        for k in range(s):
            u[k] = np.sqrt(u[k] * a[k] / ku[k])
        ku = np.dot(local, u)
        error = np.sum(np.abs(u * ku - a))
        done += 1
    value = 2.0 * np.sum(a * np.log(u)) + 1.0 - np.sum(u * ku)
    return value, error if np.isfinite(value) else np.inf


@njit(parallel=PARALLEL, cache=True)
def self_terms(indptr, bins, weight, kernel, scaling, sweeps, tol, tasks):
    """Cost over eps of every histogram to itself, by the symmetric fixed point u = a / (K u).

    ``scaling``, beside ``weight``, holds u between calls. The geometric mean of u and a / (K u)
    converges fast where the alternating updates oscillate.
    """
    n = len(indptr) - 1
    values, errors = np.empty(n), np.empty(n)
    for task in prange(tasks):
        for i in range(task, n, tasks):
            own = slice(indptr[i], indptr[i + 1])
            values[i], errors[i] = _self_term(
                bins[own], weight[own], kernel, scaling[own], sweeps, tol
            )
    return values, errors


# ---------------------------------------------------------------------------- log domain


@njit(cache=True)
def _update(log_mass, bins, begin, end, others, other_begin, other_end, potential, cost, out):
    """Out = log_mass - log sum_l exp(potential_l - cost_kl), the larger terms first."""
    for k in range(begin, end):
        row = cost[bins[k]]
        top = -np.inf
        for l in range(other_begin, other_end):
            top = max(top, potential[l - other_begin] - row[others[l]])
        total = 0.0
        for l in range(other_begin, other_end):
            total += np.exp(potential[l - other_begin] - row[others[l]] - top)
        out[k - begin] = log_mass[k] - top - np.log(total)


@njit(parallel=PARALLEL, cache=True)
def sweep_log(indptr, bins, weight, cost, start, target, state, room, sweeps, tol, tasks):
    """The same as :func:`sweep` with log u and log v: slower, safe for every eps.

    ``cost`` is C / eps and ``state`` holds log v.
    """
    values, errors = np.empty(len(target)), np.empty(len(target))
    log_weight = np.log(weight)
    largest = 0
    for i in range(len(indptr) - 1):
        largest = max(largest, indptr[i + 1] - indptr[i])
    for task in prange(tasks):
        log_u, log_v = np.empty(largest), np.empty(largest)
        for i in range(task, len(start) - 1, tasks):
            a, a_end = indptr[i], indptr[i + 1]
            for p in range(start[i], start[i + 1]):
                b, b_end = indptr[target[p]], indptr[target[p] + 1]
                own = state[room[p] : room[p + 1]]
                error, done = np.inf, 0
                while done < sweeps and (done == 0 or error > tol):
                    _update(log_weight, bins, a, a_end, bins, b, b_end, own, cost, log_u)
                    _update(log_weight, bins, b, b_end, bins, a, a_end, log_u, cost, log_v)
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
    return values, errors


@njit(parallel=PARALLEL, cache=True)
def self_terms_log(indptr, bins, weight, cost, scaling, sweeps, tol, tasks):
    """The same as :func:`self_terms` with log u in ``scaling``; ``cost`` is C / eps."""
    n = len(indptr) - 1
    values, errors = np.empty(n), np.empty(n)
    log_weight = np.log(weight)
    for task in prange(tasks):
        for i in range(task, n, tasks):
            a, a_end = indptr[i], indptr[i + 1]
            own = scaling[a:a_end]
            image = np.empty(a_end - a)
            error, done = np.inf, 0
            while True:
                _update(log_weight, bins, a, a_end, bins, a, a_end, own, cost, image)
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
    return values, errors


@njit(cache=True)
def _bracket(log_u, log_v, a, b, cost):
    """Bounds of one pair; ``cost`` is its own part of C / eps."""
    plan = np.exp(log_u.reshape(-1, 1) + log_v - cost)
    value = 1.0 + np.sum(a * log_u) + np.sum(b * log_v) - np.sum(plan)
    size = 1.0 + np.sum(np.abs(a * log_u)) + np.sum(np.abs(b * log_v)) + np.sum(plan)
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
                term = x * (cost[k, l] + np.log(x))
                total += term
                size += abs(term)
    slack = 2.0**-48 * size  # rounding of the sums, and of marginals that costs may multiply
    return value - slack, total + slack


@njit(parallel=PARALLEL, cache=True)
def brackets(indptr, bins, weight, cost, start, target, state, room, tasks):
    """Proved bounds of each pair's cost over eps, from any log v in ``state``.

    Below: the dual value <a, log u> + <b, log v> + 1 - sum P of the plan P = u K v. Above: the
    entropic cost of that plan rounded to the marginals. Both are widened by their rounding.
    """
    lower, upper = np.empty(len(target)), np.empty(len(target))
    log_weight = np.log(weight)
    largest = 0
    for i in range(len(indptr) - 1):
        largest = max(largest, indptr[i + 1] - indptr[i])
    for task in prange(tasks):
        log_u = np.empty(largest)
        for i in range(task, len(start) - 1, tasks):
            a, s = indptr[i], indptr[i + 1] - indptr[i]
            for p in range(start[i], start[i + 1]):
                b, t = indptr[target[p]], indptr[target[p] + 1] - indptr[target[p]]
                log_v = state[room[p] : room[p + 1]]
                _update(log_weight, bins, a, a + s, bins, b, b + t, log_v, cost, log_u)
                local = np.empty((s, t))
                for k in range(s):
                    for l in range(t):
                        local[k, l] = cost[bins[a + k], bins[b + l]]
                lower[p], upper[p] = _bracket(
                    log_u[:s], log_v, weight[a : a + s], weight[b : b + t], local
                )
    return lower, upper
