"""Transport along a tree of the bins that is built from the cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.histograms import QUANTUM, Histograms
from cometric.core.trees import MetricTree
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.kernels import geometry
from cometric.maps.checks import check_cost, check_index

TOTAL = 2.0**60
"""The largest sum of a vector, in integer units."""


class TreeMap(DistanceMap):
    """``phi(cost)_ij``: transport between a_i and a_j along the tree that ``cost`` determines.

    The tree is built by average linkage (or another linkage): the distance of two bins is the
    height at which they are joined. The tree scales with the cost, but is not a
    continuous function of it.

    Parameters
    ----------
    hist
        Histograms as rows, each summing to 1; sparse stays sparse.
    linkage
        "average", "complete", "ward" or "single", as in :func:`scipy.cluster.hierarchy.linkage`.

    Examples
    --------
    >>> import cometric as cm
    >>> cm.TreeMap([[1, 0, 0], [0, 1, 0], [0, 0, 1]])([[0, 1, 3], [1, 0, 5], [3, 5, 0]])
    array([[0., 1., 4.],
           [1., 0., 4.],
           [4., 4., 0.]])
    """

    def __init__(self, hist: Any, linkage: str = "average") -> None:
        self._hist = Histograms.of(hist)
        self.shape = self._hist.shape
        self.linkage = linkage

    def __repr__(self) -> str:
        return f"TreeMap({self.shape[0]} histograms on {self.shape[1]} bins, {self.linkage})"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        vectors = self.vectors(cost)
        return vectors.between(vectors, upper=True)

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        distances = self.vectors(cost).pairs(check_index(index, self.shape[0]))
        self.report(len(index), len(index))
        return distances

    def between(self, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        """Distances from the histograms ``rows`` to the histograms ``columns``."""
        vectors = self.vectors(cost)
        distances = vectors.take(rows).between(vectors.take(columns))
        self.report(distances.size, distances.size)
        return distances

    def tree(self, cost: Matrix) -> MetricTree:
        """The tree of the bins for a cost."""
        return MetricTree.from_distances(check_cost(cost, self.shape[1]), self.linkage)

    def vectors(self, cost: Matrix) -> TreeVectors:
        """The vectors of the histograms for a cost; their l1 distances are the distances."""
        return TreeVectors.of(self._hist, self.tree(cost))


class TreeVectors:
    """Masses below the nodes of a tree times edge lengths, as integers: differences are exact.

    ``rows`` are the vectors in units of ``unit``.
    """

    def __init__(self, rows: sparse.csr_array, unit: float) -> None:
        self.rows, self.unit = rows, unit

    @classmethod
    def of(cls, hist: Histograms, tree: MetricTree) -> TreeVectors:
        """The vectors of histograms on the leaves of a tree."""
        parts = hist.rows
        masses = tree.masses(
            sparse.csr_array((hist.masses, parts.indices, parts.indptr), shape=parts.shape)
        )
        values = masses.data * (tree.lengths * QUANTUM)[masses.indices]
        top = 2.0 * float(tree.depths[: tree.n_leaves].max())  # bounds the sum of two vectors
        unit = top / TOTAL if top > 0.0 else 1.0
        whole = np.rint(values / unit).astype(np.int64)
        rows = sparse.csr_array((whole, masses.indices, masses.indptr), shape=masses.shape)
        rows.sort_indices()
        return cls(rows, unit)

    def take(self, rows: slice) -> TreeVectors:
        """Some of the vectors."""
        return TreeVectors(self.rows[rows], self.unit)

    def between(self, other: TreeVectors, upper: bool = False) -> Matrix:
        """l1 distances to other vectors; pass ``upper`` if these are the same vectors."""
        left, right = self.rows, other.rows.tocsc()
        distances: Matrix = self.unit * geometry.l1_distances(
            (left.indptr, left.indices, left.data, np.asarray(left.sum(axis=1)).ravel()),
            (right.indptr, right.indices, right.data, np.asarray(other.rows.sum(axis=1)).ravel()),
            upper,
        )
        return distances

    def pairs(self, index: Index) -> Vector:
        """l1 distances of the pairs ``index`` (p, 2)."""
        rows = self.rows
        parts = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
        norms: Vector = self.unit * geometry.pair_norms(*parts, index, 1.0)
        return norms
