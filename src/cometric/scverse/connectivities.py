"""The weights that UMAP gives to the edges of a neighbor graph, as scanpy stores them."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from cometric.core.types import Index, Matrix, Vector

BLOCK = 50_000
"""Samples per block."""

STEPS, CLOSE = 64, 1e-5
"""Most bisections of a bandwidth, and the error of the sum of weights below which they end."""

NARROWEST = 1e-3
"""The smallest bandwidth, in units of the mean distance."""


def fuzzy_connectivities(index: Index, near: Matrix) -> sparse.csr_matrix:
    """Symmetric weights in (0, 1] of all pairs of neighbors, single precision, (n, n).

    ``index`` and ``near`` are the k neighbors of each sample and their distances, the nearest
    first, without the sample itself. A neighbor at distance d has the weight
    exp(-max(0, d - r) / s), where r is the smallest positive distance of the sample, and s is such
    that the weights of its neighbors sum to log2(k + 1). Weights p and q of the two directions of
    an edge become p + q - p q. These are the connectivities of ``sc.pp.neighbors``.
    """
    n, k = index.shape
    near = near.astype(np.float32)
    mean = float(near.sum(dtype=np.float64)) / (n * (k + 1))  # UMAP counts the sample itself
    weights = np.empty((n, k), np.float32)
    for start in range(0, n, BLOCK):
        part = near[start : start + BLOCK].astype(np.float64)
        positive = np.where(part > 0.0, part, np.inf)
        nearest = positive.min(axis=1)
        nearest = np.where(np.isfinite(nearest), nearest, 0.0)
        beyond = np.maximum(part - nearest[:, None], 0.0)
        widths = _bandwidths(beyond, np.log2(k + 1))
        own = part.sum(axis=1) / (k + 1)
        widths = np.maximum(widths, NARROWEST * np.where(nearest > 0.0, own, mean))
        share = np.divide(
            beyond, widths[:, None], out=np.zeros_like(beyond), where=widths[:, None] > 0.0
        )
        weights[start : start + BLOCK] = np.exp(-share)
    starts = np.arange(0, n * k + 1, k)
    graph = sparse.csr_matrix((weights.ravel(), index.ravel(), starts), shape=(n, n))
    back = graph.T.tocsr()
    joined = (graph + back - graph.multiply(back)).tocsr()
    joined.eliminate_zeros()
    joined.sort_indices()
    return joined


def _bandwidths(beyond: Matrix, target: float) -> Vector:
    """For each row, the s for which the sum of exp(-beyond / s) is ``target``, by bisection."""
    low, high = np.zeros(len(beyond)), np.full(len(beyond), np.inf)
    widths, open_rows = np.ones(len(beyond)), np.arange(len(beyond))
    for _ in range(STEPS):
        sums = np.exp(-beyond[open_rows] / widths[open_rows, None]).sum(axis=1)
        left = np.abs(sums - target) >= CLOSE
        open_rows, wide = open_rows[left], (sums > target)[left]
        if not len(open_rows):
            break
        high[open_rows[wide]] = widths[open_rows[wide]]
        low[open_rows[~wide]] = widths[open_rows[~wide]]
        bounded = np.isfinite(high[open_rows])
        widths[open_rows] = np.where(
            bounded, (low[open_rows] + high[open_rows]) / 2.0, 2.0 * widths[open_rows]
        )
    return widths
