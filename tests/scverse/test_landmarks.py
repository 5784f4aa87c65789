"""``cms.tl.landmarks``: what scanpy and our own tools find after it, also on a backed AnnData."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

import cometric as cm

anndata = pytest.importorskip("anndata")
sc = pytest.importorskip("scanpy")
import cometric.scverse as cms  # noqa: E402
from cometric.scverse.sketches import fuzzy_connectivities  # noqa: E402

QUICK = {"eps": 0.2, "tau": 0.1, "tol": 1e-3, "check": 0}
N, M, L = 90, 40, 45


def cells(**more):
    """Counts of three types of cells, each with marker genes."""
    data = cm.datasets.simulate_counts(N, M, types=3, density=0.4, random_state=1)
    adata = anndata.AnnData(sparse.csr_matrix(data.X, dtype=np.float32), **more)
    adata.obs_names = [f"cell{i}" for i in range(N)]
    adata.var_names = [f"gene{k}" for k in range(M)]
    adata.obs["type"] = [f"type{label}" for label in data.labels]
    return adata


@pytest.fixture(scope="module")
def learned():
    adata = cells()
    cms.tl.landmarks(adata, L, n_neighbors=8, **QUICK)
    return adata


def test_slots_hold_what_the_library_returns(learned):
    sketch = cm.learn_landmarks(learned, L, n_neighbors=7, **QUICK)
    assert_array_equal(learned.obsp["distances"].toarray(), sketch.graph.toarray())
    assert_array_equal(learned.varp["cometric_distances"], sketch.features)
    assert_array_equal(learned.obs["cometric_proved"], sketch.neighbors.proved)
    stored = learned.uns["cometric"]["landmarks"]
    assert_array_equal(stored["rows"], sketch.landmarks)
    assert list(stored["names"]) == [f"cell{i}" for i in sketch.landmarks]
    assert_array_equal(stored["distances"], sketch.result.samples)
    assert_array_equal(stored["data"].toarray(), learned.X[sketch.landmarks].toarray())
    assert stored["proved"] == sketch.neighbors.proved.mean()
    result = cms.get.result(learned)
    assert_array_equal(result.samples, sketch.result.samples)
    assert_array_equal(result.features, sketch.result.features)
    assert result.values == sketch.result.values
    assert cms.get.distances(learned).shape == (N, N)
    assert str(result.problem.features.item_names[3]) == "gene3"


def test_the_graph_is_that_of_scanpy(learned):
    graph = learned.obsp["distances"]
    assert set(np.diff(graph.indptr)) == {7}
    other = learned.copy()
    sc.pp.neighbors(other, use_rep="X", transformer=_Stored(graph, 8), key_added="theirs")
    weights = learned.obsp["connectivities"], other.obsp["theirs_connectivities"]
    assert_allclose(*(each.toarray() for each in weights), atol=2e-5)
    ours, theirs = learned.uns["neighbors"], other.uns["theirs"]
    assert set(theirs) <= set(ours)
    assert set(theirs["params"]) <= set(ours["params"])
    assert ours["params"]["n_neighbors"] == theirs["params"]["n_neighbors"] == 8
    assert learned.obsp["connectivities"].dtype == np.float32


class _Stored:
    def __init__(self, graph, k):
        self.graph, self.k = graph, k

    def get_params(self, deep=True):
        return {"n_neighbors": self.k}

    def fit_transform(self, X):
        return self.graph


@pytest.mark.parametrize("case", ["repeats", "zeros", "far", "two"])
def test_connectivities_are_those_of_umap(case):
    fuzzy = pytest.importorskip("umap.umap_").fuzzy_simplicial_set
    rng = np.random.default_rng(0)
    n, k = 60, 1 if case == "two" else 6
    points = rng.normal(size=(n, 3))
    if case == "repeats":
        points[:30] = points[30:]
    if case == "zeros":
        points[:20] = 0.0  # a whole neighborhood at distance zero
    if case == "far":
        points[0] = 1e4
    away = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(away, -1.0)
    index = np.argsort(away, axis=1, kind="stable")[:, : k + 1]
    near = np.maximum(np.take_along_axis(away, index, axis=1), 0.0)
    given = {"knn_indices": index, "knn_dists": near}
    theirs, *_ = fuzzy(sparse.coo_matrix((n, 1)), k + 1, None, None, **given)
    ours = fuzzy_connectivities(index[:, 1:], near[:, 1:])
    assert_allclose(ours.toarray(), theirs.toarray(), atol=5e-5)


def test_scanpy_functions_work_on_the_result(learned):
    pytest.importorskip("igraph")
    adata = learned.copy()
    sc.tl.umap(adata, maxiter=10)
    assert adata.obsm["X_umap"].shape == (N, 2)
    sc.tl.leiden(adata, flavor="igraph", n_iterations=2, directed=False)
    assert adjusted_rand_score(adata.obs["type"], adata.obs["leiden"]) > 0.5


def test_a_file_holds_everything(learned, tmp_path):
    learned.write_h5ad(tmp_path / "x.h5ad")
    back = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert_array_equal(cms.get.result(back).features, cms.get.result(learned).features)
    assert set(back.uns["neighbors"]["params"]) == set(learned.uns["neighbors"]["params"])
    assert back.obs["cometric_proved"].dtype == bool


def test_modules_score_all_cells(learned):
    pytest.importorskip("igraph")
    adata = learned.copy()
    found = cms.tl.modules(adata)
    scores = adata.obsm["cometric_modules"].to_numpy()
    assert scores.shape == (N, len(found))
    assert_allclose(scores, found.scores(adata.X), atol=1e-12)
    rows = adata.uns["cometric"]["landmarks"]["rows"]
    assert_allclose(scores[rows], found.scores(), atol=1e-12)


def test_plots_show_the_landmarks_in_their_own_colors(learned):
    pytest.importorskip("matplotlib").use("Agg")
    adata = learned.copy()
    rows = adata.uns["cometric"]["landmarks"]["rows"]
    adata.obs["number"] = np.arange(N, dtype=float)
    gene = adata.var_names[3]
    values = {"number": rows.astype(float), gene: adata.X[rows, 3].toarray().ravel()}
    for color, expected in values.items():
        drawn = cms.pl.embedding(adata, method="tsne", color=color).collections[0]
        assert_allclose(drawn.get_array(), np.sort(expected))  # the largest on top
    assert cms.pl.distances(adata, groupby="type").images
    assert "samples" in cms.pl.embedding(adata, method="tsne", color="type").get_title()


def test_genes_are_ranked_by_the_labels_of_landmarks(learned):
    adata = learned.copy()
    table = cms.tl.rank_features(adata, "type", n_features=4)
    rows = adata.uns["cometric"]["landmarks"]["rows"]
    expected = cm.rank_features(cms.get.result(adata), adata.obs["type"].iloc[rows], n_features=4)
    assert list(table["feature"]) == [row.feature for row in expected]
    adata.obs["odd"] = adata.obs["type"].astype(str)
    other = next(i for i in range(N) if i not in rows)
    adata.obs.iloc[other, adata.obs.columns.get_loc("odd")] = "alone"
    with pytest.warns(UserWarning, match=r"1 group of \d have no landmark.*first: 'alone'"):
        cms.tl.rank_features(adata, "odd")


def test_new_cells_are_compared_with_the_landmarks(learned):
    new = cells()[::9].copy()
    cms.tl.transform(new, learned, n_neighbors=5)
    assert new.obsm["cometric_distances"].shape == (10, L)
    names = list(new.uns["cometric_transform"]["samples"]["names"])
    assert names == list(learned.uns["cometric"]["landmarks"]["names"])
    cms.tl.transfer_labels(new, learned, "type", n_neighbors=5)
    assert (new.obs["cometric_type"].astype(str) == new.obs["type"]).mean() > 0.7


def test_a_backed_file_gives_the_same(learned, tmp_path):
    cells().write_h5ad(tmp_path / "x.h5ad")
    backed = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r")
    cms.tl.landmarks(backed, L, n_neighbors=8, **QUICK)
    assert_array_equal(backed.obsp["distances"].toarray(), learned.obsp["distances"].toarray())
    assert_array_equal(cms.get.result(backed).features, cms.get.result(learned).features)
    backed.file.close()


def test_another_name_for_the_graph(learned):
    untouched = cells()
    adata = cms.tl.landmarks(untouched, L, n_neighbors=8, neighbors_key="near", copy=True, **QUICK)
    assert [*untouched.uns, *untouched.obsp, *untouched.varp] == []
    assert set(adata.obsp) == {"near_distances", "near_connectivities"}
    sc.tl.umap(adata, maxiter=5, neighbors_key="near")
    sc.pp.neighbors(adata, use_rep="X", n_neighbors=5)  # does not replace ours
    assert_array_equal(cms.get.distances(adata).toarray(), learned.obsp["distances"].toarray())


def test_a_replaced_graph_is_recognized(learned):
    adata = learned.copy()
    cms.pp.neighbors(adata, 4, key_added="fewer")
    assert set(np.diff(adata.obsp["fewer_distances"].indptr)) == {3}
    sc.pp.neighbors(adata, use_rep="X", n_neighbors=5)
    with pytest.raises(KeyError, match="no longer describes the neighbors under 'cometric'"):
        cms.get.distances(adata)
    assert cms.get.result(adata).features.shape == (M, M)


def test_layers_and_raw():
    plain = cells()
    layered = cells()
    layered.layers["counts"], layered.X = layered.X.copy(), np.ones((N, M), np.float32)
    raw = cells()[:, :30].copy()
    raw.raw = cells()
    for adata, source in ((plain, {}), (layered, {"layer": "counts"}), (raw, {"use_raw": True})):
        cms.tl.landmarks(adata, L, n_neighbors=5, **source, **QUICK)
    graphs = [adata.obsp["distances"].toarray() for adata in (plain, layered, raw)]
    assert_array_equal(graphs[0], graphs[1])
    assert_array_equal(graphs[0], graphs[2])
    assert "cometric_distances" not in raw.varp
    assert cms.get.result(raw).features.shape == (M, M)


def test_metacells_are_sums_of_cells():
    pytest.importorskip("igraph")
    adata = cells()
    adata.obs["cluster"] = [None if i < 5 else str(i % 20) for i in range(N)]
    cms.tl.landmarks(adata, "cluster", n_neighbors=5, **QUICK)
    assert (np.diff(adata.obsp["distances"].indptr) == 4).all()  # of all cells
    stored = adata.uns["cometric"]["landmarks"]
    assert "rows" not in stored
    expected = adata.X[np.flatnonzero(adata.obs["cluster"] == stored["names"][3])].sum(axis=0)
    assert_array_equal(stored["data"][3].toarray(), expected)
    assert list(stored["names"]) == [str(k) for k in range(20)]  # 2 before 10
    cms.tl.modules(adata)
    with pytest.raises(ValueError, match="learned from metacells, which have no labels: ranking"):
        cms.tl.rank_features(adata, "type")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_neighbors": 1}, r"`n_neighbors` is 1; pass a whole number from 2 to 90, the cell"),
        ({"n_landmarks": "no"}, r"`n_landmarks` is 'no'; `adata.obs` has \['type'\]"),
        ({"n_landmarks": 91}, r"`n_landmarks` is 91; choose between 2 and the 90 samples"),
        ({"search": "fast"}, r"`search` is 'fast'; choose 'auto', 'exhaustive', 'index'"),
        ({"key_added": "a/b"}, r"`key_added` is 'a/b'"),
        ({"key_added": "same", "neighbors_key": "same"}, r"`neighbors_key` is 'same', as is"),
        ({"layer": "no"}, r"`layer` is 'no'"),
    ],
)
def test_bad_options(options, message):
    adata = cells()
    with pytest.raises(ValueError, match=message):
        cms.tl.landmarks(adata, **{"n_landmarks": L, **options})
    assert [*adata.uns, *adata.obsp] == []


def test_bad_data_are_named():
    adata = cells()
    adata.X = adata.X.toarray()
    adata.X[7] = 0
    words = r"1 empty row \(first: 7\). Drop .* The first is 'cell7'.*min_genes=1"
    with pytest.raises(ValueError, match=words):
        cms.tl.landmarks(adata, L, **QUICK)
    adata.X[7, 0] = -1
    with pytest.raises(ValueError, match=r"`X` has 1 negative entry .* Learn before scaling"):
        cms.tl.landmarks(adata, L, **QUICK)
    adata.raw = adata
    adata.layers["log"] = adata.X
    with pytest.raises(ValueError, match=r"logarithms: .* pass `layer='log'` or `use_raw=True`\.$"):
        cms.tl.landmarks(adata, L, **QUICK)


def test_changed_cells_and_genes_are_detected(learned):
    with pytest.raises(ValueError, match="has 39 genes, but its landmarks have 40"):
        cms.get.result(learned[:, :39].copy())
    turned = learned[::-1].copy()
    with pytest.raises(ValueError, match="other cells, or in another order"):
        cms.tl.rank_features(turned, "type")
    cms.tl.landmarks(other := cells(), L, n_neighbors=8, **QUICK)
    other.uns["cometric"]["landmarks"]["data"].data[0] += 1
    with pytest.raises(ValueError, match="other data than the metrics"):
        cms.get.result(other)


@pytest.mark.parametrize("damage", ["landmarks", "params", "data"])
def test_damaged_slots_are_refused(learned, damage):
    adata = learned.copy()
    stored = adata.uns["cometric"]
    if damage == "data":
        stored["landmarks"].pop("data")
    else:
        stored[damage] = "x"
    with pytest.raises(ValueError, match="has damaged metrics under 'cometric'"):
        cms.get.result(adata)
