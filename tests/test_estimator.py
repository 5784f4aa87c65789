"""The estimator keeps scikit-learn's promises, and works where precomputed distances do."""

import inspect

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.cluster import HDBSCAN, AgglomerativeClustering
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import cometric as cm
from cometric import WassersteinSingularVectors
from sklearn_checks import EXPECTED_FAILURES


@pytest.mark.filterwarnings("ignore")  # scikit-learn's data repeat rows, which we say
@parametrize_with_checks(
    [WassersteinSingularVectors(eps=0.5, tau=0.1, tol=1e-3, n_threads=1)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_it_is_an_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    """Images of 0, 1 and 2, pixels used by none left out: 60 to learn from and 60 others."""
    images, labels = load_digits(n_class=3, return_X_y=True)
    images = images[:, (images[:60] > 0).any(axis=0)]
    return images[:60], labels[:60], images[60:120], labels[60:120]


@pytest.fixture(scope="module")
def fitted(digits):
    return WassersteinSingularVectors(tau=0.01, tol=1e-6).fit(digits[0])


def test_it_takes_what_learn_takes():
    ours = inspect.signature(WassersteinSingularVectors).parameters
    for name, parameter in inspect.signature(cm.learn).parameters.items():
        if name not in ("X", "client"):
            assert ours[name].default == parameter.default, name


def test_it_learns_what_learn_does(digits, fitted):
    r = cm.learn(digits[0], tau=0.01, tol=1e-6)
    assert_array_equal(fitted.sample_distances_, r.samples)
    assert_array_equal(fitted.feature_distances_, r.features)
    assert_array_equal(fitted.singular_values_, r.values)
    assert fitted.n_iter_ == len(fitted.history_) == r.iterations
    assert fitted.converged_ is True
    assert fitted.n_features_in_ == digits[0].shape[1]


def test_transform_is_that_of_the_result(digits, fitted):
    expected = fitted.result_.transform(digits[2])
    assert_array_equal(fitted.transform(digits[2]), expected)
    assert_array_equal(fitted.transform(sparse.csr_array(digits[2])), expected)
    assert_allclose(fitted.feature_transform(digits[0]), fitted.feature_distances_, atol=1e-5)


@pytest.mark.parametrize(("eps", "kind"), [(0, "Certificate"), (0.5, "Diagnosis")])
def test_the_certificate_is_computed_when_asked_for_and_once(eps, kind, monkeypatch):
    X = np.random.default_rng(0).random((6, 5))
    estimator = WassersteinSingularVectors(eps=eps, tau=0.1)
    calls = []
    certify = cm.Result.certify
    monkeypatch.setattr(
        cm.Result, "certify", lambda self, **given: calls.append(1) or certify(self, **given)
    )
    assert not hasattr(estimator, "certificate_")
    estimator.fit(X)
    assert calls == []
    found = estimator.certificate_
    assert type(found).__name__ == kind
    assert estimator.certificate_ is found
    assert estimator.fit(X).certificate_ is not found
    assert len(calls) == 2


def test_the_graph_is_that_of_scikit_learn(digits, fitted):
    search = KNeighborsTransformer(n_neighbors=4, metric="precomputed")
    search.fit(fitted.sample_distances_)
    ours = clone(fitted).set_params(mode="knn", n_neighbors=4)
    for graph, expected in [
        (ours.fit_transform(digits[0]), search.transform(fitted.sample_distances_)),
        (ours.transform(digits[2]), search.transform(fitted.transform(digits[2]))),
    ]:
        assert type(graph) is type(expected)
        assert_array_equal(graph.toarray(), expected.toarray())
        assert_array_equal(graph.data, expected.data)


def test_neighbors_are_those_of_scikit_learn(digits, fitted):
    search = KNeighborsClassifier(n_neighbors=5, metric="precomputed")
    search.fit(fitted.sample_distances_, digits[1])
    for X, distances in [(None, None), (digits[2], fitted.transform(digits[2]))]:
        expected = search.kneighbors(distances)
        found = fitted.kneighbors(X)
        assert_array_equal(found[0], expected[0])
        assert_array_equal(found[1], expected[1])
        assert_array_equal(fitted.kneighbors(X, return_distance=False), expected[1])
    assert fitted.kneighbors(n_neighbors=2)[1].shape == (60, 2)


@pytest.mark.parametrize("mode", ["distances", "knn"])
def test_neighbors_read_digits_in_a_pipeline(digits, mode):
    train, labels, test, truth = digits
    reader = make_pipeline(
        WassersteinSingularVectors(tau=0.01, mode=mode),
        KNeighborsClassifier(n_neighbors=3, metric="precomputed"),
    )
    assert reader.fit(train, labels).score(test, truth) > 0.9


@pytest.mark.filterwarnings("ignore:.X. has")  # half of the images leave some pixels empty or alike
def test_a_grid_can_be_searched(digits):
    train, labels, _, _ = digits
    search = GridSearchCV(
        make_pipeline(
            FunctionTransformer(np.sqrt),
            WassersteinSingularVectors(tau=0.01, drop_empty=True, tol=1e-3),
            KNeighborsClassifier(n_neighbors=3, metric="precomputed"),
        ),
        {"wassersteinsingularvectors__eps": [0.5, np.inf]},
        cv=2,
    )
    assert search.fit(train, labels).best_score_ > 0.9


def test_clusters_and_embeddings(digits, fitted):
    labels, distances = digits[1], fitted.sample_distances_
    assert silhouette_score(distances, labels, metric="precomputed") > 0.25
    clusters = AgglomerativeClustering(3, metric="precomputed", linkage="average")
    groups = clusters.fit_predict(distances)
    assert len(np.unique(np.stack([groups, labels]), axis=1).T) <= 5
    found = HDBSCAN(min_cluster_size=5, metric="precomputed", copy=True).fit_predict(distances)
    assert len(set(found) - {-1}) >= 2
    tsne = TSNE(metric="precomputed", init="random", perplexity=15, random_state=0)
    assert silhouette_score(tsne.fit_transform(distances), labels) > 0.25


def test_names_go_in_and_out(digits):
    pd = pytest.importorskip("pandas")
    pixels = [f"pixel {k}" for k in range(digits[0].shape[1])]
    frame = pd.DataFrame(digits[0], columns=pixels)
    estimator = WassersteinSingularVectors(eps=np.inf, tau=0.1, tol=1e-8)
    estimator.set_output(transform="pandas")
    out = estimator.fit_transform(frame)
    assert list(estimator.feature_names_in_) == pixels
    assert list(out.columns) == list(estimator.get_feature_names_out())
    assert out.columns[59] == "wassersteinsingularvectors59"
    assert estimator.result_.explain(0, 1).flows[0].source in pixels
    turned = frame[pixels[::-1]][:3]
    with pytest.raises(ValueError, match="feature names should match"):  # as scikit-learn's checks
        estimator.transform(turned)
    assert_allclose(estimator.result_.transform(turned), out.to_numpy()[:3], atol=1e-6)
    found = estimator.feature_transform(frame[::-1][["pixel 7"]])[0]
    assert_allclose(found, estimator.feature_distances_[7], atol=1e-6)


@pytest.mark.parametrize("kind", [cm.ConvergenceWarning, SklearnConvergenceWarning])
def test_not_converging_raises_both_warnings(digits, kind):
    estimator = WassersteinSingularVectors(eps=0.1, restart=0.5, max_iter=2)
    with pytest.warns(kind, match="not converged: the iteration limit was reached first. Residual"):
        estimator.fit(digits[0])
    assert estimator.converged_ is False
    assert estimator.n_iter_ == 2


@pytest.mark.parametrize("value", [0, -1, 2.5, None, "5"])
def test_bad_options_are_refused(digits, value):
    with pytest.raises(ValueError, match="`mode` is 'graph'; choose 'distances' or 'knn'"):
        WassersteinSingularVectors(mode="graph").fit(digits[0])
    with pytest.raises(ValueError, match="`n_neighbors` is .*; pass a whole number, at least 1"):
        WassersteinSingularVectors(mode="knn", n_neighbors=value).fit(digits[0])


def test_samples_whose_sums_overflow_are_not_empty(digits):
    huge = 1e308 * (digits[0] / digits[0].max())
    plain, large = (WassersteinSingularVectors(np.inf, 0.1).fit(X) for X in (digits[0], huge))
    assert_allclose(large.sample_distances_, plain.sample_distances_, atol=1e-9)


@pytest.mark.parametrize("drop_empty", [False, True])
def test_empty_samples_are_refused(digits, drop_empty):
    X = digits[0].copy()
    X[[4, 7]] = 0
    with pytest.raises(ValueError, match=r"`X` has 2 empty samples \(first: 4\).* Drop them first"):
        WassersteinSingularVectors(drop_empty=drop_empty).fit(X)


def test_empty_features_may_be_dropped(digits):
    X = np.insert(digits[0], 3, 0.0, axis=1)
    with pytest.raises(ValueError, match=r"1 empty column \(first: 3\).*`drop_empty=True`"):
        WassersteinSingularVectors(eps=np.inf).fit(X)
    estimator = WassersteinSingularVectors(eps=np.inf, tau=0.1, drop_empty=True).fit(X)
    assert estimator.n_features_in_ == X.shape[1]
    assert len(estimator.feature_distances_) == X.shape[1] - 1
    assert_allclose(estimator.transform(X), estimator.sample_distances_, atol=1e-6)


def test_too_many_neighbors_are_named_as_they_were_passed(fitted):
    with pytest.raises(ValueError, match="`n_neighbors` is 60; pass a whole number from 1 to 59"):
        fitted.kneighbors(n_neighbors=60)
    X = np.random.default_rng(0).random((6, 4))
    model = WassersteinSingularVectors(eps=np.inf, mode="knn", n_neighbors=6)
    for call in (model.fit_transform, model.fit(X).transform):
        with pytest.raises(ValueError, match="`n_neighbors` is 6; pass a whole number from 1 to 5"):
            call(X)


def test_anndata_are_refused_with_what_to_pass():
    anndata = pytest.importorskip("anndata")
    data = anndata.AnnData(np.random.default_rng(0).random((6, 4)))
    with pytest.raises(ValueError, match="`X` is an AnnData.*pass `adata.X`, or `adata.to_df"):
        cm.WassersteinSingularVectors(eps=np.inf).fit(data)
