"""Masses of histograms as integers, and how far those can be from the exact ones."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from cometric.core.types import Index, Vector
from cometric.kernels.transport import QUANTUM, TOTAL


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
