"""Nearest neighbors of all samples under a learned feature metric, without an n x n matrix.

Distances are computed for candidates only. An exhaustive search computes a lower bound of every
distance, in less than a hundredth of its time; it proves that the other samples are farther away.
For many samples an index proposes the candidates, and the recall is measured.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.answers.checks import check_is_result
from cometric.answers.extension import HeldDistances, check_norm
from cometric.core.digest import digest
from cometric.core.inputs import COUNT_SAME_WORDS, BadData, Fault, read_matrix, read_samples
from cometric.core.matching import describe_differences, find_bins, select
from cometric.core.names import checks_options
from cometric.core.nearest import check_neighbors, neighbor_matrix
from cometric.core.sides import make_side, normalize, smooth
from cometric.core.types import Index, Matrix, Status
from cometric.core.warn import warn
from cometric.files.rows import as_rows
from cometric.kernels import candidates, thread_count
from cometric.large.checks import check_device, check_search
from cometric.large.progress import Progress
from cometric.large.rows import (
    Reread,
    StoredRows,
    array_limit,
    is_source,
    names_of,
    read_chunks,
    store_rows,
)
from cometric.large.samples import Samples
from cometric.large.searching import IndexSearch
from cometric.machine.progress import bar_of_pairs
from cometric.machine.threads import workers
from cometric.transports.entropic import Entropic

if TYPE_CHECKING:
    from cometric.answers.result import Result

BLOCK = 4_000_000
"""Size limit of the arrays of a block of samples: images, or bounds of candidates."""

ROWS = 500
"""Largest number of samples in a block; progress is shown after each block."""

EXHAUSTIVE = 5000
"""Samples up to which "auto" is an exhaustive search."""

LEAST_EPS = 0.01
"""Regularization from which on there are bounds."""

FORMAT = 1
"""Changes when stored parts of earlier versions can no longer be continued."""

BLOCK_PARTS = ("index", "near", "proved", "compared")

SLACK = 1e-6
"""References are lowered by this fraction: products of matrices round more than pairs do."""

ROUNDING = 2.0**-51
"""Relative rounding error of one operation; bounds are lowered by its effect."""


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The k nearest neighbors of every sample, itself not counted.

    ``graph`` is (n, n) with k distances per row, the nearest first, the form of scikit-learn's
    ``kneighbors_graph(mode="distance")``. ``proved`` tells for each sample whether lower
    bounds of all other distances prove that no other sample is nearer. ``recall`` is the fraction
    of true neighbors, measured by comparing ``checked`` random samples with all others; NaN if
    ``checked`` is 0. ``compared`` is the mean number of distances computed per sample.

    With ``search`` = "index", ``proved`` is True only for checked samples whose neighbors turned
    out to be the true ones. ``check_proofs`` is the number of checked samples whose true neighbors
    are proved; the others were compared with their best candidates only.
    """

    graph: sparse.csr_matrix
    proved: NDArray[np.bool_]
    recall: float
    checked: int
    compared: float
    search: str = "exhaustive"
    check_proofs: int = 0

    def __repr__(self) -> str:
        n = len(self.proved)
        return (
            f"Neighbors({n} samples, {self.graph.nnz // n} each, {self.proof}, "
            f"recall {self.measured}, {self.compared:.0f} distances per sample)"
        )

    @property
    def proof(self) -> str:
        """What is proved, in words."""
        if self.search == "index":
            return "by an index, without proofs"
        return f"{100 * self.proved.mean():.1f} % proved"

    @property
    def measured(self) -> str:
        """The recall, in words."""
        if not self.checked:
            return "not measured"
        words = f"{self.recall:.4f} on {self.checked}"
        if self.check_proofs < self.checked:
            words += f", {self.checked - self.check_proofs} of them against their best candidates"
        return words


@checks_options
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
    search: str = "auto",
    folder: str | os.PathLike[str] | None = None,
    device: str | None = None,
    memory_limit: float | None = None,
) -> Neighbors:
    """The nearest neighbors among the samples ``X`` under the feature metric of ``result``.

    Distances are those of :meth:`Result.transform`, Phi_A(C) / mu. Memory grows with n times
    ``n_neighbors`` and the nonzero entries of X. The time of an exhaustive search grows with n^2:
    bounds of all pairs, each with as many operations as a sample has nonzero features. With an
    index it grows a little faster than n.

    Parameters
    ----------
    X
        Samples over the features that ``result`` was learned from; see :meth:`Problem.read_new`.
        Or a source of rows, read in chunks: any object with a ``shape`` whose ``X[start:stop]`` is
        a dense or sparse array of rows.
    n_neighbors
        Neighbors of each sample, itself not counted.
    max_candidates
        Largest number of distances to compute per sample. By default 40 times ``n_neighbors`` in
        an exhaustive search, where the neighbors of samples that need more are not ``proved``; 10
        times with an index, most of which are left out.
    check
        Number of random samples to compare with all others, to measure the recall.
    random_state
        Seed for the choice of these samples, and of the clusters of the index.
    n_threads, progress
        As for :func:`cometric.learn`.
    search
        "exhaustive" computes bounds of all pairs and proves neighbors; "index" finds candidates in
        clusters of samples; "auto" takes the index for more than 5,000 samples on a CPU, and bounds
        of all pairs on a GPU.
    folder
        Where completed parts are stored. A run that was interrupted, even by kill -9, continues
        when called again with the same arguments; the result is the same, bit by bit. Searches on a
        GPU are not stored.
    device
        "cuda" for bounds, distances and check on a GPU; for entropic and unbalanced transport, and
        for the norms "l1", "local", "lsa", "cosine" and "hellinger". The CPU by default.
    memory_limit
        Bytes to stay below, about; the free memory by default. Stored samples that would take too
        large a part of it are moved to a temporary file.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> result = cm.learn(X, eps=0, tau=0.1)
    >>> cm.neighbor_graph(result, X, 2).graph.shape
    (12, 12)
    """
    check_is_result(result)
    check_norm(result, "samples")
    source = as_rows(X)
    X = X if source is None else source
    n = shape_of(X)[0]
    check_search(n, n_neighbors, max_candidates, check, random_state, search, folder)
    on_cpu = check_device(device, search)
    by_index = search == "index" or (search == "auto" and n > EXHAUSTIVE and on_cpu)
    given = (n_neighbors, max_candidates, check, random_state, search)
    seed = int(np.random.default_rng(random_state).integers(2**31))
    queries = np.random.default_rng(random_state).choice(n, min(check, n), replace=False)
    with workers(n_threads):
        tasks = thread_count(n_threads)
        if by_index:
            stored = store_samples(result, X, array_limit(memory_limit))
            samples = Samples(result, stored, n_threads)
            kept = Progress(folder, _origin(result, stored, given))
            finder = IndexSearch(samples, n_neighbors, max_candidates, seed, tasks)
            index, near = finder.run(kept, progress, array_limit(memory_limit))
            proved, proofs, recall = np.zeros(n, bool), 0, math.nan
            if len(queries):
                recall, complete, proofs = finder.recall(queries, near[queries], progress)
                proved[complete] = True
            graph, compared = neighbor_matrix(index, near, n), finder.compared
            return Neighbors(graph, proved, recall, len(queries), compared, "index", proofs)
        hist, full = read_histograms(result, X)
        limit = min(n - 1, 40 * n_neighbors if max_candidates is None else max_candidates)
        exhaustive: Any
        if on_cpu:
            kept = Progress(folder, _origin(result, full, given))
            distances = HeldDistances(result, "samples", hist, full, n_threads)
            exhaustive = _Search(distances, n_neighbors, limit, tasks)
            blocks = [exhaustive.kept_block(rows, kept) for rows in exhaustive.blocks(progress)]
            index, near, proved, counts = (
                np.concatenate(part) for part in zip(*blocks, strict=True)
            )
        else:
            from cometric.large.search_torch import TensorSearch

            exhaustive = TensorSearch(result, hist, full, n_neighbors, limit, device)
            index, near, proved, counts = exhaustive.run(progress)
        graph = neighbor_matrix(index, near, n)
        recall = exhaustive.recall(queries, near[queries], progress) if len(queries) else math.nan
    compared, checked = float(counts.mean()), len(queries)
    return Neighbors(graph, proved, recall, checked, compared, check_proofs=checked)


def nearest_known(
    result: Result,
    X: Any,
    n_neighbors: int,
    *,
    n_threads: int | None = None,
    progress: bool = False,
) -> sparse.csr_matrix:
    """The same as ``result.transform(X, n_neighbors=n_neighbors)``, from few of all distances.

    A distance is computed only if its lower bound does not prove that ``n_neighbors`` learned
    samples are nearer. For transports that have such bounds: see :func:`has_bounds`.
    """
    new, known = result.problem.read_new(X), result.problem.samples
    check_neighbors(n_neighbors, len(known.labels))
    first, count = new.hist.shape[0], known.hist.shape[0]
    hist = sparse.vstack([new.hist, known.hist], format="csr")
    full = sparse.vstack([new.full, known.full], format="csr")
    with workers(n_threads):
        distances = HeldDistances(result, "samples", hist, full, n_threads)
        tasks = thread_count(n_threads)
        search = _Search(distances, min(n_neighbors, count), count, tasks, first)
        index, near, _, _ = search.run(progress)
    if count < len(known.labels):
        index, near = _with_copies(index - first, near, known.labels, n_neighbors)
    else:
        index = index - first
    graph = neighbor_matrix(index, near, len(known.labels))
    return graph if first == len(new.labels) else graph[new.labels]


def _with_copies(index: Index, near: Matrix, labels: Index, k: int) -> tuple[Index, Matrix]:
    """The k nearest samples, from the nearest distinct ones; ``labels`` are those of each."""
    copies = [np.flatnonzero(labels == item) for item in range(int(labels.max()) + 1)]
    rows = []
    for items, values in zip(index, near, strict=True):
        numbers = np.concatenate([copies[item] for item in items])
        away = np.repeat(values, [len(copies[item]) for item in items])
        order = np.lexsort((numbers, away))[:k]
        rows.append((numbers[order], away[order]))
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])


def has_bounds(result: Result) -> bool:
    """Whether lower bounds of distances between samples can replace most of them.

    Not where distances are negative, or pairs unsolved: `transform` then warns.
    """
    transport = result.parameters.transport
    doubtful = result.status in (Status.NOT_PSD, Status.INNER_NOT_CONVERGED)
    return type(transport) is Entropic and transport.eps >= LEAST_EPS and not doubtful


def shape_of(X: Any) -> tuple[int, int]:
    """The numbers of samples and of features."""
    shape = getattr(X, "shape", None)
    if shape is None or len(shape) != 2:  # a list, or what is not a matrix
        shape = read_matrix(X, "X", texts=COUNT_SAME_WORDS).shape
    n, m = shape
    return int(n), int(m)


def store_samples(result: Result, X: Any, limit: float) -> StoredRows:
    """The samples over the learned features, compressed; read in chunks if ``X`` is a source."""
    features = result.problem.features
    names = names_of(X)
    source = is_source(X)
    chunks = read_chunks(X) if source else iter([read_samples(X)])
    places = find_bins(shape_of(X)[1], names[1], features.kept, features.names, "samples", names[0])
    if isinstance(X, Reread) and np.array_equal(places, np.arange(X.shape[1])):
        return X.rows
    return store_rows(_learned_columns(chunks, places, names[1], features.item_names), len(places),
                      limit)  # fmt: skip


def _learned_columns(chunks: Any, places: Index, names: Any, learned: Any) -> Iterator[Any]:
    """The learned features of chunks of samples; a warning if the first chunk has others."""
    start = 0
    for chunk in chunks:
        differences = describe_differences(chunk, places, names, learned, "samples")
        if differences and start == 0:
            warn(differences)
        part = select(chunk, places)
        unknown = np.flatnonzero(np.diff(part.indptr) == 0)
        if len(unknown):
            remedy = "They cannot be compared; leave them out."
            raise BadData("X", Fault.UNKNOWN, len(unknown), remedy, row=int(unknown[0]) + start)
        start += chunk.shape[0]
        yield part


def _origin(result: Result, rows: Any, given: tuple[Any, ...]) -> str:
    """A checksum of the metric, the samples and the options."""
    return digest(
        {
            "indptr": rows.indptr,
            "indices": rows.indices,
            "data": rows.data,
            "cost": np.asarray(result.features),
            "values": np.array(result.values),
            "options": np.array(repr((given, FORMAT))),
        }
    )


def read_histograms(result: Result, X: Any) -> tuple[sparse.csr_array, sparse.csr_array]:
    """The samples ``X`` as histograms, one row each, over distinct features and over all."""
    check_norm(result, "samples")
    if is_source(X):
        stored = store_samples(result, X, array_limit(None))
        features, numbers = result.problem.features, np.arange(stored.shape[0])
        full = smooth(normalize(stored.take(numbers)), result.problem.smoothing)
        side = make_side(full, numbers, features.labels, np.ones(len(numbers), bool), None)
        return side.hist, side.full
    new = result.problem.read_new(X)
    if new.hist.shape[0] == len(new.labels):
        return new.hist, new.full
    return new.hist[new.labels], new.full[new.labels]  # equal samples are neighbors, too


class _Bounds:
    """Lower bounds of all distances, proved in docs/scale.md; the lowest are candidates.

    The bound of the distance between a_i and a_j is ``p_i + q_j - <x_i, a_j>``, with x dense, plus
    their weighted l1 norm or reference, which is exact. Other norms are not part of the bound.
    """

    def __init__(self, distances: HeldDistances, tasks: int, first: int = 0) -> None:
        self._hist, self._tasks, self._scale = distances.hist, tasks, distances.scale
        self._first = first  # the first candidate: earlier samples are new
        bounds = distances.transport.lower_bounds(distances.phi, distances.hist, distances.cost)
        self._p, self._q, self._means = (self._scale * part for part in bounds[:3])
        self._image = bounds.image
        self._share = distances.weight if distances.norm == "l1" else 0.0
        self._norms, self._weight = distances.norms, distances.weight
        self.dense = distances.has_reference  # bounds of all samples are in memory

    def lowest(self, rows: slice, count: int) -> tuple[Matrix, Index]:
        """The ``count`` lowest bounds of the samples ``rows``, in order, and their partners."""
        image = self._scale * self._image(rows)
        parts = (image, self._p, self._q, self._means)
        largest = max(float(np.abs(part).max(initial=0.0)) for part in parts)
        size = int(np.diff(self._hist.indptr).max()) + 16
        p = self._p[rows] - size * ROUNDING * (largest + self._share)
        q = np.concatenate([np.full(self._first, np.inf), self._q[self._first :]])
        extra = np.empty((0, 0))
        if self.dense and self._norms is not None:
            extra = self._weight * self._norms.between(rows, slice(0, self._hist.shape[0]))
            extra *= 1.0 - SLACK
        bounds, index = candidates.lowest(
            *_csr_parts(self._hist), rows.start, p, q, image, self._means, self._share,
            extra, count, self._tasks,
        )  # fmt: skip
        return bounds, index


class _Search:
    """Compares candidates in the order of their bounds, until the others are proved farther.

    With ``first`` > 0, the samples before it are new, and those from it on are the candidates.
    """

    def __init__(
        self, distances: HeldDistances, k: int, limit: int, tasks: int, first: int = 0
    ) -> None:
        self._distances, self._k, self._limit = distances, k, limit
        self._bounds = _Bounds(distances, tasks, first)
        self._n = distances.hist.shape[0]
        self._rows = first or self._n
        self._others = self._n - first if first else self._n - 1

    def run(self, progress: bool) -> tuple[Index, Matrix, NDArray[np.bool_], Index]:
        """Neighbors of all samples, as :meth:`block`."""
        blocks = [self.block(rows) for rows in self.blocks(progress)]
        index, near, proved, compared = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return index, near, proved, compared

    def blocks(self, progress: bool) -> Iterator[slice]:
        widest = max(self._distances.hist.shape[1], self._limit, BLOCK // ROWS)
        widest = max(widest, self._n if self._bounds.dense else 0)
        with bar_of_pairs(progress, self._rows, "sample", "finding neighbors") as report:
            for rows in _cut((self._rows, widest)):
                yield rows
                report(rows.stop, self._rows)

    def kept_block(self, rows: slice, kept: Progress) -> tuple[Any, ...]:
        """The same as :meth:`block`, loaded if it is stored."""
        name = f"neighbors-{rows.start:09d}"
        found = kept.load(name)
        if found is None:
            found = dict(zip(BLOCK_PARTS, self.block(rows), strict=True))
            kept.save(name, found)
        return tuple(found[part] for part in BLOCK_PARTS)

    def block(self, rows: slice) -> tuple[Index, Matrix, NDArray[np.bool_], Index]:
        """Neighbors, their distances, whether they are proved, and the number of candidates."""
        k, limit = self._k, self._limit
        low, index = self._bounds.lowest(rows, min(limit + 1, self._others))
        if low.shape[1] == limit:  # all other samples are candidates
            low = np.pad(low, ((0, 0), (0, 1)), constant_values=np.inf)
        index = index[:, :limit]
        samples = np.arange(rows.start, rows.stop)
        distances = np.full(index.shape, np.inf)
        compared, stop = np.zeros(len(samples), np.int64), 4 * k // 3
        while True:  # each round of distances excludes more of the other candidates
            worst = np.partition(distances, k - 1, axis=1)[:, k - 1]
            place = np.arange(limit)
            due = (place < stop) & (place >= compared[:, None]) & (low[:, :limit] < worst[:, None])
            if not due.any():
                break
            i = np.nonzero(due)[0]
            distances[due] = self._distances.pairs(np.stack([samples[i], index[due]], axis=1))
            compared += due.sum(axis=1)
            stop *= 2
        order = np.lexsort((index, distances), axis=1)[:, :k]
        near = np.take_along_axis(distances, order, axis=1)
        proved = low[np.arange(len(samples)), compared] >= near[:, -1]
        return np.take_along_axis(index, order, axis=1), near, proved, compared

    def recall(self, queries: Index, near: Matrix, progress: bool = False) -> float:
        """The fraction of the distances ``near`` that are those of true neighbors."""
        hits = 0
        with bar_of_pairs(progress, len(queries), "sample", "measuring recall") as report:
            for done, (i, row) in enumerate(zip(queries, near, strict=True), 1):
                others = np.delete(np.arange(self._n), i)
                values = self._distances.pairs(np.stack([np.full(len(others), i), others], axis=1))
                true = np.partition(values, self._k - 1)[self._k - 1]
                hits += int(np.count_nonzero(row <= true * (1.0 + 1e-6) + 1e-12))
                report(done, len(queries))
        return hits / (len(queries) * self._k)


def _cut(shape: tuple[int, int]) -> Iterator[slice]:
    """Slices of the rows of a matrix, with at most ``BLOCK`` entries each."""
    step = max(1, BLOCK // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def _csr_parts(rows: sparse.csr_array) -> tuple[Index, NDArray[np.int32], NDArray[np.float64]]:
    """The arrays of a sparse matrix, in the types of the kernels."""
    return rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
