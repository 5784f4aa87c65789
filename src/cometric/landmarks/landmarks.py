"""A feature metric learned from some samples, and a neighbor graph of all, in O(n) memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from inspect import signature
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.arguments import check_options, shown
from cometric.core.digest import digest
from cometric.core.histograms import normalize
from cometric.core.inputs import read_matrix
from cometric.core.labels import NO_GROUP, groups_of, indicators
from cometric.core.types import Index, Matrix
from cometric.files.rows import Named, rows_of
from cometric.landmarks.neighbors import Neighbors, Request, find_neighbors
from cometric.landmarks.run_folder import RunFolder, open_run
from cometric.landmarks.stored import StoredRows, store_rows
from cometric.learning.learn import learn
from cometric.learning.settings import Settings
from cometric.results.extension import on_gpu
from cometric.results.restoring import from_arrays
from cometric.results.result import Result

METHODS = ("uniform", "kmeans++")

DEFAULT, PER_FEATURE = 400, 5
"""Landmarks by default, or one for every five features if these are more; see docs/scale.md."""

SKETCH = 32
"""Columns of the random projection in which "kmeans++" measures distances."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """A metric between features, and the nearest neighbors of each sample under it.

    ``result`` was learned from the landmarks only, ``neighbors`` are those of all samples.
    ``landmarks`` are the numbers of the samples chosen, None for metacells; ``data`` is what was
    learned from, a row for each landmark or metacell.

    To write a sketch, use ``result.save(path)`` for the metric, and
    ``scipy.sparse.save_npz(path, graph)`` for the neighbors.
    """

    result: Result
    neighbors: Neighbors
    landmarks: Index | None
    data: sparse.csr_array

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

    def transform(self, X: Any, **options: Any) -> Matrix | sparse.csr_matrix:
        """Distances of new samples to the landmarks, as :meth:`Result.transform`."""
        return self.result.transform(X, **options)

    def __getattr__(self, name: str) -> Any:
        message = f"'Sketch' object has no attribute '{name}'"
        if not name.startswith("_"):
            message += ". The metric of the landmarks is `.result`, the neighbors are `.graph`"
        raise AttributeError(message, name=name, obj=self)

    def __repr__(self) -> str:
        n, m = self.graph.shape[0], len(self.features)
        return f"Sketch({n} samples, {m} features, {len(self.result.samples)} landmarks)"

    def __str__(self) -> str:
        neighbors = self.neighbors
        n = len(neighbors.proved)
        proved = f"the neighbors of {100 * neighbors.proved.mean():.1f} % of the samples"
        if neighbors.search == "index":
            proved = "nothing: candidates came from an index, only the recall counts"
        lines = [
            f"Learned a distance between {len(self.features)} features from "
            f"{len(self.result.samples)} landmarks, and {neighbors.graph.nnz // n} neighbors of "
            f"each of {n} samples",
            f"  landmarks        {self.result.status.value}, residual {self.result.residual:.2e}",
            f"  proved           {proved}",
            f"  recall           {neighbors.measured} samples compared with all",
            f"  compared         {neighbors.compared:.0f} distances per sample",
            "  parts            .result (the metric), .neighbors, .landmarks",
        ]
        return "\n".join(lines)


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
        Where the learned metric and completed parts of the search are stored, as for
        :func:`cometric.neighbor_graph`.
    random_state
        Seed for the choice of landmarks, of the samples that are checked, and of the clusters of
        the index.
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
    source = rows_of(X)
    request = Request(
        source.shape[0], n_neighbors, max_candidates, check, random_state, search,
        n_threads=n_threads, progress=progress, device=device,
        memory_limit=options.get("memory_limit"),
    )  # fmt: skip
    settings = Settings(**options, device=device or "cpu")
    with open_run(folder) as run:
        rows = store_rows(source, settings.memory_limit)
        drawing = landmarks, n_landmarks, method
        seed = run.bind(lambda: _origin(rows, drawing, settings, request), random_state)
        request = replace(request, random_state=seed)
        chosen, data, labels = _draw(rows, *drawing, seed)
        names = rows.sample_names
        if names is not None:
            names = labels if chosen is None else [names[i] for i in chosen]
        arrays = run.load("result")
        if arrays is None:
            learning = {"n_threads": n_threads, "progress": progress, **options}
            named = Named(data, names, rows.feature_names)
            result = learn(named, device=settings.device, **learning)
            run.save("result", result.to_arrays())
        else:
            result = from_arrays(arrays, str(folder))
        on_cpu = not on_gpu(result, "samples", device)
        found = find_neighbors(result, rows, request, run if on_cpu else RunFolder(), on_cpu)
    return Sketch(result, found, chosen, data)


def _origin(
    rows: StoredRows, drawing: tuple[Any, ...], settings: Settings, request: Request
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
            "indptr": rows.indptr,
            "indices": rows.indices,
            "data": rows.data,
            "names": [rows.sample_names, rows.feature_names],
            "drawing": drawing,
            "settings": [stored, matrices],
            "request": request,
        }
    )


def _draw(
    matrix: StoredRows,
    landmarks: Any,
    count: int | None,
    method: str,
    random_state: int | None,
) -> tuple[Index | None, sparse.csr_array, list[str]]:
    """The numbers of the samples chosen, or None; the data to learn from; names of metacells."""
    n, m = matrix.shape
    if count is not None:
        check_landmarks(count, n, "n_landmarks")
    if landmarks is None:
        landmarks = min(n, max(DEFAULT, m // PER_FEATURE)) if count is None else count
    elif count is not None and (isinstance(landmarks, Integral) or np.ndim(landmarks) != 1):
        raise ValueError(
            f"`landmarks` and `n_landmarks` are both given, which is possible only if `landmarks` "
            f"are labels. Leave out `n_landmarks` = {count}."
        )
    if isinstance(landmarks, Integral):
        return *draw_landmarks(matrix, landmarks, method, random_state), []
    if sparse.issparse(landmarks) or np.ndim(landmarks) == 2:
        metacells = read_matrix(landmarks, "landmarks")
        if metacells.shape[1] != m:
            raise ValueError(
                f"`landmarks` has {metacells.shape[1]} features; `X` has {m}. Pass metacells over "
                "the same features."
            )
        return None, metacells, list(map(str, range(metacells.shape[0])))
    names, groups = _groups(landmarks, n, m)
    if count is not None:
        return *_cover(matrix, _stratified(groups, count, random_state)), []
    sums = sparse.csr_array((len(names), m))
    for part in matrix.parts():
        sums = sums + indicators(groups[part], len(names)) @ matrix[part]
    return None, sums.tocsr(), list(names)


def _groups(landmarks: Any, n: int, m: int) -> tuple[tuple[str, ...], Index]:
    """The labels, and the number of that of each sample, ``NO_GROUP`` where it is missing."""
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
    return names, groups


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


def draw_landmarks(
    matrix: StoredRows, count: Any, method: str, random_state: int | None
) -> tuple[Index, sparse.csr_array]:
    """Numbers and rows of ``count`` samples, and of more until all features have mass in them."""
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
    m = matrix.shape[1]
    directions = np.random.default_rng(0).standard_normal((m, min(SKETCH, m)))
    return np.concatenate([normalize(chunk) @ directions for chunk in matrix.chunks()])


def _cover(matrix: StoredRows, chosen: Index) -> tuple[Index, sparse.csr_array]:
    """Numbers and rows of the samples chosen, and of others until all features have mass in them.

    The others are those with the most of a feature that is 0 in all samples before.
    """
    m = matrix.shape[1]
    covered = np.zeros(m, bool)
    covered[matrix.take(chosen).indices] = True
    missing = np.flatnonzero(~covered)
    best, holder = np.zeros(m), np.full(m, -1)
    for part in matrix.parts() if len(missing) else []:
        block = matrix[part]
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
        covered[matrix.take(holder[[k]]).indices] = True
    found = np.sort(np.concatenate([chosen, np.array(extra, np.int64)])).astype(np.int64)
    return found, matrix.take(found)
