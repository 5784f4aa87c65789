"""Row and column histograms of a nonnegative matrix: checked, normalized, repeats merged.

Bad data raise here, before any work, so that maps and solvers need not check again. Sparse input
stays sparse from end to end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.formula import Formula
from cometric.core.histograms import (
    MERGE_TOLERANCE,
    NORMALIZED,
    SMOOTHED,
    Histograms,
    balance,
    label_repeats,
    normalize,
    smooth,
)
from cometric.core.inputs import (
    BadData,
    Fault,
    Mask,
    check_entries,
    check_not_empty,
    counted,
    read_matrix,
    read_names,
)
from cometric.core.matching import describe_differences, find_bins, select
from cometric.core.types import Index, Matrix, Vector
from cometric.core.validation import SUM_TOLERANCE, check_problem, require
from cometric.core.warn import warn


@dataclass(frozen=True, eq=False)
class Side:
    """The histograms of one side, distinct ones only.

    Items that repeat one another are at distance 0 and equally far from everything else, so
    transport may treat them as one: as one histogram on this side, as one bin on the other.
    """

    hist: sparse.csr_array  # distinct histograms over the distinct bins; rows sum to 1
    full: sparse.csr_array  # the same over all kept bins, for the norm R; is `hist` if none merged
    labels: Index  # kept item -> its row of `hist`
    kept: Mask  # original item -> was it kept (see `drop_empty`)
    names: tuple[str, ...] | None = None  # of the kept items, where the data named them
    scale: Vector | None = None  # by which balancing multiplied each kept item, None for 1

    @cached_property
    def histograms(self) -> Histograms:
        """``hist`` for maps, which need not check it again."""
        return Histograms(self.hist)

    @cached_property
    def full_histograms(self) -> Histograms:
        """``full`` likewise."""
        return self.histograms if self.full is self.hist else Histograms(self.full)

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the kept items; where the data had none, their numbers in it."""
        return self.names or tuple(map(str, np.flatnonzero(self.kept)))

    @property
    def first(self) -> Index:
        """The kept item that each row of ``hist`` came from."""
        return np.unique(self.labels, return_index=True)[1].astype(np.int64)

    def reduce(self, distances: Matrix) -> Matrix:
        """Distances between the distinct items, from those between all kept ones."""
        if len(self.labels) == self.hist.shape[0]:
            return distances
        return distances[np.ix_(self.first, self.first)]

    def expand(self, distances: Matrix) -> Matrix:
        """Distances between all kept items, from those between the distinct ones.

        Repeats get the diagonal entry, 0. The array itself comes back if nothing was merged.
        """
        k = self.hist.shape[0]
        if distances.shape != (k, k):
            raise ValueError(
                f"`distances` has shape {distances.shape}; there are {k} distinct items, "
                f"so pass an array of shape {(k, k)}."
            )
        return distances if len(self.labels) == k else distances[np.ix_(self.labels, self.labels)]


@dataclass(frozen=True, eq=False)
class Problem:
    """Histograms and the formula of the distances between them.

    The two sides of the data are A, the rows of X, and B, its columns, all summing to 1.
    """

    samples: Side
    features: Side
    smoothing: float = 0.0  # mass that was added to every bin
    mass_error: float = NORMALIZED  # bound of the relative error of every mass in `full`
    formula: Formula = Formula()

    def __repr__(self) -> str:
        n, m = len(self.samples.labels), len(self.features.labels)
        words = [f"{n} samples x {m} features"]
        for side, item, bins in (
            (self.samples, "sample", "features"),
            (self.features, "feature", "samples"),
        ):
            k = side.hist.shape[0]
            words.append(f"{round(side.full.nnz / k, 2):.12g} {bins} per {item}")
            if k < len(side.labels):
                words.append(f"{counted(len(side.labels) - k, f'repeated {item}')} merged")
            if not side.kept.all():
                words.append(f"{counted(int((~side.kept).sum()), f'empty {item}')} dropped")
        return f"Problem({', '.join(words)})"

    @classmethod
    def from_data(
        cls,
        X: Any,
        *,
        normalization_steps: int = 1,
        smoothing: float = 0.0,
        drop_empty: bool = False,
        formula: Formula | None = None,
    ) -> Problem:
        """The histograms of the rows and of the columns of ``X``.

        ``A_ik = X_ik / sum_l X_il`` and ``B_ki = X_ik / sum_j X_jk``, always in float64.

        Parameters
        ----------
        X
            Nonnegative, samples by features: a NumPy array, nested lists, any SciPy sparse
            format (never densified), a pandas DataFrame, a torch tensor, an AnnData (its
            ``.X``), or anything NumPy can read. A tuple of length two is ``(A, B)``, the
            histograms themselves: A is n x m, B is m x n, and every row sums to 1.
        normalization_steps
            1 normalizes plainly. Each further step first scales the rows of ``X`` to equal
            sums, then its columns, so that many steps draw A and B from a matrix whose rows
            sum to 1 and whose columns sum to n / m, where such a scaling exists.
        smoothing
            Mass added to every bin: ``a -> (a + smoothing) / (1 + d * smoothing)`` for a
            histogram of d bins. Any positive value fills all bins and so gives up sparsity.
        drop_empty
            Leave out empty rows and columns, which are an error otherwise (subsampled data often
            have some); ``kept`` of each side says which ones stayed.

        formula
            What distances are made of, beside transport; nothing by default.

        Notes
        -----
        Rows (or columns) that are proportional, up to ``MERGE_TOLERANCE``, are merged with a
        warning; ``Side.expand`` brings them back at distance 0.
        """
        _check_options(normalization_steps, smoothing)
        if isinstance(X, tuple) and len(X) == 2:
            if normalization_steps != 1:
                raise ValueError(
                    f"`normalization_steps` is {normalization_steps}, but (A, B) are histograms "
                    "already. Leave it at 1, or pass the matrix they came from."
                )
            A, B = _read_histograms(*X)
            words = ("`A`", "row"), ("`B`", "row")
            kept = np.ones(A.shape[0], dtype=bool), np.ones(B.shape[0], dtype=bool)
            scales: tuple[Vector | None, Vector | None] = None, None
        else:
            matrix = read_matrix(X, "X")
            check_entries(matrix, "X")
            kept = _find_used(matrix, drop_empty)
            matrix, scales = balance(matrix[kept[0]][:, kept[1]], normalization_steps - 1)
            A, B = normalize(matrix), normalize(matrix.T.tocsr())
            words = ("`X`", "row"), ("`X`", "column")
        A, B = smooth(A, smoothing), smooth(B, smoothing)
        rows, columns = _merge(A, *words[0], "samples"), _merge(B, *words[1], "features")
        names = read_names(X)
        return cls(
            _side(A, rows, columns, kept[0], names[0], scales[0]),
            _side(B, columns, rows, kept[1], names[1], scales[1]),
            float(smoothing),
            SMOOTHED if smoothing else NORMALIZED,
            formula or Formula(),
        )

    def mass_errors(self) -> tuple[float, float]:
        """Bounds of the relative error of the masses of samples and of features in ``hist``.

        They are against X divided by its sums in exact arithmetic (against the balanced X, as
        rounded, if there was balancing). Masses of merged bins were added up, rounding each time.
        """
        sides = self.samples, self.features
        most = [int(np.bincount(side.labels).max()) for side in sides]
        samples, features = (self.mass_error + (k - 1) * 2.0**-53 for k in reversed(most))
        return samples, features

    @property
    def is_disconnected(self) -> bool:
        """Whether the data are blocks, several with distances inside, or more than two blocks."""
        shared = self.samples.hist + self.features.hist.T  # who shares mass with whom
        tied = sparse.block_array([[None, shared], [shared.T, None]])
        blocks, label = sparse.csgraph.connected_components(tied, directed=False)
        inner = sum(np.bincount(label) > 2)  # blocks of more than one sample and one feature
        return bool(blocks > 2 or inner > 1)

    @property
    def merged(self) -> tuple[int, int]:
        """How many samples and how many features repeat others and were merged with them."""
        sides = self.samples, self.features
        samples, features = (len(side.labels) - side.hist.shape[0] for side in sides)
        return samples, features

    def read_new(self, X: Any, of: str = "samples") -> Side:
        """The histograms of items that were not there, made as those of the data were.

        Parameters
        ----------
        X
            New samples as rows, over the features of the original data; with ``of="features"``
            new features as columns, over its samples. What :meth:`from_data` reads is read,
            except histograms as a tuple.
        of
            "samples" or "features".

        Notes
        -----
        Where the original data and ``X`` both name their features (an AnnData, a pandas table),
        these are matched by name, whatever their order and number: learned features that ``X``
        lacks count as zero, and features that were not learned from, or were empty and dropped,
        are left out. A warning says which, and how much mass is left out. Every sample must have
        some mass on learned features. Without names, ``X`` must have all features of the original
        data, dropped ones included, in their order. With ``of="features"`` the same holds for
        samples.
        """
        rows, columns = read_names(X)
        if of == "samples":
            item, bins, own, bin_names = "row", self.features, rows, columns
        elif of == "features":
            item, bins, own, bin_names = "column", self.samples, columns, rows
        else:
            raise ValueError(f"`of` is {of!r}; choose 'samples' or 'features'.")
        matrix = read_matrix(X, "X", least=(1, 1))
        check_entries(matrix, "X")
        matrix = matrix if of == "samples" else matrix.T.tocsr()
        places = find_bins(matrix.shape[1], bin_names, bins.kept, bins.names, of, across=own)
        check_not_empty(np.diff(matrix.indptr) > 0, "X", item, "Drop them: they hold no mass.")
        differences = describe_differences(matrix, places, bin_names, bins.called, of)
        if differences:
            warn(differences)
        matrix = select(matrix, places)
        without = np.flatnonzero(np.diff(matrix.indptr) == 0)
        if len(without):
            remedy = "Nothing is known of them; leave them out."
            raise BadData("X", Fault.UNKNOWN, len(without), remedy, **{item: int(without[0])})
        if bins.scale is not None:
            matrix.data *= bins.scale[matrix.indices]
        hist = smooth(normalize(matrix), self.smoothing)
        all_kept = np.ones(hist.shape[0], dtype=bool)
        return _side(hist, label_repeats(hist), bins.labels, all_kept, own)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All there is, as named arrays to be stored."""
        arrays: dict[str, NDArray[Any]] = {
            "smoothing": np.array(self.smoothing),
            "mass_error": np.array(self.mass_error),
        }
        for name in ("samples", "features"):
            side: Side = getattr(self, name)
            arrays |= {f"{name}_labels": side.labels, f"{name}_kept": side.kept}
            if side.names is not None:
                arrays[f"{name}_names"] = np.array(side.names, dtype=np.str_)
            if side.scale is not None:
                arrays[f"{name}_scale"] = side.scale
            for part in ("hist", "full"):
                hist = getattr(side, part)
                arrays |= {
                    f"{name}_{part}_indptr": hist.indptr,
                    f"{name}_{part}_indices": hist.indices,
                    f"{name}_{part}_data": hist.data,
                    f"{name}_{part}_shape": np.array(hist.shape),
                }
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Problem:
        """The problem that :meth:`to_arrays` took apart."""
        samples, features = _stored_side(arrays, "samples"), _stored_side(arrays, "features")
        # Version 0.1 stored no bound: its sums were rounded once per entry.
        entries = max(np.diff(side.full.indptr).max() for side in (samples, features))
        error = arrays.get("mass_error", SMOOTHED + 4 * entries * 2.0**-53)
        problem = cls(samples, features, float(arrays["smoothing"]), float(error))
        check_problem(problem)
        require(NORMALIZED <= problem.mass_error < 1e-6, "its masses are too far from exact")
        return problem


def _stored_side(arrays: dict[str, NDArray[Any]], name: str) -> Side:
    parts = []
    for part in ("hist", "full"):
        data, indices, indptr = (
            arrays[f"{name}_{part}_{field}"] for field in ("data", "indices", "indptr")
        )
        shape = tuple(arrays[f"{name}_{part}_shape"].tolist())
        hist = sparse.csr_array((data, indices, indptr), shape=shape)
        hist.check_format(full_check=True)  # kernels trust the indices
        parts.append(hist)
    hist, full = parts
    names = arrays.get(f"{name}_names")
    if names is not None:  # before a list is made of them
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


def _read_histograms(first: Any, second: Any) -> tuple[sparse.csr_array, sparse.csr_array]:
    A, B = read_matrix(first, "A"), read_matrix(second, "B")
    if A.shape != B.shape[::-1]:
        raise ValueError(
            f"`A` has shape {A.shape} and `B` has shape {B.shape}; if A is n x m, "
            "B must be m x n. Transpose one of them."
        )
    for matrix, name in ((A, "A"), (B, "B")):
        check_entries(matrix, name)
        check_not_empty(np.diff(matrix.indptr) > 0, name, "row", "Every histogram needs some mass.")
        sums = matrix.sum(axis=1)
        bad = np.flatnonzero(~(abs(sums - 1) <= SUM_TOLERANCE))
        if len(bad):
            raise ValueError(
                f"`{name}` has {counted(len(bad), 'row')} whose sum is not 1 "
                f"(first: {bad[0]}, sum {sums[bad[0]]:.6g}). Divide each row by its sum."
            )
    return normalize(A), normalize(B)


def _check_options(normalization_steps: Any, smoothing: Any) -> None:
    steps = normalization_steps
    if isinstance(steps, bool) or not isinstance(steps, Integral) or int(steps) < 1:
        raise ValueError(f"`normalization_steps` is {steps!r}; pass an integer, at least 1.")
    if not isinstance(smoothing, Real) or not 0 <= float(smoothing) < math.inf:
        raise ValueError(f"`smoothing` is {smoothing!r}; pass a finite number, at least 0.")


def _find_used(matrix: sparse.csr_array, drop_empty: bool) -> tuple[Mask, Mask]:
    """Which rows and columns hold mass; all of them must, unless ``drop_empty``."""
    rows = np.diff(matrix.indptr) > 0
    columns = np.bincount(matrix.indices, minlength=matrix.shape[1]) > 0
    if not drop_empty:
        remedy = "Pass `drop_empty=True` to leave them out, or drop them yourself."
        check_not_empty(rows, "X", "row", remedy)
        check_not_empty(columns, "X", "column", remedy)
    n, m = int(rows.sum()), int(columns.sum())
    if min(n, m) < 2:
        raise ValueError(
            f"`X` has {counted(n, 'row')} and {counted(m, 'column')} left once empty ones are "
            "dropped; need at least 2 of each."
        )
    return rows, columns


def _merge(hist: sparse.csr_array, name: str, item: str, side: str) -> Index:
    """The label of each row of ``hist``; says how many repeat others."""
    labels = label_repeats(hist)
    distinct = int(labels.max()) + 1
    if distinct == 1:
        raise ValueError(
            f"All {item}s of {name} are proportional (to within {MERGE_TOLERANCE:.0e}), so all "
            f"{side} are alike and no distance between them can be learned."
        )
    repeats = len(labels) - distinct
    if repeats:
        warn(
            f"{name} has {counted(repeats, item)} that repeat{'s' * (repeats == 1)} others up to "
            "scale; they get distance 0 to those and are merged with them."
        )
    return labels


def _side(
    hist: sparse.csr_array,
    labels: Index,
    bins: Index,
    kept: Mask,
    names: list[str] | None,
    scale: Vector | None = None,
) -> Side:
    """One row per label, one bin per label of the other side."""
    if labels.max() + 1 < len(labels):
        hist = hist[np.unique(labels, return_index=True)[1]]
    full, n_bins = hist, int(bins.max()) + 1
    if n_bins < len(bins):
        where = bins[full.indices].astype(full.indices.dtype)
        shape = (full.shape[0], n_bins)
        hist = sparse.csr_array((full.data.copy(), where, full.indptr.copy()), shape=shape)
        hist.sum_duplicates()
    called = None if names is None else tuple(np.array(names, dtype=object)[kept])
    return Side(hist, full, labels, kept, called, scale)
