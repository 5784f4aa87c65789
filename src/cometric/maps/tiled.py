"""Any distance map, tile by tile, on the workers of a Dask cluster.

A tile is all pairs between two blocks of histograms. It is computed by a new map, which is then
discarded, so it depends on the cost only. Hence the result is the same, byte for byte, on one
machine and on a cluster, for any number of workers, even if some of them die: a lost tile is
recomputed elsewhere. There are no warm starts; for exact and entropic maps, which profit from
them, see :mod:`~cometric.maps.distributed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cometric.core.histograms import Histograms
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.maps.checks import check_cost, check_index
from cometric.maps.cluster import as_cluster, one_task, worker_threads

TILE = 512
"""Histograms along each edge of a tile; smaller if there would be too few tiles."""


Make = Callable[..., Any]
Tile = tuple[slice, slice] | Index


class TiledMap(DistanceMap):
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
        Histograms along each edge of a tile.
    """

    def __init__(
        self, make: Make, hist: Any, client: Any = None, *, tile: int | None = None
    ) -> None:
        self._make = make
        self._cluster = as_cluster(client)
        self._hist = Histograms.of(hist)
        self.shape = self._hist.shape
        n = self.shape[0]
        self.tile = min(TILE, max(64, -(-n // 8))) if tile is None else tile
        self._shared: Any = None  # future of the histograms on the workers

    def __repr__(self) -> str:
        n, d = self.shape
        place = self._cluster.name
        return f"TiledMap({n} histograms on {d} bins, tiles of {self.tile}, on {place})"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        n = self.shape[0]
        cuts = [slice(k, min(k + self.tile, n)) for k in range(0, n, self.tile)]
        tiles = [(cuts[i], cuts[j]) for i in range(len(cuts)) for j in range(i, len(cuts))]
        distances = np.zeros((n, n))
        for number, values in self._solve(cost, tiles, accuracy):
            rows, columns = tiles[number]
            if rows == columns:
                i, j = np.triu_indices(rows.stop - rows.start, 1)
                block = np.zeros((rows.stop - rows.start,) * 2)
                block[i, j] = block[j, i] = values
            else:
                block = values.reshape(rows.stop - rows.start, -1)
            distances[rows, columns] = block
            distances[columns, rows] = block.T
        return distances

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        index = check_index(index, self.shape[0])
        step = self.tile**2
        distances = np.empty(len(index))
        parts = [index[k : k + step] for k in range(0, len(index), step)]
        for number, values in self._solve(cost, parts, accuracy):
            distances[number * step : number * step + len(values)] = values
        return distances

    def _solve(
        self, cost: Matrix, tiles: list[Any], accuracy: Accuracy | None
    ) -> Iterator[tuple[int, Vector]]:
        """Positions of tiles and their distances, in order of completion."""
        cluster = self._cluster
        cost = cluster.share(check_cost(cost, self.shape[1]))
        if self._shared is None:
            self._shared = cluster.share(self._hist)
        futures = [
            cluster.submit(solve_tile, self._make, self._shared, cost, tile, accuracy, turn=number)
            for number, tile in enumerate(tiles)
        ]
        self.error = 0.0
        for done, (number, (values, error)) in enumerate(cluster.results(futures), start=1):
            self.error = max(self.error, error)
            self.report(done, len(tiles))
            yield number, values


def solve_tile(
    make: Make, hist: Histograms, cost: Matrix, tile: Tile, accuracy: Accuracy | None = None
) -> tuple[Vector, float]:
    """The distances of one tile and their largest marginal error, from a new map."""
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
        return np.zeros(len(index)), 0.0
    with one_task:
        phi = make(hist.take(chosen), n_threads=worker_threads())
        values = phi.pairs(cost, index.astype(np.int64), accuracy)
    return values, float(phi.error)
