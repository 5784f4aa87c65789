"""The best candidates for neighbors: the reference is exact, transport of few singular vectors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cometric.core.types import Index, Matrix
from cometric.kernels.shortlist import ROWS as TOGETHER
from cometric.kernels.shortlist import pack, shortlist
from cometric.large.samples import Samples

CANDIDATES, ROWS = 1024, 128
"""Candidates and samples in one product, which should stay in the cache."""

Floats = NDArray[np.float32]


class Shortlist:
    """Candidates by a local reference or the l1 norm, which have sums over common features."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._targets = samples.coordinates
        self._offsets = (samples.q - samples.mean).astype(np.float32)
        self._parts: Floats = np.empty((0, len(self._offsets)), np.float32)
        self._views: list[slice] = []
        self._weight, self._farthest = samples.l1_weight, np.float32(np.inf)
        local = samples.local
        if local is not None:
            *scales, noise, spread = samples.around
            roots = [np.sqrt(w / s) for w, s in zip(local.parts.weights, scales, strict=True)]
            squares = np.add.reduceat(samples.vectors**2, samples.cuts[:-1], axis=1).T
            self._parts = np.stack([*roots, noise, 1.0 / spread, *squares]).astype(np.float32)
            self._views = [slice(*cut) for cut in pairwise(samples.cuts)]
            self._weight = samples.base.weight
            self._farthest = np.float32(local.parts.farthest)

    def best(self, rows: Index, potentials: Matrix, members: Index, count: int) -> Index:
        """The numbers of the best ``count`` of the ``members`` for each row, itself left out."""
        samples, size = self._samples, len(members)
        shape = len(rows), min(count, size - 1)
        best, found = np.full(shape, np.inf, np.float32), np.zeros(shape, np.int64)
        packed = pack(*samples.common_entries, rows)
        own, p = np.searchsorted(members, rows), samples.p[rows].astype(np.float32)
        parts = np.ascontiguousarray(self._parts[:, rows].T)
        queries = _padded(samples.base.scale * potentials)
        directions = _padded(samples.vectors[rows])
        for start in range(0, size, CANDIDATES):
            some = members[start : start + CANDIDATES]
            candidates = pack(*samples.common_entries, some)
            offsets, columns = self._offsets[some], np.ascontiguousarray(self._parts[:, some].T)
            targets, vectors = self._targets[some], samples.vectors[some]
            for first in range(0, len(rows), ROWS):
                here = slice(first, min(first + ROWS, len(rows)))
                products = targets @ queries[:, first : first + ROWS]
                dots = np.empty((len(self._views), *products.shape), np.float32)
                for view, dot in zip(self._views, dots, strict=True):
                    np.matmul(vectors[:, view], directions[view, first : first + ROWS], out=dot)
                shortlist(
                    *candidates, packed[0][first : here.stop + 1], *packed[1:],
                    samples.stored.shape[1], own[here], p[here], offsets, products, dots,
                    parts[here], columns[:, : parts.shape[1]], np.float32(self._weight),
                    self._farthest, start, best[here], found[here], 1,
                )  # fmt: skip
        found.sort(axis=1)
        numbers: Index = members[found]
        return numbers


def _padded(vectors: Matrix | Floats) -> Floats:
    """Vectors as columns, and zeros up to a multiple of the rows that the kernel takes at once."""
    n, d = vectors.shape
    columns = np.zeros((d, n + -n % TOGETHER), np.float32)
    columns[:, :n] = vectors.T
    return columns
