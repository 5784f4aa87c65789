"""The maps of ``wsingular``: from a cost between bins to distances between histograms.

They are those of :mod:`cometric.maps` but for one thing: ``eps`` and ``tau`` are not relative to
the largest cost. What is done otherwise than in the original is said in the package above.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from cometric.compat.wsingular.utils import check_number, regularization_matrix, to_matrix
from cometric.core.arrays import symmetric
from cometric.core.types import Index, Matrix
from cometric.machine.progress import bar_of_pairs
from cometric.maps.checks import all_pairs, check_histograms
from cometric.maps.entropic import EntropicMap
from cometric.maps.entropic_torch import TensorEntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.sinkhorn import SAFE
from cometric.running.run import ConvergenceWarning

ROUNDING = 1e-6
"""Deviations of sums from 1, of costs from symmetry, up to this are float32 at work."""

Drawn = tuple[torch.Tensor, Matrix, Matrix]


def wasserstein_map(
    A: Any,
    C: Any,
    dtype: torch.dtype,
    device: Any,
    R: Any = None,
    tau: float = 0,
    progress_bar: bool = False,
) -> torch.Tensor:
    """All Wasserstein distances between the rows of ``A`` under the cost ``C``, plus tau R."""
    D = Lift(A)(_cost(C), progress_bar) + _regularizer(A, R, tau)
    return torch.as_tensor(D).to(dtype=dtype, device=device)


def sinkhorn_map(
    A: Any,
    C: Any,
    eps: float,
    dtype: torch.dtype,
    device: Any,
    R: Any = None,
    tau: float = 0,
    progress_bar: bool = False,
    stop_threshold: float = 1e-5,
    num_iter_max: int = 500,
) -> torch.Tensor:
    """All Sinkhorn divergences between the rows of ``A`` under the cost ``C``, plus tau R.

    Each pair is swept until its marginal error is at most ``stop_threshold``, ``num_iter_max``
    times at most; a warning tells if that was not enough.
    """
    lift = Lift(A, eps, stop_threshold, num_iter_max, device)
    D = lift(_cost(C), progress_bar) + _regularizer(A, R, tau)
    if lift.error > stop_threshold:
        warn_of_loose(lift.error, stop_threshold)
    return torch.as_tensor(D).to(dtype=dtype, device=device)


def stochastic_wasserstein_map(
    A: Any,
    D: Any,
    C: Any,
    sample_prop: float,
    gamma: float,
    dtype: torch.dtype,
    device: Any,
    R: Any = None,
    tau: float = 0,
    progress_bar: bool = False,
    return_indices: bool = False,
) -> torch.Tensor | Drawn:
    """``D`` with the distances among some items replaced by (W + tau R) / gamma.

    The items are a share ``sqrt(sample_prop)`` of all. With ``return_indices`` their grid (xx, yy)
    comes along.
    """
    form = {"dtype": dtype, "device": device}
    return _renew(Lift(A), A, D, C, sample_prop, gamma, R, tau, progress_bar, return_indices, form)


def stochastic_sinkhorn_map(
    A: Any,
    D: Any,
    C: Any,
    sample_prop: float,
    gamma: float,
    eps: float,
    R: Any = None,
    tau: float = 0,
    progress_bar: bool = False,
    return_indices: bool = False,
    batch_size: int = 50,
    stop_threshold: float = 1e-5,
    num_iter_max: int = 100,
) -> torch.Tensor | Drawn:
    """The same with Sinkhorn divergences; ``batch_size`` is accepted and of no consequence."""
    form = {"dtype": getattr(D, "dtype", torch.float64), "device": getattr(D, "device", "cpu")}
    lift = Lift(A, eps, stop_threshold, num_iter_max, form["device"])
    renewed = _renew(lift, A, D, C, sample_prop, gamma, R, tau, progress_bar, return_indices, form)
    if lift.error > stop_threshold:
        warn_of_loose(lift.error, stop_threshold)
    return renewed


class Lift:
    """Histograms bound to exact transport (``eps`` = 0) or to Sinkhorn divergences.

    ``error`` is the largest marginal error of the last call. Between calls scalings and trees
    are kept.
    """

    def __init__(
        self,
        hist: Any,
        eps: float = 0.0,
        tol: float = 1e-7,
        max_sweeps: int = 10_000,
        device: Any = "cpu",
        name: str = "A",
    ) -> None:
        check_number("eps", eps, 0 <= eps < math.inf, "a number >= 0")
        rows = to_matrix(hist, name).numpy()
        wrong = np.flatnonzero(np.abs(rows.sum(axis=1) - 1.0) > ROUNDING)
        if len(wrong):
            raise ValueError(
                f"`{name}` has {len(wrong)} rows whose sum is not 1 (first: {wrong[0]}, sum "
                f"{rows[wrong[0]].sum():.6g}). Divide each row by its sum."
            )
        self._hist = check_histograms(rows)
        self.eps, self.tol, self.error = eps, tol, 0.0
        self._max_sweeps, self._device = max_sweeps, torch.device(device)
        self._phi: ExactMap | EntropicMap | TensorEntropicMap | None = None

    def __call__(self, cost: Matrix, progress_bar: bool = False) -> Matrix:
        phi = self._bind(cost)
        if phi is None:
            return np.zeros((self._hist.shape[0],) * 2)
        with _bar(phi, self._hist.shape[0], progress_bar):
            distances = phi(cost)
        return self._checked(distances, phi)

    def among(self, cost: Matrix, chosen: Index, progress_bar: bool = False) -> Matrix:
        """The distances between the histograms ``chosen``."""
        phi = self._bind(cost)
        if phi is None:
            return np.zeros((len(chosen),) * 2)
        index = chosen[all_pairs(len(chosen))]
        with _bar(phi, len(chosen), progress_bar):
            distances = symmetric(phi.pairs(cost, index), len(chosen))
        return self._checked(distances, phi)

    def _bind(self, cost: Matrix) -> ExactMap | EntropicMap | TensorEntropicMap | None:
        """The map for this cost; None if the cost is 0. Ours wants eps relative to it."""
        bins = self._hist.shape[1]
        if cost.shape != (bins, bins):
            raise ValueError(
                f"`C` has shape {cost.shape}, but `A` has {bins} columns: pass their costs, "
                f"{bins} x {bins}."
            )
        if self.eps == 0.0:
            self._phi = self._phi or ExactMap(self._hist)
            return self._phi
        if cost.max() == 0.0:
            return None
        relative = self.eps / float(cost.max())
        if isinstance(self._phi, EntropicMap | TensorEntropicMap) and self._phi.eps == relative:
            return self._phi
        options: dict[str, Any] = {"tol": self.tol, "max_sweeps": self._max_sweeps}
        on_device = self._device.type != "cpu" and 1.0 / relative <= SAFE[np.dtype(np.float64)]
        if on_device:
            self._phi = TensorEntropicMap(self._hist, relative, device=self._device, **options)
        else:
            self._phi = EntropicMap(self._hist, relative, **options)
        return self._phi

    def _checked(self, distances: Matrix, phi: Any) -> Matrix:
        self.error = getattr(phi, "error", 0.0) if self.eps > 0.0 else 0.0
        if not np.isfinite(self.error):  # pairs on a device do not tell
            self.error = 0.0
        lowest = float(distances.min())
        if lowest < -max(1e-9, 10 * self.error) * distances.max():
            raise ValueError(
                f"`eps` is {self.eps:g}, and {int((distances < 0).sum()) // 2} Sinkhorn "
                f"divergences are negative (lowest {lowest:.3g}): the entropic kernel is not "
                "positive. Pass a smaller `eps`."
            )
        positive: Matrix = np.maximum(distances, 0.0)
        return positive


def draw(n: int, sample_prop: float) -> Index:
    """Items to renew, drawn as the original draws them."""
    check_number("sample_prop", sample_prop, 0 < sample_prop <= 1, "a number in (0, 1]")
    size = max(2, int(np.sqrt(sample_prop) * n))
    chosen: Index = np.random.choice(n, size=size, replace=False)  # noqa: NPY002, seeds as there
    return chosen


def warn_of_loose(error: float, tol: float, stacklevel: int = 3) -> None:
    """Tell that Sinkhorn stopped early."""
    warnings.warn(
        f"some Sinkhorn problems stopped at a marginal error of {error:.1e}, above {tol:.1e}. "
        "Pass a larger `eps`, or to the maps a larger `num_iter_max`.",
        ConvergenceWarning,
        stacklevel=stacklevel,
    )


def _renew(
    lift: Lift,
    A: Any,
    D: Any,
    C: Any,
    sample_prop: float,
    gamma: float,
    R: Any,
    tau: float,
    progress_bar: bool,
    return_indices: bool,
    form: dict[str, Any],
) -> torch.Tensor | Drawn:
    check_number("gamma", gamma, gamma > 0, "a number > 0")
    renewed = to_matrix(D, "D").numpy().copy()
    chosen = draw(len(renewed), sample_prop)
    xx, yy = np.meshgrid(chosen, chosen)
    grid = np.ix_(chosen, chosen)
    image = lift.among(_cost(C), chosen, progress_bar)
    if tau > 0:
        image += _regularizer(A, R, tau)[grid]
    renewed[grid] = image / gamma
    found = torch.as_tensor(renewed).to(**form)
    return (found, xx, yy) if return_indices else found


def _cost(C: Any) -> Matrix:
    """The cost, float32 rounding of its symmetry and its diagonal repaired."""
    cost: Matrix = to_matrix(C, "C").numpy()
    if cost.shape[0] != cost.shape[1]:
        raise ValueError(f"`C` has shape {cost.shape}; a cost is a square matrix.")
    size = cost.max(initial=0.0)
    if np.abs(cost - cost.T).max(initial=0.0) > ROUNDING * size:
        raise ValueError("`C` is not symmetric; pass (C + C.T) / 2 if that is meant.")
    if np.abs(np.diagonal(cost)).max(initial=0.0) > ROUNDING * size:
        raise ValueError("`C` has a non-zero diagonal; a bin is at distance 0 from itself.")
    cost = 0.5 * (cost + cost.T)
    np.fill_diagonal(cost, 0.0)
    return cost


def _regularizer(A: Any, R: Any, tau: float) -> Matrix:
    """Tau R; R has p = 1 unless given."""
    check_number("tau", tau, 0 <= tau < math.inf, "a number >= 0")
    n = len(A)
    if tau == 0:
        return np.zeros((n, n))
    given = regularization_matrix(A, 1, torch.float64, "cpu") if R is None else to_matrix(R, "R")
    if tuple(given.shape) != (n, n):
        raise ValueError(f"`R` has shape {tuple(given.shape)}; there are {n} rows in `A`.")
    term: Matrix = tau * given.numpy()
    return term


@contextmanager
def _bar(phi: Any, n: int, show: bool) -> Iterator[None]:
    """A bar that counts the pairs of a call, gone when it is done."""
    with bar_of_pairs(show, n * (n - 1) // 2) as tell:
        phi.on_progress = tell if show else None
        try:
            yield
        finally:
            phi.on_progress = None
