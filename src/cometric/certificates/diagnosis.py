"""Diagnoses of a pair of metrics for eps > 0, where no error bound is known.

The entropic map is not monotone, so the interval for lam * mu and the error bound of the exact
theory do not hold (docs/theory.md). A diagnosis recomputes the distance of the pair to its image,
and gives proved bounds (C7) for each distance of that image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cometric.core.cones import log_width
from cometric.core.formula import Formula
from cometric.core.problem import Problem
from cometric.core.types import BoundedMap, Index, Matrix, Metrics, Vector
from cometric.kernels import geometry
from cometric.maps.checking import all_pairs
from cometric.maps.norms import norm_matrices

FEW, ROUNDING, EXCUSED = 200, 1e-14, 3e-4
"""Number of smallest and of random pairs that confirm a residual. Errors of a distance count as
rounding up to ``ROUNDING`` times the largest cost, but at most ``EXCUSED`` times the distance."""

ROWS = 64
"""Number of rows of a metric searched for nearest neighbors at a time."""

SAMPLE = 2_000
"""Number of pairs per side that are solved again; all would take longer than learning did."""

HOLDS = 1e-12
"""Violations of the triangle inequality up to this fraction of the largest distance are ignored."""


@dataclass(frozen=True)
class Diagnosis:
    """How well a pair of metrics solves its equations; not a bound on the error.

    ``residuals`` are the Hilbert distances of each metric (samples, features) to the image of the
    other, on ``pairs`` pairs that are solved again: all, or a random sample. ``bracket`` is the
    largest width of the proved intervals of these distances, relative to the largest distance; None
    for the linear limit, which has no inner solves. ``negatives`` is the number of divergences
    proved to be negative. ``triangle`` is, for (samples, features), the largest amount by which a
    detour over a third item is shorter than the direct distance, relative to the largest distance:
    for eps > 0 the triangle inequality need not hold.
    """

    eps: float
    tau: float
    residuals: tuple[float, float]
    bracket: float | None
    pairs: int
    negatives: int
    triangle: tuple[float, float]
    restart: float = 0.0
    saturate: float = 0.0

    def __str__(self) -> str:
        samples, features = self.residuals
        lines = [
            f"Diagnosis: for {'eps > 0' if self.eps > 0 else 'this transport'} no theorem bounds "
            "the distance to the true solution",
            f"  residual       samples {samples:.1e}, features {features:.1e} (Hilbert distance "
            f"to their images on {self.pairs} pairs solved again)",
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
    """A description of the largest violation of the triangle inequality, ``worst``.

    Lines after the first are indented by ``indent`` spaces.
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


def triangle_violations(metrics: Metrics) -> tuple[float, float]:
    """The largest violation of the triangle inequality per side, over its largest distance."""
    samples, features = (
        float(geometry.triangle_violation(np.ascontiguousarray(metric)) / metric.max())
        for metric in metrics
    )
    return samples, features


def diagnose(problem: Problem, metrics: Metrics, lifts: tuple[Any, Any], eps: float) -> Diagnosis:
    """Diagnose a pair of metrics for the formula of a problem.

    The maps do not include the norm term. For a restart, the largest transport distance is taken
    over the pairs solved, which include the pair that has it according to the given metrics.
    """
    samples, features = metrics
    norms = norm_matrices(problem, problem.formula.norm)
    a = _compare(lifts[0], features, samples, problem.formula, norms.samples)
    b = _compare(lifts[1], samples, features, problem.formula, norms.features)
    return Diagnosis(
        eps=eps,
        tau=problem.formula.tau,
        residuals=(a.residual, b.residual),
        bracket=None if a.width is None or b.width is None else max(a.width, b.width),
        pairs=a.pairs + b.pairs,
        negatives=a.negatives + b.negatives,
        triangle=triangle_violations(metrics),
        restart=problem.formula.restart,
        saturate=problem.formula.saturate,
    )


def pairs_to_diagnose(problem: Problem) -> int:
    """The largest number of transport problems that :func:`diagnose` solves."""
    sides = problem.samples.hist.shape[0], problem.features.hist.shape[0]
    return sum(min(n * (n - 1) // 2, SAMPLE + 1) for n in sides)


class _Side(NamedTuple):
    """The comparison of one metric with the image of the other."""

    residual: float
    width: float | None  # of the widest interval, over the largest distance
    pairs: int
    negatives: int


def _compare(phi: Any, cost: Matrix, metric: Matrix, formula: Formula, R: Matrix) -> _Side:
    """Compare ``metric`` with the image of ``cost`` on some pairs, solved again."""
    index = sample_pairs(len(metric))
    if formula.restart > 0.0:
        index = with_farthest(index, metric, formula, R)
    i, j = index.T
    saturated = formula.saturated(cost)
    transport = phi.pairs(saturated, index)
    low = high = transport  # more accurate than the bounds
    if isinstance(phi, BoundedMap):
        low, high = phi.bounds(saturated, index)
    image = _combine(transport, cost, formula, R, index)
    with np.errstate(divide="ignore", invalid="ignore"):  # distances may be 0
        ratios = image / metric[i, j]
    return _Side(
        residual=log_width((float(ratios.min()), float(ratios.max()))),
        width=float((high - low).max() / image.max()) if high is not low else None,
        pairs=len(index),
        negatives=int((high < 0).sum()),
    )


def _combine(transport: Vector, cost: Matrix, formula: Formula, R: Matrix, index: Index) -> Vector:
    """The distances of some pairs by the formula; they must include the largest transport."""
    weight = formula.norm_weight(float(cost.max()), float(transport.max()), float(R.max()))
    distances: Vector = formula.transport_weight * transport + weight * R[tuple(index.T)]
    return distances


def residual_of_some(
    lift: Callable[[Index], Any], cost: Matrix, metric: Matrix, formula: Formula, R: Matrix
) -> float:
    """The Hilbert distance of ``metric`` to the image of ``cost``, on some pairs.

    The pairs are the ``FEW`` smallest distances, where errors matter most, and as many random ones.
    ``lift`` returns an accurate map of some histograms. Rounding errors are subtracted.
    """
    index = _smallest_and_others(metric)
    if formula.restart > 0.0:
        index = with_farthest(index, metric, formula, R)
    used, places = np.unique(index, return_inverse=True)
    transport = lift(used).pairs(formula.saturated(cost), places.reshape(-1, 2))
    image = _combine(transport, cost, formula, R, index)
    known = metric[tuple(index.T)]
    rounding = np.minimum(ROUNDING * float(cost.max()), EXCUSED * known)
    largest = float(((image - rounding) / known).max())  # lower bound of the largest ratio
    smallest = float(((image + rounding) / known).min())  # upper bound of the smallest ratio
    if smallest <= 0.0:  # a distance is negative
        return math.inf
    return max(0.0, math.log(largest / smallest)) if largest > 0.0 else 0.0


def _smallest_and_others(metric: Matrix) -> Index:
    """The smallest nearest-neighbor distances, plus a seeded random sample of pairs."""
    n = len(metric)
    if n * (n - 1) <= 4 * FEW:
        return all_pairs(n)
    nearest, least = np.empty(n, np.int64), np.empty(n)
    for at in range(0, n, ROWS):
        rows = metric[at : at + ROWS].copy()
        own = np.arange(len(rows))
        rows[own, at + own] = math.inf
        nearest[at : at + ROWS] = rows.argmin(axis=1)
        least[at : at + ROWS] = rows.min(axis=1)
    first = np.argsort(least, kind="stable")[:FEW]
    drawn = np.random.default_rng(0).integers(n, size=(FEW, 2))
    pairs = np.concatenate([np.stack([first, nearest[first]], axis=1), drawn])
    index: Index = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    return index


def with_farthest(index: Index, metric: Matrix, formula: Formula, R: Matrix) -> Index:
    """The pairs plus the one with the largest transport distance, on which a restart depends."""
    ratios = metric / formula.restart_ratios(R)
    farthest = np.unravel_index(np.argmax(ratios), metric.shape)
    return np.concatenate([index, [np.sort(farthest)]])


def sample_pairs(n: int) -> Index:
    """All pairs, or ``SAMPLE`` of them, drawn with a fixed seed."""
    index = all_pairs(n)
    if len(index) <= SAMPLE:
        return index
    return index[np.sort(np.random.default_rng(0).choice(len(index), SAMPLE, replace=False))]
