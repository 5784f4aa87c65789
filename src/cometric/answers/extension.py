"""Distances of new items to those that were learned from, the metrics held as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.arrays import to_numpy
from cometric.core.histograms import MERGE_TOLERANCE
from cometric.core.nearest import check_neighbors, nearest, neighbor_matrix
from cometric.core.problem import Side
from cometric.core.types import Index, Matrix, Vector
from cometric.core.warn import warn
from cometric.kernels import differences
from cometric.kernels.transport import QUANTUM
from cometric.machine.devices import free_memory
from cometric.machine.progress import bar_of_pairs
from cometric.machine.threads import workers
from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.masses import quantize
from cometric.maps.regularized import largest_transport, norm_matrix, norm_power
from cometric.running.run import INNER, ConvergenceWarning

if TYPE_CHECKING:
    from cometric.answers.result import Parameters, Result

BYTES = 1e9
"""What the pairs of one block may take; less where less memory is free."""

BELOW_ZERO = 1e-6
"""Distances that far below zero (the largest learned one is 1) are more than rounding."""


def extend(
    result: Result,
    X: Any,
    of: str = "samples",
    n_neighbors: int | None = None,
    *,
    n_threads: int | None = None,
    progress: bool = False,
) -> Matrix | sparse.csr_matrix:
    """Distances from each new item to each learned one, or to the nearest of them."""
    problem, asked = result.problem, result.parameters
    new = problem.read_new(X, of)
    lam, mu = result.values
    if of == "samples":
        known, bins, cost, value = problem.samples, problem.features, result.features, mu
    else:
        known, bins, cost, value = problem.features, problem.samples, result.samples, lam
    check_norm(asked, of)
    if n_neighbors is not None:
        check_neighbors(n_neighbors, len(known.labels))
    across = _Across(new, known, bins.reduce(to_numpy(cost)), asked.eps, asked.tol, n_threads)
    weight = norm_weight(result, of)
    if weight > 0.0:
        norms = PairNorms(sparse.vstack([new.full, known.full], format="csr"), asked.norm)
    rows = []
    pairs = len(new.labels) * known.hist.shape[0]
    with workers(n_threads), bar_of_pairs(progress, pairs) as bar:
        for part in across.blocks():
            index = across.index(part)
            distances = across.transport(part, index, bar)
            if weight > 0.0:
                distances *= 1.0 - asked.restart
                distances += weight * norms(index).reshape(distances.shape)
            distances = _above_zero(distances / value)[:, known.labels]
            if n_neighbors is not None:
                near = nearest(distances, n_neighbors)
                rows.append(neighbor_matrix(*near, len(known.labels)))
            else:
                rows.append(distances)
    across.warn_if_loose()
    # Items given twice were compared once.
    if n_neighbors is None:
        distances = np.concatenate(rows)
        return distances if len(distances) == len(new.labels) else distances[new.labels]
    graph = sparse.vstack(rows, format="csr")
    return graph if graph.shape[0] == len(new.labels) else graph[new.labels]


class _Across:
    """Transport between new histograms and known ones under one cost, without the tau term."""

    def __init__(
        self, new: Side, known: Side, cost: Matrix, eps: float, tol: float, n_threads: int | None
    ) -> None:
        self.new, self.known, self.cost = new.hist, known.hist, np.asarray(cost, np.float64)
        self.phi: ExactMap | EntropicMap | None = None  # the limit needs none
        self.error = 0.0
        both = sparse.vstack([self.new, self.known], format="csr")
        if eps == 0.0:
            self.phi = ExactMap(both, n_threads=n_threads)
        elif eps < math.inf:
            # As the solve asked for, lest what is known already costs more than learning it.
            self.phi = EntropicMap(both, eps, tol=INNER * math.sqrt(tol), n_threads=n_threads)

    def blocks(self) -> Iterator[slice]:
        """New histograms, as many at once as fit."""
        rows, columns = self.new.shape[0], self.known.shape[0]
        per_pair = 64.0 + (8.0 * self.known.nnz / columns if self.phi is not None else 0.0)
        step = max(1, int(min(BYTES, free_memory() / 4) / (per_pair * columns)))
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def index(self, part: slice) -> Index:
        """Pairs of the new histograms of ``part`` with all known ones, which come after them."""
        rows, columns = self.new.shape[0], self.known.shape[0]
        i, j = np.mgrid[part, rows : rows + columns]
        return np.stack([i.ravel(), j.ravel()], axis=1)

    def transport(self, part: slice, index: Index, bar: Any) -> Matrix:
        """Transport distances from the new histograms of ``part`` to all known ones."""
        if self.phi is None:
            distances = self._limit(self.new[part])
            bar(distances.size, distances.size)
            return distances
        self.phi.on_progress = bar
        distances = self.phi.pairs(self.cost, index).reshape(-1, self.known.shape[0])
        if isinstance(self.phi, EntropicMap):
            self.error = max(self.error, self.phi.error)
        return distances

    def _limit(self, new: sparse.csr_array) -> Matrix:
        """-1/2 <C (a - b), a - b> = <C a, b> - (<C a, a> + <C b, b>) / 2."""
        image = new @ self.cost
        own, other = (
            np.asarray(hist.multiply(hist @ self.cost).sum(axis=1)) for hist in (new, self.known)
        )
        distances: Matrix = (self.known @ image.T).T - 0.5 * (own[:, None] + other)
        return distances

    def warn_if_loose(self) -> None:
        if isinstance(self.phi, EntropicMap) and self.error > self.phi.tol:
            warn(
                f"some Sinkhorn problems stopped at a marginal error of {self.error:.1e}, above "
                f"{self.phi.tol:.1e}. Learn with a larger `eps`: Sinkhorn is slow at small ones.",
                ConvergenceWarning,
            )


def norm_weight(result: Result, of: str) -> float:
    """What the norm of a difference is multiplied by, before the division by lam or mu."""
    problem, asked = result.problem, result.parameters
    known, metric, cost, value = (
        (problem.samples, result.samples, result.features, result.values[1])
        if of == "samples"
        else (problem.features, result.features, result.samples, result.values[0])
    )
    if asked.restart == 0.0:
        return asked.tau * float(np.max(to_numpy(cost)))
    norms = norm_matrix(known.full, asked.norm)
    largest = largest_transport(known.reduce(to_numpy(metric)), value, asked.restart, norms)
    return asked.restart * float(largest / norms.max())


class PairNorms:
    """R(a_i - a_j) for the pairs it is asked for, by the name of the norm.

    Computed from integer masses, as between the items that were learned from.
    """

    def __init__(self, rows: sparse.csr_array, norm: str) -> None:
        self._discrete = norm == "discrete"
        self._power = 1.0 if self._discrete else norm_power(norm)
        indptr, bins, _ = csr_parts(rows)
        self._rows = indptr, bins, quantize(rows)

    def __call__(self, index: Index) -> Vector:
        norms: Vector = QUANTUM * differences.pair_norms(*self._rows, index, self._power)
        return (norms > MERGE_TOLERANCE).astype(np.float64) if self._discrete else norms


def csr_parts(rows: sparse.csr_array) -> tuple[Index, NDArray[np.int32], Vector]:
    """What kernels know of a sparse matrix."""
    return rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data


def _above_zero(distances: Matrix) -> Matrix:
    below = int((distances < -BELOW_ZERO).sum())
    if below:
        warn(
            f"{below} entropic distances of new items are negative (lowest {distances.min():.3g}, "
            "the largest learned one is 1): the entropic kernel is not positive. They are set to "
            "0; learn with a smaller `eps` or a larger `tau`."
        )
    positive: Matrix = np.maximum(distances, 0.0)
    return positive


def check_norm(asked: Parameters, of: str) -> None:
    """Refuse new items where the norm that counts is known between the old ones only."""
    if (asked.tau > 0.0 or asked.restart > 0.0) and asked.norm == "matrix":
        raise ValueError(
            f"`norm` was a pair of matrices, which do not say how far new {of} are. "
            "Learn with a norm that has a name, or with tau = 0."
        )
