"""Nearest neighbors of all samples under a learned feature metric, without an n x n matrix.

Distances are computed for candidates only. Every pair has a lower bound that costs a product of
matrices, so that what was left out can be proved farther away than what was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial.distance import cdist

from cometric.arrays import to_numpy
from cometric.extension import bar_of_pairs, check_neighbors
from cometric.kernels import differences, geometry
from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.limit import LimitMap
from cometric.maps.regularized import norm_power
from cometric.problem import MERGE_TOLERANCE
from cometric.run import INNER
from cometric.types import Index, Matrix, Vector

if TYPE_CHECKING:
    from cometric.result import Result

BLOCK_BYTES = 2.5e8
"""What the bounds of one block of samples may take."""

PAIRS_PER_CALL = 500_000
"""Distances computed at once: they keep some hundred bytes each while they are."""

REFERENCES = 64
"""Features whose distances serve as test functions for exact transport."""

UNIT = 2.0**-24
"""Rounding of float32, in which bounds are computed; they are lowered by what it can do."""


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The k nearest neighbors of every sample, itself not counted.

    ``graph`` is (n, n) with k distances per row, the nearest first, the form of scikit-learn's
    ``kneighbors_graph(mode="distance")``. ``proved`` tells for each sample whether no other sample
    can be nearer, by lower bounds of all distances that were not computed. ``recall`` is the share
    of true neighbors found, by comparing ``checked`` random samples with all others; NaN if
    none were. ``compared`` is the number of distances computed per sample.
    """

    graph: sparse.csr_matrix
    proved: NDArray[np.bool_]
    recall: float
    checked: int
    compared: float

    def __repr__(self) -> str:
        n = len(self.proved)
        found = "not measured" if not self.checked else f"{self.recall:.4f} on {self.checked}"
        return (
            f"Neighbors({n} samples, {self.graph.nnz // n} each, "
            f"{100 * self.proved.mean():.1f} % proved, recall {found}, "
            f"{self.compared:.0f} distances per sample)"
        )


def neighbor_graph(
    result: Result,
    X: Any,
    n_neighbors: int = 15,
    *,
    max_candidates: int | None = None,
    check: int = 20,
    random_state: int | None = 0,
    n_threads: int | None = None,
    progress: bool = False,
) -> Neighbors:
    """The nearest neighbors among the samples ``X`` under the feature metric of ``result``.

    Distances are those of :meth:`Result.transform`, Phi_A(C) / mu. Memory grows with n times
    ``n_neighbors`` and the entries of X; time with n^2 m multiplications of a matrix product.

    Parameters
    ----------
    X
        Samples over the features that ``result`` was learned from; see :meth:`Problem.read_new`.
    max_candidates
        Distances to compute per sample at most, 40 times ``n_neighbors`` by default. Samples
        that would need more are not ``proved``.
    check
        How many random samples are compared with all others, to measure the recall.
    """
    asked = result.parameters
    if asked.tau > 0.0 and asked.norm == "matrix":
        raise ValueError(
            "`norm` was a pair of matrices, which do not say how far new samples are. "
            "Learn with a norm that has a name, or with tau = 0."
        )
    new = result.problem.read_new(X)
    hist, full = new.hist, new.full
    if hist.shape[0] < len(new.labels):  # repeats are neighbors like others
        hist, full = hist[new.labels], full[new.labels]
    n = hist.shape[0]
    check_neighbors(n_neighbors, n - 1)
    most = min(n - 1, 40 * n_neighbors if max_candidates is None else max_candidates)
    if most < n_neighbors:
        raise ValueError(
            f"`max_candidates` is {max_candidates}; at least `n_neighbors` = {n_neighbors} are "
            "needed."
        )
    cost = np.asarray(result.problem.features.reduce(to_numpy(result.features)), np.float64)
    distances = _Distances(hist, full, cost, result, n_threads)
    search = _Search(distances, _Bounds(distances), n_neighbors, most)
    found = [search.block(rows) for rows in search.blocks(progress)]
    index, near, proved, compared = (np.concatenate(part) for part in zip(*found, strict=True))
    starts = np.arange(0, n * n_neighbors + 1, n_neighbors)
    graph = sparse.csr_matrix((near.ravel(), index.ravel(), starts), shape=(n, n))
    queries = np.random.default_rng(random_state).choice(n, min(check, n), replace=False)
    recall = search.recall(queries, near[queries]) if len(queries) else math.nan
    return Neighbors(graph, proved, recall, len(queries), float(compared.mean()))


class _Distances:
    """Phi_A(C) / mu of any pairs of histograms."""

    def __init__(
        self,
        hist: sparse.csr_array,
        full: sparse.csr_array,
        cost: Matrix,
        result: Result,
        n_threads: int | None,
    ) -> None:
        asked = result.parameters
        self.hist, self.full, self.cost, self.eps = hist, full, cost, asked.eps
        self.norm, self.weight = asked.norm, asked.tau * float(cost.max())
        self.value = result.values[1]
        self.phi: ExactMap | EntropicMap | LimitMap
        if asked.eps == 0.0:
            self.phi = ExactMap(hist, n_threads=n_threads)
        elif asked.eps == math.inf:
            self.phi = LimitMap(hist)
        else:
            tol = INNER * math.sqrt(asked.tol)
            self.phi = EntropicMap(hist, asked.eps, tol=tol, n_threads=n_threads)
            if self.phi.logs:
                raise ValueError(
                    f"`eps` is {asked.eps:g}, too small for the bounds that find neighbors. "
                    "Learn with eps = 0 or eps >= 0.01."
                )

    def __call__(self, index: Index) -> Vector:
        """Distances of the pairs ``index`` (p, 2), at least 0."""
        step = PAIRS_PER_CALL if self.eps < math.inf else PAIRS_PER_CALL // 50  # dense rows there
        parts = [self._some(index[start : start + step]) for start in range(0, len(index), step)]
        values: Vector = np.maximum(np.concatenate([*parts, np.empty(0)]), 0.0)
        return values

    def _some(self, index: Index) -> Vector:
        values: Vector = self.phi.pairs(self.cost, index) / self.value
        if self.weight > 0.0:
            values += self.weight / self.value * self._norms(index)
        return values

    def _norms(self, index: Index) -> Vector:
        power = 1.0 if self.norm == "discrete" else norm_power(self.norm)
        full = self.full
        norms: Vector = differences.pair_norms(
            full.indptr.astype(np.int64), full.indices.astype(np.int32), full.data, index, power
        )
        return (norms > MERGE_TOLERANCE).astype(np.float64) if self.norm == "discrete" else norms


class _Form(Protocol):
    """Lower bounds of one term of all distances, a block of rows at a time."""

    def __call__(self, rows: slice) -> NDArray[np.float32]: ...


class _Bounds:
    """Lower bounds of the distances of a block of samples to all (docs/scale.md proves them)."""

    def __init__(self, distances: _Distances) -> None:
        self._terms: list[tuple[float, _Form]] = [(1.0, _transport_bound(distances))]
        if distances.weight > 0.0 and distances.norm == "l1":
            root = distances.full.sqrt()
            self._terms.append((2.0 * distances.weight, _Gap(root, root, 0.5, 0.5)))
        self._value = distances.value

    def __call__(self, rows: slice) -> NDArray[np.float32]:
        total: NDArray[np.float32] = sum(weight * term(rows) for weight, term in self._terms)  # type: ignore[assignment]
        return total / np.float32(self._value)


class _Gap:
    """``p_i + q_j - <x_i, y_j>``, lowered by the rounding of its float32 products."""

    def __init__(self, x: Any, y: Any, p: Any, q: Any) -> None:
        self._x, self._y = x, y
        n = x.shape[0]
        keep = np.float32(1.0 - 8.0 * UNIT)
        self._p, self._q = (keep * np.broadcast_to(np.float32(part), n) for part in (p, q))
        self._slack = np.float32(1.0 + (x.shape[1] + 8) * UNIT)

    def __call__(self, rows: slice) -> NDArray[np.float32]:
        x = _dense(self._x[rows])
        n, m = self._y.shape
        gaps = np.empty((len(x), n), np.float32)
        step = max(1, int(BLOCK_BYTES / (8.0 * m)))  # the other side stays sparse as a whole
        for start in range(0, n, step):
            some = slice(start, start + step)
            np.matmul(x, _dense(self._y[some]).T, out=gaps[:, some])
        gaps *= -self._slack  # entries are nonnegative: no cancellation
        gaps += self._p[rows, None]
        gaps += self._q
        return gaps


def _dense(rows: Any) -> NDArray[np.float32]:
    """As float32, whatever it was."""
    if sparse.issparse(rows):
        return rows.astype(np.float32).toarray()  # type: ignore[no-any-return]
    return np.asarray(rows, np.float32)


class _Lipschitz:
    """max_l |(a C)_l - (b C)_l| <= W_C(a, b): distances to a feature are 1-Lipschitz functions."""

    def __init__(self, hist: sparse.csr_array, cost: Matrix) -> None:
        means = hist @ cost[:, _spread(cost, REFERENCES)]
        self._means = means
        violation = float(geometry.triangle_violation(cost))
        self._slack = max(violation, 0.0) + 1e-12 * float(cost.max())

    def __call__(self, rows: slice) -> NDArray[np.float32]:
        gaps = cdist(self._means[rows], self._means, "chebyshev") - self._slack
        below: NDArray[np.float32] = np.nextafter(gaps.astype(np.float32), np.float32(-1.0))
        return below


def _spread(cost: Matrix, count: int) -> Index:
    """Features far from one another: each is the farthest from those before it."""
    chosen = [int(np.argmax(cost.max(axis=0)))]
    nearest = cost[chosen[0]].copy()
    while len(chosen) < min(count, len(cost)):
        chosen.append(int(np.argmax(nearest)))
        np.minimum(nearest, cost[chosen[-1]], out=nearest)
    return np.array(chosen)


def _transport_bound(distances: _Distances) -> _Form:
    hist, cost, phi = distances.hist, distances.cost, distances.phi
    if isinstance(phi, ExactMap):
        return _Lipschitz(hist, cost)
    if isinstance(phi, LimitMap):  # the distance itself: <a, C b> - (<a, C a> + <b, C b>) / 2
        top = float(cost.max())
        image = (hist @ (top - cost)).astype(np.float32)  # sums to 1: -1/2 <C d, d> is the same
        own = 0.5 * np.asarray(hist.multiply(hist @ (top - cost)).sum(axis=1)).ravel()
        return _Gap(image, hist, own, own)
    unit = phi.eps * float(cost.max())
    scalings = phi.own_scalings(cost)
    image = np.float32(unit) * (scalings @ np.exp(-cost / unit)).astype(np.float32)
    return _Gap(image, scalings, 0.5 * unit, 0.5 * unit)


class _Search:
    """Candidates in the order of their bounds, until the rest is too far or too many."""

    def __init__(self, distances: _Distances, bounds: _Bounds, k: int, most: int) -> None:
        self._distances, self._bounds, self._k, self._most = distances, bounds, k, most
        self._n = distances.hist.shape[0]

    def blocks(self, progress: bool) -> Iterator[slice]:
        step = max(1, int(BLOCK_BYTES / (4.0 * self._n)))
        with bar_of_pairs(progress, self._n) as tell:
            for start in range(0, self._n, step):
                stop = min(start + step, self._n)
                yield slice(start, stop)
                tell(stop, self._n)

    def block(self, rows: slice) -> tuple[Index, Matrix, NDArray[np.bool_], Index]:
        """Neighbors, their distances, whether they are proved, and how many were compared."""
        k, first = self._k, min(2 * self._k, self._most)
        low = self._bounds(rows)
        count = len(low)
        own = np.arange(rows.start, rows.stop)
        low[np.arange(count), own] = np.inf
        index = np.argpartition(low, first - 1, axis=1)[:, :first]
        pairs = np.stack([np.repeat(own, first), index.ravel()], axis=1)
        near = self._distances(pairs).reshape(count, first)
        worst = np.partition(near, k - 1, axis=1)[:, k - 1]
        more = [self._rest(low[i], index[i], worst[i]) for i in range(count)]
        sizes = np.array([len(part) for part in more])
        others = np.concatenate(more).astype(np.int64)
        further = self._distances(np.stack([np.repeat(own, sizes), others], axis=1))
        ends = np.cumsum(sizes)
        found, dist = np.empty((count, k), np.int64), np.empty((count, k))
        proved = np.empty(count, bool)
        for i in range(count):
            part = slice(ends[i] - sizes[i], ends[i])
            ids = np.concatenate([index[i], others[part]])
            values = np.concatenate([near[i], further[part]])
            order = np.lexsort((ids, values))[:k]
            found[i], dist[i] = ids[order], values[order]
            proved[i] = np.count_nonzero(low[i] < dist[i, -1]) <= len(ids)
        return found, dist, proved, first + sizes

    def _rest(self, low: NDArray[np.float32], seen: Index, worst: float) -> Index:
        """Further samples that may be nearer than ``worst``: those of the lowest bounds."""
        hidden = low[seen]
        low[seen] = np.inf
        rest = np.flatnonzero(low < worst)
        room = self._most - len(seen)
        if len(rest) > room:
            rest = rest[np.argpartition(low[rest], room)[:room]] if room else rest[:0]
        low[seen] = hidden
        return rest

    def recall(self, queries: Index, near: Matrix) -> float:
        """The share of the distances ``near`` that comparing with all samples gives as well."""
        hits = 0
        for i, found in zip(queries, near, strict=True):
            others = np.delete(np.arange(self._n), i)
            values = self._distances(np.stack([np.full(len(others), i), others], axis=1))
            true = np.partition(values, self._k - 1)[self._k - 1]
            hits += int(np.count_nonzero(found <= true * (1.0 + 1e-6) + 1e-12))
        return hits / (len(queries) * self._k)
