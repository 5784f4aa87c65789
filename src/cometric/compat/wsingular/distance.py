"""The maps of ``wsingular``: from a cost between bins to distances between histograms.

They are those of :mod:`cometric.maps`, except that ``eps`` and ``tau`` are not relative to the
largest cost. The package docstring lists the differences from the original.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from cometric.compat.wsingular.utils import check_number, regularization_matrix, to_matrix
from cometric.core.arrays import symmetric
from cometric.core.errors import ConvergenceWarning
from cometric.core.types import Index, Matrix
from cometric.core.warn import warn
from cometric.machine.progress import bar_of_pairs
from cometric.maps.checks import all_pairs, check_histograms
from cometric.maps.entropic import EntropicMap
from cometric.maps.entropic_torch import TensorEntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.sinkhorn import SAFE

ROUNDING = 1e-6
"""Sums this close to 1, and costs this close to symmetric, differ by float32 rounding only."""

Drawn = tuple[torch.Tensor, Index, Index]
OnProgress = Callable[[int, int], None]  # called with the pairs done and their number


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
    lift = Lift(A)
    with bar_of_pairs(progress_bar, pair_count(len(A))) as on_progress:
        D = lift(_cost(C), on_progress) + _regularizer(A, R, tau)
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

    Sinkhorn stops when the marginal error of a pair is at most ``stop_threshold``, or after
    ``num_iter_max`` iterations; then there is a warning.
    """
    lift = Lift(A, eps, stop_threshold, num_iter_max, device)
    with bar_of_pairs(progress_bar, pair_count(len(A))) as on_progress:
        D = lift(_cost(C), on_progress) + _regularizer(A, R, tau)
    warn_if_not_converged(lift.error, stop_threshold)
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

    The items are a random share ``sqrt(sample_prop)`` of all. With ``return_indices`` also
    returns their grid (xx, yy).
    """
    drawn = _renew(Lift(A), A, D, C, sample_prop, gamma, R, tau, progress_bar)
    return _with_indices(drawn, return_indices, dtype, device)


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
    """The same with Sinkhorn divergences; ``batch_size`` is ignored."""
    dtype, device = getattr(D, "dtype", torch.float64), getattr(D, "device", "cpu")
    lift = Lift(A, eps, stop_threshold, num_iter_max, device)
    drawn = _renew(lift, A, D, C, sample_prop, gamma, R, tau, progress_bar)
    warn_if_not_converged(lift.error, stop_threshold)
    return _with_indices(drawn, return_indices, dtype, device)


class Lift:
    """Histograms bound to exact transport (``eps`` = 0) or to Sinkhorn divergences.

    ``error`` is the largest marginal error of the last call. Scalings and trees are reused from
    one call to the next.
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

    def __call__(self, cost: Matrix, on_progress: OnProgress | None = None) -> Matrix:
        phi = self._bind(cost)
        if phi is None:
            return np.zeros((self._hist.shape[0],) * 2)
        with _reporting(phi, on_progress):
            distances = phi(cost)
        return self._checked(distances, phi)

    def among(self, cost: Matrix, chosen: Index, on_progress: OnProgress | None = None) -> Matrix:
        """The distances between the histograms ``chosen``."""
        phi = self._bind(cost)
        if phi is None:
            return np.zeros((len(chosen),) * 2)
        index = chosen[all_pairs(len(chosen))]
        with _reporting(phi, on_progress):
            distances = symmetric(phi.pairs(cost, index), len(chosen))
        return self._checked(distances, phi)

    def _bind(self, cost: Matrix) -> ExactMap | EntropicMap | TensorEntropicMap | None:
        """The map for this cost, with eps relative to it; None if the cost is 0."""
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
        if not np.isfinite(self.error):  # unknown for pairs on a device
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
    """Items whose distances to renew, drawn as the original draws them."""
    size = draw_size(n, sample_prop)
    chosen: Index = np.random.choice(n, size=size, replace=False)  # noqa: NPY002, the same seeds
    return chosen


def draw_size(n: int, sample_prop: float) -> int:
    """How many items to draw so that their pairs are this share of all pairs."""
    check_number("sample_prop", sample_prop, 0 < sample_prop <= 1, "a number in (0, 1]")
    return max(2, int(np.sqrt(sample_prop) * n))


def pair_count(n: int) -> int:
    """The number of pairs of n items."""
    return n * (n - 1) // 2


def warn_if_not_converged(error: float, tol: float) -> None:
    """Warn if Sinkhorn stopped at a marginal error above the tolerance."""
    if error > tol:
        warn(
            f"some Sinkhorn problems stopped at a marginal error of {error:.1e}, above {tol:.1e}. "
            "Pass a larger `eps`, or to the maps a larger `num_iter_max`.",
            ConvergenceWarning,
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
) -> tuple[Matrix, Index, Index]:
    """``D`` with the distances among random items renewed, and the grid of these items."""
    check_number("gamma", gamma, gamma > 0, "a number > 0")
    renewed = to_matrix(D, "D").numpy().copy()
    _check_pairs("D", renewed, len(A))
    chosen = draw(len(renewed), sample_prop)
    xx, yy = np.meshgrid(chosen, chosen)
    grid = np.ix_(chosen, chosen)
    with bar_of_pairs(progress_bar, pair_count(len(chosen))) as on_progress:
        image = lift.among(_cost(C), chosen, on_progress)
    if tau > 0:
        image += _regularizer(A, R, tau)[grid]
    renewed[grid] = image / gamma
    return renewed, xx, yy


def _with_indices(
    drawn: tuple[Matrix, Index, Index], return_indices: bool, dtype: torch.dtype, device: Any
) -> torch.Tensor | Drawn:
    renewed, xx, yy = drawn
    distances = torch.as_tensor(renewed).to(dtype=dtype, device=device)
    return (distances, xx, yy) if return_indices else distances


def _cost(C: Any) -> Matrix:
    """The cost as float64, made exactly symmetric with a zero diagonal."""
    cost: Matrix = to_matrix(C, "C").numpy()
    if cost.shape[0] != cost.shape[1]:
        raise ValueError(f"`C` has shape {cost.shape}; a cost is a square matrix.")
    size = cost.max(initial=0.0)
    if np.abs(cost - cost.T).max(initial=0.0) > ROUNDING * size:
        raise ValueError("`C` is not symmetric; symmetrize it, for example as (C + C.T) / 2.")
    if np.abs(np.diagonal(cost)).max(initial=0.0) > ROUNDING * size:
        raise ValueError("`C` has a non-zero diagonal; a bin is at distance 0 from itself.")
    cost = 0.5 * (cost + cost.T)
    np.fill_diagonal(cost, 0.0)
    return cost


def _regularizer(A: Any, R: Any, tau: float) -> Matrix:
    """The matrix tau R, with R by default the l1 distances between the rows of A."""
    check_number("tau", tau, 0 <= tau < math.inf, "a number >= 0")
    n = len(A)
    if tau == 0:
        return np.zeros((n, n))
    norms = regularization_matrix(A, 1, torch.float64, "cpu") if R is None else to_matrix(R, "R")
    _check_pairs("R", norms, n)
    term: Matrix = tau * norms.numpy()
    return term


def _check_pairs(name: str, matrix: Any, n: int) -> None:
    """Raise unless the matrix has an entry for each pair of the n rows of A."""
    if tuple(matrix.shape) != (n, n):
        raise ValueError(
            f"`{name}` has shape {tuple(matrix.shape)}; `A` has {n} rows: pass {n} x {n}."
        )


@contextmanager
def _reporting(phi: Any, on_progress: OnProgress | None) -> Iterator[None]:
    """Report the progress of a map while inside."""
    phi.on_progress = on_progress
    try:
        yield
    finally:
        phi.on_progress = None
