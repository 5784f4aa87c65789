"""``WassersteinSingularVectors``: the estimator for scikit-learn."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import sparse
from sklearn import exceptions
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from cometric.core.arguments import check_count, with_options
from cometric.core.cached import cached_property
from cometric.core.errors import ConvergenceWarning, shortfall
from cometric.core.nearest import check_neighbors, nearest, neighbor_matrix
from cometric.core.types import Index, Matrix, Record, Vector
from cometric.core.warn import warn
from cometric.learning.learn import learn
from cometric.learning.settings import AUTO, options
from cometric.maps.cluster import active_client
from cometric.results.result import Result

if TYPE_CHECKING:
    from cometric.certificates.certificate import Certificate
    from cometric.certificates.diagnosis import Diagnosis
    from cometric.certificates.lifting import LiftCheck


class NotConverged(
    ConvergenceWarning,
    exceptions.ConvergenceWarning,  # type: ignore[misc]
):
    """Both our warning and scikit-learn's, so that filters for either apply."""


class Learner(
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """An estimator that takes nonnegative data, dense or sparse."""

    def _check(self, X: Any, *, reset: bool) -> Any:
        least = 2 if reset else 1
        checked = validate_data(
            self,
            X,
            reset=reset,
            accept_sparse=["csr", "csc", "coo"],
            dtype=np.float64,
            ensure_min_samples=least,
            ensure_min_features=least,
        )
        check_non_negative(checked, type(self).__name__)
        return checked

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []  # the output is always float64
        return tags


class WassersteinSingularVectors(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    Learner,
):
    """A distance between samples and one between features, each the lift of the other.

    ``transform`` returns the distances to the training samples, one column each, for use with
    ``metric="precomputed"`` in scikit-learn.

    Parameters
    ----------
    options
        All options of :func:`cometric.learn`, except ``client``.
    drop_empty
        Leave out empty features, which are an error otherwise (subsampled data often have
        some). Empty samples are always an error: scikit-learn expects an output for each.
    engine
        "local", or "dask" for the workers of the ``distributed.Client`` that is active when
        ``fit`` is called (a client cannot be cloned). See ``client`` of
        :func:`cometric.learn`.
    mode
        "distances", or "knn" for a sparse graph of the nearest training samples only.
    n_neighbors
        With ``mode="knn"``: the number of neighbors in addition to the nearest one, which for a
        training sample is itself, as in scikit-learn's ``KNeighborsTransformer``.

    Attributes
    ----------
    sample_distances_, feature_distances_
        The two metrics, (n, n) and (m, m), maximum 1; m counts the features not dropped. If one
        was given, both are in its units.
    singular_values_
        lam and mu.
    converged_
        Whether the residual fell below ``tol``. If not, ``fit`` warns.
    n_iter_, history_
        The number of iterations, and a record of each.
    certificate_
        The certificate or diagnosis of the metrics, computed on first access, see
        :meth:`cometric.Result.certify`.
    result_
        The :class:`cometric.Result`, to save or explain.
    n_features_in_, feature_names_in_
        The number of features in ``fit``, and their names.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> model = cm.WassersteinSingularVectors(eps=0, tau=0.1).fit(X)
    >>> model.transform(X[:3]).shape
    (3, 12)
    """

    @with_options(options(without=("client",)))
    def __init__(
        self,
        eps: float | str = AUTO,
        tau: float | str = AUTO,
        *,
        engine: str = "local",
        mode: str = "distances",
        n_neighbors: int = 5,
        **options: Any,
    ) -> None:
        self.engine = engine
        self.mode = mode
        self.n_neighbors = n_neighbors
        for name, value in {"eps": eps, "tau": tau, **options}.items():
            setattr(self, name, value)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn both metrics from ``X``, samples by features; ``y`` is ignored."""
        if self.mode not in ("distances", "knn"):
            raise ValueError(f"`mode` is {self.mode!r}; choose 'distances' or 'knn'.")
        if self.engine not in ("local", "dask"):
            raise ValueError(f"`engine` is {self.engine!r}; choose 'local' or 'dask'.")
        check_count("n_neighbors", self.n_neighbors)
        checked = self._check(X, reset=True)
        # Entries are nonnegative: a maximum shows if all are 0, and cannot overflow like a sum.
        largest = checked.max(axis=1)
        empty = np.flatnonzero((largest.toarray() if sparse.issparse(largest) else largest) == 0)
        if len(empty):
            raise ValueError(
                f"`X` has {len(empty)} empty sample{'s' * (len(empty) > 1)} (first: {empty[0]}), "
                "which have no distances. Drop them first: `drop_empty=True` leaves out features "
                "only."
            )
        options = self.get_params(deep=False)
        del options["mode"], options["n_neighbors"]
        options["client"] = active_client() if options.pop("engine") == "dask" else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # issued again below
            self.result_: Result = learn(X if hasattr(X, "columns") else checked, **options)
        self.__dict__.pop("certificate_", None)
        self.sample_distances_: Matrix = self.result_.samples
        self.feature_distances_: Matrix = self.result_.features
        self.singular_values_: Vector = np.array(self.result_.values)
        self.converged_: bool = self.result_.converged
        self.n_iter_: int = self.result_.iterations
        self.history_: list[Record] = self.result_.history
        if not self.result_.status.is_expected:
            status, tol = self.result_.status, self.result_.parameters.tol
            warn(shortfall(status, self.history_, tol), NotConverged)
        return self

    def transform(self, X: Any) -> Matrix | sparse.csr_matrix:
        """Distances of the samples ``X`` to the training samples, through the learned metric.

        ``X`` must have the features of ``fit``, in the same order, as usual in scikit-learn. To
        match other features by name, see ``result_.transform`` (:meth:`cometric.Result.transform`).
        """
        check_is_fitted(self)
        checked = self._check(X, reset=False)
        k = self._count_with_self() if self.mode == "knn" else None
        return self.result_.transform(
            checked, n_neighbors=k, n_threads=self.n_threads, progress=self.progress
        )

    def fit_transform(self, X: Any, y: Any = None) -> Matrix | sparse.csr_matrix:
        """The learned distances, the same as ``fit(X).transform(X)`` up to ``tol``."""
        distances = self.fit(X).sample_distances_
        if self.mode == "distances":
            return distances
        return neighbor_matrix(*nearest(distances, self._count_with_self()), len(distances))

    def feature_transform(self, X: Any) -> Matrix:
        """Distances of new features to the training features, through the sample metric.

        ``X`` has the training samples as rows and the new features as columns; each row of the
        result is a new feature. Samples are matched by name if both have names.
        """
        check_is_fitted(self)
        return self.result_.transform(
            X, of="features", n_threads=self.n_threads, progress=self.progress
        )

    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> tuple[Matrix, Index] | Index:
        """Distances and indices of the training samples nearest to each sample of ``X``.

        Without ``X``, those nearest to each training sample, itself not counted.
        """
        check_is_fitted(self)
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        if X is None:
            check_neighbors(k, len(self.sample_distances_) - 1)
            index, near = nearest(self.sample_distances_, k, skip_self=True)
        else:
            checked = self._check(X, reset=False)
            graph: Any = self.result_.transform(checked, n_neighbors=k, n_threads=self.n_threads)
            index, near = graph.indices.reshape(-1, k), graph.data.reshape(-1, k)
        return (near, index) if return_distance else index

    @cached_property
    def certificate_(self) -> Certificate | Diagnosis | LiftCheck:
        check_is_fitted(self)
        return self.result_.certify(n_threads=self.n_threads)

    def _count_with_self(self) -> int:
        """``n_neighbors`` plus one: like scikit-learn, it does not count the sample itself."""
        check_neighbors(self.n_neighbors, len(self.sample_distances_) - 1)
        return self.n_neighbors + 1

    @property
    def _n_features_out(self) -> int:
        return len(self.sample_distances_)

    def _check(self, X: Any, *, reset: bool) -> Any:
        if hasattr(X, "obs_names") and hasattr(X, "var_names"):
            raise ValueError(
                "`X` is an AnnData, which scikit-learn does not read; pass `adata.X`, or "
                "`adata.to_df()`, which has the names."
            )
        return super()._check(X, reset=reset)
