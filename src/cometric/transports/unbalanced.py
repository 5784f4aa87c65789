"""Unbalanced transport: Sinkhorn divergences that leave mass unmatched at a price."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from cometric.core.types import Matrix, Vector
from cometric.maps.sinkhorn_map import check_rho
from cometric.transports.base import LowerBounds, Transport
from cometric.transports.entropic import Entropic


@dataclass(frozen=True)
class Unbalanced(Entropic):
    """Debiased unbalanced Sinkhorn divergences: mass may stay unmatched, at a price.

    Histograms are matched in part: mass that would have to move far is left out, or gets a lower
    weight, if that is cheaper. With M the largest cost, the transport cost is the minimum of

    ``<C, P> + M (eps KL(P | a b) + rho KL(P 1 | a) + rho KL(P^T 1 | b))``

    over all plans P >= 0, debiased as in :class:`Entropic`. No distance exceeds (2 rho + eps) M,
    the price of matching nothing. ``learn`` divides every histogram by its sum, as for other
    transports; :class:`EntropicMap` with ``rho`` accepts histograms of any mass.

    Parameters
    ----------
    eps
        Regularization relative to the largest cost, positive and at most 1e8.
    rho
        Price of unmatched mass relative to the largest cost, positive and at most 1e18. Infinity
        would be ``Entropic(eps)``; small values compare histograms bin by bin.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> cm.learn(X, tau=0.1, transport=cm.Unbalanced(0.1, rho=1.0)).converged
    True
    """

    rho: float = field(default=1.0, kw_only=True)
    name: ClassVar[str] = "unbalanced transport"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rho(self.rho)

    def map_options(self) -> dict[str, Any]:
        return {"eps": self.eps, "rho": self.rho}

    def lower_bounds(
        self, phi: Any, hist: sparse.csr_array, cost: Matrix, own: Vector | None = None
    ) -> LowerBounds:
        """Dual values at the potential of the self term of a_i, with the best one for a_j.

        With u the scaling of a_i to itself and r = rho / eps, this is linear in a_j:
        r <a_i, 1 - (K u)^s> + <a_j, r - (r + 1) (K u)^s>, s = 1 / (r + 1), in units of eps.
        """
        self._check_bounds(phi)
        unit, ratio = self.eps * float(cost.max()), phi.ratio
        scalings, kernel = self._own_scalings(phi, hist, cost, own), np.exp(-cost / unit)
        matched = scalings.copy()  # e^(-f / r) - 1 with f = log(u / a), on the support of a
        matched.data = np.expm1(-np.log(scalings.data / hist.data) / ratio)
        mass = np.asarray(hist.sum(axis=1)).ravel()
        lost = ratio * np.asarray(hist.multiply(matched).sum(axis=1)).ravel()
        plans = np.asarray(scalings.multiply(scalings @ kernel).sum(axis=1)).ravel()
        halves = lost + 0.5 * plans  # minus half of the self terms

        def image(rows: slice) -> Matrix:
            potentials = np.log(scalings[rows] @ kernel) / (ratio + 1.0)
            scaled: Matrix = unit * (ratio + 1.0) * np.expm1(potentials)
            return scaled

        none = Transport.lower_bounds(self, phi, hist, cost)
        p, q = unit * (halves - lost), unit * (halves - mass)
        return none._replace(p=p, q=q, image=image)
