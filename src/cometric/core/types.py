"""Types and protocols shared by maps, solvers and the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Index = NDArray[np.int64]


class Metrics(NamedTuple):
    """A distance between samples (n, n) and one between features (m, m)."""

    samples: Matrix
    features: Matrix


class DistanceMap(Protocol):
    """Histograms bound to a way of comparing them under a cost between their bins.

    It is homogeneous: phi(s * cost) == s * phi(cost).
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Number of histograms, number of bins."""

    def __call__(self, cost: Matrix) -> Matrix:
        """All distances, symmetric with a zero diagonal."""

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        """The distances of the pairs ``index`` (p, 2)."""


@runtime_checkable
class FreezableMap(DistanceMap, Protocol):
    """A map that is a minimum of linear maps, one for each choice of couplings."""

    def freeze(self, cost: Matrix) -> DistanceMap:
        """The linear map (up to the tau term) of the couplings optimal at ``cost``."""

    def couplings(self) -> DistanceMap:
        """The map that the last ``freeze`` returned, rebuilt from memory."""


def freezable(phi: object) -> FreezableMap:
    """The map itself, if its couplings can be frozen."""
    if not isinstance(phi, FreezableMap):
        raise TypeError(
            f"{type(phi).__name__} has no couplings to freeze: policy iteration needs exact maps. "
            "Pass solver='power'."
        )
    return phi


@runtime_checkable
class RememberingMap(DistanceMap, Protocol):
    """A map whose results depend, within tolerance, on what it stored in earlier calls."""

    def snapshot(self) -> dict[str, Any]:
        """All stored arrays and values, by name; arrays are not copied."""

    def restore(self, memory: dict[str, Any]) -> None:
        """Continue from a snapshot of a map of the same histograms and options."""


@runtime_checkable
class BoundedMap(DistanceMap, Protocol):
    """A map with proved bounds for its distances."""

    def bounds(self, cost: Matrix, index: Index) -> tuple[Vector, Vector]:
        """Lower and upper bounds of the distances of the pairs ``index``."""


@runtime_checkable
class InexactMap(DistanceMap, Protocol):
    """A map solved by Sinkhorn sweeps; the accuracy can be changed between calls.

    Marginal errors are l1 distances between the marginals of a pair's plan and its histograms.
    """

    sweeps: int | None
    """Sweeps per call; None solves every pair to ``tol``."""
    tol: float
    """Marginal error at which a pair is solved."""
    margin: float
    """With ``sweeps``, the marginal error above which a pair gets extra sweeps."""
    precision: str
    """Precision of the sweeps, e.g. "float32"; "float64" where a lower one could overflow."""
    error: float
    """Largest marginal error of the last call."""


@runtime_checkable
class DivisibleMap(DistanceMap, Protocol):
    """A map that can store its solutions while it is called for parts of the pairs."""

    def divide(self, parts: Sequence[Index]) -> list[Callable[[Matrix], Vector]]:
        """For each part of the pairs, its distances as a function of the cost; stores solutions."""


def divide(phi: DistanceMap, parts: Sequence[Index]) -> list[Callable[[Matrix], Vector]]:
    """For each part, its distances as a function of the cost; stores solutions if ``phi`` can."""
    if isinstance(phi, DivisibleMap):
        return phi.divide(parts)
    return [partial(phi.pairs, index=index) for index in parts]


BOUNDARY = 1e-13
"""Fraction of the largest distance below which distances of transport alone count as zero."""


@dataclass(frozen=True)
class Coupled:
    """The two lifts: ``to_samples(C)`` is Phi_A(C), ``to_features(D)`` is Phi_B(D).

    Distances below the fraction ``boundary`` of the largest count as zero.
    """

    to_samples: DistanceMap
    to_features: DistanceMap
    boundary: float = BOUNDARY


@dataclass(frozen=True)
class Iterate:
    """The state of a solver after a step.

    ``residual`` is the Hilbert distance between a metric and its own image under one full
    sweep; ``bracket`` is the Collatz-Wielandt interval for lam * mu from that sweep.
    """

    metrics: Metrics
    values: tuple[float, float]
    residual: float = float("inf")
    bracket: tuple[float, float] = (0.0, float("inf"))
    sweeps: int = 0  # full transport sweeps (both sides) so far


class Record(NamedTuple):
    """One line of the history of a solve."""

    iteration: int
    residual: float
    lam: float
    mu: float
    sweeps: int
    seconds: float

    @classmethod
    def from_row(cls, row: Sequence[float]) -> Record:
        """The record that was stored as a row of floats."""
        iteration, residual, lam, mu, sweeps, seconds = map(float, row)
        return cls(int(iteration), residual, lam, mu, int(sweeps), seconds)


State = TypeVar("State", bound=Iterate)


class NegativeDistances(ArithmeticError):
    """A map gave distances below zero; the message says how many and how far."""


class Traits(NamedTuple):
    """Properties of a solver that a run depends on; the defaults if it has no ``traits``."""

    freezes: bool = False  # needs maps whose couplings can be frozen
    samples_pairs: bool = False  # a step evaluates some pairs only: its residual is an estimate
    keeps_history: bool = True  # stores metrics of earlier steps
    extrapolates_from: float = 0.0  # residual below which steps are extrapolated


class Solver(Protocol[State]):
    """Frozen hyperparameters; all state is in the iterate."""

    def init(self, phi: Coupled, start: Metrics) -> State:
        """The iterate before the first step."""

    def step(self, phi: Coupled, now: State) -> State:
        """The next iterate."""


def traits_of(solver: Any) -> Traits:
    """The traits of a solver, or the defaults."""
    traits: Traits = getattr(solver, "traits", Traits())
    return traits


class Status(Enum):
    """How a solve ended: an outcome and its reason; ``value`` is the text of both."""

    CONVERGED = "converged", "the residual is below the tolerance"
    MAX_ITER = "not converged", "the iteration limit was reached first"
    INTERRUPTED = "not converged", "interrupted"
    NON_UNIQUE = "not unique", "some groups of distances do not depend on one another"
    BOUNDARY = "on the boundary", "some distances tend to zero, no positive answer was found"
    INNER_NOT_CONVERGED = "not converged", "some Sinkhorn problems did not reach their tolerance"
    LOOSE = INNER_NOT_CONVERGED  # its name in version 0.1
    CHANGING = "stopped", "the trees still change from one iteration to the next"
    NOT_PSD = "not a divergence", "some entropic distances are negative"

    outcome: str
    reason: str

    def __new__(cls, outcome: str, reason: str) -> Status:
        """One of the members above."""
        status = object.__new__(cls)
        status._value_ = f"{outcome}: {reason}"
        status.outcome, status.reason = outcome, reason
        return status

    @property
    def ok(self) -> bool:
        return self is Status.CONVERGED

    @property
    def is_expected(self) -> bool:
        """Whether there is nothing to warn of: converged, or trees that keep changing."""
        return self.ok or self is Status.CHANGING
