"""The limit of infinite entropic regularization: a linear map, and its closed form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, eigs

from cometric.core.types import Matrix, Metrics, Vector
from cometric.maps.quadratic import QuadraticMap


class LimitMap(QuadraticMap):
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

    def _matrix(self, cost: Matrix) -> Matrix:
        return cost

    def _distances(self, forms: Any, cost: Matrix) -> Any:
        """Minus half of the forms; distances may be negative, which callers report."""
        forms *= -0.5
        forms += 0.0  # no -0.0
        return forms


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
        values, vectors = linalg.eig((B @ A).toarray(), overwrite_a=True)
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
