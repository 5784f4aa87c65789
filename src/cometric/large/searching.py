"""The search for neighbors by an index, block by block, and its recall against all samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from cometric.core.digest import digest
from cometric.core.types import Index, Matrix
from cometric.large.exhaustive import count_hits
from cometric.large.index import ClusterIndex
from cometric.large.run_folder import RunFolder
from cometric.large.samples import Samples
from cometric.machine.progress import bar_of_pairs
from cometric.machine.threads import map_in_order

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


class IndexSearch:
    """Candidates from clusters, ranked by their scores; distances of the best of them."""

    def __init__(self, samples: Samples, k: int, limit: int | None, seed: int, tasks: int) -> None:
        self._samples, self._k, self._seed = samples, k, seed
        self._at_once = min(AT_ONCE, tasks)
        self._tasks = tasks // self._at_once
        samples.use_threads(self._tasks)
        self._n = samples.stored.shape[0]
        self.limit = min(self._n - 1, MOST_COMPARED * k if limit is None else limit)

    def run(self, run: RunFolder, show: bool, memory_limit: float | None) -> tuple[Index, Matrix]:
        """Neighbors of all samples and their distances, in the order of the samples."""
        self._samples.collect(self._places(run, show), memory_limit)
        clusters = ClusterIndex(self._samples, self._seed, self._tasks)
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
        return map_in_order(function, items, self._at_once, self._tasks)

    def _places(self, run: RunFolder, show: bool) -> Iterator[dict[str, Any]]:
        def place(item: tuple[int, slice]) -> tuple[slice, dict[str, Any]]:
            number, rows = item
            placed = run.load(f"place-{number:06d}")
            if placed is None:
                placed = self._samples.place(rows)
                run.save(f"place-{number:06d}", placed)
            return rows, placed

        with bar_of_pairs(show, self._n, "sample", "placing samples") as report:
            for rows, placed in self._map(place, enumerate(self._samples.blocks())):
                yield placed
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
