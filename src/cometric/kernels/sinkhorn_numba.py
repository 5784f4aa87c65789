"""Entropic transport costs for all pairs of histograms under one shared cost, Numba.

Conventions
-----------
Histograms are CSR rows ``indptr``, ``bins``, ``weight`` without zeros. The pairs of source i are
``start[i] : start[i + 1]``, with the other histogram in ``target``. The second scaling of pair p
(v, or log v in the log domain) is ``state[offsets[p] : offsets[p + 1]]``, stored between calls:
after a small change of the cost one sweep from there is nearly as good as a full solve.

A sweep is u = a / (K v), v = b / (K u), with K = exp(-C / eps) and eps absolute. After it the
columns of the plan u K v are exact, and the dual value, a lower bound of the cost, is

    eps (<a, log u> + <b, log v>)      (entropy <P, log P>),

and the error returned is that of the columns just before v was updated, with exact rows.

If balanced pairs are solved to a tolerance, they are extrapolated: two sweeps give the convergence
rate, and the third moves v as far as all further sweeps would at this rate.

Unbalanced transport relaxes both marginals: ``ratio`` = rho / eps is finite, and infinite for
balanced transport. Its sweep is damped, u = a (K v)^s / (K v) and v = b (K u)^s / (K u) with
s = 1 / (ratio + 1). After it the row sums of u K v are p = <a, (K v)^s> in total, with the old v,
and the column sums q = <b, (K u)^s>. Scaling u by sqrt(q / p)^-ratio and v by its inverse leaves
the plan unchanged and maximizes the dual value; otherwise this constant would converge at the slow
rate s. The dual value, without the constant eps m(a) m(b), is then

    eps (ratio (m(a) + m(b) - 2 sqrt(p q)) - q)      (entropy KL(P | a b)),

and the error is the change of the column sums in the update of v.

For one source, the columns of K that its bins select are copied side by side, in chunks narrow
enough to stay in the cache. All its pairs use contiguous rows of a chunk: no gathers, and no
operations outside the supports. Sources should be the larger histograms of their pairs: ``state``
then holds the shorter scalings, and long rows vectorize better.

Callers pass plain arrays; inside, related arrays are grouped in records.
Validation belongs to the map that calls us.
"""

from typing import NamedTuple

import numpy as np

from cometric.kernels.compiling import BORROWED, for_both, njit, threaded
from cometric.kernels.scaling import (
    aligned_zeros,
    combine_rows,
    copy_chunk,
    divide_damped,
    divide_lanes,
    extrapolations,
    multiply,
    multiply_by,
    next_rate,
    project_rows,
    update,
    update_damped,
)
from cometric.kernels.simd import BYTES

CHUNK_BYTES = 800_000  # of K at a time: most of the L2 cache of one core

PORTIONS, MANY = 8, 10_000  # tasks per thread, if there are at least this many pairs

UNDERFLOW, SMALLEST = 2.0**-1000, 2.0**-1074  # products below lose digits; no number is smaller


class Histograms(NamedTuple):
    """CSR rows without zeros, and their sums."""

    indptr: np.ndarray
    bins: np.ndarray
    weight: np.ndarray
    mass: np.ndarray


class Padded(NamedTuple):
    """The same rows in the precision of the kernel, padded to whole lanes.

    The padding of a row repeats its last bin, with weight zero.
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
    """Work arrays of a thread, reused for each source."""

    chunk: np.ndarray  # of K
    u: np.ndarray  # on the bins of the chunk
    ku: np.ndarray  # of all pairs of a source
    tail: np.ndarray  # the last, incomplete lanes of a scaling
    numbers: np.ndarray  # two arrays for sums of logarithms
    exponent: np.ndarray
    rates: np.ndarray  # convergence rates of the pairs of a source


@njit
def mass_sums(indptr, weight):
    """The sum of every histogram."""
    mass = np.empty(len(indptr) - 1)
    for i in range(len(mass)):
        mass[i] = np.sum(weight[indptr[i] : indptr[i + 1]])
    return mass


@njit
def most_bins(indptr):
    """The number of bins of the largest histogram."""
    most = 0
    for i in range(len(indptr) - 1):
        most = max(most, indptr[i + 1] - indptr[i])
    return most


@njit(**BORROWED)
def relaxed_value(ratio, mass_a, mass_b, rows, columns):
    """Dual value over eps of an unbalanced pair at its best constant, and log of the factor of v.

    ``rows`` is p - m(a) and ``columns`` q - m(b): differences, since ratio may be large. If nearly
    no mass is matched, p and q are zero up to rounding; then the factor is set to 1.
    """
    p, q = max(mass_a + rows, 0.0), max(mass_b + columns, 0.0)
    gap, roots = (mass_a - mass_b) + (rows - columns), np.sqrt(p) + np.sqrt(q)
    value = -ratio * (rows + columns) - q
    if roots > 0.0:
        value += ratio * (gap / roots) ** 2
    return value, 0.5 * ratio * np.log1p(-gap / p) if p > 0.0 and q > 0.0 else 0.0


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


@njit(**BORROWED)
def is_open(error, value, tol):
    """Whether a pair has to be swept: its error exceeds ``tol``, and it did not overflow."""
    return error > tol and not np.isnan(value)


def _source_sweep(balanced):
    """The sweeps of one source, for :func:`sweep`."""

    @njit(**BORROWED)
    def sweep_source(
        histograms, padded, kernel, pairs, work, ratio, sweeps, tol, i, active, pair
    ):  # fmt: skip
        """Sweep the pairs ``active`` of source i until their errors are at most ``tol``.

        If all columns of the source fit in one chunk, a pair is solved before the next one starts:
        after its first sweep, its rows are in the L1 cache. Otherwise each chunk is used for one
        sweep of all pairs before the next is copied, and scalings are updated with the last chunk.
        ``pair`` is the first pair of the source.
        """
        indptr, bins, weight, mass = histograms
        target, state, offsets, values, errors = pairs
        chunk, u, ku, tail, numbers, exponent, rates = work
        for e in range(len(rates)):
            rates[e] = 0.0
        lanes = BYTES // kernel.itemsize
        power = 1.0 / (ratio + 1.0)
        size = indptr[i + 1] - indptr[i]
        pieces = -(-size // len(u))
        piece = -(-size // (pieces * lanes)) * lanes
        rounds, repeats = (1, sweeps) if pieces == 1 else (sweeps, 1)
        left = len(active)
        for _ in range(rounds):
            for first in range(0, size, piece):
                count = min(piece, size - first)
                width = -(-count // lanes) * lanes
                is_last = first + count == size
                copy_chunk(kernel, bins, indptr[i] + first, count, width, chunk)
                at = 0
                for p in active[:left]:
                    j, place = target[p], offsets[p]
                    begin, end = padded.begin[j], padded.begin[j + 1]
                    bins_b = indptr[j + 1] - indptr[j]
                    for _ in range(repeats):
                        combine_rows(
                            chunk, padded.bins, begin, begin + bins_b, state, place, u, width
                        )
                        value = 0.0 if first == 0 else values[p]
                        if balanced:
                            value += divide_lanes(padded.weight, padded.begin[i] + first, u, width)
                        else:
                            value += divide_damped(
                                weight, indptr[i] + first, count, width, u, power, numbers, exponent
                            )
                        if first == 0:
                            for e in range(at, at + end - begin):
                                ku[np.uint64(e)] = 0
                        project_rows(chunk, padded.bins, begin, begin + bins_b, u, ku, at, width)
                        if is_last:
                            if balanced:
                                rate = rates[p - pair]
                                if rate > 0.0:
                                    extrapolations(
                                        padded.weight, begin, bins_b, state, place, ku, at, rate,
                                        numbers,
                                    )  # fmt: skip
                                columns, error = update(
                                    padded.weight, begin, bins_b, state, place, ku, at, tail
                                )
                                value += columns
                                if rate > 0.0:
                                    multiply_by(state, place, bins_b, numbers)
                                if tol > 0.0:
                                    rates[p - pair] = next_rate(rate, errors[p], error)
                            else:
                                columns, error = update_damped(
                                    weight, indptr[j], bins_b, state, place, ku, at, power,
                                    numbers, exponent,
                                )  # fmt: skip
                                value, shift = relaxed_value(
                                    ratio, mass[i], mass[j], value, columns
                                )
                                factor = np.exp(shift)
                                for e in range(bins_b):
                                    state[place + e] *= factor
                            if not (np.isfinite(value) and np.isfinite(error)):
                                value, error = np.nan, np.inf
                            errors[p] = error
                        values[p] = value
                        if is_last and not is_open(errors[p], value, tol):
                            break
                    if pieces > 1:
                        at += end - begin
            some, left = left, 0
            for p in active[:some]:
                if is_open(errors[p], values[p], tol):
                    active[left] = p
                    left += 1
            if left == 0:
                break

    return sweep_source


_sweep_balanced, _sweep_unbalanced = _source_sweep(True), _source_sweep(False)


@njit
def _largest_source(start, offsets):
    """The maximum numbers of pairs and of scalings per source."""
    most_pairs, most_scalings = 0, 0
    for i in range(len(start) - 1):
        most_pairs = max(most_pairs, start[i + 1] - start[i])
        most_scalings = max(most_scalings, offsets[start[i + 1]] - offsets[start[i]])
    return most_pairs, most_scalings


def _sweep(balanced):
    @threaded
    def sweep_task(histograms, padded, kernel, start, pairs, ratio, sweeps, tol, task, tasks):
        """The sources of one task of :func:`sweep`."""
        indptr, values, errors = histograms.indptr, pairs.values, pairs.errors
        sources = len(start) - 1
        d = len(kernel)
        lanes = BYTES // kernel.itemsize
        largest = most_bins(indptr)
        widest = max(1, min(CHUNK_BYTES // (BYTES * d), -(-largest // lanes))) * lanes
        most_pairs, most_scalings = _largest_source(start, pairs.offsets)
        work = Workspace(
            aligned_zeros(d * widest, kernel.dtype),
            aligned_zeros(widest, kernel.dtype),
            np.empty(most_scalings + most_pairs * lanes, kernel.dtype),
            aligned_zeros(lanes, kernel.dtype),
            np.empty(largest + BYTES),  # lanes may end beyond the largest histogram
            np.empty(largest + BYTES),
            np.empty(most_pairs),
        )
        active = np.empty(most_pairs, np.int64)
        for i in range(task, sources, tasks):
            count = 0
            for p in range(start[i], start[i + 1]):
                if is_open(errors[p], values[p], tol):
                    active[count] = p
                    count += 1
            some = active[:count]
            if count > 0 and sweeps > 0:
                if balanced:
                    _sweep_balanced(
                        histograms, padded, kernel, pairs, work, ratio, sweeps, tol, i, some,
                        start[i],
                    )  # fmt: skip
                else:
                    _sweep_unbalanced(
                        histograms, padded, kernel, pairs, work, ratio, sweeps, tol, i, some,
                        start[i],
                    )  # fmt: skip

    def sweep(
        indptr, bins, weight, kernel, start, target, state, offsets, values, errors,
        ratio, sweeps, tol, tasks,
    ):  # fmt: skip
        """Sweep pairs until their error is at most ``tol``, or ``sweeps`` times.

        Sets ``values``, the dual value over eps, and ``errors``, the marginal error, of these
        pairs. The dtype of ``kernel`` and ``state`` is used throughout, but values are summed in
        float64.
        A pair whose scalings overflow or underflow gets the value NaN and an infinite error.
        """
        histograms = Histograms(indptr, bins, weight, mass_sums(indptr, weight))
        padded = Padded(*pad(indptr, bins, weight, kernel))
        pairs = Pairs(target, state, offsets, values, errors)
        sweep_task(
            histograms, padded, kernel, start, pairs, ratio, sweeps, tol, tasks,
            portions=PORTIONS if len(target) >= MANY else 1,
        )  # fmt: skip

    return sweep


sweep = for_both(_sweep, 10)


@threaded
def copy_scalings(indptr, scaling, target, offsets, state, task, tasks):
    """Copy the scaling of each pair's target to the pair's part of ``state``."""
    count = len(target)
    for p in range(task * count // tasks, (task + 1) * count // tasks):
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
            product = u[k] * mass
            if product >= UNDERFLOW:
                u[k] = np.sqrt(product / ku[k])
            else:
                u[k] = max(np.sqrt(u[k]) * np.sqrt(mass / ku[k]), SMALLEST)
        multiply(local, u, ku)
        error = np.sum(np.abs(u * ku - (a if balanced else a * ku**power)))
        done += 1
    if balanced:
        value = 2.0 * np.sum(a * np.log(u)) + 1.0 - np.sum(u * ku)
    else:
        value = -2.0 * ratio * np.sum(a * np.expm1(-np.log(u / a) / ratio)) - np.sum(u * ku)
    return value, error if np.isfinite(value) else np.inf


def self_terms(indptr, bins, weight, kernel, scaling, ratio, sweeps, tol, tasks):
    """Cost over eps of every histogram to itself, by the symmetric fixed point u = a / (K u).

    ``scaling``, laid out like ``weight``, stores u between calls. The geometric mean of u and
    a / (K u), damped if ``ratio`` is finite, converges fast where plain updates oscillate.
    """
    values, errors = np.empty((2, len(indptr) - 1))
    _self_terms(
        indptr, bins, weight, kernel, scaling, ratio, sweeps, tol, values, errors, tasks
    )  # fmt: skip
    return values, errors


@threaded
def _self_terms(
    indptr, bins, weight, kernel, scaling, ratio, sweeps, tol, values, errors, task, tasks
):  # fmt: skip
    for i in range(task, len(values), tasks):
        own = slice(indptr[i], indptr[i + 1])
        values[i], errors[i] = _self_term(
            bins[own], weight[own], kernel, scaling[own], ratio, sweeps, tol
        )
