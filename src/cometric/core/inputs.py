"""Data of any kind read as a sparse matrix, and errors about invalid data."""

from __future__ import annotations

from enum import Enum
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.arguments import quoted
from cometric.core.text import storable_names
from cometric.core.validation import SUM_TOLERANCE
from cometric.core.warn import warn

WIDE_RANGE = 1e12
"""Ratio of the largest to the smallest positive entry above which a warning is given."""

NOT_SCALED = "Pass counts, or their logarithms: data that were scaled or centered are not masses."
"""What to do about negative entries."""

COUNT_WORDS = "pass counts of their words, for example by scikit-learn's CountVectorizer."
"""What to do about a list of texts."""

COUNT_SAME_WORDS = (
    "pass counts of the same words in the same order as in the learned data: `transform` of the "
    "CountVectorizer that counted those, not a new `fit_transform`."
)
"""What to do about a list of texts passed as new data."""


class Format(NamedTuple):
    """A floating-point format: its unit roundoff, and its smallest normal number."""

    unit: float
    smallest: float


FORMATS = {
    "float32": Format(2.0**-24, 2.0**-126),
    "float16": Format(2.0**-11, 2.0**-14),
    "bfloat16": Format(2.0**-8, 2.0**-126),
}
"""Formats less accurate than float64, by the names of their dtypes."""

COARSEST = 2.0**-8
"""The largest of their unit roundoffs."""

Mask = NDArray[np.bool_]
Names = list[str] | None


class Precision(NamedTuple):
    """How accurate a matrix is: relative errors of its stored entries, None if these are exact."""

    errors: sparse.csr_array | None = None
    name: str = ""  # of the least accurate dtype
    unit: float = 0.0  # its unit roundoff

    def move(self, errors: sparse.csr_array) -> Precision:
        """The same with the errors of other entries."""
        return self._replace(errors=errors)


EXACT = Precision()


class Fault(Enum):
    """What a matrix must not have; the value is a description, with {} for the kind of item."""

    NAN = "NaN {}"
    INFINITE = "infinite {}"
    NEGATIVE = "negative {}"
    EMPTY = "empty {}"
    UNKNOWN = "{} without mass on anything learned"


class BadData(ValueError):
    """Invalid entries, rows or columns in a matrix.

    ``row`` and ``column`` locate the first of ``count`` faults; ``column`` is None for a faulty
    row, ``row`` for a faulty column. ``label`` is the name of that row or column, or both names
    for an entry. Callers that know the place in a file build their message from these fields.
    """

    def __init__(
        self,
        name: str,
        fault: Fault,
        count: int,
        remedy: str,
        row: int | None = None,
        column: int | None = None,
        label: str | tuple[str, str] | None = None,
    ) -> None:
        self.name, self.fault, self.count, self.remedy = name, fault, count, remedy
        self.row, self.column, self.label = row, column, label
        super().__init__(self.message(name, self._place()))

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: an error that cannot be unpickled hangs a pool of processes."""
        place = self.row, self.column, self.label
        return type(self), (self.name, self.fault, self.count, self.remedy, *place)

    def describe(self, row: str = "row", column: str = "column") -> str:
        """The fault, for example "3 empty rows", with names for rows and columns."""
        item = column if self.row is None else row if self.column is None else "entry"
        return f"{self.count} {self.fault.value.format(plural(self.count, item))}"

    def message(self, name: str, first: str, row: str = "row", column: str = "column") -> str:
        """The whole message, for data called ``name`` and a fault at ``first``."""
        return f"`{name}` has {self.describe(row, column)} (first: {first}). {self.remedy}"

    def _place(self) -> str:
        if self.row is None or self.column is None:  # the description says row or column
            number = f"{self.column if self.row is None else self.row}"
            return number if self.label in (None, number) else f"{number}, {self.label!r}"
        place = f"row {self.row}, column {self.column}"
        if self.label in (None, (f"{self.row}", f"{self.column}")):
            return place
        return f"{place}: {', '.join(map(repr, self.label or ()))}"


def read_samples(X: Any) -> sparse.csr_array:
    """A float64 CSR copy of the matrix: finite, nonnegative, with some mass in every row."""
    matrix = read_matrix(X, "X")
    check_not_empty(np.diff(matrix.indptr) > 0, "X", "row", "Drop them: they hold no mass.")
    return matrix


def read_used(
    X: Any, drop_empty: bool
) -> tuple[sparse.csr_array, Precision, tuple[Mask, Mask], tuple[Names, Names]]:
    """The nonempty rows and columns, their precision and masks, and the names of all."""
    (matrix, precision), names = read_precise(X, "X"), read_names(X)
    rows, columns = _find_used(matrix, drop_empty, names)
    if precision.errors is not None:
        precision = precision.move(precision.errors[rows][:, columns])
    return matrix[rows][:, columns], precision, (rows, columns), names


def _find_used(
    matrix: sparse.csr_array, drop_empty: bool, names: tuple[Names, Names]
) -> tuple[Mask, Mask]:
    """Masks of the nonempty rows and columns; raises if any is empty, unless ``drop_empty``."""
    rows = np.diff(matrix.indptr) > 0
    columns = np.bincount(matrix.indices, minlength=matrix.shape[1]) > 0
    if not drop_empty:
        remedy = "Pass `drop_empty=True` to leave them out, or drop them yourself."
        check_not_empty(rows, "X", "row", remedy, names[0])
        check_not_empty(columns, "X", "column", remedy, names[1])
    n, m = int(rows.sum()), int(columns.sum())
    if min(n, m) < 2:
        raise ValueError(
            f"`X` has {counted(n, 'row')} and {counted(m, 'column')} left once empty ones are "
            "dropped; need at least 2 of each."
        )
    return rows, columns


def read_histograms(
    first: Any, second: Any
) -> tuple[tuple[sparse.csr_array, Precision], tuple[sparse.csr_array, Precision]]:
    """A pair (A, B) of histograms as rows, n x m and m x n, each summing to about 1."""
    both = read_precise(first, "A"), read_precise(second, "B")
    (A, _), (B, _) = both
    if A.shape != B.shape[::-1]:
        raise ValueError(
            f"`A` has shape {A.shape} and `B` has shape {B.shape}; if A is n x m, "
            "B must be m x n. Transpose one of them."
        )
    for matrix, name in ((A, "A"), (B, "B")):
        check_not_empty(np.diff(matrix.indptr) > 0, name, "row", "Every histogram needs some mass.")
        sums = matrix.sum(axis=1)
        bad = np.flatnonzero(~(abs(sums - 1) <= SUM_TOLERANCE))
        if len(bad):
            raise ValueError(
                f"`{name}` has {counted(len(bad), 'row')} whose sum is not 1 "
                f"(first: {bad[0]}, sum {sums[bad[0]]:.6g}). Divide each row by its sum."
            )
    return both


def read_names(X: Any) -> tuple[Names, Names]:
    """Names of the rows and the columns of an AnnData or a table; None without names."""
    return _names(X, "obs_names", "index"), _names(X, "var_names", "columns")


def _names(X: Any, *attributes: str) -> Names:
    """Names of the rows, or of the columns, of an AnnData or a table; tables may have no index."""
    if not (hasattr(X, "obs_names") or hasattr(X, "columns")):
        return None
    labels = next((getattr(X, name) for name in attributes if hasattr(X, name)), None)
    if labels is None or not (hasattr(X, "index") or all(isinstance(k, str) for k in labels)):
        return None
    return storable_names(labels)


def read_matrix(
    X: Any,
    name: str,
    least: tuple[int, int] = (2, 2),
    texts: str = COUNT_WORDS,
    signed: bool = False,
) -> sparse.csr_array:
    """A fresh float64 CSR copy, finite and, unless ``signed``, nonnegative.

    Indices are sorted, int32 if they fit; there are no duplicates and no explicit zeros. ``texts``
    ends the error message for a list of texts.
    """
    return _read(X, name, least, texts, signed)[0]


def read_precise(
    X: Any, name: str, least: tuple[int, int] = (2, 2), texts: str = COUNT_WORDS
) -> tuple[sparse.csr_array, Precision]:
    """The result of :func:`read_matrix`, and the precision of its entries, from their dtype."""
    matrix, dtype = _read(X, name, least, texts)
    return matrix, precision_of(matrix, X, dtype)


def _read(
    X: Any, name: str, least: tuple[int, int], texts: str, signed: bool = False
) -> tuple[sparse.csr_array, np.dtype[Any]]:
    """The matrix, and the dtype it had."""
    data = unwrap(X, name)
    if data.ndim == 1 and _is_text(data):
        raise ValueError(f"`{name}` is a list of texts; {texts}")
    if data.ndim != 2:
        raise ValueError(
            f"`{name}` has {counted(data.ndim, 'dimension')}; pass a matrix, samples by features. "
            "(A tuple of length two is read as the histograms (A, B).)"
        )
    _check_columns(X, name, texts)
    rows, columns = least
    if data.shape[0] < rows or data.shape[1] < columns:
        raise ValueError(
            f"`{name}` has shape {tuple(data.shape)}; need at least {counted(rows, 'row')} and "
            f"{counted(columns, 'column')}."
        )
    if data.dtype.kind not in "biuf":
        remedy = f"pass real numbers, for example `{name}.astype(float)`"
        if hasattr(X, "columns") and not hasattr(X, "astype"):  # polars
            remedy = "leave out columns that are not numbers"
        raise ValueError(f"`{name}` has dtype {data.dtype}; {remedy}.")
    if data.dtype == np.float16:
        _warn_half(name, "float16")
    check_indices(data, name)
    with np.errstate(over="ignore"):  # a long double too large for float64: caught as inf
        # Convert before adding up duplicates: their sum may not fit a small integer type.
        matrix = sparse.csr_array(data.astype(np.float64))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    index = np.int32 if max(matrix.nnz, *matrix.shape) <= np.iinfo(np.int32).max else np.int64
    matrix.indices, matrix.indptr = matrix.indices.astype(index), matrix.indptr.astype(index)
    _check_entries(X, matrix, name, signed)
    return matrix, data.dtype


def _check_columns(X: Any, name: str, texts: str) -> None:
    """Raise if columns of a table are text; ``texts`` is the remedy for a single column."""
    if not (hasattr(X, "iloc") and hasattr(X, "dtypes")):
        return
    kinds = [getattr(dtype, "kind", "O") for dtype in getattr(X, "dtypes", ())]
    bad = [k for k, kind in enumerate(kinds) if kind in "OUT" and _has_text(X.iloc[:, k])]
    if len(kinds) == 1 and bad:
        raise ValueError(f"`{name}` is a table of texts; {texts}")
    if 0 < len(bad) < len(kinds):
        raise ValueError(
            f"`{name}` has text in {counted(len(bad), 'column')} "
            f"({quoted([str(X.columns[k]) for k in bad])}); pass numbers only. Leave it out, or "
            "use names of samples as the index, by `set_index`."
        )


def _has_text(column: Any) -> bool:
    return any(isinstance(entry, str) for entry in column)


def precision_of(matrix: sparse.csr_array, X: Any, dtype: Any) -> Precision:
    """The accuracy of the entries of ``matrix``, read from ``X`` as an array of a ``dtype``.

    An entry x of a format with the unit roundoff u was rounded by at most u x, by more if it is
    below the smallest normal number. Whole numbers up to 1 / u are exact if all entries are whole:
    they are counts. The columns of a table may have different dtypes.
    """
    names = (
        [_name_of_dtype(kind) for kind in getattr(X, "dtypes", ())] if hasattr(X, "columns") else []
    )
    if not names:
        names = [_name_of_dtype(getattr(X, "dtype", dtype)), _name_of_dtype(dtype)]
        names = [next((name for name in names if name in FORMATS), "")] * matrix.shape[1]
    formats = [FORMATS.get(name, Format(0.0, 0.0)) for name in names]
    rounded = [format.unit > 0.0 for format in formats]
    if not any(rounded):
        return EXACT
    units, smallest = np.transpose(formats)
    data, unit = matrix.data, units[matrix.indices]
    if np.all((unit == 0.0) | (data == np.rint(data))):
        unit = np.where(data * unit <= 1.0, 0.0, unit)
    if not unit.any():
        return EXACT
    errors = unit * np.maximum(1.0, smallest[matrix.indices] / data)
    parts = errors, matrix.indices, matrix.indptr
    coarsest = max(filter(FORMATS.__contains__, names), key=lambda name: FORMATS[name].unit)
    return Precision(sparse.csr_array(parts, shape=matrix.shape), coarsest, FORMATS[coarsest].unit)


def _name_of_dtype(dtype: Any) -> str:
    """The name of a dtype of NumPy, pandas, polars or torch, as NumPy calls it."""
    plain = getattr(dtype, "subtype", dtype)  # of sparse columns
    plain = getattr(plain, "numpy_dtype", plain)  # of columns with missing values
    return str(plain).lower().removeprefix("torch.")


def check_indices(matrix: Any, name: str) -> None:
    """Raise if indices of a sparse matrix are out of bounds: SciPy and kernels do not check."""
    if hasattr(matrix, "check_format"):  # CSR, CSC, BSR; the check may modify the matrix
        parts = matrix.data, matrix.indices, matrix.indptr
        try:
            type(matrix)(parts, shape=matrix.shape).check_format(full_check=True)
            if (np.diff(matrix.indptr) < 0).any():  # SciPy looks at matrices with entries only
                raise ValueError("index pointers must not decrease")
        except ValueError as error:
            raise ValueError(f"`{name}` is not a valid sparse matrix: {error}.") from error
    elif getattr(matrix, "format", "") == "coo":
        for axis, (index, size) in enumerate(zip(matrix.coords, matrix.shape, strict=True)):
            if len(index) and not (index.min() >= 0 and index.max() < size):
                raise ValueError(
                    f"`{name}` is not a valid sparse matrix: it has entries outside "
                    f"0 .. {size - 1} on axis {axis}."
                )


def _is_text(data: Any) -> bool:
    """Whether all entries of a vector are text."""
    if data.dtype.kind != "O":
        return data.dtype.kind in "UT"
    return len(data) > 0 and all(isinstance(entry, str) for entry in data)


def unwrap(X: Any, name: str) -> Any:
    """The NumPy array or SciPy sparse matrix inside ``X``, by duck typing."""
    if hasattr(X, "obs_names") and hasattr(X, "var_names"):  # AnnData
        if X.X is None:
            raise ValueError(
                f"`{name}` is an AnnData whose `.X` is None. Pass one of its layers: "
                f"{list(getattr(X, 'layers', ()))}."
            )
        X = X.X.to_memory() if hasattr(X.X, "to_memory") else X.X
    if hasattr(X, "__dask_graph__"):  # NumPy does not convert sparse blocks
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
        array = np.asarray(X)
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"`{name}` cannot be read as a matrix: {reason}.") from error
    if array.ndim == 0 and array.dtype.kind in "OUS":  # not array-like
        files = " Read a file first, by `anndata.read_h5ad` or `pandas.read_csv(..., index_col=0)`."
        raise ValueError(
            f"`{name}` is {_with_article(type(X).__name__)}, which cannot be read as a matrix; "
            "pass an array, a sparse matrix, a DataFrame or an AnnData."
            f"{files if isinstance(X, str | PathLike) else ''}"
        )
    return array


def _with_article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _check_entries(X: Any, matrix: sparse.csr_array, name: str, signed: bool) -> None:
    """Raise unless entries are finite and, if not ``signed``, nonnegative; warn of a wide range.

    ``X`` is the input, for the names of rows and columns.
    """
    data = matrix.data
    for bad, fault, remedy in (
        (np.isnan(data), Fault.NAN, "Replace them, or leave out their rows or columns."),
        (np.isinf(data), Fault.INFINITE, "Replace them by finite values."),
        ((data < 0) & (not signed), Fault.NEGATIVE, NOT_SCALED),
    ):
        where = np.flatnonzero(bad)
        if len(where):
            row = int(np.searchsorted(matrix.indptr, where[0], side="right")) - 1
            column = int(matrix.indices[where[0]])
            rows, columns = read_names(X)
            label = (rows[row], columns[column]) if rows and columns else None
            raise BadData(name, fault, len(where), remedy, row, column, label)
    sizes = abs(data) if signed else data
    low, top = (float(sizes.min()), float(sizes.max())) if len(data) else (1.0, 1.0)
    if low * WIDE_RANGE < top:
        warn(
            f"`{name}` ranges from {low:.3g} to {top:.3g}, more than a factor {WIDE_RANGE:.0e}: "
            "its smallest entries have no effect. Check its units."
        )


def check_not_empty(used: Mask, name: str, item: str, remedy: str, names: Names = None) -> None:
    """Raise if some rows or columns (``item``) are empty: not ``used``."""
    empty = np.flatnonzero(~used)
    if len(empty):
        first = int(empty[0])
        row, column = (first, None) if item == "row" else (None, first)
        label = None if names is None else names[first]
        raise BadData(name, Fault.EMPTY, len(empty), remedy, row, column, label)


def plural(k: int, word: str) -> str:
    """The singular or plural of a word, for k items."""
    if k == 1:
        return word
    return f"{word[:-1]}ies" if word.endswith("ry") else f"{word}s"


def check_distances(matrix: Any, name: str) -> None:
    """Raise unless all entries (all stored ones, if sparse) are finite and nonnegative."""
    values = matrix.data if sparse.issparse(matrix) else matrix
    for bad, what in ((~np.isfinite(values), "not finite"), (values < 0, "negative")):
        if bad.any():
            raise ValueError(f"`{name}` has {counted_that(int(bad.sum()), 'entry')} {what}.")


def counted(k: int, word: str) -> str:
    """The number k and the singular or plural of a word."""
    return f"{k} {plural(k, word)}"


def counted_that(k: int, word: str) -> str:
    """The same with a relative clause begun: "1 entry that is", "2 entries that are"."""
    return f"{counted(k, word)} that {'is' if k == 1 else 'are'}"


def _warn_half(name: str, dtype: str) -> None:
    warn(
        f"`{name}` is {dtype}, which has only 2 or 3 significant digits. "
        "Pass float32 or float64 if you have it."
    )
