"""Users' data from files, as an AnnData.

anndata, h5py, pandas, SciPy and NumPy read them, and the files are trusted as far as these
libraries trust them. Their errors become a ``ValueError`` of one line that names the file.
:class:`cometric.Problem` checks the numbers themselves.
"""

from __future__ import annotations

import csv
import gzip
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

import numpy as np
from numpy.lib.format import open_memmap
from scipy import sparse

from cometric.core.arguments import check_path, quoted, similar
from cometric.core.inputs import check_indices
from cometric.core.text import storable_names
from cometric.core.warn import warn
from cometric.files.tables import (
    TEXT,
    kind_of,
    layout_of,
    line_of,
    numbered,
    open_text,
    read_column,
    read_table,
)

if TYPE_CHECKING:
    from anndata import AnnData

ALIKE = 0.75
"""Least similarity, without extensions, of a file name to suggest."""


def read(path: str | Path, *, transpose: bool = False) -> AnnData:
    """The data in a file (or a 10x folder), samples by features, with their names.

    Parameters
    ----------
    path
        ``.h5ad``, ``.loom``, ``.h5`` (Cell Ranger), ``.csv``, ``.tsv`` or ``.txt`` (also
        ``.gz``), ``.npz`` (SciPy sparse, or one NumPy array), ``.npy``, or a folder that holds
        ``matrix.mtx``, ``barcodes.tsv`` and ``features.tsv`` or ``genes.tsv``.
    transpose
        The rows are features, as usual in R.
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
    check_has_content(path)
    with errors_naming(path):
        data = READERS[kind](path)
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
        layout = layout_of(path)
        line = column if transpose else row
        shift = 0 if line is None else line_of(path, layout, line) - line
        header = layout.features is not None
        axes = [("line", shift, layout.named), ("column", 1 + layout.named, header)]
    elif kind in (".npz", ".npy"):
        axes = [("row", 1, False), ("column", 1, False)]
    else:
        items = zip(("sample", "feature"), position, strict=True)
        return ", ".join(f"{item} {names[k]!r}" for item, (k, names) in items if k is not None)
    if transpose:
        position.reverse()
    places = [
        numbered(word, k + shift, names[k] if named else None)
        for (word, shift, named), (k, names) in zip(axes, position, strict=True)
        if k is not None
    ]
    return ", ".join(places if kind in TEXT else [*places, "counted from 1"])


def read_labels(
    path: Path, column: str, names: Sequence[str], option: str = "labels"
) -> list[str | float]:
    """The label of each name, from a table with the names in its first column; NaN if missing.

    ``option`` is what messages call the ``column``.
    """
    if kind_of(path) not in TEXT:
        raise ValueError(f"`{path}` should be a table of labels, .csv or .tsv.")
    if not path.exists():
        raise missing(path)
    with errors_naming(path):
        labels = read_column(path, column, option)
    without = [name for name in names if name not in labels]
    if len(without) == len(names):
        raise ValueError(
            f"`{path}` has none of the {len(names)} samples in its first column (the first sample "
            f"is {names[0]!r}). Pass a table with the names of the samples in its first column."
        )
    if without:
        warn(f"`{path}` has no line for {len(without)} of the samples ({quoted(without)}).")
    chosen = (labels.get(name) for name in names)
    return [float("nan") if label is None else label for label in chosen]


# Errors


def missing(path: Path) -> FileNotFoundError:
    """The error about a missing file, with the most similar name in its folder, if there is one."""
    try:
        siblings = sorted(path.parent.iterdir())
    except OSError:
        siblings = []
    stems = {_stem(other): other.name for other in siblings}
    close = similar(_stem(path), stems, 1, ALIKE)
    hint = f" Did you mean '{path.with_name(stems[close[0]])}'?" if close else ""
    return FileNotFoundError(f"`{path}` does not exist.{hint}")


def _stem(path: Path) -> str:
    return path.name.split(".")[0] or path.name


def check_has_content(path: Path) -> None:
    """Raise if this is a file without content."""
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"`{path}` is empty.")


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


def open_hdf5(path: Path) -> Any:
    """The file, open for reading."""
    import h5py

    if not h5py.is_hdf5(path):
        raise ValueError(f"`{path}` is not an HDF5 file, or is cut off at its beginning.")
    return h5py.File(path, "r")


# Formats


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
    escaped = storable_names(names)
    return names if escaped == list(names) else escaped


def _read_h5ad(path: Path) -> AnnData:
    anndata = _anndata()
    open_hdf5(path).close()  # its error is clearer than that of anndata
    data: AnnData = anndata.read_h5ad(path)
    return data


def _read_loom(path: Path) -> AnnData:
    anndata = _anndata()
    open_hdf5(path).close()
    try:
        data: AnnData = anndata.io.read_loom(path, sparse=True)
    except ImportError:
        raise ImportError("Reading Loom needs loompy: pip install loompy.") from None
    return data


def _read_cellranger(path: Path) -> AnnData:
    with open_hdf5(path) as file:
        group = file.get("matrix")
        if group is None or "barcodes" not in group:
            raise ValueError(
                f"`{path}` is not a valid Cell Ranger file: it has no `matrix/barcodes`."
            )
        n_features, n_samples = (int(size) for size in group["shape"][:])
        parts = tuple(group[name][:] for name in ("data", "indices", "indptr"))
        samples = group["barcodes"].asstr()[:]
        names, ids, kinds = (
            group[f"features/{name}"].asstr()[:] for name in ("name", "id", "feature_type")
        )
    X = sparse.csr_matrix(parts, shape=(n_samples, n_features))
    check_indices(X, "matrix")
    return _genes(X, samples, names, ids, kinds)


def _read_text(path: Path) -> AnnData:
    return _named(*read_table(path))


def _read_folder(path: Path) -> AnnData:
    """The folder of a 10x matrix: features by samples, and a table of each."""
    matrix, barcodes = _member(path, "matrix.mtx"), _member(path, "barcodes.tsv")
    genes = _member(path, "features.tsv", "genes.tsv")
    X = read_market(matrix)
    samples = [row[0] for row in _lines(barcodes)]
    table = _lines(genes)
    sizes = ((len(samples), X.shape[0], barcodes), (len(table), X.shape[1], genes))
    for lines, size, file in sizes:
        if lines != size:
            raise ValueError(f"`{file}` has {lines} lines, but `{matrix.name}` has {size} of them.")
    names = [row[min(1, len(row) - 1)] for row in table]
    kinds = [row[2] if len(row) > 2 else "" for row in table]
    return _genes(X, samples, names, [row[0] for row in table], kinds)


def _member(folder: Path, *names: str) -> Path:
    for name in names:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    raise ValueError(f"`{folder}` has no {' or '.join(names)} (or .gz); is it a 10x folder?")


def _lines(path: Path) -> list[list[str]]:
    with open_text(path) as text:
        return [row for row in csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE) if row]


def read_market(path: Path) -> sparse.csr_matrix:
    """The transpose of the matrix in a ``.mtx`` file, which has features as rows."""
    from scipy.io import mmread  # on use: it takes milliseconds to load

    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        text = file.read()
    with warnings.catch_warnings():
        # SciPy 1.18 announces that another class will be returned; it is converted here.
        warnings.filterwarnings("ignore", "The default value for `spmatrix`", DeprecationWarning)
        # SciPy reads past the end of a file without a final newline.
        return sparse.csr_matrix(mmread(io.BytesIO(text + b"\n")).T)


def _genes(
    X: sparse.csr_matrix,
    samples: Iterable[str],
    names: Sequence[str],
    ids: Sequence[str],
    kinds: Sequence[str],
) -> AnnData:
    """Gene expression only, without other 10x features such as antibodies; names are unique."""
    import pandas as pd

    genes = np.array(kinds) == "Gene Expression"
    if not genes.any():  # older files have no types
        genes[:] = True
    unique = _anndata().utils.make_index_unique(pd.Index(np.array(names, dtype=object)[genes]))
    data = _named(X[:, genes], samples, unique)
    data.var["gene_ids"] = np.array(ids, dtype=object)[genes]
    return data


def _read_npz(path: Path) -> AnnData:
    if not is_zipfile(path):
        raise ValueError(f"`{path}` is not a .npz file, or is cut off.")
    with open(path, "rb") as file:
        arrays = np.load(file, allow_pickle=False)
        names = arrays.files
        if "header" in names:
            raise ValueError(f"`{path}` is a saved result, not data.")
        if not {"format", "shape"} <= set(names):
            if len(names) != 1 and "X" not in names:
                raise ValueError(
                    f"`{path}` holds {len(names)} arrays ({', '.join(sorted(names)[:5])}); "
                    "pass one array, or name the data X."
                )
            return _array(arrays["X" if "X" in names else names[0]], path)
        file.seek(0)
        X = sparse.load_npz(file)
    check_indices(X, str(path))  # before conversion, which trusts them
    return _named(sparse.csr_matrix(X), None, None)


def _read_npy(path: Path) -> AnnData:
    return _array(np.array(open_memmap(path, mode="r")), path)


def _array(X: Any, path: Path) -> AnnData:
    if X.ndim != 2:
        raise ValueError(f"`{path}` holds an array of shape {X.shape}; pass a matrix.")
    if X.dtype.kind not in "biuf":
        raise ValueError(f"`{path}` holds {X.dtype}; pass real numbers.")
    return _named(X, None, None)


READERS: dict[str, Callable[[Path], AnnData]] = {
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
