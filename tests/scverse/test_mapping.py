"""New cells of an AnnData among those of a reference, and labels carried over to them."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of others, as they are loaded
    anndata = pytest.importorskip("anndata")
    sc = pytest.importorskip("scanpy")

import cometric as cm
from cometric import scverse as cms
from cometric.scverse import tl

QUICK = {"eps": 0.5, "tau": 0.1, "tol": 1e-4}


def cells(n, seed, genes=18):
    """Cells of three kinds, ``n`` of each with genes of its own."""
    rates = np.kron(np.eye(3), np.ones((n, genes // 3))) + 0.3
    counts = np.random.default_rng(seed).poisson(4 * rates).astype(np.float32)
    made = anndata.AnnData(sparse.csr_matrix(counts))
    made.obs_names = [f"cell{seed}_{i}" for i in range(3 * n)]
    made.var_names = [f"gene{k}" for k in range(genes)]
    made.obs["kind"] = pd.Categorical(np.repeat(["b", "a", "c"], n), ["c", "b", "a"])
    made.layers["counts"] = made.X.copy()
    return made


def emptied(adata, row):
    """The counts, without those of one cell."""
    counts = adata.X.toarray()
    counts[row] = 0
    return sparse.csr_matrix(counts)


@pytest.fixture(scope="module")
def learned():
    made = cells(12, 0)
    cms.tl.learn(made, **QUICK)
    made.uns["kind_colors"] = np.array(["#111111", "#222222", "#333333"])
    return made


@pytest.fixture
def reference(learned):
    return learned.copy()


@pytest.fixture
def new():
    return cells(5, 1)


def test_distances_are_those_of_the_result(new, reference):
    assert cms.tl.transform(new, reference, n_neighbors=None) is None
    expected = cms.get.result(reference).transform(new)
    assert_array_equal(new.obsm["cometric_distances"], expected)
    cms.tl.transform(new, reference, n_neighbors=4)
    graph = new.obsm["cometric_distances"]
    assert sparse.issparse(graph)
    assert graph.shape == (15, 36)
    assert_array_equal(np.diff(graph.indptr), 4)
    assert_allclose(graph.max(axis=1).toarray().ravel(), np.sort(expected, axis=1)[:, 3])
    described = new.uns["cometric_transform"]["samples"]
    assert list(described["names"]) == list(reference.obs_names)
    assert described["n_neighbors"] == 4


def test_genes_are_matched_by_name(new, reference):
    turned = new[:, ::-1].copy()
    for one in (new, turned):
        cms.tl.transform(one, reference)
    ours, theirs = (one.obsm["cometric_distances"].toarray() for one in (turned, new))
    assert_allclose(ours, theirs)
    fewer = new[:, 2:].copy()
    with pytest.warns(UserWarning, match="`X` lacks 2 of the 18 learned features") as warned:
        cms.tl.transform(fewer, reference)
    assert warned[0].filename == __file__


def test_labels_carry_over_with_categories_and_colors(new, reference, tmp_path):
    assert cms.tl.transfer_labels(new, reference, "kind", n_neighbors=5) is None
    assert (new.obs["cometric_kind"] == new.obs["kind"]).mean() > 0.9
    assert list(new.obs["cometric_kind"].cat.categories) == ["c", "b", "a"]
    assert_array_equal(new.uns["cometric_kind_colors"], reference.uns["kind_colors"])
    distances = cms.get.result(reference).transform(new)
    within = reference.obsp["cometric_distances"]
    plain = cm.transfer_labels(distances, reference.obs["kind"], 5, within=within)
    assert_array_equal(new.obs["cometric_kind"].astype(str), plain.labels)
    assert_allclose(new.obs["cometric_kind_confidence"], plain.confidence)
    assert_allclose(new.obs["cometric_kind_novelty"], plain.novelty)
    new.write_h5ad(tmp_path / "new.h5ad")
    back = anndata.read_h5ad(tmp_path / "new.h5ad")
    assert_array_equal(back.obs["cometric_kind"], new.obs["cometric_kind"])
    assert (back.obsm["cometric_distances"] != new.obsm["cometric_distances"]).nnz == 0


def test_the_reference_gets_its_own_labels_back_from_one_neighbor(reference):
    copied = cms.tl.transfer_labels(reference, reference, "kind", n_neighbors=1, copy=True)
    assert_array_equal(copied.obs["cometric_kind"], reference.obs["kind"])
    assert "cometric_kind" not in reference.obs
    assert "cometric_distances" not in reference.obsm


def test_new_genes_are_placed_and_labeled(reference):
    rng = np.random.default_rng(2)
    wide = anndata.AnnData(rng.poisson(1.0, (36, 5)).astype(np.float32) + 0.5)
    wide.obs_names = reference.obs_names
    wide.var_names = [f"other{k}" for k in range(5)]
    wide.X[:, 0] = reference.X[:, 7].toarray().ravel() * 3  # gene 7 again: only shape matters
    wide = wide[::-1].copy()
    cms.tl.transform(wide, reference, of="features", n_neighbors=3)
    graph = wide.varm["cometric_distances"]
    assert graph.shape == (5, 18)
    first = graph[0].toarray().ravel()
    assert 7 in graph[0].indices
    assert first[7] == pytest.approx(0, abs=1e-6)
    assert list(wide.uns["cometric_transform"]["features"]["names"]) == list(reference.var_names)
    reference.var["module"] = np.repeat(["one", "two", "three"], 6)
    cms.tl.transfer_labels(wide, reference, "module", of="features", n_neighbors=1)
    assert wide.var["cometric_module"].iloc[0] == "two"
    assert "cometric_module_confidence" in wide.var


def test_the_layer_of_the_reference_is_the_default(new, reference):
    expected = cms.get.result(reference).transform(new)
    cms.tl.learn(reference, layer="counts", **QUICK)
    new.X = new.X.sqrt()
    cms.tl.transform(new, reference, n_neighbors=None)
    assert_allclose(new.obsm["cometric_distances"], expected, atol=1e-6)
    with pytest.warns(UserWarning, match="have counts, `X` has other values, such as logarithms"):
        cms.tl.transform(new, reference, n_neighbors=None, use_raw=False)
    assert not np.allclose(new.obsm["cometric_distances"], expected, atol=1e-3)
    new.layers["other"] = new.layers.pop("counts")
    cms.tl.transform(new, reference, n_neighbors=None, layer="other")
    assert_allclose(new.obsm["cometric_distances"], expected, atol=1e-6)
    with pytest.raises(ValueError, match="learned from the layer 'counts', which `new` does not"):
        cms.tl.transform(new, reference)
    with pytest.raises(ValueError, match=r"`layer` is 'none'; `.layers` has \['other'\]"):
        cms.tl.transform(new, reference, layer="none")


def test_raw_data_with_other_genes(new, reference):
    for one in (new, reference):
        one.raw = one.copy()
    few_new, few = new[:, :9].copy(), reference[:, :9].copy()
    cms.tl.learn(few, use_raw=True, **QUICK)
    cms.tl.transform(few_new, few, n_neighbors=None)
    expected = cms.get.result(reference).transform(new)
    assert_allclose(few_new.obsm["cometric_distances"], expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"`new.raw` has other genes than `new`.*to_adata"):
        cms.tl.transform(few, few, of="features")
    whole = few.raw.to_adata()
    cms.tl.transform(whole, few, of="features", use_raw=False, n_neighbors=1)
    assert_array_equal(whole.varm["cometric_distances"].indices, np.arange(18))
    few.raw.var["module"] = np.repeat(["one", "two", "three"], 6)
    cms.tl.transfer_labels(whole, few, "module", of="features", n_neighbors=1, use_raw=False)
    assert_array_equal(whole.var["cometric_module"], few.raw.var["module"])


def test_cells_that_were_dropped_have_no_distances_and_no_vote(new, reference):
    reference.X = emptied(reference, 4)
    cms.tl.learn(reference, drop_empty=True, **QUICK)
    cms.tl.transform(new, reference, n_neighbors=None)
    assert np.isnan(new.obsm["cometric_distances"][:, 4]).all()
    cms.tl.transfer_labels(new, reference, "kind", n_neighbors=5)
    first = new.obs["cometric_kind"].copy()
    cms.tl.transform(new, reference, n_neighbors=5)
    assert new.obsm["cometric_distances"].shape == (15, 36)
    assert 4 not in new.obsm["cometric_distances"].indices
    cms.tl.transfer_labels(new, reference, "kind", n_neighbors=5)
    assert_array_equal(first, new.obs["cometric_kind"])


def test_a_small_reference_votes_with_all_its_cells(new):
    small = cells(3, 0)
    cms.tl.learn(small, **QUICK)
    cms.tl.transfer_labels(new, small, "kind")
    votes = new.obs["cometric_kind_confidence"].to_numpy()
    cms.tl.transfer_labels(new, small, "kind", n_neighbors=8)
    assert_array_equal(new.obs["cometric_kind_confidence"], votes)
    with pytest.raises(ValueError, match="`n_neighbors` is 15, the default; pass .* from 1 to 9"):
        cms.tl.transform(new, small)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_neighbors": 36}, "`n_neighbors` is 36; pass a whole number from 1 to 35"),
        ({"of": None}, "`of` is None; choose 'samples' or 'features'"),
        ({"label": None}, r"`label` is None; `reference.obs` has \['kind'\]"),
        ({"use_raw": True}, "`use_raw` is True, but `.raw` is None"),
        ({"n_threads": 0}, "`n_threads` is 0; pass a whole number, at least 1"),
        ({"key_added": ""}, "`key_added` is ''; pass a name"),
        ({"new": np.ones((3, 18))}, "`new` is of class ndarray; pass an AnnData"),
        ({"new": "new.h5ad"}, "`new` is of class str; read the file first, with `anndata.read_h5"),
        ({"reference": "x.h5ad"}, "`reference` is of class str; read the file first"),
    ],
    ids=str,
)
def test_bad_options_of_labels_are_refused_by_name(new, reference, options, words):
    with pytest.raises(ValueError, match=words):
        tl.transfer_labels(**{"new": new, "reference": reference, "label": "kind", **options})


def test_numbers_of_clusters_are_not_taken_for_names(new, reference):
    reference.obs_names = [str(k) for k in range(reference.n_obs)]
    cms.tl.learn(reference)
    new.obs["cluster"] = np.arange(new.n_obs) % 5
    with pytest.raises(ValueError, match="none of the 36 learned samples .* without names.$"):
        cms.tl.transform(new, reference, of="features")


def test_what_is_not_an_anndata_is_refused(new):
    for call in (cms.tl.learn, cms.tl.landmarks, cms.tl.modules, cms.tl.choose, cms.pp.neighbors):
        for wrong, words in ((new.X, "csr_matrix; pass an AnnData"), ("x.h5ad", "str; read the")):
            with pytest.raises(ValueError, match=f"`adata` is of class {words}"):
                call(wrong)


def test_bad_input_is_refused(new, reference):
    with pytest.raises(KeyError, match=r"`.uns` has no metrics under 'cometric'. Run"):
        cms.tl.transfer_labels(new, cells(4, 3), "kind")
    strange = new.copy()
    strange.var_names = [f"ENSG{k}" for k in range(18)]
    with pytest.raises(ValueError, match="`X` has none of the 18 learned features"):
        cms.tl.transform(strange, reference)
    strange.var["symbol"] = new.var_names
    with pytest.raises(ValueError, match=r"`new.var\['symbol'\]` has the learned names: `new.var"):
        cms.tl.transform(strange, reference)
    del strange.var["symbol"]
    reference.var["gene_ids"] = strange.var_names
    with pytest.raises(ValueError, match=r"`reference.var\['gene_ids'\]` has the names that `new`"):
        cms.tl.transform(strange, reference)
    with pytest.raises(TypeError, match="`transform` has no option 'progess'. Did you mean 'progr"):
        cms.tl.transfer_labels(new, reference, "kind", progess=True)
    with pytest.raises(ValueError, match=r"has \['kind'\]. Did you mean 'kind'\?"):
        cms.tl.transfer_labels(new, reference, "kinds")
    empty = new.copy()
    empty.X = emptied(empty, 3)
    told = f"`X` has 1 .*row.*'{new.obs_names[3]}'.* In scanpy.*min_genes=1"
    with pytest.raises(ValueError, match=told):
        cms.tl.transform(empty, reference)
    counts = np.zeros((empty.n_obs, 1))
    counts[3] = 5.0
    other = anndata.AnnData(sparse.hstack([empty.X, counts], format="csr"), obs=empty.obs[[]])
    other.var_names = [*empty.var_names, "unknown"]
    with pytest.warns(UserWarning, match="'unknown'"), pytest.raises(ValueError, match=told):
        cms.tl.transform(other, reference)
    reference.obs["depth"] = 1.5
    with pytest.raises(ValueError, match=r"`.obs\['depth'\]` has real numbers, not"):
        cms.tl.transfer_labels(new, reference, "depth")
    reference.obs["nan"] = np.nan
    with pytest.raises(ValueError, match=r"`.*obs\['nan'\]` has no labels: all"):
        cms.tl.transfer_labels(new, reference, "nan")
    reference.X = reference.X.sqrt()
    with pytest.raises(ValueError, match="The AnnData has other data than the metrics"):
        cms.tl.transfer_labels(new, reference, "kind")
    assert list(new.obs) == ["kind"]
    assert not new.obsm
