"""Euclidean distances: by |a|^2 + |b|^2 - 2 <a, b> where that is accurate, or by differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import geometry

CANCELED = 1e-6
"""Squares below this fraction of the terms of the sum are recomputed from differences; all others
have nine digits."""

CELLS = 200_000
"""Maximum number of entries of dense rows in memory at a time."""

CACHED = 50_000
"""Entries in a block of rows that stays in the cache through several operations."""


def squares_of_differences(
    rows: Vector, columns: Vector, products: Matrix, exact: Callable[[Index, Index], Vector]
) -> Matrix:
    """``rows_i + columns_j - 2 products_ij``; small values are recomputed by ``exact(i, j)``.

    Overwrites ``products``.
    """
    sizes = CANCELED * np.abs(rows), CANCELED * np.abs(columns)
    for part in row_blocks(products.shape):
        block = products[part]
        block *= 2.0
        least = np.abs(block)
        least *= CANCELED
        least += sizes[0][part, None] + sizes[1]
        np.subtract(rows[part, None] + columns, block, out=block)  # symmetric if both are the same
        i, j = np.divmod(np.flatnonzero(np.abs(block) < least), block.shape[1])
        block[i, j] = exact(part.start + i, j)
    return products


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of a few rows of a matrix, each small enough for the CPU cache."""
    step = max(1, CACHED // max(shape[1], 1))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def in_parts(width: int, function: Callable[[Any, Any], Vector]) -> Callable[[Any, Any], Vector]:
    """``function`` of two index arrays, called for a few pairs (rows of ``width``) at a time."""
    step = max(1, CELLS // max(width, 1))

    def by_parts(i: Index, j: Index) -> Vector:
        values = np.empty(len(i))
        for start in range(0, len(i), step):
            part = slice(start, start + step)
            values[part] = function(i[part], j[part])
        return values

    return by_parts


def sums_of_squares(rows: Any) -> Vector:
    """The squared lengths of the rows of a dense or sparse matrix."""
    if sparse.issparse(rows):
        places = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        sums: Vector = np.bincount(places, rows.data**2, rows.shape[0]).astype(np.float64)
        return sums
    return np.asarray((rows * rows).sum(axis=1), dtype=np.float64).ravel()


class Vectors(NamedTuple):
    """Rows of a dense or sparse matrix, and their squared lengths."""

    rows: Any
    squares: Vector

    @classmethod
    def of(cls, rows: Any) -> Vectors:
        return cls(rows, sums_of_squares(rows))

    def take(self, items: slice) -> Vectors:
        return Vectors(self.rows[items], self.squares[items])


class Euclidean:
    """Distances between vectors.

    With ``squared``, half their squares; for unit vectors this is one minus the cosine.
    """

    def __init__(self, squared: bool = False) -> None:
        self._squared = squared

    def between(self, rows: Vectors, columns: Vectors) -> Matrix:
        products = rows.rows @ columns.rows.T
        if sparse.issparse(products):
            products = products.toarray()

        def exact(i: Index, j: Index) -> Vector:
            return sums_of_squares(rows.rows[i] - columns.rows[j])

        few = in_parts(rows.rows.shape[1], exact)
        squares = squares_of_differences(rows.squares, columns.squares, products, few)
        distances: Matrix = self._finish(squares)
        return distances

    def pairs(self, items: Vectors, index: Index) -> Vector:
        if sparse.issparse(items.rows):
            rows = items.rows.sorted_indices()
            parts = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
            squares: Vector = geometry.pair_squares(*parts, np.asarray(index))
        else:
            squares = sums_of_squares(items.rows[index[:, 0]] - items.rows[index[:, 1]])
        distances: Vector = self._finish(squares)
        return distances

    def _finish(self, squares: Any) -> Any:
        return 0.5 * squares if self._squared else np.sqrt(squares, out=squares)
