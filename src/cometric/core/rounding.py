"""Rows that are equal up to the rounding of data that are stored in less than float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.types import Index, Matrix, Vector

ROUNDINGS = 4.0
"""Rows count as equal if each entry differs by at most this many roundings (normalizing and taking
logarithms rounds four times), and the whole row by one on average."""

PROJECTIONS = 8
"""Random projections in which rows that are equal up to rounding must be close."""

MANY = 100_000
"""Maximum number of close pairs to check one by one (plus 10 per row)."""


def merge_rounded(hist: sparse.csr_array, errors: sparse.csr_array, labels: Index) -> Index:
    """``labels`` after merging those of rows that are equal up to ``errors`` of their entries.

    Two rows are equal if each entry differs by at most ``ROUNDINGS`` times the sum of its two
    errors, and their l1 distance is at most the sum of all errors. Rows are compared with the
    first of their group in the order of a random projection: the groups do not depend on the order
    of rows, and chains of close rows do not merge distant ones.
    """
    first = np.unique(labels, return_index=True)[1]
    rows, errors = hist[first], errors[first]
    sums: Vector = np.asarray(errors.sum(axis=1)).ravel()
    reach = 2.0 * float(sums.max(initial=0.0)) * (1.0 + 1e-9) + 1e-15
    tree, places = _projected(rows)
    close = _with_neighbors(tree, places, reach)
    group = np.arange(len(first))
    free = np.zeros(len(first), dtype=bool)
    free[close] = True
    for row in close[np.lexsort(places[close].T[::-1])].tolist():
        if not free[row]:
            continue
        around = np.array(tree.query_ball_point(places[row], reach, np.inf))
        around = around[free[around]]
        equal = around[_are_equal(rows, errors, sums, around, row)]
        group[equal] = equal.min()
        free[equal] = False
    return np.unique(group[labels], return_inverse=True)[1].astype(np.int64)


def _are_equal(
    rows: sparse.csr_array, errors: sparse.csr_array, sums: Vector, some: Index, row: int
) -> Any:
    """Whether ``some`` rows, which may include ``row``, equal ``row`` up to their errors."""
    same = np.full(len(some), row)
    gaps = abs(rows[some] - rows[same])
    return _are_within(gaps, errors[some] + errors[same], sums[some] + sums[row])


def _are_within(gaps: sparse.csr_array, errors: sparse.csr_array, sums: Any) -> Any:
    """Whether differences of rows are within the errors of both rows, and within their sums."""
    far = np.asarray((gaps - ROUNDINGS * errors).max(axis=1).toarray()).ravel() > 0.0
    apart = np.asarray(gaps.sum(axis=1)).ravel() > sums
    return ~far & ~apart


class Known:
    """Known histograms, which replace new ones that are equal to them up to a unit roundoff.

    Unlike with :func:`merge_rounded`, each new histogram is treated independently of the others.
    """

    def __init__(self, rows: sparse.csr_array, unit: float) -> None:
        self._rows, self._unit = rows, unit
        self._tree = _projected(rows)[0] if unit else None

    def replace(self, rows: sparse.csr_array) -> sparse.csr_array:
        """The rows; each that equals known ones is replaced by the nearest of them."""
        if self._tree is None:
            return rows
        error = 2.0 * self._unit  # one rounding of the entry, one of the sum of its row
        near = self._tree.query_ball_point(_project(rows), 2.0 * error * (1.0 + 1e-9), np.inf)
        i = np.repeat(np.arange(len(near)), [len(some) for some in near])
        if not len(i):
            return rows
        j = np.concatenate([np.array(some, np.int64) for some in near])
        one, other = rows[i], self._rows[j]
        gaps = abs(one - other)
        equal = np.flatnonzero(_are_within(gaps, error * (one + other), 2.0 * error))
        i, j = i[equal], j[equal]
        order = np.lexsort((j, np.asarray(gaps.sum(axis=1)).ravel()[equal], i))
        new, first = np.unique(i[order], return_index=True)
        source = np.arange(rows.shape[0])
        source[new] = rows.shape[0] + j[order][first]
        return sparse.vstack([rows, self._rows], format="csr")[source]


def close_pairs(rows: sparse.csr_array, reach: float) -> Index:
    """The pairs (i < j) of rows within l1 distance ``reach``; empty if there are too many.

    ``reach`` should be small, so that few other pairs are close in all random projections.
    """
    from scipy.spatial import cKDTree

    tree, places = _projected(rows)
    close = _with_neighbors(tree, places, reach)
    if not len(close):
        return np.empty((0, 2), np.int64)
    tree = cKDTree(places[close])  # counting in a tree of all rows takes long
    if (tree.count_neighbors(tree, reach, np.inf) - len(close)) // 2 > MANY + 10 * rows.shape[0]:
        return np.empty((0, 2), np.int64)
    index: Index = close[tree.query_pairs(reach, np.inf, output_type="ndarray")]
    i, j = index.T
    gaps = np.asarray(abs(rows[i] - rows[j]).sum(axis=1)).ravel()
    return index[gaps <= reach]


def _with_neighbors(tree: Any, places: Matrix, reach: float) -> Index:
    """The rows that have another row within reach in all projections."""
    nearest = tree.query(places, 2, p=np.inf, distance_upper_bound=reach)[0][:, 1]
    return np.flatnonzero(np.isfinite(nearest))


def _projected(rows: sparse.csr_array) -> tuple[Any, Matrix]:
    """A k-d tree of random projections of the rows, and the projections.

    Max-norm distances between projections are at most the l1 distances between rows.
    """
    from scipy.spatial import cKDTree

    places = _project(rows)
    return cKDTree(places), places


def _project(rows: sparse.csr_array) -> Matrix:
    weights = np.random.default_rng(1).uniform(-1.0, 1.0, (rows.shape[1], PROJECTIONS))
    places: Matrix = rows @ weights
    return places
