"""Power iteration, equation (4) of the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cometric.core.cones import log_width, normalize, ratio_bounds
from cometric.core.types import Coupled, Iterate, Matrix, Metrics, State, Traits


@dataclass(frozen=True)
class PowerIteration:
    """Lift each metric to the other side in turn, rescaled to unit maximum.

    For exact maps and every ``tau`` > 0 this converges from any start to the unique pair of
    positive singular vectors; with the l1 norm, exp(d_H) - 1 falls at least by the factor
    (1 + 2 tau)^-2 per step (docs/theory.md). Otherwise only the residual measures progress.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> cm.learn(X, eps=0, tau=0.1, solver=cm.PowerIteration()).converged
    True
    """

    traits: ClassVar[Traits] = Traits(keeps_history=False)

    def init(self, phi: Coupled, start: Metrics) -> Iterate:
        return Iterate(start, values=(1.0, 1.0))

    def step(self, phi: Coupled, now: Iterate) -> Iterate:
        return power_step(phi, now.metrics.samples, now)


def power_step(phi: Coupled, samples: Matrix, now: State) -> State:
    """The iterate ``now`` moved to the image of ``samples`` under one full sweep."""
    features, lam = normalize(phi.to_features(samples))
    image, mu = normalize(phi.to_samples(features))
    low, high = ratio_bounds(image, samples)
    return replace(
        now,
        metrics=Metrics(image, features),
        values=(lam, mu),
        residual=log_width((low, high)),
        bracket=(lam * mu * low, lam * mu * high),
        sweeps=now.sweeps + 1,
    )
