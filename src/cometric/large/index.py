"""Candidates for neighbors from an index: clusters of samples, searched by matrix products.

Samples have coordinates in which a linear function of the candidate approximates the score: of
transport its potentials, projected to a few singular vectors, of the norm the squared distance
of its dense vectors. Samples of one cluster are compared with those of the clusters around it, by
:class:`Shortlist` if the norm allows it, else by the linear function.
The same bytes for any number of threads: each product runs on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cometric.core.types import Index, Matrix
from cometric.large.samples import Samples
from cometric.large.shortlist import Shortlist
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


class ClusterIndex:
    """Samples sorted by cluster, and the clusters near to each."""

    def __init__(self, samples: Samples, seed: int, tasks: int) -> None:
        self._tasks = tasks
        self._scale, self._slope = samples.base.scale, samples.slope
        vectors = samples.vectors
        self._targets = np.concatenate([samples.coordinates, vectors], axis=1)
        self._offsets = (
            samples.q - samples.mean + self._slope * np.einsum("nd,nd->n", vectors, vectors)
        ).astype(np.float32)
        self._vectors = vectors
        stretch = np.concatenate([samples.stretch, np.full(vectors.shape[1], np.sqrt(self._slope))])
        points = self._targets * stretch.astype(np.float32)
        n = len(points)
        self._scanned = max(SCANNED, min(n // 10, MOST_SCANNED))
        self.centers = _centers(points, max(1, int(np.sqrt(n))), np.random.default_rng(seed))
        labels = _assign(points, self.centers)
        self.order = np.argsort(labels, kind="stable")
        self.starts = np.searchsorted(labels[self.order], np.arange(len(self.centers) + 1))
        self._labels = labels
        gaps = _squares(self.centers, self.centers)
        self._near = np.argsort(gaps, axis=1, kind="stable")
        self._shortlist = Shortlist(samples) if samples.has_common_sums else None

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

    def _queries(self, rows: Index, potentials: Matrix) -> NDArray[np.float32]:
        both = [self._scale * potentials, 2.0 * self._slope * self._vectors[rows]]
        return np.concatenate(both, axis=1).astype(np.float32)

    def _search(self, group: Index, potentials: Matrix, count: int) -> Index:
        cluster = self._labels[group[0]]
        sizes = np.diff(self.starts)[self._near[cluster]]
        enough = int(np.searchsorted(np.cumsum(sizes), max(self._scanned, 2 * count))) + 1
        near = self._near[cluster, :enough]
        members = np.concatenate([self.order[self.starts[c] : self.starts[c + 1]] for c in near])
        members = np.sort(members)
        if self._shortlist is not None:
            return self._shortlist.best(group, potentials, members, count)
        queries = self._queries(group, potentials)
        scores = self._offsets[members] - queries @ self._targets[members].T
        scores[np.arange(len(group)), np.searchsorted(members, group)] = np.inf
        count = min(count, len(members) - 1)
        chosen = np.argpartition(scores, count - 1, axis=1)[:, :count]
        return members[np.sort(chosen, axis=1)]


def _squares(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squared distances, without the squared length of ``one``."""
    squares: NDArray[np.float32] = np.einsum("kd,kd->k", other, other) - 2.0 * (one @ other.T)
    return squares


def _assign(points: NDArray[np.float32], centers: NDArray[np.float32]) -> Index:
    """The nearest center of each point."""
    labels = np.empty(len(points), np.int64)
    for start in range(0, len(points), 4096):
        part = slice(start, start + 4096)
        labels[part] = _squares(points[part], centers).argmin(axis=1)
    return labels


def _centers(
    points: NDArray[np.float32], count: int, rng: np.random.Generator
) -> NDArray[np.float32]:
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
