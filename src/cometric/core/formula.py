"""The formula of a distance: transport, and a norm term that keeps it positive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cometric.core.arrays import namespace
from cometric.core.types import Matrix

LINEAR = 2.0**53
"""Values of ``saturate`` from which on g(C) = C up to rounding."""

SATURATION_ERROR = 2.0**-48
"""Bound on the relative error of computed saturated costs: five quotients and products, and two
values of expm1 with 4 units in the last place each; docs/theory.md, section 3.8."""


@dataclass(frozen=True)
class Formula:
    """Transport W under a cost C, plus a multiple of the norm R between histograms.

    ``tau`` is relative to the largest cost, ``restart`` = alpha to the largest transport distance
    (so that alpha has the same meaning on all data)::

        W + tau |C| R        or        (1 - alpha) W + alpha |W| R / |R|

    where ``|.|`` is the largest entry. Both are homogeneous in C, and monotone where W is. With
    ``saturate`` = s > 0, W is transport under the saturated cost g(C) instead of C::

        g(C) = |C| h(C / |C|),        h(x) = (1 - exp(-x / s)) / (1 - exp(-1 / s))

    g is homogeneous and monotone, ``|g(C)| = |C|``, and a metric stays a metric.

    Parameters
    ----------
    tau
        Weight of R, at least 0.
    restart
        Share of R, at least 0 and below 1; one of ``tau`` and ``restart`` is 0.
    norm
        R: a name, a power, or a pair of matrices (samples, features).
    saturate
        Cost at which saturation sets in, as a fraction of the largest one; 0 for none.
    """

    tau: float = 0.0
    restart: float = 0.0
    norm: Any = "l1"
    saturate: float = 0.0
    has_norm: bool = field(init=False, repr=False)  # with a positive weight of R
    is_plain: bool = field(init=False, repr=False)  # transport under C, without R
    transport_weight: float = field(init=False, repr=False)  # the factor of W

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_norm", self.tau > 0.0 or self.restart > 0.0)
        object.__setattr__(self, "is_plain", not self.has_norm and self.saturate == 0.0)
        object.__setattr__(self, "transport_weight", 1.0 - self.restart)

    @property
    def uniqueness_name(self) -> str:
        """The option that makes the singular vectors unique; not for plain transport."""
        if self.has_norm:
            return "restart" if self.restart > 0.0 else "tau"
        return "saturate"

    def saturated(self, cost: Any) -> Any:
        """g(C), with the same largest entry; C itself without saturation."""
        top = float(cost.max())
        if not 0.0 < self.saturate < LINEAR or not 0.0 < top < np.inf:
            return cost
        scale = max(self.saturate, 2.0**-1000)  # below, quotients overflow; h is 1 all the same
        values = namespace(cost).expm1((cost / top) / -scale)
        values /= values.min()  # at the largest cost: exactly 1 there
        values *= top
        return values

    def norm_weight(self, largest_cost: float, largest_transport: float, largest_R: float) -> float:
        """The factor of R, given ``|C|``, ``|W|`` and ``|R|``."""
        if self.restart > 0.0:
            return self.restart * largest_transport / largest_R
        return self.tau * largest_cost

    def distances(self, transport: Any, R: Any, largest_cost: float) -> Any:
        """The distances, given W and R for all pairs (or for some that include the maxima)."""
        if not self.has_norm:
            return transport
        largest_transport = float(transport.max()) if self.restart > 0.0 else 0.0
        largest_R = float(R.max()) if self.restart > 0.0 else 1.0
        weight = self.norm_weight(largest_cost, largest_transport, largest_R)
        if self.restart > 0.0:
            transport = self.transport_weight * transport
        return transport + weight * R

    def largest_transport(self, metric: Matrix, value: float, R: Matrix) -> float:
        """The largest transport distance of a restarted map, from its image ``value * metric``.

        From ``value D_ij = (1 - alpha) W_ij + alpha |W| R_ij / |R|`` and ``W_ij <= |W|`` follows
        ``|W| >= value D_ij / (1 - alpha + alpha R_ij / |R|)``, with equality if ``W_ij = |W|``.
        """
        return float(value * (metric / self.restart_ratios(R)).max())

    def restart_ratios(self, R: Matrix) -> Matrix:
        """Distance over transport, for pairs whose transport distance is the largest."""
        ratios: Matrix = 1.0 - self.restart + (self.restart / R.max()) * R
        return ratios


PLAIN = Formula()
"""Transport alone."""
