"""Checks of a metric computed from a given one, by solving its pairs again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cometric.certificates.certificate import ROUNDING, Rounding, rounding_errors
from cometric.certificates.diagnosis import (
    describe_triangle,
    sample_pairs,
    triangle_violations,
    with_farthest,
)
from cometric.core.formula import SATURATION_ERROR, Formula
from cometric.core.problem import Problem
from cometric.core.types import BoundedMap, Index, Matrix, Metrics, Vector
from cometric.maps.checking import all_pairs
from cometric.maps.norms import side_norm


@dataclass(frozen=True)
class LiftCheck:
    """The accuracy of a metric computed from a given one.

    ``of`` is the side that was computed. Its distances differ from the true values by at most
    ``error`` times the largest distance, on ``pairs`` of the ``count`` pairs, solved again. This is
    ``proved`` if the map bounds its distances (by dual solutions): then it holds for the data
    divided by their sums in exact arithmetic, and includes the rounding of masses. Otherwise it is
    the difference of two computations. ``negatives`` and ``triangle`` are as in
    :class:`~cometric.certificates.diagnosis.Diagnosis`.
    """

    of: str
    error: float
    proved: bool
    pairs: int
    count: int
    negatives: int
    triangle: tuple[float, float]

    def __str__(self) -> str:
        given = "features" if self.of == "samples" else "samples"
        pairs = f"all {self.pairs}" if self.pairs == self.count else f"{self.pairs}"
        side = 0 if self.of == "samples" else 1
        lines = [
            f"Check: the distances between {self.of} are the lift of the given ones of {given}",
            f"  {'proved' if self.proved else 'recomputed':<15}each distance is within "
            f"{self.error:.1e} of the largest of its true value, on {pairs} pairs solved again",
            f"  negative       {self.negatives} distances",
            f"  triangle       {describe_triangle(self.triangle[side], indent=17)}",
        ]
        return "\n".join(lines)


def pairs_to_check(problem: Problem, every: bool) -> Index:
    """The pairs of the computed side to solve again: all if ``every``, else a random sample."""
    n = getattr(problem, _computed(problem)).hist.shape[0]
    return all_pairs(n) if every else sample_pairs(n)


def check_lift(
    problem: Problem, metrics: Metrics, lifts: tuple[Any, Any], index: Index
) -> LiftCheck:
    """Compare the computed metric with bounds of its distances, for the pairs ``index``."""
    of, formula = _computed(problem), problem.formula
    side = 0 if of == "samples" else 1
    phi, metric, cost = lifts[side], metrics[side], metrics[1 - side]
    n = len(metric)
    count = n * (n - 1) // 2
    R = side_norm(problem, formula.norm, of) if formula.has_norm else None
    if R is not None and formula.restart > 0.0 and len(index) < count:
        index = with_farthest(index, metric, formula, R)
    i, j = index.T
    proved = isinstance(phi, BoundedMap)
    if proved:
        errors = rounding_errors(problem)[side]
        low, high, negatives = _bounds(phi, cost, formula, R, index, errors)
    else:
        low = phi.pairs(formula.saturated(cost), index)
        negatives = int((low < 0).sum())
        if R is not None:
            low = formula.distances(low, R[i, j], float(cost.max()))
        high = low
    computed = metric[i, j]
    error = float(np.maximum(abs(computed - low), abs(high - computed)).max())
    error /= float(metric.max())
    return LiftCheck(
        of=of,
        error=error * (1 + ROUNDING) + ROUNDING if proved else error,
        proved=proved,
        pairs=len(index),
        count=count,
        negatives=negatives,
        triangle=triangle_violations(metrics),
    )


def _bounds(
    phi: BoundedMap,
    cost: Matrix,
    formula: Formula,
    R: Matrix | None,
    index: Index,
    error: Rounding,
) -> tuple[Vector, Vector, int]:
    """Bounds of distances for all histograms within rounding errors, and the number of negatives.

    Rounding changes a transport distance by at most half of the rounded mass times the largest cost
    (docs/theory.md, section 3.8), and the self terms of entropic transport by as much again. For
    unbalanced transport this is a first-order estimate, since errors are relative to each mass.
    """
    i, j = index.T
    top = float(cost.max())
    low, high = phi.bounds(formula.saturated(cost), index)
    negatives = int((high < 0).sum())
    moved = top * (error.masses[i] + error.masses[j])
    if formula.saturate > 0.0:
        moved += 2.0 * SATURATION_ERROR * top
    low, high = low - moved, high + moved
    if R is None:
        return low, high, negatives
    norm, norms = R[i, j], error.norms[i] + error.norms[j]
    norm_low = np.maximum(norm * (1 - error.relative) - norms, 0.0)
    norm_high = norm * (1 + error.relative) + norms
    smallest = formula.norm_weight(top, max(float(low.max()), 0.0), float(norm_high.max()))
    largest = formula.norm_weight(top, float(high.max()), float(norm_low.max()))
    weight = formula.transport_weight
    return weight * low + smallest * norm_low, weight * high + largest * norm_high, negatives


def _computed(problem: Problem) -> str:
    return "samples" if problem.fixed == "features" else "features"
