"""The function ``smooth``: data averaged over the nearest samples, or features, to learn again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.arguments import check_number, checks_options, shown
from cometric.core.histograms import Side
from cometric.core.inputs import check_distances, read_matrix, read_names, unwrap
from cometric.core.labels import in_other_order
from cometric.core.nearest import (
    check_neighbors,
    default_neighbors,
    fewest_stored,
    gaussian_weights,
    nearest_given,
)
from cometric.results.result import Result

SIDES = ("samples", "features")


@checks_options
def smooth(
    X: Any,
    distances: Any,
    n_neighbors: int | None = None,
    *,
    of: str = "samples",
    keep: float = 1.0,
) -> Any:
    """The data, each sample averaged with its nearest samples: T X.

    Row i of T has weights for sample i and its ``n_neighbors`` nearest samples j, ::

        T_ij = exp(-2 (d_ij / r_i)^2) / sum_l exp(-2 (d_il / r_i)^2),

    with r_i the distance to the farthest of them. Features are averaged likewise: X Sᵀ, with the
    weights S of the nearest features.

    Parameters
    ----------
    X
        As for :func:`learn`.
    distances
        The :class:`Result` of ``learn(X)``; or distances between the samples, of any origin, as a
        square matrix, such as ``cm.baselines.lsa(X)``. A sparse matrix has the distances of
        the nearest samples only, such as the ``graph`` of :func:`neighbor_graph`. For
        ``of="features"`` distances between features, for ``of="both"`` a pair.
    n_neighbors
        Number of neighbors, the sample itself not counted: by default 15, or all if there are
        fewer.
    of
        What is averaged: "samples", "features" or "both".
    keep
        Share of the mass of each sample to keep, at most 1: its largest entries that together have
        this share, scaled to the same sum as before. The largest entry of each feature is kept as
        well, so no feature becomes empty. Averages have several times as many
        nonzero entries as the data, and learning from them takes at least that much longer.

    Returns
    -------
    array or csr_array
        The shape of ``X``, sparse if ``X`` is. A data frame or AnnData with the same names, if
        ``X`` is one. Samples and features that are empty, and were left out by
        ``learn(X, drop_empty=True)``, stay empty.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 40, 30)
    >>> first = cm.learn(X)
    >>> again = cm.learn(cm.smooth(X, first, 5))
    """
    if not isinstance(of, str) or of not in (*SIDES, "both"):
        raise ValueError(f"`of` is {shown(of)}; choose 'samples', 'features' or 'both'.")
    check_number("keep", keep)
    if not 0.0 < keep <= 1.0:
        raise ValueError(f"`keep` is {keep}; pass a share of the mass, above 0 and at most 1.")
    data = unwrap(X, "X")
    matrix = read_matrix(data, "X")
    for side in SIDES if of == "both" else (of,):
        part = matrix if side == "samples" else matrix.T.tocsr()
        names = read_names(X)[SIDES.index(side)]
        weights = _weights_of(distances, side, of, names, part.shape[0], n_neighbors)
        part = sparse.csr_array(weights @ part)
        matrix = part if side == "samples" else part.T.tocsr()
    matrix.sort_indices()
    if keep < 1.0:
        matrix = largest_entries(matrix, keep)
    return named_as(X, matrix if sparse.issparse(data) else matrix.toarray())


def named_as(X: Any, matrix: Any) -> Any:
    """The matrix with the names of ``X``, if that is a data frame of pandas or an AnnData."""
    if hasattr(X, "obs_names") and hasattr(X, "obs"):
        from anndata import AnnData

        matrix = sparse.csr_matrix(matrix) if sparse.issparse(matrix) else matrix
        return AnnData(matrix, obs=X.obs.copy(), var=X.var.copy())
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        dense = matrix.toarray() if sparse.issparse(matrix) else matrix
        return type(X)(dense, index=X.index, columns=X.columns)
    return matrix


def _weights_of(
    distances: Any, side: str, of: str, names: Any, count: int, n_neighbors: int | None
) -> sparse.csr_array:
    """The weights T of the ``count`` items of one side, which have these names."""
    if not isinstance(distances, Result):
        given = distances if of != "both" else _pair(distances)[SIDES.index(side)]
        return neighbor_weights(_read(given, side, count), n_neighbors)
    learned: Side = getattr(distances.problem, side)
    weights = neighbor_weights(getattr(distances, side), n_neighbors)
    if count not in (weights.shape[0], len(learned.kept)):
        raise ValueError(
            f"`X` has {count} {side}, but `distances` is a result of {len(learned.kept)}. Pass the "
            "data it was learned from."
        )
    if in_other_order(names, learned):  # neighbors are matched by position
        raise ValueError(
            f"`X` has its {side} in another order than the data that `distances` was learned from. "
            "Pass the same data."
        )
    return weights if count == weights.shape[0] else _spread(weights, learned.kept)


def neighbor_weights(distances: Any, n_neighbors: int | None) -> sparse.csr_array:
    """The matrix T of :func:`smooth`: rows sum to 1, the item itself has the largest weight."""
    n = distances.shape[0]
    fewest = fewest_stored(distances) if sparse.issparse(distances) else n - 1
    k = default_neighbors(n_neighbors, min(fewest, n - 1))
    check_neighbors(k, n - 1)
    index, near = nearest_given(distances, k, "distances", skip_self=True)
    weights = gaussian_weights(np.column_stack([np.zeros(n), near]))
    weights /= weights.sum(axis=1, keepdims=True)
    columns = np.column_stack([np.arange(n), index])
    starts = np.arange(0, columns.size + 1, k + 1)
    rows = sparse.csr_array((weights.ravel(), columns.ravel(), starts), shape=(n, n))
    return rows.sorted_indices()  # so that equal samples get equal sums


def _spread(weights: sparse.csr_array, kept: NDArray[np.bool_]) -> sparse.csr_array:
    """Weights of all items, from those of the kept ones; dropped items are not averaged."""
    place = sparse.csr_array(sparse.eye_array(len(kept)))[kept]
    whole = place.T @ weights @ place + sparse.diags_array(~kept, dtype=np.float64)
    return sparse.csr_array(whole).sorted_indices()


def largest_entries(X: sparse.csr_array, share: float) -> sparse.csr_array:
    """The largest entries of each row that have this share of its sum, scaled to the same sum.

    Ties with the smallest of these are kept, too, and so is the largest entry of each column.
    """
    top = np.zeros(X.shape[1])
    np.maximum.at(top, X.indices, X.data)
    large = X.data >= top[X.indices]
    factor = np.ones(X.nnz)
    for start, end in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        row = X.data[start:end]
        if not len(row):
            continue
        falling = -np.sort(-row)
        total = np.cumsum(falling)
        last = min(int(np.searchsorted(total, share * total[-1])), len(row) - 1)
        large[start:end] |= row >= falling[last]
        factor[start:end] = row.sum() / row[large[start:end]].sum()
    sparser = X.copy()
    sparser.data = np.where(large, X.data * factor, 0.0)
    sparser.eliminate_zeros()
    return sparser


# What the user passes as distances


def _pair(distances: Any) -> tuple[Any, Any]:
    if not isinstance(distances, tuple | list) or len(distances) != 2:
        raise ValueError(
            f"`distances` is {shown(distances)}; for `of='both'` pass a result, or a pair: "
            "distances between samples, and between features."
        )
    return distances[0], distances[1]


def _read(distances: Any, side: str, count: int) -> Any:
    """Distances between ``count`` items, checked; a graph without its diagonal if sparse."""
    matrix = unwrap(distances, "distances")
    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"`distances` has dtype {matrix.dtype}; pass a result, or numbers.")
    if matrix.shape != (count, count):
        raise ValueError(
            f"`distances` has shape {matrix.shape}; `X` has {count} {side}, so pass an array of "
            f"shape {(count, count)}."
        )
    if sparse.issparse(matrix):
        graph = sparse.coo_array(matrix)  # explicit zeros are distances
        off = graph.row != graph.col
        parts = graph.data[off].astype(np.float64), (graph.row[off], graph.col[off])
        matrix = sparse.csr_array(parts, shape=graph.shape)
        matrix.sort_indices()  # ties go to the lower number
    check_distances(matrix, "distances")
    return matrix
