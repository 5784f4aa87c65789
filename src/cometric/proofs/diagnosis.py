"""What can be said of a pair of metrics for eps > 0, where nothing is proved of the pair itself.

The entropic map is not monotone, so neither the interval for lam * mu nor the bound on the error
of the exact theory holds for it (docs/theory.md). What remains: how far the pair is from its own
image, computed afresh, and proved bounds (C7) for each distance of that image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cometric.core.cones import log_width
from cometric.core.formula import Formula
from cometric.core.problem import Problem
from cometric.core.types import BoundedMap, Index, Matrix, Metrics
from cometric.kernels import geometry
from cometric.maps.checks import all_pairs
from cometric.maps.norms import norm_matrices

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
            f"Diagnosis: for {'eps > 0' if self.eps > 0 else 'this transport'} no theorem says how "
            "near the true answer is",
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


def diagnose(problem: Problem, metrics: Metrics, lifts: tuple[Any, Any], eps: float) -> Diagnosis:
    """Diagnose a pair of metrics for the formula of a problem.

    The maps come without the share of R. A restart takes the largest transport distance over the
    pairs looked at, among them the one where the given metrics have it.
    """
    samples, features = metrics
    norms = norm_matrices(problem, problem.formula.norm)
    a = _look(lifts[0], features, samples, problem.formula, norms.samples)
    b = _look(lifts[1], samples, features, problem.formula, norms.features)
    return Diagnosis(
        eps=eps,
        tau=problem.formula.tau,
        residuals=(a.residual, b.residual),
        bracket=None if a.width is None or b.width is None else max(a.width, b.width),
        pairs=a.pairs + b.pairs,
        negatives=a.negatives + b.negatives,
        triangle=(
            float(geometry.triangle_violation(samples) / samples.max()),
            float(geometry.triangle_violation(features) / features.max()),
        ),
        restart=problem.formula.restart,
    )


def pairs_to_diagnose(problem: Problem) -> int:
    """How many transport problems :func:`diagnose` solves, at most."""
    sides = problem.samples.hist.shape[0], problem.features.hist.shape[0]
    return sum(min(n * (n - 1) // 2, SAMPLE + 1) for n in sides)


class _Side(NamedTuple):
    """One metric beside the image of the other."""

    residual: float
    width: float | None  # of the widest interval, over the largest distance
    pairs: int
    negatives: int


def _look(phi: Any, cost: Matrix, metric: Matrix, formula: Formula, R: Matrix) -> _Side:
    """Compare ``metric`` with the image of ``cost`` on some pairs, solved afresh."""
    index = _sample(len(metric))
    if formula.restart > 0.0:
        ratios = metric / formula.restart_ratios(R)
        farthest = np.unravel_index(np.argmax(ratios), metric.shape)
        index = np.concatenate([index, [np.sort(farthest)]])
    i, j = index.T
    if isinstance(phi, BoundedMap):
        low, high = phi.bounds(cost, index)
        transport = 0.5 * (low + high)
    else:
        low = high = transport = phi.pairs(cost, index)
    most = float(transport.max())
    weight = formula.norm_weight(float(cost.max()), most, float(R.max()))
    image = formula.transport_weight * transport + weight * R[i, j]
    ratios = image / metric[i, j]
    return _Side(
        residual=log_width((float(ratios.min()), float(ratios.max()))),
        width=float((high - low).max() / image.max()) if high is not low else None,
        pairs=len(index),
        negatives=int((high < 0).sum()),
    )


def _sample(n: int) -> Index:
    """All pairs, or ``SAMPLE`` of them drawn once and for all."""
    index = all_pairs(n)
    if len(index) <= SAMPLE:
        return index
    return index[np.sort(np.random.default_rng(0).choice(len(index), SAMPLE, replace=False))]
