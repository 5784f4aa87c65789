"""All distances between samples, stored on disk: for data too large for memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

from cometric.core.arguments import check_path
from cometric.core.digest import digest
from cometric.core.types import Matrix
from cometric.files.rows import rows_of
from cometric.files.storage import LOCK, lock, unlock
from cometric.landmarks.neighbors import read_histograms
from cometric.landmarks.run_folder import FORMAT
from cometric.results.extension import HeldDistances
from cometric.results.result import Result, check_is_result
from cometric.runtime.progress import bar_of_pairs
from cometric.runtime.threads import workers

CHECKSUMS = ".checksums"
"""The file, in the folder of the array, with the checksums of its tiles."""

ARRAYS = (".zarray", "zarr.json")
"""Files in which Zarr describes an array."""

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

    As those of :meth:`Result.transform` they are Phi_A(C) / mu; here symmetric, with a zero
    diagonal. One tile is in memory at a time. After an interruption, even kill -9, the same call
    continues with the missing tiles, with a bitwise identical result.

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
    _check_place(folder)
    folder.mkdir(parents=True, exist_ok=True)
    handle = lock(folder)
    try:
        hist, full = read_histograms(result, rows_of(X))
        with workers(n_threads):
            distances = HeldDistances(result, "samples", hist, full, n_threads)
            parts = {"indptr": full.indptr, "indices": full.indices, "data": full.data}
            tiles = _Tiles(folder, digest({"result": result.identity, **parts}), distances)
            n, edge = tiles.array.shape[0], tiles.array.chunks[0]
            with bar_of_pairs(progress, n * (n + 1) // 2) as report:
                for rows, columns in _tiles(n, edge):
                    if not tiles.has(rows, columns):
                        tiles.store(rows, columns, _compute(distances, rows, columns))
                    count = _pairs_in(rows, columns)
                    report(count, count)
            return tiles.array
    finally:
        unlock(handle)


class _Tiles:
    """A Zarr array of distances, with a file of the checksums of its tiles.

    Each line has the position of a tile, and a checksum of its entries and of the run. It is
    written after the tile; a tile that does not match its last line is computed again.
    """

    def __init__(self, folder: Path, origin: str, distances: HeldDistances) -> None:
        self.array = _open(folder, origin, distances)
        self._origin, self._path = origin, folder / CHECKSUMS
        self._known: dict[str, str] = {}
        if self._path.exists():
            lines = self._path.read_text("ascii", "replace").splitlines()
            self._known = dict(line.split(" ", 1) for line in lines if " " in line)

    def has(self, rows: slice, columns: slice) -> bool:
        """Whether a tile and its mirror image are stored and intact."""
        known = self._known.get(_place(rows, columns))
        if known is None:
            return False
        try:
            tile, mirrored = self.array[rows, columns], self.array[columns, rows]
        except MemoryError:
            raise
        except Exception:  # whatever a damaged chunk raises
            return False
        return known == self._checksum(tile) == self._checksum(mirrored.T)

    def store(self, rows: slice, columns: slice, tile: Matrix) -> None:
        self.array[columns, rows] = tile.T
        self.array[rows, columns] = tile
        with open(self._path, "a", encoding="ascii") as file:  # the last line may be cut off
            file.write(f"\n{_place(rows, columns)} {self._checksum(tile)}\n")

    def _checksum(self, tile: Matrix) -> str:
        return digest({"run": self._origin, "tile": tile})


def _place(rows: slice, columns: slice) -> str:
    return f"{rows.start},{columns.start}"


def _check_place(path: Path) -> None:
    """Raise unless ``path`` is a Zarr array, an empty folder or new, and Zarr is installed."""
    try:
        import zarr  # noqa: F401
    except ImportError:
        raise ImportError("Zarr is not installed: pip install 'cometric[zarr]'.") from None
    if path.is_dir() and all(map(_is_leftover, path.iterdir())):
        return
    if path.exists() and not any((path / name).exists() for name in ARRAYS):
        raise ValueError(f"`path` {str(path)!r} is not a Zarr array. Choose another path.")


def _open(path: Path, origin: str, distances: HeldDistances) -> Any:
    """The array at ``path``; a new one, filled with NaN, if there is none."""
    import zarr

    n = distances.hist.shape[0]
    if all(map(_is_leftover, path.iterdir())):
        edge = min(TILE, math.isqrt(distances.pairs_per_call), n)  # at most the pairs of one call
        return zarr.create_array(
            path,
            shape=(n, n),
            chunks=(edge, edge),
            dtype="float64",
            fill_value=np.nan,
            attributes={"cometric": {"format": FORMAT, "run": origin}},
        )
    try:
        array = zarr.open_array(path, mode="r+")
    except MemoryError:
        raise
    except Exception as error:  # a group, or whatever a damaged description raises
        raise ValueError(
            f"`path` {str(path)!r} is not a Zarr array. Choose another path."
        ) from error
    known = array.attrs.get("cometric")
    if isinstance(known, str) or (isinstance(known, dict) and known.get("format") != FORMAT):
        raise ValueError(
            f"`path` {str(path)!r} is from another version of cometric, whose tiles this one "
            "cannot continue. Delete it, or choose another path."
        )
    described = array.shape == (n, n) and array.dtype == np.float64
    if not isinstance(known, dict) or known.get("run") != origin or not described:
        raise ValueError(
            f"`path` {str(path)!r} is an array of other samples, or of another result. Choose "
            "another path, or delete it."
        )
    return array


def _is_leftover(path: Path) -> bool:
    """Whether the file is left from a process that was killed while creating the array."""
    return path.suffix == ".partial" or path.name in (LOCK, CHECKSUMS)


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
