"""Histograms, and the two sides of the data: those of rows and of columns, repeats merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.cached import cached_property
from cometric.core.inputs import (
    Mask,
    Precision,
    check_indices,
    counted,
    read_histograms,
    read_used,
)
from cometric.core.rounding import merge_rounded
from cometric.core.types import Index, Matrix, Vector
from cometric.core.validation import require
from cometric.core.warn import warn

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


@dataclass(frozen=True, eq=False)
class Side:
    """The distinct histograms of one side.

    Items with equal histograms are at distance 0, and at equal distances from all others. So
    transport treats them as one: one histogram on this side, one bin on the other. Items whose
    metric is given are not merged: it may separate them.
    """

    hist: sparse.csr_array  # distinct histograms over the distinct bins; rows sum to 1
    full: sparse.csr_array  # over all kept bins, for the norm R; is `hist` if no bins merged
    labels: Index  # kept item -> its row of `hist`
    kept: Mask  # original item -> whether it is kept (see `drop_empty`)
    names: tuple[str, ...] | None = None  # of the kept items, if the data have names
    scale: Vector | None = None  # factor of each kept item from balancing, None for 1

    @cached_property
    def histograms(self) -> Histograms:
        """``hist`` as checked histograms, for maps."""
        return Histograms(self.hist)

    @cached_property
    def full_histograms(self) -> Histograms:
        """``full`` as checked histograms."""
        return self.histograms if self.full is self.hist else Histograms(self.full)

    @property
    def item_histograms(self) -> sparse.csr_array:
        """``full`` with a row for each kept item, repeats included."""
        return self.full if len(self.labels) == self.full.shape[0] else self.full[self.labels]

    @property
    def item_names(self) -> tuple[str, ...]:
        """Names of the kept items; if the data have no names, their numbers in the data."""
        return self.names or tuple(map(str, np.flatnonzero(self.kept)))

    @property
    def first(self) -> Index:
        """For each row of ``hist``, the first kept item with this histogram."""
        return np.unique(self.labels, return_index=True)[1].astype(np.int64)

    def scaled(self, matrix: sparse.csr_array) -> sparse.csr_array:
        """Multiply data over the kept items, in place, by their factors from balancing."""
        if self.scale is not None:
            matrix.data *= self.scale[matrix.indices]
        return matrix

    def reduce(self, distances: Matrix) -> Matrix:
        """Distances between the distinct items, from those between all kept ones."""
        if len(self.labels) == self.hist.shape[0]:
            return distances
        return distances[np.ix_(self.first, self.first)]

    def expand(self, distances: Matrix) -> Matrix:
        """Distances between all kept items, from those between the distinct ones.

        Repeats get the diagonal entry, 0. Returns the array itself if nothing was merged.
        """
        k = self.hist.shape[0]
        if distances.shape != (k, k):
            raise ValueError(
                f"`distances` has shape {distances.shape}; there are {k} distinct items, "
                f"so pass an array of shape {(k, k)}."
            )
        return distances if len(self.labels) == k else distances[np.ix_(self.labels, self.labels)]


def make_sides(
    X: Any, normalization_steps: int, smoothing: float, drop_empty: bool, fixed: str = ""
) -> tuple[Side, Side, float]:
    """The samples and the features of ``X``, and its unit roundoff (0 if it was not rounded).

    See :meth:`Problem.from_data`.
    """
    if isinstance(X, tuple) and len(X) == 2:
        if normalization_steps != 1:
            raise ValueError(
                f"`normalization_steps` is {normalization_steps}, but (A, B) are histograms "
                "already. Leave it at 1, or pass the matrix they came from."
            )
        (A, of_A), (B, of_B) = read_histograms(*X)
        A, B, precisions = normalize(A), normalize(B), (of_A, of_B)
        sources = ("`A`", "row"), ("`B`", "row")
        kept = np.ones(A.shape[0], dtype=bool), np.ones(B.shape[0], dtype=bool)
        names: tuple[list[str] | None, list[str] | None] = None, None
        scales: tuple[Vector | None, Vector | None] = None, None
    else:
        matrix, precision, kept, names = read_used(X, drop_empty)
        matrix, scales = balance(matrix, normalization_steps - 1)
        A, B = normalize(matrix), normalize(matrix.T.tocsr())
        sources = ("`X`", "row"), ("`X`", "column")
        precisions = precision, precision
        if precision.errors is not None:
            precisions = precision, precision.move(precision.errors.T.tocsr())
    errors = [mass_errors(*pair, smoothing) for pair in zip((A, B), precisions, strict=True)]
    A, B = smooth(A, smoothing), smooth(B, smoothing)
    rows, columns = (
        np.arange(hist.shape[0]) if name == fixed else _label(hist, *source, name, error, rounding)
        for hist, source, name, error, rounding in zip(
            (A, B), sources, ("samples", "features"), errors, precisions, strict=True
        )
    )
    return (
        make_side(A, rows, columns, kept[0], names[0], scales[0]),
        make_side(B, columns, rows, kept[1], names[1], scales[1]),
        max(rounding.unit for rounding in precisions),
    )


def _label(
    hist: sparse.csr_array,
    name: str,
    item: str,
    side: str,
    errors: sparse.csr_array | None,
    precision: Precision,
) -> Index:
    """The label of each row of ``hist``; warns if some repeat others."""
    alike = label_repeats(hist)
    labels = alike if errors is None else merge_rounded(hist, errors, alike)
    distinct, rounding = int(labels.max()) + 1, f"the {precision.name} rounding of {name}"
    if distinct == 1:
        within = f"{MERGE_TOLERANCE:.0e}" if alike.max() == 0 else rounding
        raise ValueError(
            f"All {item}s of {name} are proportional (to within {within}), so all "
            f"{side} are equal and no distance between them can be learned."
        )
    repeats, rounded = len(labels) - distinct, int(alike.max()) + 1 - distinct
    if repeats:
        of_these = ""
        if rounded:
            first = np.unique(labels, return_index=True)[1][labels]
            exact = np.unique(alike, return_index=True)[1][alike]
            here = int(np.flatnonzero(first != exact)[0])
            many = "" if rounded == repeats else f"{rounded} of them "
            of_these = f", {many}up to {rounding} (first: {item} {here} repeats {first[here]})"
        warn(
            f"{name} has {counted(repeats, item)} that repeat{'s' * (repeats == 1)} others up to "
            f"scale{of_these}; they get distance 0 to those and are merged with them."
        )
    return labels


def make_side(
    hist: sparse.csr_array,
    labels: Index,
    bins: Index,
    kept: Mask,
    names: list[str] | None,
    scale: Vector | None = None,
) -> Side:
    """A side with one histogram per label, and one bin per label in ``bins``."""
    if labels.max() + 1 < len(labels):
        hist = hist[np.unique(labels, return_index=True)[1]]
    full, n_bins = hist, int(bins.max()) + 1
    if n_bins < len(bins):
        where = bins[full.indices].astype(full.indices.dtype)
        shape = (full.shape[0], n_bins)
        hist = sparse.csr_array((full.data.copy(), where, full.indptr.copy()), shape=shape)
        hist.sum_duplicates()
    kept_names = None if names is None else tuple(np.array(names, dtype=object)[kept])
    return Side(hist, full, labels, kept, kept_names, scale)


def normalize(matrix: sparse.csr_array) -> sparse.csr_array:
    """Each row divided by its sum; the relative error of every entry is at most ``NORMALIZED``.

    Rows are first scaled by powers of 2, which is exact, so that sums cannot overflow.
    """
    start, sizes = matrix.indptr[:-1], np.diff(matrix.indptr)  # no row is empty: `reduceat` is safe
    hist = matrix.copy()
    exponent = np.frexp(np.maximum.reduceat(hist.data, start))[1]
    hist.data = np.ldexp(hist.data, -np.repeat(exponent, sizes))
    hist.data /= np.repeat(_row_sums(hist.data, start), sizes)
    hist.eliminate_zeros()  # entries that underflowed
    return hist


def _row_sums(data: Vector, start: Index) -> Vector:
    """Sums of the entries (all below 1) from each ``start`` to the next, rounded once.

    The leading bits of all entries are split off twice, as multiples of a unit large enough that
    their sums are exact. The rounding of the small remainder does not matter.
    """
    longest = np.diff(start, append=len(data)).max()
    grain = 2.0 ** (np.ceil(np.log2(longest)) - 52)  # every sum is below 2^52 grains
    leading = np.rint(data / grain) * grain
    rest = data - leading
    middle = np.rint(rest / grain**2) * grain**2
    fine = np.add.reduceat(rest - middle, start) + np.add.reduceat(middle, start)
    sums: Vector = np.add.reduceat(leading, start) + fine
    return sums


def balance(
    matrix: sparse.csr_array, rounds: int
) -> tuple[sparse.csr_array, tuple[Vector | None, Vector | None]]:
    """The matrix after ``rounds`` of Sinkhorn scaling, and the factors of rows and of columns.

    Columns are scaled to sum 1 rather than n / m: callers normalize the result again.
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
    """Histograms with ``smoothing`` added to every bin, normalized again."""
    if smoothing == 0:
        return hist
    smoothing = float(smoothing)
    return sparse.csr_array((hist.toarray() + smoothing) / (1.0 + hist.shape[1] * smoothing))


def mass_errors(
    hist: sparse.csr_array, precision: Precision, smoothing: float
) -> sparse.csr_array | None:
    """Errors of the masses of ``hist`` after smoothing; None if the data are exact.

    ``hist`` is not yet smoothed. Each error is that of the entry plus its share of the sum's.
    """
    if precision.errors is None:
        return None
    errors: sparse.csr_array = hist.multiply(precision.errors).tocsr()
    shares = np.asarray(errors.sum(axis=1)).ravel() / (1.0 + hist.shape[1] * smoothing)
    spread = hist.copy()
    spread.data *= np.repeat(shares, np.diff(hist.indptr))
    return errors / (1.0 + hist.shape[1] * smoothing) + spread


def place_repeats(
    hist: sparse.csr_array, errors: sparse.csr_array | None, known: sparse.csr_array, unit: float
) -> tuple[sparse.csr_array, Index]:
    """New histograms, those equal to a learned one replaced by it, and their labels.

    Equal means, as for rows of the learned data, within ``MERGE_TOLERANCE``, up to the ``errors``
    of the new ones, or up to the ``unit`` roundoff of the learned data. Without this, their
    distances to neighbors, by which references are scaled, would differ from the learned item's.
    """
    count, both = known.shape[0], sparse.vstack([known, hist], format="csr")
    labels = label_repeats(both)
    if errors is not None or unit:
        least = 2.0 * unit * both
        new = least[count:] if errors is None else errors.maximum(least[count:])
        labels = merge_rounded(both, sparse.vstack([least[:count], new], format="csr"), labels)
    first = np.unique(labels, return_index=True)[1][labels[count:]]
    return both[np.where(first < count, first, np.arange(count, both.shape[0]))], np.unique(
        labels[count:], return_inverse=True
    )[1].astype(np.int64)


def label_repeats(hist: sparse.csr_array) -> Index:
    """Equal labels for rows within ``MERGE_TOLERANCE``, numbered by first appearance.

    Such rows have nearly equal random projections (weights below 2). So sort the projections, cut
    them into runs at every larger gap, then compare each row of a run with its first row in l1
    norm. Rows that differ from it are left for the next pass.
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


def stored_side(arrays: dict[str, NDArray[Any]], name: str) -> Side:
    """The side that :meth:`Problem.to_arrays` stored under this name."""
    parts = []
    for part in ("hist", "full"):
        data, indices, indptr = (
            arrays[f"{name}_{part}_{field}"] for field in ("data", "indices", "indptr")
        )
        shape = tuple(arrays[f"{name}_{part}_shape"].tolist())
        hist = sparse.csr_array((data, indices, indptr), shape=shape)
        check_indices(hist, name)  # kernels trust them
        parts.append(hist)
    hist, full = parts
    names = arrays.get(f"{name}_names")
    if names is not None:  # checked before the array is converted to a list
        fits = names.dtype.kind == "U" and names.shape == arrays[f"{name}_labels"].shape
        require(fits, f"{name} has names of shape {names.shape} and type {names.dtype}")
    return Side(
        hist,
        hist if hist.shape == full.shape else full,
        arrays[f"{name}_labels"],
        arrays[f"{name}_kept"],
        None if names is None else tuple(names.tolist()),
        arrays.get(f"{name}_scale"),
    )


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
