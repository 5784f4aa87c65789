"""Samples stored as CSR, in memory or in a temporary file: a dense matrix is never in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.types import Index
from cometric.files.rows import Source
from cometric.runtime.devices import free_memory

SHARE = 0.25
"""Fraction of the memory limit that one stored array may take; a larger one goes to a file."""

PART = 20_000
"""Samples in a part of stored rows."""


class LongArray:
    """A growing array: in memory up to a share of the limit in bytes, then in a temporary file.

    Without a ``memory_limit`` it is the free memory.
    """

    def __init__(self, dtype: Any, memory_limit: float | None) -> None:
        self.dtype = np.dtype(dtype)
        self._limit = SHARE * (free_memory() if memory_limit is None else float(memory_limit))
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


class StoredRows(Source):
    """The rows of a source, compressed, with values in float32 if that is exact.

    Parameters
    ----------
    chunks
        The rows in order, as CSR matrices with ``columns`` columns.
    memory_limit
        As for :class:`LongArray`.
    """

    def __init__(
        self, chunks: Iterable[sparse.csr_array], columns: int, memory_limit: float | None
    ) -> None:
        sizes, indices = [np.zeros(1, np.int64)], LongArray(np.int32, memory_limit)
        data = LongArray(np.float32, memory_limit)
        for chunk in chunks:
            sizes.append(np.diff(chunk.indptr))
            indices.append(chunk.indices)
            if data.dtype == np.float32 and not _fits_float32(chunk.data):
                before, data = data.finish(), LongArray(np.float64, memory_limit)
                data.append(before)
            data.append(chunk.data)
        self.indptr = np.cumsum(np.concatenate(sizes)).astype(np.int64)
        self.indices, self.data = indices.finish(), data.finish()
        self.shape = len(self.indptr) - 1, columns
        self.sample_names = self.feature_names = None

    def __getitem__(self, rows: slice) -> sparse.csr_array:
        return self.take(np.arange(*rows.indices(self.shape[0])))

    def take(self, rows: Index) -> sparse.csr_array:
        """Some rows as a float64 CSR matrix."""
        starts, sizes = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        entries = np.repeat(starts - indptr[:-1], sizes) + np.arange(indptr[-1])
        parts = (self.data[entries].astype(np.float64), self.indices[entries], indptr)
        return sparse.csr_array(parts, shape=(len(rows), self.shape[1]))

    def chunks(self) -> Iterator[sparse.csr_array]:
        return (self[rows] for rows in self.parts())

    def parts(self) -> list[slice]:
        """Slices of all rows, for one part at a time in memory."""
        n = self.shape[0]
        return [slice(start, min(start + PART, n)) for start in range(0, n, PART)]


def _fits_float32(values: NDArray[Any]) -> bool:
    return bool((values.astype(np.float32) == values).all())


def store_rows(source: Source, memory_limit: float | None) -> StoredRows:
    """All rows of a source, read once, with its names."""
    stored = StoredRows(source.chunks(), source.shape[1], memory_limit)
    stored.sample_names, stored.feature_names = source.sample_names, source.feature_names
    return stored
