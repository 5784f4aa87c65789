"""Squared differences: by |a|^2 + |b|^2 - 2 <a, b> where that is accurate, else computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cometric.core.types import Index, Matrix, Vector

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
