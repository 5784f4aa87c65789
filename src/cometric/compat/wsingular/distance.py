"""The maps of ``wsingular``: ``eps`` and ``tau`` are not relative to the largest cost."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from cometric.compat.wsingular.utils import regularization_matrix, to_matrix
from cometric.core.arguments import check_number
from cometric.core.arrays import symmetric
from cometric.core.cones import negative_pairs
from cometric.core.errors import ConvergenceWarning
from cometric.core.types import Index, Matrix
from cometric.core.warn import warn
from cometric.maps.checking import all_pairs, check_cost, check_histograms
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.exact_map import ExactMap


def wasserstein_map(
    A: Any, C: Any, dtype: Any, device: Any, R: Any = None, tau: float = 0,
    progress_bar: bool = False,
) -> torch.Tensor:  # fmt: skip
    """All Wasserstein distances between the rows of ``A`` under the cost ``C``, plus tau R.

    ``R`` is by default the l1 distances between the rows; ``progress_bar`` has no effect.
    """
    return sinkhorn_map(A, C, 0.0, dtype, device, R, tau)


def sinkhorn_map(
    A: Any, C: Any, eps: float, dtype: Any, device: Any, R: Any = None, tau: float = 0,
    progress_bar: bool = False, stop_threshold: float = 1e-5, num_iter_max: int = 500,
) -> torch.Tensor:  # fmt: skip
    """The same with Sinkhorn divergences.

    Warns if a pair has a marginal error above ``stop_threshold`` after ``num_iter_max`` iterations.
    """
    check_number("tau", tau)
    lift = Lift(A, eps, stop_threshold, num_iter_max)
    norms = regularization_matrix(A, 1, torch.float64, "cpu") if R is None else R
    D = lift(to_matrix(C, "C")) + tau * to_matrix(norms, "R", len(A))
    lift.warn_if_not_converged()
    return torch.as_tensor(D).to(device, dtype)


class Lift:
    """Histograms bound to exact transport (``eps`` = 0) or to Sinkhorn divergences.

    ``error`` is the largest marginal error of the last call; the next call starts from its
    scalings.
    """

    def __init__(self, hist: Any, eps: float, tol: float = 1e-7, max_sweeps: int = 10_000) -> None:
        check_number("eps", eps)
        self._hist = check_histograms(to_matrix(hist, "A"))
        self.eps, self.error, self._phi = float(eps), 0.0, cast(Any, None)
        self._relative = 0.0  # eps of `_phi`, relative to the largest cost
        self.options: Any = {"tol": tol, "max_sweeps": max_sweeps}

    def __call__(self, cost: Matrix, chosen: Index | None = None) -> Matrix:
        """The distances between all histograms, or those ``chosen``."""
        n, bins = self._hist.shape
        size = n if chosen is None else len(chosen)
        if cost.shape == (bins, bins):
            near = 0.5 * (cost + cost.T) * (1.0 - np.eye(bins))
            if np.abs(cost - near).max() <= 1e-6 * cost.max():  # rounded to float32
                cost = near
        cost = check_cost(cost, bins)
        if not cost.any():
            return np.zeros((size, size))
        eps = self.eps / float(cost.max())
        if self._phi is None or self._relative != eps:
            self._relative = eps
            hist, options = self._hist, self.options
            self._phi = EntropicMap(hist, eps, **options) if eps else ExactMap(hist)
        if chosen is None:
            D: Matrix = self._phi(cost)
        else:
            D = symmetric(self._phi.pairs(cost, chosen[all_pairs(size)]), size)
        self.error = self._phi.error if eps else 0.0
        if D.min() < -max(1e-9, 10 * self.error) * D.max():
            found = f"`eps` is {self.eps:g}, and {negative_pairs(D)}"
            raise ValueError(f"{found}: the entropic kernel is not positive. Pass a smaller `eps`.")
        return np.maximum(D, 0.0)

    def warn_if_not_converged(self) -> None:
        """Warn if Sinkhorn stopped at a marginal error above the tolerance."""
        if self.error > self.options["tol"]:
            found = f"marginal error of {self.error:.1e}, above {self.options['tol']:.1e}"
            more = "Pass a larger `eps`, or a larger `num_iter_max`."
            warn(f"some Sinkhorn problems stopped at a {found}. {more}", ConvergenceWarning)
