"""Settings compared without labels: known answers, slow twins, messages."""

import dataclasses
import math
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
from cometric import baselines
from cometric.selection import comparison
from cometric.selection.choice import Choice, Row
from cometric.selection.comparison import (
    COMPONENTS,
    hide_features,
    prediction_losses,
    standard_error,
    subsample,
    table_of,
)

FEW = {"restart 0.1": {"restart": 0.1}, "restart 0.5": {"restart": 0.5}}


def blocks(seed=0, kinds=3, samples=20, features=20, depth=3.0):
    """Counts of several kinds of samples, each with features of its own, and a background."""
    rates = np.kron(np.eye(kinds), np.ones((samples, features))) + 0.2
    return np.random.default_rng(seed).poisson(depth * rates)


@pytest.fixture(scope="module")
def choice():
    return cm.choose(blocks(), FEW, n_splits=3)


def naive_loss(distances, hidden, k):
    losses = []
    for i in range(len(hidden)):
        others = sorted((j for j in range(len(hidden)) if j != i), key=lambda j: distances[i][j])
        mean = [sum(hidden[j][b] for j in others[:k]) / k for b in range(len(hidden[i]))]
        product = sum(p * v for p, v in zip(mean, hidden[i], strict=True))
        losses.append(1.0 - product / math.sqrt(sum(p * p for p in mean)))
    return losses


@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_loss_is_that_of_its_slow_twin(k):
    rng = np.random.default_rng(0)
    points = rng.random((15, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    hidden = rng.normal(size=(15, 7))
    hidden /= np.linalg.norm(hidden, axis=1, keepdims=True)
    assert_allclose(prediction_losses(distances, hidden, k), naive_loss(distances, hidden, k))


def test_equal_samples_are_predicted_without_loss():
    hidden = np.repeat([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]], 3, axis=0)
    apart = np.kron(1 - np.eye(2), np.ones((3, 3)))
    assert_allclose(prediction_losses(apart, hidden, 2), 0.0, atol=1e-15)
    assert_allclose(prediction_losses(1 - apart, hidden, 3), 1.0)
    cancel = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert_array_equal(prediction_losses(np.ones((3, 3)), cancel, 2)[0], 1.0)


def test_hidden_vectors_are_those_of_latent_semantic_analysis():
    X = blocks()
    [split] = hide_features(sparse.csr_array(X), 1, np.random.default_rng(0))
    columns = np.random.default_rng(0).permutation(60)
    hidden = baselines.log_normalized(X[:, np.sort(columns[30:])])
    distances = baselines.lsa(hidden, COMPONENTS)
    assert_allclose(baselines.l2(split.hidden), distances, atol=1e-10)
    assert split.hidden.shape == (60, COMPONENTS)


def test_the_standard_error_counts_samples_and_splits():
    rng = np.random.default_rng(0)
    n, splits, repeats = 40, 5, 2000
    by_sample, by_split = rng.normal(size=(repeats, 1, n)), rng.normal(size=(repeats, splits, 1))
    values = by_sample + 0.3 * by_split
    true = math.sqrt(1 / n + 0.09 / splits)
    assert_allclose(values.mean(axis=(1, 2)).std(), true, rtol=0.05)
    squares = [standard_error(part) ** 2 for part in values]
    assert_allclose(math.sqrt(np.mean(squares)), true, rtol=0.05)
    one = np.array([[1.0, 2.0, np.nan, 3.0]])  # one split; samples left out do not count
    assert_allclose(standard_error(one), 1 / math.sqrt(3))


def test_halves_of_the_features_have_nothing_in_common():
    X = sparse.csr_array(np.arange(1.0, 61.0).reshape(6, 10))
    first, second = hide_features(X, 2, np.random.default_rng(0))
    for split in (first, second):
        assert split.visible.shape == (6, 5)
        assert split.hidden.shape == (6, 5)
        assert_allclose((split.hidden**2).sum(axis=1), 1.0)
        used = {column.tobytes() for column in split.visible.toarray().T}
        whole = {column.tobytes() for column in X.toarray().T}
        assert used < whole
    assert (first.visible != second.visible).nnz > 0
    X = np.ones((5, 4))
    X[2] = [0, 0, 0, 1]  # no mass in one half
    [split] = hide_features(sparse.csr_array(X), 1, np.random.default_rng(0))
    assert_array_equal(split.samples, [0, 1, 3, 4])


def test_a_part_has_the_features_that_vary_and_no_empty_ones():
    X = np.ones((20, 6))
    X[:, 3] = 0
    X[:10, 1], X[10:, 4] = 9, 9
    X[5] = 0
    rows, columns = subsample(sparse.csr_array(X), 50, 2, np.random.default_rng(0))
    assert_array_equal(columns, [1, 4])
    assert_array_equal(np.sort(rows), [i for i in range(20) if i != 5])
    assert len(subsample(sparse.csr_array(X), 7, 6, np.random.default_rng(0))[0]) == 7
    assert 3 not in subsample(sparse.csr_array(X), 50, 6, np.random.default_rng(0))[1]


def test_dense_data_are_cut_to_the_budget(monkeypatch):
    monkeypatch.setattr(comparison, "MOST_ENTRIES", 1000)
    X = sparse.csr_array(np.random.default_rng(0).random((100, 80)) + 0.1)
    rows, columns = comparison.select(X, None, None, np.random.default_rng(0))
    assert 900 <= len(rows) * len(columns) / 2 <= 1000
    rows, columns = comparison.select(X, 90, 30, np.random.default_rng(0))
    assert (len(rows), len(columns)) == (90, 60)


def test_blocks_are_found_by_all_but_random_neighbors(choice):
    assert choice.table[-1].name == "random"
    loss = {row.name: row.loss for row in choice.table}
    assert all(loss[name] < 0.8 * loss["random"] for name in [*FEW, "LSA-30"])
    assert choice.settings in FEW.values()
    assert cm.learn(blocks(), **choice.settings, tol=0.1).converged
    assert {row.name for row in choice.table} == {*FEW, *comparison.BASELINES, "random"}


def test_the_table_is_sorted_and_compares_with_the_first_candidate(choice):
    losses = [row.loss for row in choice.table]
    assert losses == sorted(losses)
    assert choice.best == choice.table[0].name
    first = choice.row("restart 0.1")
    assert (first.difference, first.difference_error) == (0.0, 0.0)
    for row in choice.table:
        assert_allclose(row.difference, row.loss - first.loss, atol=1e-12)
        assert row.learned == (row.name in FEW)
        assert row.error > 0.0
        assert row.behind >= row.loss - choice.table[0].loss


def test_behind_is_the_largest_bound_of_a_difference_to_another_loss():
    rng = np.random.default_rng(0)
    losses = {name: rng.random((3, 40)) for name in ("mine", "other", "l1", "random")}
    for row in table_of(losses, dict.fromkeys(losses, 0.0), ["mine", "other"]):
        bounds = []
        for name in ("mine", "other", "l1"):
            d = losses[row.name] - losses[name]
            square = d.mean(axis=0).var(ddof=1) / 40 + d.mean(axis=1).var(ddof=1) / 3
            bounds.append(d.mean() + 2 * math.sqrt(square))
        assert_allclose(row.behind, max(bounds))


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_gained_on_noise(seed):
    noise = np.random.default_rng(seed).poisson(2.0, (60, 40))
    found = cm.choose(noise, FEW, n_splits=3, random_state=seed)
    assert found.picked is None
    assert found.settings == FEW["restart 0.1"]
    assert found.advice.startswith("Cannot decide: ")


def test_features_that_imply_each_other_are_worth_learning():
    # Each sample shows few of the many features of its kind: two samples of a kind often share
    # none, which distances between histograms cannot overcome and a learned metric can.
    rng = np.random.default_rng(0)
    kinds, X = np.repeat(np.arange(3), 60), np.zeros((180, 120))
    for i, kind in enumerate(kinds):
        X[i, 40 * kind + rng.choice(40, 6, replace=False)] = 1
        X[i, rng.choice(120, 2, replace=False)] += 1
    found = cm.choose(X, FEW)
    loss = {row.name: row.loss for row in found.table}
    assert loss["restart 0.1"] < loss["tf-idf"]
    assert loss["restart 0.1"] < loss["random"] - 0.05


def ignoring_time(choice):
    return [row._replace(seconds=0.0) for row in choice.table]


def test_a_seed_gives_the_same_for_any_number_of_threads(choice):
    again = cm.choose(blocks(), FEW, n_splits=3, n_threads=1)
    assert ignoring_time(again) == ignoring_time(choice)
    other = cm.choose(blocks(), FEW, n_splits=3, random_state=1)
    assert ignoring_time(other) != ignoring_time(choice)


def test_by_default_all_candidates_are_compared():
    found = cm.choose(blocks(), n_splits=1, n_samples=30, n_features=10, n_neighbors=3)
    assert {row.name for row in found.table if row.learned} == set(comparison.CANDIDATES)
    assert (found.n_samples, found.n_features, found.n_neighbors) == (30, 10, 3)


def test_options_of_a_candidate_come_before_those_of_all(monkeypatch):
    used = []

    def learn(X, **options):
        used.append(options["n_threads"])
        return cm.learn(X, **options)

    monkeypatch.setattr(comparison, "learn", learn)
    cm.choose(blocks(), {"one": {"n_threads": 1}, "two": {}}, n_splits=1, n_threads=2)
    assert used == [1, 2]


def test_sparse_data_with_empty_rows_are_read():
    X = blocks()
    X[[0, 7]] = 0
    X[:, 3] = 0
    found = cm.choose(sparse.csc_matrix(X), FEW, n_splits=1)
    assert found.n_samples == 58


def made(first, difference=0.0, error=0.002, alone=0.010, random=0.8, best="LSA-30"):
    """Losses of two candidates and LSA-30, the best of them at 0.4; random neighbors at 0.8.

    What matters is 0.05 of the distance between these, 0.02. ``first`` is the most by which the
    loss of "usual" may be above another one, ``difference`` how much it is above the best.
    """
    names = {"usual": difference, "strong": 0.01, "LSA-30": 0.01, "R alone": 0.01} | {best: 0.0}
    behind = {"usual": first, "strong": 0.2, "LSA-30": 0.2, "R alone": alone} | {best: 0.001}
    rows = [Row("random", False, random, 0.01, random - 0.4 - difference, error, 1.0, 0.1)]
    for name, above in names.items():
        to_first = above - difference, error * (name != "usual")
        learned = name in ("usual", "strong")
        rows.append(Row(name, learned, 0.4 + above, 0.01, *to_first, behind[name], 1.0))
    table = tuple(sorted(rows, key=lambda row: row.loss))
    return Choice(table, {"usual": {}, "strong": {"restart": 0.9}}, 500, 500, 4, 10)


@pytest.mark.parametrize(
    ("found", "picked", "words"),
    [
        (
            made(0.019),
            "usual",
            r"^Use cm.learn\(X\): it is behind no other candidate by more than 5 % of the distance "
            r"to random samples; R alone \(cm.baselines.reference\) by 2 %.$",
        ),
        (made(0.100), None, r"^Cannot decide: .* 25 % of .* Use cm.learn\(X\), the safe choice.$"),
        # worse than LSA-30, but not for sure by more than what matters
        (made(0.034, difference=0.030, error=0.006), None, "^Cannot decide: usual may be behind"),
        (
            made(0.034, difference=0.030),
            "LSA-30",
            r"by LSA-30 predict hidden features better than those by usual \(loss 0.400 against "
            "0.430, standard error of the difference 0.002.: use LSA-30 for samples; learn if you",
        ),
        (
            made(0.034, difference=0.030, best="strong"),
            "strong",
            r"by strong predict .* than those by usual .*: use cm.learn\(X, restart=0.9\).$",
        ),
        (made(0.100, random=0.403), None, "^Cannot decide: neighbors by usual do not predict"),
        (made(0.100, random=0.399), None, "^Cannot decide: neighbors by usual do not predict"),
    ],
)
def test_advice_says_what_to_do(found, picked, words):
    assert found.picked == picked
    assert re.search(words, found.advice)
    assert found.settings == ({"restart": 0.9} if picked == "strong" else {})
    assert "enough" not in found.advice
    if picked == "strong":
        found = dataclasses.replace(found, call="cms.tl.learn(adata, layer='counts')")
        assert "use cms.tl.learn(adata, layer='counts', restart=0.9)." in str(found)


def test_losses_that_hardly_differ_from_random_ones_decide_nothing():
    # Five words of each of 200 texts about two subjects: half of them say next to nothing about
    # the others, so that the ranks of candidates are chance, and no baseline is "enough".
    rng = np.random.default_rng(0)
    rates = 1.0 / np.arange(1, 301)
    subject = np.where(np.arange(300) % 2, 1.5, 1.0)
    chances = [p / p.sum() for p in (rates * subject, rates)]
    X = np.array([rng.multinomial(5, p) for p in chances for _ in range(100)])
    found = cm.choose(X, n_splits=2)
    assert found.picked is None
    assert found.advice.startswith("Cannot decide")
    assert found.advice.endswith("Use cm.learn(X), the safe choice.")


def test_the_first_candidate_is_left_for_one_that_is_better_for_sure():
    # Kinds that differ in rare features, and noise of large masses, which is all that l1 sees.
    rng = np.random.default_rng(0)
    loud = rng.multinomial(300, np.ones(20) / 20, 150) * rng.integers(1, 9, (150, 20))
    kinds = rng.poisson(np.kron(np.eye(3), np.full((50, 30), 1.5)) + 0.1)
    X = np.hstack([loud, kinds])
    candidates = {"l1": {"tau": 10.0, "norm": "l1", "eps": np.inf}, "usual": {}}
    found = cm.choose(X, candidates, n_splits=3)
    assert found.picked != "l1"
    assert found.picked is not None


def test_the_text_has_a_line_per_candidate_and_the_advice(choice):
    text = str(choice)
    assert text.splitlines()[0].startswith("60 samples, 30 features to learn from, 3 splits")
    for row in choice.table:
        assert re.search(rf"\(?{re.escape(row.name)}\)? +{row.loss:.4f} ± {row.error:.4f}", text)
    assert text.endswith(choice.advice)
    assert repr(choice) == text


def test_progress_tells_how_much_is_left(capsys, monkeypatch):
    monkeypatch.setattr("cometric.runtime.progress.EVERY", 0.0)
    monkeypatch.setattr("cometric.runtime.progress.SHARE", 0.0)
    cm.choose(blocks(), FEW, n_splits=2, progress=True)
    assert "comparing: 50 % of 4 runs" in capsys.readouterr().err


def test_the_plot_has_a_dot_per_candidate(choice):
    mpl = pytest.importorskip("matplotlib")
    mpl.use("Agg")
    ax = choice.plot()
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[::-1] == [row.name for row in choice.table if row.name != "random"]
    assert sum(len(bars.lines[0].get_xdata()) for bars in ax.containers) == len(names)
    mpl.pyplot.close(ax.figure)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_samples": 0}, "`n_samples` is 0; pass a whole number, at least 1"),
        ({"n_features": 2.5}, "`n_features` is 2.5; pass a whole number"),
        ({"n_splits": 0}, "`n_splits` is 0"),
        ({"n_neighbors": 59}, "need more than `n_neighbors`"),
        ({"n_features": 1}, "`X` has 2 columns to choose from; need at least 4"),
        ({"random_state": -1}, "`random_state` is -1"),
        ({"n_threads": 0}, "`n_threads` is 0"),
        ({"progress": 2}, "`progress` is 2"),
        ({"candidates": {}}, "`candidates` is {}; pass options of `learn` by name"),
        ({"candidates": {"a": 0.1}}, r"`candidates\['a'\]` is 0.1; pass options"),
        ({"candidates": {"CA-10": {}}}, r"`candidates\['CA-10'\]` has the name of a baseline"),
        ({"candidates": {"a": {"alpha": 1}}}, r"has 'alpha', which is not an option .* eps, tau"),
        ({"candidates": {"a": {"checkpoint": "x"}}}, "has 'checkpoint', which is not an option"),
        ({"candidates": {"a": {"eps": -1}}}, r"`candidates\['a'\]`: `eps` is -1"),
        ({"candidates": {"a": {"norm": (np.eye(2), np.eye(2))}}}, "has matrices as 'norm'"),
        ({"candidates": {"a": {"transport": "tree"}}}, r"\['a'\]`: `transport` is 'tree'"),
        ({"candidates": {"a": {"features": np.eye(60)}}}, "has 'features', which is not an option"),
        ({"candidates": {"a": {"restart": 2}}}, r"`candidates\['a'\]`: `restart` is 2"),
        ({"device": "gpu"}, "`device` is 'gpu'; pass 'cuda'"),
        ({"candidates": {"a": {"start": np.eye(60)}}}, "has matrices as 'start'"),
    ],
)
def test_bad_options_are_refused_by_name(options, words, monkeypatch):
    monkeypatch.setattr("cometric.learning.run.Run.learn", lambda run: pytest.fail("too late"))
    with pytest.raises(ValueError, match=words):
        cm.choose(blocks(), **options)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (-blocks(), "negative"),
        (np.eye(30), "`X` has 0 rows with mass in both halves of a split"),
        (np.zeros((30, 8)), "`X` has no mass: all entries are zero"),
    ],
)
def test_bad_data_are_refused(X, words):
    with pytest.raises(ValueError, match=words):
        cm.choose(X)
