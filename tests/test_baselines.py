"""Distances of others: against their definitions."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances

from cometric import Problem, baselines

X = np.random.default_rng(1).gamma(0.7, size=(12, 9))


@pytest.mark.parametrize("name", ["l1", "l2", "cosine"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.csr_matrix])
def test_plain_distances_also_of_negative_entries(name, form):
    for data in (X, X - X.mean(axis=0)):
        found = getattr(baselines, name)(form(data))
        assert_allclose(found, pairwise_distances(data, metric=name), atol=1e-9)
        assert (found == found.T).all()
        assert not np.diagonal(found).any()


def test_pca_with_all_components_is_euclidean_and_with_fewer_shorter():
    assert_allclose(baselines.pca(X, 9), baselines.l2(X), atol=1e-10)
    assert_allclose(baselines.pca(X - X.mean(axis=0), 9), baselines.l2(X), atol=1e-10)
    two = PCA(2, random_state=0).fit_transform(X)
    assert_allclose(baselines.pca(X, 2), baselines.l2(two), atol=1e-12)


COUNTS = np.random.default_rng(2).poisson(X)[:, :6] + np.eye(12, 6, dtype=int)
COUNTS[:, 0] += 1  # no empty rows
FORMS = [np.asarray, sparse.csr_array, sparse.csc_matrix]


def euclidean(points):
    return np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=-1))


def weighted_naively(counts):
    """Tf-idf of unit length, entry by entry."""
    n, m = counts.shape
    found = np.zeros((n, m))
    for k in range(m):
        df = sum(counts[i, k] > 0 for i in range(n))
        found[:, k] = counts[:, k] * (np.log((1 + n) / (1 + df)) + 1)
    return found / np.sqrt((found**2).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("form", FORMS)
def test_tfidf_is_the_cosine_of_weighted_counts(form):
    Z = weighted_naively(COUNTS)
    want = 1.0 - Z @ Z.T
    assert_allclose(baselines.tfidf(form(COUNTS)), want, atol=1e-12)
    # Vectors of length 1: |x - y|² = 2 - 2 x·y.
    assert_allclose(baselines.lsa(form(COUNTS), 6), np.sqrt(2.0 * np.maximum(want, 0)), atol=1e-6)


def test_lsa_keeps_the_first_singular_vectors():
    U, S, _ = np.linalg.svd(weighted_naively(COUNTS), full_matrices=False)
    kept = U[:, :2] * S[:2]
    want = euclidean(kept / np.linalg.norm(kept, axis=1, keepdims=True))
    assert_allclose(baselines.lsa(COUNTS, 2), want, atol=1e-10)
    vectors = baselines.lsa_vectors(COUNTS, 2)
    assert_allclose(np.linalg.norm(vectors, axis=1), 1.0)
    assert_allclose(euclidean(vectors), want, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_hellinger_is_euclidean_between_roots(form):
    want = euclidean(np.sqrt(COUNTS / COUNTS.sum(axis=1, keepdims=True)))
    assert_allclose(baselines.hellinger(form(COUNTS)), want, atol=1e-7)
    assert_allclose(baselines.hellinger(form(np.eye(3))), np.sqrt(2.0) * (1.0 - np.eye(3)))


@pytest.mark.parametrize("form", FORMS)
def test_correspondence_with_all_components_is_the_chi_squared_distance(form):
    P = COUNTS / COUNTS.sum()
    profiles = P / P.sum(axis=1, keepdims=True)
    want = euclidean(profiles / np.sqrt(P.sum(axis=0)))
    assert_allclose(baselines.correspondence(form(COUNTS), 5), want, atol=1e-10)
    empty = np.hstack([COUNTS, np.zeros((12, 1), dtype=int)])
    assert_allclose(baselines.correspondence(form(empty), 5), want, atol=1e-10)


def test_correspondence_keeps_the_first_axes_and_compares_directions():
    P = COUNTS / COUNTS.sum()
    r, c = P.sum(axis=1), P.sum(axis=0)
    U, S, _ = np.linalg.svd((P - np.outer(r, c)) / np.sqrt(np.outer(r, c)), full_matrices=False)
    kept = U[:, :2] * S[:2] / np.sqrt(r)[:, None]
    assert_allclose(baselines.correspondence(COUNTS, 2), euclidean(kept), atol=1e-10)
    unit = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    found = baselines.correspondence(COUNTS, 2, unit_length=True)
    assert_allclose(found, euclidean(unit), atol=1e-10)


def residuals_of(counts):
    n, m = counts.shape
    found = np.zeros((n, m))
    for i in range(n):
        for k in range(m):
            mu = counts[i].sum() * counts[:, k].sum() / counts.sum()
            if mu > 0:
                found[i, k] = (counts[i, k] - mu) / np.sqrt(mu + mu**2 / 100)
    return np.clip(found, -np.sqrt(n), np.sqrt(n))


@pytest.mark.parametrize("form", FORMS)
def test_pearson_residuals_with_all_components_are_compared_directly(form):
    counts = np.hstack([COUNTS, np.zeros((12, 1), dtype=int)])
    counts[3, 2] = 500  # its residual is clipped
    want = residuals_of(counts)
    assert (want == np.sqrt(12)).any()
    assert_allclose(baselines.pearson_residuals(form(counts), 7), euclidean(want), atol=1e-7)


def test_pearson_residuals_are_those_of_scanpy():
    sc = pytest.importorskip("scanpy")
    data = sc.AnnData(DISTINCT.astype(float))
    sc.experimental.pp.normalize_pearson_residuals(data)
    U, S, _ = np.linalg.svd(data.X, full_matrices=False)
    kept = U[:, :2] * S[:2]
    assert_allclose(baselines.pearson_residuals(DISTINCT, 2), euclidean(kept), atol=1e-6)
    unit = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    found = baselines.pearson_residuals(DISTINCT, 2, unit_length=True)
    assert_allclose(found, euclidean(unit), atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_correlation_is_that_of_numpy_and_so_are_all_loadings(form):
    want = 1.0 - np.corrcoef(COUNTS)
    assert_allclose(baselines.correlation(form(COUNTS)), want, atol=1e-12)
    assert_allclose(baselines.loadings(form(COUNTS), 6), want, atol=1e-10)


def test_loadings_are_correlations_with_the_first_components():
    values = (COUNTS - COUNTS.mean(axis=1, keepdims=True)) / COUNTS.std(axis=1, keepdims=True)
    components = np.linalg.svd(values)[2][:2]  # over the columns of X
    vectors = np.array([[np.corrcoef(row, v)[0, 1] for v in components] for row in values])
    want = pairwise_distances(vectors, metric="cosine")
    assert_allclose(baselines.loadings(COUNTS, 2), want, atol=1e-10)


DISTINCT = np.random.default_rng(3).poisson(4.0, (12, 6))  # no row or column repeats another
TABLE = pd.DataFrame(DISTINCT, [f"s{i}" for i in range(12)], list("abcdef"))
BASELINES = {
    **{name: getattr(baselines, name) for name in ("l1", "l2", "cosine", "correlation")},
    **{name: getattr(baselines, name) for name in ("hellinger", "tfidf", "reference")},
    **{
        name: partial(getattr(baselines, name), n_components=3)
        for name in ["pca", "lsa", "lsa_vectors", "loadings", "correspondence", "pearson_residuals"]
    },
    "log_normalized": lambda X: Problem.from_data(baselines.log_normalized(X)).samples.hist,
}
KINDS = {
    "integers": lambda: DISTINCT.astype(np.int8),
    "half": lambda: DISTINCT.astype(np.float16),
    "list": DISTINCT.tolist,
    "masked": lambda: np.ma.masked_array(DISTINCT),
    "csr_array": lambda: sparse.csr_array(DISTINCT),
    "csc_matrix": lambda: sparse.csc_matrix(DISTINCT),
    "coo_array": lambda: sparse.coo_array(DISTINCT),
    "table": lambda: TABLE,
    "sparse table": lambda: TABLE.astype(pd.SparseDtype(float, 0.0)),
    "anndata": lambda: pytest.importorskip("anndata").AnnData(TABLE.astype(float)),
    "sparse anndata": lambda: pytest.importorskip("anndata").AnnData(sparse.csr_matrix(DISTINCT)),
    "dask": lambda: pytest.importorskip("dask.array").from_array(DISTINCT, chunks=(5, 6)),
    "torch": lambda: pytest.importorskip("torch").tensor(DISTINCT),
    "polars": lambda: pytest.importorskip("polars").DataFrame(DISTINCT),
}


def dense(found):
    return found.toarray() if sparse.issparse(found) else found


@pytest.mark.filterwarnings("ignore:`X` is float16")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_takes_what_learn_takes(name, kind):
    assert set(baselines.__all__) == set(BASELINES)
    data = KINDS[kind]()
    want = dense(BASELINES[name](DISTINCT.astype(float)))
    assert_allclose(dense(BASELINES[name](data)), want, atol=1e-9)


def test_logarithms_of_counts_have_the_names_of_the_counts():
    anndata = pytest.importorskip("anndata")
    want = baselines.log_normalized(DISTINCT)
    table = baselines.log_normalized(TABLE)
    assert_allclose(table.to_numpy(), want)
    assert list(table.index) == list(TABLE.index)
    assert list(table.columns) == list("abcdef")
    data = baselines.log_normalized(anndata.AnnData(TABLE.astype(float)))
    assert_allclose(data.X, want)
    assert list(data.var_names) == list("abcdef")


def test_an_empty_row_has_no_direction_and_a_constant_one_no_correlations():
    for form in FORMS:
        assert_allclose(baselines.cosine(form([[1, 2], [0, 0], [2, 4]]))[1], [1.0, 0.0, 1.0])
    constant = np.vstack([COUNTS, np.ones(6)])
    want = np.append(np.ones(12), 0.0)
    assert_allclose(baselines.correlation(constant)[12], want)
    assert_allclose(baselines.loadings(constant, 2)[12], want)


@pytest.mark.parametrize("form", FORMS)
def test_log_normalized_counts_have_equal_depth(form):
    found = baselines.log_normalized(form(COUNTS))
    assert sparse.issparse(found) == sparse.issparse(form(COUNTS))
    depth = COUNTS.sum(axis=1)
    want = [[np.log(1 + x * np.median(depth) / depth[i]) for x in COUNTS[i]] for i in range(12)]
    assert_allclose(dense(found), want)
    empty = baselines.log_normalized(form(np.array([[1, 1], [0, 0], [4, 0], [3, 3]])))
    assert_allclose(np.expm1(dense(empty)), [[2, 2], [0, 0], [4, 0], [2, 2]])
    data = form(X)  # no counts
    assert baselines.log_normalized(data) is data


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: baselines.l2(X[0]), "`X` has 1 dimension; pass a matrix, samples by features"),
        (lambda: baselines.l2((X, X.T)), r"`X` is a pair, as of the histograms \(A, B\); pass one"),
        (lambda: baselines.l1([[1, 2], [np.nan, 3]]), "`X` has 1 NaN entry"),
        *(
            (lambda name=name: getattr(baselines, name)(X, 10), "`n_components` is 10; choose betw")
            for name in ("pca", "lsa", "loadings", "pearson_residuals")
        ),
        (lambda: baselines.correspondence(X, 9), "`n_components` is 9; choose between 1 and 8"),
        (lambda: baselines.tfidf(-X), "`X` has 108 negative entries .*Pass counts"),
        (lambda: baselines.tfidf(X[:1]), r"`X` has shape \(1, 9\); need at least 2 rows"),
        (
            lambda: baselines.hellinger(np.diag([1, 0, 2])),
            r"`X` has 1 empty row \(first: 1\). Drop",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
