"""Quadratic forms of differences of histograms, such as Mahalanobis distances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from cometric.core.arguments import shown
from cometric.core.histograms import Histograms
from cometric.core.problem import Problem
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.maps.checking import check_cost, check_index
from cometric.maps.sinkhorn_map import is_positive
from cometric.maps.views import in_parts, squares_of_differences
from cometric.transports.base import Lifts, Resources, Transport, product_operations

NEAR = 1e-4
"""Below this l1 distance, M is applied to the difference of two histograms, not to each."""


class QuadraticMap(DistanceMap):
    """``phi(cost)_ij = <z, M z>`` with ``z = a_i - a_j`` and a matrix M that depends on the cost.

    Subclasses define M, and may change the form into a distance.

    As z sums to 0, the largest bin p can be left out, with M_kl - M_kp - M_pl + M_pp in place of
    M: so a bin with nearly all of the mass causes no loss of digits.
    """

    def __init__(self, hist: Any) -> None:
        self._hist = hist.rows if isinstance(hist, Histograms) else Histograms.of(hist).rows
        self.shape = self._hist.shape
        self._left_out = int(np.argmax(np.asarray(self._hist.sum(axis=0))))
        self._rest = self._hist.copy()
        self._rest.data[self._rest.indices == self._left_out] = 0.0
        self._rest.eliminate_zeros()

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

    def _images(self, cost: Matrix) -> tuple[Matrix, Matrix]:
        """M reduced by the left-out bin, and its product with every histogram, as rows."""
        M, p = self._matrix(cost), self._left_out
        M = M - M[:, [p]] - M[[p]] + M[p, p]
        return M, self._rest @ M

    def _forms(self, images: tuple[Matrix, Matrix], i: Any, j: Any) -> Vector:
        """<z, M z> of pairs, from z: exactly 0 between equal histograms."""
        M, image = images
        z = self._rest[i] - self._rest[j]
        forms = np.asarray(z.multiply(image[i] - image[j]).sum(axis=1)).ravel()
        # A difference of images has the rounding errors of both; M z only those of the small z.
        near = np.flatnonzero(np.asarray(abs(z).sum(axis=1)).ravel() < NEAR)
        forms[near] = np.asarray(z[near].multiply(z[near] @ M).sum(axis=1)).ravel()
        return forms

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        cost = check_cost(cost, self.shape[1])
        images = self._images(cost)
        gram = self._rest @ images[1].T
        gram = 0.5 * (gram + gram.T)  # exactly symmetric: iterations amplify rounding errors
        squares = np.diagonal(gram).copy()
        exact = in_parts(self.shape[1], partial(self._forms, images))
        forms = squares_of_differences(squares, squares, gram, exact)
        distances: Matrix = self._distances(forms, cost)
        return distances

    def between(self, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        """Distances from the histograms ``rows`` to the histograms ``columns``."""
        cost = check_cost(cost, self.shape[1])
        images = self._images(cost)
        image = images[1]
        first, second = self._numbers(rows), self._numbers(columns)
        squares = np.asarray(self._rest.multiply(image).sum(axis=1)).ravel()
        exact = in_parts(self.shape[1], lambda i, j: self._forms(images, first[i], second[j]))
        products = (self._rest[second] @ image[first].T).T
        forms = squares_of_differences(squares[first], squares[second], products, exact)
        distances: Matrix = self._distances(forms, cost)
        self.report(distances.size, distances.size)
        return distances

    def _numbers(self, rows: slice) -> Index:
        return np.arange(self.shape[0])[rows]

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        cost = check_cost(cost, self.shape[1])
        i, j = check_index(index, self.shape[0]).T
        forms = in_parts(self.shape[1], partial(self._forms, self._images(cost)))(i, j)
        distances: Vector = self._distances(forms, cost)
        self.report(len(i), len(i))
        return distances


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


@dataclass(frozen=True)
class Quadratic(Transport):
    """A quadratic form of the difference of two histograms, computed by matrix products."""

    on_clusters: ClassVar[bool] = False
    history: ClassVar[str] = "linear"

    def between(self, phi: QuadraticMap, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        return phi.between(cost, rows, columns)

    def plan(self, pair: Histograms, cost: Matrix) -> tuple[Index, Index, Vector]:
        raise NotImplementedError(
            f"{type(self).__name__} moves no mass between bins, so there is no plan to explain. "
            "Learn with cm.Exact() or cm.Entropic() for one."
        )

    def engine(self, lifts: Lifts, solver: str) -> str:
        return "matrix products"

    def operations(self, problem: Problem) -> float:
        return product_operations(problem)


@dataclass(frozen=True)
class Mahalanobis(Quadratic):
    """Mahalanobis distances by a kernel of the costs, after Auffenberg et al. (arXiv 2507.13094).

    With the largest cost ``|C|``::

        Phi_A(C)_ij = |C| <a_i - a_j, K (a_i - a_j)>^(1/2),   K_kl = exp(-C_kl / (scale |C|)).

    Parameters
    ----------
    scale
        Cost at which the kernel falls off, relative to the largest one; positive and finite. Small
        values give Euclidean distances between histograms.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> cm.learn(X, tau=0.1, transport=cm.Mahalanobis()).converged
    True
    """

    scale: float = 0.5
    name: ClassVar[str] = "the Mahalanobis distance"

    def __post_init__(self) -> None:
        if not is_positive(self.scale):
            raise ValueError(f"`scale` is {shown(self.scale)}; it must be positive and finite.")

    def lift(self, hist: Histograms, resources: Resources) -> MahalanobisMap:
        return MahalanobisMap(hist, float(self.scale))
