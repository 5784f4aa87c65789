"""Samples read in chunks of rows and stored as CSR: the dense matrix is never in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.inputs import BadData, Names, check_not_empty, read_matrix, read_names
from cometric.core.types import Index
from cometric.machine.devices import free_memory

CHUNK = 16_000_000
"""Entries of a chunk of rows, zeros included."""

SHARE = 0.25
"""Fraction of the memory limit that one stored array may take; a larger one goes to a file."""


def is_source(X: Any) -> bool:
    """Whether ``X`` is a source, which is read in chunks: a file or a lazy array, not in memory.

    ``X[start:stop]`` and ``X[numbers]``, with increasing numbers, are these rows, dense or sparse.
    """
    in_memory = isinstance(X, np.ndarray) or sparse.issparse(X)
    known = ("obs_names", "to_numpy", "detach", "__dask_graph__", "__dlpack__")
    if in_memory or any(hasattr(X, name) for name in known):
        return False
    return hasattr(X, "__getitem__") and len(getattr(X, "shape", ())) == 2


def read_chunks(X: Any) -> Iterator[Any]:
    """The rows of a source as valid float64 CSR matrices with mass in each row, in order."""
    n, m = X.shape
    step = max(1, CHUNK // max(1, m))
    for start in range(0, n, step):
        part = X[start : min(start + step, n)]
        part = part if sparse.issparse(part) else np.asarray(part)
        try:
            chunk = read_matrix(part, "X", least=(1, 1))
            check_not_empty(np.diff(chunk.indptr) > 0, "X", "row", "Drop them: they hold no mass.")
        except BadData as error:  # rows count from the first of the source
            row = None if error.row is None else error.row + start
            raise BadData("X", error.fault, error.count, error.remedy, row, error.column) from None
        yield chunk


def names_of(X: Any) -> tuple[Names, Names]:
    """The names of the samples and of the features, if any."""
    if not is_source(X):
        return read_names(X)
    given = (getattr(X, name, None) for name in ("sample_names", "feature_names"))
    samples, features = (
        None if names is None else [str(name) for name in names] for names in given
    )
    return samples, features


class LongArray:
    """A growing array: in memory up to a limit in bytes, then in a temporary file."""

    def __init__(self, dtype: Any, limit: float) -> None:
        self.dtype, self._limit = np.dtype(dtype), limit
        self._parts: list[NDArray[Any]] = []
        self._count = 0
        self._file: Any = None

    def append(self, values: NDArray[Any]) -> None:
        values = np.ascontiguousarray(values, self.dtype)
        self._count += len(values)
        if self._file is None and self._count * self.dtype.itemsize > self._limit:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the array
            for part in self._parts:
                self._file.write(part.tobytes())
            self._parts = []
        if self._file is None:
            self._parts.append(values)
        else:
            self._file.write(values.tobytes())

    def finish(self) -> NDArray[Any]:
        """All values; a memory map if they are in a file."""
        if self._file is not None:
            self._file.flush()
            mapped: NDArray[Any] = np.memmap(self._file, self.dtype, "r", shape=(self._count,))
            self._file.close()  # the map stays
            return mapped
        values = np.empty(self._count, self.dtype)
        place = 0
        self._parts.reverse()
        while self._parts:  # freed one by one
            part = self._parts.pop()
            values[place : place + len(part)] = part
            place += len(part)
        return values


@dataclass(frozen=True, eq=False)
class StoredRows:
    """The rows of a CSR matrix, in float32 if that is exact."""

    indptr: Index
    indices: NDArray[np.int32]
    data: NDArray[Any]
    shape: tuple[int, int]

    def take(self, rows: Any) -> sparse.csr_array:
        """Some rows as a float64 CSR matrix."""
        rows = np.asarray(rows, np.int64)
        starts, sizes = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        entries = np.repeat(starts - indptr[:-1], sizes) + np.arange(indptr[-1])
        parts = (self.data[entries].astype(np.float64), self.indices[entries], indptr)
        return sparse.csr_array(parts, shape=(len(rows), self.shape[1]))


@dataclass(frozen=True, eq=False)
class StoredSource:
    """Stored rows with names, as a source that is read in chunks."""

    rows: StoredRows
    sample_names: Names = None
    feature_names: Names = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    def __getitem__(self, rows: Any) -> sparse.csr_array:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.shape[0]))
        return self.rows.take(rows)


def store_rows(chunks: Any, m: int, limit: float) -> StoredRows:
    """Chunks of rows joined into one matrix; ``limit`` is the bytes of an array in memory."""
    sizes, indices = [], LongArray(np.int32, limit)
    data: LongArray | None = None
    for chunk in chunks:
        sizes.append(np.diff(chunk.indptr))
        indices.append(chunk.indices)
        exact = bool((chunk.data.astype(np.float32) == chunk.data).all())
        if data is None or (data.dtype == np.float32 and not exact):
            before = None if data is None else data.finish()
            data = LongArray(np.float32 if exact else np.float64, limit)
            if before is not None:
                data.append(before)
        data.append(chunk.data)
    if data is None:
        raise ValueError("`X` has no rows.")
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    return StoredRows(indptr, indices.finish(), data.finish(), (len(indptr) - 1, m))


def array_limit(memory_limit: float | None) -> float:
    """Bytes that one of the stored arrays may take in memory."""
    return SHARE * (free_memory() if memory_limit is None else float(memory_limit))
