"""The limit of infinite entropic regularization, eps = inf."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, eigs

from cometric.core.cones import log_width, normalize, ratio_bounds
from cometric.core.histograms import Histograms
from cometric.core.problem import Problem
from cometric.core.types import Index, Iterate, Matrix, Metrics, Record, Status, Vector
from cometric.solvers.loop import Solution
from cometric.transports.base import (
    Lifts,
    LowerBounds,
    Resources,
    Transport,
    product_operations,
    quadratic_forms,
    without_parameters,
)
from cometric.transports.quadratic import KnownForms, QuadraticMap
from cometric.transports.solving import Solving

DETERMINED = 1e-9
"""The closed form counts as non-unique if the gap of singular values is at most this."""


@without_parameters
@dataclass(frozen=True)
class Limit(Transport):
    """The limit of the Sinkhorn divergence as eps grows: linear in the cost.

    Without the norm term its singular vectors have a closed form, correspondence analysis.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> cm.learn(X, tau=0.1, transport=cm.Limit()).converged
    True
    """

    eps: ClassVar[float] = float("inf")
    name: ClassVar[str] = "the linear limit"
    on_clusters: ClassVar[bool] = False
    history: ClassVar[str] = "linear"
    closed_form: ClassVar[bool] = True

    def lift(self, hist: Histograms, resources: Resources) -> LimitMap:
        return LimitMap(hist)

    def closed(self, run: Solving) -> Solution:
        return _closed_form(run)

    def plan(self, pair: Histograms, cost: Matrix) -> tuple[Index, Index, Vector]:
        """The product of the marginals: every bin sends mass to every bin."""
        first, second = (pair.rows[[k]] for k in (0, 1))
        source, target = np.meshgrid(first.indices, second.indices, indexing="ij")
        mass = np.outer(first.data, second.data)
        return source.ravel().astype(np.int64), target.ravel().astype(np.int64), mass.ravel()

    def between(self, phi: LimitMap, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        return phi.between(cost, rows, columns)

    def hold(self, known: Histograms, cost: Matrix, resources: Resources) -> KnownForms:
        return KnownForms(LimitMap(known), cost)

    def to_known(
        self, phi: LimitMap, cost: Matrix, new: Histograms, known: slice, held: KnownForms
    ) -> Callable[[slice], Matrix]:
        return partial(held.distances, phi)

    def lower_bounds(
        self, phi: Any, hist: sparse.csr_array, cost: Matrix, own: Vector | None = None
    ) -> LowerBounds:
        """Exact values: -<C a, a> / 2 - <C b, b> / 2 + <C a, b>."""
        halves = -0.5 * quadratic_forms(hist, cost)
        image = partial(_image, hist, cost)
        return super().lower_bounds(phi, hist, cost)._replace(p=halves, q=halves, image=image)

    def engine(self, lifts: Lifts, solver: str) -> str:
        return "closed form" if solver == "closed" else "matrix products"

    def operations(self, problem: Problem) -> float:
        return product_operations(problem)

    def work(self, lift: Any, hist: sparse.csr_array) -> float:
        n, d = hist.shape
        return float(hist.nnz * (n + d) + 10 * (n * n + d * d))


def _image(hist: Any, cost: Matrix, rows: slice) -> Matrix:
    image: Matrix = -(hist[rows] @ cost)
    return image


def _closed_form(run: Solving) -> Solution:
    """The solution by correspondence analysis, as one iteration."""
    began = time.perf_counter()
    problem = run.problem
    solution = correspondence(problem.samples.hist, problem.features.hist)
    lam, mu = solution.values
    low, high = ratio_bounds(normalize(solution.image)[0], solution.metrics.features)
    residual = log_width((low, high))
    bracket = (lam * mu * low, lam * mu * high)
    iterate = Iterate(solution.metrics, (lam, mu), residual, bracket, sweeps=1)
    status = Status.CONVERGED
    if solution.gap <= DETERMINED:
        status = Status.NON_UNIQUE
    elif not residual <= run.tol:  # two items coincide, up to rounding
        status = Status.BOUNDARY
    record = Record(1, residual, lam, mu, 1, time.perf_counter() - began)
    return Solution(iterate, status, [record], solver="CorrespondenceAnalysis")


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

    def _matrix(self, cost: Matrix, top: float) -> Matrix:
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
