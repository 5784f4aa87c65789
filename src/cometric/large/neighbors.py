"""Nearest neighbors of all samples under a learned feature metric, without an n x n matrix.

Distances are computed for candidates only. Every pair has a lower bound that costs less than a
hundredth of a distance, so that what was left out can be proved farther away than what was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.answers.extension import HeldDistances, check_norm
from cometric.core.kinds import check_count
from cometric.core.nearest import check_neighbors, neighbor_matrix
from cometric.core.types import Index, Matrix
from cometric.kernels import candidates, thread_count
from cometric.machine.progress import bar_of_pairs
from cometric.machine.threads import workers

if TYPE_CHECKING:
    from cometric.answers.result import Result

BLOCK = 4_000_000
"""Numbers of a kind that a block of samples may keep: images, or bounds of candidates."""

ROWS = 500
"""Samples in a block, at most: a bar moves from block to block."""

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
        distances = HeldDistances(result, "samples", hist, full, n_threads)
        search = _Search(distances, n_neighbors, most, thread_count(n_threads))
        found = [search.block(rows) for rows in search.blocks(progress)]
        index, near, proved, compared = (np.concatenate(part) for part in zip(*found, strict=True))
        graph = neighbor_matrix(index, near, n)
        queries = np.random.default_rng(random_state).choice(n, min(check, n), replace=False)
        recall = search.recall(queries, near[queries], progress) if len(queries) else math.nan
    return Neighbors(graph, proved, recall, len(queries), float(compared.mean()))


def read_histograms(result: Result, X: Any) -> tuple[sparse.csr_array, sparse.csr_array]:
    """The samples ``X`` as histograms, one row each, on the features that differ and on all."""
    check_norm(result, "samples")
    new = result.problem.read_new(X)
    if new.hist.shape[0] == len(new.labels):
        return new.hist, new.full
    return new.hist[new.labels], new.full[new.labels]  # repeats are neighbors like others


class _Bounds:
    """Lower bounds of all distances, of which the lowest are returned (docs/scale.md proves them).

    The bound of the distance between a_i and a_j is ``p_i + q_j - <x_i, a_j>``, with x dense, and
    the l1 norm of their difference, which is exact.
    """

    def __init__(self, distances: HeldDistances, tasks: int) -> None:
        self._hist, self._tasks, self._scale = distances.hist, tasks, distances.scale
        bounds = distances.transport.lower_bounds(distances.phi, distances.hist, distances.cost)
        self._p, self._q, self._means = (self._scale * part for part in bounds[:3])
        self._image = bounds.image
        self._share = distances.weight if distances.norm == "l1" else 0.0

    def lowest(self, rows: slice, count: int) -> tuple[Matrix, Index]:
        """The ``count`` lowest bounds of each of some samples, in their order, and whose."""
        image = self._scale * self._image(rows)
        parts = (image, self._p, self._q, self._means)
        largest = max(float(np.abs(part).max(initial=0.0)) for part in parts)
        size = int(np.diff(self._hist.indptr).max()) + 16
        p = self._p[rows] - size * ROUNDING * (largest + self._share)
        bounds, index = candidates.lowest(
            *_csr_parts(self._hist), rows.start, p, self._q, image, self._means, self._share, count,
            self._tasks,
        )  # fmt: skip
        return bounds, index


class _Search:
    """Candidates in the order of their bounds, until the rest is too far or too many."""

    def __init__(self, distances: HeldDistances, k: int, most: int, tasks: int) -> None:
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
            distances[ask] = self._distances.pairs(np.stack([own[i], index[ask]], axis=1))
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
                values = self._distances.pairs(np.stack([np.full(len(others), i), others], axis=1))
                true = np.partition(values, self._k - 1)[self._k - 1]
                hits += int(np.count_nonzero(found <= true * (1.0 + 1e-6) + 1e-12))
                tell(done, len(queries))
        return hits / (len(queries) * self._k)


def _cut(shape: tuple[int, int]) -> Iterator[slice]:
    """The rows of a matrix in blocks of so many numbers that they fit."""
    step = max(1, BLOCK // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def _csr_parts(rows: sparse.csr_array) -> tuple[Index, NDArray[np.int32], NDArray[np.float64]]:
    """What kernels read of a sparse matrix."""
    return rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
