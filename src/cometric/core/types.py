"""Types and protocols shared by maps, solvers and the loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
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


class Accuracy(NamedTuple):
    """How far a call of a map solves its Sinkhorn problems.

    Marginal errors are l1 distances between the marginals of a pair's plan and its histograms.
    """

    sweeps: int | None = None  # of each pair; None until its marginal error is at most ``tol``
    tol: float = 1e-10
    margin: float = math.inf  # with ``sweeps``: pairs above this marginal error are swept further
    precision: str = "float64"  # of the sweeps; float64 where a lower one could overflow


Accuracies = tuple[Accuracy, Accuracy]
"""The accuracy of the map to samples, and of the map to features."""


class DistanceMap:
    """Histograms bound to a way of comparing them under a cost between their bins.

    It is homogeneous: phi(s * cost) == s * phi(cost). Maps without Sinkhorn problems ignore the
    accuracy. Subclasses define ``shape`` and ``__call__``, and may override the rest.
    """

    shape: tuple[int, int]
    """Number of histograms, number of bins."""
    accuracy: Accuracy | None = None
    """The accuracy of calls that do not state one; None if there is nothing to choose."""
    error: float = 0.0
    """Largest marginal error of the last call."""
    memory_used: float = 0.0
    """Bytes stored between calls."""
    device: Any = None
    """The torch device on which the map computes, None if it computes on arrays."""
    n_threads: int | None = None
    """Threads of a call in this process; None for all."""
    on_progress: Callable[[int, int], None] | None = None
    """Called with the amount of work done in a call, and the total."""

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        """All distances, symmetric with a zero diagonal."""
        raise NotImplementedError

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        """The distances of the pairs ``index`` (p, 2), by default from all distances."""
        distances: Vector = self(cost, accuracy)[tuple(np.asarray(index).T)]
        return distances

    def report(self, done: int, total: int) -> None:
        """Tell ``on_progress``, if it is set."""
        if self.on_progress is not None:
            self.on_progress(done, total)

    def divide(self, parts: Sequence[Index]) -> None:
        """Store the solutions of these parts of the pairs between calls of :meth:`part`."""

    def part(
        self, number: int, index: Index, cost: Matrix, accuracy: Accuracy | None = None
    ) -> Vector:
        """The distances of one of the parts passed to :meth:`divide`, whose pairs are ``index``."""
        return self.pairs(cost, index, accuracy)

    def sketch(self, cost: Matrix) -> DistanceMap | None:
        """The linear map of nearly optimal plans at ``cost``; None if there is no quick one."""
        return None

    def snapshot(self) -> dict[str, Any]:
        """What earlier calls stored, by name, as arrays and numbers; arrays are not copied."""
        return {}

    def restore(self, memory: dict[str, Any]) -> None:
        """Continue from a snapshot of a map of the same histograms and options."""

    def close(self) -> None:
        """Release what is stored on other machines."""


class PlainMap(DistanceMap):
    """A map that is not a :class:`DistanceMap`, as one: it has ``phi(cost)`` and ``pairs`` only."""

    def __init__(self, phi: Any) -> None:
        self.phi, self.shape = phi, phi.shape

    def __repr__(self) -> str:
        return repr(self.phi)

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        distances: Matrix = self.phi(cost)
        return distances

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        distances: Vector = self.phi.pairs(cost, index)
        self.report(len(index), len(index))
        return distances


@runtime_checkable
class FreezableMap(Protocol):
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
class BoundedMap(Protocol):
    """A map with proved bounds for its distances."""

    def bounds(self, cost: Matrix, index: Index) -> tuple[Vector, Vector]:
        """Lower and upper bounds of the distances of the pairs ``index``."""


BOUNDARY = 1e-13
"""Fraction of the largest distance below which distances of transport alone count as zero."""


@dataclass(frozen=True)
class Coupled:
    """The two lifts: ``to_samples(C)`` is Phi_A(C), ``to_features(D)`` is Phi_B(D).

    Distances below the fraction ``boundary`` of the largest count as zero.
    """

    to_samples: Any  # a DistanceMap, or any function of a cost
    to_features: Any
    boundary: float = BOUNDARY

    def at(self, accuracy: Accuracies) -> Coupled:
        """The lifts, called with this accuracy."""
        to_samples, to_features = self.to_samples.at(accuracy[0]), self.to_features.at(accuracy[1])
        return replace(self, to_samples=to_samples, to_features=to_features)


@dataclass(frozen=True)
class Iterate:
    """The state of a solver after a step.

    ``residual`` is the Hilbert distance between a metric and its own image under one full
    sweep; ``bracket`` is the Collatz-Wielandt interval for lam * mu from that sweep.
    ``accuracy``, set by the loop, is that of the maps in the next step.
    """

    metrics: Metrics
    values: tuple[float, float]
    residual: float = float("inf")
    bracket: tuple[float, float] = (0.0, float("inf"))
    sweeps: int = 0  # full transport sweeps (both sides) so far
    accuracy: Accuracies | None = field(default=None, kw_only=True)


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
