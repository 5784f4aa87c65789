"""Nearest neighbors of all samples under a learned feature metric, without an n x n matrix.

Distances are computed for candidates only. Every pair has a lower bound that costs less than a
hundredth of a distance, so that what was left out can be proved farther away than what was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.answers.extension import (
    PairNorms,
    check_norm,
    csr_parts,
    norm_weight,
)
from cometric.core.arrays import to_numpy
from cometric.core.nearest import check_neighbors, neighbor_matrix
from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import candidates, geometry, thread_count
from cometric.machine.progress import bar_of_pairs
from cometric.machine.threads import workers
from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.limit import LimitMap
from cometric.running.options import check_count
from cometric.running.run import INNER

if TYPE_CHECKING:
    from cometric.answers.result import Result

BLOCK = 4_000_000
"""Numbers of a kind that a block of samples may keep: images, or bounds of candidates."""

ROWS = 500
"""Samples in a block, at most: a bar moves from block to block."""

NUMBERS_PER_CALL = 25_000_000
"""What distances computed at once may keep while they are: two numbers for each bin, or so."""

REFERENCES = 64
"""Features whose distances serve as test functions for exact transport."""

ROUNDING = 2.0**-51
"""Of one operation; bounds are lowered by what it can do."""


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
    ``n_neighbors`` and the entries of X; time with n^2 bounds, each as many operations as a sample
    has features.

    Parameters
    ----------
    X
        Samples over the features that ``result`` was learned from; see :meth:`Problem.read_new`.
    n_neighbors
        Neighbors of each sample, itself not counted.
    max_candidates
        Distances to compute per sample at most, 40 times ``n_neighbors`` by default. Samples
        that would need more are not ``proved``.
    check
        How many random samples are compared with all others, to measure the recall.
    random_state
        Seed of the choice of these samples.
    n_threads, progress
        As for :func:`cometric.learn`.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> result = cm.learn(X, eps=0, tau=0.1)
    >>> cm.neighbor_graph(result, X, 2).graph.shape
    (12, 12)
    """
    hist, full = read_histograms(result, X)
    n = hist.shape[0]
    check_neighbors(n_neighbors, n - 1)
    if max_candidates is not None:
        check_count("max_candidates", max_candidates)
    if check != 0:
        check_count("check", check)
    most = min(n - 1, 40 * n_neighbors if max_candidates is None else max_candidates)
    if most < n_neighbors:
        raise ValueError(
            f"`max_candidates` is {max_candidates}; at least `n_neighbors` = {n_neighbors} are "
            "needed."
        )
    with workers(n_threads):
        distances = SampleDistances(result, hist, full, n_threads)
        search = _Search(distances, n_neighbors, most, thread_count(n_threads))
        found = [search.block(rows) for rows in search.blocks(progress)]
        index, near, proved, compared = (np.concatenate(part) for part in zip(*found, strict=True))
        graph = neighbor_matrix(index, near, n)
        queries = np.random.default_rng(random_state).choice(n, min(check, n), replace=False)
        recall = search.recall(queries, near[queries], progress) if len(queries) else math.nan
    return Neighbors(graph, proved, recall, len(queries), float(compared.mean()))


def read_histograms(result: Result, X: Any) -> tuple[sparse.csr_array, sparse.csr_array]:
    """The samples ``X`` as histograms, one row each, on the features that differ and on all."""
    check_norm(result.parameters, "samples")
    new = result.problem.read_new(X)
    if new.hist.shape[0] == len(new.labels):
        return new.hist, new.full
    return new.hist[new.labels], new.full[new.labels]  # repeats are neighbors like others


class SampleDistances:
    """Phi_A(C) / mu of any pairs of histograms, with the learned C held as it is."""

    def __init__(
        self,
        result: Result,
        hist: sparse.csr_array,
        full: sparse.csr_array,
        n_threads: int | None = None,
    ) -> None:
        asked, value = result.parameters, result.values[1]
        cost = np.asarray(result.problem.features.reduce(to_numpy(result.features)), np.float64)
        self.hist, self.full, self.cost, self.eps = hist, full, cost, asked.eps
        self.norm, self.tol = asked.norm, INNER * math.sqrt(asked.tol)
        self.scale = (1.0 - asked.restart) / value
        self.weight = norm_weight(result, "samples") / value
        if self.weight > 0.0:
            self._norms = PairNorms(full, asked.norm)
        self.phi: ExactMap | EntropicMap | LimitMap
        if asked.eps == 0.0:
            self.phi = ExactMap(hist, n_threads=n_threads)
        elif asked.eps == math.inf:
            self.phi = LimitMap(hist)
        else:
            self.phi = EntropicMap(
                hist, asked.eps, tol=self.tol, memory_limit=0, n_threads=n_threads
            )
        if isinstance(self.phi, EntropicMap):
            self._transport = self.phi.under(cost)
        else:
            self._transport = partial(self.phi.pairs, cost)
        bins = hist.shape[1] if asked.eps == math.inf else hist.nnz / hist.shape[0]  # dense there
        self.step = max(1, int(NUMBERS_PER_CALL / bins))

    def __call__(self, index: Index) -> Vector:
        """Distances of the pairs ``index`` (p, 2), at least 0."""
        starts = range(0, len(index), self.step)
        parts = [self._some(index[start : start + self.step]) for start in starts]
        values: Vector = np.maximum(np.concatenate([*parts, np.empty(0)]), 0.0)
        return values

    def _some(self, index: Index) -> Vector:
        values: Vector = self.scale * self._transport(index)
        if self.weight > 0.0:
            values += self.weight * self._norms(index)
        return values


class _Bounds:
    """Lower bounds of all distances, of which the lowest are told (docs/scale.md proves them).

    The bound of the distance between a_i and a_j is ``p_i + q_j - <x_i, a_j>``, with x dense, and
    the l1 norm of their difference, which is no bound but itself.
    """

    def __init__(self, distances: SampleDistances, tasks: int) -> None:
        self._hist, self._tasks = distances.hist, tasks
        hist, cost, scale = distances.hist, distances.cost, distances.scale
        n = hist.shape[0]
        self._means, self._p, self._q = np.empty((n, 0)), np.zeros(n), np.zeros(n)
        self._share = distances.weight if distances.norm == "l1" else 0.0
        self.image: Callable[[slice], Matrix]
        if isinstance(distances.phi, ExactMap):
            self._means = scale * (hist @ cost[:, _spread(cost, REFERENCES)])
            slack = max(float(geometry.triangle_violation(cost)), 0.0)
            self._p -= scale * slack
            self.image = lambda rows: np.zeros((rows.stop - rows.start, len(cost)))
        elif isinstance(distances.phi, LimitMap):
            own = np.concatenate([_own_products(hist[rows], cost) for rows in _cut(hist.shape)])
            self._p = self._q = -0.5 * scale * own
            self.image = lambda rows: -scale * (hist[rows] @ cost)
        else:
            if distances.phi.logs:
                raise ValueError(
                    f"`eps` is {distances.eps:g}, too small for the bounds that find neighbors. "
                    "Learn with eps = 0 or eps >= 0.01."
                )
            unit = distances.phi.eps * float(cost.max())
            scalings, kernel = distances.phi.own_scalings(cost), np.exp(-cost / unit)
            logs = scalings.copy()  # of K u = a / u, where a is
            logs.data = np.log(hist.data / scalings.data)
            self._q = unit * scale * np.asarray(hist.multiply(logs).sum(axis=1)).ravel()
            self.image = lambda rows: unit * scale * np.log(scalings[rows] @ kernel)

    def lowest(self, rows: slice, count: int) -> tuple[Matrix, Index]:
        """The ``count`` lowest bounds of each of some samples, in their order, and whose."""
        image = self.image(rows)
        parts = (image, self._p, self._q, self._means)
        largest = max(float(np.abs(part).max(initial=0.0)) for part in parts)
        size = int(np.diff(self._hist.indptr).max()) + 16
        p = self._p[rows] - size * ROUNDING * (largest + self._share)
        bounds, index = candidates.lowest(
            *csr_parts(self._hist), rows.start, p, self._q, image, self._means, self._share, count,
            self._tasks,
        )  # fmt: skip
        return bounds, index


def _spread(cost: Matrix, count: int) -> Index:
    """Features far from one another: each is the farthest from those before it."""
    chosen = [int(np.argmax(cost.max(axis=0)))]
    nearest = cost[chosen[0]].copy()
    while len(chosen) < min(count, len(cost)):
        chosen.append(int(np.argmax(nearest)))
        np.minimum(nearest, cost[chosen[-1]], out=nearest)
    return np.array(chosen)


class _Search:
    """Candidates in the order of their bounds, until the rest is too far or too many."""

    def __init__(self, distances: SampleDistances, k: int, most: int, tasks: int) -> None:
        self._distances, self._k, self._most = distances, k, most
        self._bounds = _Bounds(distances, tasks)
        self._n = distances.hist.shape[0]

    def blocks(self, progress: bool) -> Iterator[slice]:
        widest = max(self._distances.hist.shape[1], self._most, BLOCK // ROWS)
        with bar_of_pairs(progress, self._n, "sample", "finding neighbors") as tell:
            for rows in _cut((self._n, widest)):
                yield rows
                tell(rows.stop, self._n)

    def block(self, rows: slice) -> tuple[Index, Matrix, NDArray[np.bool_], Index]:
        """Neighbors, their distances, whether they are proved, and how many were compared."""
        k, most = self._k, self._most
        low, index = self._bounds.lowest(rows, min(most + 1, self._n - 1))
        if low.shape[1] == most:  # all others are candidates: none is beyond them
            low = np.pad(low, ((0, 0), (0, 1)), constant_values=np.inf)
        index = index[:, :most]
        own = np.arange(rows.start, rows.stop)
        distances = np.full(index.shape, np.inf)
        compared, upto = np.zeros(len(own), np.int64), 4 * k // 3
        while True:  # the more were compared, the fewer of the rest can be nearer
            worst = np.partition(distances, k - 1, axis=1)[:, k - 1]
            place = np.arange(most)
            ask = (place < upto) & (place >= compared[:, None]) & (low[:, :most] < worst[:, None])
            if not ask.any():
                break
            i = np.nonzero(ask)[0]
            distances[ask] = self._distances(np.stack([own[i], index[ask]], axis=1))
            compared += ask.sum(axis=1)
            upto *= 2
        order = np.lexsort((index, distances), axis=1)[:, :k]
        near = np.take_along_axis(distances, order, axis=1)
        proved = low[np.arange(len(own)), compared] >= near[:, -1]
        return np.take_along_axis(index, order, axis=1), near, proved, compared

    def recall(self, queries: Index, near: Matrix, progress: bool = False) -> float:
        """The share of the distances ``near`` that comparing with all samples gives as well."""
        hits = 0
        with bar_of_pairs(progress, len(queries), "sample", "measuring recall") as tell:
            for done, (i, found) in enumerate(zip(queries, near, strict=True), 1):
                others = np.delete(np.arange(self._n), i)
                values = self._distances(np.stack([np.full(len(others), i), others], axis=1))
                true = np.partition(values, self._k - 1)[self._k - 1]
                hits += int(np.count_nonzero(found <= true * (1.0 + 1e-6) + 1e-12))
                tell(done, len(queries))
        return hits / (len(queries) * self._k)


def _cut(shape: tuple[int, int]) -> Iterator[slice]:
    """The rows of a matrix in blocks of so many numbers that they fit."""
    step = max(1, BLOCK // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def _own_products(hist: sparse.csr_array, cost: Matrix) -> Vector:
    """<a, C a> of every row a."""
    products: Vector = np.asarray(hist.multiply(hist @ cost).sum(axis=1)).ravel()
    return products
