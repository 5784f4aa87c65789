"""The limit of infinite entropic regularization: a linear map, and its closed form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigs

from cometric.core.types import Index, Matrix, Metrics, Vector
from cometric.maps.checks import check_cost, check_histograms, check_index

CELLS_PER_BLOCK = 200_000
"""Entries of dense rows that are in memory at a time."""


class LimitMap:
    """``phi(cost)_ij = -1/2 <cost (a_i - a_j), a_i - a_j>``, linear in the cost.

    It is the limit of the Sinkhorn divergence as eps grows: a maximum mean discrepancy. It is not
    monotone in the cost (the entries of a_i - a_j have both signs).

    Parameters
    ----------
    hist
        Histograms as rows, each summing to 1; sparse stays sparse.

    Examples
    --------
    >>> import cometric as cm
    >>> cm.LimitMap([[1, 0], [0, 1]])([[0, 2], [2, 0]])
    array([[0., 2.],
           [2., 0.]])
    """

    def __init__(self, hist: Any) -> None:
        self._hist = check_histograms(hist)

    @property
    def shape(self) -> tuple[int, int]:
        return self._hist.shape  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"LimitMap({self.shape[0]} histograms on {self.shape[1]} bins)"

    def __call__(self, cost: Matrix) -> Matrix:
        cost = check_cost(cost, self.shape[1])
        gram = self._hist @ (self._hist @ cost).T
        gram = 0.5 * (gram + gram.T)  # exactly symmetric: iterations amplify rounding errors
        squares = np.diagonal(gram)
        distances: Matrix = gram - 0.5 * (squares[:, None] + squares[None, :])
        np.fill_diagonal(distances, 0.0)
        return distances

    @property
    def histograms(self) -> sparse.csr_array:
        """The histograms, one per row."""
        return self._hist

    def between(self, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        """Distances from the histograms ``rows`` to the histograms ``columns``."""
        first, second = self._hist[rows], self._hist[columns]
        image = first @ check_cost(cost, self.shape[1])
        first_squares = np.asarray(first.multiply(image).sum(axis=1))
        second_squares = np.asarray(second.multiply(second @ cost).sum(axis=1))
        squares = first_squares[:, None] + second_squares
        distances: Matrix = (second @ image.T).T - 0.5 * squares
        return distances

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        image = self._hist @ check_cost(cost, self.shape[1])
        i, j = check_index(index, self.shape[0]).T
        squares = self._hist.multiply(image).sum(axis=1)
        products = np.empty(len(i))
        step = max(1, CELLS_PER_BLOCK // self.shape[1])
        for start in range(0, len(i), step):
            part = slice(start, start + step)
            products[part] = self._hist[i[part]].multiply(image[j[part]]).sum(axis=1)
        distances: Vector = products - 0.5 * (squares[i] + squares[j])
        distances[i == j] = 0.0
        return distances


class Correspondence(NamedTuple):
    """The closed form at eps = infinity, tau = 0: squared differences along one axis."""

    metrics: Metrics
    image: Matrix  # of the feature metric under both maps, without cancellation
    values: tuple[float, float]
    gap: float  # s_2 - s_3; if 0, the axis, hence the solution, is not unique


def correspondence(A: sparse.csr_array, B: sparse.csr_array) -> Correspondence:
    """The dominant pair of the limit maps, from correspondence analysis.

    B A has the eigenvalues 1 = s_1^2 >= s_2^2 >= ...; with v the eigenvector of s_2^2 the pair
    is C = (v_k - v_l)^2 and D = ((A v)_i - (A v)_j)^2, and lam * mu = s_2^4.
    """
    m = B.shape[0]
    if m <= 500:
        values, vectors = np.linalg.eig((B @ A).toarray())
    else:
        product = LinearOperator((m, m), matvec=lambda x: B @ (A @ x), dtype=np.float64)
        values, vectors = eigs(product, k=3, v0=np.cos(np.arange(m)))
    order = np.argsort(-values.real)
    v = vectors[:, order[1]].real
    features, samples = _squared_differences(v), _squared_differences(A @ v)
    image = _squared_differences(B @ (A @ v))
    s2, s3 = np.sqrt(np.maximum(np.append(values.real[order], 0.0)[1:3], 0.0))
    top_features, top_samples = features.max(), samples.max()
    lam, mu = image.max() / top_samples, top_samples / top_features
    metrics = Metrics(samples / top_samples, features / top_features)
    return Correspondence(metrics, image, (float(lam), float(mu)), float(s2 - s3))


def _squared_differences(v: Vector) -> Matrix:
    matrix: Matrix = (v[:, None] - v[None, :]) ** 2
    return matrix
