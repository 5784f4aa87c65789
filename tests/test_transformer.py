"""``NeighborsTransformer`` in scanpy, in scikit-learn, and beside the graph it wraps."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import cometric as cm
from sklearn_checks import EXPECTED_FAILURES

QUICK = {"eps": 0.5, "tau": 0.1, "tol": 1e-3}


@pytest.fixture(scope="module")
def counts():
    return cm.datasets.simulate_counts(70, 30, types=3, density=0.4, random_state=2).X


@pytest.mark.filterwarnings("ignore")  # scikit-learn's data repeat rows
@parametrize_with_checks(
    [cm.NeighborsTransformer(n_neighbors=3, n_threads=1, **QUICK)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_it_is_an_estimator(estimator, check):
    check(estimator)


def test_the_graph_is_that_of_landmarks(counts):
    model = cm.NeighborsTransformer(n_neighbors=6, n_landmarks=40, **QUICK)
    graph = model.fit_transform(counts)
    sketch = cm.learn_landmarks(counts, 40, n_neighbors=5, check=0, **QUICK)
    assert graph.shape == (70, 70)
    assert set(np.diff(graph.indptr)) == {6}
    assert_array_equal(graph.toarray(), sketch.graph.toarray())
    assert_array_equal(graph.indices.reshape(70, 6)[:, 0], np.arange(70))
    assert (graph.data.reshape(70, 6)[:, 0] == 0).all()
    assert_array_equal(model.sketch_.features, sketch.features)


def test_new_samples_find_the_training_samples(counts):
    model = cm.NeighborsTransformer(n_neighbors=6, n_landmarks=40, **QUICK).fit(counts)
    own = model.transform(counts)
    assert_allclose(own.toarray(), model.fit_transform(counts).toarray(), atol=1e-4)
    new = model.transform(counts[:4] + np.eye(4, 30))
    assert new.shape == (4, 70)
    assert (np.diff(new.data.reshape(4, 6), axis=1) >= 0).all()
    with pytest.raises(NotFittedError):
        cm.NeighborsTransformer().transform(counts)


def test_data_may_stay_in_a_file(counts, tmp_path):
    np.save(tmp_path / "x.npy", counts.toarray())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = cm.NeighborsTransformer(n_neighbors=6, n_landmarks=40, **QUICK)
    assert_array_equal(model.fit_transform(mapped).data, model.fit_transform(counts).data)
    near = model.transform(counts[:4])
    assert_array_equal(model.fit(mapped).transform(mapped[:4]).data, near.data)
    np.save(tmp_path / "short.npy", counts.toarray()[:, :29])
    with pytest.raises(ValueError, match="X has 29 features, but NeighborsTransformer is expect"):
        model.transform(np.load(tmp_path / "short.npy", mmap_mode="r"))


@pytest.mark.parametrize("stored", ["sparse", "dense"])
def test_scanpy_accepts_it(stored, counts):
    anndata = pytest.importorskip("anndata")
    sc = pytest.importorskip("scanpy")
    X = sparse.csr_matrix(counts) if stored == "sparse" else sparse.csr_matrix(counts).toarray()
    adata = anndata.AnnData(X)
    model = cm.NeighborsTransformer(n_neighbors=6, n_landmarks=40, **QUICK)
    sc.pp.neighbors(adata, transformer=model, use_rep="X")
    import cometric.scverse as cms

    cms.tl.landmarks(adata, 40, n_neighbors=6, neighbors_key="ours", check=0, **QUICK)
    weights = adata.obsp["connectivities"], adata.obsp["ours_connectivities"]
    assert_allclose(*(each.toarray() for each in weights), atol=2e-5)
    assert_array_equal(adata.obsp["distances"].toarray(), adata.obsp["ours_distances"].toarray())
    assert adata.uns["neighbors"]["params"]["n_neighbors"] == 6
    sc.tl.umap(adata, maxiter=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_neighbors": 1}, "`n_neighbors` is 1; pass a whole number from 2 to 70, the sample"),
        ({"n_landmarks": "all"}, "`n_landmarks` is 'all'"),
        ({"method": "best"}, "`method` is 'best'"),
    ],
)
def test_bad_options(options, message, counts):
    with pytest.raises(ValueError, match=message):
        cm.NeighborsTransformer(**options).fit(counts)
