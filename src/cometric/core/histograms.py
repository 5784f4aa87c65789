"""Checked histograms, and their masses as integers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.cached import cached_property
from cometric.core.inputs import check_indices
from cometric.core.types import Index, Vector

TOTAL = 2**62
"""The mass of a histogram in integer units."""

QUANTUM = 1.0 / TOTAL
"""The mass of one unit."""


MERGE_TOLERANCE = 1e-12
"""Histograms at most this far apart in l1 norm (their sums are 1) count as one."""

NORMALIZED, SMOOTHED = 3 * 2.0**-53, 8 * 2.0**-53
"""Bounds on the relative error of a mass after normalization, and after smoothing as well."""


class Histograms:
    """Histograms as rows, nonnegative and each summing to 1.

    Functions that receive an instance need not check, copy or quantize it again.
    """

    def __init__(self, rows: sparse.csr_array) -> None:
        self.rows = rows
        self.shape: tuple[int, int] = rows.shape  # number of histograms, number of bins

    @classmethod
    def of(cls, hist: Any) -> Histograms:
        """An instance from any matrix with histograms as rows, checked; ``hist`` if it is one."""
        return hist if isinstance(hist, cls) else cls(check_histograms(hist))

    @cached_property
    def masses(self) -> Index:
        """The entries in units of 2**-62, see :func:`quantize`."""
        return quantize(self.rows)

    @cached_property
    def integer_parts(self) -> tuple[Index, NDArray[np.int32], Index]:
        """Arrays for the kernels of exact transport: row starts, bins, integer masses."""
        starts = self.rows.indptr.astype(np.int64)
        return starts, self.rows.indices.astype(np.int32, copy=False), self.masses

    def take(self, index: Any) -> Self:
        """Some of the histograms, with their ``masses`` if these were computed."""
        part = type(self)(self.rows[index])
        if "masses" in self.__dict__:
            whole = (self.masses, self.rows.indices, self.rows.indptr)
            part.__dict__["masses"] = sparse.csr_array(whole, shape=self.shape)[index].data
        return part

    def differ(self, others: Histograms, i: Index, j: Index) -> NDArray[np.bool_]:
        """Whether the histograms ``i`` differ from the ``others`` numbered ``j``, pair by pair."""
        gaps = abs(self.rows[i] - others.rows[j]).sum(axis=1)
        return np.asarray(gaps).ravel() > MERGE_TOLERANCE


def check_masses(hist: Any) -> sparse.csr_array:
    """A float64 CSR copy; raises unless entries are nonnegative and every row has mass."""
    if np.ndim(hist) != 2 and not sparse.issparse(hist):
        raise ValueError(f"`hist` has {np.ndim(hist)} dimensions; pass histograms as rows.")
    check_indices(hist, "hist")
    rows = sparse.csr_array(hist, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if rows.shape[0] < 2:
        raise ValueError(f"`hist` has {rows.shape[0]} rows; need at least 2 histograms.")
    if not (np.isfinite(rows.data).all() and (rows.data >= 0).all()):
        raise ValueError("`hist` has negative or non-finite entries; histograms have none.")
    empty = np.flatnonzero(np.diff(rows.indptr) == 0)
    if len(empty):
        raise ValueError(
            f"`hist` has {len(empty)} rows without mass (first: row {empty[0]}). Drop them."
        )
    return rows


def check_histograms(hist: Any) -> sparse.csr_array:
    """A float64 CSR copy whose rows sum to 1 up to rounding; raises if they do not."""
    rows = check_masses(hist)
    sums = rows.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1.0) > 1e-6)
    if len(wrong):
        raise ValueError(
            f"`hist` has {len(wrong)} rows that do not sum to 1 (first: row {wrong[0]}, "
            f"sum {sums[wrong[0]]:.6g}). Divide each row by its sum."
        )
    sizes = np.diff(rows.indptr)
    # Rows that sum to 1 up to the rounding of the sum are not changed: a division would only add
    # a rounding error.
    off = abs(sums - 1.0) > (sizes + 4) * 2.0**-53
    rows.data /= np.repeat(np.where(off, sums, 1.0), sizes)
    return rows


def quantize(hist: sparse.csr_array) -> Index:
    """Masses in units of 2**-62, no entry below 1, each row summing to exactly ``TOTAL``.

    The difference between the sum of a row and ``TOTAL`` is added to its largest entry.
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

    ``relative`` bounds the relative error of every entry of ``hist``. The error of an entry other
    than the largest is at most this fraction of the entry plus one unit. Exact and quantized rows
    have the same sum, so the error of the largest entry is at most the sum of all other errors: a
    bin that holds nearly all of the mass is nearly exact. Entries too small for float64 were
    dropped from ``hist``; they count as one more unit.
    """
    largest = np.maximum.reduceat(hist.data, hist.indptr[:-1])
    units = np.diff(hist.indptr) + 1
    errors: Vector = 2.0 * (relative * np.maximum(1.0 - largest, 0.0) + units * QUANTUM)
    return errors * (1.0 + 2.0**-40)  # the rounding of this line, and of 1 - largest
