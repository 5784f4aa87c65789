"""Candidates for neighbors from an index: clusters of samples, searched by matrix products.

Clusters are those of dense coordinates: of transport its potentials, projected to a few singular
vectors, of the norm its dense vectors. Samples of one cluster are compared with those of the
clusters around it, by :class:`Shortlist`.
The same bytes for any number of threads: each product runs on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cometric.core.types import Index, Matrix
from cometric.kernels.candidates import ROWS as TOGETHER
from cometric.kernels.candidates import pack, shortlist
from cometric.large.samples import Samples
from cometric.machine.threads import map_in_order

SCANNED, MOST_SCANNED = 20_000, 100_000
"""Samples that each sample is compared with: a tenth of all, within these limits."""

GROUP = 2048
"""Largest number of samples of one cluster in a product."""

BATCH = 8192
"""Approximate number of samples in a block of the search; progress is stored after each."""

ROUNDS = 8
"""Iterations of k-means."""

PER_CENTER = 40
"""Samples per center to which the centers are fitted."""

CANDIDATES, ROWS = 1024, 128
"""Candidates and samples in one product, which should stay in the cache."""

Floats = NDArray[np.float32]


class ClusterIndex:
    """Samples sorted by cluster, and the clusters near to each."""

    def __init__(self, samples: Samples, seed: int, tasks: int) -> None:
        self._tasks = tasks
        points = np.concatenate(
            [
                samples.coordinates * samples.stretch.astype(np.float32),
                samples.vectors * np.float32(np.sqrt(samples.slope)),
            ],
            axis=1,
        )
        n = len(points)
        self._scanned = max(SCANNED, min(n // 10, MOST_SCANNED))
        self.centers = _centers(points, max(1, int(np.sqrt(n))), np.random.default_rng(seed))
        labels = _assign(points, self.centers)
        self.order = np.argsort(labels, kind="stable")
        self.starts = np.searchsorted(labels[self.order], np.arange(len(self.centers) + 1))
        self._labels = labels
        gaps = _squares(self.centers, self.centers)
        self._near = np.argsort(gaps, axis=1, kind="stable")
        self._shortlist = Shortlist(samples)

    def blocks(self) -> Iterator[list[Index]]:
        """Groups of samples of one cluster each, about ``BATCH`` samples together."""
        batch: list[Index] = []
        for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True):
            for first in range(start, stop, GROUP):
                batch.append(self.order[first : min(first + GROUP, stop)])
                if sum(map(len, batch)) >= BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def candidates(self, groups: list[Index], potentials: Matrix, count: int) -> Index:
        """The numbers of ``count`` candidates for each sample of the groups, in their order."""
        ends = np.cumsum([len(group) for group in groups])
        parts = [slice(end - len(group), end) for group, end in zip(groups, ends, strict=True)]

        def search(g: int) -> Index:
            return self._search(groups[g], potentials[parts[g]], count)

        return np.concatenate(list(map_in_order(search, range(len(groups)), self._tasks, 1)))

    def _search(self, group: Index, potentials: Matrix, count: int) -> Index:
        cluster = self._labels[group[0]]
        sizes = np.diff(self.starts)[self._near[cluster]]
        enough = int(np.searchsorted(np.cumsum(sizes), max(self._scanned, 2 * count))) + 1
        near = self._near[cluster, :enough]
        members = np.concatenate([self.order[self.starts[c] : self.starts[c + 1]] for c in near])
        members.sort()
        return self._shortlist.best(group, potentials, members, count)


class Shortlist:
    """The best of many candidates, by approximate scores.

    Transport is approximated by a linear function of the candidate, in few singular vectors. A
    local reference and the l1 norm are exact up to rounding. Other references are approximated by
    the squared distance of dense vectors, which becomes a part of the linear function.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        p, q = samples.p, samples.q - samples.mean
        self._targets = samples.coordinates
        if not samples.has_common_sums:
            squares = samples.slope * np.einsum("nd,nd->n", samples.vectors, samples.vectors)
            p, q = p + squares, q + squares
            self._targets = np.concatenate([samples.coordinates, samples.vectors], axis=1)
        self._own_offsets, self._offsets = p.astype(np.float32), q.astype(np.float32)
        self._parts: Floats = np.empty((0, len(q)), np.float32)
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
        own, p = np.searchsorted(members, rows), self._own_offsets[rows]
        parts = np.ascontiguousarray(self._parts[:, rows].T)
        linear = samples.base.scale * potentials
        if not samples.has_common_sums:
            linear = np.concatenate([linear, 2.0 * samples.slope * samples.vectors[rows]], axis=1)
        queries = _padded(linear)
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


def _squares(one: Floats, other: Floats) -> Floats:
    """Squared distances, without the squared length of ``one``."""
    squares: Floats = np.einsum("kd,kd->k", other, other) - 2.0 * (one @ other.T)
    return squares


def _assign(points: Floats, centers: Floats) -> Index:
    """The nearest center of each point."""
    labels = np.empty(len(points), np.int64)
    for start in range(0, len(points), 4096):
        part = slice(start, start + 4096)
        labels[part] = _squares(points[part], centers).argmin(axis=1)
    return labels


def _centers(points: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Centers of clusters by k-means, from a sample of the points."""
    n = len(points)
    if PER_CENTER * count < n:
        points = points[np.sort(rng.choice(n, PER_CENTER * count, replace=False))]
    centers = points[np.sort(rng.choice(len(points), count, replace=False))].copy()
    for _ in range(ROUNDS):
        labels = _assign(points, centers)
        order = np.argsort(labels, kind="stable")
        used, first = np.unique(labels[order], return_index=True)
        sums = np.add.reduceat(points[order].astype(np.float64), first, axis=0)
        counts = np.diff(np.append(first, len(points)))
        centers[used] = (sums / counts[:, None]).astype(np.float32)
    return centers
