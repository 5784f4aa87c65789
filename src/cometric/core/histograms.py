"""Histograms of the rows of a sparse matrix: normalized, balanced, smoothed, repeats found."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from cometric.core.types import Index, Vector

MERGE_TOLERANCE = 1e-12
"""Histograms at most this far apart in l1 norm (their sums are 1) count as one."""

NORMALIZED, SMOOTHED = 3 * 2.0**-53, 8 * 2.0**-53
"""Bounds of the relative error of a mass that was normalized, and of one smoothed after it."""


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
