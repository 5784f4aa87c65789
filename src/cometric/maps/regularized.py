"""Adds a formula (saturated costs, norm term) to any distance map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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

UNDERFLOW = 2.0**-1000
"""With a norm term, distances below this fraction of the largest count as zero."""


def couple(lifts: tuple[DistanceMap, DistanceMap], formula: Formula, norms: Metrics) -> Coupled:
    """Both maps with a formula; the maps themselves if it is plain transport."""
    to_samples, to_features = lifts
    if formula.is_plain:
        return Coupled(to_samples, to_features)
    sides = (
        Regularized(to_samples, formula, norms.samples),
        Regularized(to_features, formula, norms.features),
    )
    # R keeps distances positive, however small.
    return Coupled(*sides, boundary=UNDERFLOW) if formula.has_norm else Coupled(*sides)


class Regularized:
    """The distances of a formula; ``phi`` computes their transport part.

    Parameters
    ----------
    phi
        The map of the transport part.
    formula
        Saturation of costs, and the weight of R.
    R
        Symmetric matrix with zero diagonal, positive between different histograms.
    """

    def __init__(self, phi: DistanceMap, formula: Formula, R: Matrix) -> None:
        self.phi, self.formula, self.R = phi, formula, R

    @property
    def shape(self) -> tuple[int, int]:
        return self.phi.shape

    def __repr__(self) -> str:
        formula, transport = self.formula, repr(self.phi)
        if formula.saturate > 0.0:
            transport = f"{transport} of costs saturated at {formula.saturate:g}"
        if formula.restart > 0.0:
            return f"{1 - formula.restart:g} {transport} + {formula.restart:g} |.| R / |R|"
        return f"{transport} + {formula.tau:g} |C| R" if formula.tau > 0.0 else transport

    def __call__(self, cost: Matrix) -> Matrix:
        distances: Matrix = self._add(self.phi, self.R, cost)
        return distances

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        """The distances of some pairs; a restart needs the largest one, so all are computed."""
        i, j = np.asarray(index).T
        if self.formula.restart > 0.0:
            chosen: Vector = self(cost)[i, j]
            return chosen
        distances: Vector = self._add(partial(self.phi.pairs, index=index), self.R[i, j], cost)
        return distances

    def divide(self, parts: Sequence[Index]) -> list[Callable[[Matrix], Vector]]:
        """For each part of the pairs, its distances as a function of the cost; stores solutions."""
        distances = divide(self.phi, parts)
        norms = [self.R[index[:, 0], index[:, 1]] for index in parts]
        return [partial(self._add, *args) for args in zip(distances, norms, strict=True)]

    def _add(self, transport: Callable[[Matrix], Any], R: Any, cost: Matrix) -> Any:
        """The distances; ``transport`` is their transport part as a function of the cost."""
        moved = transport(self.formula.saturated(cost))
        return self.formula.distances(moved, R, float(cost.max()))

    def freeze(self, cost: Matrix) -> Regularized:
        """The map with the couplings of ``phi`` frozen at ``cost``.

        The norm term and saturation are not frozen: with couplings P, transport is <P, g(C)>.
        """
        frozen = freezable(self.phi).freeze(self.formula.saturated(cost))
        return Regularized(frozen, self.formula, self.R)

    def sketch(self, cost: Matrix) -> Regularized | None:
        """Like ``freeze`` with nearly optimal plans of ``phi``; None if it offers none."""
        sketch = getattr(self.phi, "sketch", None)
        rough = None if sketch is None else sketch(self.formula.saturated(cost))
        return None if rough is None else Regularized(rough, self.formula, self.R)

    def couplings(self) -> Regularized:
        """The map that the last ``freeze`` returned, rebuilt from memory."""
        return Regularized(freezable(self.phi).couplings(), self.formula, self.R)
