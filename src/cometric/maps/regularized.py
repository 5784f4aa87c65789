"""Adds a formula (saturated costs, norm term) and an accuracy to any distance map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cometric.core.formula import Formula
from cometric.core.types import (
    Accuracy,
    DistanceMap,
    Index,
    Matrix,
    Vector,
    freezable,
)


@dataclass
class Regularized(DistanceMap):
    """The distances of a formula; ``phi`` computes their transport part.

    Parameters
    ----------
    phi
        The map of the transport part.
    formula
        Saturation of costs, and the weight of R.
    R
        Symmetric matrix with zero diagonal, positive between different histograms.
    accuracy
        The accuracy of all calls of ``phi``; its own by default.
    """

    phi: DistanceMap
    formula: Formula
    R: Matrix
    accuracy: Accuracy | None = None

    def __post_init__(self) -> None:
        self.shape = self.phi.shape

    def __repr__(self) -> str:
        formula, transport = self.formula, repr(self.phi)
        if formula.saturate > 0.0:
            transport = f"{transport} of costs saturated at {formula.saturate:g}"
        if formula.restart > 0.0:
            return f"{1 - formula.restart:g} {transport} + {formula.restart:g} |.| R / |R|"
        return f"{transport} + {formula.tau:g} |C| R" if formula.tau > 0.0 else transport

    def at(self, accuracy: Accuracy) -> Regularized:
        """The same map with calls of this accuracy."""
        return Regularized(self.phi, self.formula, self.R, accuracy)

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        transport = partial(self.phi, accuracy=accuracy or self.accuracy)
        distances: Matrix = self._add(transport, self.R, cost)
        return distances

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        """The distances of some pairs; a restart needs the largest one, so all are computed."""
        i, j = np.asarray(index).T
        if self.formula.restart > 0.0:
            chosen: Vector = self(cost, accuracy)[i, j]
            return chosen
        transport = partial(self.phi.pairs, index=index, accuracy=accuracy or self.accuracy)
        distances: Vector = self._add(transport, self._norms(index), cost)
        return distances

    def divide(self, parts: Sequence[Index]) -> None:
        self.phi.divide(parts)

    def part(
        self, number: int, index: Index, cost: Matrix, accuracy: Accuracy | None = None
    ) -> Vector:
        transport = partial(self.phi.part, number, index, accuracy=accuracy or self.accuracy)
        distances: Vector = self._add(transport, self._norms(index), cost)
        return distances

    def _norms(self, index: Index) -> Any:
        """R of some pairs, if there is one."""
        return self.R[tuple(np.asarray(index).T)] if self.formula.has_norm else None

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

    def couplings(self) -> Regularized:
        """The map that the last ``freeze`` returned, rebuilt from memory."""
        return Regularized(freezable(self.phi).couplings(), self.formula, self.R)

    def sketch(self, cost: Matrix) -> Regularized | None:
        """Like ``freeze`` with nearly optimal plans of ``phi``; None if it offers none."""
        rough = self.phi.sketch(self.formula.saturated(cost))
        return None if rough is None else Regularized(rough, self.formula, self.R)
