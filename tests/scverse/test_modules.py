"""Modules of genes and genes of groups on AnnData: every slot, through h5ad, and the plot."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of others, as they are loaded
    anndata = pytest.importorskip("anndata")
pytest.importorskip("igraph")

import cometric as cm
from cometric import scverse as cms

QUICK = {"restart": 0.5, "norm": "lsa", "tol": 1e-2}


def made():
    """Three kinds of cells with ten genes each, and ten genes of all cells."""
    rng = np.random.default_rng(0)
    rates = np.full((60, 40), 0.2)
    for g in range(3):
        rates[20 * g : 20 * (g + 1), 10 * g : 10 * (g + 1)] = 5.0
    rates[:, 30:] = 3.0
    data = anndata.AnnData(rng.poisson(rates).astype(np.float32))
    data.obs_names = [f"cell{i}" for i in range(60)]
    data.var_names = [f"gene{k}" for k in range(40)]
    data.obs["kind"] = pd.Categorical(np.repeat(["a", "b", "c"], 20))
    return data


@pytest.fixture(scope="module")
def learned():
    data = made()
    cms.tl.learn(data, **QUICK)
    return data


@pytest.fixture
def adata(learned):
    return learned.copy()


def test_modules_are_stored_and_survive_a_file(adata, tmp_path):
    found = cms.tl.modules(adata, random_state=1)
    own = cm.modules(cms.get.result(adata), random_state=1)
    assert_array_equal(found.labels, own.labels)
    adata.write_h5ad(tmp_path / "x.h5ad")
    again = anndata.read_h5ad(tmp_path / "x.h5ad")
    for data in (adata, again):
        assert_allclose(data.obsm["cometric_modules"], own.scores())
        names = ["background" if g < 0 else str(g) for g in own.labels]
        assert list(data.var["cometric_modules"]) == names
        stored = data.uns["cometric_modules"]
        assert list(stored["names"]) == list(own.names)
        assert_allclose(stored["genes"]["coherence"], own.coherence)
        assert list(stored["genes"].index) == list(adata.var_names)
        back = cms.get.modules(data)
        assert str(back) == str(found)
        assert_array_equal(back.labels, found.labels)
        assert_allclose(back.scores(), found.scores())
        assert_allclose(back.coherence, found.coherence)


def test_modules_that_do_not_fit_are_not_read_back(adata):
    found = cms.tl.modules(adata)
    with pytest.raises(KeyError, match="no modules under 'mine'. Run `tl.modules` first"):
        cms.get.modules(adata, modules_key="mine")
    cms.tl.learn(adata, tau=0.5, norm="l1", tol=0.1)
    with pytest.raises(ValueError, match=r"modules under 'cometric_modules' of other metrics than"):
        cms.get.modules(adata)
    del adata.uns["cometric_modules"]["checksum"]  # as in older files
    assert_array_equal(cms.get.modules(adata).labels, found.labels)
    adata.uns["cometric_modules"]["genes"] = adata.uns["cometric_modules"]["genes"].iloc[:5]
    with pytest.raises(ValueError, match="modules of 5 genes .* metrics of 40"):
        cms.get.modules(adata)


def test_cells_and_genes_without_counts_have_no_module():
    data = made()
    data.X[3] = 0.0
    data.X[:, 5] = 0.0
    cms.tl.learn(data, drop_empty=True, **QUICK)
    cms.tl.modules(data, key_added="programs")
    assert data.var["programs"].iloc[5] == "background"
    missing = np.isnan(data.obsm["programs"]).all(axis=1)
    assert list(np.flatnonzero(missing)) == [3]
    pytest.importorskip("matplotlib").use("Agg")
    cms.pl.modules(data, "kind", key="programs")


def test_genes_of_raw_are_stored_aside():
    data = made()
    data.raw = data
    data = data[:, :25].copy()
    cms.tl.learn(data, use_raw=True, **QUICK)
    cms.tl.modules(data)
    assert "cometric_modules" not in data.var
    assert len(data.uns["cometric_modules"]["genes"]) == 40


def test_genes_of_a_group_are_ranked(adata, tmp_path):
    table = cms.tl.rank_features(adata, "kind", n_features=5)
    rows = cm.rank_features(cms.get.result(adata), adata.obs["kind"], n_features=5)
    assert [tuple(row) for row in table.itertuples(index=False)] == list(rows)
    numbers = table[table.group == "b"].feature.str[4:].astype(int)
    assert set(numbers) <= set(range(10, 20))
    adata.write_h5ad(tmp_path / "x.h5ad")
    stored = anndata.read_h5ad(tmp_path / "x.h5ad").uns["cometric_ranks"]
    assert list(stored.feature) == list(table.feature)


def test_groups_are_in_the_order_of_categories(adata):
    adata.obs["kind"] = adata.obs["kind"].cat.reorder_categories(["c", "a", "b"])
    assert list(cms.tl.rank_features(adata, "kind", n_features=1).group) == ["c", "a", "b"]
    cms.tl.modules(adata)
    pytest.importorskip("matplotlib").use("agg")
    shown = cms.pl.modules(adata, "kind").get_xticklabels()
    assert [label.get_text() for label in shown] == ["c", "a", "b"]


def test_cells_without_a_label_are_in_no_group(adata):
    adata.obs["part"] = adata.obs["kind"].astype(object).where(np.arange(60) % 5 > 0, None)
    for labels in (adata.obs["part"], adata.obs["part"].astype("category")):
        adata.obs["part"] = labels
        assert list(cms.tl.rank_features(adata, "part", n_features=1).group) == ["a", "b", "c"]
        found = cms.tl.modules(adata)
        assert found.table(adata.obs["part"]).groups == ("a", "b", "c")
    known = np.arange(60) % 5 > 0
    expected = found.scores()[known & (adata.obs["kind"] == "a").to_numpy()].mean(axis=0)
    assert_allclose(found.table(adata.obs["part"]).values[:, 0], expected)


def test_metrics_of_data_scaled_since_then_are_refused(adata):
    adata.X = adata.X - adata.X.mean(axis=0)
    for step in (cms.tl.modules, cms.get.result):
        with pytest.raises(ValueError, match=r"have changed since \(.* \d+ negative entries now"):
            step(adata)


def test_the_heat_map_shows_the_table(adata):
    pytest.importorskip("matplotlib").use("Agg")
    found = cms.tl.modules(adata)
    ax = cms.pl.modules(adata, "kind")
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert sorted(names) == sorted(found.names)
    table = found.table(adata.obs["kind"])
    drawn = np.asarray(ax.images[0].get_array())
    for name, row in zip(names, drawn, strict=True):
        assert_allclose(row, table.values[table.modules.index(name)])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b", "c"]


def test_numbers_made_labels_as_the_message_says_keep_missing_ones_missing(adata):
    adata.obs["number"] = np.where(np.arange(adata.n_obs) % 4, np.arange(adata.n_obs) % 2, np.nan)
    with pytest.raises(ValueError, match=r"make it one: `.astype\('category'\)`"):
        cms.tl.rank_features(adata, "number")
    adata.obs["number"] = adata.obs["number"].astype("category")
    assert set(cms.tl.rank_features(adata, "number")["group"]) == {"0.0", "1.0"}


def test_mistakes_are_reported(adata):
    with pytest.raises(ValueError, match="`groupby` is 'type'; `adata.obs` has"):
        cms.tl.rank_features(adata, "type")
    adata.obs["depth"] = 1.5
    with pytest.raises(ValueError, match=r"`.obs\['depth'\]` has real numbers, not groups"):
        cms.tl.rank_features(adata, "depth")
    adata.obs["same"] = "a"
    with pytest.raises(ValueError, match="`labels` has one group only, 'a'"):
        cms.tl.rank_features(adata, "same")
    with pytest.raises(ValueError, match="`of` is not an option here"):
        cms.tl.modules(adata, of="samples")
    pytest.importorskip("matplotlib").use("Agg")
    with pytest.raises(KeyError, match=r"no modules under 'cometric_modules'. Run `tl.modules`"):
        cms.pl.modules(adata, "kind")
    cms.tl.modules(adata)
    with pytest.raises(ValueError, match="`groupby` is 'type'; `adata.obs` has"):
        cms.pl.modules(adata, "type")
    for draw in (cms.pl.modules, lambda data, name: cms.pl.distances(data, groupby=name)):
        with pytest.raises(ValueError, match=r"`.obs\['depth'\]` has real numbers, not groups"):
            draw(adata, "depth")
    none = cms.tl.modules(adata, coherence=2.0)
    with pytest.raises(ValueError, match="There are no modules to draw"):
        cm.plot.modules(none, adata.obs["kind"])
    with pytest.raises(ValueError, match="`labels` is None; pass the label of each sample"):
        cm.plot.modules(none)


def test_maps_are_colored_by_columns_genes_and_modules(adata):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    found = cms.tl.modules(adata)

    def draw(color, of="samples"):
        ax = cms.pl.embedding(adata, of, "tsne", color)
        legend = ax.get_legend()
        texts = [] if legend is None else [text.get_text() for text in legend.get_texts()]
        values = ax.collections[0].get_array()
        pyplot.close("all")
        return texts, values, ax

    assert draw("kind")[0] == ["a", "b", "c"]
    _, values, ax = draw("gene3")
    assert_allclose(values, np.sort(adata.X[:, 3]))
    assert ax.collections[0].colorbar.ax.get_ylabel() == "gene3"
    assert_allclose(draw("module_1")[1], np.sort(found.scores()[:, 1]))
    named = [f"{g}: {name}" for g, name in enumerate(found.names)]
    genes, _, ax = draw("cometric_modules", "features")
    assert genes == [*named, "background"]
    assert ax.texts[0].get_text() == found.names[0].split(", ")[0]
    assert set(draw("cometric_modules")[0]) <= set(named)
    with pytest.raises(ValueError, match="`color` is 'gene99', which is not a column .* nor a mod"):
        draw("gene99")
    with pytest.raises(ValueError, match="`color` is 'gene3'; `adata.var` has"):
        draw("gene3", "features")
