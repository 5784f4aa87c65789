"""A feature metric learned from some samples, and a neighbor graph of all, in O(n) memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from inspect import signature
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse

from cometric.answers.extension import on_gpu
from cometric.answers.result import Result, from_arrays
from cometric.core.arguments import check_options, shown
from cometric.core.digest import digest
from cometric.core.histograms import normalize
from cometric.core.inputs import Names, read_matrix, read_samples
from cometric.core.labels import NO_GROUP, groups_of, indicators
from cometric.core.types import Index, Matrix
from cometric.files.rows import as_rows
from cometric.large.checks import check_device, check_search
from cometric.large.neighbors import Neighbors, Request, find_neighbors, shape_of
from cometric.large.progress import Progress
from cometric.large.rows import (
    StoredRows,
    StoredSource,
    array_limit,
    is_source,
    names_of,
    read_chunks,
    store_rows,
)
from cometric.running.learning import learn
from cometric.running.settings import Settings

METHODS = ("uniform", "kmeans++")

DEFAULT = 400
"""Landmarks by default, or one for every ``PER_FEATURE`` features if these are more."""

PER_FEATURE = 5

PART = 20_000
"""Samples in memory at a time, uncompressed."""

SKETCH = 32
"""Columns of the random projection in which "kmeans++" measures distances."""


_PARTS = {part.name for part in fields(Result)}


@dataclass(frozen=True, eq=False)
class Sketch:
    """A metric between features, and the nearest neighbors of each sample under it.

    ``result`` was learned from the landmarks only, ``neighbors`` are those of all samples.
    ``landmarks`` are the numbers of the samples chosen, None for metacells.

    To write a sketch, use ``result.save(path)`` for the metric, and
    ``scipy.sparse.save_npz(path, graph)`` for the neighbors.
    """

    result: Result
    neighbors: Neighbors
    landmarks: Index | None

    @property
    def features(self) -> Matrix:
        """Distances between the features, maximum 1."""
        return self.result.features

    @property
    def graph(self) -> sparse.csr_matrix:
        """Distances of each sample to its nearest neighbors, (n, n), sparse."""
        return self.neighbors.graph

    def nearest(self, items: Any, k: int = 10) -> list[tuple[str, float]]:
        """The k features nearest to one or several, as :meth:`Result.nearest`."""
        return self.result.nearest(items, k)

    def transform(
        self,
        X: Any,
        *,
        n_neighbors: int | None = None,
        device: Any = "cpu",
        n_threads: int | None = None,
        progress: bool = False,
    ) -> Matrix | sparse.csr_matrix:
        """Distances of new samples to the landmarks, as :meth:`Result.transform`."""
        return self.result.transform(
            X, n_neighbors=n_neighbors, device=device, n_threads=n_threads, progress=progress
        )

    def __getattr__(self, name: str) -> Any:
        message = f"'Sketch' object has no attribute '{name}'"
        if name == "save":
            message += (
                ". Save the metric by `.result.save(path)`, and the neighbors by "
                "`scipy.sparse.save_npz(path, sketch.graph)`"
            )
        elif name == "samples":
            message += (
                ": distances between all samples are not computed. Those between the landmarks "
                "are in `.result.samples`, those to the nearest neighbors in `.graph`"
            )
        elif not name.startswith("_") and (hasattr(Result, name) or name in _PARTS):
            message += f". That of the metric, learned from the landmarks, is `.result.{name}`"
        raise AttributeError(message, name=name, obj=self)

    def __repr__(self) -> str:
        n, m = self.graph.shape[0], len(self.features)
        return f"Sketch({n} samples, {m} features, {len(self.result.samples)} landmarks)"

    def __str__(self) -> str:
        neighbors = self.neighbors
        n = len(neighbors.proved)
        lines = [
            f"Learned a distance between {len(self.features)} features from "
            f"{len(self.result.samples)} landmarks, and {neighbors.graph.nnz // n} neighbors of "
            f"each of {n} samples",
            f"  landmarks        {self.result.status.value}, residual {self.result.residual:.2e}",
            _proof(neighbors),
            f"  recall           {neighbors.measured} samples compared with all",
            f"  compared         {neighbors.compared:.0f} distances per sample",
            "  parts            .result (the metric), .neighbors, .landmarks",
        ]
        return "\n".join(lines)


def _proof(neighbors: Neighbors) -> str:
    if neighbors.search == "index":
        return "  proved           nothing: candidates came from an index, only the recall counts"
    share = 100 * neighbors.proved.mean()
    return f"  proved           the neighbors of {share:.1f} % of the samples"


def learn_landmarks(
    X: Any,
    landmarks: Any = None,
    n_neighbors: int = 15,
    *,
    n_landmarks: int | None = None,
    method: str = "uniform",
    max_candidates: int | None = None,
    check: int = 20,
    random_state: int | None = 0,
    n_threads: int | None = None,
    progress: bool = False,
    search: str = "auto",
    folder: str | os.PathLike[str] | None = None,
    device: str | None = None,
    **options: Any,
) -> Sketch:
    """The feature metric learned from some samples, and a neighbor graph of all samples.

    For data whose n x n distances do not fit into memory: memory grows with n times
    ``n_neighbors``.

    Parameters
    ----------
    X
        Nonnegative matrix, samples by features, as for :func:`cometric.learn`; or a source of
        rows, read in chunks, as for :func:`cometric.neighbor_graph`.
    landmarks
        The number of samples to learn from, by default 400, or a fifth of the number of features
        if that is more; or a label for each sample, to learn from the sums of all samples with the
        same label (metacells; samples whose label is missing are in none of them); or a matrix of
        metacells over the same features.
    n_landmarks
        The number of landmarks. Together with labels, samples are drawn instead of summed: from
        each label in proportion to its size, and at least one.
    method
        For a number of landmarks: "uniform" draws them at random, "kmeans++" draws each with a
        probability proportional to its squared distance from those before it, measured in a random
        projection. Samples are added so that every feature has mass in some landmark.
    n_neighbors, max_candidates, check, search
        See :func:`cometric.neighbor_graph`.
    folder
        Where the learned metric and completed parts of the search are stored; an interrupted call
        continues when it is repeated. A folder of another run, or in use by one, is refused.
    random_state
        Seed for the choice of landmarks, and of the samples that are checked.
    device
        "cuda" to learn and to find neighbors on a GPU; with the reference "local", to learn only.
    n_threads, progress
        As for :func:`cometric.learn`.
    options
        Passed on to :func:`cometric.learn`: eps, tau, tol and so on.

    Returns
    -------
    Sketch
        The ``result`` of learning from the landmarks, the ``neighbors`` of all samples, and the
        numbers of the ``landmarks``.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> cm.learn_landmarks(X, 8, n_neighbors=2, eps=0, tau=0.1)
    Sketch(12 samples, 10 features, 8 landmarks)
    """
    known = {**signature(learn_landmarks).parameters, **signature(learn).parameters}
    check_options(options, known, "learn_landmarks")
    source = as_rows(X)
    X = X if source is None else source
    check_device(device, search)
    settings = Settings(**options, device=device or "cpu")
    limit = array_limit(settings.memory_limit)
    n, m = shape_of(X)
    check_search(n, n_neighbors, max_candidates, check, random_state, search, folder)
    request = Request(
        n_neighbors, max_candidates, check, random_state, search,
        n_threads=n_threads, progress=progress, device=device, memory_limit=settings.memory_limit,
    )  # fmt: skip
    with Progress(folder) as stored:
        matrix = store_rows(read_chunks(X) if is_source(X) else iter([read_samples(X)]), m, limit)
        names = rows, columns = names_of(X)
        drawing = landmarks, n_landmarks, method
        stored.bind(lambda: _origin(matrix, names, drawing, settings, request))
        request = replace(request, random_state=stored.seed(random_state))
        chosen, counts = _draw(matrix, landmarks, n_landmarks, method, request.random_state)
        data: Any = counts
        if rows is not None and columns is not None:
            numbers = map(str, range(counts.shape[0]))
            drawn = numbers if chosen is None else (rows[i] for i in chosen)
            data = _Named(counts, list(drawn), columns)
        arrays = stored.load("result")
        if arrays is None:
            learning = {"n_threads": n_threads, "progress": progress, **options}
            result = learn(data, device=settings.device, **learning)
            stored.save("result", result.to_arrays())
        else:
            result = from_arrays(arrays, str(folder))
        every = StoredSource(matrix, rows, columns)
        on_cpu = not on_gpu(result, "samples", device)
        found = find_neighbors(result, every, request, stored if on_cpu else Progress(), on_cpu)
    return Sketch(result, found, chosen)


def _origin(
    matrix: StoredRows,
    names: tuple[Names, Names],
    drawing: tuple[Any, ...],
    settings: Settings,
    request: Request,
) -> str:
    """A checksum of everything that determines a sketch."""
    stored = settings.to_json("answer")
    given = {name: getattr(settings, name) for name in stored}
    matrices = {  # whose JSON is only "matrix"
        name: value
        for name, value in given.items()
        if isinstance(value, tuple | list) or hasattr(value, "shape")
    }
    return digest(
        {
            "indptr": matrix.indptr,
            "indices": matrix.indices,
            "data": matrix.data,
            "names": names,
            "drawing": drawing,
            "settings": [stored, matrices],
            "request": request,
        }
    )


@dataclass(frozen=True)
class _Named:
    """A matrix with names, in the form of an AnnData, so that the result has names too."""

    X: sparse.csr_array
    obs_names: list[str]
    var_names: list[str]


def default_count(n: int, m: int) -> int:
    """The number of landmarks by default; see docs/scale.md for how good a sketch is."""
    return min(n, max(DEFAULT, m // PER_FEATURE))


def _draw(
    matrix: StoredRows,
    landmarks: Any,
    count: int | None,
    method: str,
    random_state: int | None,
) -> tuple[Index | None, sparse.csr_array]:
    """The numbers of the samples chosen (None for metacells), and the matrix to learn from."""
    n, m = matrix.shape
    if count is not None:
        check_landmarks(count, n, "n_landmarks")
    if landmarks is None:
        landmarks = default_count(n, m) if count is None else count
    elif count is not None and (isinstance(landmarks, Integral) or np.ndim(landmarks) != 1):
        raise ValueError(
            f"`landmarks` and `n_landmarks` are both given, which is possible only if `landmarks` "
            f"are labels. Leave out `n_landmarks` = {count}."
        )
    if isinstance(landmarks, Integral):
        chosen = draw_landmarks(matrix, landmarks, method, random_state)
        return chosen, matrix.take(chosen)
    if sparse.issparse(landmarks) or np.ndim(landmarks) == 2:
        metacells = read_matrix(landmarks, "landmarks")
        if metacells.shape[1] != m:
            raise ValueError(
                f"`landmarks` has {metacells.shape[1]} features; `X` has {m}. Pass metacells over "
                "the same features."
            )
        return None, metacells
    groups = _groups(landmarks, n, m)
    if count is not None:
        drawn = _stratified(groups, count, random_state)
        chosen = _cover(matrix, drawn)
        return chosen, matrix.take(chosen)
    sums = sparse.csr_array((int(groups.max()) + 1, m))
    for part in _parts(n):
        members = indicators(groups[part], sums.shape[0])
        sums = sums + members @ matrix.take(np.arange(part.start, part.stop))
    return None, sums.tocsr()


def _groups(landmarks: Any, n: int, m: int) -> Index:
    """The number of the label of each sample, ``NO_GROUP`` where it is missing."""
    labels = np.asarray(landmarks)
    wanted = (
        f"pass a whole number, a label for each of the {n} samples, or a matrix of metacells over "
        f"the {m} features."
    )
    if labels.ndim == 0:
        raise ValueError(f"`landmarks` is {shown(landmarks)}; {wanted}")
    if labels.shape != (n,) or labels.dtype.kind not in "biuOSU":
        raise ValueError(f"`landmarks` has shape {labels.shape} and dtype {labels.dtype}; {wanted}")
    names, groups = groups_of(landmarks)
    if not names:
        raise ValueError("`landmarks` are labels that are all missing; pass some at least.")
    return groups


def _stratified(groups: Index, count: int, random_state: int | None) -> Index:
    """``count`` samples, from each group a share in proportion to its size, at least one."""
    n, rng = int((groups != NO_GROUP).sum()), np.random.default_rng(random_state)
    if count > n:
        raise ValueError(f"`n_landmarks` is {count}; choose at most the {n} samples with a label.")
    drawn = []
    for group in range(int(groups.max()) + 1):
        members = np.flatnonzero(groups == group)
        share = max(1, round(count * len(members) / n))
        drawn.append(rng.choice(members, share, replace=False))
    return np.concatenate(drawn)


def check_landmarks(count: Any, n: int, name: str = "landmarks") -> None:
    """Raise unless ``count`` of ``n`` samples can be landmarks; ``name`` is the argument."""
    whole = isinstance(count, Integral) and not isinstance(count, bool)
    if not whole or not 2 <= count <= n:
        raise ValueError(f"`{name}` is {shown(count)}; choose between 2 and the {n} samples.")


def draw_landmarks(matrix: Any, count: Any, method: str, random_state: int | None) -> Index:
    """Numbers of ``count`` samples, and of more until all features have mass in them."""
    if sparse.issparse(matrix):
        matrix = store_rows([sparse.csr_array(matrix)], matrix.shape[1], np.inf)
    n = matrix.shape[0]
    check_landmarks(count, n)
    if method not in METHODS:
        raise ValueError(f"`method` is {method!r}; choose {' or '.join(map(repr, METHODS))}.")
    if method == "uniform":
        chosen = np.random.default_rng(random_state).choice(n, count, replace=False)
    else:
        from sklearn.cluster import kmeans_plusplus

        drawn = kmeans_plusplus(_projected(matrix), count, random_state=random_state)[1]
        chosen = _distinct(drawn, n, random_state)
    return _cover(matrix, chosen)


def _distinct(drawn: Index, n: int, random_state: int | None) -> Index:
    """The samples drawn, with repeats replaced by other random samples.

    Once every distinct histogram has a landmark, k-means++ may draw a sample again.
    """
    chosen = np.unique(drawn)
    others = np.setdiff1d(np.arange(n), chosen)
    more = np.random.default_rng(random_state).choice(
        others, len(drawn) - len(chosen), replace=False
    )
    return np.concatenate([chosen, more])


def _projected(matrix: StoredRows) -> Matrix:
    """Histograms in a random projection that nearly preserves distances."""
    n, m = matrix.shape
    directions = np.random.default_rng(0).standard_normal((m, min(SKETCH, m)))
    parts = []
    for part in _parts(n):
        parts.append(normalize(matrix.take(np.arange(part.start, part.stop))) @ directions)
    return np.concatenate(parts)


def _parts(n: int) -> list[slice]:
    return [slice(start, min(start + PART, n)) for start in range(0, n, PART)]


def _cover(matrix: StoredRows, chosen: Index) -> Index:
    """The samples chosen, and for each feature that is 0 in them the sample with the most of it."""
    n, m = matrix.shape
    covered = np.zeros(m, bool)
    covered[matrix.take(chosen).indices] = True
    missing = np.flatnonzero(~covered)
    best, holder = np.zeros(m), np.full(m, -1)
    for part in _parts(n) if len(missing) else []:
        block = matrix.take(np.arange(part.start, part.stop))
        mine = ~covered[block.indices]
        rows = np.repeat(np.arange(part.start, part.stop), np.diff(block.indptr))[mine]
        columns, values = block.indices[mine], block.data[mine]
        order = np.lexsort((rows, -values, columns))
        first = order[np.unique(columns[order], return_index=True)[1]]
        larger = first[values[first] > best[columns[first]]]
        best[columns[larger]], holder[columns[larger]] = values[larger], rows[larger]
    extra: list[int] = []
    for k in missing:
        if covered[k] or holder[k] < 0:  # covered by an added sample, or empty
            continue
        extra.append(int(holder[k]))
        covered[matrix.take([holder[k]]).indices] = True
    added = np.array(extra, np.int64)
    return np.sort(np.concatenate([chosen, added])).astype(np.int64)
