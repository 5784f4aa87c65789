"""Rows of a matrix, read in parts: files, Dask arrays, memory maps, backed AnnData, or in memory.

The libraries that hold the data read them. Errors name the argument, or the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from scipy import sparse

from cometric.core.arguments import check_path
from cometric.core.inputs import (
    COUNT_SAME_WORDS,
    BadData,
    check_not_empty,
    read_matrix,
    read_names,
    read_samples,
)
from cometric.core.text import storable_names
from cometric.files.reading import check_has_content, errors_naming, missing, open_hdf5
from cometric.files.tables import kind_of

STORES = (".h5ad", ".zarr", ".npy")
"""Extensions of files that can be read by rows."""

CHUNK = 16_000_000
"""Entries of a chunk of rows, zeros included."""

IN_MEMORY = ("obs_names", "to_numpy", "detach", "__dlpack__")
"""Attributes of AnnData, tables and tensors; other sliceable objects are read by rows."""


@dataclass(frozen=True, eq=False)
class Named:
    """A matrix with the names of its rows and columns, in the form of an AnnData."""

    X: Any
    obs_names: Sequence[str] | None
    var_names: Sequence[str] | None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        n, m = self.X.shape
        return n, m

    @property
    def n_obs(self) -> int:
        """The number of rows."""
        return self.shape[0]

    @property
    def n_vars(self) -> int:
        """The number of columns."""
        return self.shape[1]


class Source:
    """Rows of a matrix; ``source[start:stop]`` reads some of them, dense or sparse.

    ``rows`` has a shape, and is sliced in the same way. ``name`` is what messages call it.
    """

    def __init__(self, rows: Any, name: str = "X") -> None:
        self.rows, self.name = rows, name
        self.shape: tuple[int, int] = (int(rows.shape[0]), int(rows.shape[1]))
        self.sample_names: list[str] | None = None
        self.feature_names: list[str] | None = None
        if 0 in self.shape:
            raise ValueError(f"`{name}` has shape {self.shape}; need at least 1 row and 1 column.")

    def __getitem__(self, rows: slice) -> Any:
        with errors_naming(self.name):
            part = self.rows[rows]
            return part if sparse.issparse(part) else np.asarray(part)

    def chunks(self) -> Iterator[sparse.csr_array]:
        """All rows in order, as valid float64 CSR matrices with mass in each row."""
        for rows in self._slices():
            try:
                chunk = read_matrix(self[rows], "X", least=(1, 1))
                remedy = "Drop them: they hold no mass."
                check_not_empty(np.diff(chunk.indptr) > 0, "X", "row", remedy)
            except BadData as error:  # rows count from the first of the source
                row = None if error.row is None else error.row + rows.start
                raise BadData(
                    "X", error.fault, error.count, error.remedy, row, error.column
                ) from None
            if chunk.shape[0] != rows.stop - rows.start:
                raise ValueError(
                    f"`{self.name}` has {chunk.shape[0]} rows from {rows.start} to "
                    f"{rows.stop - 1}; its shape is {self.shape}."
                )
            yield chunk

    def to_memory(self) -> sparse.csr_array:
        """The whole matrix, with entries of the type in which they are stored."""
        parts = [sparse.csr_array(self[rows]) for rows in self._slices()]
        return sparse.csr_array(sparse.vstack(parts, format="csr"))

    def _slices(self) -> Iterator[slice]:
        n, m = self.shape
        step = max(1, CHUNK // m)
        return (slice(start, min(start + step, n)) for start in range(0, n, step))


class DaskRows(Source):
    """Rows of a Dask array with dense or sparse blocks."""

    def __init__(self, array: Any, name: str) -> None:
        if array.ndim != 2 or any(np.isnan(size) for axis in array.chunks for size in axis):
            raise ValueError(
                f"`{name}` is a Dask array of shape {array.shape}; pass a matrix whose blocks have "
                "known sizes, for example after `compute_chunk_sizes()`."
            )
        super().__init__(array, name)

    def __getitem__(self, rows: slice) -> Any:
        with errors_naming(self.name):
            array = self.rows[rows]
            height, width = array.numblocks
            parts = [[array.blocks[i, k].compute() for k in range(width)] for i in range(height)]
            if any(sparse.issparse(part) for row in parts for part in row):
                return sparse.block_array(parts, format="csr")
            return np.block(parts)

    def _slices(self) -> Iterator[slice]:
        """Whole rows of blocks: parts of a block would be computed again and again."""
        start = stop = 0
        for size in self.rows.chunks[0]:
            if start < stop and (stop - start + size) * self.shape[1] > CHUNK:
                yield slice(start, stop)
                start = stop
            stop += size
        yield slice(start, stop)


class InMemory(Source):
    """A matrix in memory, of any kind that :func:`learn` reads: a single chunk."""

    def __init__(self, X: Any) -> None:
        if len(getattr(X, "shape", ())) != 2:  # a list, or not a matrix
            X = read_matrix(X, "X", texts=COUNT_SAME_WORDS)
        n, m = X.shape
        self.rows, self.name, self.shape = X, "X", (int(n), int(m))
        self.sample_names, self.feature_names = read_names(X)

    def chunks(self) -> Iterator[sparse.csr_array]:
        yield read_samples(self.rows)


def rows_of(X: Any) -> Source:
    """The rows of any data that :func:`learn` reads, and of those outside memory."""
    source = as_rows(X)
    return InMemory(X) if source is None else source


def as_rows(X: Any, name: str = "X") -> Source | None:
    """The rows of data outside memory, or None if ``X`` is in memory.

    Accepts backed or lazy AnnData objects, groups and datasets of h5py and Zarr, Dask arrays,
    NumPy memory maps, CSR matrices on these, and other objects with the shape of a matrix whose
    slices are rows.
    """
    if isinstance(X, Source):
        return X
    kinds = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(X).__mro__}
    if hasattr(X, "obs_names") and hasattr(X, "var_names"):
        source = None if X.X is None else as_rows(X.X, name)
        if source is not None:
            source.sample_names = storable_names(X.obs_names)
            source.feature_names = storable_names(X.var_names)
        return source
    if "dask.Array" in kinds:
        return DaskRows(X, name)
    if kinds & {"h5py.Group", "zarr.Group"}:
        from anndata.io import sparse_dataset

        with errors_naming(name):
            return as_rows(sparse_dataset(X), name)
    if "anndata.CSCDataset" in kinds:
        raise ValueError(
            f"`{name}` is stored by columns (CSC), so that no rows can be read without reading "
            "all of it. Store it by rows (CSR), by `adata.X = adata.X.tocsr()` in Python, then "
            "write the file again."
        )
    if isinstance(X, np.ndarray) or sparse.issparse(X):
        parts = [X] if isinstance(X, np.ndarray) else [X.data, X.indices] * (X.format == "csr")
        return Source(X, name) if X.ndim == 2 and any(map(_is_mapped, parts)) else None
    if not hasattr(X, "__getitem__") or any(hasattr(X, each) for each in IN_MEMORY):
        return None
    return Source(X, name) if len(getattr(X, "shape", ())) == 2 else None


def _is_mapped(array: Any) -> bool:
    """Whether an array is memory-mapped."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, mmap.mmap | np.memmap)


@dataclass(frozen=True, eq=False)
class Store(Named):
    """A matrix in a file, with names; valid while the file is open."""

    file: Any = None  # the group of HDF5 or Zarr that holds an AnnData
    own_genes: bool = False  # whether the columns are those of `raw`, and differ from those of X


@contextmanager
def open_store(
    path: str | Path, *, layer: str | None = None, use_raw: bool = False
) -> Iterator[Store]:
    """The matrix in a file, with rows read on demand.

    Parameters
    ----------
    path
        ``.h5ad`` or ``.zarr`` of anndata, or ``.npy``.
    layer, use_raw
        Use this layer, or ``raw``, rather than ``X``.

    Returns
    -------
    context manager
        It gives a store for :func:`learn_landmarks`, :func:`neighbor_graph` and :func:`plan`, with
        ``X``, ``obs_names`` and ``var_names`` as in an AnnData, and closes the file at the end.

    Examples
    --------
    >>> import cometric as cm, numpy as np
    >>> np.save("X.npy", cm.datasets.torus("unimodal", 12, 10))
    >>> with cm.open_store("X.npy") as store:
    ...     cm.learn_landmarks(store, 8, n_neighbors=2, eps=0, tau=0.1)
    Sketch(12 samples, 10 features, 8 landmarks)
    """
    path = check_path(path)
    if not path.exists():
        raise missing(path)
    kind = kind_of(path)
    if kind not in STORES:
        raise ValueError(
            f"`{path}` is not a file whose rows can be read one by one; those are "
            f"{', '.join(STORES)}."
        )
    if path.is_dir() != (kind == ".zarr"):
        found, pass_ = ("a folder", "a file") if path.is_dir() else ("a file", "a folder of Zarr")
        raise ValueError(f"`{path}` is {found}; pass {pass_}.")
    check_has_content(path)
    if kind == ".npy" and (layer is not None or use_raw):
        raise ValueError(f"`{path}` has no layers and no raw data; leave out `layer`, `use_raw`.")
    with ExitStack() as stack:
        if kind == ".npy":
            with errors_naming(path):
                store = _of_array(open_memmap(path, mode="r"), path)
        else:
            with errors_naming(path):
                file = stack.enter_context(open_hdf5(path)) if kind == ".h5ad" else _zarr(path)
            check_choice(layer, use_raw, list(file.get("layers", ())), "raw/X" in file)
            with errors_naming(path):
                store = _of_anndata(file, path, layer, use_raw)
        if min(store.shape) < 2:
            raise ValueError(f"`{path}` has shape {store.shape}; need at least 2 x 2.")
        yield store


def _of_array(array: Any, path: Path) -> Store:
    """A dense matrix, with numbers as names."""
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise ValueError(
            f"`{path}` has shape {array.shape} and dtype {array.dtype}; pass a matrix of real "
            "numbers."
        )
    samples, features = ([str(k) for k in range(size)] for size in array.shape)
    return Store(Source(array, str(path)), samples, features)


def _zarr(path: Path) -> Any:
    """The group in a Zarr folder."""
    try:
        import zarr
    except ImportError:
        raise ImportError("Reading .zarr needs zarr: pip install 'cometric[zarr]'.") from None
    return zarr.open_group(path, mode="r")


def _of_anndata(file: Any, path: Path, layer: str | None, use_raw: bool) -> Store:
    """The matrix of an AnnData in a group of HDF5 or Zarr: X, a layer or raw."""
    where = "raw/X" if use_raw else "X" if layer is None else f"layers/{layer}"
    tables = "obs", "raw/var" if use_raw else "var"
    for part in (where, *tables):
        if part not in file:
            raise ValueError(
                f"`{path}` has no {part}; it is not a file of anndata, or has no data."
            )
    rows = as_rows(file[where], str(path))
    samples, features = (_names(file[table], path) for table in tables)
    if rows is None or rows.shape != (len(samples), len(features)):
        raise ValueError(
            f"`{path}` is damaged: its matrix does not have the shape of its names, "
            f"{(len(samples), len(features))}."
        )
    own = use_raw and ("var" not in file or _names(file["var"], path) != features)
    return Store(rows, samples, features, file, own)


def check_choice(layer: Any, use_raw: bool, layers: Sequence[Any], has_raw: bool) -> None:
    """Raise if an AnnData does not have the layer, or raw data, or if both are given."""
    if layer is not None and use_raw:
        raise ValueError("`layer` and `use_raw` exclude one another; pass one of them.")
    if use_raw and not has_raw:
        raise ValueError("`use_raw` is True, but `.raw` is None. Leave out `use_raw`.")
    if layer is not None and not layers:
        raise ValueError(f"`layer` is {layer!r}, but there are no layers. Leave out `layer`.")
    if layer is not None and layer not in layers:
        raise ValueError(f"`layer` is {layer!r}; `.layers` has {layers}.")


def _names(table: Any, path: Path) -> list[str]:
    """The index of a table that anndata wrote."""
    from anndata.io import read_elem

    column = table.attrs.get("_index")
    if column is None or column not in table:
        raise ValueError(
            f"`{path}` has no names in {table.name}, or is of an old format; write it again with "
            "a recent anndata."
        )
    return storable_names(np.asarray(read_elem(table[column])))
