"""Features of a group: distances of the group, taken as a feature, to the others."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm
from cometric.results.groups import SHRINK


@pytest.fixture(scope="module")
def data():
    return cm.datasets.simulate_counts(80, 60, types=3, density=0.4)


@pytest.fixture(scope="module")
def result(data):
    return cm.learn(data.X, restart=0.5, norm="lsa")


def test_markers_of_a_type_come_first(data, result):
    rows = cm.rank_features(result, data.labels, n_features=4)
    assert len(rows) == 12
    types = [str(data.features[int(row.feature)]) for row in rows]
    assert np.mean([row.group == mark for row, mark in zip(rows, types, strict=True)]) > 0.8
    assert np.mean([row.times > 1.0 for row in rows]) > 0.8


def test_a_group_of_the_samples_of_a_feature_is_at_its_distance():
    X = np.array([[1.0, 0.0, 2.0], [1.0, 1.0, 0.0], [0.0, 3.0, 1.0], [0.0, 1.0, 1.0]])
    result = cm.learn(X, eps=0, tau=0.1)
    rows = cm.rank_features(result, ["a", "a", "b", "b"], n_features=None)
    assert rows[0].group == "a"
    assert rows[0].feature == "0"  # whose mass is that of the group
    assert_allclose(rows[0].distance, 0.0, atol=1e-9)
    others = {row.feature: row.distance for row in rows[1:3]}
    expected = {str(l): result.features[0, l] for l in (1, 2)}
    for feature, away in expected.items():
        assert_allclose(others[feature], away, rtol=1e-2)


@pytest.mark.parametrize("nothing", ["all labeled", None, np.nan])
def test_shares_inside_and_outside_are_means(data, result, nothing):
    """Samples without a label are neither inside nor outside."""
    known = (np.arange(80) % 7 != 0) | (nothing == "all labeled")
    labels = np.where(known, np.array(data.labels, dtype=object), nothing)
    rows = cm.rank_features(result, labels, n_features=None)
    assert len(rows) == 3 * 60
    for group in {row.group for row in rows}:
        away = [row.distance for row in rows if row.group == group]
        assert away == sorted(away)
    shares = data.X.toarray() / data.X.sum(axis=1)[:, None]
    floor = SHRINK / 60
    for row in rows[::17]:
        own = np.array([str(label) == row.group for label in labels])
        parts = own & known, ~own & known
        inside, outside = (shares[part, int(row.feature)].mean() for part in parts)
        assert_allclose([row.inside, row.outside], [inside, outside], rtol=1e-9)
        assert_allclose(row.times, (inside + floor) / (outside + floor), rtol=1e-9)


def test_groups_with_numbers_ascend(result):
    numbers = [str(i % 12) for i in range(80)]
    rows = cm.rank_features(result, numbers, n_features=1)
    assert [row.group for row in rows] == [str(k) for k in range(12)]
    table = cm.modules(result).table(numbers)
    assert table.groups == tuple(str(k) for k in range(12))


def test_dropped_samples_are_left_out():
    X = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 3.0, 1.0], [4.0, 1.0, 1.0]])
    result = cm.learn(X, eps=0, tau=0.1, drop_empty=True)
    assert len(cm.rank_features(result, ["a", "b", "b"], n_features=1)) == 2
    words = r"there are 3 samples, .* dropped: `labels\[result.problem.samples.kept\]`\."
    labels = np.array(["a", "none", "b", "b"])
    with pytest.raises(ValueError, match=words):
        cm.rank_features(result, labels)
    kept = labels[result.problem.samples.kept]  # as the message says
    assert len(cm.rank_features(result, kept, n_features=1)) == 2


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        (["a"], {}, "`labels` has 1 entries; there are 80 samples"),
        (["a"] * 80, {"n_features": 0}, "`n_features` is 0"),
        ("type", {}, "`labels` is 'type'; pass the label of each sample, such as `adata.obs"),
        (None, {}, "`labels` is None; pass the label of each sample"),
        (np.array("a"), {}, r"`labels` is array\(.*; pass the label of each sample"),
        ([None] * 80, {}, "`labels` are all missing; pass a label for some"),
        (["a"] * 70 + [None] * 10, {}, "one group only, 'a', and nothing to compare it with"),
    ],
)
def test_bad_input_is_refused(result, labels, options, words):
    with pytest.raises(ValueError, match=words):
        cm.rank_features(result, labels, **options)


def test_labels_in_another_order_than_the_samples_are_refused():
    pd = pytest.importorskip("pandas")
    data = cm.datasets.simulate_counts(30, 20, types=2, density=0.6)
    X = pd.DataFrame(data.X.toarray(), index=[f"s{i}" for i in range(30)])
    labels = pd.Series(data.labels, index=X.index)
    learned = cm.learn(X, drop_empty=True, tol=0.1)
    modules = cm.modules(learned)
    words = r"`labels` has the names of the samples in its index, .* `labels\.loc\[X\.index\]`"
    for function in (
        lambda given: cm.rank_features(learned, given),
        modules.table,
        lambda given: cm.plot.embedding(learned, method="tsne", labels=given),
        lambda given: cm.plot.distances(learned, labels=given),
        lambda given: cm.report.write(learned, "unused.html", labels=given),
    ):
        with pytest.raises(ValueError, match=words):
            function(labels[::-1])
    expected = cm.rank_features(learned, data.labels)
    renamed = labels.set_axis([f"t{i}" for i in range(30)])
    for same in (labels, labels.reset_index(drop=True), renamed):
        assert cm.rank_features(learned, same) == expected
    shuffled = cm.learn(X.set_axis(np.random.default_rng(0).permutation(30)), tol=0.1)
    by_position = cm.rank_features(shuffled, pd.Series(data.labels))
    assert by_position == cm.rank_features(shuffled, data.labels)
