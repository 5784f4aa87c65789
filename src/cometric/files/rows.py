"""Rows of matrices that are not in memory: files, Dask arrays, memory maps, backed AnnData.

A row source has a ``shape``, and gives rows as ``source[start:stop]`` or ``source[numbers]`` with
increasing numbers, as a dense array or a ``csr_array``. Only these rows are read. Errors name the
argument, or the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from scipy import sparse

from cometric.core.arguments import check_path
from cometric.core.text import storable_names
from cometric.core.types import Index
from cometric.files.reading import check_not_empty, errors_naming, missing, open_hdf5
from cometric.files.tables import kind_of

STORES = (".h5ad", ".zarr", ".npy")
"""Extensions of files that can be read by rows."""

ENTRIES = 10_000_000
"""Most entries of dense rows to read at a time."""

GAP = 4096
"""Picked rows with at most this many entries in between are read together."""


def as_rows(X: Any, name: str = "X") -> Any:
    """A row source for data outside memory, or None if ``X`` is in memory.

    Accepts backed or lazy AnnData objects, groups and datasets of h5py and Zarr, Dask arrays,
    NumPy memory maps, and CSR matrices on these.
    """
    if isinstance(X, Source):
        return X
    if hasattr(X, "obs_names") and hasattr(X, "var_names"):
        source = None if X.X is None else as_rows(X.X, name)
        if source is not None:
            source.sample_names = storable_names(X.obs_names)
            source.feature_names = storable_names(X.var_names)
        return source
    if hasattr(X, "__dask_graph__"):
        return DaskRows(X, name)
    if sparse.issparse(X):
        if X.format == "csr" and any(map(_is_mapped, (X.data, X.indices))):
            return CsrRows(X.data, X.indices, X.indptr, X.shape, name)
        return None
    if isinstance(X, np.ndarray):
        return DenseRows(X, name) if X.ndim == 2 and _is_mapped(X) else None
    if hasattr(X, "group") and hasattr(X, "backend"):  # anndata's CSRDataset
        return of_group(X.group, name)
    if hasattr(X, "attrs") and hasattr(X, "keys") and hasattr(X, "name"):
        return of_group(X, name)
    if all(hasattr(X, part) for part in ("attrs", "chunks", "shape", "dtype")):
        return DenseRows(X, name)
    return None


def gather(source: Any) -> sparse.csr_array:
    """All rows of a source as one sparse matrix, read in parts."""
    n, m = source.shape
    step = max(1, ENTRIES // m)
    parts = [sparse.csr_array(source[start : start + step]) for start in range(0, n, step)]
    return sparse.csr_array(sparse.vstack(parts, format="csr"))


def of_group(group: Any, name: str) -> CsrRows:
    """The rows of a sparse matrix in a group of HDF5 or Zarr, as anndata stores it."""
    kind = str(group.attrs.get("encoding-type", group.attrs.get("h5sparse_format", "")))
    if kind.startswith("csc"):
        raise ValueError(
            f"`{name}` is stored by columns (CSC), so that no rows can be read without reading "
            "all of it. Store it by rows (CSR), by `adata.X = adata.X.tocsr()` in Python, then "
            "write the file again."
        )
    parts = {"data", "indices", "indptr"}
    if not kind.startswith("csr") or not parts <= set(group.keys()):
        raise ValueError(
            f"`{name}` is a group of type {kind or 'unknown'!r}, not a sparse matrix of anndata. "
            "Pass a group with `data`, `indices` and `indptr`, or a dataset."
        )
    shape = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    if shape is None or np.size(shape) != 2:
        raise ValueError(f"`{name}` is not a valid sparse matrix: it has no shape.")
    n, m = (int(size) for size in shape)
    return CsrRows(group["data"], group["indices"], group["indptr"], (n, m), name)


class Source:
    """The base class of row sources; names of rows and columns are optional."""

    sample_names: list[str] | None = None
    feature_names: list[str] | None = None

    def to_memory(self) -> sparse.csr_array:
        """The whole matrix."""
        return gather(self)


class CsrRows(Source):
    """Rows of a CSR matrix on disk; only its row pointers are in memory."""

    def __init__(
        self, data: Any, indices: Any, indptr: Any, shape: tuple[int, int], name: str
    ) -> None:
        self._data, self._indices, self._name = data, indices, name
        self.shape, self.dtype = shape, np.dtype(data.dtype)
        if indptr.ndim != 1 or indptr.shape[0] != shape[0] + 1 or indptr.dtype.kind not in "iu":
            raise self._damaged(f"it has {indptr.shape[0]} pointers for {shape[0]} rows")
        if data.ndim != 1 or data.shape != indices.shape or indices.dtype.kind not in "iu":
            raise self._damaged(f"it has {data.shape} values and {indices.shape} indices")
        with errors_naming(name):
            self._indptr: Index = np.asarray(indptr[:]).astype(np.int64)
        if self._indptr[0] != 0 or (np.diff(self._indptr) < 0).any():
            raise self._damaged("its pointers do not increase from 0")
        if self._indptr[-1] > data.shape[0]:
            raise self._damaged(f"it has {data.shape[0]} values, but points to more")
        _check(self.shape, self.dtype, name)

    @property
    def entries(self) -> int:
        """The number of stored entries."""
        return int(self._indptr[-1])

    def __getitem__(self, rows: Any) -> sparse.csr_array:
        if isinstance(rows, slice):
            start, stop = _bounds(rows, self.shape[0])
            return self._read(start, stop)
        numbers = _numbers(rows, self.shape[0])
        if not len(numbers):
            return self._read(0, 0)
        between = self._indptr[numbers[1:]] - self._indptr[numbers[:-1] + 1]
        parts = np.split(numbers, np.flatnonzero(between > GAP) + 1)
        blocks = [self._read(int(part[0]), int(part[-1]) + 1)[part - part[0]] for part in parts]
        return sparse.csr_array(sparse.vstack(blocks, format="csr"))

    def _read(self, start: int, stop: int) -> sparse.csr_array:
        low, high = int(self._indptr[start]), int(self._indptr[stop])
        with errors_naming(self._name):
            indices, values = np.asarray(self._indices[low:high]), np.array(self._data[low:high])
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.shape[1]):
            raise self._damaged(
                f"rows {start} to {stop - 1} have entries outside 0 .. {self.shape[1] - 1}"
            )
        starts = self._indptr[start : stop + 1] - low
        parts = values, indices.astype(np.int32), starts
        return sparse.csr_array(parts, shape=(stop - start, self.shape[1]))

    def _damaged(self, reason: str) -> ValueError:
        return ValueError(f"`{self._name}` is not a valid sparse matrix: {reason}.")


class DenseRows(Source):
    """Rows of a dense matrix on the disk."""

    def __init__(self, array: Any, name: str) -> None:
        if len(array.shape) != 2:
            raise ValueError(f"`{name}` has shape {tuple(array.shape)}; pass a matrix.")
        self._array, self._name = array, name
        self.shape = int(array.shape[0]), int(array.shape[1])
        self.dtype = np.dtype(array.dtype)
        _check(self.shape, self.dtype, name)

    @property
    def entries(self) -> int:
        """The number of stored entries."""
        return self.shape[0] * self.shape[1]

    def __getitem__(self, rows: Any) -> np.ndarray[Any, Any]:
        if isinstance(rows, slice):
            start, stop = _bounds(rows, self.shape[0])
            with errors_naming(self._name):
                return np.array(self._array[start:stop])
        numbers = _numbers(rows, self.shape[0])
        # A chunk is unpacked whole: picks within one chunk are read together.
        step = max(1, int((getattr(self._array, "chunks", None) or (1,))[0]))
        parts = np.split(numbers, np.flatnonzero(np.diff(numbers // step)) + 1)
        with errors_naming(self._name):
            blocks = [
                np.asarray(self._array[part[0] : part[-1] + 1])[part - part[0]]
                for part in parts
                if len(part)
            ]
        return np.concatenate(blocks) if blocks else np.empty((0, self.shape[1]), self.dtype)


class DaskRows(Source):
    """Rows of a Dask array with dense or sparse blocks; one row of blocks is in memory."""

    def __init__(self, array: Any, name: str) -> None:
        if array.ndim != 2 or any(np.isnan(size) for axis in array.chunks for size in axis):
            raise ValueError(
                f"`{name}` is a Dask array of shape {array.shape}; pass a matrix whose blocks have "
                "known sizes, for example after `compute_chunk_sizes()`."
            )
        self._array, self._name = array, name
        self.shape, self.dtype = (int(array.shape[0]), int(array.shape[1])), np.dtype(array.dtype)
        self._edges = np.concatenate([[0], np.cumsum(array.chunks[0])]).astype(np.int64)
        self._block: tuple[int, Any] | None = None
        _check(self.shape, self.dtype, name)

    @property
    def entries(self) -> int:
        """An upper bound of the number of stored entries."""
        return self.shape[0] * self.shape[1]

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop = _bounds(rows, self.shape[0])
            numbers = np.arange(start, stop)
        else:
            numbers = _numbers(rows, self.shape[0])
        block_of = np.searchsorted(self._edges, numbers, side="right") - 1
        blocks = [
            self._read(int(block))[numbers[block_of == block] - self._edges[block]]
            for block in np.unique(block_of)
        ]
        if not blocks:
            return np.empty((0, self.shape[1]), self.dtype)
        if sparse.issparse(blocks[0]):
            return sparse.csr_array(sparse.vstack(blocks, format="csr"))
        return np.concatenate(blocks)

    def _read(self, block: int) -> Any:
        """One row of blocks; the last one is kept, since chunks of rows are read in order."""
        if self._block is None or self._block[0] != block:
            self._block = None  # first, so that only one is in memory
            width = self._array.numblocks[1]
            parts = [self._array.blocks[block, k].compute() for k in range(width)]
            if any(sparse.issparse(part) for part in parts):
                joined = sparse.hstack([sparse.csr_array(part) for part in parts], format="csr")
                self._block = block, sparse.csr_array(joined)
            else:
                self._block = block, np.concatenate([np.asarray(part) for part in parts], axis=1)
            size = int(self._edges[block + 1] - self._edges[block])
            if self._block[1].shape != (size, self.shape[1]):
                raise ValueError(
                    f"`{self._name}` has a block of shape {self._block[1].shape} where Dask "
                    f"expects {(size, self.shape[1])}."
                )
        return self._block[1]


def _bounds(rows: slice, n: int) -> tuple[int, int]:
    start, stop, step = rows.indices(n)
    if step != 1:
        raise ValueError(f"Rows are read in steps of 1, not of {step}.")
    return start, max(start, stop)


def _numbers(rows: Any, n: int) -> Index:
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise ValueError("Rows are picked by a slice, or by an array of numbers.")
    numbers = numbers.astype(np.int64)
    if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < n and (np.diff(numbers) > 0).all()):
        raise ValueError(f"Numbers of rows must increase, from 0 to at most {n - 1}.")
    return numbers


def _is_mapped(array: Any) -> bool:
    """Whether an array is memory-mapped."""
    while array is not None:
        if isinstance(array, mmap.mmap | np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def _check(shape: tuple[int, int], dtype: np.dtype[Any], name: str) -> None:
    if 0 in shape:
        raise ValueError(f"`{name}` has shape {shape}; need at least 1 row and 1 column.")
    if dtype.kind not in "biuf":
        raise ValueError(f"`{name}` has dtype {dtype}; pass real numbers.")


@dataclass(frozen=True, eq=False)
class Store:
    """A matrix in a file, with names, in the form of an AnnData; valid while the file is open."""

    X: Any
    obs_names: list[str]
    var_names: list[str]
    file: Any = None  # the group of HDF5 or Zarr that holds an AnnData
    own_genes: bool = False  # whether the columns are those of `raw`, and differ from those of X

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
    check_not_empty(path)
    if kind == ".npy" and (layer is not None or use_raw):
        raise ValueError(f"`{path}` has no layers and no raw data; leave out `layer`, `use_raw`.")
    with ExitStack() as stack:
        with errors_naming(path):
            if kind == ".npy":
                store = _unnamed(open_memmap(path, mode="r"), str(path))
            else:
                file = stack.enter_context(open_hdf5(path)) if kind == ".h5ad" else _zarr(path)
        if kind != ".npy":
            _check_has_matrix(file, layer, use_raw)
            with errors_naming(path):
                store = _of_anndata(file, path, layer, use_raw)
        if min(store.shape) < 2:
            raise ValueError(f"`{path}` has shape {store.shape}; need at least 2 x 2.")
        yield store


def _zarr(path: Path) -> Any:
    """The group in a Zarr folder."""
    try:
        import zarr
    except ImportError:
        raise ImportError("Reading .zarr needs zarr: pip install 'cometric[zarr]'.") from None
    return zarr.open_group(path, mode="r")


def _check_has_matrix(file: Any, layer: str | None, use_raw: bool) -> None:
    """Raise if an AnnData in a group of HDF5 or Zarr does not have the layer, or raw data."""
    if use_raw and "raw/X" not in file:
        raise ValueError("`use_raw` is True, but `.raw` is None. Leave out `use_raw`.")
    if layer is not None and not use_raw:
        layers = list(file["layers"]) if "layers" in file else []
        if not layers:
            raise ValueError(f"`layer` is {layer!r}, but there are no layers. Leave out `layer`.")
        if layer not in layers:
            raise ValueError(f"`layer` is {layer!r}; `.layers` has {layers}.")


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
            f"`{path}` is damaged: its matrix has shape {getattr(rows, 'shape', ())}, but there "
            f"are names for {(len(samples), len(features))}."
        )
    own = use_raw and ("var" not in file or _names(file["var"], path) != features)
    return Store(rows, samples, features, file, own)


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


def _unnamed(array: Any, name: str) -> Store:
    """A store of a dense matrix, with numbers as names."""
    rows = DenseRows(array, name)
    n, m = rows.shape
    return Store(rows, [str(i) for i in range(n)], [str(k) for k in range(m)])
