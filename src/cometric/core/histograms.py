"""Histograms: made from the rows of a matrix, checked once, and as integers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.inputs import check_indices
from cometric.core.types import Index, Vector

TOTAL = 2**62
"""The mass of a histogram in integer units."""

QUANTUM = 1.0 / TOTAL
"""The mass of one unit."""


MERGE_TOLERANCE = 1e-12
"""Histograms at most this far apart in l1 norm (their sums are 1) count as one."""

NORMALIZED, SMOOTHED = 3 * 2.0**-53, 8 * 2.0**-53
"""Bounds of the relative error of a mass that was normalized, and of one smoothed after it."""


class Histograms:
    """Histograms as rows, nonnegative and each summing to 1.

    Whoever is given one need not check, copy or quantize it again.
    """

    def __init__(self, rows: sparse.csr_array) -> None:
        self.rows = rows

    @classmethod
    def of(cls, hist: Any) -> Histograms:
        """The same, from anything that holds histograms as rows; checked unless it is one."""
        return hist if isinstance(hist, cls) else cls(check_histograms(hist))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of histograms, number of bins."""
        return self.rows.shape  # type: ignore[no-any-return]

    @cached_property
    def masses(self) -> Index:
        """The entries in units of 2**-62, see :func:`quantize`."""
        return quantize(self.rows)

    @property
    def integer_parts(self) -> tuple[Index, NDArray[np.int32], Index]:
        """What kernels of exact transport read: row starts, bins, integer masses."""
        return self.rows.indptr.astype(np.int64), self.rows.indices.astype(np.int32), self.masses

    def take(self, index: Any) -> Histograms:
        """Some of the histograms; masses that are known are not computed again."""
        part = Histograms(self.rows[index])
        if "masses" in self.__dict__:
            whole = (self.masses, self.rows.indices, self.rows.indptr)
            part.__dict__["masses"] = sparse.csr_array(whole, shape=self.shape)[index].data
        return part


def check_histograms(hist: Any) -> sparse.csr_array:
    """A float64 copy whose rows sum to 1 up to rounding, or an error that says what is wrong."""
    if np.ndim(hist) != 2 and not sparse.issparse(hist):
        raise ValueError(f"`hist` has {np.ndim(hist)} dimensions; pass histograms as rows.")
    check_indices(hist, "hist")
    rows = sparse.csr_array(hist, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    sums = rows.sum(axis=1)
    if rows.shape[0] < 2:
        raise ValueError(f"`hist` has {rows.shape[0]} rows; need at least 2 histograms.")
    if not (np.isfinite(rows.data).all() and (rows.data >= 0).all()):
        raise ValueError("`hist` has negative or non-finite entries; histograms have none.")
    wrong = np.flatnonzero(np.abs(sums - 1.0) > 1e-6)
    if len(wrong):
        raise ValueError(
            f"`hist` has {len(wrong)} rows that do not sum to 1 (first: row {wrong[0]}, "
            f"sum {sums[wrong[0]]:.6g}). Divide each row by its sum."
        )
    sizes = np.diff(rows.indptr)
    # Rows that sum to 1 as far as the rounding of the sum can tell stay as they are: another
    # division would only add its own.
    off = abs(sums - 1.0) > (sizes + 4) * 2.0**-53
    rows.data /= np.repeat(np.where(off, sums, 1.0), sizes)
    return rows


def quantize(hist: sparse.csr_array) -> Index:
    """Masses in units of 2**-62, no entry below 1, each row summing to exactly ``TOTAL``.

    What the sum of a row misses goes to its largest entry.
    """
    mass: Index = np.maximum(np.floor(hist.data * float(TOTAL)), 1.0).astype(np.int64)
    start, sizes = hist.indptr[:-1], np.diff(hist.indptr)
    is_largest = mass == np.repeat(np.maximum.reduceat(mass, start), sizes)
    row_of = np.repeat(np.arange(len(start)), sizes)[is_largest]
    first = np.flatnonzero(is_largest)[np.unique(row_of, return_index=True)[1]]
    mass[first] += TOTAL - np.add.reduceat(mass, start)  # sums near 2**62 fit 64 bits
    return mass


def quantization_errors(hist: sparse.csr_array, relative: float) -> Vector:
    """Bounds of the l1 distance between each row of ``quantize(hist)`` and the exact histogram.

    ``relative`` bounds the relative error of every entry of ``hist``. An entry other than the
    largest is off by at most that share of itself and one unit. Exact and quantized rows have
    the same sum, so the largest entry is off by at most what all others together are: one bin
    that holds nearly all of the mass is nearly exact. Entries too small for float64 were dropped
    from ``hist``; they count as one unit more.
    """
    largest = np.maximum.reduceat(hist.data, hist.indptr[:-1])
    units = np.diff(hist.indptr) + 1
    errors: Vector = 2.0 * (relative * np.maximum(1.0 - largest, 0.0) + units * QUANTUM)
    return errors * (1.0 + 2.0**-40)  # the rounding of this line, and of 1 - largest


# ---------------------------------------------------------------------- from a matrix


def normalize(matrix: sparse.csr_array) -> sparse.csr_array:
    """Each row divided by its sum; every entry is right to a relative ``NORMALIZED``.

    Rows are first scaled by powers of 2, which rounds nothing, so that sums cannot overflow.
    """
    start, sizes = matrix.indptr[:-1], np.diff(matrix.indptr)  # no row is empty: `reduceat` is safe
    hist = matrix.copy()
    exponent = np.frexp(np.maximum.reduceat(hist.data, start))[1]
    hist.data = np.ldexp(hist.data, -np.repeat(exponent, sizes))
    hist.data /= np.repeat(_row_sums(hist.data, start), sizes)
    hist.eliminate_zeros()  # what underflowed
    return hist


def _row_sums(data: Vector, start: Index) -> Vector:
    """Sums of the entries, below 1, from each ``start`` to the next, rounded once.

    Twice, the leading bits of all entries are split off: multiples of a unit so large that
    adding them up is exact. What is then left is too small for its rounding to matter.
    """
    longest = np.diff(start, append=len(data)).max()
    grain = 2.0 ** (np.ceil(np.log2(longest)) - 52)  # 2^52 grains are more than a sum
    leading = np.rint(data / grain) * grain
    rest = data - leading
    middle = np.rint(rest / grain**2) * grain**2
    fine = np.add.reduceat(rest - middle, start) + np.add.reduceat(middle, start)
    sums: Vector = np.add.reduceat(leading, start) + fine
    return sums


def balance(
    matrix: sparse.csr_array, rounds: int
) -> tuple[sparse.csr_array, tuple[Vector | None, Vector | None]]:
    """``rounds`` of Sinkhorn scaling, rows then columns, and what each was multiplied by.

    Columns are brought to sum 1 rather than n / m: whoever reads the result normalizes it again.
    """
    if rounds == 0:
        return matrix, (None, None)
    logs = [np.zeros(size) for size in matrix.shape]  # products of many factors may overflow
    for _ in range(rounds):
        for log in logs:
            start, sizes = matrix.indptr[:-1], np.diff(matrix.indptr)
            top = np.maximum.reduceat(matrix.data, start)
            log -= np.log(top) + np.log(np.add.reduceat(matrix.data / np.repeat(top, sizes), start))
            matrix = normalize(matrix).T.tocsr()
            if not np.diff(matrix.indptr).all():
                raise ValueError(
                    "`X` has too wide a range for `normalization_steps` > 1: some entries "
                    "vanish when scaled. Leave it at 1, or clip the smallest entries."
                )
    rows, columns = (np.exp(log - log.max()) for log in logs)
    return matrix, (rows, columns)


def smooth(hist: sparse.csr_array, smoothing: float) -> sparse.csr_array:
    """``smoothing`` added to every bin, sums brought back to 1."""
    if smoothing == 0:
        return hist
    smoothing = float(smoothing)
    return sparse.csr_array((hist.toarray() + smoothing) / (1.0 + hist.shape[1] * smoothing))


def label_repeats(hist: sparse.csr_array) -> Index:
    """Equal labels for rows within ``MERGE_TOLERANCE``, numbered by first appearance.

    Rows that close have random projections (weights below 2) nearly as close: sort those, cut
    the order into runs at every larger gap, then compare each row of a run with the run's first
    row in l1 norm. Rows that differ from it stay for the next pass.
    """
    weights = np.random.default_rng(0).uniform(1.0, 2.0, hist.shape[1])
    score = hist @ weights
    rounding = 4 * np.finfo(float).eps * np.diff(hist.indptr).max()
    order = np.argsort(score)
    run = np.zeros(len(score), dtype=np.int64)
    run[order[1:]] = np.cumsum(np.diff(score[order]) > 2 * MERGE_TOLERANCE + rounding)
    first = np.arange(len(score))
    left = np.flatnonzero(np.bincount(run)[run] > 1)
    while len(left):
        _, start, back = np.unique(run[left], return_index=True, return_inverse=True)
        head = left[start][back]
        near = abs(hist[left] - hist[head]).sum(axis=1) <= MERGE_TOLERANCE
        first[left[near]] = head[near]
        left = left[~near]
    return np.unique(first, return_inverse=True)[1].astype(np.int64)
