"""References: their formulas, written again in plain loops or with scikit-learn, and their laws."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

import cometric as cm
import naive
from cometric.core.histograms import Histograms
from cometric.maps import views
from cometric.maps.norms import NAMES, fit, norm_matrix

RNG = np.random.default_rng(0)
SIDES = ("samples", "features")


def counts(n=60, d=50, seed=0):
    """Two groups of items with different bins, and noise."""
    rng = np.random.default_rng(seed)
    rates = 0.2 + 2.0 * ((np.arange(n)[:, None] % 2) == (np.arange(d)[None] % 2))
    X = rng.poisson(rates * rng.gamma(3.0, 1.0, (n, 1))).astype(float)
    X[:, :2] += rng.uniform(0.5, 1.0, (n, 2))  # no two rows are alike
    X[:2] += rng.uniform(0.5, 1.0, (2, d))
    return X


def histograms(X):
    return Histograms.of(sparse.csr_array(X / X.sum(axis=1, keepdims=True)))


def euclidean(vectors):
    return cdist(vectors, vectors)


# Formulas


def naive_lsa(X):
    model = TruncatedSVD(30, algorithm="arpack")
    return euclidean(normalize(model.fit_transform(naive.tfidf(X))))


def naive_loadings(X):
    rows = naive.damped(X)
    rows = rows - rows.mean(axis=1, keepdims=True)
    left, values, _ = np.linalg.svd(normalize(rows), full_matrices=False)
    return euclidean(normalize(left[:, :30] * values[:30]))


def test_cosine_and_hellinger_are_those_of_scipy():
    X = counts()
    A = X / X.sum(axis=1, keepdims=True)
    assert_allclose(norm_matrix(histograms(X), "cosine"), cdist(A, A, "cosine"), atol=1e-12)
    assert_allclose(norm_matrix(histograms(X), "hellinger"), euclidean(np.sqrt(A)), atol=1e-7)


def test_lsa_is_that_of_scikit_learn():
    X = counts(n=70, d=60)
    weighted = TfidfTransformer(norm="l2", smooth_idf=True).fit_transform(naive.damped(X))
    assert_allclose(naive.tfidf(X), np.asarray(weighted.todense()), atol=1e-12)
    assert_allclose(norm_matrix(histograms(X), "lsa"), naive_lsa(X), atol=1e-6)


def thin(n, d, seed=0):
    """Some entries per row, of three kinds of rows."""
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.3, 1.0, (3, d))
    X = np.array([rng.multinomial(8, p / p.sum()) for p in rates[np.arange(n) % 3]], dtype=float)
    X = X[:, X.sum(axis=0) > 0]
    return np.unique(X, axis=0)


def low_rank(n, d, rank, total, seed=0):
    """Counts, ``total`` in a row on average, from mixtures of ``rank`` kinds."""
    rng = np.random.default_rng(seed)
    kinds = rng.dirichlet(np.full(d, 0.5), rank)
    return rng.poisson(total * rng.dirichlet(np.ones(rank), n) @ kinds) + 0.1


SAMPLES = {
    "counts": counts(),
    "thin": thin(150, 120),
    "low rank": low_rank(90, 130, 20, 1e4),
    "many components": thin(540, 900),  # more than SMALL
    "fewer than ten": counts(40, 7),
    "two samples": counts(2, 9),
    "two features": counts(25, 2),
    "constant columns": np.column_stack([np.ones((14, 2)), counts(14, 9)]) / 30,
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_local_is_its_formula(kind):
    X = SAMPLES[kind]
    if kind == "many components":
        assert min(X.shape) > views.SMALL
    parts, weights = naive.sample_views(X)
    fitted = fit("local", histograms(X), "samples").views
    assert_allclose(fitted.weights, weights, rtol=1e-6)
    unit = np.std if len(X) > 2 else np.mean  # of one pair there is no deviation
    R = norm_matrix(histograms(X), "local")
    assert_allclose(R, naive.local(parts, weights, unit), rtol=1e-5, atol=1e-9)


def test_local_0_2_and_local_of_features_are_their_formula():
    X = counts()
    tfidf = euclidean(naive.tfidf(X))
    samples = naive.local([naive.l1_of_damped(X), tfidf, naive_lsa(X)], unit=np.mean)
    R = norm_matrix(histograms(X), "local-0.2")
    assert_allclose(R, samples, rtol=1e-5, atol=1e-9)
    features = naive.local([naive.l1_of_damped(X), naive_loadings(X)], unit=np.mean)
    for name in ("local", "local-0.2"):
        R = norm_matrix(histograms(X), name, of="features")
        assert_allclose(R, features, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("rank", [5, 20, 50])
def test_views_that_leave_out_more_than_noise_weigh_less(rank):
    """Residuals of mixtures have one component less than there are kinds; the rest is noise."""
    X = low_rank(400, 300, rank, 1e6)
    weights = fit("local", histograms(X), "samples").views.weights[6:]
    for number, weight in zip((5, 10, 30, 100), weights, strict=True):
        assert 0.0 < weight <= 1.0
        assert (weight < 0.9) == (number < rank - 1), (number, weight)


def test_without_noise_only_views_with_all_components_count():
    rng = np.random.default_rng(0)
    X = rng.dirichlet(np.ones(20), 80) @ rng.dirichlet(np.ones(70), 20)
    weights = fit("local", histograms(X), "samples").views.weights
    assert_allclose(weights[6:], [0, 0, 1, 1], atol=1e-6)


def test_a_sample_equal_to_the_mean_has_no_direction_in_correspondence_analysis():
    """Where its residuals are zero up to rounding, their direction is not used."""
    X = counts(20, 12)
    A = X / X.sum(axis=1, keepdims=True)
    A = np.vstack([A, A.mean(axis=0)])
    fitted = fit("local", histograms(A), "samples").views
    for vectors in fitted.place(histograms(A))[6:]:
        assert not vectors.rows[-1].any()
        assert_allclose(np.linalg.norm(vectors.rows[:-1], axis=1), 1.0)
    R = norm_matrix(histograms(A), "local")
    for seed in range(3):
        moved = A * (1.0 + 1e-15 * np.random.default_rng(seed).standard_normal(A.shape))
        assert_allclose(norm_matrix(histograms(moved), "local"), R, rtol=1e-5)


def test_a_view_with_equal_distances_does_not_drown_the_others():
    """Samples without a common feature: l1 and tf-idf are the same for all pairs."""
    X = np.kron(np.eye(12), np.array([[1.0, 2.0, 3.0]]))
    R = norm_matrix(histograms(X), "local")
    off = R[~np.eye(12, dtype=bool)]
    assert_allclose(off, off[0], rtol=1e-6)


# Laws


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 5), (12, 40), (40, 12), (260, 230)])
def test_references_are_symmetric_positive_and_finite(name, shape, of):
    X = RNG.random(shape) * (RNG.random(shape) < 0.5)
    X[:, :2] += RNG.random((shape[0], 2))
    R = norm_matrix(histograms(X), name, of=of)
    assert np.isfinite(R).all()
    assert (R == R.T).all()
    assert not np.diagonal(R).any()
    assert (R[~np.eye(len(R), dtype=bool)] > 0).all()


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("name", NAMES)
def test_order_and_scale_of_the_items_do_not_matter(name, of):
    X = counts(n=230, d=210)
    order, bins = RNG.permutation(230), RNG.permutation(210)
    R = norm_matrix(histograms(X), name, of=of)
    moved = 7.0 * X[np.ix_(order, bins)] * RNG.uniform(0.5, 2.0, (230, 1))
    found = norm_matrix(histograms(moved), name, of=of)
    assert_allclose(found, R[np.ix_(order, order)], rtol=1e-6, atol=1e-6 * R.max())


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("name", NAMES)
def test_learned_items_placed_again_have_the_learned_distances(name, of):
    X = counts()
    hist = histograms(X)
    fitted = fit(name, hist, of)
    i, j = np.triu_indices(len(X), 1)
    again = fitted.pairs(fitted.place(hist.take([*range(60), 3])), np.stack([i, j], axis=1))
    assert_allclose(again, fitted.matrix[i, j], rtol=1e-6, atol=1e-7)


DEGENERATE = {
    "constant items": np.vstack([np.full((2, 9), 0.3) + np.arange(2)[:, None], counts(12, 9)]),
    "constant bins": np.column_stack([np.full((14, 2), 1e3), counts(14, 9)]),
    "one direction": np.outer(np.ones(12), np.arange(1.0, 10)) + np.eye(12, 9),
    "circulant": cm.datasets.torus("bimodal", 16, 16),
    "blocks": np.kron(np.eye(2), counts(8, 6)),
    "points": np.eye(12) + np.eye(12, k=1),
}


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", DEGENERATE)
def test_rounding_of_the_data_does_not_change_references(kind, name, of):
    """Directions that consist of rounding errors would differ from machine to machine."""
    X = DEGENERATE[kind]
    want = fit(name, histograms(X), of).matrix
    for seed in range(3):
        moved = X * (1.0 + 1e-15 * np.random.default_rng(seed).standard_normal(X.shape))
        found = fit(name, histograms(moved), of).matrix
        assert_allclose(found, want, rtol=1e-5, atol=1e-6 * want.max())


def test_equal_singular_values_are_not_divided():
    """On a circle singular values come in pairs; the distances stay the same at every place."""
    X = cm.datasets.torus("unimodal", 80, 80)
    R = norm_matrix(histograms(X), "local")
    assert_allclose(R, np.roll(R, (1, 1), axis=(0, 1)), rtol=1e-6)


def test_identical_directions_leave_one_distance():
    """All singular values are equal: there is nothing to project to, and the others decide."""
    R = norm_matrix(histograms(np.eye(40) + 0.0), "local")
    off = R[~np.eye(40, dtype=bool)]
    assert_allclose(off, off[0], rtol=1e-9)


# In learn


def test_a_distance_of_zero_to_all_near_items_has_no_weight_and_gives_no_warning():
    """With two samples, standardized features are one of two vectors; the nearest ten are equal."""
    X = np.random.default_rng(0).uniform(0.1, 1.1, (2, 30))
    R = norm_matrix(histograms(X.T), "local", of="features")  # warnings are errors here
    assert np.isfinite(R).all()
    assert (R[~np.eye(30, dtype=bool)] > 0.0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eps", [0.0, 0.1, np.inf])
def test_learn_satisfies_the_equations_with_a_reference(name, eps):
    X = counts(n=14, d=11)
    result = cm.learn(X, eps=eps, restart=0.3, norm=name, tol=1e-8)
    assert result.converged
    assert result.parameters.norm == name
    again = cm.learn(X, eps=eps, restart=0.3, norm=_matrices(X, name), tol=1e-8)
    assert_allclose(result.samples, again.samples, rtol=1e-6)
    assert_allclose(result.features, again.features, rtol=1e-6)


def _matrices(X, name):
    return norm_matrix(histograms(X), name), norm_matrix(histograms(X.T), name, of="features")
