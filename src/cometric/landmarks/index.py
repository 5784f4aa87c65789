"""The search for neighbors by an index: clusters of samples, compared by matrix products.

Clusters are those of dense coordinates: of transport its potentials, projected to a few singular
vectors, of the norm its dense vectors. Samples of one cluster are compared with those of the
clusters around it, by :class:`Shortlist`. Distances of the best candidates are computed, and the
recall is measured against all samples.
The same bytes for any number of threads: each product runs on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cometric.core.digest import digest
from cometric.core.types import Index, Matrix
from cometric.kernels.candidates import ROWS as TOGETHER
from cometric.kernels.candidates import pack, shortlist
from cometric.landmarks.exhaustive import count_hits
from cometric.landmarks.run_folder import RunFolder
from cometric.landmarks.samples import Samples
from cometric.runtime.progress import bar_of_pairs
from cometric.runtime.threads import map_in_order

SCORED = {True: 300, False: 1000}
"""Candidates of each sample whose scores are computed, with and without sums over features."""

FIRST = 4
"""Distances of a sample in the first round, in thirds of the number of neighbors."""

MOST_COMPARED = 10
"""Largest number of distances per sample by default, as a multiple of the number of neighbors."""

RATIO = 0.95
"""The quantile of the ratio of score to distance by which further candidates are left out."""

ALL = 20_000
"""Up to this many samples, a checked sample is compared with all if bounds prove nothing."""

MOST = 4000
"""Largest number of distances of a checked sample if there are more samples than ``ALL``."""

AT_ONCE = 2
"""Blocks that are searched at the same time; the parts between kernels have one thread only."""

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


class IndexSearch:
    """Candidates from clusters, ranked by their scores; distances of the best of them."""

    def __init__(
        self, samples: Samples, k: int, limit: int | None, seed: int, at_once: int
    ) -> None:
        self._samples, self._k, self._seed = samples, k, seed
        self._at_once = at_once
        self._n = samples.stored.shape[0]
        self.limit = min(self._n - 1, MOST_COMPARED * k if limit is None else limit)

    def run(self, run: RunFolder, show: bool, memory_limit: float | None) -> tuple[Index, Matrix]:
        """Neighbors of all samples and their distances, in the order of the samples."""
        self._samples.collect(self._described(run, show), memory_limit)
        clusters = ClusterIndex(self._samples, self._seed)
        # Another processor may round otherwise, and divide the samples into other blocks.
        run.bind(lambda: digest({"order": clusters.order, "starts": clusters.starts}))
        index = np.empty((self._n, self._k), np.int64)
        near = np.empty(index.shape)
        self.compared, done = 0.0, 0
        with bar_of_pairs(show, self._n, "sample", "finding neighbors") as report:
            search = partial(self._stored_block, clusters, run)
            for rows, found in self._map(search, enumerate(clusters.blocks())):
                index[rows], near[rows] = found["index"], found["near"]
                self.compared += float(found["compared"].sum()) / self._n
                done += len(rows)
                report(done, self._n)
        return index, near

    def _map(self, function: Any, items: Any) -> Iterator[Any]:
        return map_in_order(function, items, self._at_once, self._samples.tasks)

    def _described(self, run: RunFolder, show: bool) -> Iterator[dict[str, Any]]:
        """What :meth:`Samples.describe` returns for all blocks, loaded if it is stored."""

        def describe(item: tuple[int, slice]) -> tuple[slice, dict[str, Any]]:
            number, rows = item
            block = run.load(f"samples-{number:06d}")
            if block is None:
                block = self._samples.describe(rows)
                run.save(f"samples-{number:06d}", block)
            return rows, block

        with bar_of_pairs(show, self._n, "sample", "describing samples") as report:
            for rows, block in self._map(describe, enumerate(self._samples.blocks())):
                yield block
                report(rows.stop, self._n)

    def _stored_block(
        self, clusters: ClusterIndex, run: RunFolder, item: tuple[int, list[Index]]
    ) -> tuple[Index, dict[str, Any]]:
        """The samples of a block and their neighbors, loaded if they are stored."""
        number, groups = item
        found = run.load(f"neighbors-{number:06d}")
        if found is None:
            found = self._block(clusters, groups)
            run.save(f"neighbors-{number:06d}", found)
        return np.concatenate(groups), found

    def _block(self, clusters: ClusterIndex, groups: list[Index]) -> dict[str, Any]:
        """Neighbors of the samples of some groups, the nearest first."""
        rows = np.concatenate(groups)
        count = min(self._n - 1, max(SCORED[self._samples.has_common_sums], 2 * self.limit))
        images, potentials = self._samples.potentials(rows)
        candidates = clusters.candidates(groups, potentials, count)
        scores = self._samples.score(rows, images, candidates)
        best = np.argsort(scores, axis=1, kind="stable")[:, : self.limit]
        index = np.take_along_axis(candidates, best, axis=1)
        low = np.take_along_axis(scores, best, axis=1)
        distances, compared = self._compare(rows, index, low)
        order = np.lexsort((index, distances), axis=1)[:, : self._k]
        return {
            "index": np.take_along_axis(index, order, axis=1),
            "near": np.take_along_axis(distances, order, axis=1),
            "compared": compared,
        }

    def _compare(self, rows: Index, index: Index, low: Matrix) -> tuple[Matrix, Index]:
        """Distances of candidates in the order of their scores, infinite where none is needed.

        After each round, candidates are left out if their scores, divided by the ratio of score to
        distance that 95 % of the sample's pairs do not exceed, are above its k-th distance.
        """
        distances = np.full(index.shape, np.inf)
        compared, stop = np.zeros(len(rows), np.int64), max(self._k, FIRST * self._k // 3)
        place, ratio = np.arange(index.shape[1]), np.full(len(rows), np.inf)
        while True:
            worst = np.partition(distances, self._k - 1, axis=1)[:, self._k - 1]
            due = (place < stop) & (place >= compared[:, None])
            if stop > len(place) and not due.any():
                break
            with np.errstate(invalid="ignore"):
                due &= ~(low >= (worst * ratio)[:, None])
            if not due.any():
                break
            pairs = np.stack([rows[np.nonzero(due)[0]], index[due]], axis=1)
            distances[due] = self._samples.distances(pairs)
            compared += due.sum(axis=1)
            ratio = _high_ratio(low, distances)
            stop *= 2
        return distances, compared

    def recall(self, queries: Index, near: Matrix, show: bool) -> tuple[float, Index, int]:
        """The share of true neighbors among ``near``; queries without a miss; proved queries.

        Each query is compared with all samples by bounds, and by distances in the order of bounds,
        until the others are proved farther.
        """
        hits, complete, proofs = 0, [], 0
        with bar_of_pairs(show, len(queries), "sample", "measuring recall") as report:
            true_levels = self._map(self._true, map(int, queries))
            pairs = zip(queries, near, true_levels, strict=True)
            for done, (i, row, (true, proved)) in enumerate(pairs, 1):
                found = count_hits(row, true)
                hits, proofs = hits + found, proofs + proved
                if proved and found == self._k:
                    complete.append(int(i))
                report(done, len(queries))
        return hits / (len(queries) * self._k), np.array(complete, np.int64), proofs

    def _true(self, i: int) -> tuple[float, bool]:
        """The distance of the k-th neighbor of a sample, and whether it is proved."""
        k, query = self._k, np.array([i])
        images, _ = self._samples.potentials(query)
        scores = self._samples.score(query, images, np.arange(self._n)[None])[0]
        scores[i] = np.inf
        order = np.argsort(scores, kind="stable")[:-1]
        most = len(order) if self._n <= ALL else min(len(order), MOST)
        distances, stop = np.empty(0), 4 * k
        while True:
            stop = min(stop, most)
            part = order[len(distances) : stop]
            pairs = np.stack([np.full(len(part), i), part], axis=1)
            distances = np.concatenate([distances, self._samples.distances(pairs)])
            level = float(np.partition(distances, k - 1)[k - 1])
            proved = stop == len(order) or (
                self._samples.bounded and float(scores[order[stop]]) >= level
            )
            if proved or stop == most:
                return level, proved
            stop *= 2


def _high_ratio(low: Matrix, distances: Matrix) -> Matrix:
    """For each row, the quantile ``RATIO`` of low / distances over the finite distances."""
    known = np.isfinite(distances) & (distances > 0.0)
    ratios = np.sort(np.where(known, low / np.where(known, distances, 1.0), np.inf), axis=1)
    place = np.maximum(np.ceil(RATIO * known.sum(axis=1)).astype(np.int64) - 1, 0)
    high: Matrix = np.take_along_axis(ratios, place[:, None], axis=1)[:, 0]
    return high


class ClusterIndex:
    """Samples sorted by cluster, and the clusters near to each."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self._tasks = samples.tasks
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
