"""Data averaged over neighbors: slow twin, what is conserved, what is refused."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
import naive
from cometric import baselines
from cometric.results.smoothing import largest_entries

rng = np.random.default_rng(0)
X = rng.gamma(0.5, size=(12, 9)) * (rng.random((12, 9)) < 0.7) + np.eye(12, 9) + np.eye(12, 9, -9)
D, C = baselines.l1(X), baselines.l1(X.T)


@pytest.fixture(scope="module")
def result():
    return cm.learn(X, tol=0.1)


@pytest.mark.parametrize("k", [1, 4, 11])
def test_smoothing_is_that_of_its_slow_twin(k):
    assert_allclose(cm.smooth(X, D, k), naive.smooth(X, D, k))
    assert_allclose(cm.smooth(X, 1e-3 * D, k), cm.smooth(X, D, k))


def test_features_and_both_sides():
    by_feature = naive.smooth(X.T, C, 3).T
    assert_allclose(cm.smooth(X, C, 3, of="features"), by_feature)
    both = naive.smooth(naive.smooth(X, D, 3).T, C, 3).T
    assert_allclose(cm.smooth(X, (D, C), 3, of="both"), both)


def test_a_result_has_the_distances(result):
    assert_array_equal(cm.smooth(X, result, 4), cm.smooth(X, result.samples, 4))
    for of, distances in (("features", result.features), ("both", result.metrics)):
        found = cm.smooth(X, result, 4, of=of)
        assert_array_equal(found, cm.smooth(X, distances, 4, of=of))


def test_equal_samples_stay_equal():
    repeated = X[[0, 1, 2, 0, 3, 4, 0, 5, 6]]
    found = cm.smooth(repeated, baselines.l1(repeated), 4, keep=0.8)
    assert_array_equal(found[0], found[3])
    assert_array_equal(found[0], found[6])
    repeated = np.repeat(X[:3], 5, axis=0)  # as many repeats as neighbors
    assert_allclose(cm.smooth(repeated, baselines.l1(repeated), 4), repeated)


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_data_stay_sparse(form):
    found = cm.smooth(form(X), (D, C), 4, of="both")
    assert isinstance(found, sparse.csr_array)
    assert_allclose(found.toarray(), cm.smooth(X, (D, C), 4, of="both"))


def test_annotated_data_keep_their_names():
    anndata, pd = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    names = [f"s{i}" for i in range(12)], [f"f{k}" for k in range(9)]
    adata = anndata.AnnData(sparse.csr_matrix(X))
    adata.obs_names, adata.var_names = names
    adata.obs["kind"] = "a"
    found = cm.smooth(adata, D, 4)
    assert_allclose(found.X.toarray(), cm.smooth(X, D, 4))
    assert found.to_df().index.tolist() == names[0]
    assert (found.var_names.tolist(), list(found.obs)) == (names[1], ["kind"])
    frame = cm.smooth(pd.DataFrame(X, *names), D, 4)
    assert_allclose(frame.to_numpy(), found.X.toarray())
    assert (frame.index.tolist(), frame.columns.tolist()) == names


def test_a_graph_of_neighbors_is_enough():
    graph = neighbor_graph(D, 6)
    assert_allclose(cm.smooth(X, graph, 6), cm.smooth(X, D, 6))
    assert_allclose(cm.smooth(X, graph, 4), cm.smooth(X, D, 4))
    assert_allclose(cm.smooth(X, graph + 1e-3 * sparse.eye_array(12), 4), cm.smooth(X, D, 4))


def neighbor_graph(distances, k):
    near = np.argsort(distances, axis=1)[:, 1 : k + 1]
    graph = np.zeros_like(distances)
    np.put_along_axis(graph, near, np.take_along_axis(distances, near, axis=1), axis=1)
    return sparse.csr_array(graph)


def test_empty_samples_and_features_stay_empty():
    holes = np.insert(np.insert(X, 2, 0.0, axis=0), [0, 5], 0.0, axis=1)
    found = cm.learn(holes, drop_empty=True, tol=0.1)
    again = cm.smooth(holes, found, 4, of="both")
    assert not again[2].any()
    assert not again[:, [0, 6]].any()
    inner = np.delete(np.delete(again, 2, axis=0), [0, 6], axis=1)
    assert_allclose(inner, cm.smooth(X, found, 4, of="both"))


def test_learning_again_brings_samples_of_a_kind_together():
    kinds = np.repeat([0, 1, 2], 15)
    counts = np.random.default_rng(0).poisson(np.kron(np.eye(3), np.ones((15, 10))) * 0.4 + 0.2)
    counts[np.arange(45), 10 * kinds] += 1
    first = cm.learn(counts, tol=0.05)
    again = cm.learn(cm.smooth(counts, first, keep=0.95), tol=0.05)
    silhouettes = [cm.scores.silhouette(found.samples, kinds) for found in (first, again)]
    assert silhouettes[1] > silhouettes[0] + 0.1


def test_distances_may_be_integers():
    steps = np.abs(np.subtract.outer(np.arange(12), np.arange(12)))
    assert_array_equal(cm.smooth(X, steps, 3), cm.smooth(X, steps.astype(float), 3))


def naive_largest(X, share):
    kept = np.zeros_like(X)
    for i, row in enumerate(X):
        total = 0.0
        for j in np.argsort(-row, kind="stable"):
            if total >= share * row.sum() and row[j] < X[:, j].max():
                continue
            kept[i, j] = row[j]
            total += row[j]
        kept[i] *= row.sum() / kept[i].sum()
    return kept


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95, 0.999])
def test_the_largest_entries_remain(share):
    found = largest_entries(sparse.csr_array(X), share)
    assert_allclose(found.toarray(), naive_largest(X, share))
    assert found.nnz == np.count_nonzero(found.toarray())
    assert_allclose(found.sum(axis=1), X.sum(axis=1))
    assert (found.sum(axis=0) > 0).all()
    empty = largest_entries(sparse.csr_array(np.vstack([X, np.zeros(9)])), share)
    assert_array_equal(empty.toarray()[:-1], found.toarray())


def test_the_default_is_15_neighbors_or_all_of_fewer(result):
    assert_array_equal(cm.smooth(X, result), cm.smooth(X, result, 11))
    both = cm.smooth(cm.smooth(X, D, 11), C, 8, of="features")
    assert_array_equal(cm.smooth(X, (D, C), of="both"), both)
    graph = neighbor_graph(D, 3)
    assert_array_equal(cm.smooth(X, graph), cm.smooth(X, graph, 3))
    many = rng.random((20, 9))
    far = baselines.l1(many)
    assert_array_equal(cm.smooth(many, far), cm.smooth(many, far, 15))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_neighbors": 12}, "`n_neighbors` is 12; pass a whole number from 1 to 11"),
        ({"n_neighbors": 2.5}, "`n_neighbors` is 2.5"),
        ({"of": "genes"}, "`of` is 'genes'; choose 'samples', 'features' or 'both'"),
        ({"keep": 0.0}, "`keep` is 0.0; pass a share of the mass, above 0 and at most 1"),
        ({"keep": "all"}, "`keep` is 'all'; pass a number"),
        ({"distances": C}, r"`distances` has shape \(9, 9\); `X` has 12 samples, so pass"),
        ({"of": "features"}, r"`distances` has shape \(12, 12\); `X` has 9 features"),
        ({"of": "both"}, "for `of='both'` pass a result, or a pair"),
        ({"distances": "l1"}, "`distances` is a str, which cannot be read"),
        ({"distances": D.astype(str)}, "`distances` has dtype <U"),
        ({"distances": np.where(D > 1, np.nan, D)}, r"`distances` has \d+ entries that are not"),
        ({"distances": D - 0.5}, r"`distances` has \d+ entries that are negative"),
        ({"distances": neighbor_graph(D, 3)}, "has rows with 3 neighbors; need `n_neighbors` = 4"),
        ({"X": -X}, "negative"),
        ({"X": X[0]}, "`X` has 1 dimension"),
    ],
)
def test_bad_inputs_are_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        cm.smooth(**{"X": X, "distances": D, "n_neighbors": 4, **options})


def test_data_in_another_order_than_the_learned_are_refused():
    pd = pytest.importorskip("pandas")
    empty = np.insert(X, 3, 0.0, axis=0)
    for values in (X, empty):
        frame = pd.DataFrame(values, index=[f"s{i}" for i in range(len(values))])
        learned = cm.learn(frame, drop_empty=True, tol=0.1)
        assert_array_equal(cm.smooth(frame, learned, 4), cm.smooth(values, learned, 4))
        order = [1, 0, *range(2, len(values))]
        with pytest.raises(ValueError, match="`X` has its samples in another order than the data"):
            cm.smooth(frame.iloc[order], learned, 4)
        renamed = frame.set_axis([f"t{i}" for i in range(len(values))])
        assert_array_equal(cm.smooth(renamed, learned, 4), cm.smooth(frame, learned, 4))
    with pytest.raises(ValueError, match="`X` has 11 samples, but `distances` is a result of 12"):
        cm.smooth(X[1:], cm.learn(X, tol=0.1), 4)
    frame = pd.DataFrame(X)
    with pytest.raises(ValueError, match="`X` has its features in another order"):
        cm.smooth(frame[frame.columns[::-1]], cm.learn(frame, tol=0.1), 4, of="features")
