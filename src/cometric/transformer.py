"""``NeighborsTransformer``: neighbors under a learned metric, for scanpy and scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted, validate_data

from cometric.core.arguments import check_count, with_options
from cometric.core.inputs import read_matrix
from cometric.core.nearest import check_neighborhood, check_neighbors, nearest, neighbor_matrix
from cometric.core.types import Index, Matrix
from cometric.estimator import Learner
from cometric.files.rows import as_rows
from cometric.landmarks.landmarks import Sketch, learn_landmarks
from cometric.learning.settings import AUTO, options
from cometric.results.extension import HeldDistances

ROWS = 200
"""New samples compared with all training samples at a time."""


class NeighborsTransformer(Learner):
    """The nearest neighbors of each sample, under a metric that is learned from landmarks.

    It can be the transformer of ``sc.pp.neighbors``::

        sc.pp.neighbors(adata, transformer=cm.NeighborsTransformer(n_neighbors=15), use_rep="X")

    It works like scikit-learn's ``KNeighborsTransformer(mode="distance")``, except that the sample
    itself counts as one of the ``n_neighbors``, as in scanpy.

    Parameters
    ----------
    n_neighbors
        Neighbors of each sample, itself included.
    n_landmarks
        The number of samples to learn from, by default that of :func:`cometric.learn_landmarks`.
    method, search, max_candidates, check
        See :func:`cometric.learn_landmarks`.
    random_state
        Seed for the choice of landmarks, and of the samples that are checked.
    options
        All options of :func:`cometric.learn`, except ``client``, ``start`` and given metrics.

    Attributes
    ----------
    sketch_
        What :func:`cometric.learn_landmarks` returned: the metric of the features, the graph, how
        much of it is proved, its recall.
    n_iter_
        The number of iterations of learning.
    n_features_in_, feature_names_in_
        The number of features in ``fit``, and their names.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> model = cm.NeighborsTransformer(n_neighbors=3, n_landmarks=12, eps=0, tau=0.1)
    >>> near = model.fit_transform(X)
    >>> near.shape, near.nnz
    ((12, 12), 36)
    """

    @with_options(options(without=("client", "start", "samples", "features")))
    def __init__(
        self,
        eps: float | str = AUTO,
        tau: float | str = AUTO,
        *,
        n_neighbors: int = 15,
        n_landmarks: int | None = None,
        method: str = "uniform",
        search: str = "auto",
        max_candidates: int | None = None,
        check: int = 0,
        random_state: int | None = 0,
        **options: Any,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_landmarks = n_landmarks
        self.method = method
        self.search = search
        self.max_candidates = max_candidates
        self.check = check
        self.random_state = random_state
        for name, value in {"eps": eps, "tau": tau, **options}.items():
            setattr(self, name, value)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the metric from landmarks, and find the neighbors of ``X``; ``y`` is ignored."""
        if self.n_landmarks is not None:
            check_count("n_landmarks", self.n_landmarks)
        data = self._check(X, reset=True)
        check_neighborhood(self.n_neighbors, data.shape[0], "sample")
        options = self.get_params(deep=False)
        count = options.pop("n_landmarks")
        options["n_neighbors"] = self.n_neighbors - 1
        given = () if count is None else (count,)
        self.sketch_: Sketch = learn_landmarks(data, *given, **options)
        self.n_iter_: int = self.sketch_.result.iterations
        self._data = data
        return self

    def fit_transform(self, X: Any, y: Any = None) -> sparse.csr_matrix:
        """The distances of each sample to itself, 0, and to its nearest others, (n, n), sparse."""
        graph = self.fit(X).sketch_.graph
        n, k = graph.shape[0], self.n_neighbors - 1
        index = np.column_stack([np.arange(n), graph.indices.reshape(n, k)])
        near = np.column_stack([np.zeros(n), graph.data.reshape(n, k)])
        return neighbor_matrix(index, near, n)

    def transform(self, X: Any) -> sparse.csr_matrix:
        """The distances of the samples ``X`` to the nearest training samples, sparse.

        Each is compared with all training samples. A training sample finds itself first.
        """
        check_is_fitted(self)
        known = read_matrix(self._rows(self._data), "X")
        new = read_matrix(self._rows(self._check(X, reset=False)), "X", least=(1, 1))
        check_neighbors(self.n_neighbors, known.shape[0])
        side = self.sketch_.result.problem.read_new(sparse.vstack([known, new], format="csr"))
        hist, full = side.hist[side.labels], side.full[side.labels]
        distances = HeldDistances(self.sketch_.result, "samples", hist, full, self.n_threads)
        count = known.shape[0]
        found: list[tuple[Index, Matrix]] = []
        for start in range(count, hist.shape[0], ROWS):
            rows = slice(start, min(start + ROWS, hist.shape[0]))
            away = distances.between(rows, slice(0, count), lambda *_: None)
            found.append(nearest(away, self.n_neighbors))
        distances.warn_if_unsolved()
        index, near = (np.concatenate(part) for part in zip(*found, strict=True))
        return neighbor_matrix(index, near, count)

    def _check(self, X: Any, *, reset: bool) -> Any:
        source = as_rows(X)
        if source is not None:  # not in memory
            return validate_data(self, source, reset=reset, skip_check_array=True)
        return super()._check(X, reset=reset)

    @staticmethod
    def _rows(data: Any) -> Any:
        source = as_rows(data)
        return data if source is None else source[0 : source.shape[0]]
