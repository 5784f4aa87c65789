"""Labels of new items by a vote: laws, a naive twin, and what the confidence means."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import cdist

import cometric as cm
from cometric.core.nearest import nearest, neighbor_matrix

rng = np.random.default_rng(5)
X = rng.poisson(1.5, (14, 9)) + np.eye(14, 9)
LABELS = np.array(list("abcabcabcabcab"))


def blobs(n, seed, spread=1.0):
    """Points around three centers, and which."""
    draw = np.random.default_rng(seed)
    kind = draw.integers(3, size=n)
    centers = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    return centers[kind] + spread * draw.normal(size=(n, 2)), np.array(["x", "y", "z"])[kind]


def vote(row, labels, k):
    """The naive twin, of one row: the label and its share."""
    order = sorted(range(len(row)), key=lambda j: (row[j], j))[:k]
    radius = row[order[-1]]
    weights = {j: np.exp(-2 * (row[j] / radius) ** 2) if radius else 1.0 for j in order}
    sums = {}
    for j in order:
        if labels[j] is not None:
            sums[labels[j]] = sums.get(labels[j], 0.0) + weights[j] / sum(weights.values())
    if not sums:
        return None, 0.0
    most = max(sums.values())
    return min(label for label, total in sums.items() if total >= most - 1e-9), most


@given(
    st.integers(1, 8),
    st.integers(0, 10_000),
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=8, max_size=8),
)
def test_the_vote_is_that_of_its_naive_twin(k, seed, labels):
    if all(label is None for label in labels):
        labels[0] = "a"
    distances = np.random.default_rng(seed).random((5, 8))
    answer = cm.transfer_labels(distances, labels, k)
    expected = [vote(row, labels, k) for row in distances]
    assert answer.labels.tolist() == [label for label, _ in expected]
    assert_allclose(answer.confidence, [share for _, share in expected], atol=1e-8)
    assert_allclose(answer.shares.max(axis=1), answer.confidence)


@pytest.mark.parametrize("options", [{}, {"eps": 0, "tau": 0.05}, {"eps": np.inf}], ids=str)
def test_labeled_samples_get_their_own_labels_back_from_one_neighbor(options):
    result = cm.learn(X, **options)
    answer = cm.transfer_labels(result.transform(X), LABELS, 1)
    assert_array_equal(answer.labels, LABELS)
    assert_array_equal(answer.confidence, 1.0)
    features = cm.transfer_labels(result.transform(X, of="features"), list("abcdefghi"), 1)
    assert "".join(features.labels) == "abcdefghi"


def test_a_sparse_graph_of_neighbors_votes_like_all_distances():
    result = cm.learn(X, eps=0, tau=0.05)
    new = X[:5] + 0.5
    whole = cm.transfer_labels(result.transform(new), LABELS, 4, within=result.samples)
    graph = neighbor_matrix(*nearest(result.samples, 5), 14)  # the item itself included
    few = cm.transfer_labels(result.transform(new, n_neighbors=6), LABELS, 4, within=graph)
    assert_array_equal(few.labels, whole.labels)
    assert_allclose(few.confidence, whole.confidence)
    assert_allclose(few.shares, whole.shares)


def test_the_order_and_names_of_the_labels_do_not_matter():
    points, kinds = blobs(60, 0)
    distances = cdist(blobs(20, 1)[0], points)
    answer = cm.transfer_labels(distances, kinds, 7)
    order = rng.permutation(60)
    turned = cm.transfer_labels(distances[:, order], kinds[order], 7)
    assert_array_equal(answer.labels, turned.labels)
    numbers = cm.transfer_labels(distances, np.searchsorted(answer.classes, kinds), 7)
    assert_array_equal(answer.classes[numbers.labels], answer.labels)
    assert_allclose(numbers.shares, answer.shares)


def test_confidence_is_the_accuracy_of_votes_with_this_share():
    points, kinds = blobs(1500, 2)
    new, truth = blobs(1500, 3)
    within = cdist(points, points)
    answer = cm.transfer_labels(cdist(new, points), kinds, 15, within=within)
    right = answer.labels == truth
    assert answer.confidence.mean() == pytest.approx(right.mean(), abs=0.03)
    lower, upper = np.quantile(answer.confidence, [0.3, 0.7])
    low, high = answer.confidence <= lower, answer.confidence >= upper
    assert right[low].mean() < right[high].mean() - 0.2
    for part in (low, high):
        assert answer.confidence[part].mean() == pytest.approx(right[part].mean(), abs=0.06)
    order = np.argsort(answer.shares.max(axis=1))  # never falls as the share rises
    assert (np.diff(answer.confidence[order]) >= 0).all()
    chance = np.random.default_rng(7).permutation(kinds)  # labels that say nothing
    answer = cm.transfer_labels(cdist(new, points), chance, 15, within=within)
    assert answer.confidence.mean() == pytest.approx(1 / 3, abs=0.08)


def test_novelty_is_the_share_of_labeled_items_with_nearer_neighbors():
    points, kinds = blobs(400, 9)
    within = cdist(points, points)
    new = np.concatenate([blobs(200, 10)[0], [[9.0, 9.0]]])
    answer = cm.transfer_labels(cdist(new, points), kinds, 7, within=within)
    radius = np.sort(within, axis=1)[:, 1:8].mean(axis=1)  # without the item itself
    expected = [(radius < np.sort(row)[:7].mean()).mean() for row in cdist(new, points)]
    assert_allclose(answer.novelty, expected)
    assert answer.novelty[-1] == 1.0
    assert answer.novelty[:-1].mean() == pytest.approx(0.5, abs=0.08)
    assert cm.transfer_labels(cdist(new, points), kinds, 7).novelty is None


@pytest.mark.parametrize("missing", [None, np.nan, float("nan")])
def test_neighbors_without_a_label_vote_for_none(missing):
    distances = np.array([[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    answer = cm.transfer_labels(distances, ["a", missing, missing, missing], 2)
    assert answer.labels.tolist() == ["a", None]
    assert_allclose(answer.confidence, [0.5, 0.0])
    within = np.array([[0, 1, 2, 3], [1, 0, 2, 3], [2, 2, 0, 1], [3, 3, 1, 0.0]])
    again = cm.transfer_labels(distances, ["a", "a", missing, missing], 2, within=within)
    assert again.labels.tolist() == ["a", None]
    assert again.confidence[1] == 0.0


def test_items_whose_neighbors_have_no_label_are_not_counted_as_right():
    labels = ["a", None, "a", None, "a", None, "b", "c", "b", "b"]  # each beside its neighbor
    places = np.repeat(10.0 * np.arange(5), 2) + np.tile([0.0, 1.0], 5)
    within = np.abs(np.subtract.outer(places, places))
    answer = cm.transfer_labels(np.abs(places - 41.5)[None], labels, 1, within=within)
    assert (answer.labels.tolist(), answer.confidence.tolist()) == (["b"], [0.5])


def test_missing_values_of_pandas_are_missing():
    pd = pytest.importorskip("pandas")
    labels = pd.Series(["a", None, "b"], dtype="string")
    answer = cm.transfer_labels(np.array([[1.0, 0.0, 2.0]]), labels, 1)
    assert answer.labels.tolist() == [None]
    kinds = pd.Categorical(["a", None, "b"])
    assert cm.transfer_labels(np.array([[2.0, 1.0, 0.0]]), kinds, 1).labels.tolist() == ["b"]


def test_the_default_is_15_neighbors_or_all_of_fewer():
    points, kinds = blobs(40, 0)
    away, within = cdist(blobs(9, 1)[0], points), cdist(points, points)
    for count, used in ((40, 15), (16, 15), (8, 7)):
        given = away[:, :count], kinds[:count]
        among = within[:count, :count]
        default = cm.transfer_labels(*given, within=among)
        assert_array_equal(default.shares, cm.transfer_labels(*given, used, within=among).shares)
    alone = cm.transfer_labels(away[:, :8], kinds[:8])
    assert_array_equal(alone.shares, cm.transfer_labels(away[:, :8], kinds[:8], 8).shares)
    few = neighbor_matrix(*nearest(away, 5), 40)
    shares = cm.transfer_labels(away, kinds, 5).shares
    assert_array_equal(cm.transfer_labels(few, kinds).shares, shares)


GOOD, FEW = np.ones((2, 3)), sparse.csr_array(np.eye(2, 3))


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((GOOD, ["a", "b"]), {}, r"`labels` has shape \(2,\); `distances` has 3 columns"),
        ((GOOD, list("abcd")), {}, r"pass 3 labels. If empty samples were dropped: `labels\["),
        ((GOOD, [None, None, np.nan]), {}, "`labels` are all missing"),
        ((GOOD, ["a", 1, "b"]), {}, "`labels` mixes types"),
        ((GOOD, list("abc"), 4), {}, "`n_neighbors` is 4; pass a whole number from 1 to 3"),
        ((GOOD[0], list("abc"), 1), {}, r"`distances` has shape \(3,\)"),
        ((-GOOD, list("abc"), 1), {}, "`distances` has 6 entries that are negative"),
        ((GOOD * np.nan, list("abc"), 1), {}, "`distances` has 6 entries that are not finite"),
        ((GOOD.astype(str), list("abc"), 1), {}, "pass a matrix of numbers"),
        ((FEW, list("abc"), 2), {}, "sparse and has rows with 1 neighbor; need `n_neighbors` = 2"),
        ((GOOD, list("abc"), 1), {"within": GOOD}, r"`within` has shape \(2, 3\); .* \(3, 3\)"),
        ((GOOD, list("abc"), 3), {"within": np.ones((3, 3))}, "`n_neighbors` is 3; .* from 1 to 2"),
    ],
)
def test_bad_input_is_refused(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        cm.transfer_labels(*arguments, **options)


def test_a_result_instead_of_distances_is_refused():
    result = cm.learn(X, tau=0.1, eps=np.inf)
    with pytest.raises(ValueError, match=r"`distances` is a Result; .*`result.transform\(new\)`"):
        cm.transfer_labels(result, LABELS)
    with pytest.raises(ValueError, match="`within` is a Result; pass distances, `result.samples`"):
        cm.transfer_labels(result.samples, LABELS, 5, within=result)


def test_a_transfer_prints_as_a_table_of_labels():
    across = np.array([[0.1, 0.2, 0.9, 0.8], [0.9, 0.8, 0.1, 0.2], [0.8, 0.9, 0.2, 0.1]])
    within = 1.0 - np.eye(4)
    within[0, 1] = within[1, 0] = within[2, 3] = within[3, 2] = 0.3
    answer = cm.transfer_labels(across, ["T cell", "T cell", "B", "B"], 2, within=within)
    header, columns, first, second = str(answer).splitlines()
    assert header == "Labels of 3 new items"
    assert columns.split("   ")[-1] == "novelty above 0.95"
    unsure = (answer.confidence < 0.9).sum()
    assert [*first.split()][:2] == ["B", "2"]
    assert [*second.split()][:3] == ["T", "cell", "1"]
    assert int(first.split()[3]) + int(second.split()[4]) == unsure
    plain = cm.transfer_labels(across, ["T cell", "T cell", "B", "B"], 2)
    assert "novelty" not in repr(plain)
