"""Checks of arguments of maps, and the list of all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.arrays import BLOCK, is_tensor, numbers
from cometric.core.histograms import Histograms, check_masses
from cometric.core.types import Index, Matrix, Vector


def check_histograms(hist: Any, any_mass: bool = False) -> sparse.csr_array:
    """Histograms as a sparse matrix; checked and copied, unless they are ``Histograms``.

    With ``any_mass`` their sums need not be 1.
    """
    if isinstance(hist, Histograms):
        return hist.rows
    return check_masses(hist) if any_mass else Histograms.of(hist).rows


def check_cost(cost: Any, d: int) -> Matrix:
    """The cost as a contiguous float64 matrix; raises if it is not valid."""
    if sparse.issparse(cost) or np.iscomplexobj(cost):
        raise ValueError("`cost` is sparse or complex; pass a dense matrix of real numbers.")
    matrix: Matrix = np.ascontiguousarray(cost, dtype=np.float64)
    raise_if_bad_cost(matrix, d)
    return matrix


def raise_if_bad_cost(cost: Any, d: int) -> None:
    """Raise if a float64 cost between ``d`` bins, an array or a tensor, is not valid."""
    if tuple(cost.shape) != (d, d):
        raise ValueError(f"`cost` has shape {tuple(cost.shape)}; the histograms have {d} bins.")
    with np.errstate(invalid="ignore"):  # infinite entries are reported below
        low, high, diagonal, gap = numbers(
            cost.min(), cost.max(), cost.diagonal().max(), _asymmetry(cost)
        )
    if not (low >= 0.0 and high < np.inf):  # NaN is not
        raise ValueError("`cost` has negative or non-finite entries; distances have none.")
    if diagonal:
        raise ValueError("`cost` has a non-zero diagonal; a bin is at distance 0 from itself.")
    if gap > 1e-12 * high:
        raise ValueError("`cost` is not symmetric; pass (cost + cost.T) / 2 if that is meant.")


def _asymmetry(cost: Any) -> Any:
    """The largest entry of C - C^T; arrays are read in blocks that fit the cache."""
    if is_tensor(cost):
        return (cost - cost.T).max()
    starts = range(0, len(cost), BLOCK)
    blocks = [abs(cost[k : k + BLOCK, k:] - cost[k:, k : k + BLOCK].T).max() for k in starts]
    return np.max(blocks)


def check_index(index: Any, n: int) -> Index:
    """The pairs as int64; raises if they are not valid."""
    index = np.ascontiguousarray(index)
    if index.ndim != 2 or index.shape[1] != 2 or not np.issubdtype(index.dtype, np.integer):
        raise ValueError("`index` must be an integer array of shape (p, 2): one pair per row.")
    if index.size and not (index.min() >= 0 and index.max() < n):
        raise ValueError(
            f"`index` has entries outside 0 .. {n - 1}, the numbers of the histograms."
        )
    checked: Index = index.astype(np.int64, copy=False)
    return checked


def fill(target: Any, stored: Any, name: str) -> None:
    """Copy a stored array into an array of a map; raise if they do not match."""
    if stored.shape != target.shape or stored.dtype != target.dtype:
        raise ValueError(
            f"the stored {name} are {stored.dtype} of shape {stored.shape}; these histograms "
            f"need {target.dtype} of shape {target.shape}."
        )
    target[...] = stored


def all_pairs(n: int, first: int = 0, last: int | None = None) -> Index:
    """The pairs i < j, row by row; those with ``first`` <= i < ``last`` only, if given."""
    rows = np.arange(first, n if last is None else last)
    lengths = n - 1 - rows
    index = np.empty((int(lengths.sum()), 2), np.int64)
    index[:, 0] = np.repeat(rows, lengths)
    stop = 0
    for i, length in zip(rows.tolist(), lengths.tolist(), strict=True):
        start, stop = stop, stop + length
        index[start:stop, 1] = np.arange(i + 1, n)
    return index


def sums_of_rows(indptr: Index) -> tuple[Vector, Vector, Index]:
    """For each histogram, its size, the sum of the sizes after it, and how many are after it."""
    sizes = np.diff(indptr).astype(float)
    after = np.cumsum(sizes[::-1])[::-1] - sizes
    return sizes, after, np.arange(len(sizes) - 1, -1, -1)
