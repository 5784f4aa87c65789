"""Nearest neighbors of all samples under a learned feature metric, without an n x n matrix.

Distances are computed for candidates only. An exhaustive search computes a lower bound of every
distance, in less than a hundredth of its time; it proves that the other samples are farther away.
For many samples an index proposes the candidates, and the recall is measured.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.arguments import check_count, checks_options
from cometric.core.digest import digest
from cometric.core.histograms import make_side, normalize, place_repeats, smooth
from cometric.core.inputs import BadData, Fault
from cometric.core.matching import describe_differences, find_bins, select
from cometric.core.nearest import check_neighbors, neighbor_matrix
from cometric.core.types import Index, Matrix, Status
from cometric.core.warn import warn
from cometric.files.rows import InMemory, Source, rows_of
from cometric.kernels import thread_count
from cometric.landmarks.exhaustive import ExhaustiveSearch
from cometric.landmarks.index import AT_ONCE, IndexSearch
from cometric.landmarks.run_folder import RunFolder, open_run
from cometric.landmarks.samples import Samples
from cometric.landmarks.stored import StoredRows
from cometric.results.extension import HeldDistances, on_gpu
from cometric.results.held import check_norm
from cometric.results.result import Result, check_is_result
from cometric.runtime.devices import check_single
from cometric.runtime.threads import workers
from cometric.transports.entropic import Entropic

EXHAUSTIVE = 5000
"""Up to this many samples, "auto" is an exhaustive search."""

SEARCHES = ("auto", "exhaustive", "index")

LEAST_EPS = 0.01
"""Least ``eps`` for which lower bounds are used."""


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
    n_threads: int | None = None,
    progress: bool = False,
    search: str = "auto",
    folder: str | os.PathLike[str] | None = None,
    device: str | None = None,
) -> Neighbors:
    """The nearest neighbors among the samples ``X`` under the feature metric of ``result``.

    Distances are those of :meth:`Result.transform`, Phi_A(C) / mu. Memory grows with n times
    ``n_neighbors`` and the nonzero entries of X. The time of an exhaustive search grows with n^2:
    bounds of all pairs, each with as many operations as a sample has nonzero features. With an
    index it grows a little faster than n.

    Parameters
    ----------
    result
        What :func:`learn` returned, or the ``result`` of :func:`learn_landmarks`.
    X
        Samples over the features that ``result`` was learned from; see :meth:`Problem.read_new`.
        Or a source of rows, read in chunks: any object with a ``shape`` whose ``X[start:stop]`` is
        a dense or sparse array of rows.
    n_neighbors
        Neighbors of each sample, itself not counted.
    max_candidates
        Largest number of distances to compute per sample. By default 40 times ``n_neighbors`` in
        an exhaustive search, where the neighbors of samples that need more are not ``proved``; 10
        times with an index, which needs far fewer as a rule.
    check
        Number of random samples to compare with all others, to measure the recall.
    n_threads, progress
        As for :func:`cometric.learn`.
    search
        "exhaustive" computes bounds of all pairs and proves neighbors; "index" finds candidates in
        clusters of samples; "auto" takes the index for more than 5,000 samples on a CPU, and bounds
        of all pairs on a GPU.
    folder
        Where completed parts are stored. After an interruption, even kill -9, the same call
        continues, with a bitwise identical result. A folder of another run, or in use by one, is
        refused. Searches on a GPU are not stored.
    device
        "cuda" for bounds, distances and check on a GPU; for entropic and unbalanced transport, and
        for the norms "l1", "local-0.2", "lsa", "cosine" and "hellinger". The CPU by default, for
        "local", and without Triton.

    Returns
    -------
    Neighbors
        The ``graph`` of distances, the samples whose neighbors are ``proved``, and the ``recall``.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> result = cm.learn(X, eps=0, tau=0.1)
    >>> cm.neighbor_graph(result, X, 2).graph.shape
    (12, 12)
    """
    check_is_result(result)
    source = rows_of(X)
    request = Request(
        source.shape[0], n_neighbors, max_candidates, check, 0, search,
        n_threads=n_threads, progress=progress, device=device, memory_limit=None,
    )  # fmt: skip
    on_cpu = not on_gpu(result, "samples", device)
    with open_run(folder if on_cpu else None) as run:
        return find_neighbors(result, source, request, run, on_cpu)


@dataclass(frozen=True)
class Request:
    """Options of a search, checked; those with ``compare=False`` do not change its result."""

    n: int = field(compare=False)  # samples
    n_neighbors: int
    max_candidates: int | None
    check: int
    random_state: int | None
    search: str
    n_threads: int | None = field(compare=False)
    progress: bool = field(compare=False)
    device: str | None = field(compare=False)  # searches on a GPU are not stored
    memory_limit: float | None = field(compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.search, str) or self.search not in SEARCHES:
            raise ValueError(
                f"`search` is {self.search!r}; choose {', '.join(map(repr, SEARCHES))}."
            )
        check_neighbors(self.n_neighbors, self.n - 1)
        most, device = self.max_candidates, self.device
        if most is not None:
            check_count("max_candidates", most)
            if min(self.n - 1, most) < self.n_neighbors:
                raise ValueError(
                    f"`max_candidates` is {most}; at least `n_neighbors` = {self.n_neighbors} are "
                    "needed."
                )
        if self.check != 0:
            check_count("check", self.check)
        check_count("random_state", self.random_state, least=0, optional=True)
        if device is not None:
            check_single(device)
        if self.search == "index" and device is not None and str(device) != "cpu":
            raise ValueError(
                f"`search` is 'index' and `device` is {str(device)!r}; a GPU computes bounds of "
                "all pairs. Choose search='exhaustive', or device='cpu'."
            )

    def queries(self) -> Index:
        """The samples whose neighbors are checked."""
        rng = np.random.default_rng(self.random_state)
        return rng.choice(self.n, min(self.check, self.n), replace=False)

    def origin(self, result: Result, rows: Any) -> str:
        """A checksum of all that the neighbors of these rows depend on."""
        parts = {"indptr": rows.indptr, "indices": rows.indices, "data": rows.data}
        return digest({"result": result.identity, "options": self, **parts})


def find_neighbors(
    result: Result, source: Source, request: Request, run: RunFolder, on_cpu: bool
) -> Neighbors:
    """The same as :func:`neighbor_graph`, with completed parts in ``run`` if on the CPU."""
    check_norm(result, "samples")
    many = request.n > EXHAUSTIVE and on_cpu
    by_index = request.search == "index" or (request.search == "auto" and many)
    with workers(request.n_threads):
        if by_index:
            return _by_index(result, source, request, run)
        return _by_bounds(result, source, request, run if on_cpu else None)


def _by_index(result: Result, source: Source, request: Request, run: RunFolder) -> Neighbors:
    """Neighbors among candidates of an index."""
    rows = learned_rows(result, source, request.memory_limit)
    seed = run.bind(lambda: request.origin(result, rows), request.random_state)
    request = replace(request, random_state=seed)
    tasks = thread_count(request.n_threads)
    at_once = min(AT_ONCE, tasks)
    samples = Samples(result, rows, tasks // at_once)
    start = int(np.random.default_rng(request.random_state).integers(2**31))
    finder = IndexSearch(samples, request.n_neighbors, request.max_candidates, start, at_once)
    index, near = finder.run(run, request.progress, request.memory_limit)
    queries = request.queries()
    proved, proofs, recall = np.zeros(request.n, bool), 0, math.nan
    if len(queries):
        recall, complete, proofs = finder.recall(queries, near[queries], request.progress)
        proved[complete] = True
    graph = neighbor_matrix(index, near, request.n)
    return Neighbors(graph, proved, recall, len(queries), finder.compared, "index", proofs)


def _by_bounds(
    result: Result, source: Source, request: Request, run: RunFolder | None
) -> Neighbors:
    """Neighbors proved by bounds of all distances; on a GPU without ``run``."""
    hist, full = read_histograms(result, source)
    n, k, progress = request.n, request.n_neighbors, request.progress
    limit = min(n - 1, 40 * k if request.max_candidates is None else request.max_candidates)
    finder: Any
    if run is not None:
        seed = run.bind(lambda: request.origin(result, full), request.random_state)
        request = replace(request, random_state=seed)
        distances = HeldDistances(result, "samples", hist, full, request.n_threads)
        finder = ExhaustiveSearch(distances, k, limit, thread_count(request.n_threads))
        index, near, proved, counts = finder.run(progress, run)
    else:
        from cometric.landmarks.search_torch import TensorSearch

        finder = TensorSearch(result, hist, full, k, limit, request.device)
        index, near, proved, counts = finder.run(progress)
    queries = request.queries()
    recall = finder.recall(queries, near[queries], progress) if len(queries) else math.nan
    graph, compared, checked = neighbor_matrix(index, near, n), float(counts.mean()), len(queries)
    return Neighbors(graph, proved, recall, checked, compared, check_proofs=checked)


def nearest_known(
    result: Result,
    X: Any,
    n_neighbors: int,
    *,
    n_threads: int | None = None,
    progress: bool = False,
) -> sparse.csr_matrix:
    """The same as ``result.transform(X, n_neighbors=n_neighbors)``, computing fewer distances.

    A distance is skipped if its lower bound proves that ``n_neighbors`` learned samples are nearer.
    Needs a transport with such bounds, see :func:`has_bounds`.
    """
    new, known = result.problem.read_new(X), result.problem.samples
    check_neighbors(n_neighbors, len(known.labels))
    first, count = new.hist.shape[0], known.hist.shape[0]
    hist = sparse.vstack([new.hist, known.hist], format="csr")
    full = sparse.vstack([new.full, known.full], format="csr")
    with workers(n_threads):
        distances = HeldDistances(result, "samples", hist, full, n_threads, first)
        tasks = thread_count(n_threads)
        search = ExhaustiveSearch(distances, min(n_neighbors, count), count, tasks, first)
        index, near, _, _ = search.run(progress)
    if count < len(known.labels):
        index, near = _with_copies(index - first, near, known.labels, n_neighbors)
    else:
        index = index - first
    graph = neighbor_matrix(index, near, len(known.labels))
    return graph if first == len(new.labels) else graph[new.labels]


def _with_copies(index: Index, near: Matrix, labels: Index, k: int) -> tuple[Index, Matrix]:
    """The k nearest samples, from the nearest distinct ones; ``labels`` maps samples to these."""
    copies = [np.flatnonzero(labels == item) for item in range(int(labels.max()) + 1)]
    rows = []
    for items, values in zip(index, near, strict=True):
        numbers = np.concatenate([copies[item] for item in items])
        away = np.repeat(values, [len(copies[item]) for item in items])
        order = np.lexsort((numbers, away))[:k]
        rows.append((numbers[order], away[order]))
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])


def has_bounds(result: Result) -> bool:
    """Whether lower bounds can save computing most distances between samples.

    False if distances are negative, or pairs unsolved: :meth:`Result.transform` then warns.
    """
    transport = result.parameters.transport
    doubtful = result.status in (Status.NOT_PSD, Status.INNER_NOT_CONVERGED)
    return type(transport) is Entropic and transport.eps >= LEAST_EPS and not doubtful


def learned_rows(result: Result, source: Source, memory_limit: float | None) -> StoredRows:
    """The samples over the learned features, compressed; ``source`` itself if it has just these."""
    bins, m, names = result.problem.features, source.shape[1], source.feature_names
    places = find_bins(m, names, bins.kept, bins.names, "samples", source.sample_names)
    if isinstance(source, StoredRows) and np.array_equal(places, np.arange(m)):
        return source
    learned = _learned_columns(source, places, bins.item_names)
    return StoredRows(learned, len(places), memory_limit)


def _learned_columns(source: Source, places: Index, learned: Any) -> Iterator[sparse.csr_array]:
    """Chunks of samples over the learned features; warns if the features of the first differ."""
    start = 0
    for chunk in source.chunks():
        names = source.feature_names
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


def read_histograms(result: Result, source: Source) -> tuple[sparse.csr_array, sparse.csr_array]:
    """The samples as histograms, one row each, over distinct features and over all."""
    problem = result.problem
    if isinstance(source, InMemory):
        new = problem.read_new(source.rows)
    else:
        rows = learned_rows(result, source, None)
        hist = smooth(normalize(problem.features.scaled(rows[:])), problem.smoothing)
        full, labels = place_repeats(hist, None, problem.samples.full, problem.rounding)
        kept = np.ones(full.shape[0], bool)
        new = make_side(full, labels, problem.features.labels, kept, None)
    if new.hist.shape[0] == len(new.labels):
        return new.hist, new.full
    return new.hist[new.labels], new.full[new.labels]  # equal samples are neighbors, too
