"""Modules of features: planted blocks are found, noise is background, and the texts about them."""

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.stats import fisher_exact

import cometric as cm
from cometric.results.modules import enriched

BLOCKS, SIZE, NOISE, UBIQUITOUS = 3, 12, 12, 8
SAMPLES = 30  # of each block


def planted(seed=0):
    """Counts: blocks of features on in one block of samples, noise, and ubiquitous features."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(BLOCKS), SAMPLES)
    rates = np.full((len(labels), BLOCKS * SIZE + NOISE + UBIQUITOUS), 0.05)
    for g in range(BLOCKS):
        rates[np.ix_(labels == g, range(g * SIZE, (g + 1) * SIZE))] = 4.0
    rates[:, BLOCKS * SIZE : BLOCKS * SIZE + NOISE] = 0.3
    rates[:, BLOCKS * SIZE + NOISE :] = 10.0
    return rng.poisson(rates).astype(float), labels


@pytest.fixture(scope="module")
def data():
    return planted()


@pytest.fixture(scope="module")
def result(data):
    anndata = pytest.importorskip("anndata")
    pytest.importorskip("igraph")
    X, _ = data
    table = anndata.AnnData(X)
    table.var_names = [f"g{k}" for k in range(X.shape[1])]
    return cm.learn(table, restart=0.5, norm="lsa", drop_empty=True)


@pytest.fixture(scope="module")
def found(result):
    return cm.modules(result)


def test_planted_blocks_are_the_modules_and_the_rest_is_background(found):
    blocks = np.repeat(np.arange(BLOCKS), SIZE)
    own = found.labels[: len(blocks)]
    assert len(found) == BLOCKS
    assert len({(int(a), int(b)) for a, b in zip(own, blocks, strict=True)}) == BLOCKS
    assert_array_equal(found.labels[len(blocks) :], -1)
    text = str(found)
    background = (found.labels == -1).sum()
    assert text.startswith(f"3 modules of features, {background} features are background")
    assert found.names[0] in text


def test_members_and_names_agree_with_the_labels(found, result):
    names = result.problem.features.item_names
    for g, members in enumerate(found.members):
        assert_array_equal(np.sort(members), np.flatnonzero(found.labels == g))
        assert found.names[g] == ", ".join(names[k] for k in members[:3])
    sizes = [len(members) for members in found.members]
    assert sizes == sorted(sizes, reverse=True)


def test_members_are_ordered_by_their_correlation_with_the_score(found, data):
    X, _ = data
    roots = np.sqrt(X / X.sum(axis=1, keepdims=True))
    for score, members in zip(found.scores().T, found.members, strict=True):
        correlations = [np.corrcoef(roots[:, k], score)[0, 1] for k in members]
        assert correlations == sorted(correlations, reverse=True)


def test_scores_are_means_of_standardized_roots(found, data):
    X, _ = data
    roots = np.sqrt(X / X.sum(axis=1, keepdims=True))
    standard = (roots - roots.mean(axis=0)) / roots.std(axis=0)
    expected = np.array([standard[:, members].mean(axis=1) for members in found.members]).T
    assert_allclose(found.scores(), expected, atol=1e-10)
    # New samples are scored as learned ones.
    assert_allclose(found.scores(X[3:9]), found.scores()[3:9], atol=1e-12)
    assert_allclose(found.scores(sparse.csr_array(5.0 * X[:4])), found.scores()[:4], atol=1e-12)


def test_long_names_of_groups_stay_distinct_in_the_table(found, data):
    names = np.array(
        ["CD4+ central memory T cell", "CD4+ central memory B cell", "dendritic cells of the skin"]
    )
    lines = str(found.table(names[data[1]])).splitlines()
    words = r"CD4\+ central memory B cell  CD4\+ central memory T cell  dendritic cells of\.\.$"
    assert re.search(words, lines[0])
    assert len(set(map(len, lines))) == 1


def test_the_table_has_the_mean_score_of_each_group(found, data):
    _, labels = data
    table = found.table(labels)
    assert table.modules == found.names
    assert table.groups == ("0", "1", "2")
    assert_allclose(table.values[:, 1], found.scores()[labels == 1].mean(axis=0))
    assert sorted(table.values.argmax(axis=1)) == [0, 1, 2]  # each block has its module
    assert found.names[0] in str(table)
    with pytest.raises(ValueError, match="3 entries; there are 90 samples, so pass 90 of them"):
        found.table([1, 2, 3])


def binary(seed=4):
    """Zeros and ones, so that many items have equal sums; the last columns repeat others."""
    rng = np.random.default_rng(seed)
    odds = np.where(np.arange(80)[:, None] % 4 == np.arange(50) % 4, 0.6, 0.08)
    X = (rng.random((80, 50)) < odds).astype(float)
    X[np.arange(50), np.arange(50)] = 1.0
    return np.hstack([X, 3.0 * X[:, :3], X[:, 3:5]])


def permuted(result, X, rows, columns):
    """The same result, of data with their rows and columns in another order."""
    formula = result.problem.formula
    return replace(
        result,
        samples=result.samples[np.ix_(rows, rows)],
        features=result.features[np.ix_(columns, columns)],
        problem=cm.Problem.from_data(X[rows][:, columns], formula=formula),
    )


@pytest.mark.filterwarnings("ignore:.*repeat others")
@pytest.mark.parametrize("again", [False, True], ids=["permuted", "learned again"])
@pytest.mark.parametrize("kind", ["counts", "thin", "binary"])
def test_modules_do_not_depend_on_the_order_of_the_data(kind, again):
    pytest.importorskip("igraph")
    if kind == "thin":
        X = cm.datasets.simulate_counts(180, 120, density=0.15, random_state=7).X.toarray()
    else:
        X = planted(3)[0][:, :-4] if kind == "counts" else binary()
    X = X[X.any(axis=1)][:, X.any(axis=0)]
    result = cm.learn(X)
    truth = cm.modules(result, min_size=3)  # those of the thin data are small
    clusters = cm.modules(result, "samples")
    assert len(truth) > 1
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows, columns = rng.permutation(X.shape[0]), rng.permutation(X.shape[1])
        other = cm.learn(X[rows][:, columns]) if again else permuted(result, X, rows, columns)
        found = cm.modules(other, min_size=3)
        assert_array_equal(found.labels, truth.labels[columns])
        assert_allclose(found.coherence, truth.coherence[columns], rtol=1e-12, atol=1e-12)
        assert_array_equal(cm.modules(other, "samples").labels, clusters.labels[rows])
        assert_array_equal(found.merge(2).labels, truth.merge(2).labels[columns])


def test_random_numbers_of_the_user_are_not_touched(result):
    import random

    random.seed(5)
    expected = random.Random(5).random()
    one, two = (cm.modules(result, resolution=4.0, min_size=1, random_state=3) for _ in range(2))
    assert random.random() == expected
    assert_array_equal(one.labels, two.labels)  # the seed decides


def test_shuffled_data_have_no_modules(data):
    X, _ = data
    rng = np.random.default_rng(2)
    shuffled = np.column_stack([rng.permutation(column) for column in X.T])
    found = cm.modules(cm.learn(shuffled, restart=0.5, norm="lsa", drop_empty=True))
    assert_array_equal(found.labels, -1)


def test_without_modules_everything_is_empty(result, data):
    none = cm.modules(result, coherence=2.0)
    assert_array_equal(none.labels, -1)
    assert len(none) == 0
    assert none.scores().shape == (90, 0)
    assert none.table(data[1]).values.shape == (0, 3)
    assert none.enrichment({"a": ["g0", "g1", "g2"]}) == ()
    assert none.merge(2) is none
    assert_array_equal(cm.modules(result, min_size=2 * SIZE).labels, -1)  # all are too small


def test_merging_joins_whole_modules(found):
    fewer = found.merge(2)
    assert len(fewer) == 2  # although the three may be equally far apart
    assert_array_equal(fewer.labels < 0, found.labels < 0)
    for g in range(len(found)):
        assert len(np.unique(fewer.labels[found.labels == g])) == 1
    assert fewer.tree.shape == (1, 4)
    assert fewer.merge(1).tree.shape == (0, 4)


def test_samples_can_be_grouped_as_well(result, data):
    _, labels = data
    groups = cm.modules(result, of="samples", n_neighbors=20)
    assert (groups.labels >= 0).all()
    assert groups.scores().shape == (len(result.features), len(groups))
    for g in range(len(groups)):
        assert len(np.unique(labels[groups.labels == g])) == 1


def test_a_planted_set_is_enriched(found):
    members = [f"g{k}" for k in range(SIZE)]
    text = str(found.enrichment({"one": [*members, "CD3D", "CD4", "CD4"]})[0])
    g = found.labels[0]
    assert text.startswith(f"module {g} ({found.names[g]}): one, ")
    assert f" of {SIZE} tested ({SIZE + 2} in the set), q = " in text
    rows = found.enrichment({"one": members, "none": ["g40", "g41", "g42"]})
    assert [row.set for row in rows] == ["one"]
    assert rows[0].module == found.labels[0]
    assert rows[0].size == len(rows[0].shared) == SIZE
    assert rows[0].p < rows[0].q < 1e-6


def test_p_values_are_those_of_fishers_test():
    items = [f"g{k}" for k in range(20)]
    members = [np.arange(6), np.arange(6, 10)]
    sets = {"a": items[3:9], "b": items[8:12]}
    rows = enriched(members, ["x", "y"], items, sets, 3)
    for row in rows:
        own, other = {items[k] for k in members[row.module]}, set(sets[row.set])
        table = [[len(own & other), len(own - other)], [len(other - own), 0]]
        table[1][1] = 20 - sum(map(sum, table))
        assert_allclose(row.p, fisher_exact(table, "greater").pvalue, rtol=1e-9)
    every = sorted(row.p for row in rows) + [1.0] * (4 - len(rows))
    lowest = min(4 * p / (rank + 1) for rank, p in enumerate(every))
    assert_allclose(rows[0].q, min(1.0, lowest), rtol=1e-9)  # Benjamini and Hochberg


def test_sets_come_from_files_too(found, tmp_path):
    members = [f"g{k}" for k in range(SIZE)]
    gmt, flat, nested = (tmp_path / name for name in ("a.gmt", "b.json", "c.json"))
    gmt.write_text("one\ta description\t" + "\t".join(members) + "\n\n")
    flat.write_text(json.dumps({"one": members}))
    nested.write_text(json.dumps({"all": {"one": members}}))
    expected = found.enrichment({"one": members})
    assert found.enrichment(gmt) == found.enrichment(str(flat)) == expected
    assert [row.set for row in found.enrichment(nested)] == ["all: one"]


@pytest.mark.parametrize(
    ("sets", "text", "words"),
    [
        ("a.gmt", "one\tg1\n", "line 1: a line has a name, a description and members"),
        ("a.json", "[1, 2]", "has no object of sets"),
        ("a.json", "{", "is not valid JSON"),
        ("a.json", '{"one": "g1"}', "the set 'one' is 'g1'; pass names"),
        ("a.txt", "", "its name should end in .gmt or .json"),
        (3, None, "`sets` is 3; pass a dictionary, or the path"),
        ({"one": ["CD3D", "g1"]}, None, "`sets` has 1 set, none with 3 of the learned items"),
    ],
)
def test_bad_sets_are_refused(found, tmp_path, monkeypatch, sets, text, words):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / sets).write_text(text)
    with pytest.raises(ValueError, match=words):
        found.enrichment(sets)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"of": "genes"}, "`of` is 'genes'"),
        ({"n_neighbors": 0}, "`n_neighbors` is 0"),
        ({"resolution": -1.0}, "`resolution` is -1.0"),
        ({"coherence": "high"}, "`coherence` is 'high'"),
        ({"min_size": 2.5}, "`min_size` is 2.5"),
        ({"random_state": "seed"}, "`random_state` is 'seed'; pass a whole number"),
    ],
)
def test_bad_options_are_refused(result, options, words):
    with pytest.raises(ValueError, match=words):
        cm.modules(result, **options)


def test_too_few_items_to_judge_by_are_refused():
    X = np.random.default_rng(0).uniform(0.1, 1.0, (20, 3))
    with pytest.raises(ValueError, match="has 3 features; modules of samples need at least 4"):
        cm.modules(cm.learn(X), of="samples")
    with pytest.raises(ValueError, match="has 3 samples; modules of features need at least 4"):
        cm.modules(cm.learn(X.T))


@pytest.mark.parametrize("count", [0, 2.5, "two", None, True])
def test_bad_numbers_of_merged_modules_are_refused(found, count):
    with pytest.raises(ValueError, match="`n_modules` is .*; pass a whole number, at least 1"):
        found.merge(count)


def test_what_is_not_a_result_is_refused(found, data):
    anndata = pytest.importorskip("anndata")
    sketch = cm.learn_landmarks(data[0] + 0.1, 20, 3, tol=0.1)
    for wrong, words in (
        (data[0], "`result` is of class ndarray; pass what `learn` returned"),
        (found, "`result` is of class Modules; pass its attribute `result`"),
        (sketch, "`result` is of class Sketch; pass its attribute `result`"),
        (anndata.AnnData(data[0]), r"AnnData; pass `cometric.scverse.get.result\(adata\)`"),
    ):
        with pytest.raises(ValueError, match=words):
            cm.modules(wrong)
    with pytest.raises(TypeError, match="`modules` has no option 'n_modules'"):
        cm.modules(found.result, n_modules=3)


OLD = SimpleNamespace(__version_info__=(0, 11, 9), __version__="0.11.9")


@pytest.mark.parametrize(
    ("igraph", "words"),
    [
        (None, r"modules need igraph: .*cometric\[modules\]"),
        (OLD, r"need igraph 1.0; with 0.11.9 .*--upgrade"),  # may never return
    ],
)
def test_a_missing_or_old_igraph_is_named(result, monkeypatch, igraph, words):
    monkeypatch.setitem(sys.modules, "igraph", igraph)
    with pytest.raises(ImportError, match=words):
        cm.modules(result)


def test_the_nearest_of_several_features(result):
    near = result.nearest(["g0", 1], k=5)
    assert {name for name, _ in near} <= {f"g{k}" for k in range(2, SIZE)}
    expected = [result.features[[0, 1], int(name[1:])].mean() for name, _ in near]
    assert_allclose([away for _, away in near], expected)
    assert [away for _, away in near] == sorted(expected)
    assert len(result.nearest("g0", k=1000)) == len(result.features) - 1
    assert result.nearest(5, 1, of="samples")[0][0] != "5"
    with pytest.raises(ValueError, match="`items` is empty"):
        result.nearest([])
    with pytest.raises(ValueError, match="not the name of a feature"):
        result.nearest("CD3D")


def test_modules_of_landmarks_score_all_samples(data):
    X, labels = data
    sketch = cm.learn_landmarks(X, 60, restart=0.5, norm="lsa", drop_empty=True)
    found = cm.modules(sketch.result)
    assert found.scores(X).shape == (len(X), len(found))
    assert sorted(found.table(labels, X).values.argmax(axis=1)) == [0, 1, 2]
