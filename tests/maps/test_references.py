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
from cometric.core.histograms import Histograms
from cometric.maps import references
from cometric.maps.norms import norm_matrix

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


def damped(X):
    A = X / X.sum(axis=1, keepdims=True)
    return np.log(1.0 + A / np.median(A[A > 0]))


def naive_tfidf(X):
    weighted = TfidfTransformer(norm="l2", smooth_idf=True).fit_transform(damped(X))
    return np.asarray(weighted.todense())


def naive_lsa(X):
    model = TruncatedSVD(references.COMPONENTS, algorithm="arpack")
    return euclidean(normalize(model.fit_transform(naive_tfidf(X))))


def naive_loadings(X):
    rows = damped(X)
    rows = rows - rows.mean(axis=1, keepdims=True)
    left, values, _ = np.linalg.svd(normalize(rows), full_matrices=False)
    k = references.COMPONENTS
    return euclidean(normalize(left[:, :k] * values[:k]))


def naive_local(parts):
    """The formula of the documentation, entry by entry."""
    n = len(parts[0])
    total = np.zeros((n, n))
    for d in parts:
        scale = [np.mean(sorted(np.delete(d[i], i))[:10]) for i in range(n)]
        relative = np.array([[d[i, j] / np.sqrt(scale[i] * scale[j]) for j in range(n)]
                             for i in range(n)])  # fmt: skip
        total += relative / (relative.sum() / (n * (n - 1)))
    near = [np.array(sorted(np.delete(total[i], i))[:30]) for i in range(n)]
    noise = [0.9 * row[0] for row in near]
    spread = [np.mean(row - a) for row, a in zip(near, noise, strict=True)]
    R = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                above = (total[i, j] - noise[i]) * (total[i, j] - noise[j])
                R[i, j] = (above / (spread[i] * spread[j])) ** 0.75
    pairs = R[~np.eye(n, dtype=bool)]
    return np.minimum(R, np.quantile(pairs, 0.99, method="inverted_cdf"))


def test_cosine_and_hellinger_are_those_of_scipy():
    X = counts()
    A = X / X.sum(axis=1, keepdims=True)
    assert_allclose(norm_matrix(histograms(X), "cosine"), cdist(A, A, "cosine"), atol=1e-12)
    assert_allclose(norm_matrix(histograms(X), "hellinger"), euclidean(np.sqrt(A)), atol=1e-7)


def test_lsa_is_that_of_scikit_learn():
    X = counts(n=70, d=60)
    assert_allclose(norm_matrix(histograms(X), "lsa"), naive_lsa(X), atol=1e-6)


def test_local_is_its_formula():
    X = counts()
    A = damped(X)
    manhattan = cdist(
        A / A.sum(axis=1, keepdims=True), A / A.sum(axis=1, keepdims=True), "cityblock"
    )
    samples = naive_local([manhattan, euclidean(naive_tfidf(X)), naive_lsa(X)])
    assert_allclose(norm_matrix(histograms(X), "local"), samples, rtol=1e-5, atol=1e-9)
    features = naive_local([manhattan, naive_loadings(X)])
    assert_allclose(
        norm_matrix(histograms(X), "local", of="features"), features, rtol=1e-5, atol=1e-9
    )


# Laws


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("name", references.NAMES)
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
@pytest.mark.parametrize("name", references.NAMES)
def test_order_and_scale_of_the_items_do_not_matter(name, of):
    X = counts(n=230, d=210)
    order, bins = RNG.permutation(230), RNG.permutation(210)
    R = norm_matrix(histograms(X), name, of=of)
    moved = 7.0 * X[np.ix_(order, bins)] * RNG.uniform(0.5, 2.0, (230, 1))
    found = norm_matrix(histograms(moved), name, of=of)
    assert_allclose(found, R[np.ix_(order, order)], rtol=1e-6, atol=1e-6 * R.max())


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("name", references.NAMES)
def test_learned_items_placed_again_have_the_learned_distances(name, of):
    X = counts()
    hist = histograms(X)
    fitted = references.fit(name, hist, of)
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
@pytest.mark.parametrize("name", references.NAMES)
@pytest.mark.parametrize("kind", DEGENERATE)
def test_rounding_of_the_data_does_not_change_references(kind, name, of):
    """Directions that consist of rounding errors would differ from machine to machine."""
    X = DEGENERATE[kind]
    want = references.fit(name, histograms(X), of).matrix
    for seed in range(3):
        moved = X * (1.0 + 1e-15 * np.random.default_rng(seed).standard_normal(X.shape))
        found = references.fit(name, histograms(moved), of).matrix
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


@pytest.mark.parametrize("name", references.NAMES)
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


def test_the_certificate_holds_with_the_local_reference():
    X = counts(n=10, d=8)
    rough = cm.learn(X, eps=0, tol=1e-3)
    truth = cm.learn(X, eps=0, tol=1e-13)
    bound = rough.certify()
    error = np.log(rough.samples[rough.samples > 0] / truth.samples[truth.samples > 0])
    assert error.max() - error.min() <= bound.samples_error


@pytest.mark.parametrize("of", SIDES)
def test_transform_places_new_items_among_the_learned_ones(of):
    X = counts(n=40, d=30)
    result = cm.learn(X, tol=1e-6)
    items = X[:5] if of == "samples" else X[:, :5]
    learned = getattr(result, of)
    assert_allclose(result.transform(items, of=of), learned[:5], atol=1e-5)
    even, odd = np.arange(5) % 2 == 0, np.arange(5) % 2 == 1
    new = np.random.default_rng(1).poisson(items + 0.1) + items
    distances = result.transform(new, of=of)
    group = np.arange(distances.shape[1]) % 2 == 0
    assert distances[even][:, group].mean() < distances[even][:, ~group].mean()
    assert distances[odd][:, ~group].mean() < distances[odd][:, group].mean()
