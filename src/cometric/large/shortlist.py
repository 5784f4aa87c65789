"""The best candidates for neighbors: the reference is exact, transport of few singular vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cometric.core.types import Index, Matrix
from cometric.kernels import shortlist
from cometric.large.samples import Samples

ROWS = 32
"""Samples that are compared with all candidates in one product, which should stay in the cache."""

Floats = NDArray[np.float32]


class Shortlist:
    """Candidates by the reference "local" or the l1 norm, whose sums are over common features."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._targets = samples.coordinates
        self._offsets = (samples.q - samples.mean).astype(np.float32)
        self._parts: Floats = np.empty((0, len(self._offsets)), np.float32)
        self._weight, self._farthest = samples.l1_weight, np.float32(np.inf)
        local = samples.local
        if local is not None:
            *scales, noise, spread = samples.around
            roots = [np.sqrt(w / s) for w, s in zip(local.parts.weights, scales, strict=True)]
            squares = np.einsum("nd,nd->n", samples.lsa, samples.lsa)
            self._parts = np.stack([*roots, noise, 1.0 / spread, squares]).astype(np.float32)
            self._weight = samples.base.weight
            self._farthest = np.float32(local.parts.farthest)

    def best(self, rows: Index, potentials: Matrix, members: Index, count: int) -> Index:
        """The numbers of the best ``count`` of the ``members`` for each row, itself left out."""
        samples, size = self._samples, len(members)
        indptr, bins, low, z = samples.common_entries
        lists = shortlist.by_feature(indptr, bins, low, z, members, samples.stored.shape[1])
        columns = np.ascontiguousarray(self._parts[:, members])
        offsets = self._offsets[members]
        vectors = self._targets[members].T, samples.lsa[members].T
        queries = (samples.base.scale * potentials).astype(np.float32)
        products, dots = (np.empty((ROWS, size), np.float32) for _ in range(2))
        found = np.empty((len(rows), min(count, size - 1)), np.int64)
        for start in range(0, len(rows), ROWS):
            here = slice(start, min(start + ROWS, len(rows)))
            part, used = rows[here], here.stop - here.start
            np.matmul(queries[here], vectors[0], out=products[:used])
            if len(columns):
                np.matmul(samples.lsa[part], vectors[1], out=dots[:used])
            entries = samples.entries(part)
            starts = np.concatenate([[0], np.cumsum(indptr[part + 1] - indptr[part])])
            shortlist.shortlist(
                *lists, starts, bins[entries], low[entries], z[entries],
                np.searchsorted(members, part), samples.p[part].astype(np.float32), offsets,
                products, dots, np.ascontiguousarray(self._parts[:, part].T), columns,
                np.float32(self._weight), self._farthest, found[here], 1,
            )  # fmt: skip
        numbers: Index = members[found]
        return numbers
