"""All distances between samples on disk, for when they do not fit into memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cometric.answers.checks import check_is_result
from cometric.answers.extension import HeldDistances
from cometric.core.digest import digest
from cometric.core.kinds import check_path
from cometric.core.types import Matrix
from cometric.large.neighbors import read_histograms
from cometric.machine.progress import bar_of_pairs
from cometric.machine.threads import workers
from cometric.transports import to_json

if TYPE_CHECKING:
    from cometric.answers.result import Result

TILE = 512
"""Samples on each edge of a tile, at most: a tile is a chunk of the array."""


def distances_to_zarr(
    result: Result,
    X: Any,
    path: str | os.PathLike[str],
    *,
    n_threads: int | None = None,
    progress: bool = False,
) -> Any:
    """Distances between all samples ``X`` under the feature metric of ``result``, as a Zarr array.

    They are those of :meth:`Result.transform`, Phi_A(C) / mu, symmetric with a zero diagonal. One
    tile is in memory at a time. After an interruption, even kill -9, the same call continues with
    the missing tiles, with a bitwise identical result.

    Parameters
    ----------
    result
        What :func:`learn` returned, or the ``result`` of :func:`learn_landmarks`.
    X
        Samples over the features that ``result`` was learned from; see :meth:`Problem.read_new`.
    path
        A folder, created if it does not exist. Open it with ``zarr.open_array``,
        ``dask.array.from_zarr`` or any reader of Zarr.
    n_threads, progress
        As for :func:`cometric.learn`.

    Returns
    -------
    zarr.Array
        (n, n), float64, on disk.
    """
    check_is_result(result)
    folder = check_path(path)
    hist, full = read_histograms(result, X)
    with workers(n_threads):
        distances = HeldDistances(result, "samples", hist, full, n_threads)
        array = _open(folder, distances)
        n, edge = array.shape[0], array.chunks[0]
        with bar_of_pairs(progress, n * (n + 1) // 2) as report:
            for rows, columns in _tiles(n, edge):
                count = _pairs_in(rows, columns)
                if np.isnan(array[rows.start, columns.start]):
                    tile = _compute(distances, rows, columns)
                    array[columns, rows] = tile.T  # first: the other half marks both as complete
                    array[rows, columns] = tile
                report(count, count)
    return array


def _open(path: Path, distances: HeldDistances) -> Any:
    """The array at ``path``; a new one, filled with NaN, if there is none."""
    try:
        import zarr
    except ImportError:
        raise ImportError("Zarr is not installed: pip install 'cometric[zarr]'.") from None
    n = distances.hist.shape[0]
    origin = digest(
        {
            "indptr": distances.full.indptr,
            "indices": distances.full.indices,
            "data": distances.full.data,
            "cost": distances.cost,
            "numbers": np.array([distances.tol, distances.scale, distances.weight]),
            "norm": np.array(distances.norm),
            "transport": np.array(json.dumps(to_json(distances.transport))),
        }
    )
    if not path.exists() or _is_leftover(path):
        edge = min(TILE, math.isqrt(distances.pairs_per_call), n)  # at most the pairs of one call
        return zarr.create_array(
            path,
            shape=(n, n),
            chunks=(edge, edge),
            dtype="float64",
            fill_value=np.nan,
            attributes={"cometric": origin},
        )
    try:
        array = zarr.open_array(path, mode="r+")
    except (OSError, ValueError) as error:  # no array, a group, or a file
        raise ValueError(
            f"`path` {str(path)!r} is not a Zarr array. Choose another path."
        ) from error
    if array.attrs.get("cometric") != origin:
        raise ValueError(
            f"`path` {str(path)!r} is an array of other samples, or of another result. Choose "
            "another path, or delete it."
        )
    return array


def _is_leftover(path: Path) -> bool:
    """Whether an array was being created here when its process was killed."""
    return path.is_dir() and all(part.suffix == ".partial" for part in path.iterdir())


def _tiles(n: int, edge: int) -> Iterator[tuple[slice, slice]]:
    cuts = [slice(start, min(start + edge, n)) for start in range(0, n, edge)]
    return combinations_with_replacement(cuts, 2)


def _pairs_in(rows: slice, columns: slice) -> int:
    """The pairs of a tile, each counted once."""
    height, width = int(rows.stop - rows.start), int(columns.stop - columns.start)
    return height * (height + 1) // 2 if rows == columns else height * width


def _compute(distances: HeldDistances, rows: slice, columns: slice) -> Matrix:
    i, j = (np.arange(part.start, part.stop) for part in (rows, columns))
    tile = np.zeros((len(i), len(j)))
    mask = np.triu(np.ones(tile.shape, bool), 1) if rows == columns else np.ones(tile.shape, bool)
    a, b = np.nonzero(mask)
    tile[mask] = distances.pairs(np.stack([i[a], j[b]], axis=1))
    return tile + tile.T if rows == columns else tile
