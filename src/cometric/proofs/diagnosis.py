"""What can be said of a pair of metrics for eps > 0, where nothing is proved of the pair itself.

The entropic map is not monotone, so neither the interval for lam * mu nor the bound on the error
of the exact theory holds for it (docs/theory.md). What remains: how far the pair is from its own
image, computed afresh, and proved bounds (C7) for each distance of that image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cometric.core.cones import log_width
from cometric.core.types import Index, Matrix, Metrics
from cometric.kernels import geometry
from cometric.maps.checks import all_pairs
from cometric.maps.entropic import EntropicMap
from cometric.maps.limit import LimitMap
from cometric.maps.regularized import restart_weights

SAMPLE = 2_000
"""Pairs of each side that are solved afresh; all of them would take longer than learning did."""

HOLDS = 1e-12
"""Violations of the triangle inequality, over the largest distance, that are rounding."""


@dataclass(frozen=True)
class Diagnosis:
    """How well a pair of metrics solves its equations, without a proof that it is the answer.

    ``residuals`` are the Hilbert distances of (samples, features) to the images of one another
    on ``pairs`` pairs, all or a sample, solved afresh. ``bracket`` is the widest of the proved
    intervals of these distances, over the largest of them; None for the linear limit, which has
    no inner solves. ``negatives`` counts divergences proved to be below zero. ``triangle`` is,
    for (samples, features), by how much at most a detour over a third item is shorter than the
    direct distance, relative to the largest distance: for eps > 0 the triangle inequality need
    not hold.
    """

    eps: float
    tau: float
    residuals: tuple[float, float]
    bracket: float | None
    pairs: int
    negatives: int
    triangle: tuple[float, float]
    restart: float = 0.0

    def __str__(self) -> str:
        samples, features = self.residuals
        lines = [
            "Diagnosis: for eps > 0 no theorem says how near the true answer is",
            f"  residual       samples {samples:.1e}, features {features:.1e} (Hilbert distance "
            f"to their images on {self.pairs} pairs solved afresh)",
        ]
        if self.bracket is not None:
            lines.append(
                f"  proved         each distance computed to {self.bracket:.1e} of the largest"
            )
        lines += [
            f"  negative       {self.negatives} divergences",
            f"  triangle       {describe_triangle(max(self.triangle), indent=17)}",
        ]
        return "\n".join(lines)


def describe_triangle(worst: float, indent: int) -> str:
    """What the worst violation of the triangle inequality, over the largest distance, means.

    One line, or several with ``indent`` spaces before each but the first.
    """
    if worst <= HOLDS:
        return "the triangle inequality holds"
    lines = (
        "some detours are shorter than the direct distance, by up to "
        f"{100 * worst:.2g} % of the largest distance:",
        "neighbors and clusterings of these distances are unaffected, but methods that rely on the",
        "triangle inequality (ball trees, some search indexes) may miss neighbors",
    )
    return f"\n{' ' * indent}".join(lines)


def diagnose(
    metrics: Metrics,
    to_samples: EntropicMap | LimitMap,
    to_features: EntropicMap | LimitMap,
    *,
    eps: float,
    tau: float,
    norms: Metrics,
    restart: float = 0.0,
) -> Diagnosis:
    """Diagnose the pair for Phi(C) = S_C + tau max(C) R; the maps come without the tau term.

    With ``restart`` for (1 - restart) S_C + restart max(S_C) R / max(R), where max(S_C) is taken
    over the pairs looked at, among them the one where the given metrics have it.
    """
    samples, features = metrics
    a = _look(to_samples, features, samples, tau, restart, norms.samples)
    b = _look(to_features, samples, features, tau, restart, norms.features)
    return Diagnosis(
        eps=eps,
        tau=tau,
        residuals=(a.residual, b.residual),
        bracket=None if eps == np.inf else max(a.width, b.width),
        pairs=a.pairs + b.pairs,
        negatives=a.negatives + b.negatives,
        triangle=(
            float(geometry.triangle_violation(samples) / samples.max()),
            float(geometry.triangle_violation(features) / features.max()),
        ),
        restart=restart,
    )


class _Side(NamedTuple):
    """One metric beside the image of the other."""

    residual: float
    width: float  # of the widest interval, over the largest distance
    pairs: int
    negatives: int


def _look(
    lift: EntropicMap | LimitMap,
    cost: Matrix,
    metric: Matrix,
    tau: float,
    restart: float,
    R: Matrix,
) -> _Side:
    """Compare ``metric`` with the image of ``cost`` on some pairs, solved afresh."""
    index = _sample(len(metric))
    if restart > 0.0:
        weights = restart_weights(restart, R)
        farthest = np.unravel_index(np.argmax(metric / weights), metric.shape)
        index = np.concatenate([index, [np.sort(farthest)]])
    i, j = index.T
    if isinstance(lift, EntropicMap):
        low, high = lift.bounds(cost, index)
        image = 0.5 * (low + high)
    else:
        low = high = image = lift.pairs(cost, index)
    if restart > 0.0:
        image = (1.0 - restart) * image + restart * image.max() * R[i, j] / R.max()
    else:
        image = image + tau * cost.max() * R[i, j]
    ratios = image / metric[i, j]
    return _Side(
        residual=log_width((float(ratios.min()), float(ratios.max()))),
        width=float((high - low).max() / image.max()),
        pairs=len(index),
        negatives=int((high < 0).sum()),
    )


def _sample(n: int) -> Index:
    """All pairs, or ``SAMPLE`` of them drawn once and for all."""
    index = all_pairs(n)
    if len(index) <= SAMPLE:
        return index
    return index[np.sort(np.random.default_rng(0).choice(len(index), SAMPLE, replace=False))]
