"""Row and column histograms of a nonnegative matrix: checked, normalized, repeats merged.

Whatever is wrong with the data is said here, before any work, so that maps and solvers can
trust what they are given. Sparse input stays sparse from end to end.
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
from cometric.core.histograms import Histograms, check_indices
from cometric.core.matching import describe_differences, find_bins, select
from cometric.core.text import storable
from cometric.core.types import Index, Matrix, Vector
from cometric.core.validation import SUM_TOLERANCE, check_problem, require
from cometric.core.warn import warn

MERGE_TOLERANCE = 1e-12
"""Histograms at most this far apart in l1 norm (their sums are 1) count as one."""

WIDE_RANGE = 1e12
"""Ratio of the largest to the smallest positive entry above which a warning is given."""

NORMALIZED, SMOOTHED = 3 * 2.0**-53, 8 * 2.0**-53
"""Bounds of the relative error of a mass that was normalized, and of one smoothed after it."""

Mask = NDArray[np.bool_]


class BadData(ValueError):
    """What a matrix has and must not have, and where it has it first.

    Callers who know the data under another name, or count its rows otherwise, say it their way
    with :meth:`told`.
    """

    def __init__(
        self, name: str, found: str, cure: str, row: int | None = None, column: int | None = None
    ) -> None:
        self.name, self.found, self.cure, self.row, self.column = name, found, cure, row, column
        first = f"row {row}, column {column}"
        if row is None or column is None:  # what it has says which of them is meant
            first = f"{column if row is None else row}"
        super().__init__(self.told(name, first))

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: an error that does not come back hangs a pool of processes."""
        return type(self), (self.name, self.found, self.cure, self.row, self.column)

    def told(self, name: str, first: str) -> str:
        """The message, for data called ``name`` and a place described by ``first``."""
        return f"`{name}` has {self.found} (first: {first}). {self.cure}"


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
                words.append(f"{_count(len(side.labels) - k, f'repeated {item}')} merged")
            if not side.kept.all():
                words.append(f"{_count(int((~side.kept).sum()), f'empty {item}')} dropped")
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
            matrix = _read(X, "X")
            _check_entries(matrix, "X")
            kept = _find_used(matrix, drop_empty)
            matrix, scales = _balance(matrix[kept[0]][:, kept[1]], normalization_steps - 1)
            A, B = _normalize(matrix), _normalize(matrix.T.tocsr())
            words = ("`X`", "row"), ("`X`", "column")
        A, B = _smooth(A, smoothing), _smooth(B, smoothing)
        rows, columns = _merge(A, *words[0], "samples"), _merge(B, *words[1], "features")
        return cls(
            _side(A, rows, columns, kept[0], _names(X, "obs_names", "index"), scales[0]),
            _side(B, columns, rows, kept[1], _names(X, "var_names", "columns"), scales[1]),
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
            item, bins, own, found = "row", self.features, rows, columns
        elif of == "features":
            item, bins, own, found = "column", self.samples, columns, rows
        else:
            raise ValueError(f"`of` is {of!r}; choose 'samples' or 'features'.")
        matrix = _read(X, "X", least=(1, 1))
        _check_entries(matrix, "X")
        matrix = matrix if of == "samples" else matrix.T.tocsr()
        places = find_bins(matrix.shape[1], found, bins.kept, bins.names, of, across=own)
        _refuse_empty(np.diff(matrix.indptr) > 0, "X", item, "Drop them: they hold no mass.")
        differences = describe_differences(matrix, places, found, bins.called, of)
        if differences:
            warn(differences)
        matrix = select(matrix, places)
        without = np.flatnonzero(np.diff(matrix.indptr) == 0)
        if len(without):
            what = f"{_count(len(without), of[:-1])} without mass on anything learned"
            cure = "Nothing is known of them; leave them out."
            raise BadData("X", what, cure, **{item: int(without[0])})
        if bins.scale is not None:
            matrix.data *= bins.scale[matrix.indices]
        hist = _smooth(_normalize(matrix), self.smoothing)
        all_kept = np.ones(hist.shape[0], dtype=bool)
        return _side(hist, _label(hist), bins.labels, all_kept, own)

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


def read_samples(X: Any) -> sparse.csr_array:
    """A float64 CSR copy of the matrix: finite, nonnegative, with some mass in every row."""
    matrix = _read(X, "X")
    _check_entries(matrix, "X")
    _refuse_empty(np.diff(matrix.indptr) > 0, "X", "row", "Drop them: they hold no mass.")
    return matrix


def read_names(X: Any) -> tuple[list[str] | None, list[str] | None]:
    """What AnnData or pandas call the rows and the columns; None where there are no names."""
    return _names(X, "obs_names", "index"), _names(X, "var_names", "columns")


def _names(X: Any, *attributes: str) -> list[str] | None:
    """What AnnData or pandas call the items of one side."""
    if not (hasattr(X, "obs_names") or (hasattr(X, "columns") and hasattr(X, "index"))):
        return None
    found = next(getattr(X, name) for name in attributes if hasattr(X, name))
    return [storable(str(name)) for name in found]


def _read(X: Any, name: str, least: tuple[int, int] = (2, 2)) -> sparse.csr_array:
    """A fresh float64 CSR copy: indices sorted, int32 if they fit; no entry twice, no zero."""
    found = _unwrap(X, name)
    if found.ndim != 2:
        raise ValueError(
            f"`{name}` has {_count(found.ndim, 'dimension')}; pass a matrix, samples by features. "
            "(A tuple of length two is read as the histograms (A, B).)"
        )
    rows, columns = least
    if found.shape[0] < rows or found.shape[1] < columns:
        raise ValueError(
            f"`{name}` has shape {tuple(found.shape)}; need at least {_count(rows, 'row')} and "
            f"{_count(columns, 'column')}."
        )
    if found.dtype.kind not in "biuf":
        raise ValueError(
            f"`{name}` has dtype {found.dtype}; pass real numbers, for example "
            f"`{name}.astype(float)`."
        )
    if found.dtype == np.float16:
        _warn_half(name, "float16")
    check_indices(found, name)
    with np.errstate(over="ignore"):  # a long double too large for float64: caught as inf
        # Convert before merging entries given twice: their sum may not fit a small integer.
        matrix = sparse.csr_array(found.astype(np.float64))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    index = np.int32 if max(matrix.nnz, *matrix.shape) <= np.iinfo(np.int32).max else np.int64
    matrix.indices, matrix.indptr = matrix.indices.astype(index), matrix.indptr.astype(index)
    return matrix


def _unwrap(X: Any, name: str) -> Any:
    """The NumPy array or SciPy sparse matrix inside ``X``, by what it can do, not its class."""
    if hasattr(X, "obs_names") and hasattr(X, "var_names"):  # AnnData
        if X.X is None:
            raise ValueError(
                f"`{name}` is an AnnData whose `.X` is None. Pass one of its layers: "
                f"{list(getattr(X, 'layers', ()))}."
            )
        X = X.X.to_memory() if hasattr(X.X, "to_memory") else X.X
    if hasattr(X, "__dask_graph__"):  # NumPy would not look into blocks that are sparse
        X = X.compute()
    if sparse.issparse(X):
        return X
    if hasattr(X, "detach"):  # torch
        X = X.detach().cpu()
        if str(X.dtype) == "torch.bfloat16":  # unknown to NumPy
            _warn_half(name, "bfloat16")
            X = X.float()
        if str(X.layout) != "torch.strided":
            X = X.to_sparse_coo().coalesce()
            return sparse.coo_array((X.values().numpy(), X.indices().numpy()), shape=tuple(X.shape))
        return X.numpy()
    if hasattr(X, "to_numpy"):  # pandas and its like
        columns = list(X.dtypes) if hasattr(X, "columns") else [None]
        if columns and all(getattr(dtype, "fill_value", None) == 0 for dtype in columns):
            return X.sparse.to_coo()
        values = X.to_numpy()
        if values.dtype == object and all(getattr(t, "kind", "O") in "biuf" for t in columns):
            return X.to_numpy(dtype=float, na_value=np.nan)  # bool beside float, or nullable
        return values
    if np.ma.is_masked(X):
        return np.ma.filled(X.astype(np.float64), np.nan)  # missing: reported as NaN
    if hasattr(X, "__dlpack__") and not hasattr(X, "__array__"):
        return np.from_dlpack(X)
    try:
        found = np.asarray(X)
    except ValueError as error:
        raise ValueError(f"`{name}` cannot be read as a matrix: {error}.") from error
    if found.ndim == 0 and found.dtype.kind in "OUS":  # NumPy found nothing to look into
        raise ValueError(
            f"`{name}` is a {type(X).__name__}, which cannot be read as a matrix; pass an array, "
            "a sparse matrix, a DataFrame or an AnnData."
        )
    return found


def _read_histograms(first: Any, second: Any) -> tuple[sparse.csr_array, sparse.csr_array]:
    A, B = _read(first, "A"), _read(second, "B")
    if A.shape != B.shape[::-1]:
        raise ValueError(
            f"`A` has shape {A.shape} and `B` has shape {B.shape}; if A is n x m, "
            "B must be m x n. Transpose one of them."
        )
    for matrix, name in ((A, "A"), (B, "B")):
        _check_entries(matrix, name)
        _refuse_empty(np.diff(matrix.indptr) > 0, name, "row", "Every histogram needs some mass.")
        sums = matrix.sum(axis=1)
        bad = np.flatnonzero(~(abs(sums - 1) <= SUM_TOLERANCE))
        if len(bad):
            raise ValueError(
                f"`{name}` has {_count(len(bad), 'row')} whose sum is not 1 "
                f"(first: {bad[0]}, sum {sums[bad[0]]:.6g}). Divide each row by its sum."
            )
    return _normalize(A), _normalize(B)


def _check_options(normalization_steps: Any, smoothing: Any) -> None:
    steps = normalization_steps
    if isinstance(steps, bool) or not isinstance(steps, Integral) or int(steps) < 1:
        raise ValueError(f"`normalization_steps` is {steps!r}; pass an integer, at least 1.")
    if not isinstance(smoothing, Real) or not 0 <= float(smoothing) < math.inf:
        raise ValueError(f"`smoothing` is {smoothing!r}; pass a finite number, at least 0.")


def _check_entries(matrix: sparse.csr_array, name: str) -> None:
    """Refuse entries that are not finite and nonnegative, warn of a very wide range."""
    data = matrix.data
    for bad, what, cure in (
        (np.isnan(data), "NaN entry", "Fill them in, or leave out their rows or columns."),
        (np.isinf(data), "infinite entry", "Replace them by finite values."),
        (data < 0, "negative entry", "Shift or clip the data: masses are nonnegative."),
    ):
        where = np.flatnonzero(bad)
        if len(where):
            row = int(np.searchsorted(matrix.indptr, where[0], side="right")) - 1
            column = int(matrix.indices[where[0]])
            raise BadData(name, _count(len(where), what), cure, row=row, column=column)
    low, top = (float(data.min()), float(data.max())) if len(data) else (1.0, 1.0)
    if low * WIDE_RANGE < top:
        warn(
            f"`{name}` ranges from {low:.3g} to {top:.3g}, more than a factor {WIDE_RANGE:.0e}: "
            "its smallest entries hardly count. Check its units.",
        )


def _find_used(matrix: sparse.csr_array, drop_empty: bool) -> tuple[Mask, Mask]:
    """Which rows and columns hold mass; all of them must, unless ``drop_empty``."""
    rows = np.diff(matrix.indptr) > 0
    columns = np.bincount(matrix.indices, minlength=matrix.shape[1]) > 0
    if not drop_empty:
        cure = "Pass `drop_empty=True` to leave them out, or drop them yourself."
        _refuse_empty(rows, "X", "row", cure)
        _refuse_empty(columns, "X", "column", cure)
    n, m = int(rows.sum()), int(columns.sum())
    if min(n, m) < 2:
        raise ValueError(
            f"`X` keeps {_count(n, 'row')} and {_count(m, 'column')} once empty ones are dropped; "
            "need at least 2 of each."
        )
    return rows, columns


def _refuse_empty(used: Mask, name: str, item: str, cure: str) -> None:
    empty = np.flatnonzero(~used)
    if len(empty):
        found, first = _count(len(empty), f"empty {item}"), int(empty[0])
        raise BadData(name, found, cure, **{item: first})


def _normalize(matrix: sparse.csr_array) -> sparse.csr_array:
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


def _balance(
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
            matrix = _normalize(matrix).T.tocsr()
            if not np.diff(matrix.indptr).all():
                raise ValueError(
                    "`X` has too wide a range for `normalization_steps` > 1: some entries "
                    "vanish when scaled. Leave it at 1, or clip the smallest entries."
                )
    rows, columns = (np.exp(log - log.max()) for log in logs)
    return matrix, (rows, columns)


def _smooth(hist: sparse.csr_array, smoothing: float) -> sparse.csr_array:
    if smoothing == 0:
        return hist
    smoothing = float(smoothing)
    return sparse.csr_array((hist.toarray() + smoothing) / (1.0 + hist.shape[1] * smoothing))


def _merge(hist: sparse.csr_array, name: str, item: str, side: str) -> Index:
    """The label of each row of ``hist``; says how many repeat others."""
    labels = _label(hist)
    distinct = int(labels.max()) + 1
    if distinct == 1:
        raise ValueError(
            f"All {item}s of {name} are proportional (to within {MERGE_TOLERANCE:.0e}), so all "
            f"{side} are alike and no distance between them can be learned."
        )
    repeats = len(labels) - distinct
    if repeats:
        warn(
            f"{name} has {_count(repeats, item)} that repeat{'s' * (repeats == 1)} others up to "
            "scale; they get distance 0 to those and are merged with them.",
        )
    return labels


def _label(hist: sparse.csr_array) -> Index:
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


def _count(k: int, thing: str) -> str:
    plural = f"{thing[:-1]}ies" if thing.endswith("ry") else f"{thing}s"
    return f"{k} {thing if k == 1 else plural}"


def _warn_half(name: str, dtype: str) -> None:
    warn(
        f"`{name}` is {dtype}, which keeps 2 or 3 digits; they are read as float64 without "
        "gaining any. Pass float32 or float64 if you have it.",
    )
