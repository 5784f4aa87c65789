"""Commands for results: ``modules``, ``rank``, ``transfer``, ``transform``, labels."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cometric as cm

anndata = pytest.importorskip("anndata")
pytest.importorskip("igraph")
from shell import run  # noqa: E402

QUICK = ["--restart", "0.5", "--norm", "lsa", "--tol", "1e-2", "--quiet"]
KINDS = ["a", "b", "c"]


def samples(count, seed):
    """Counts of three kinds of samples, with labels and a layer."""
    rates = np.full((3 * count, 40), 0.3)
    for g in range(3):
        rates[count * g : count * (g + 1), 10 * g : 10 * (g + 1)] = 5.0
    data = anndata.AnnData(np.random.default_rng(seed).poisson(rates).astype(np.float32))
    data.obs_names = [f"{seed}-{i}" for i in range(3 * count)]
    data.var_names = [f"g{k}" for k in range(40)]
    data.obs["kind"] = pd.Categorical(np.repeat(KINDS, count))
    data.obs["depth"] = np.linspace(0.0, 1.0, 3 * count)
    data.obs["nothing"] = pd.Categorical([None] * 3 * count, KINDS)
    data.layers["counts"] = data.X.copy()
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Learned samples, new ones, and tables of labels."""
    place = tmp_path_factory.mktemp("transfer")
    known, new = samples(20, 1), samples(3, 2)
    known.write_h5ad(place / "x.h5ad")
    new.write_h5ad(place / "new.h5ad")
    new.to_df().to_csv(place / "new.csv")
    known.obs.to_csv(place / "labels.csv")
    known.obs.iloc[:-2].to_csv(place / "fewer.tsv", sep="\t")
    known.obs.reset_index(drop=True).to_csv(place / "numbered.csv")
    (place / "twice.csv").write_text("name,kind\n1-0,a\n1-0,b\n")
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
    assert list(table["sample"]) == [f"1-{i}" for i in range(60)]
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


def test_labels_are_written_as_a_table_with_confidence_and_novelty():
    said = run("transfer", "out.h5ad", "new.csv", "--labels", "kind", "-o", "y.csv").stdout
    assert "Labels of 9 new items" in said
    assert "The labels of 9 new samples are in y.csv." in said
    table = pd.read_csv("y.csv", index_col="sample")
    result = cm.load("out.npz")
    distances = result.transform(pd.read_csv("new.csv", index_col=0))
    answer = cm.transfer_labels(distances, np.repeat(KINDS, 20), within=result.samples)
    assert list(table.index) == [f"2-{i}" for i in range(9)]
    assert list(table.label) == list(answer.labels) == list(np.repeat(KINDS, 3))
    assert np.allclose(table.confidence, answer.confidence)
    assert np.allclose(table.novelty, answer.novelty)
    words = ["transfer", "out.h5ad", "new.csv", "--labels", "kind", "-o", "j.csv", "--json"]
    facts = json.loads(run(*words).stdout)
    assert facts["labels"] == {"a": 3, "b": 3, "c": 3}
    assert (facts["new"], facts["learned"], facts["n_neighbors"]) == (9, 60, 15)


def test_labels_are_written_to_the_new_data():
    run("transfer", "out.h5ad", "new.h5ad", "--labels", "kind", "-o", "y.h5ad", "-n", 5)
    written = anndata.read_h5ad("y.h5ad")
    assert list(written.obs["cometric_kind"]) == list(written.obs["kind"])
    assert list(written.obs["cometric_kind"].cat.categories) == KINDS
    assert written.obs["cometric_kind_confidence"].between(0, 1).all()
    assert "cometric_kind_novelty" in written.obs


def test_labels_come_from_a_table_matched_by_name():
    words = ["new.csv", "--labels", "kind", "--force", "--quiet"]
    run("transfer", "out.h5ad", *words, "-o", "first.csv")
    run("transfer", "out.npz", *words, "-o", "second.csv", "--labels-from", "labels.csv")
    assert Path("first.csv").read_text() == Path("second.csv").read_text()
    ranked = ["--labels", "kind", "--quiet"]
    run("rank", "out.h5ad", *ranked, "-o", "rank1.csv")
    run("rank", "out.npz", *ranked, "-o", "rank2.csv", "--labels-from", "labels.csv")
    assert Path("rank1.csv").read_text() == Path("rank2.csv").read_text()


def test_samples_that_a_table_lacks_vote_for_no_label():
    words = ["--labels", "kind", "--labels-from", "fewer.tsv", "-o", "fewer.csv"]
    said = run("transfer", "out.npz", "new.csv", *words).stderr
    assert "warning: `fewer.tsv` has no line for 2 of the samples ('1-58', '1-59')." in said
    assert list(pd.read_csv("fewer.csv").label) == list(np.repeat(KINDS, 3))


def test_a_report_takes_labels_from_a_table():
    pytest.importorskip("jinja2")
    words = ["report", "out.npz", "-o", "page.html", "--quiet"]
    said = run(*words, "--labels-from", "labels.csv", code=2).stderr
    assert "error: `labels_from` needs `labels` or `clusters`, the name of a column." in said
    run(*words, "--labels-from", "labels.csv", "--labels", "kind")
    assert "kind" in Path("page.html").read_text()


@pytest.mark.parametrize("words", [["out.h5ad"], ["out.npz", "--labels-from", "labels.csv"]])
def test_a_report_takes_clusters(words, monkeypatch):
    report, given = pytest.importorskip("cometric.report"), {}
    monkeypatch.setattr(report, "write", lambda *_, **options: given.update(options))
    words = ["report", *words, "-o", "clusters.html", "--quiet", "--clusters"]
    run(*words, "kind")
    assert given.get("labels") is None
    assert sorted(set(given["clusters"]["kind"])) == sorted(KINDS)
    assert "`clusters` is 'sort'; `" in run(*words, "sort", code=2).stderr


@pytest.mark.parametrize("command", ["transfer", "transform"])
@pytest.mark.parametrize("place", ["layer", "raw"])
def test_new_data_are_read_from_where_the_learned_were(command, place):
    """Elsewhere they have other numbers, here those of the opposite kinds of samples."""
    source = ["--layer", "counts"] if place == "layer" else ["--use-raw"]
    known, new = anndata.read_h5ad("x.h5ad"), anndata.read_h5ad("new.h5ad")
    for data in (known, new):
        data.raw = data.copy()
        data.X = data.X[::-1].copy()
        data.write_h5ad(f"{place}-{len(data)}.h5ad")
    if not Path(f"{place}.h5ad").exists():
        run("learn", f"{place}-60.h5ad", "-o", f"{place}.h5ad", *source, *QUICK)
    labels = ["--labels", "kind"] if command == "transfer" else []
    words = [command, f"{place}.h5ad", f"{place}-9.h5ad", *labels, "--force"]
    assert "warning" not in run(*words, "-o", "z.csv").stderr
    run(*words, "-o", "same.csv", *source)
    assert Path("z.csv").read_text() == Path("same.csv").read_text()
    if command == "transfer":
        assert list(pd.read_csv("z.csv").label) == list(np.repeat(KINDS, 3))


@pytest.mark.parametrize("command", ["transfer", "transform"])
def test_new_data_read_from_elsewhere_than_the_learned_are_reported(command):
    if not Path("layer2.h5ad").exists():
        run("learn", "x.h5ad", "-o", "layer2.h5ad", "--layer", "counts", *QUICK)
    without = anndata.read_h5ad("new.h5ad")
    del without.layers["counts"]
    without.write_h5ad("without.h5ad")
    labels = ["--labels", "kind"] if command == "transfer" else []
    words = [command, "layer2.h5ad", "without.h5ad", *labels, "-o", "z.csv", "--force"]
    said = run(*words).stderr
    assert "warning: The result was learned from the layer 'counts'; `without.h5ad` is " in said
    words = [command, "out.h5ad", "new.h5ad", *labels, "-o", "z.csv", "--force"]
    said = run(*words, "--layer", "counts").stderr
    assert "warning: The result was learned from .X; `new.h5ad` is read from the layer" in said
    assert "warning" not in run(*words).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--labels", "knid"], "`labels` is 'knid'; `out.h5ad` has 'kind', 'depth', 'nothing'."),
        (["--labels", "nothing"], "`.obs['nothing']` has no labels: all are missing."),
        (["--labels", "x", "--labels-from", "labels.csv"], "`labels.csv` has 'kind', 'depth'"),
        (["--labels", "kind", "--labels-from", "label.csv"], "Did you mean 'labels.csv'?"),
        (["--labels", "kind", "--labels-from", "x.h5ad"], "`x.h5ad` should be a table of labels"),
        (["--labels", "kind", "--labels-from", "numbered.csv"], "has none of the 60 samples in"),
        (["--labels", "kind", "--labels-from", "twice.csv"], "two labels for '1-0': 'a', 'b'."),
        ([], "the following arguments are required: --labels. See cometric transfer --help."),
    ],
)
def test_bad_labels(words, message):
    said = run("transfer", "out.h5ad", "new.csv", *words, "-o", "bad.csv", code=2).stderr
    assert message in said
    assert not Path("bad.csv").exists()
