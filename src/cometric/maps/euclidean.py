"""Euclidean distances: by |a|^2 + |b|^2 - 2 <a, b> where that is accurate, or by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.histograms import Histograms
from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import differences

Embedding = Callable[[sparse.csr_array], Any]

CANCELED = 1e-6
"""Squares of differences, relative to the terms of the sum, up to which they are computed again:
the others have nine digits."""

CELLS = 200_000
"""Entries of dense rows that are in memory at a time."""


def squares_of_differences(
    rows: Vector, columns: Vector, products: Matrix, exact: Callable[[Index, Index], Vector]
) -> Matrix:
    """``rows_i + columns_j - 2 products_ij``; small ones by ``exact``, given their indices.

    ``products`` is changed.
    """
    size = np.abs(products)
    size *= 2.0
    size += np.abs(rows)[:, None]
    size += np.abs(columns)
    size *= CANCELED
    products *= -2.0
    products += rows[:, None] + columns  # in this order: symmetric if both are the same
    i, j = np.nonzero(np.abs(products) < size)
    products[i, j] = exact(i, j)
    return products


def in_parts(width: int, function: Callable[[Any, Any], Vector]) -> Callable[[Any, Any], Vector]:
    """``function`` of two indices, called for a few pairs at a time, with rows of this width."""
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

    def take(self, items: slice) -> Vectors:
        return Vectors(self.rows[items], self.squares[items])


class Euclidean:
    """Distances between the vectors that ``embed`` computes from histograms.

    With ``squared``, half their squares: of unit vectors, one minus the cosine.
    """

    def __init__(self, embed: Embedding, squared: bool = False) -> None:
        self._embed, self._squared = embed, squared

    def place(self, hist: Histograms) -> Vectors:
        rows = self._embed(hist.rows)
        return Vectors(rows, sums_of_squares(rows))

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
            squares: Vector = differences.pair_squares(*parts, np.asarray(index))
        else:
            squares = sums_of_squares(items.rows[index[:, 0]] - items.rows[index[:, 1]])
        distances: Vector = self._finish(squares)
        return distances

    def _finish(self, squares: Any) -> Any:
        return 0.5 * squares if self._squared else np.sqrt(squares, out=squares)
