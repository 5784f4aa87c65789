"""Common distances between all samples, to compare the learned ones with.

``X`` is samples by features, of any kind that :func:`cometric.learn` reads. For distances between
features pass ``X.T``. Distances are an (n, n) array with a zero diagonal, in the form of
``result.samples``:

>>> import cometric as cm
>>> X = cm.datasets.torus("unimodal", 12, 10)
>>> cm.baselines.cosine(X).shape
(12, 12)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.spatial.distance import cdist

from cometric.core.inputs import check_not_empty, read_matrix, unwrap
from cometric.core.problem import Problem
from cometric.core.types import Matrix
from cometric.maps.norms import norm_matrix
from cometric.maps.views import Shifted
from cometric.results.smoothing import named_as

__all__ = [
    "correlation", "correspondence", "cosine", "hellinger", "l1", "l2", "loadings",
    "log_normalized", "lsa", "lsa_vectors", "pca", "pearson_residuals", "reference", "tfidf",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def l1(X: Any) -> Matrix:
    """Manhattan distances."""
    return _pairwise(_dense(X), "cityblock")


def l2(X: Any) -> Matrix:
    """Euclidean distances."""
    return _pairwise(_dense(X), "euclidean")


def cosine(X: Any) -> Matrix:
    """One minus the cosine of the angle between samples; an empty one is at distance 1 from all."""
    matrix = _read(X, signed=True)
    mostly_zero = matrix.nnz < 0.5 * matrix.shape[0] * matrix.shape[1]
    return _one_minus_cosine(matrix if mostly_zero else matrix.toarray())


def pca(X: Any, n_components: int = 30, random_state: int | None = 0) -> Matrix:
    """Euclidean distances on the first principal components."""
    from sklearn.decomposition import PCA

    dense = _dense(X)
    _check_components(n_components, min(dense.shape))
    model = PCA(n_components, random_state=random_state)
    return _pairwise(model.fit_transform(dense), "euclidean")


def correlation(X: Any) -> Matrix:
    """One minus the Pearson correlation of samples; a constant sample has correlation 0."""
    dense = _dense(X)
    return _one_minus_cosine(dense - dense.mean(axis=1, keepdims=True))


def hellinger(X: Any) -> Matrix:
    """Euclidean distances between the square roots of histograms, from 0 to sqrt(2).

    The histograms are the samples, each divided by its sum.
    """
    roots = _read(X)
    sums = _sums(roots)
    roots.data = np.sqrt(roots.data / np.repeat(sums, np.diff(roots.indptr)))
    return np.sqrt(2.0 * _one_minus_cosine(roots))


def tfidf(X: Any) -> Matrix:
    """One minus the cosine of samples after tf-idf weighting.

    A feature found in df of the n samples has the weight log((1 + n) / (1 + df)) + 1.
    """
    return _one_minus_cosine(_tfidf(X))


def lsa(X: Any, n_components: int = 30, random_state: int | None = 0) -> Matrix:
    """Latent semantic analysis: tf-idf, truncated SVD, Euclidean distances.

    Samples are weighted as in :func:`tfidf` and scaled to length 1, before the SVD and after it.
    Pass counts through :func:`log_normalized` first if few features make up most of a sample.
    """
    return _pairwise(lsa_vectors(X, n_components, random_state), "euclidean")


def lsa_vectors(X: Any, n_components: int = 30, random_state: int | None = 0) -> Matrix:
    """The vectors of length 1 that :func:`lsa` compares, one per sample."""
    return _length_1(_truncated(_tfidf(X), n_components, random_state))


def correspondence(X: Any, n_components: int = 30, unit_length: bool = False) -> Matrix:
    """Euclidean distances between the row principal coordinates of correspondence analysis.

    With P = X / sum(X), r and c its row and column sums, and the first singular triplets of
    (P - r cᵀ) / sqrt(r cᵀ) = U S Vᵀ, the coordinates are U S / sqrt(r). With all components these
    are the chi-squared distances between the histograms of the samples. With ``unit_length`` the
    coordinates are scaled to length 1, as in :func:`lsa`.
    """
    from scipy.sparse.linalg import svds

    P = _read(X)
    _check_components(n_components, min(P.shape) - 1)
    P = P / P.sum()
    r, c = np.sqrt(_sums(P)), np.sqrt(P.sum(axis=0))
    P = sparse.csr_array(P.multiply(1.0 / r[:, None]).multiply(1.0 / np.where(c > 0.0, c, 1.0)))
    start = np.random.default_rng(0).normal(size=min(P.shape))
    U, S, _ = svds(Shifted(P, r, c).operator, n_components, v0=start)
    vectors = U * S / r[:, None]
    return _pairwise(_length_1(vectors) if unit_length else vectors, "euclidean")


def reference(X: Any) -> Matrix:
    """R of the default settings, norm="local", without transport: R alone."""
    side = Problem.from_data(_read(X)).samples
    return side.expand(norm_matrix(side.histograms, "local"))


def pearson_residuals(
    X: Any, n_components: int = 30, unit_length: bool = False, random_state: int | None = 0
) -> Matrix:
    """Euclidean distances after a truncated SVD of the analytic Pearson residuals of counts.

    With the expected counts E = r cᵀ / N from the row sums r, the column sums c and the total N,
    the residuals are (X - E) / sqrt(E + E² / 100), clipped to ±sqrt(number of samples), as in
    Lause, Berens and Kobak (2021). With ``unit_length`` the coordinates are scaled to length 1.
    """
    counts = _read(X)
    expected = np.outer(_sums(counts), counts.sum(axis=0)) / counts.sum()
    deviation = np.sqrt(expected + expected**2 / 100.0)
    residuals = (counts.toarray() - expected) / np.where(deviation > 0.0, deviation, 1.0)
    limit = np.sqrt(len(residuals))
    vectors = _truncated(np.clip(residuals, -limit, limit), n_components, random_state)
    return _pairwise(_length_1(vectors) if unit_length else vectors, "euclidean")


def loadings(X: Any, n_components: int = 30, random_state: int | None = 0) -> Matrix:
    """One minus the cosine between the PCA loadings of the rows, each scaled to unit variance.

    Meant for features: pass ``X.T``, as everywhere in this module. Then each feature is scaled to
    mean 0 and variance 1 over the samples, PCA is that of the samples, and the loadings of a
    feature are its coefficients in the first components, times the standard deviation of each
    component. With all components this is :func:`correlation`.
    """
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import scale

    scaled = scale(_dense(X).T)  # each row of X is now a column
    _check_components(n_components, min(scaled.shape))
    model = PCA(n_components, random_state=random_state).fit(scaled)
    return _one_minus_cosine(model.components_.T * model.singular_values_)


def log_normalized(X: Any) -> Any:
    """Counts, scaled to the median of their row sums, then log(1 + x).

    Sparse if ``X`` is; a data frame or AnnData with the same names, if ``X`` is one. Data that are
    not counts are returned unchanged: they have been normalized already.
    """
    data = unwrap(X, "X")
    counts = _read(data, signed=True)
    if not ((counts.data > 0.0) & (counts.data == np.round(counts.data))).all():
        return X
    depth = counts.sum(axis=1)
    used = depth[depth > 0.0]
    factor = (np.median(used) if len(used) else 1.0) / np.where(depth > 0.0, depth, 1.0)
    logs = counts.multiply(factor[:, None]).tocsr().log1p()
    return named_as(X, logs if sparse.issparse(data) else logs.toarray())


def _read(X: Any, signed: bool = False) -> sparse.csr_array:
    """The samples, as :func:`cometric.learn` reads them; entries below 0 only if ``signed``."""
    if isinstance(X, tuple) and len(X) == 2:
        raise ValueError("`X` is a pair, as of the histograms (A, B); pass one matrix, such as A.")
    return read_matrix(X, "X", least=(2, 1), signed=signed)


def _dense(X: Any) -> Matrix:
    dense: Matrix = _read(X, signed=True).toarray()
    return dense


def _sums(X: sparse.csr_array) -> Matrix:
    """Row sums; raises if one is zero."""
    sums: Matrix = X.sum(axis=1)
    check_not_empty(sums > 0.0, "X", "row", "Drop them: they hold no mass.")
    return sums


def _tfidf(X: Any) -> sparse.csr_matrix:
    from sklearn.feature_extraction.text import TfidfTransformer

    return TfidfTransformer().fit_transform(_read(X))


def _truncated(matrix: Any, n_components: int, random_state: int | None) -> Matrix:
    """The coordinates U S of the first singular vectors."""
    from sklearn.decomposition import TruncatedSVD

    _check_components(n_components, min(matrix.shape))
    model = TruncatedSVD(n_components, random_state=random_state)
    with np.errstate(invalid="ignore"):  # explained variance: 0 / 0 for equal samples
        vectors: Matrix = model.fit_transform(matrix)
    return vectors


def _length_1(vectors: Matrix) -> Matrix:
    """The rows scaled to length 1; rows of zeros stay."""
    from sklearn.preprocessing import normalize

    unit: Matrix = normalize(vectors)
    return unit


def _one_minus_cosine(vectors: Any) -> Matrix:
    """One minus the cosines, by a matrix product; zero vectors are at distance 1 from all."""
    from sklearn.preprocessing import normalize

    unit = normalize(vectors.astype(np.float64))
    products = unit @ unit.T
    distances: Matrix = 1.0 - (products.toarray() if sparse.issparse(products) else products)
    distances = 0.5 * (distances + distances.T)  # products are not symmetric to the last bit
    np.fill_diagonal(distances, 0.0)
    return np.clip(distances, 0.0, 2.0)


def _pairwise(dense: Matrix, metric: Any) -> Matrix:
    distances: Matrix = cdist(dense, dense, metric)
    np.fill_diagonal(distances, 0.0)
    return distances


def _check_components(n_components: int, most: int) -> None:
    if not 1 <= n_components <= most:
        raise ValueError(f"`n_components` is {n_components}; choose between 1 and {most}.")
