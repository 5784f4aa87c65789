"""What can be said of a pair of metrics for eps > 0, where nothing is proved of the pair itself.

The entropic map is not monotone, so neither the interval for lam * mu nor the bound on the error
of the exact theory holds for it (docs/theory.md). What remains: how far the pair is from its own
image, computed afresh, and proved bounds (C7) for each distance of that image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cometric.cones import hilbert_distance
from cometric.kernels import geometry
from cometric.maps.entropic import EntropicMap
from cometric.maps.regularized import Regularized
from cometric.types import Coupled, Index, Matrix, Metrics

SAMPLE = 20_000
"""Pairs of each side whose bounds are computed; more would take longer than the solve."""


@dataclass(frozen=True)
class Diagnosis:
    """How well a pair of metrics solves its equations, without a proof that it is the answer.

    ``residuals`` are the Hilbert distances of (samples, features) to the fresh images of one
    another. ``bracket`` is the widest of the proved intervals of ``pairs`` distances, over the
    largest distance; None for the linear limit, which has no inner solves. ``negatives`` counts
    divergences below zero, ``triangle`` is the worst violation of the triangle inequality.
    """

    eps: float
    tau: float
    residuals: tuple[float, float]
    bracket: float | None
    pairs: int
    negatives: int
    triangle: tuple[float, float]

    def __str__(self) -> str:
        samples, features = self.residuals
        lines = [
            "Diagnosis, uncertified: for eps > 0 no residual proves that an answer is near",
            f"  residual       samples {samples:.1e}, features {features:.1e} (Hilbert distance "
            "to their images, computed afresh)",
        ]
        if self.bracket is not None:
            lines.append(
                f"  C7 theorem     {self.pairs} distances of the images proved to "
                f"{self.bracket:.1e} of the largest"
            )
        lines += [
            f"  negative       {self.negatives} divergences",
            f"  triangle       violated by at most {max(self.triangle):.1e} of the largest "
            "distance (no metric is promised for eps > 0)",
        ]
        return "\n".join(lines)


def diagnose(metrics: Metrics, phi: Coupled, eps: float, tau: float) -> Diagnosis:
    """Diagnose the pair under ``phi``, whose maps must be fresh and solve to their tolerance."""
    sides = (
        (phi.to_samples, metrics.features, metrics.samples),
        (phi.to_features, metrics.samples, metrics.features),
    )
    residuals, widths, pairs, negatives = [], [], 0, 0
    for lift, cost, metric in sides:
        residuals.append(hilbert_distance(lift(cost), metric))
        inner = lift.phi if isinstance(lift, Regularized) else lift
        if isinstance(inner, EntropicMap):
            negatives += inner.negatives.number
            index = _sample(len(metric))
            low, high = inner.bounds(cost, index)
            widths.append(float((high - low).max()) / float(lift.pairs(cost, _farthest(metric))[0]))
            pairs += len(index)
    violations = [float(geometry.triangle_violation(metric) / metric.max()) for metric in metrics]
    return Diagnosis(
        eps=eps,
        tau=tau,
        residuals=(residuals[0], residuals[1]),
        bracket=max(widths) if widths else None,
        pairs=pairs,
        negatives=negatives,
        triangle=(violations[0], violations[1]),
    )


def _sample(n: int) -> Index:
    """All pairs, or ``SAMPLE`` of them drawn once and for all."""
    i, j = np.triu_indices(n, 1)
    if len(i) > SAMPLE:
        chosen = np.sort(np.random.default_rng(0).choice(len(i), SAMPLE, replace=False))
        i, j = i[chosen], j[chosen]
    return np.stack([i, j], axis=1)


def _farthest(metric: Matrix) -> Index:
    """The pair at the largest distance."""
    return np.array([np.unravel_index(metric.argmax(), metric.shape)])
