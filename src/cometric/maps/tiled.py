"""Any distance map, tile by tile, on the workers of a Dask cluster.

A tile is all pairs between two blocks of histograms. It depends on the cost only: a new map is
made for it, solved and discarded. Hence the result is the same, byte for byte, on one machine and
on a cluster, for any number of workers, also if some of them die; a lost tile is computed again
elsewhere. Nothing is warm-started: maps that can store their solutions in strips, exact and
entropic ones, are in :mod:`~cometric.maps.warm`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cometric.core.histograms import Histograms
from cometric.core.types import Index, Matrix, Vector
from cometric.machine.threads import free_in_children
from cometric.maps.checks import check_cost, check_index
from cometric.maps.cluster import LOST, PATIENCE, ClusterLost, as_cluster, compare_versions
from cometric.maps.strips import worker_threads

TILE = 512
"""Histograms on each edge of a tile; smaller where there would be too few tiles."""

ATTEMPTS = 5
"""Times in a row that tasks may be sent and all be lost before a call fails."""

_KERNEL_LOCK = free_in_children(threading.Lock())  # a tile uses all threads of its worker


class TileResult(NamedTuple):
    """Distances of a tile's pairs, and the largest marginal error among them."""

    values: Vector
    error: float


Make = Callable[..., Any]
Tile = tuple[slice, slice] | Index


class TiledMap:
    """The map that ``make`` creates, computed in tiles, on the workers of ``client`` if given.

    Parameters
    ----------
    make
        Creates a map from histograms (and ``n_threads``). It is sent to the workers and must be
        picklable, such as ``partial(EntropicMap, eps=0.1)``.
    hist
        Histograms as rows, each summing to 1.
    client
        A ``distributed.Client`` or a :class:`~cometric.maps.cluster.Cluster`, or None for this
        process. Tiles are the same either way.
    tile
        Histograms on each edge of a tile.
    patience
        Seconds without a scheduler or without workers before :class:`ClusterLost` is raised.
    """

    def __init__(
        self,
        make: Make,
        hist: Any,
        client: Any = None,
        *,
        tile: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._make = make
        self._cluster = as_cluster(client, patience)
        self._hist = Histograms.of(hist)
        n = self._hist.shape[0]
        self.tile = min(TILE, max(64, -(-n // 8))) if tile is None else tile
        self.error = 0.0
        self.on_progress: Callable[[int, int], None] | None = None
        self._shared: Any = None  # future of the histograms on the workers
        if self._cluster is not None:
            compare_versions(self._cluster.client)

    @property
    def shape(self) -> tuple[int, int]:
        return self._hist.shape

    def __repr__(self) -> str:
        n, d = self.shape
        place = "this process" if self._cluster is None else "a Dask cluster"
        return f"TiledMap({n} histograms on {d} bins, tiles of {self.tile}, on {place})"

    def __call__(self, cost: Matrix) -> Matrix:
        n = self.shape[0]
        cuts = [slice(k, min(k + self.tile, n)) for k in range(0, n, self.tile)]
        tiles = [(cuts[i], cuts[j]) for i in range(len(cuts)) for j in range(i, len(cuts))]
        distances = np.zeros((n, n))
        for (rows, columns), values in self._solve(cost, tiles):
            if rows == columns:
                i, j = np.triu_indices(rows.stop - rows.start, 1)
                block = np.zeros((rows.stop - rows.start,) * 2)
                block[i, j] = block[j, i] = values
            else:
                block = values.reshape(rows.stop - rows.start, -1)
            distances[rows, columns] = block
            distances[columns, rows] = block.T
        return distances

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        index = check_index(index, self.shape[0])
        step = self.tile**2
        starts = range(0, len(index), step)
        distances = np.empty(len(index))
        parts = [index[k : k + step] for k in starts]
        start_of = {id(part): k for part, k in zip(parts, starts, strict=True)}
        for part, values in self._solve(cost, parts):
            start = start_of[id(part)]
            distances[start : start + len(values)] = values
        return distances

    def _solve(self, cost: Matrix, tiles: list[Any]) -> Iterator[tuple[Any, Vector]]:
        """Tiles with their distances, in the order in which they are finished."""
        cost = check_cost(cost, self.shape[1])
        solve = partial(solve_tile, self._make)
        self.error, done = 0.0, 0
        finished: Iterable[tuple[Any, TileResult]]
        if self._cluster is None:
            finished = ((tile, solve(self._hist, cost, tile)) for tile in tiles)
        else:
            finished = self._on_cluster(solve, cost, tiles)
        for tile, result in finished:
            self.error, done = max(self.error, result.error), done + 1
            if self.on_progress is not None:
                self.on_progress(done, len(tiles))
            yield tile, result.values

    def _on_cluster(
        self, solve: Callable[..., TileResult], cost: Matrix, tiles: list[Any]
    ) -> Iterator[tuple[Any, TileResult]]:
        """Tiles with their results from the workers; lost tiles are sent again."""
        left, attempt = dict(enumerate(tiles)), 0
        while left:
            before = len(left)
            for number, result in self._send(solve, cost, left):
                yield left.pop(number), result
            attempt = attempt + 1 if len(left) == before else 0
            if attempt == ATTEMPTS:
                raise ClusterLost(
                    f"{len(left)} tiles were sent {ATTEMPTS} times and lost each time. Workers may "
                    "be short of memory: give them more, or take fewer samples."
                )

    def _send(
        self, solve: Callable[..., TileResult], cost: Matrix, left: dict[int, Any]
    ) -> Iterator[tuple[int, TileResult]]:
        """One attempt: the numbers and results of the tiles that were not lost."""
        cluster: Any = self._cluster
        futures: dict[Any, int] = {}
        try:
            cluster.wait_for_workers()
            if self._shared is None:
                self._shared = cluster.share(self._hist)
            shared_cost = cluster.share(cost)
            futures = {
                cluster.submit(solve, self._shared, shared_cost, tile): number
                for number, tile in left.items()
            }
        except (OSError, TimeoutError):  # a process died in the meantime
            cluster.check_scheduler()
            self._shared = None
            return
        for future, result in cluster.collect(dict.fromkeys(futures)):
            if result is LOST:
                self._shared = None  # may be lost with the worker
            else:
                yield futures[future], result


def solve_tile(make: Make, hist: Histograms, cost: Matrix, tile: Tile) -> TileResult:
    """The distances of one tile, from a new map of the histograms it needs."""
    if isinstance(tile, tuple):
        rows, columns = tile
        same = rows == columns
        first = np.arange(rows.start, rows.stop)
        chosen = first if same else np.concatenate([first, np.arange(columns.start, columns.stop)])
        size = len(first)
        i, j = np.triu_indices(size, 1) if same else np.indices((size, len(chosen) - size))
        index = np.stack([i.ravel(), j.ravel() + (0 if same else size)], axis=1)
    else:
        chosen, places = np.unique(tile, return_inverse=True)
        index = places.reshape(-1, 2)
    if len(chosen) < 2:  # a histogram with itself
        return TileResult(np.zeros(len(index)), 0.0)
    with _KERNEL_LOCK:
        phi = make(hist.take(chosen), n_threads=worker_threads())
        values = phi.pairs(cost, index.astype(np.int64))
    return TileResult(values, float(getattr(phi, "error", 0.0)))
