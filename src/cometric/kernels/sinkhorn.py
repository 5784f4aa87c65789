"""Entropic transport costs for all pairs of histograms under one shared cost, Numba.

Conventions
-----------
Histograms are CSR rows ``indptr``, ``bins``, ``weight`` without zeros. The pairs of source i are
``start[i] : start[i + 1]``, with the other histogram in ``target``. The second scaling of pair p
(v, or log v in the log domain) is ``state[offsets[p] : offsets[p + 1]]``, stored between calls:
after a small change of the cost one sweep from there is nearly as good as a full solve.

A sweep is u = a / (K v), v = b / (K u), with K = exp(-C / eps) and eps absolute. After it the
columns of the plan u K v are exact, so that its dual value, a lower bound of the cost, is

    eps (<a, log u> + <b, log v>)      (entropy <P, log P>),

and the error returned is that of the columns just before v was updated, with exact rows.

Unbalanced transport relaxes both marginals: ``ratio`` = rho / eps is finite, and infinite for
balanced transport. Its sweep is damped, u = a (K v)^s / (K v) and v = b (K u)^s / (K u) with
s = 1 / (ratio + 1). After it the row sums of u K v are p = <a, (K v)^s> in total, with the old v,
and the column sums q = <b, (K u)^s>. Scaling u by sqrt(q / p)^-ratio and v by its inverse leaves
the plan as it is and raises the dual value most; without it that constant would be found at the
slow rate s. The dual value, without the constant eps m(a) m(b), is then

    eps (ratio (m(a) + m(b) - 2 sqrt(p q)) - q)      (entropy KL(P | a b)),

and the error is the change of the column sums in the update of v.

For one source, the columns of K that its bins select are copied side by side, in chunks narrow
enough to stay in the cache. All its pairs use contiguous rows of a chunk: no gathers, and no
operations outside the supports. Sources should be the larger histograms of their pairs: ``state``
then holds the shorter scalings, and long rows vectorize better.

The parallel kernels take plain arrays; inside, arrays that belong together travel as records.
Validation belongs to the map that calls us.
"""

from typing import NamedTuple

import numpy as np
from numba import prange

from cometric.kernels.jit import njit
from cometric.kernels.lanes import BYTES
from cometric.kernels.launching import check_finished, parallel
from cometric.kernels.scaling import (
    aligned_zeros,
    combine_rows,
    copy_chunk,
    divide_damped,
    divide_lanes,
    multiply,
    project_rows,
    update,
    update_damped,
)

CHUNK_BYTES = 800_000  # of K at a time: most of the second-level cache of one core


class Histograms(NamedTuple):
    """CSR rows without zeros, and their sums."""

    indptr: np.ndarray
    bins: np.ndarray
    weight: np.ndarray
    mass: np.ndarray


class Padded(NamedTuple):
    """The same rows in the precision of the kernel, padded to whole lanes.

    A row goes on with the last of its bins again, and weights of zero.
    """

    begin: np.ndarray
    bins: np.ndarray
    weight: np.ndarray


class Pairs(NamedTuple):
    """The target, scalings, value and error of every pair."""

    target: np.ndarray
    state: np.ndarray
    offsets: np.ndarray
    values: np.ndarray
    errors: np.ndarray


class Workspace(NamedTuple):
    """Arrays that a thread uses for one source after the other."""

    chunk: np.ndarray  # of K
    u: np.ndarray  # on the bins of the chunk
    ku: np.ndarray  # of all pairs of a source
    tail: np.ndarray  # the lanes in which a scaling ends
    numbers: np.ndarray  # two arrays for sums of logarithms
    exponent: np.ndarray


@njit
def _masses(indptr, weight):
    """The sum of every histogram."""
    mass = np.empty(len(indptr) - 1)
    for i in range(len(mass)):
        mass[i] = np.sum(weight[indptr[i] : indptr[i + 1]])
    return mass


@njit
def _largest(indptr):
    """The most bins of a histogram. As an array expression, it would make Numba warn users."""
    largest = 0
    for i in range(len(indptr) - 1):
        largest = max(largest, indptr[i + 1] - indptr[i])
    return largest


@njit
def _relaxed(ratio, mass_a, mass_b, rows, columns):
    """Dual value over eps of an unbalanced pair at its best constant, and log of the factor of v.

    ``rows`` is p - m(a) and ``columns`` q - m(b): differences, since ratio may be large.
    """
    p, q = mass_a + rows, mass_b + columns
    gap = (mass_a - mass_b) + (rows - columns)
    value = -ratio * (rows + columns) - q + ratio * (gap / (np.sqrt(p) + np.sqrt(q))) ** 2
    return value, 0.5 * ratio * np.log1p(-gap / p)


# -------------------------------------------------------------------------- scaling form


@njit
def pad(indptr, bins, weight, like):
    """The histograms padded to whole lanes of the dtype of ``like``."""
    n, lanes = len(indptr) - 1, BYTES // like.itemsize
    begin = np.zeros(n + 1, np.int64)
    for i in range(n):
        begin[i + 1] = begin[i] + -(-(indptr[i + 1] - indptr[i]) // lanes) * lanes
    padded, mass = np.empty(begin[n], bins.dtype), np.zeros(begin[n], like.dtype)
    for i in range(n):
        count = indptr[i + 1] - indptr[i]
        for e in range(begin[i + 1] - begin[i]):
            padded[begin[i] + e] = bins[indptr[i] + min(e, count - 1)]
            if e < count:
                mass[begin[i] + e] = weight[indptr[i] + e]
    return begin, padded, mass


@njit
def _sweep_source(histograms, padded, kernel, pairs, work, ratio, i, active):
    """One sweep of the pairs ``active`` of source i.

    The scalings of a pair are updated with the last chunk. A source with one chunk needs K u of one
    pair at a time, which stays in the first-level cache.
    """
    indptr, bins, weight, mass = histograms
    target, state, offsets, values, errors = pairs
    chunk, u, ku, tail, numbers, exponent = work
    lanes = BYTES // kernel.itemsize
    balanced, power = np.isinf(ratio), 1.0 / (ratio + 1.0)
    values[active] = 0.0
    size = indptr[i + 1] - indptr[i]
    pieces = -(-size // len(u))
    piece = -(-size // (pieces * lanes)) * lanes
    for first in range(0, size, piece):
        count = min(piece, size - first)
        width = -(-count // lanes) * lanes
        copy_chunk(kernel, bins, indptr[i] + first, count, width, chunk)
        at = 0
        for p in active:
            j, place = target[p], offsets[p]
            begin, end = padded.begin[j], padded.begin[j + 1]
            bins_b = indptr[j + 1] - indptr[j]
            combine_rows(chunk, padded.bins, begin, begin + bins_b, state, place, u, width)
            if balanced:
                values[p] += divide_lanes(padded.weight, padded.begin[i] + first, u, width)
            else:
                values[p] += divide_damped(
                    weight, indptr[i] + first, count, width, u, power, numbers, exponent
                )
            if first == 0:
                ku[at : at + end - begin] = 0
            project_rows(chunk, padded.bins, begin, begin + bins_b, u, ku, at, width)
            if first + piece >= size:
                if balanced:
                    value, errors[p] = update(
                        padded.weight, begin, bins_b, state, place, ku, at, tail
                    )
                    values[p] += value
                else:
                    columns, errors[p] = update_damped(
                        weight, indptr[j], bins_b, state, place, ku, at, power, numbers, exponent
                    )
                    values[p], shift = _relaxed(ratio, mass[i], mass[j], values[p], columns)
                    factor = np.exp(shift)
                    for e in range(bins_b):
                        state[place + e] *= factor
                if not (np.isfinite(values[p]) and np.isfinite(errors[p])):
                    values[p], errors[p] = np.nan, np.inf
            if pieces > 1:
                at += end - begin


@njit
def _largest_source(start, offsets):
    """The most pairs, and the most scalings, of one source."""
    most_pairs, most_scalings = 0, 0
    for i in range(len(start) - 1):
        most_pairs = max(most_pairs, start[i + 1] - start[i])
        most_scalings = max(most_scalings, offsets[start[i + 1]] - offsets[start[i]])
    return most_pairs, most_scalings


@parallel
def sweep(
    indptr, bins, weight, kernel, start, target, state, offsets, values, errors,
    ratio, sweeps, tol, tasks,
):  # fmt: skip
    """Sweep the pairs whose error exceeds ``tol`` until it no longer does, ``sweeps`` at most.

    Sets ``values``, the dual value over eps, and ``errors``, the marginal error, of these pairs.
    ``kernel`` and ``state`` have the precision to work in; values are summed in float64. A pair
    whose scalings overflow or underflow gets the value NaN and an infinite error.
    """
    sources = len(start) - 1
    d = len(kernel)
    lanes = BYTES // kernel.itemsize
    largest = _largest(indptr)
    widest = max(1, min(CHUNK_BYTES // (BYTES * d), -(-largest // lanes))) * lanes
    most_pairs, most_scalings = _largest_source(start, offsets)
    histograms = Histograms(indptr, bins, weight, _masses(indptr, weight))
    begin, padded_bins, padded_weight = pad(indptr, bins, weight, kernel)
    padded = Padded(begin, padded_bins, padded_weight)
    pairs = Pairs(target, state, offsets, values, errors)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        work = Workspace(
            aligned_zeros(d * widest, kernel.dtype),
            aligned_zeros(widest, kernel.dtype),
            np.empty(most_scalings + most_pairs * lanes, kernel.dtype),
            aligned_zeros(lanes, kernel.dtype),
            np.empty(largest + BYTES),  # lanes may end beyond the largest histogram
            np.empty(largest + BYTES),
        )
        active = np.empty(most_pairs, np.int64)
        for i in range(task, sources, tasks):
            for _ in range(sweeps):
                count = 0
                for p in range(start[i], start[i + 1]):
                    if errors[p] > tol and not np.isnan(values[p]):
                        active[count] = p
                        count += 1
                if count == 0:
                    break
                _sweep_source(histograms, padded, kernel, pairs, work, ratio, i, active[:count])
        finished[task] = True
    check_finished(finished)
    return values, errors


@parallel
def copy_scalings(indptr, scaling, target, offsets, state):
    """Copy the scaling of each pair's target to the pair's part of ``state``."""
    for p in prange(len(target)):
        begin = indptr[target[p]]
        for e in range(offsets[p + 1] - offsets[p]):
            state[offsets[p] - offsets[0] + e] = scaling[begin + e]


@njit
def _self_term(bins, a, kernel, u, ratio, sweeps, tol):
    """One histogram of :func:`self_terms`: cost over eps, and marginal error."""
    s = len(a)
    balanced, power = np.isinf(ratio), 1.0 / (ratio + 1.0)
    local, ku = np.empty((s, s)), np.empty(s)
    for k in range(s):
        for l in range(s):
            local[k, l] = kernel[bins[k], bins[l]]
    multiply(local, u, ku)
    error, done = np.inf, 0
    while done < sweeps and error > tol:
        for k in range(s):
            mass = a[k] if balanced else a[k] * ku[k] ** power
            u[k] = np.sqrt(u[k] * mass / ku[k])
        multiply(local, u, ku)
        error = np.sum(np.abs(u * ku - (a if balanced else a * ku**power)))
        done += 1
    if balanced:
        value = 2.0 * np.sum(a * np.log(u)) + 1.0 - np.sum(u * ku)
    else:
        value = -2.0 * ratio * np.sum(a * np.expm1(-np.log(u / a) / ratio)) - np.sum(u * ku)
    return value, error if np.isfinite(value) else np.inf


@parallel
def self_terms(indptr, bins, weight, kernel, scaling, ratio, sweeps, tol, tasks):
    """Cost over eps of every histogram to itself, by the symmetric fixed point u = a / (K u).

    ``scaling``, laid out like ``weight``, holds u between calls. The geometric mean of u and
    a / (K u), damped if ``ratio`` is finite, converges fast where plain updates oscillate.
    """
    n = len(indptr) - 1
    values, errors = np.empty(n), np.empty(n)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        for i in range(task, n, tasks):
            own = slice(indptr[i], indptr[i + 1])
            values[i], errors[i] = _self_term(
                bins[own], weight[own], kernel, scaling[own], ratio, sweeps, tol
            )
        finished[task] = True
    check_finished(finished)
    return values, errors


# ---------------------------------------------------------------------------- log domain


@njit
def _logarithms(weight):
    """log(weight). Inside a parallel kernel this array expression would make Numba warn users."""
    return np.log(weight)


@njit
def _log_scaling(log_mass, bins, others, potential, cost, ratio, out):
    """Write log_mass_k - log sum_l exp(potential_l - cost_kl), without overflow, to ``out``.

    k runs over ``bins``, l over ``others``; ``cost`` is the whole matrix C / eps. If ``ratio`` is
    finite, the second term is damped.
    """
    for k in range(len(bins)):
        row = cost[bins[k]]
        top = -np.inf
        for l in range(len(others)):
            top = max(top, potential[l] - row[others[l]])
        total = 0.0
        for l in range(len(others)):
            total += np.exp(potential[l] - row[others[l]] - top)
        if np.isinf(ratio):
            out[k] = log_mass[k] - top - np.log(total)
        else:
            out[k] = log_mass[k] - (top + np.log(total)) * (ratio / (ratio + 1.0))


@njit
def _lost(mass, log_mass, scaling, ratio):
    """<a, exp(-f / ratio) - 1> with f = log(u / a), where ``scaling`` is log u."""
    total = 0.0
    for k in range(len(mass)):
        total += mass[k] * np.expm1((log_mass[k] - scaling[k]) / ratio)
    return total


@njit
def _replace(mass, log_mass, log_v, new_v, ratio):
    """Replace log v; return the error |v K u - b| before, where b / (K u), damped, is the new v."""
    error = 0.0
    for l in range(len(mass)):
        change = abs(np.expm1(log_v[l] - new_v[l])) * mass[l]
        error += change if np.isinf(ratio) else change * np.exp((log_mass[l] - new_v[l]) / ratio)
        log_v[l] = new_v[l]
    return error


@parallel
def sweep_log(
    indptr, bins, weight, cost, start, target, state, offsets, values, errors,
    ratio, sweeps, tol, tasks,
):  # fmt: skip
    """The same as :func:`sweep` with log u and log v: slower, safe for every eps.

    ``cost`` is C / eps and ``state`` holds log v.
    """
    log_weight, masses = _logarithms(weight), _masses(indptr, weight)
    largest = _largest(indptr)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        log_u, new_v = np.empty(largest), np.empty(largest)
        for i in range(task, len(start) - 1, tasks):
            own = slice(indptr[i], indptr[i + 1])
            bins_a, a, log_a = bins[own], weight[own], log_weight[own]
            for p in range(start[i], start[i + 1]):
                if errors[p] <= tol:
                    continue
                other = slice(indptr[target[p]], indptr[target[p] + 1])
                bins_b, b, log_b = bins[other], weight[other], log_weight[other]
                log_v = state[offsets[p] : offsets[p + 1]]
                value, error, done = 0.0, np.inf, 0
                while done < sweeps and error > tol:
                    _log_scaling(log_a, bins_a, bins_b, log_v, cost, ratio, log_u)
                    _log_scaling(log_b, bins_b, bins_a, log_u, cost, ratio, new_v)
                    error = _replace(b, log_b, log_v, new_v, ratio)
                    if np.isfinite(ratio):
                        rows, columns = _lost(a, log_a, log_u, ratio), _lost(b, log_b, new_v, ratio)
                        value, shift = _relaxed(ratio, masses[i], masses[target[p]], rows, columns)
                        log_v += shift
                    done += 1
                if np.isinf(ratio):
                    value = 0.0
                    for k in range(len(a)):
                        value += a[k] * log_u[k]
                    for l in range(len(b)):
                        value += b[l] * log_v[l]
                values[p], errors[p] = value, error
        finished[task] = True
    check_finished(finished)
    return values, errors


@parallel
def self_terms_log(indptr, bins, weight, cost, scaling, ratio, sweeps, tol, tasks):
    """The same as :func:`self_terms` with log u in ``scaling``; ``cost`` is C / eps."""
    n = len(indptr) - 1
    values, errors = np.empty(n), np.empty(n)
    log_weight = _logarithms(weight)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        for i in range(task, n, tasks):
            own = slice(indptr[i], indptr[i + 1])
            own_bins, a, log_u = bins[own], weight[own], scaling[own]
            image = np.empty(len(a))
            error, done = np.inf, 0
            while True:
                _log_scaling(log_weight[own], own_bins, own_bins, log_u, cost, ratio, image)
                error, excess = 0.0, 0.0
                for k in range(len(a)):
                    mass = a[k]
                    if np.isfinite(ratio):
                        mass *= np.exp((log_weight[own][k] - image[k]) / ratio)
                        excess += mass  # in total, the sum of the plan
                    residual = np.expm1(log_u[k] - image[k]) * mass  # u K u - a
                    error += abs(residual)
                    excess += residual
                if done >= sweeps or error <= tol:
                    break
                for k in range(len(a)):
                    log_u[k] = 0.5 * (log_u[k] + image[k])
                done += 1
            value = -excess
            if np.isfinite(ratio):
                value -= 2.0 * ratio * _lost(a, log_weight[own], log_u, ratio)
            else:
                for k in range(len(a)):
                    value += 2.0 * a[k] * log_u[k]
            values[i], errors[i] = value, error
        finished[task] = True
    check_finished(finished)
    return values, errors


@njit
def _bracket(log_u, log_v, a, b, cost):
    """Bounds of one pair; ``cost`` is the part of C / eps between its bins.

    ``size`` sums the magnitudes of all that is rounded: the terms of both sums, the exponents of
    the plan, and the marginals of the rounded plan, which any cost may multiply.
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


@njit
def _relaxed_bracket(log_u, log_v, a, b, cost, ratio):
    """The same for an unbalanced pair: the upper bound is the cost of the plan as it is."""
    plan = np.exp(log_u.reshape(-1, 1) + log_v - cost)
    total = np.sum(plan)
    lower, upper, size = -total, -total, 1.0 + total * (1.0 + np.max(cost))
    sides = ((log_u, a, np.sum(plan, axis=1)), (log_v, b, np.sum(plan, axis=0)))
    for log_scaling, mass, sums in sides:
        for k in range(len(mass)):
            potential = log_scaling[k] - np.log(mass[k])
            lost = ratio * mass[k] * np.expm1(-potential / ratio)
            change = sums[k] / mass[k]
            relaxed = ratio * mass[k] * (change * np.log(max(change, 1e-300)) - change + 1.0)
            lower -= lost
            upper += sums[k] * potential + relaxed
            size += abs(lost) + sums[k] * (abs(log_scaling[k]) + abs(np.log(mass[k])))
            size += ratio * mass[k] * (1.0 + change * (1.0 + abs(np.log(max(change, 1e-300)))))
    slack = 2.0**-48 * size
    return lower - slack, upper + slack


@parallel
def brackets(indptr, bins, weight, cost, start, target, state, offsets, ratio, tasks):
    """Proved bounds of each pair's cost over eps, from any log v in ``state``.

    Lower: the dual value <a, log u> + <b, log v> + 1 - sum P of the plan P = u K v. Upper: the
    entropic cost of that plan rounded to the marginals; unbalanced, it need not be rounded. Both
    include a margin for rounding errors.
    """
    lower, upper = np.empty(len(target)), np.empty(len(target))
    log_weight = _logarithms(weight)
    largest = _largest(indptr)
    finished = np.zeros(tasks, np.bool_)
    for task in prange(tasks):
        log_u = np.empty(largest)
        for i in range(task, len(start) - 1, tasks):
            own = slice(indptr[i], indptr[i + 1])
            bins_a, a = bins[own], weight[own]
            for p in range(start[i], start[i + 1]):
                other = slice(indptr[target[p]], indptr[target[p] + 1])
                bins_b, b = bins[other], weight[other]
                log_v = state[offsets[p] : offsets[p + 1]]
                _log_scaling(log_weight[own], bins_a, bins_b, log_v, cost, ratio, log_u)
                local = np.empty((len(a), len(b)))
                for k in range(len(a)):
                    for l in range(len(b)):
                        local[k, l] = cost[bins_a[k], bins_b[l]]
                if np.isinf(ratio):
                    lower[p], upper[p] = _bracket(log_u[: len(a)], log_v, a, b, local)
                else:
                    lower[p], upper[p] = _relaxed_bracket(
                        log_u[: len(a)], log_v, a, b, local, ratio
                    )
        finished[task] = True
    check_finished(finished)
    return lower, upper
