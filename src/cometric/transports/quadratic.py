"""Quadratic forms as a cheap alternative to transport: Mahalanobis distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometric.core.arguments import shown
from cometric.core.histograms import Histograms
from cometric.core.problem import Problem
from cometric.core.types import Index, Matrix, Vector
from cometric.maps.checks import is_positive
from cometric.maps.quadratic import MahalanobisMap, QuadraticMap
from cometric.transports.base import Lifts, Resources, Transport, product_operations


@dataclass(frozen=True)
class Quadratic(Transport):
    """A quadratic form of the difference of two histograms, computed by matrix products."""

    on_clusters: ClassVar[bool] = False

    def between(self, phi: QuadraticMap, cost: Matrix, rows: slice, columns: slice) -> Matrix:
        return phi.between(cost, rows, columns)

    def kind_of_memory(self, plain: bool, automatic: bool, keeps_history: bool) -> str:
        return "linear" if keeps_history else "plain"

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
