"""Data from files as an AnnData.

A file may be damaged or hostile: nothing is unpickled, no other file is opened, and sizes are
checked before memory is allocated. Errors are a ``ValueError`` that names the file. The numbers
themselves are checked by :class:`cometric.Problem`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.inputs import check_indices, counted
from cometric.core.kinds import check_path
from cometric.core.text import storable
from cometric.files.archive import MAX_BYTES, check_array, check_arrays
from cometric.files.hdf5 import check_hdf5, check_size
from cometric.files.libraries import precision, read_market
from cometric.files.missing import missing

if TYPE_CHECKING:
    from anndata import AnnData

MAX_ITEMS = 1_000_000
"""Limit for rows and columns; the distances between a million items would take 8 TB."""

FORMULA = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]*"
    r"[=+\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b]|[\t\r\n]"
)
"""The start of a cell that a spreadsheet takes for a formula: = + - @, also full-width or small,
after any invisible characters, or a tab or newline."""

MISSING = ["", "NA", "NaN", "nan"]

TEXT = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
"""The separator of the cells of a table, by file extension."""


def read(path: str | Path, *, transpose: bool = False, limit: float = MAX_BYTES) -> AnnData:
    """The data in a file (or a 10x folder), samples by features, with their names.

    Parameters
    ----------
    path
        ``.h5ad``, ``.loom``, ``.h5`` (Cell Ranger), ``.csv``, ``.tsv`` or ``.txt`` (also
        ``.gz``), ``.npz`` (SciPy sparse, or one NumPy array), ``.npy``, or a folder that holds
        ``matrix.mtx``, ``barcodes.tsv`` and ``features.tsv`` or ``genes.tsv``.
    transpose
        The rows are features, as usual in R.
    limit
        Largest size of the data in memory, in bytes.
    """
    path = check_path(path)
    if not path.exists():
        raise missing(path)
    kind = "folder" if path.is_dir() else kind_of(path)
    if kind not in READERS:
        raise ValueError(
            f"`{path}` is not in a known format; known are {', '.join(list(READERS)[:-1])} (text "
            "also with .gz), and folders of 10x Genomics."
        )
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"`{path}` is empty.")
    with errors_naming(path):
        data = READERS[kind](path, limit)
        _check_shape(data.shape, path)
        data.obs_names, data.var_names = map(_storable, (data.obs_names, data.var_names))
    return data.T if transpose else data


def place(
    path: Path,
    data: Any,
    row: int | None = None,
    column: int | None = None,
    *,
    transpose: bool = False,
) -> str:
    """Where a row, a column or an entry of ``data`` is in the file it was read from, in words.

    By line and column in a table, by names where the format has them, by number otherwise,
    counted from 1.
    """
    position = [(row, data.obs_names), (column, data.var_names)]
    kind = "folder" if path.is_dir() else kind_of(path)
    if kind in TEXT:
        head = _head(path, math.inf)
        line = column if transpose else row
        shift = 0 if line is None else _line(path, head, line) - line
        header = head.features is not None
        axes = [("line", shift, head.named), ("column", 1 + head.named, header)]
    elif kind in (".npz", ".npy"):
        axes = [("row", 1, False), ("column", 1, False)]
    else:
        items = zip(("sample", "feature"), position, strict=True)
        return ", ".join(f"{item} {names[k]!r}" for item, (k, names) in items if k is not None)
    if transpose:
        position.reverse()
    places = [
        _place(word, k + shift, names[k] if named else None)
        for (word, shift, named), (k, names) in zip(axes, position, strict=True)
        if k is not None
    ]
    return ", ".join(places if kind in TEXT else [*places, "counted from 1"])


def _place(word: str, number: int, name: str | None) -> str:
    return f"{word} {number}" if name is None else f"{word} {number} ({name!r})"


def kind_of(path: Path) -> str:
    """The extension of a file, in lower case, without ``.gz``."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


@contextmanager
def errors_naming(path: Path | str) -> Iterator[None]:
    """Turn errors of the libraries that read a file into a ``ValueError`` that names it."""
    try:
        yield
    except (ImportError, MemoryError, PermissionError):
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        if str(path) not in text:
            text = f"`{path}` cannot be read: {text.rstrip('.')}."
        raise ValueError(text) from error


def _anndata() -> Any:
    try:
        import anndata
    except ImportError:
        raise ImportError("Reading files needs anndata: pip install 'cometric[cli]'.") from None
    return anndata


def _named(X: Any, samples: Iterable[str] | None, features: Iterable[str] | None) -> AnnData:
    data: AnnData = _anndata().AnnData(X)
    if samples is not None:
        data.obs_names = list(samples)
    if features is not None:
        data.var_names = list(features)
    return data


def _storable(names: Any) -> Any:
    """The names, with characters that no file can hold escaped."""
    escaped = [storable(str(name)) for name in names]
    return names if escaped == list(names) else escaped


def _check_shape(shape: tuple[int, ...], path: Path) -> None:
    if len(shape) != 2:
        raise ValueError(f"`{path}` holds an array of shape {shape}; pass a matrix.")
    if max(shape) > MAX_ITEMS:
        raise ValueError(
            f"`{path}` has {max(shape):,} rows or columns; at most {MAX_ITEMS:,} are read."
        )


# HDF5


def _read_h5ad(path: Path, limit: float) -> AnnData:
    anndata = _anndata()
    check_hdf5(path, limit)
    data: AnnData = anndata.read_h5ad(path)
    return data


def _read_loom(path: Path, limit: float) -> AnnData:
    anndata = _anndata()
    check_hdf5(path, limit)
    try:
        data: AnnData = anndata.io.read_loom(path, sparse=True)
    except ImportError:
        raise ImportError("Reading Loom needs loompy: pip install loompy.") from None
    return data


def _read_cellranger(path: Path, limit: float) -> AnnData:
    import h5py

    check_hdf5(path, limit)
    with h5py.File(path, "r") as file:
        group = file.get("matrix")
        if group is None or "barcodes" not in group:
            raise ValueError(
                f"`{path}` is not a valid Cell Ranger file: it has no `matrix/barcodes`."
            )
        n_features, n_samples = (int(size) for size in group["shape"][:])
        _check_shape((n_samples, n_features), path)
        parts = tuple(group[name][:] for name in ("data", "indices", "indptr"))
        samples = group["barcodes"].asstr()[:]
        names, ids, kinds = (
            group[f"features/{name}"].asstr()[:] for name in ("name", "id", "feature_type")
        )
    X = sparse.csr_matrix(parts, shape=(n_samples, n_features))
    check_indices(X, "matrix")
    return _genes(X, samples, names, ids, kinds)


# Text


class _Head(NamedTuple):
    """The layout of a table, from its first two lines."""

    width: int
    features: list[str] | None  # names in the header, if there is one
    named: bool  # whether lines begin with a name
    lines: int  # of the header, 0 without one


def _read_text(path: Path, limit: float) -> AnnData:
    import pandas as pd

    head = _head(path, limit)
    _check_shape((1, head.width), path)
    # Short lines are padded: a small file could become a huge table.
    check_size(8.0 * head.width * _count_lines(path, limit), limit, path)
    columns = range(head.width)
    text_columns = {0: str} if head.named else {}
    with _unpacked(path, limit / 4) as file:
        # Newlines of any kind become "\n": the parser of pandas may loop forever at a "\r" alone.
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        try:
            table = pd.read_csv(
                text,
                sep=TEXT[kind_of(path)],
                header=None,
                skiprows=head.lines,
                names=columns,
                dtype={k: text_columns.get(k, np.float64) for k in columns},
                keep_default_na=False,
                na_values={k: MISSING for k in columns if k not in text_columns},
                low_memory=False,
                **precision(pd.__version__),
            )
        except ValueError:
            _find_text_cell(path, head, limit)
            raise
    samples = [unquoted(name) for name in table.pop(0)] if head.named else None
    values = table.to_numpy()
    if np.isinf(values).any():  # pandas 3.1 does not refuse 1e400
        _find_text_cell(path, head, limit)
    return _named(values, samples, head.features)


def _count_lines(path: Path, limit: float) -> int:
    """An upper bound of the number of lines."""
    ends = [0, 0]
    with _unpacked(path, limit / 4) as file:
        while part := file.read(2**20):
            ends = [
                count + part.count(end) for count, end in zip(ends, (b"\n", b"\r"), strict=True)
            ]
    return 1 + max(ends)


def _head(path: Path, limit: float) -> _Head:
    with table_rows(path, limit) as rows:
        filled = filter(_filled, rows)
        header: list[str] = next(filled, [])
        lines = rows.line_num
        first: list[str] = next(filled, [])
    if not first:
        raise ValueError(f"`{path}` has fewer than two lines; pass a table.")
    if len(header) == len(first) == 1:
        raise ValueError(
            f"`{path}` has one cell in a line; in {kind_of(path)} files cells are separated by "
            f"{TEXT[kind_of(path)]!r}. Use this separator, or another file extension."
        )
    short = len(header) == len(first) - 1  # as R writes it: no cell above the names
    named = short or not _is_number(first[0]) or header[0] == ""
    has_header = short or header[0] == "" or not all(map(_is_number, header[int(named) :]))
    if len(header) not in (len(first), len(first) - 1):
        top = "header" if has_header else "first line"
        raise ValueError(
            f"`{path}` has a {top} of {counted(len(header), 'cell')} above lines of {len(first)}; "
            f"in {kind_of(path)} files {TEXT[kind_of(path)]!r} separates cells. Mend the file."
        )
    numbers = len(first) - named
    features = [unquoted(name) for name in header[-numbers:]] if has_header else None
    return _Head(len(first), features, named, lines if has_header else 0)


def _line(path: Path, head: _Head, row: int) -> int:
    """The line of the file where a row of numbers ends; there may be empty lines before it."""
    with table_rows(path, math.inf) as rows:
        ends = (rows.line_num for cells in rows if rows.line_num > head.lines and _filled(cells))
        end: int = next(islice(ends, row, None))
    return end


def _filled(cells: list[str]) -> bool:
    """Whether this is a row: pandas skips lines of white space."""
    return len(cells) > 1 or bool("".join(cells).strip())


def _find_text_cell(path: Path, head: _Head, limit: float) -> None:
    """Raise at the first cell that is not a number; pandas does not say where it is."""
    with table_rows(path, limit) as rows:
        for row in rows:
            if rows.line_num <= head.lines or not _filled(row):
                continue
            for k, cell in enumerate(row[: head.width]):
                if (k == 0 and head.named) or cell in MISSING or _is_number(cell):
                    continue
                line = _place("line", rows.line_num, row[0] if head.named else None)
                feature = None if head.features is None else head.features[k - head.named]
                raise ValueError(
                    f"`{path}` has {cell!r} where a number belongs ({line}, "
                    f"{_place('column', k + 1, feature)}). Mend it, or leave out its row or column."
                )


@contextmanager
def table_rows(path: Path, limit: float) -> Iterator[Any]:
    """A reader of the lines of a table, each a list of cells."""
    # A number of two characters takes eight bytes in memory.
    with _unpacked(path, limit / 4) as file, io.TextIOWrapper(file, "utf-8-sig") as text:
        yield csv.reader(text, delimiter=TEXT[kind_of(path)])


def _is_number(cell: str) -> bool:
    try:
        value = float(cell)
    except ValueError:
        return cell in MISSING[1:]
    # Python alone accepts 1_000, and reads 1e999 as infinite.
    return "_" not in cell and (math.isfinite(value) or "n" in cell.lower())


def unquoted(name: str) -> str:
    """A name without the quote that :mod:`cometric.files.writing` puts before a formula."""
    return name[1:] if name.startswith("'") and is_formula(name) else name


def is_formula(name: str) -> bool:
    """Whether a spreadsheet could run this as a formula, without quotes before it."""
    return FORMULA.match(name.lstrip("'")) is not None


@contextmanager
def _unpacked(path: Path, limit: float) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed if it is gzipped; at most ``limit`` of them."""
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            source: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            yield io.BufferedReader(_Capped(source, limit, path))
    except (EOFError, zlib.error) as error:
        raise ValueError(f"`{path}` is damaged: {error}") from error


class _Capped(io.RawIOBase):
    """A stream that raises after ``limit`` bytes."""

    def __init__(self, source: Any, limit: float, path: Path) -> None:
        self._source, self._limit, self._path, self._total = source, limit, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._source.read(len(buffer))
        buffer[: len(part)] = part
        self._total += len(part)
        check_size(self._total, self._limit, self._path)
        return len(part)


# 10x folders


def _read_folder(path: Path, limit: float) -> AnnData:
    from scipy.io import mminfo

    matrix, barcodes = _member(path, "matrix.mtx"), _member(path, "barcodes.tsv")
    genes = _member(path, "features.tsv", "genes.tsv")
    with _unpacked(matrix, limit) as file:
        n_features, n_samples, entries, *_ = mminfo(file)
    _check_shape((n_samples, n_features), matrix)
    check_size(24.0 * entries, limit, matrix)
    samples = [row[0] for row in _lines(barcodes, limit)]
    table = _lines(genes, limit)
    for names, size, file_name in ((samples, n_samples, barcodes), (table, n_features, genes)):
        if len(names) != size:
            raise ValueError(
                f"`{file_name}` has {len(names)} lines, but `{matrix.name}` has {size} of them."
            )
    with _unpacked(matrix, limit) as file:
        X = read_market(file)
    names = [row[min(1, len(row) - 1)] for row in table]
    kinds = [row[2] if len(row) > 2 else "" for row in table]
    return _genes(X, samples, names, [row[0] for row in table], kinds)


def _member(folder: Path, *names: str) -> Path:
    for name in names:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    raise ValueError(f"`{folder}` has no {' or '.join(names)} (or .gz); is it a 10x folder?")


def _lines(path: Path, limit: float) -> list[list[str]]:
    with _unpacked(path, limit / 8) as file, io.TextIOWrapper(file, "utf-8") as text:
        return [row for row in csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE) if row]


def _genes(
    X: sparse.csr_matrix,
    samples: Iterable[str],
    names: Sequence[str],
    ids: Sequence[str],
    kinds: Sequence[str],
) -> AnnData:
    """Only the gene expression, where 10x also measured antibodies; names made unique."""
    import pandas as pd

    genes = np.array(kinds) == "Gene Expression"
    if not genes.any():  # older files do not say
        genes[:] = True
    unique = _anndata().utils.make_index_unique(pd.Index(np.array(names, dtype=object)[genes]))
    data = _named(X[:, genes], samples, unique)
    data.var["gene_ids"] = np.array(ids, dtype=object)[genes]
    return data


# NumPy


def _read_npz(path: Path, limit: float) -> AnnData:
    arrays = check_npz(path, limit)
    if "header" in arrays:
        raise ValueError(f"`{path}` is a saved result, not data.")
    if "format" in arrays and "shape" in arrays:
        X = sparse.load_npz(path)
        _check_shape(X.shape, path)
        check_indices(X, str(path))  # before conversion, which trusts them
        X = sparse.csr_matrix(X)
        return _named(X, None, None)
    if len(arrays) != 1 and "X" not in arrays:
        raise ValueError(
            f"`{path}` holds {len(arrays)} arrays ({', '.join(sorted(arrays)[:5])}); "
            "pass one array, or name the data X."
        )
    with np.load(path, allow_pickle=False) as archive:
        return _array(archive["X" if "X" in arrays else next(iter(arrays))], path)


def _read_npy(path: Path, limit: float) -> AnnData:
    with open(path, "rb") as file:
        check_array(file, path.stat().st_size, path)
    check_size(path.stat().st_size, limit, path)
    return _array(np.load(path, allow_pickle=False), path)


def _array(X: Any, path: Path) -> AnnData:
    _check_shape(X.shape, path)
    if X.dtype.kind not in "biuf":
        raise ValueError(f"`{path}` holds {X.dtype}; pass real numbers.")
    return _named(X, None, None)


def check_npz(path: Path, limit: float = MAX_BYTES) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in a ``.npz`` file, after the checks of ``check_arrays``."""
    with errors_naming(path), open(path, "rb") as file:
        return check_arrays(file, path, limit)


READERS: dict[str, Callable[[Path, float], AnnData]] = {
    ".h5ad": _read_h5ad,
    ".loom": _read_loom,
    ".h5": _read_cellranger,
    ".csv": _read_text,
    ".tsv": _read_text,
    ".txt": _read_text,
    ".npz": _read_npz,
    ".npy": _read_npy,
    "folder": _read_folder,
}
