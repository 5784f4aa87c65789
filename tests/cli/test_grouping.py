"""The commands ``modules`` and ``rank``: tables, answers, messages."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cometric as cm

anndata = pytest.importorskip("anndata")
pytest.importorskip("igraph")
from shell import run  # noqa: E402

QUICK = ["--restart", "0.5", "--norm", "lsa", "--tol", "1e-2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A learned result of three kinds of samples, as .h5ad and as .npz."""
    place = tmp_path_factory.mktemp("learned")
    rng = np.random.default_rng(0)
    rates = np.full((60, 40), 0.3)
    for g in range(3):
        rates[20 * g : 20 * (g + 1), 10 * g : 10 * (g + 1)] = 5.0
    data = anndata.AnnData(rng.poisson(rates).astype(np.float32))
    data.obs_names = [f"s{i}" for i in range(60)]
    data.var_names = [f"g{k}" for k in range(40)]
    data.obs["kind"] = np.repeat(["a", "b", "c"], 20)
    data.obs["depth"] = np.linspace(0, 1, 60)
    data.write_h5ad(place / "x.h5ad")
    for name in ("out.h5ad", "out.npz"):
        run("learn", place / "x.h5ad", "-o", place / name, *QUICK)
    return place


@pytest.fixture(autouse=True)
def _inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_modules_are_written_as_a_table():
    found = cm.modules(cm.load("out.npz"), resolution=1.5)
    told = run("modules", "out.npz", "-o", "modules.csv", "--resolution", 1.5, "--force").stdout
    assert str(found) in told
    table = pd.read_csv("modules.csv")
    assert list(table.columns) == ["feature", "module", "rank", "coherence", "name"]
    assert set(table.name[table.module == 0]) == {found.names[0]}
    assert table.name[table.module < 0].isna().all()
    assert list(table.module) == list(found.labels)
    assert list(table.feature) == [f"g{k}" for k in range(40)]
    first = table[table["rank"] == 1].set_index("module").feature
    assert [first[g] for g in range(len(found))] == [name.split(", ")[0] for name in found.names]
    facts = json.loads(run("modules", "out.h5ad", "-o", "modules.tsv", "--force", "--json").stdout)
    assert facts["background"] == int((cm.modules(cm.load("out.npz")).labels < 0).sum())


def test_modules_are_named_by_the_sets_that_are_enriched_in_them():
    sets = {"first": [f"g{k}" for k in range(10)] + ["x", "y"], "few": ["g5", "g15", "g35"]}
    Path("sets.json").write_text(json.dumps(sets))
    words = ["modules", "out.npz", "-o", "named.csv", "--force", "--sets", "sets.json"]
    told = run(*words).stdout
    table = pd.read_csv("named.csv", index_col="feature")
    found = cm.modules(cm.load("out.npz"))
    best = found.enrichment(sets)[0]
    assert f"{best.module}  first, {len(best.shared)} of 10 tested (12 in the set), q = " in told
    assert "none" in told
    assert list(table.columns)[-2:] == ["set", "q"]
    assert set(table.set[table.module == best.module]) == {"first"}
    assert table.set[table.module != best.module].isna().all()
    assert table.q.dropna().unique() == pytest.approx([best.q])
    facts = json.loads(run(*words, "--json").stdout)
    assert facts["enrichment"][0]["given"] == 12


def test_modules_of_samples_are_groups():
    run("modules", "out.npz", "-o", "groups.csv", "--of", "samples", "--force")
    table = pd.read_csv("groups.csv")
    assert list(table["sample"]) == [f"s{i}" for i in range(60)]
    assert list(table.module) == list(cm.modules(cm.load("out.npz"), of="samples").labels)
    words = ["modules", "out.npz", "-o", "y.csv", "--of", "samples", "--sets", "sets.json"]
    said = run(*words, code=2).stderr
    assert "error: `sets` are sets of features; leave out `of`." in said


def test_features_of_groups_are_ranked():
    words = ["rank", "out.h5ad", "--labels", "kind", "-o", "ranks.csv", "--n-features", 3]
    told = run(*words, "--force").stdout
    assert "The features of 3 groups are in ranks.csv." in told
    table = pd.read_csv("ranks.csv")
    expected = cm.rank_features(cm.load("out.npz"), np.repeat(["a", "b", "c"], 20), n_features=3)
    assert list(table.feature) == [row.feature for row in expected]
    assert list(table.columns) == list(expected[0]._fields)
    facts = json.loads(run(*words, "--force", "--json").stdout)
    assert list(facts["features"]) == ["a", "b", "c"]


def test_groups_are_in_the_order_of_categories():
    data = anndata.read_h5ad("out.h5ad")
    data.obs["kind"] = data.obs["kind"].astype("category").cat.reorder_categories(["c", "a", "b"])
    data.write_h5ad("ordered.h5ad")
    words = ["rank", "ordered.h5ad", "--labels", "kind", "-o", "ordered.csv", "--json"]
    assert list(json.loads(run(*words).stdout)["features"]) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["modules", "out.npz", "-o", "y.png"], "`y.png` should end in .csv or .tsv"),
        (["modules", "out.npz", "-o", "y.csv", "--resolution", "x"], "`resolution` is 'x'"),
        (["modules", "out.npz", "-o", "y.csv", "--min-size", "0"], "`min_size` is 0"),
        (
            ["rank", "out.h5ad", "-o", "y.csv", "--labels", "type"],
            "`labels` is 'type'; `out.h5ad` has 'kind'",
        ),
        (
            ["rank", "out.h5ad", "-o", "y.csv", "--labels", "depth"],
            "`.obs['depth']` has real numbers, not groups.",
        ),
    ],
)
def test_mistakes_are_reported(words, message):
    assert message in " ".join(run(*words, code=2).stderr.split())


def test_one_group_is_refused():
    Path("one.csv").write_text("name,kind\n" + "".join(f"s{i},a\n" for i in range(60)))
    words = ["rank", "out.npz", "--labels-from", "one.csv", "--labels", "kind", "-o", "r.csv"]
    assert "`labels` has one group only, 'a'" in run(*words, "--force", code=2).stderr
