"""Base class of the Sinkhorn maps of all backends: accuracy, stages of a call, snapshots."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from cometric.core.arguments import shown
from cometric.core.arrays import is_tensor, namespace
from cometric.core.types import Accuracy, DistanceMap
from cometric.maps.checking import fill

SAFE = {np.dtype(np.float64): 150.0, np.dtype(np.float32): 25.0}
"""Largest logarithm of scalings (about 1 / eps) that cannot overflow. Above the limit of float32,
sweeps are in float64; above that of float64, in the log domain."""

MORE_SWEEPS = 20
"""Extra sweeps for the pairs whose marginal error exceeds the margin."""

SELF_TOL = 1e-13
"""Marginal error to which self terms are solved."""

INNER = 3e-3
"""Marginal errors up to this times the root of the tolerance do not affect the result."""

SMALL = 0.03
"""If the largest distance is below this fraction of the largest cost, pairs are solved more
accurately."""

REACHABLE = 1e-14
"""Smallest tolerance of marginal errors that is used: rounding may prevent smaller errors."""

LARGEST_EPS, LARGEST_RHO = 1e8, 1e18
"""Debiasing subtracts numbers that grow with ``eps``: at 1e8 distances are within about 3e-6 of the
limit, relative to the largest, and at 1e14 only rounding errors are left. With a large ``rho``
distances are those of balanced transport, but at 1e100 they, too, are only rounding errors."""

SelfTerms = tuple[Any, Any]
"""Transport costs over eps of every histogram to itself, and their marginal errors."""


class SinkhornMap(DistanceMap, ABC):
    """Accuracy and stages of a map of Sinkhorn divergences; see :class:`EntropicMap`.

    A backend adds kernels and memory layout. It divides the pairs of a call into tasks, objects
    with ``values`` (dual values over eps) and ``errors`` (marginal errors), each swept as a whole.
    """

    accuracy: Accuracy
    precision: str = ""  # of the last call; memory is laid out for it
    dtype: Any  # of the sweeps
    stored: Any  # dtype of the scalings stored between calls; None if they do not fit
    _self_scalings: Any
    _rounding: ClassVar[dict[str, float]]  # by precision, the marginal error due to rounding

    def __init__(
        self,
        rows: sparse.csr_array,
        eps: float,
        rho: float | None,
        accuracy: Accuracy,
        max_sweeps: int,
    ) -> None:
        self.eps = check_eps(eps)
        self.rho = None if rho is None else check_rho(rho)
        self.ratio = np.inf if self.rho is None else self.rho / self.eps  # of the kernels
        self.damping = 1.0 if self.rho is None else self.rho / (self.rho + self.eps)
        self._largest_log = _largest_log(rows, self.eps, self.rho)
        self.shape = rows.shape
        self.accuracy, self.max_sweeps = self.safe(accuracy), max_sweeps
        self.error = np.inf

    def safe(self, accuracy: Accuracy) -> Accuracy:
        """The accuracy, in float64 if eps is so small that scalings could overflow."""
        if accuracy.precision not in self._rounding:
            *others, last = self._rounding
            raise ValueError(
                f"`dtype` is {accuracy.precision}; choose {', '.join(others)} or {last}."
            )
        if self._largest_log > SAFE[np.dtype(np.float32)]:
            return accuracy._replace(precision="float64")
        return accuracy

    def _begin(self, accuracy: Accuracy | None) -> Accuracy:
        """The accuracy of a call, by default that of the map; converts memory to its precision."""
        chosen = self.safe(self.accuracy if accuracy is None else accuracy)
        if chosen.precision != self.precision:
            self.precision = chosen.precision
            self._apply_precision()
        return chosen

    def _tolerance(self, accuracy: Accuracy) -> float:
        """The marginal error at which a pair is solved."""
        return max(accuracy.tol, self._rounding[self.precision])

    @property
    def _parameters(self) -> str:
        """The parameters as text."""
        eps = f"eps = {self.eps:g}"
        return eps if self.rho is None else f"{eps}, rho = {self.rho:g}"

    def snapshot(self) -> dict[str, Any]:
        return {"self": self._self_scalings, "error": self.error}

    def restore(self, memory: dict[str, Any]) -> None:
        fill(self._self_scalings, memory["self"], "scalings of histograms to themselves")
        self.error = float(memory["error"])

    # ---------------------------------------------------------------------------- stages

    def _solve(
        self,
        cost: Any,
        batches: Iterable[list[Any]],
        accuracy: Accuracy,
        own: SelfTerms | None = None,
    ) -> tuple[float, Any]:
        """Sweep all tasks under ``cost``, set ``error``, return absolute eps and self terms.

        ``own`` are the self terms if known. Batches are requested one by one, so that only one is
        in memory at a time; none is requested if all costs are zero.
        """
        unit = self.eps * float(cost.max())
        if unit == 0.0:
            self.error = 0.0
            return unit, None
        exact = self._kernel(cost, unit)
        is_torch = is_tensor(exact)
        kernel = exact.to(self.dtype) if is_torch else exact.astype(self.dtype, copy=False)
        if own is None and not self._is_warm:  # sweeps start from the scalings of self terms
            own = self._self_terms(exact, accuracy.sweeps)
        if own is not None:
            del exact
        largest = []
        for tasks in batches:
            self._sweep_once(tasks, kernel, accuracy)
            if own is None:  # launched while a device sweeps
                own = self._self_terms(exact, accuracy.sweeps)
                del exact
            self._sweep_again(tasks, kernel, own[0], accuracy)
            largest += [task.errors.max() for task in tasks]
        if own is None:  # there are no pairs
            own = self._self_terms(exact, accuracy.sweeps)
        levels, errors = own
        self.error = float(namespace(errors).stack([errors.max(), *largest]).max())
        return unit, levels

    def _sweep_once(self, tasks: list[Any], kernel: Any, accuracy: Accuracy) -> None:
        """Apply the fixed number of sweeps to all pairs; does nothing if pairs are solved fully."""
        if accuracy.sweeps is not None:
            self._sweep(tasks, kernel, accuracy.sweeps, 0.0, solve=False)

    def _sweep_again(self, tasks: list[Any], kernel: Any, levels: Any, accuracy: Accuracy) -> None:
        """Sweep as set by ``tol`` and ``margin``; then sweep negative divergences again.

        Sweeps only raise dual values, so negative divergences may be due to too few sweeps.
        """
        tolerance = self._tolerance(accuracy)
        if accuracy.sweeps is None:
            self._sweep(tasks, kernel, self.max_sweeps, tolerance, solve=True)
        elif accuracy.margin < np.inf:
            self._resume(tasks, kernel, MORE_SWEEPS, max(accuracy.margin, tolerance))
        self._repair(tasks, accuracy.tol)
        for limit, tol in self._negative_rounds(accuracy):
            selected = select(tasks, [self._is_negative(task, levels) for task in tasks])
            for task, mask in selected:
                self._sweep_negative(task, mask, kernel, limit, tol)
            tasks = [task for task, _ in selected]

    @property
    def _is_warm(self) -> bool:
        """Whether sweeps may precede self terms."""
        return False

    def _choose_storage(self, kinds: Iterable[Any], count: int, limit: float) -> None:
        """Store ``count`` scalings in the first dtype in which they fit, or not at all."""
        self.stored = next((kind for kind in kinds if kind.itemsize * count <= limit), None)
        self.memory_used = 0 if self.stored is None else self.stored.itemsize * count

    # --------------------------------------------------------------------------- backend

    @abstractmethod
    def _apply_precision(self) -> None:
        """Set ``dtype``, and convert what depends on it."""

    @abstractmethod
    def _kernel(self, cost: Any, unit: float) -> Any:
        """exp(-cost / unit) in float64, or cost / unit in the log domain."""

    @abstractmethod
    def _self_terms(self, kernel: Any, sweeps: int | None) -> SelfTerms:
        """Self terms, to ``SELF_TOL`` or after a few steps; updates their scalings."""

    @abstractmethod
    def _sweep(self, tasks: list[Any], kernel: Any, limit: int, tol: float, solve: bool) -> None:
        """Sweep at most ``limit`` times, until errors are at most ``tol`` if ``solve``."""

    @abstractmethod
    def _resume(self, tasks: list[Any], kernel: Any, limit: int, tol: float) -> None:
        """Continue sweeping only the pairs whose errors exceed ``tol``."""

    def _repair(self, tasks: list[Any], tol: float) -> None:
        """Solve pairs whose scalings overflowed by another method, if the backend has one."""

    @abstractmethod
    def _negative_rounds(self, accuracy: Accuracy) -> Sequence[tuple[int, float]]:
        """Limit and tolerance of each round of sweeps for negative divergences."""

    @abstractmethod
    def _is_negative(self, task: Any, levels: Any) -> Any:
        """A mask of the pairs whose values are below the mean of their self terms."""

    @abstractmethod
    def _sweep_negative(self, task: Any, mask: Any, kernel: Any, limit: int, tol: float) -> None:
        """Sweep the pairs of a mask, regardless of their errors."""


def inner_tolerance(tol: float, largest: float = 1.0, share: float = 1.0) -> float:
    """The marginal error to which pairs are solved, for a tolerance of the metrics.

    The value of a pair is accurate to second order in the marginal errors of its bins, relative to
    their masses. If the ``largest`` distance is a small fraction of the largest cost, then little
    mass moves, and errors must be smaller by the same factor. This factor is rounded to a power of
    two, so that the tolerance seldom changes in a run. ``share`` multiplies the tolerance.
    """
    steps = math.floor(math.log2(largest / SMALL)) if 0.0 < largest < SMALL else 0
    return max(REACHABLE, share * INNER * math.sqrt(tol) * 2.0**steps)


def _largest_log(rows: sparse.csr_array, eps: float, rho: float | None) -> float:
    """An estimate of the largest logarithm of a scaling; unequal masses increase it."""
    if rho is None:
        return 1.0 / eps
    masses = rows.sum(axis=1)
    return float(1.0 + 0.5 * rho * np.log(masses.max() / masses.min())) / eps


def select(tasks: list[Any], masks: list[Any]) -> list[tuple[Any, Any]]:
    """Tasks with a nonempty mask, and their masks, in one device synchronization."""
    if not tasks:
        return []
    counts = namespace(masks[0]).stack([mask.sum() for mask in masks]).tolist()
    counted = zip(tasks, masks, counts, strict=True)
    return [(task, mask) for task, mask, count in counted if count]


def check_eps(eps: Any) -> float:
    """The entropic regularization as a float; raises unless positive, finite and not huge."""
    if not is_positive(eps):
        raise ValueError(
            f"`eps` is {shown(eps)}; it must be positive and finite. "
            "Use ExactMap or Exact() for 0, LimitMap or Limit() for infinity."
        )
    if eps > LARGEST_EPS:
        raise ValueError(
            f"`eps` is {float(eps):g}; above {LARGEST_EPS:g} rounding errors spoil the distances. "
            "Use LimitMap or Limit(), for infinity."
        )
    return float(eps)


def check_rho(rho: Any) -> float:
    """The strength of the marginals as a float; raises unless positive, finite and not huge."""
    if not is_positive(rho):
        raise ValueError(
            f"`rho` is {shown(rho)}; it must be positive and finite. Use EntropicMap without "
            "`rho`, or Entropic(eps), for transport that keeps all mass."
        )
    if rho > LARGEST_RHO:
        raise ValueError(
            f"`rho` is {float(rho):g}; above {LARGEST_RHO:g} rounding errors spoil the distances. "
            "Use EntropicMap without `rho`, or Entropic(eps), for transport that keeps all mass."
        )
    return float(rho)


def is_positive(value: Any) -> bool:
    """Whether this is a positive number, finite as a float, and not a boolean."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        return False
    try:
        return 0.0 < float(value) < np.inf
    except OverflowError:
        return False
