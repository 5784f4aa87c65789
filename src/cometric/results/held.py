"""What distances of new items need of a result: computed once, by the first call, and kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from cometric.core.arguments import other_side
from cometric.core.arrays import to_numpy
from cometric.core.types import Matrix
from cometric.maps.norms import PairNorms, name_for
from cometric.transports.base import Resources

if TYPE_CHECKING:
    from cometric.results.result import Result


class Kept:
    """Values that are computed once: other threads that need one meanwhile wait for it.

    A forked child has a lock of its own: a thread that holds it exists in the parent only.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock, self._process = Lock(), os.getpid()

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """The value of this name, by ``compute`` if it is the first call."""
        if self._process != os.getpid():
            self._lock, self._process = Lock(), os.getpid()
        with self._lock:
            if name not in self._values:
                self._values[name] = compute()
            return self._values[name]


def held_of(result: Result, of: str, n_threads: int | None = None) -> Held:
    """What new items of a side need, from memory after the first call."""
    check_norm(result, of)
    held: Held = result.kept.once(of, lambda: Held(result, of, n_threads))
    return held


class Held:
    """The learned items of one side as new ones are compared with them, under the learned cost.

    Stored are the cost, the vectors of these items in the views of a reference, their scales, and
    what the transport computes of each of them: nothing for all pairs of items.
    """

    def __init__(self, result: Result, of: str, n_threads: int | None) -> None:
        options, formula = result.parameters, result.problem.formula
        self.known = getattr(result.problem, of)
        self.cost, value = held_cost(result, of)
        self.transport = options.transport
        self.norm = name_for(options.norm, of)
        self.scale = formula.transport_weight / value
        self.norms: PairNorms | None = None
        self.weight = 0.0
        if formula.has_norm:
            self.norms = PairNorms(self.norm, self.known.full_histograms, of)
            self.weight = norm_weight(result, of, value, self.norms.release_matrix()) / value
        self.largest = float(np.max(to_numpy(getattr(result, of))))
        # The tolerance of the solve: a lower one would take longer than learning did.
        relative = value * self.largest / float(self.cost.max())
        self._kept = Kept()
        self.resources = Resources(n_threads, memory_limit=0.0, tol=options.tol, largest=relative)

    @property
    def of_transport(self) -> Any:
        """What the transport needs of the learned items."""
        hist, cost = self.known.histograms, self.cost
        return self._kept.once("transport", lambda: self.transport.hold(hist, cost, self.resources))


def held_cost(result: Result, of: str) -> tuple[Matrix, float]:
    """The learned, saturated cost between distinct bins, and mu (lam for features)."""
    lam, mu = result.values
    bins, cost, value = result.problem.features, result.features, mu
    if of == "features":
        bins, cost, value = result.problem.samples, result.samples, lam
    reduced = np.asarray(bins.reduce(to_numpy(cost)), np.float64)
    return result.problem.formula.saturated(reduced), value


def norm_weight(result: Result, of: str, value: float, R: Matrix) -> float:
    """The factor of the norm R between the learned items, before the division by lam or mu."""
    formula, known = result.problem.formula, getattr(result.problem, of)
    largest_cost = float(np.max(to_numpy(getattr(result, other_side(of)))))
    if formula.restart == 0.0:
        return formula.norm_weight(largest_cost, 0.0, 1.0)
    metric = known.reduce(to_numpy(getattr(result, of)))
    largest = formula.largest_transport(metric, value, R)
    return formula.norm_weight(largest_cost, largest, float(R.max()))


def check_norm(result: Result, of: str) -> None:
    """Raise if new items have no distances: their metric was given, or the norm is a matrix."""
    if result.problem.fixed == of:
        raise ValueError(
            f"The distances between {of} were given, not learned, so new {of} have none."
        )
    if result.problem.formula.has_norm and name_for(result.parameters.norm, of) == "matrix":
        raise ValueError(
            f"`norm` was a matrix for {of}, which has no entries for new ones. "
            "Learn with a norm that has a name, or with tau = 0."
        )
