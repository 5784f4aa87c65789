"""The norm R between histograms, for all pairs or for some."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.histograms import MERGE_TOLERANCE, QUANTUM, Histograms
from cometric.core.kinds import shown
from cometric.core.problem import Problem
from cometric.core.sides import Side
from cometric.core.types import Index, Matrix, Metrics, Vector
from cometric.kernels import geometry
from cometric.maps import references


def norm_matrices(problem: Problem, norm: Any, device: Any = None) -> Metrics:
    """R between the distinct samples and between the distinct features; see ``norm_matrix``."""
    return Metrics(
        side_norm(problem, norm, "samples", device), side_norm(problem, norm, "features", device)
    )


def side_norm(problem: Problem, norm: Any, of: str, device: Any = None) -> Matrix:
    """R between the distinct items of one side; ``norm`` may be a pair, one for each side."""
    if getattr(norm, "ndim", 0) == 2:
        raise ValueError(
            "`norm` is one matrix; pass two, (for samples, for features), or None for one of them."
        )
    return _norm(getattr(problem, of), norm_for(norm, of), device, of)


def norm_for(norm: Any, of: str) -> Any:
    """The norm of one side; ``norm`` is the same for both, or a pair."""
    return norm[0 if of == "samples" else 1] if is_pair(norm) else norm


def is_pair(norm: Any) -> bool:
    """Whether R is given for samples and features separately."""
    return isinstance(norm, tuple | list) and len(norm) == 2


def _norm(side: Side, norm: Any, device: Any, of: str) -> Matrix:
    """R between the distinct items of a side; if given as a matrix, it covers all kept items."""
    if not hasattr(norm, "shape") or np.ndim(norm) != 2:
        return norm_matrix(side.full_histograms, norm, device, of)
    n = len(side.labels)
    if np.shape(norm) != (n, n):
        raise ValueError(f"`norm` has shape {np.shape(norm)}; this side has {n} items.")
    return norm_matrix(side.full_histograms, side.reduce(np.asarray(norm)))


def norm_matrix(hist: Any, norm: Any, device: Any = None, of: str = "samples") -> Matrix:
    """R for all pairs: ``norm`` is a name, a power p >= 1, or the matrix itself.

    With a torch ``device``, l1, l2 and linf are computed there and stay there. ``of`` is the side
    of the histograms: the reference "local" compares features in another way than samples.
    """
    hist = hist if isinstance(hist, Histograms) else Histograms.of(hist)
    k = hist.shape[0]
    if is_reference(norm):
        return references.fit(norm, hist, of).matrix
    if isinstance(norm, str) and norm == "discrete":
        return np.ones((k, k)) - np.eye(k)
    power = norm_power(norm)
    if power is not None:
        accurate = power in (1.0, 2.0, np.inf)  # in torch
        if device is not None and accurate:
            return _pairwise_on(device, hist, power)
        return _pairwise(hist, power)
    matrix = np.asarray(norm)
    if matrix.dtype.kind not in "fiu" or matrix.ndim != 2:
        description = f"an array of {matrix.dtype}" if hasattr(norm, "dtype") else shown(norm)
        raise ValueError(
            f"`norm` is {description}; pass 'l1', 'l2', 'linf', a power p >= 1, 'discrete', "
            f"{', '.join(map(repr, references.NAMES))}, or a pair of matrices (for samples, for "
            "features)."
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


def is_reference(norm: Any) -> bool:
    """Whether R is a reference: not a norm of the difference of two histograms."""
    return isinstance(norm, str) and norm in references.NAMES


def norm_name(norm: Any) -> str:
    """The name of a norm: "l1", "l2.5", "linf", "discrete", a reference, or "matrix".

    For a pair, both names, as in "l1, matrix", or "matrix" for two matrices.
    """
    if is_pair(norm):
        names = [norm_name(part) for part in norm]
        return "matrix" if names == ["matrix", "matrix"] else ", ".join(names)
    if is_reference(norm):
        return str(norm)
    power = norm_power(norm)
    if power is None:
        return "discrete" if isinstance(norm, str) and norm == "discrete" else "matrix"
    return f"l{power!r}".removesuffix(".0")


def name_for(name: str, of: str) -> str:
    """The name of the norm of one side, from a result of :func:`norm_name`."""
    return name.split(", ")[0 if of == "samples" else -1]


def norm_power(norm: Any) -> float | None:
    """The p of an l_p norm given as "lp" or as p itself; None for anything else."""
    if isinstance(norm, bool | np.bool_):
        return None
    try:
        power = float(norm[1:] if isinstance(norm, str) and norm.startswith("l") else norm)
    except (TypeError, ValueError):
        return None
    return power if power >= 1.0 else None


class PairNorms:
    """R between any pairs of histograms, for named norms.

    Norms are computed from integer masses, as for the learned items. A reference is fitted to
    the learned items ``known``; the other items are placed among them.
    """

    def __init__(self, norm: str, known: Histograms, rows: sparse.csr_array, of: str) -> None:
        self._rows = Histograms(rows)
        self._discrete = norm == "discrete"
        self._power = 1.0 if self._discrete else norm_power(norm)
        self._reference: Any = references.fit(norm, known, of) if is_reference(norm) else None
        if self._reference is None:
            self.known: Matrix = norm_matrix(known, norm)
        else:
            self.known = self._reference.matrix
            self._places = self._reference.place(self._rows)

    @property
    def reference(self) -> Any:
        """The fitted reference; None for a norm of differences."""
        return self._reference

    def on(self, rows: sparse.csr_array, places: Any = None) -> PairNorms:
        """The same norm between other histograms, with their ``places`` in a reference if known."""
        other = copy(self)
        other._rows = Histograms(rows)
        if self._reference is not None:
            other._places = self._reference.place(other._rows) if places is None else places
        return other

    def __call__(self, index: Index) -> Vector:
        if self._reference is not None:
            distances: Vector = self._reference.pairs(self._places, index)
            return distances
        parts = self._rows.integer_parts
        norms: Vector = QUANTUM * geometry.pair_norms(*parts, index, self._power)
        return (norms > MERGE_TOLERANCE).astype(np.float64) if self._discrete else norms

    def between(self, rows: slice, columns: slice) -> Matrix:
        """R from the histograms ``rows`` to the histograms ``columns``."""
        if self._reference is not None:
            distances: Matrix = self._reference.between(self._places, rows, columns)
            return distances
        i, j = np.mgrid[rows, columns]
        return self(np.stack([i.ravel(), j.ravel()], axis=1)).reshape(i.shape)


def _pairwise(hist: Histograms, p: float) -> Matrix:
    """Norms of differences of integer masses: differences are exact, also of close rows."""
    norms: Matrix = geometry.pairwise_norms(*hist.integer_parts, p)
    return QUANTUM * norms


def _pairwise_on(device: Any, hist: Histograms, p: float) -> Matrix:
    import torch

    dense = torch.as_tensor(hist.rows.toarray(), device=device)
    mode = "donot_use_mm_for_euclid_dist"  # products lose half the digits of small distances
    norms: Matrix = torch.cdist(dense, dense, p=p, compute_mode=mode)
    return norms
