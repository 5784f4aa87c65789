"""Metrics on AnnData: every slot, through h5ad and back, and on into scanpy."""

import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import cdist

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of others, as they are loaded
    anndata = pytest.importorskip("anndata")
    sc = pytest.importorskip("scanpy")

import cometric as cm
from cometric import scverse as cms

QUICK = {"eps": 0.5, "tau": 0.1, "tol": 1e-4}


@pytest.fixture
def adata():
    """Three kinds of cells, each with genes of its own."""
    rng = np.random.default_rng(0)
    rates = np.kron(np.eye(3), np.ones((12, 6))) + 0.3
    counts = rng.poisson(4 * rates).astype(np.float32)
    made = anndata.AnnData(sparse.csr_matrix(counts))
    made.obs_names = [f"cell{i}" for i in range(36)]
    made.var_names = [f"gene{k}" for k in range(18)]
    made.obs["kind"] = pd.Categorical(np.repeat(["a", "b", "c"], 12))
    made.layers["counts"] = made.X.copy()
    return made


def test_learn_writes_what_learn_gives(adata):
    assert cms.tl.learn(adata, **QUICK) is None
    result = cm.learn(adata, **QUICK)
    assert_allclose(adata.obsp["cometric_distances"], result.samples, rtol=1e-12)
    assert_allclose(adata.varp["cometric_distances"], result.features, rtol=1e-12)
    kept = adata.uns["cometric"]
    assert_allclose(kept["values"], result.values, rtol=1e-12)
    assert kept["converged"]
    assert kept["status"] == "CONVERGED"
    assert len(kept["history"]) == result.iterations
    assert kept["params"]["eps"] == 0.5
    assert "layer" not in kept["params"]  # h5ad has no None


def test_choose_writes_its_table(adata, tmp_path):
    candidates = {"weak": {"restart": 0.1}, "strong": {"restart": 0.5, "dtype": np.float64}}
    options = {"n_splits": 1, "n_neighbors": 5}
    found = cms.tl.choose(adata, candidates, layer="counts", **options)
    expected = cm.choose(adata, candidates, **options)
    assert [row[:7] for row in found.table] == [row[:7] for row in expected.table]
    adata.write_h5ad(tmp_path / "x.h5ad")
    stored = anndata.read_h5ad(tmp_path / "x.h5ad").uns["cometric_choice"]
    assert list(stored["table"].index) == [row.name for row in found.table]
    assert_allclose(stored["table"]["loss"], [row.loss for row in found.table])
    assert stored["settings"]["restart"] == found.settings["restart"]
    told = found.best, found.picked or "", found.advice
    assert (stored["best"], stored["picked"], stored["advice"]) == told
    assert stored["params"]["layer"] == "counts"
    assert stored["params"]["n_samples"] == 36
    assert found.call == "cms.tl.learn(adata, layer='counts')"
    assert cms.tl.choose(adata, candidates, **options).call == "cms.tl.learn(adata)"


def test_a_copy_leaves_the_original_alone(adata):
    copied = cms.tl.learn(adata, copy=True, key_added="ours", **QUICK)
    assert "ours_distances" in copied.obsp
    assert "ours_distances" in copied.varp
    assert not adata.obsp
    assert not adata.uns
    assert "X_umap" not in adata.obsm


@pytest.mark.parametrize("eps", [0.0, 0.5, np.inf])
def test_a_result_comes_back_from_h5ad(adata, eps, tmp_path):
    cms.tl.learn(adata, **{**QUICK, "eps": eps}, certify=True)
    before = cms.get.result(adata)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    again = anndata.read_h5ad(tmp_path / "cells.h5ad")
    found = cms.get.result(again)
    assert found.identity == before.identity
    assert found.history == before.history
    assert found.problem.samples.names == tuple(adata.obs_names)
    assert str(found.certify()) == again.uns["cometric"]["certificate"]["text"]
    assert cms.get.names(again, "features") == list(adata.var_names)


def test_a_layer_is_learned_from(adata):
    adata.X = None
    with pytest.raises(ValueError, match=r"`.X` is None. Pass `layer`, one of \['counts'\]"):
        cms.tl.learn(adata)
    cms.tl.learn(adata, layer="counts", **QUICK)
    assert adata.uns["cometric"]["params"]["layer"] == "counts"
    assert cms.get.result(adata).problem.samples.names == tuple(adata.obs_names)
    del adata.layers["counts"]
    with pytest.raises(ValueError, match=r"`.X` is None. Set it, or add a layer."):
        cms.tl.learn(adata)


def test_raw_with_the_same_genes_goes_to_varp(adata):
    adata.raw = adata.copy()
    adata.X = -adata.X
    cms.tl.learn(adata, use_raw=True, **QUICK)
    assert adata.varp["cometric_distances"].shape == (18, 18)
    assert "features" not in adata.uns["cometric"]


def test_raw_with_other_genes_goes_to_uns(adata, tmp_path):
    cms.tl.learn(adata, **QUICK)  # leaves distances in varp, which must not stay
    adata.raw = adata.copy()
    few = adata[:, :7].copy()
    cms.tl.learn(few, use_raw=True, **QUICK)
    assert "cometric_distances" not in few.varp
    few.write_h5ad(tmp_path / "few.h5ad")
    again = anndata.read_h5ad(tmp_path / "few.h5ad")
    assert cms.get.names(again, "features") == list(adata.var_names)
    assert_array_equal(cms.get.distances(again, "features"), adata.varp["cometric_distances"])
    assert len(cms.get.result(again).features) == 18


def test_for_large_data_the_nearest_neighbors_are_stored(adata, tmp_path, monkeypatch):
    monkeypatch.setattr(cms.tl.slots, "NEIGHBORS_STORED", 9)
    full = cms.tl.learn(adata, copy=True, **QUICK)
    with pytest.warns(UserWarning, match="36 cells are more than `max_dense` = 20: .* 9 nearest"):
        cms.tl.learn(adata, max_dense=20, **QUICK)
    graph = adata.obsp["cometric_distances"]
    assert sparse.issparse(graph)
    assert_array_equal(np.diff(graph.indptr), 9)
    whole = full.obsp["cometric_distances"]
    for i in range(36):
        assert_allclose(np.sort(graph[i].data), np.sort(whole[i])[1:10], rtol=1e-12)
    assert not sparse.issparse(adata.varp["cometric_distances"])  # 18 genes are few
    adata.write_h5ad(tmp_path / "cells.h5ad")
    again = anndata.read_h5ad(tmp_path / "cells.h5ad")
    cms.pp.neighbors(again, 10)
    cms.pp.neighbors(full, 10)
    assert_allclose(again.obsp["connectivities"].toarray(), full.obsp["connectivities"].toarray())
    with pytest.raises(ValueError, match="`n_neighbors` is 11, but only the 9 nearest"):
        cms.pp.neighbors(again, 11)
    with pytest.raises(ValueError, match="stores only nearest neighbors under 'cometric'"):
        cms.get.result(again)


def test_empty_cells_and_genes_have_no_distance(adata):
    dense = adata.X.toarray()
    dense[3], dense[:, 5] = 0, 0
    adata.X = sparse.csr_matrix(dense)
    words = r"`X` has 1 empty row \(first: 3, 'cell.*'\).* Pass `drop_empty=True` .*filter_cells"
    with pytest.raises(ValueError, match=words):
        cms.tl.learn(adata, **QUICK)
    cms.tl.learn(adata, drop_empty=True, **QUICK)
    missing = np.isnan(adata.obsp["cometric_distances"])
    assert missing[3].all()
    assert missing[:, 3].all()
    assert missing.sum() == 2 * 36 - 1
    assert np.isnan(adata.varp["cometric_distances"]).sum() == 2 * 18 - 1
    assert len(cms.get.result(adata).samples) == 35
    with pytest.raises(ValueError, match="Samples without counts have distances NaN. Leave them"):
        cms.pp.neighbors(adata, 5)
    kept = adata[~np.isnan(adata.obsp["cometric_distances"]).all(axis=1)].copy()
    cms.pp.neighbors(kept, 5)


def test_neighbors_are_those_of_scanpy(adata):
    """Distances that scanpy can compute itself: the same graph must come out, entry by entry."""
    cms.tl.learn(adata, **QUICK)
    points = np.random.default_rng(1).normal(size=(36, 3))
    adata.obsp["cometric_distances"] = cdist(points, points)
    adata.obsm["points"] = points
    cms.pp.neighbors(adata, 8)
    sc.pp.neighbors(adata, 8, use_rep="points", key_added="theirs")
    for name in ("distances", "connectivities"):
        ours, theirs = adata.obsp[name], adata.obsp[f"theirs_{name}"]
        assert_allclose(ours.toarray(), theirs.toarray(), rtol=1e-5, atol=1e-7)
    ours, theirs = adata.uns["neighbors"], adata.uns["theirs"]
    assert set(ours) == set(theirs)
    assert ours["params"]["distances"] == "cometric_distances"
    for name in theirs["params"].keys() - {"use_rep"}:
        assert ours["params"][name] == theirs["params"][name]


def test_repeated_cells_are_neighbors_at_distance_zero(adata):
    dense = adata.X.toarray()
    dense[:3] = dense[0]
    adata.X = sparse.csr_matrix(dense)
    with pytest.warns(UserWarning, match="repeat"):
        cms.tl.learn(adata, **QUICK)
    cms.pp.neighbors(adata, 5)
    graph = adata.obsp["distances"]
    assert_array_equal(np.diff(graph.indptr), 4)
    assert set(graph[0].indices[graph[0].data == 0]) == {1, 2}


def test_umap_and_leiden_follow(adata, tmp_path):
    cms.tl.learn(adata, **QUICK)
    found = cms.pp.neighbors(adata, 6, key_added="near", copy=True)
    assert "near" not in adata.uns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of umap and igraph
        sc.tl.umap(found, neighbors_key="near")
        sc.tl.leiden(found, neighbors_key="near", flavor="igraph", n_iterations=2, directed=False)
    assert found.obsm["X_umap"].shape == (36, 2)
    assert np.isfinite(found.obsm["X_umap"]).all()
    table = pd.crosstab(found.obs["leiden"], found.obs["kind"])
    assert (table > 0).sum(axis=1).max() == 1  # no cluster mixes two kinds
    found.write_h5ad(tmp_path / "found.h5ad")


def test_umap_places_groups_that_share_no_neighbor(adata):
    """Umap then looks at the data for where to put them: it must find some."""
    adata.X = sparse.csr_matrix(np.kron(np.eye(3), np.random.default_rng(0).random((12, 6))))
    cms.tl.learn(adata, **QUICK)
    cms.pp.neighbors(adata, 5)
    groups, _ = sparse.csgraph.connected_components(adata.obsp["connectivities"])
    assert groups == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sc.tl.umap(adata)
    assert np.isfinite(adata.obsm["X_umap"]).all()


def test_bad_requests_are_refused(adata):
    for options, words in (
        ({"layer": "spliced"}, r"`layer` is 'spliced'; `.layers` has \['counts'\]"),
        ({"use_raw": True}, "`use_raw` is True, but `.raw` is None"),
        ({"layer": "counts", "use_raw": True}, "exclude one another"),
        ({"key_added": "a/b"}, "`key_added` is 'a/b'; pass a name, without '/'"),
        ({"key_added": "a\0"}, r"`key_added` is 'a\\x00'; pass a name, without .* NUL"),
        ({"key_added": "\ud800"}, r"`key_added` is '\\ud800'; pass a name"),
        ({"max_dense": "all"}, "`max_dense` is 'all'; pass a number"),
    ):
        with pytest.raises(ValueError, match=words):
            cms.tl.learn(adata, **options)
    with pytest.raises(KeyError, match="no metrics under 'cometric'. Run"):
        cms.pp.neighbors(adata)
    cms.tl.learn(adata, **QUICK)
    with pytest.raises(ValueError, match="`key_added` is 'cometric', as is `key`"):
        cms.pp.neighbors(adata, key_added="cometric")
    with pytest.raises(ValueError, match="`n_neighbors` is '5'; pass a whole number"):
        cms.pp.neighbors(adata, "5")
    for wrong in (1, 37):
        with pytest.raises(ValueError, match=f"`n_neighbors` is {wrong}; .* number from 2 to 36"):
            cms.pp.neighbors(adata, wrong)
    del adata.varp["cometric_distances"]
    with pytest.raises(KeyError, match="`.varp` no longer has 'cometric_distances'"):
        cms.get.distances(adata, "features")


def test_data_on_disk_are_learned_from(adata, tmp_path):
    adata.write_h5ad(tmp_path / "x.h5ad")
    backed = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r")
    cms.tl.learn(backed, **QUICK)
    cms.tl.learn(adata, **QUICK)
    assert_allclose(backed.obsp["cometric_distances"], adata.obsp["cometric_distances"])
    backed.file.close()


def test_numbers_of_any_kind_can_be_written(adata, tmp_path):
    cms.tl.learn(adata, Fraction(1, 2), np.float32(0.1), tol=1e-4)
    adata.write_h5ad(tmp_path / "x.h5ad")
    assert anndata.read_h5ad(tmp_path / "x.h5ad").uns["cometric"]["params"]["eps"] == 0.5


def test_norm_matrices_are_not_stored(adata):
    norms = tuple(1.0 - np.eye(k) for k in (36, 18))
    cms.tl.learn(adata, norm=norms, **QUICK)
    with pytest.raises(ValueError, match="given as matrices, which an AnnData does not store"):
        cms.get.result(adata)


@pytest.fixture
def plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield cms.pl
    pyplot.close("all")


def test_plots_show_what_was_learned(adata, plots):
    cms.tl.learn(adata, **QUICK)
    curve = plots.convergence(adata, "sweeps").lines[0]
    history = cms.get.history(adata)
    assert_array_equal(curve.get_ydata(), [line.residual for line in history])
    near = plots.nearest(adata, "gene4", 3)
    row = adata.varp["cometric_distances"][4]
    named = [label.get_text() for label in near.get_yticklabels()]
    assert named == [f"gene{k}" for k in np.argsort(row)[1:4]]
    assert "cell0" in plots.flows(adata, "cell0", "cell20", 3).get_title()
    assert "gene1 to gene2" in plots.changes(adata, "gene1", 2, 3, of="features").get_title()
    assert plots.distances(adata, vmax=0.5).images[0].norm.vmax == 0.5
    assert "36 samples" in plots.embedding(adata, method="tsne", color="kind").get_title()


def test_plots_group_by_columns(adata, plots):
    cms.tl.learn(adata, **QUICK)
    names = [label.get_text() for label in plots.distances(adata, groupby="kind").get_yticklabels()]
    assert sorted(names) == ["a", "b", "c"]
    adata.var["half"] = ["first"] * 9 + ["last"] * 9
    genes = plots.distances(adata, "features", groupby="half")
    assert sorted(label.get_text() for label in genes.get_yticklabels()) == ["first", "last"]
    with pytest.raises(ValueError, match=r"`groupby` is 'type'; `adata.obs` has \['kind'\]"):
        plots.distances(adata, groupby="type")


def test_plots_skip_what_was_dropped(adata, plots):
    dense = adata.X.toarray()
    dense[3] = 0
    adata.X = sparse.csr_matrix(dense)
    cms.tl.learn(adata, drop_empty=True, **QUICK)
    shown = plots.distances(adata, groupby="kind")
    assert shown.images[0].get_array().shape == (35, 35)


def test_a_misspelled_option_or_column_gets_a_suggestion(adata):
    with pytest.raises(TypeError, match="`learn` has no option 'epss'. Did you mean 'eps'\\?"):
        cms.tl.learn(adata, epss=0.1)
    with pytest.raises(TypeError, match="`learn_landmarks` has no option 'serch'. Did you mean"):
        cms.tl.landmarks(adata, 5, serch="index")
    with pytest.raises(TypeError, match="`choose` has no option 'xyz'.$"):
        cms.tl.choose(adata, xyz=1)


def test_genes_that_were_not_learned_from_are_colors_if_they_are_in_raw(adata, plots):
    adata.raw = adata
    some = adata[:, 1:].copy()
    cms.tl.learn(some, **QUICK)
    gene = adata.var_names[0]
    drawn = plots.embedding(some, method="tsne", color=gene)
    values = np.asarray(drawn.collections[0].get_array(), dtype=float)
    assert_allclose(values, np.sort(adata.X[:, [0]].toarray().ravel()))  # the largest on top
    del some.raw
    words = f"`color` is '{gene}', .* nor among the {some.n_vars} genes learned from"
    with pytest.raises(ValueError, match=words):
        plots.embedding(some, color=gene)


def test_scaled_data_are_refused_with_a_remedy():
    adata = anndata.AnnData(np.random.default_rng(0).normal(size=(5, 4)))
    with pytest.raises(ValueError, match=r"`X` has .* negative entr.* Learn before scaling"):
        cms.tl.learn(adata)
    adata.raw = adata
    with pytest.raises(ValueError, match=r"`X` has .* negative entr.* `use_raw=True`"):
        cms.tl.learn(adata)


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda kept, metric: metric.__imul__(-1), "samples has negative distances"),
        (lambda kept, metric: metric.__setitem__((0, 1), np.nan), "samples has entries that are"),
        (lambda kept, metric: metric.__setitem__((0, 1), 0.5), "samples is not symmetric"),
        (lambda kept, metric: kept.update(status="PERFECT"), "KeyError"),
        (lambda kept, metric: kept.pop("values"), "KeyError"),
        (lambda kept, metric: kept.update(history=kept["history"][:0]), "status is converged, but"),
        (lambda kept, metric: kept["history"].update(kept["history"] + 1), "status is converged"),
        (lambda kept, metric: kept["history"].__delitem__("lam"), "KeyError"),
    ],
)
def test_metrics_that_no_solve_could_have_given_are_refused(adata, forge, words):
    cms.tl.learn(adata, **QUICK)
    forge(adata.uns["cometric"], adata.obsp["cometric_distances"])
    with pytest.raises(ValueError, match=f"has damaged metrics under 'cometric': .*{words}"):
        cms.get.result(adata)


@pytest.mark.parametrize("where", ["X", "layer"])
@pytest.mark.parametrize("call", ["learn", "choose", "landmarks"])
def test_invalid_entries_are_named(adata, call, where):
    damaged = adata.X.toarray()
    damaged[7, 3] = np.nan
    options = {"layer": "damaged"} if where == "layer" else {}
    if where == "layer":
        adata.layers["damaged"] = damaged
    else:
        adata.X = damaged
    cell, gene = adata.obs_names[7], adata.var_names[3]
    place = f"row 7, column 3: '{cell}', '{gene}'"
    with pytest.raises(ValueError, match=f"`X` has 1 NaN entry .first: {place}.. Replace them"):
        getattr(cms.tl, call)(adata, **options)


@pytest.mark.parametrize("several", [["kind", "gene0"], np.array(["kind"]), pd.Series(["kind"])])
def test_several_columns_are_refused(adata, several):
    cms.tl.learn(adata, **QUICK)
    said = f"is of class {type(several).__name__}; pass the name of one column"
    for name, call in (
        ("color", lambda: cms.pl.embedding(adata, color=several)),
        ("groupby", lambda: cms.pl.distances(adata, groupby=several)),
        ("groupby", lambda: cms.pl.modules(adata, several)),
        ("groupby", lambda: cms.tl.rank_features(adata, several)),
        ("label", lambda: cms.tl.transfer_labels(adata.copy(), adata, several)),
    ):
        with pytest.raises(ValueError, match=f"`{name}` {said}"):
            call()


def test_copies_of_backed_data_are_refused_before_any_computation(adata, tmp_path, monkeypatch):
    cms.tl.learn(adata, **QUICK)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    monkeypatch.setattr(cms.tl.slots, "matrix", None)  # the data are not read
    for call, *given in (
        (cms.tl.learn,),
        (cms.tl.landmarks, 5),
        (cms.pp.neighbors,),
        (cms.tl.transform, adata),
        (cms.tl.transfer_labels, adata, "kind"),
    ):
        with pytest.raises(ValueError, match="`copy` is True, but `(adata|new)` is backed"):
            call(backed, *given, copy=True)
    backed.file.close()


def test_genes_without_counts_among_very_many_come_with_a_way_to_select_some():
    X = np.zeros((5, 4000))
    X[:, :6] = np.random.default_rng(0).random((5, 6)) + 0.1
    with pytest.raises(ValueError, match=r"All 4,000 genes take 0\.1 GB a matrix: select the vari"):
        cms.tl.learn(anndata.AnnData(X))


def test_counts_in_a_layer_are_used_unless_another_is_named(adata):
    adata.X = adata.X.log1p()
    with pytest.warns(UserWarning, match=r"Using the counts in `.layers\['counts'\]`; pass `la"):
        cms.tl.learn(adata)
    assert adata.uns["cometric"]["params"]["layer"] == "counts"
    expected = cm.learn(adata.layers["counts"])
    assert_array_equal(adata.obsp["cometric_distances"], expected.samples)
    cms.tl.learn(adata, layer="X", norm="l1")
    assert "layer" not in adata.uns["cometric"]["params"]
    assert_array_equal(adata.obsp["cometric_distances"], cm.learn(adata.X, norm="l1").samples)
    adata.layers["counts"] = adata.X.copy()  # no counts
    cms.tl.learn(adata, norm="l1")
    assert "layer" not in adata.uns["cometric"]["params"]
