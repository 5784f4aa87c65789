"""Entropic transport costs in the log domain, and bounds on them, Numba.

Same conventions as ``sinkhorn_numba``; ``state`` stores log v. Slower, but safe from under- and
overflow at any eps.
"""

import numpy as np

from cometric.kernels.compiling import njit, threaded
from cometric.kernels.sinkhorn_numba import mass_sums, most_bins, relaxed_value


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
    """Replace log v; return the error |v K u - b| of the old v (b damped, if unbalanced)."""
    error = 0.0
    for l in range(len(mass)):
        change = abs(np.expm1(log_v[l] - new_v[l])) * mass[l]
        error += change if np.isinf(ratio) else change * np.exp((log_mass[l] - new_v[l]) / ratio)
        log_v[l] = new_v[l]
    return error


@threaded
def sweep_log(
    indptr, bins, weight, cost, start, target, state, offsets, values, errors,
    ratio, sweeps, tol, task, tasks,
):  # fmt: skip
    """The same as ``sinkhorn_numba.sweep`` with log u and log v: slower, safe for every eps.

    ``cost`` is C / eps and ``state`` stores log v.
    """
    log_weight, masses = np.log(weight), mass_sums(indptr, weight)
    largest = most_bins(indptr)
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
                    value, shift = relaxed_value(ratio, masses[i], masses[target[p]], rows, columns)
                    log_v += shift
                done += 1
            if np.isinf(ratio):
                value = 0.0
                for k in range(len(a)):
                    value += a[k] * log_u[k]
                for l in range(len(b)):
                    value += b[l] * log_v[l]
            values[p], errors[p] = value, error


def self_terms_log(indptr, bins, weight, cost, scaling, ratio, sweeps, tol, tasks):
    """The same as ``sinkhorn_numba.self_terms`` with log u in ``scaling``; ``cost`` is C / eps."""
    values, errors = np.empty((2, len(indptr) - 1))
    _self_terms(
        indptr, bins, weight, cost, scaling, ratio, sweeps, tol, values, errors, tasks
    )  # fmt: skip
    return values, errors


@threaded
def _self_terms(
    indptr, bins, weight, cost, scaling, ratio, sweeps, tol, values, errors, task, tasks
):  # fmt: skip
    log_weight = np.log(weight)
    for i in range(task, len(values), tasks):
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


@njit
def _bracket(log_u, log_v, a, b, cost):
    """Bounds of one pair; ``cost`` is the part of C / eps between its bins.

    ``size`` sums the magnitudes of all rounded quantities: the terms of both sums, the exponents of
    the plan, and the marginals of the rounded plan times the largest cost.
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
    """The same for an unbalanced pair: the upper bound is the cost of the unchanged plan."""
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


def brackets(indptr, bins, weight, cost, start, target, state, offsets, ratio, tasks):
    """Proved bounds of each pair's cost over eps, from any log v in ``state``.

    Lower: the dual value <a, log u> + <b, log v> + 1 - sum P of the plan P = u K v. Upper: the
    entropic cost of that plan rounded to the marginals; unbalanced, it need not be rounded. Both
    include a margin for rounding errors.
    """
    lower, upper = np.empty((2, len(target)))
    _brackets(
        indptr, bins, weight, cost, start, target, state, offsets, ratio, lower, upper, tasks
    )  # fmt: skip
    return lower, upper


@threaded
def _brackets(
    indptr, bins, weight, cost, start, target, state, offsets, ratio, lower, upper, task, tasks
):  # fmt: skip
    log_weight = np.log(weight)
    largest = most_bins(indptr)
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
                lower[p], upper[p] = _relaxed_bracket(log_u[: len(a)], log_v, a, b, local, ratio)
