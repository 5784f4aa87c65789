"""The exhaustive search for neighbors: bounds of all distances prove which samples are nearest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import candidates
from cometric.landmarks.run_folder import RunFolder
from cometric.results.extension import HeldDistances
from cometric.runtime.progress import bar_of_pairs

BLOCK = 4_000_000
"""Size limit of the arrays of a block of samples: images, or bounds of candidates."""

ROWS = 500
"""Largest number of samples in a block; progress is shown after each block."""

BLOCK_PARTS = ("index", "near", "proved", "compared")

SLACK = 1e-6
"""References are lowered by this fraction: products of matrices round more than pairs do."""

ROUNDING = 2.0**-51
"""Relative rounding error of one operation; bounds are lowered by its effect."""


class Bounds:
    """Lower bounds of all distances, proved in docs/scale.md; the lowest are candidates.

    The bound of the distance between a_i and a_j is ``p_i + q_j - <x_i, a_j>``, with x dense, plus
    their weighted l1 norm or reference, which is exact. Other norms are not part of the bound.
    """

    def __init__(self, distances: HeldDistances, tasks: int, first: int = 0) -> None:
        self._hist, self._tasks, self._scale = distances.hist, tasks, distances.scale
        self._first = first  # the first candidate: earlier samples are new
        bounds = distances.transport.lower_bounds(distances.phi, distances.hist, distances.cost)
        self._p, self._q, self._means = (self._scale * part for part in bounds[:3])
        self._image = bounds.image
        self._share = distances.weight if distances.norm == "l1" else 0.0
        self._norms, self._weight = distances.norms, distances.weight
        self.dense = distances.has_reference  # bounds of all samples are in memory

    def lowest(self, rows: slice, count: int) -> tuple[Matrix, Index]:
        """The ``count`` lowest bounds of each of the samples ``rows``, in order, and candidates."""
        image = self._scale * self._image(rows)
        parts = (image, self._p, self._q, self._means)
        largest = max(float(np.abs(part).max(initial=0.0)) for part in parts)
        size = int(np.diff(self._hist.indptr).max()) + 16
        p = self._p[rows] - size * ROUNDING * (largest + self._share)
        q = np.concatenate([np.full(self._first, np.inf), self._q[self._first :]])
        extra = np.empty((0, 0))
        if self.dense and self._norms is not None:
            extra = self._weight * self._norms.between(rows, slice(0, self._hist.shape[0]))
            extra *= 1.0 - SLACK
        bounds, index = candidates.lowest(
            *_csr_parts(self._hist), rows.start, p, q, image, self._means, self._share,
            extra, count, self._tasks,
        )  # fmt: skip
        return bounds, index


class ExhaustiveSearch:
    """Compares candidates in the order of their bounds, until the others are proved farther.

    With ``first`` > 0, samples before this index are new, and those from it on are candidates.
    """

    def __init__(
        self, distances: HeldDistances, k: int, limit: int, tasks: int, first: int = 0
    ) -> None:
        self._distances, self._k, self._limit = distances, k, limit
        self._bounds = Bounds(distances, tasks, first)
        self._n = distances.hist.shape[0]
        self._rows = first or self._n
        self._others = self._n - first if first else self._n - 1

    def run(
        self, progress: bool, stored: RunFolder | None = None
    ) -> tuple[Index, Matrix, NDArray[np.bool_], Index]:
        """Neighbors of all samples, as :meth:`block`; blocks that are stored are not repeated."""
        stored = stored or RunFolder()
        blocks = [self.stored_block(rows, stored) for rows in self.blocks(progress)]
        index, near, proved, compared = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return index, near, proved, compared

    def blocks(self, progress: bool) -> Iterator[slice]:
        widest = max(self._distances.hist.shape[1], self._limit, BLOCK // ROWS)
        widest = max(widest, self._n if self._bounds.dense else 0)
        with bar_of_pairs(progress, self._rows, "sample", "finding neighbors") as report:
            for rows in _cut((self._rows, widest)):
                yield rows
                report(rows.stop, self._rows)

    def stored_block(self, rows: slice, stored: RunFolder) -> tuple[Any, ...]:
        """The same as :meth:`block`, loaded if it is stored."""
        name = f"neighbors-{rows.start:09d}"
        parts = stored.load(name)
        if parts is None:
            parts = dict(zip(BLOCK_PARTS, self.block(rows), strict=True))
            stored.save(name, parts)
        return tuple(parts[part] for part in BLOCK_PARTS)

    def block(self, rows: slice) -> tuple[Index, Matrix, NDArray[np.bool_], Index]:
        """Neighbors, their distances, whether they are proved, and how many were compared."""
        k, limit = self._k, self._limit
        low, index = self._bounds.lowest(rows, min(limit + 1, self._others))
        if low.shape[1] == limit:  # all other samples are candidates
            low = np.pad(low, ((0, 0), (0, 1)), constant_values=np.inf)
        index = index[:, :limit]
        samples = np.arange(rows.start, rows.stop)
        distances = np.full(index.shape, np.inf)
        compared, stop = np.zeros(len(samples), np.int64), 4 * k // 3
        while True:  # each round of distances excludes more of the other candidates
            worst = np.partition(distances, k - 1, axis=1)[:, k - 1]
            place = np.arange(limit)
            due = (place < stop) & (place >= compared[:, None]) & (low[:, :limit] < worst[:, None])
            if not due.any():
                break
            i = np.nonzero(due)[0]
            distances[due] = self._distances.pairs(np.stack([samples[i], index[due]], axis=1))
            compared += due.sum(axis=1)
            stop *= 2
        order = np.lexsort((index, distances), axis=1)[:, :k]
        near = np.take_along_axis(distances, order, axis=1)
        proved = low[np.arange(len(samples)), compared] >= near[:, -1]
        return np.take_along_axis(index, order, axis=1), near, proved, compared

    def recall(self, queries: Index, near: Matrix, progress: bool = False) -> float:
        """The fraction of true neighbors of ``queries`` among those at distances ``near``."""
        hits = 0
        with bar_of_pairs(progress, len(queries), "sample", "measuring recall") as report:
            for done, (i, row) in enumerate(zip(queries, near, strict=True), 1):
                others = np.delete(np.arange(self._n), i)
                values = self._distances.pairs(np.stack([np.full(len(others), i), others], axis=1))
                true = np.partition(values, self._k - 1)[self._k - 1]
                hits += count_hits(row, true)
                report(done, len(queries))
        return hits / (len(queries) * self._k)


def count_hits(near: Vector, kth: float) -> int:
    """How many of the distances ``near`` are, up to rounding, at most that of the k-th neighbor."""
    return int(np.count_nonzero(near <= kth * (1.0 + 1e-6) + 1e-12))


def _cut(shape: tuple[int, int]) -> Iterator[slice]:
    """Slices of the rows of a matrix, with at most ``BLOCK`` entries each."""
    step = max(1, BLOCK // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def _csr_parts(rows: sparse.csr_array) -> tuple[Index, NDArray[np.int32], NDArray[np.float64]]:
    """The arrays of a sparse matrix, in the types of the kernels."""
    return rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
