"""Maps by quadratic forms of differences of histograms: products of matrices, no pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.types import Index, Matrix, Vector
from cometric.maps.checks import check_cost, check_histograms, check_index

CELLS_PER_BLOCK = 200_000
"""Entries of dense rows that are in memory at a time."""


class QuadraticMap:
    """``phi(cost)_ij = <z, M z>`` with ``z = a_i - a_j`` and a matrix M that depends on the cost.

    Subclasses define M, and may change the form into a distance.
    """

    def __init__(self, hist: Any) -> None:
        self._hist = check_histograms(hist)

    @property
    def shape(self) -> tuple[int, int]:
        return self._hist.shape  # type: ignore[no-any-return]

    @property
    def histograms(self) -> sparse.csr_array:
        """The histograms, one per row."""
        return self._hist

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]} histograms on {self.shape[1]} bins)"

    def _matrix(self, cost: Matrix) -> Matrix:
        """M, symmetric."""
        raise NotImplementedError

    def _distances(self, forms: Any, cost: Matrix) -> Any:
        """The distances, given the forms, which may be changed.

        Values below 0 are set to 0: they are rounding errors where M is positive semidefinite.
        """
        return np.maximum(forms, 0.0)

    def __call__(self, cost: Matrix) -> Matrix:
        cost = check_cost(cost, self.shape[1])
        gram = self._hist @ (self._hist @ self._matrix(cost)).T
        gram = 0.5 * (gram + gram.T)  # exactly symmetric: iterations amplify rounding errors
        squares = np.diagonal(gram)
        forms = squares[:, None] + squares[None, :] - 2.0 * gram
        np.fill_diagonal(forms, 0.0)
        distances: Matrix = self._distances(forms, cost)
        return distances

    def between(self, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        """Distances from the histograms ``rows`` to the histograms ``columns``."""
        cost = check_cost(cost, self.shape[1])
        first, second, M = self._hist[rows], self._hist[columns], self._matrix(cost)
        image = first @ M
        squares = np.asarray(first.multiply(image).sum(axis=1))[:, None]
        squares = squares + np.asarray(second.multiply(second @ M).sum(axis=1))
        forms = squares - 2.0 * (second @ image.T).T
        distances: Matrix = self._distances(forms, cost)
        return distances

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        cost = check_cost(cost, self.shape[1])
        i, j = check_index(index, self.shape[0]).T
        image = self._hist @ self._matrix(cost)
        squares = np.asarray(self._hist.multiply(image).sum(axis=1))
        products = np.empty(len(i))
        step = max(1, CELLS_PER_BLOCK // self.shape[1])
        for start in range(0, len(i), step):
            part = slice(start, start + step)
            products[part] = self._hist[i[part]].multiply(image[j[part]]).sum(axis=1)
        forms = squares[i] + squares[j] - 2.0 * products
        forms[i == j] = 0.0
        distances: Vector = self._distances(forms, cost)
        return distances


class LaplacianMap(QuadraticMap):
    """``phi(cost)_ij = <z, L z>``, L the Laplacian of the graph whose weights are the costs.

    With ``z = a_i - a_j`` this is ``sum_kl C_kl (z_k - z_l)^2 / 2``: linear and monotone in C.

    Examples
    --------
    >>> from cometric.maps.quadratic import LaplacianMap
    >>> LaplacianMap([[1, 0], [0, 1]])([[0, 2], [2, 0]])
    array([[0., 8.],
           [8., 0.]])
    """

    def _matrix(self, cost: Matrix) -> Matrix:
        laplacian: Matrix = np.diag(cost.sum(axis=1)) - cost
        return laplacian


class MahalanobisMap(QuadraticMap):
    """``phi(cost)_ij = |C| <z, K z>^(1/2)`` with the kernel ``K = exp(-C / (scale |C|))``.

    ``z = a_i - a_j``, and ``|C|`` is the largest cost.
    """

    def __init__(self, hist: Any, scale: float = 0.5) -> None:
        super().__init__(hist)
        self.scale = scale

    def _matrix(self, cost: Matrix) -> Matrix:
        top = float(cost.max()) or 1.0
        kernel: Matrix = np.exp(-cost / (self.scale * top))
        return kernel

    def _distances(self, forms: Any, cost: Matrix) -> Any:
        return float(cost.max()) * np.sqrt(super()._distances(forms, cost))
