"""Matrices in files whose rows are read as they are needed: .h5ad, .zarr, .npz, .npy.

The files may be damaged or hostile, see :mod:`cometric.files.reading`: links are not followed,
nothing is unpickled, and what is read at once (names, row pointers, chunks) is limited in size.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cometric.core.kinds import check_path
from cometric.core.text import storable_names
from cometric.files.archive import HEADERS, MAX_BYTES, check_array, check_arrays
from cometric.files.hdf5 import STRING_BYTES, check_hdf5, check_size
from cometric.files.missing import missing
from cometric.files.reading import errors_naming, kind_of
from cometric.files.rows import CsrRows, DenseRows, as_rows
from cometric.files.zarr import check_texts, check_zarr

STORES = (".h5ad", ".zarr", ".npz", ".npy")
"""File extensions whose rows can be read without reading all of the file."""

TEXT = 100.0
"""Bytes of a name as a string of Python, with its place in lists and arrays."""

MOST_CHUNKS = 100_000
"""Chunks of an array that is read whole: Zarr takes time for each, missing ones included."""


@dataclass(frozen=True, eq=False)
class Store:
    """A matrix in a file, with names, in the form of an AnnData; valid while the file is open."""

    X: Any
    obs_names: list[str]
    var_names: list[str]
    file: Any = None  # the group of HDF5 or Zarr that holds an AnnData
    own_genes: bool = False  # whether the columns are those of `raw`, and others than those of X

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
    path: str | Path,
    *,
    layer: str | None = None,
    use_raw: bool = False,
    limit: float = MAX_BYTES,
) -> Iterator[Store]:
    """The matrix in a file, of which rows are read when they are needed.

    Parameters
    ----------
    path
        ``.h5ad`` or ``.zarr`` of anndata, ``.npz`` of SciPy written with ``compressed=False``, or
        ``.npy``.
    layer, use_raw
        Use this layer, or ``raw``, rather than ``X``.
    limit
        Largest size of what is read at once: the names, the row pointers, one chunk.

    Returns
    -------
    context manager
        Of a store, for :func:`learn_landmarks`, :func:`neighbor_graph` and :func:`plan`: ``X``,
        ``obs_names`` and ``var_names``, as in an AnnData. The file is closed at the end.

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
    if kind != ".zarr" and path.is_dir():
        raise ValueError(f"`{path}` is a folder; pass a file.")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"`{path}` is empty.")
    if kind in (".npz", ".npy") and (layer is not None or use_raw):
        raise ValueError(f"`{path}` has no layers and no raw data; leave out `layer`, `use_raw`.")
    with _opened(path, kind, limit) as file:
        store = file
        if not isinstance(file, Store):
            _check_has_matrix(file, layer, use_raw)
            with errors_naming(path):
                store = _of_anndata(file, path, (layer, use_raw), limit)
        if min(store.shape) < 2:
            raise ValueError(f"`{path}` has shape {store.shape}; need at least 2 x 2.")
        yield store


@contextmanager
def _opened(path: Path, kind: str, limit: float) -> Iterator[Any]:
    """A group of HDF5 or Zarr, or the store of a NumPy file."""
    with errors_naming(path):
        if kind == ".h5ad":
            import h5py

            check_hdf5(path, limit, in_chunks=True)
            opened: Any = h5py.File(path, "r")
        elif kind == ".zarr":
            opened = _open_zarr(path, limit)
        else:
            opened = _open_npz(path, limit) if kind == ".npz" else _open_npy(path, limit)
    try:
        yield opened
    finally:
        if kind == ".h5ad":
            opened.close()


def _check_has_matrix(file: Any, layer: str | None, use_raw: bool) -> None:
    """Raise if an AnnData in a group of HDF5 or Zarr does not have the layer, or raw data."""
    if use_raw and ("raw" not in file or "X" not in getattr(file["raw"], "keys", dict)()):
        raise ValueError("`use_raw` is True, but `adata.raw` is None. Pass `use_raw=False`.")
    if layer is not None and not use_raw:
        layers = list(getattr(file["layers"], "keys", dict)()) if "layers" in file else []
        if not layers:
            raise ValueError(f"`layer` is {layer!r}, but `adata` has no layers. Leave out `layer`.")
        if layer not in layers:
            raise ValueError(f"`layer` is {layer!r}; `adata.layers` has {layers}.")


def _of_anndata(file: Any, path: Path, matrix: tuple[str | None, bool], limit: float) -> Store:
    """The matrix of an AnnData in a group of HDF5 or Zarr: X, a layer or raw."""
    layer, use_raw = matrix
    if use_raw:
        item, table = file["raw/X"], file["raw/var"]
    elif layer is not None:
        item, table = file["layers"][layer], _member(file, "var", path)
    else:
        item, table = _member(file, "X", path), _member(file, "var", path)
    cells = _member(file, "obs", path)
    if hasattr(item, "keys") and "indptr" in item:
        _check_whole(item["indptr"], path, limit)
    rows = as_rows(item, str(path))
    samples, features = _names(cells, path, limit), _names(table, path, limit)
    if rows is None or rows.shape != (len(samples), len(features)):
        raise ValueError(
            f"`{path}` is damaged: its matrix has shape {getattr(rows, 'shape', ())}, but there "
            f"are names for {(len(samples), len(features))}."
        )
    own = use_raw and ("var" not in file or _names(file["var"], path, limit) != features)
    return Store(rows, samples, features, file, own)


def _check_whole(item: Any, path: Path, limit: float, each: float = 8.0) -> None:
    """Raise if an array that is read whole, or one in a group, is larger than the limit.

    ``each`` is the number of bytes of an entry in memory.

    Metadata may promise any number of entries, in any number of chunks: those of chunks that do not
    exist are filled in, one chunk after the other.
    """
    if hasattr(item, "keys"):
        for name in item:
            _check_whole(item[name], path, limit, each)
        return
    shape = getattr(item, "shape", ())
    check_size(each * math.prod(shape), limit, path)
    chunks = math.prod(shape) / math.prod(getattr(item, "chunks", None) or shape or (1,))
    if chunks > MOST_CHUNKS:
        raise ValueError(
            f"`{path}` has {item.name} in {chunks:.0f} chunks, too many to read. Write it again "
            "with larger ones."
        )


def _member(file: Any, name: str, path: Path) -> Any:
    if name not in file:
        raise ValueError(f"`{path}` has no {name}; it is not a file of anndata, or has no data.")
    return file[name]


def _names(table: Any, path: Path, limit: float) -> list[str]:
    """The index of a table that anndata wrote."""
    from anndata.io import read_elem

    column = table.attrs.get("_index") if hasattr(table, "keys") else None
    if column is None or column not in table:
        raise ValueError(
            f"`{path}` has no names in {table.name}, or is of an old format; write it again with "
            "a recent anndata."
        )
    _check_whole(table[column], path, limit, TEXT)
    if path.is_dir():
        check_texts(path / table[column].path, path)
    try:
        return storable_names(np.asarray(read_elem(table[column])))
    except MemoryError as error:  # the size is within the limit: a chunk says that it has more
        raise ValueError(f"the names in {table.name} do not fit into memory") from error


# Zarr


def _open_zarr(path: Path, limit: float) -> Any:
    try:
        import zarr
    except ImportError:
        raise ImportError("Reading .zarr needs zarr: pip install 'cometric[zarr]'.") from None
    if not path.is_dir():
        raise ValueError(f"`{path}` is not a folder, as a Zarr store is.")
    check_zarr(path, limit)
    # Copies of the metadata in one file could say something else than what was checked.
    return zarr.open_group(path, mode="r", use_consolidated=False)


# NumPy


def _open_npy(path: Path, limit: float) -> Store:
    with open(path, "rb") as file:
        check_array(file, path.stat().st_size, path)
    rows = DenseRows(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
    return _unnamed(rows, path, limit)


def _open_npz(path: Path, limit: float) -> Store:
    """A CSR matrix that SciPy wrote without compression: its arrays are parts of the file."""
    with open(path, "rb") as file:
        shapes = check_arrays(file, path, math.inf)
        members = {part.filename.removesuffix(".npy"): part for part in _members(path)}
        if not {"data", "indices", "indptr", "shape", "format"} <= shapes.keys():
            raise ValueError(
                f"`{path}` is not a sparse matrix by rows or columns that SciPy wrote."
            )
        if any(part.compress_type != zipfile.ZIP_STORED for part in members.values()):
            raise ValueError(
                f"`{path}` is compressed, so that it cannot be read in parts. Write it with "
                "`scipy.sparse.save_npz(path, X, compressed=False)`."
            )
        check_size(8.0 * math.prod(shapes["indptr"]), limit, path)
        arrays = {name: _mapped(path, file, members[name]) for name in members}
    kind = arrays["format"][()]
    if (kind.decode() if isinstance(kind, bytes) else str(kind)) != "csr":
        raise ValueError(
            f"`{path}` holds a matrix of format {kind!r}; rows are read from 'csr'. Write "
            "`X.tocsr()`."
        )
    if arrays["shape"].size != 2:
        raise ValueError(f"`{path}` is damaged: its matrix has shape {arrays['shape']}.")
    n, m = (int(size) for size in arrays["shape"])
    rows = CsrRows(arrays["data"], arrays["indices"], arrays["indptr"], (n, m), str(path))
    return _unnamed(rows, path, limit)


def _members(path: Path) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def _mapped(path: Path, file: Any, member: zipfile.ZipInfo) -> Any:
    """An array in a zip archive without compression, as a memory map."""
    file.seek(member.header_offset + 26)  # lengths of the name and of the extra field
    lengths = np.frombuffer(file.read(4), "<u2")
    start = member.header_offset + 30 + int(lengths.sum())
    file.seek(start)
    shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)  # `check_arrays` knows it
    if math.prod(shape) * dtype.itemsize > start + member.file_size - file.tell():
        raise ValueError(f"`{path}` is damaged: an array is not as long as its header says.")
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", file.tell(), shape)


def _unnamed(rows: Any, path: Path, limit: float) -> Store:
    """A store with numbers as names; a file may promise columns without end, all of them empty."""
    n, m = rows.shape
    if min(n, m) < 0:
        raise ValueError(f"`{path}` is damaged: its matrix has shape {(n, m)}.")
    check_size(float(STRING_BYTES) * (n + m), limit, path)
    return Store(rows, [str(i) for i in range(n)], [str(k) for k in range(m)])
