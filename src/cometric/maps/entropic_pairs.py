"""Pairs of histograms, sorted by source, in the layout of the CPU Sinkhorn kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cometric.core.types import Index, Matrix, Vector
from cometric.kernels.sinkhorn_numba import copy_scalings
from cometric.maps.checking import fill

CELLS_PER_BLOCK = 2e9
"""Products per kernel call: about a second."""

NO_PAIRS: tuple[Index, Vector] = (np.empty(0, np.int64), np.empty(0))


class PairGroup:
    """Pairs sorted by their sources, the layout of their scalings, and the stored scalings.

    Histograms are numbered by size here, the largest first.
    """

    def __init__(
        self,
        indptr: Index,
        index: Index,
        stored: np.dtype[Any] | None,
        few: bool = False,
        order: Any = slice(None),
    ) -> None:
        self.indptr, self.index, self.stored = indptr, index, stored
        self.few = few  # pairs of each source
        self.order = order  # that sorted the pairs
        self.scalings: NDArray[Any] | None = None
        self.target = index[:, 1].astype(np.int32)
        sizes = np.diff(indptr)
        self.offsets = np.zeros(len(index) + 1, np.int64)
        np.cumsum(sizes[self.target], out=self.offsets[1:])
        self.start = np.searchsorted(index[:, 0], np.arange(len(indptr))).astype(np.int64)
        cells = np.concatenate([[0], np.cumsum(sizes[index[:, 0]] * sizes[index[:, 1]])])
        per_source = cells[self.start]
        cuts = np.searchsorted(per_source, np.arange(0, per_source[-1], CELLS_PER_BLOCK))
        self.cuts = np.unique(np.concatenate([cuts, [len(sizes)]]))

    def blocks(self) -> Iterator[tuple[slice, Index]]:
        """Ranges of pairs with whole sources, and ``start`` relative to the range."""
        for first, last in zip(self.cuts[:-1], self.cuts[1:], strict=True):
            part = slice(int(self.start[first]), int(self.start[last]))
            yield part, np.clip(self.start - part.start, 0, part.stop - part.start)

    def start_at(
        self,
        own: NDArray[Any],
        dtype: np.dtype[Any],
        n_threads: int | None,
        part: slice | None = None,
    ) -> NDArray[Any]:
        """Scalings to start from: those of each target to itself."""
        part = slice(0, len(self.index)) if part is None else part
        offsets = self.offsets[part.start : part.stop + 1]
        scalings = np.empty(offsets[-1] - offsets[0], dtype)
        copy_scalings(self.indptr, own, self.target[part], offsets, scalings, n_threads)
        return scalings

    def restore(self, scalings: Any | None) -> None:
        """Continue from stored scalings; from the start if None."""
        self.scalings = None
        if scalings is not None:
            self.scalings = np.empty(self.offsets[-1], self.stored)
            fill(self.scalings, scalings, "scalings")


@dataclass
class PairTask:
    """A group under one cost: transport costs over eps, and marginal errors."""

    group: PairGroup
    cost: Matrix
    values: Vector
    errors: Vector
    level: Vector | None = None  # the mean of the two self terms of each pair
    near: tuple[Index, Vector] = NO_PAIRS  # positions and divergences / eps of nearly equal pairs
