"""The feature metric from some of the samples, and a neighbor graph of all, without n x n."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse

from cometric.answers.result import Result
from cometric.core.inputs import read_names, read_samples
from cometric.core.types import Index, Matrix
from cometric.files.rows import as_rows, gather
from cometric.large.neighbors import Neighbors, neighbor_graph
from cometric.running.learning import learn

METHODS = ("uniform", "kmeans++")


@dataclass(frozen=True, eq=False)
class Sketch:
    """A metric between features, and the nearest neighbors of each sample under it.

    ``result`` was learned from the landmarks only, ``neighbors`` are those of all samples.
    ``landmarks`` are the numbers of the samples chosen, None for metacells.
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
            f"  proved           the neighbors of {100 * neighbors.proved.mean():.1f} % of the "
            "samples",
            f"  recall           {neighbors.recall:.4f} on {neighbors.checked} samples compared "
            "with all",
            f"  compared         {neighbors.compared:.0f} distances per sample",
        ]
        return "\n".join(lines)


def learn_landmarks(
    X: Any,
    landmarks: Any = 1000,
    n_neighbors: int = 15,
    *,
    method: str = "uniform",
    max_candidates: int | None = None,
    check: int = 20,
    random_state: int | None = 0,
    n_threads: int | None = None,
    progress: bool = False,
    **options: Any,
) -> Sketch:
    """The feature metric learned from some samples, and a neighbor graph of all samples.

    For data whose n x n distances do not fit into memory, which grows with n times
    ``n_neighbors``.

    Parameters
    ----------
    X
        Nonnegative matrix, samples by features, as for :func:`cometric.learn`.
    landmarks
        The number of samples to learn from; or a label for each sample, to learn from the sums of
        all samples with the same label (metacells); or a matrix of metacells over the same
        features.
    method
        For a number of landmarks: "uniform" draws them at random, "kmeans++" draws each with a
        probability proportional to its squared distance from those before it. Samples are added
        so that every feature has mass in some landmark.
    n_neighbors, max_candidates, check
        See :func:`cometric.neighbor_graph`.
    random_state
        Seed for the choice of landmarks, and of the samples that are checked.
    n_threads, progress
        As for :func:`cometric.learn`.
    options
        Passed on to :func:`cometric.learn`: eps, tau, tol and so on.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> cm.learn_landmarks(X, 8, n_neighbors=2, eps=0, tau=0.1)
    Sketch(12 samples, 10 features, 8 landmarks)
    """
    source = as_rows(X)
    matrix = read_samples(X if source is None else gather(source))
    chosen, sketch = _sketch(matrix, landmarks, method, random_state)
    rows, columns = read_names(X)
    data: Any = sketch
    if rows is not None and columns is not None:
        names = map(str, range(sketch.shape[0])) if chosen is None else (rows[i] for i in chosen)
        data = _Named(sketch, list(names), columns)
    result = learn(data, n_threads=n_threads, progress=progress, **options)
    neighbors = neighbor_graph(
        result,
        matrix,
        n_neighbors,
        max_candidates=max_candidates,
        check=check,
        random_state=random_state,
        n_threads=n_threads,
        progress=progress,
    )
    return Sketch(result, neighbors, chosen)


@dataclass(frozen=True)
class _Named:
    """A matrix with names, in the form of an AnnData, so that the result has names too."""

    X: sparse.csr_array
    obs_names: list[str]
    var_names: list[str]


def _sketch(
    matrix: sparse.csr_array, landmarks: Any, method: str, random_state: int | None
) -> tuple[Index | None, sparse.csr_array]:
    """The numbers of the samples chosen (None for metacells), and the matrix to learn from."""
    n, m = matrix.shape
    if isinstance(landmarks, Integral):
        chosen = choose(matrix, int(landmarks), method, random_state)
        return chosen, matrix[chosen]
    if sparse.issparse(landmarks) or np.ndim(landmarks) == 2:
        metacells = sparse.csr_array(landmarks, dtype=np.float64)
        if metacells.shape[1] != m:
            raise ValueError(f"`landmarks` has {metacells.shape[1]} features; `X` has {m}.")
        return None, metacells
    labels = np.asarray(landmarks)
    if labels.shape != (n,) or labels.dtype.kind not in "biuOSU":
        raise ValueError(
            f"`landmarks` has shape {labels.shape} and dtype {labels.dtype}; pass a number, a "
            f"label for each of the {n} samples, or a matrix of metacells over the {m} features."
        )
    groups = np.unique(labels, return_inverse=True)[1]
    members = sparse.csr_array((np.ones(n), (groups, np.arange(n))))
    return None, (members @ matrix).tocsr()


def choose(matrix: sparse.csr_array, count: int, method: str, random_state: int | None) -> Index:
    """Numbers of ``count`` samples, and of more if these do not have mass on all features."""
    n, m = matrix.shape
    if not 2 <= count <= n:
        raise ValueError(f"`landmarks` is {count}; choose between 2 and the {n} samples.")
    if method not in METHODS:
        raise ValueError(f"`method` is {method!r}; choose {' or '.join(map(repr, METHODS))}.")
    if method == "uniform":
        chosen = np.random.default_rng(random_state).choice(n, count, replace=False)
    else:
        from sklearn.cluster import kmeans_plusplus
        from sklearn.preprocessing import normalize

        hist = normalize(matrix, norm="l1")
        chosen = kmeans_plusplus(hist, count, random_state=random_state)[1]
    covered = np.zeros(m, bool)
    covered[matrix[chosen].indices] = True
    extra = []
    columns = matrix.tocsc()
    for k in np.flatnonzero(~covered):
        entries = slice(columns.indptr[k], columns.indptr[k + 1])
        if covered[k] or entries.start == entries.stop:  # by an added sample; an empty feature
            continue
        extra.append(int(columns.indices[entries][np.argmax(columns.data[entries])]))
        covered[matrix[[extra[-1]]].indices] = True
    return np.sort(np.concatenate([chosen, np.array(extra, np.int64)])).astype(np.int64)
