"""Any distance map plus the norm term, which keeps all distances positive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from cometric.core.formula import Formula
from cometric.core.types import (
    Coupled,
    DistanceMap,
    Index,
    Matrix,
    Metrics,
    Vector,
    divide,
    freezable,
)


def couple(lifts: tuple[DistanceMap, DistanceMap], formula: Formula, norms: Metrics) -> Coupled:
    """Both lifts with the norm term of a formula; the lifts themselves if it has none."""
    to_samples, to_features = lifts
    if formula.is_plain:
        return Coupled(to_samples, to_features)
    return Coupled(
        Regularized(to_samples, formula, norms.samples),
        Regularized(to_features, formula, norms.features),
    )


class Regularized:
    """The distances of a formula; ``phi`` computes their transport part.

    Parameters
    ----------
    phi
        The map of the transport part.
    formula
        With a positive weight of R.
    R
        Symmetric matrix with zero diagonal, positive between different histograms.
    """

    def __init__(self, phi: DistanceMap, formula: Formula, R: Matrix) -> None:
        self.phi, self.formula, self.R = phi, formula, R

    @property
    def shape(self) -> tuple[int, int]:
        return self.phi.shape

    def __repr__(self) -> str:
        formula = self.formula
        if formula.restart > 0.0:
            return f"{1 - formula.restart:g} {self.phi!r} + {formula.restart:g} |.| R / |R|"
        return f"{self.phi!r} + {formula.tau:g} |C| R"

    def __call__(self, cost: Matrix) -> Matrix:
        distances: Matrix = self.formula.distances(self.phi(cost), self.R, float(cost.max()))
        return distances

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        """The distances of some pairs; a restart needs the largest distance, so computes all."""
        i, j = np.asarray(index).T
        if self.formula.restart > 0.0:
            chosen: Vector = self(cost)[i, j]
            return chosen
        return self._add(partial(self.phi.pairs, index=index), self.R[i, j], cost)

    def divide(self, parts: Sequence[Index]) -> list[Callable[[Matrix], Vector]]:
        """For each part of the pairs, its distances as a function of the cost; stores solutions."""
        distances = divide(self.phi, parts)
        norms = [self.R[index[:, 0], index[:, 1]] for index in parts]
        return [partial(self._add, *args) for args in zip(distances, norms, strict=True)]

    def _add(self, transport: Callable[[Matrix], Vector], R: Vector, cost: Matrix) -> Vector:
        distances: Vector = self.formula.distances(transport(cost), R, float(cost.max()))
        return distances

    def freeze(self, cost: Matrix) -> Regularized:
        """The map with the couplings of ``phi`` frozen at ``cost``, but not the norm term."""
        return Regularized(freezable(self.phi).freeze(cost), self.formula, self.R)

    def couplings(self) -> Regularized:
        """The map that the last ``freeze`` returned, rebuilt from memory."""
        return Regularized(freezable(self.phi).couplings(), self.formula, self.R)
