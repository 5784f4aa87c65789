"""Any distance map plus a share of a norm R: the term that keeps all distances positive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.types import DistanceMap, Index, Matrix, Vector, divide, freezable
from cometric.kernels import geometry
from cometric.kernels.transport import QUANTUM
from cometric.maps.masses import quantize


class Regularized:
    """``phi(cost) + tau * max(cost) * R``, monotone and homogeneous where ``phi`` is.

    Parameters
    ----------
    phi
        The map to regularize.
    tau
        Weight of R, positive.
    R
        Symmetric matrix with zero diagonal, positive between different histograms.
    """

    def __init__(self, phi: DistanceMap, tau: float, R: Matrix) -> None:
        self.phi, self.tau, self.R = phi, tau, R
        self.homogeneous, self.monotone = phi.homogeneous, phi.monotone

    @property
    def shape(self) -> tuple[int, int]:
        return self.phi.shape

    def __repr__(self) -> str:
        return f"{self.phi!r} + {self.tau:g} |C| R"

    def __call__(self, cost: Matrix) -> Matrix:
        return self.phi(cost) + (self.tau * float(cost.max())) * self.R

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        i, j = np.asarray(index).T
        chosen: Vector = self.R[i, j]
        return self.phi.pairs(cost, index) + (self.tau * float(cost.max())) * chosen

    def divide(self, parts: Sequence[Index]) -> list[Callable[[Matrix], Vector]]:
        """The distances of each part of the pairs as a function of the cost, remembered."""
        distances = divide(self.phi, parts)
        chosen = [self.R[index[:, 0], index[:, 1]] for index in parts]
        return [partial(self._add, *one) for one in zip(distances, chosen, strict=True)]

    def _add(self, distances: Callable[[Matrix], Vector], R: Vector, cost: Matrix) -> Vector:
        return distances(cost) + (self.tau * float(cost.max())) * R

    def freeze(self, cost: Matrix) -> Regularized:
        """The same with the couplings of ``phi`` frozen at ``cost``; the maximum stays."""
        return Regularized(freezable(self.phi).freeze(cost), self.tau, self.R)

    def couplings(self) -> Regularized:
        """What the last ``freeze`` gave, from memory."""
        return Regularized(freezable(self.phi).couplings(), self.tau, self.R)


class Restarted:
    """``(1 - alpha) phi(cost) + alpha max(phi(cost)) R / max(R)``: R as a fixed share.

    Where ``Regularized`` weighs R against the largest cost, this weighs it against the largest
    distance, so that the same ``alpha`` means the same on all data. It is what ``Regularized``
    would be with tau = alpha / (1 - alpha) max(phi(cost)) / (max(cost) max(R)), set anew at
    each cost. Monotone and homogeneous where ``phi`` is.

    Parameters
    ----------
    phi
        The map to restart.
    alpha
        Share of R, strictly between 0 and 1.
    R
        Symmetric matrix with zero diagonal, positive between different histograms.
    """

    def __init__(self, phi: DistanceMap, alpha: float, R: Matrix) -> None:
        top = R.max()
        self.phi, self.alpha, self.R = phi, alpha, R if top == 1.0 else R / top
        self.homogeneous, self.monotone = phi.homogeneous, phi.monotone

    @property
    def shape(self) -> tuple[int, int]:
        return self.phi.shape

    def __repr__(self) -> str:
        return f"{1 - self.alpha:g} {self.phi!r} + {self.alpha:g} |.| R / |R|"

    def __call__(self, cost: Matrix) -> Matrix:
        distances = self.phi(cost)
        most = float(distances.max())
        restarted: Matrix = (1.0 - self.alpha) * distances + (self.alpha * most) * self.R
        return restarted

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        """The distances of some pairs; the largest of all is needed, so all are computed."""
        i, j = np.asarray(index).T
        chosen: Vector = self(cost)[i, j]
        return chosen

    def freeze(self, cost: Matrix) -> Restarted:
        """The same with the couplings of ``phi`` frozen at ``cost``; the maximum stays."""
        return Restarted(freezable(self.phi).freeze(cost), self.alpha, self.R)

    def couplings(self) -> Restarted:
        """What the last ``freeze`` gave, from memory."""
        return Restarted(freezable(self.phi).couplings(), self.alpha, self.R)


def largest_transport(metric: Matrix, value: float, alpha: float, R: Matrix) -> float:
    """max(phi(cost)) of a restarted map, from its image ``value * metric`` alone.

    With w that maximum, value D_ij = (1 - alpha) W_ij + alpha w R_ij / max(R) and W_ij <= w give
    w >= value D_ij / (1 - alpha + alpha R_ij / max(R)), with equality where W_ij = w.
    """
    return float(value * (metric / restart_weights(alpha, R)).max())


def restart_weights(alpha: float, R: Matrix) -> Matrix:
    """1 - alpha + alpha R / max(R): a restarted distance over a transport part as large as any."""
    weights: Matrix = 1.0 - alpha + (alpha / R.max()) * R
    return weights


def norm_matrix(hist: sparse.csr_array, norm: Any, device: Any = None) -> Matrix:
    """R(a_i - a_j) for all pairs: ``norm`` is a name, a power p >= 1, or the matrix itself.

    With a torch ``device``, l1, l2 and linf are computed there and stay there.
    """
    k = hist.shape[0]
    if isinstance(norm, str) and norm == "discrete":
        return np.ones((k, k)) - np.eye(k)
    power = norm_power(norm)
    if power is not None:
        if device is None or power not in (1.0, 2.0, np.inf):  # torch loses small powers
            return _pairwise(hist, power)
        return _pairwise_on(device, hist, power)
    matrix = np.asarray(norm)
    if matrix.dtype.kind not in "fiu" or matrix.ndim != 2:
        found = f"an array of {matrix.dtype}" if hasattr(norm, "dtype") else repr(norm)
        raise ValueError(
            f"`norm` is {found}; pass 'l1', 'l2', 'linf', a power p >= 1, 'discrete', "
            "or a pair of matrices (for samples, for features)."
        )
    if matrix.shape != (k, k):
        raise ValueError(f"`norm` has shape {matrix.shape}; this side has {k} items.")
    matrix = matrix.astype(np.float64)
    off = ~np.eye(k, dtype=bool)
    if not np.isfinite(matrix).all() or np.diagonal(matrix).any() or (matrix != matrix.T).any():
        raise ValueError("`norm` must be finite and symmetric with a zero diagonal.")
    if (matrix[off] <= 0).any():
        i, j = np.argwhere((matrix <= 0) & off)[0]
        raise ValueError(
            f"`norm` is {matrix[i, j]:g} between the different items {i} and {j}; "
            "it must be positive there."
        )
    return matrix


def norm_name(norm: Any) -> str:
    """How a norm is written down: "l1", "l2.5", "linf", "discrete", or "matrix"."""
    power = norm_power(norm)
    if power is None:
        return "discrete" if isinstance(norm, str) and norm == "discrete" else "matrix"
    return f"l{power!r}".removesuffix(".0")


def norm_power(norm: Any) -> float | None:
    """The p of an l_p norm given as "lp" or as p itself; None for anything else."""
    if isinstance(norm, bool | np.bool_):
        return None
    try:
        power = float(norm[1:] if isinstance(norm, str) and norm.startswith("l") else norm)
    except (TypeError, ValueError):
        return None
    return power if power >= 1.0 else None


def _pairwise(hist: sparse.csr_array, p: float) -> Matrix:
    """Norms of differences of integer masses, which are exact however close two rows are."""
    norms: Matrix = geometry.pairwise_norms(
        hist.indptr.astype(np.int64), hist.indices.astype(np.int32), quantize(hist), p
    )
    return QUANTUM * norms


def _pairwise_on(device: Any, hist: sparse.csr_array, p: float) -> Matrix:
    import torch

    dense = torch.as_tensor(hist.toarray(), device=device)
    norms: Matrix = torch.cdist(
        dense, dense, p=p, compute_mode="donot_use_mm_for_euclid_dist"
    )  # a product of matrices would lose half the digits of small distances
    return norms
