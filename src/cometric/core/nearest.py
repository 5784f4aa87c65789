"""The k nearest neighbors in a matrix of distances. Ties go to the lower number."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.arguments import shown
from cometric.core.inputs import counted
from cometric.core.types import Index, Matrix

NEIGHBORS = 15
"""Default number of neighbors, if there are that many items."""


def check_neighbors(n_neighbors: Any, count: int) -> None:
    """Raise unless ``n_neighbors`` is a whole number from 1 to ``count``."""
    if not _is_whole(n_neighbors) or not 1 <= n_neighbors <= count:
        raise ValueError(
            f"`n_neighbors` is {_shown(n_neighbors)}; pass a whole number from 1 to {count}, the "
            "number of items to choose from."
        )


def check_neighborhood(n_neighbors: Any, count: int, item: str) -> None:
    """Raise unless from 2 to ``count``. As in scanpy, a neighborhood includes the item itself.

    ``item`` is its name in messages.
    """
    if not _is_whole(n_neighbors) or not 2 <= n_neighbors <= count:
        raise ValueError(
            f"`n_neighbors` is {_shown(n_neighbors)}; pass a whole number from 2 to {count}, the "
            f"{item} itself included."
        )


def default_neighbors(n_neighbors: Any, count: int) -> Any:
    """``n_neighbors``; if None, the default, but at most ``count``."""
    return max(1, min(NEIGHBORS, count)) if n_neighbors is None else n_neighbors


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _shown(n_neighbors: Any) -> str:
    """The number, for a message; says so if it is the default, as the user may not have set it."""
    default = _is_whole(n_neighbors) and n_neighbors == NEIGHBORS
    return f"{shown(n_neighbors)}{', the default' if default else ''}"


def nearest(distances: Matrix, k: int, *, skip_self: bool = False) -> tuple[Index, Matrix]:
    """Numbers and distances of the k nearest items of each row, both (rows, k), nearest first.

    With ``skip_self`` the matrix is square, and no item is a neighbor of itself. NaN counts as
    farthest.
    """
    distances = np.asarray(distances)
    index = np.empty((len(distances), k), dtype=np.int64)
    for i, row in enumerate(distances):
        index[i] = nearest_to(row, k, i if skip_self else None)
    return index, np.take_along_axis(distances, index, axis=1)


def nearest_to(distances: Any, k: int, item: int | None = None) -> Index:
    """Numbers of the k smallest distances, without ``item`` itself."""
    row = np.array(distances)
    if row.dtype.kind != "f":  # integers have no infinity
        row = row.astype(np.float64)
    count = k
    if item is not None:
        row[item] = -np.inf  # comes first, even if others are at distance 0
        count += 1
    if count < len(row):
        candidates = np.flatnonzero(~(row > np.partition(row, count - 1)[count - 1]))
    else:
        candidates = np.arange(len(row))
    order = np.argsort(row[candidates], kind="stable")
    numbers: Index = candidates[order][count - k : count]
    return numbers


def nearest_stored(graph: sparse.csr_matrix, k: int) -> tuple[Index, Matrix]:
    """:func:`nearest` among the stored distances of a sparse graph, at least k per row."""
    index = np.empty((graph.shape[0], k), dtype=np.int64)
    near = np.empty(index.shape)
    for i, (start, end) in enumerate(zip(graph.indptr[:-1], graph.indptr[1:], strict=True)):
        order = np.argsort(graph.data[start:end], kind="stable")[:k]
        index[i], near[i] = graph.indices[start:end][order], graph.data[start:end][order]
    return index, near


def nearest_given(
    distances: Any, k: int, name: str, *, skip_self: bool = False
) -> tuple[Index, Matrix]:
    """:func:`nearest` among all distances or, if sparse, among the stored ones.

    ``name`` is the argument named in the error if a row stores fewer than k.
    """
    if not sparse.issparse(distances):
        return nearest(distances, k, skip_self=skip_self)
    if skip_self:
        entries = sparse.coo_array(distances)
        off = entries.row != entries.col
        parts = entries.data[off], (entries.row[off], entries.col[off])
        distances = sparse.csr_array(parts, shape=distances.shape)
    fewest = fewest_stored(distances)
    if fewest < k:
        raise ValueError(
            f"`{name}` is sparse and has rows with {counted(fewest, 'neighbor')}; need "
            f"`n_neighbors` = {k}."
        )
    return nearest_stored(distances, k)


def fewest_stored(graph: sparse.csr_matrix) -> int:
    """The smallest number of stored distances in a row of a sparse graph."""
    return int(np.diff(graph.indptr).min())


def neighbor_matrix(index: Index, distances: Matrix, columns: int) -> sparse.csr_matrix:
    """Neighbors as a sparse matrix of distances, the nearest first; zeros are stored.

    A ``csr_matrix``, the class of scikit-learn's ``kneighbors_graph(mode="distance")``.
    """
    rows, k = index.shape
    starts = np.arange(0, rows * k + 1, k)
    return sparse.csr_matrix((distances.ravel(), index.ravel(), starts), shape=(rows, columns))


def gaussian_weights(near: Matrix) -> Matrix:
    """exp(-2 (d / r)^2) for the distances d in each row, nearest first; r is the last of them."""
    radius = near[:, -1:]
    weights: Matrix = np.exp(-2.0 * (near / np.where(radius > 0.0, radius, 1.0)) ** 2)
    return weights
