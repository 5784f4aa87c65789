"""Quadratic forms of differences of histograms, such as Mahalanobis distances."""

from __future__ import annotations

from collections.abc import Callable
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
        self._hist = Histograms.of(hist).rows
        self.shape = self._hist.shape
        self._left_out = int(np.argmax(np.asarray(self._hist.sum(axis=0))))
        self._rest = self.reduced(self._hist)

    def reduced(self, hist: sparse.csr_array) -> sparse.csr_array:
        """Histograms without the mass on the left-out bin."""
        rest = hist.copy()
        rest.data[rest.indices == self._left_out] = 0.0
        rest.eliminate_zeros()
        return rest

    @property
    def histograms(self) -> sparse.csr_array:
        """The histograms, one per row."""
        return self._hist

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]} histograms on {self.shape[1]} bins)"

    def _matrix(self, cost: Matrix, top: float) -> Matrix:
        """M, symmetric, or the rows of M for some rows of a cost with largest entry ``top``."""
        raise NotImplementedError

    def _distances(self, forms: Any, cost: Matrix) -> Any:
        """The distances, given the forms, which may be changed.

        Values below 0 are set to 0: they are rounding errors where M is positive semidefinite.
        """
        return np.maximum(forms, 0.0)

    def _images(self, cost: Matrix) -> tuple[Matrix, Matrix]:
        """M reduced by the left-out bin, and its product with every histogram, as rows."""
        M = self.reduced_rows(cost, slice(None), float(cost.max()))
        return M, self._rest @ M

    def reduced_rows(self, cost: Matrix, bins: Any, top: float) -> Matrix:
        """Rows of M reduced by the left-out bin, for a cost with largest entry ``top``."""
        p = self._left_out
        M, left_out = self._matrix(cost[bins], top), self._matrix(cost[[p]], top)
        reduced: Matrix = M - M[:, [p]] - left_out + left_out[0, p]
        return reduced

    def _forms(self, images: tuple[Matrix, Matrix], i: Any, j: Any) -> Vector:
        """<z, M z> of pairs, from z: exactly 0 between equal histograms."""
        M, image = images
        z = self._rest[i] - self._rest[j]
        forms = _products(z, image[i] - image[j])
        # A difference of images has the rounding errors of both; M z only those of the small z.
        near = np.flatnonzero(np.asarray(abs(z).sum(axis=1)).ravel() < NEAR)
        forms[near] = _products(z[near], z[near] @ M)
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
        squares = _products(self._rest, image)
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


class KnownForms:
    """Distances from new histograms to those of a map, under one cost.

    Of each known histogram b, <b, M b> is stored. Rows of M are computed where a new histogram has
    mass.
    """

    def __init__(self, known: QuadraticMap, cost: Matrix) -> None:
        self._known, self._cost = known, check_cost(cost, known.shape[1])
        self._top = float(cost.max())
        self._rest = known.reduced(known.histograms)
        _, image = known._images(self._cost)
        self._squares = _products(self._rest, image)

    def distances(self, phi: QuadraticMap, rows: slice) -> Matrix:
        """Distances from the histograms ``rows`` of another map to all known ones."""
        new = self._known.reduced(phi.histograms[rows])
        image = self._image(new)

        def exact(i: Any, j: Any) -> Vector:
            z = new[i] - self._rest[j]
            return _products(z, self._image(z))

        products = (self._rest @ image.T).T
        squares = _products(new, image), self._squares
        few = in_parts(new.shape[1], exact)
        forms = squares_of_differences(*squares, products, few)
        distances: Matrix = self._known._distances(forms, self._cost)
        phi.report(distances.size, distances.size)
        return distances

    def _image(self, rows: sparse.csr_array) -> Matrix:
        """The product of rows with the reduced M."""
        rows.eliminate_zeros()
        bins = np.unique(rows.indices)
        image: Matrix = rows[:, bins] @ self._known.reduced_rows(self._cost, bins, self._top)
        return image


def _products(rows: sparse.csr_array, image: Matrix) -> Vector:
    """The scalar product of each row with that of the image."""
    return np.asarray(rows.multiply(image).sum(axis=1)).ravel()


class MahalanobisMap(QuadraticMap):
    """``phi(cost)_ij = |C| <z, K z>^(1/2)`` with the kernel ``K = exp(-C / (scale |C|))``.

    ``z = a_i - a_j``, and ``|C|`` is the largest cost.
    """

    def __init__(self, hist: Any, scale: float = 0.5) -> None:
        super().__init__(hist)
        self.scale = scale

    def _matrix(self, cost: Matrix, top: float) -> Matrix:
        kernel: Matrix = np.exp(-cost / (self.scale * (top or 1.0)))
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

    def hold(self, known: Histograms, cost: Matrix, resources: Resources) -> KnownForms:
        phi: Any = self.lift(known, resources)
        return KnownForms(phi, cost)

    def to_known(
        self, phi: QuadraticMap, cost: Matrix, new: Histograms, known: slice, held: KnownForms
    ) -> Callable[[slice], Matrix]:
        return partial(held.distances, phi)

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
