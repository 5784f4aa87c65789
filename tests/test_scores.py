"""Scores of distance matrices: known values, and what they refuse."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import silhouette_score
from sklearn.neighbors import KNeighborsClassifier

from cometric import scores

RNG = np.random.default_rng(0)
LABELS = np.repeat(["a", "b", "c"], 20)
POINTS = RNG.normal(size=(60, 4)) + 2.0 * (LABELS[:, None] == ["a", "b", "c", "d"])
DISTANCES = np.linalg.norm(POINTS[:, None] - POINTS[None], axis=-1)


def test_silhouette_is_that_of_scikit_learn():
    assert scores.silhouette(DISTANCES, LABELS) == pytest.approx(silhouette_score(POINTS, LABELS))


def test_knn_accuracy_leaves_the_item_itself_out():
    hits = 0
    for i in range(60):
        rest = np.arange(60) != i
        model = KNeighborsClassifier(1).fit(POINTS[rest], LABELS[rest])
        hits += model.predict(POINTS[i : i + 1])[0] == LABELS[i]
    assert scores.knn_accuracy(DISTANCES, LABELS, k=1) == pytest.approx(hits / 60)


def test_most_neighbors_decide_and_the_nearest_breaks_ties():
    line = np.array([0.0, 1.0, -2.0, 3.0, 40.0])
    distances = np.abs(line[:, None] - line)
    labels = np.array(["a", "b", "a", "a", "b"])
    near = scores.neighbors(distances, 3)
    assert near[0].tolist() == [1, 2, 3]
    # By their two nearest: 0 sees b, a (b is nearer); 1 sees a, a; 2 sees a, b; 3 sees b, a.
    assert scores.knn_accuracy(distances, labels, k=2) == pytest.approx(1 / 5)
    # By three: 0 sees b, a, a; 2 sees a, b, a; 3 sees b, a, a; 1 sees a, a, a; 4 a, b, a.
    assert scores.knn_accuracy(distances, labels, k=3) == pytest.approx(3 / 5)


NAMES = [f"g{i}" for i in range(9)]
LINE = np.abs(np.subtract.outer(np.arange(9.0) ** 1.1, np.arange(9.0) ** 1.1))


def test_a_tight_set_is_found_and_a_torn_one_is_not():
    sets = {"tight": ["g0", "g1", "g2"], "torn": ["g0", "g8", "g4"], "small": ["g0", "g1", "x"]}
    found = scores.set_auroc(LINE, NAMES, sets)
    assert list(found) == ["tight", "torn"]
    assert list(scores.set_auroc(LINE, NAMES, {"all": NAMES, "some": NAMES[:3]})) == ["some"]
    assert found["tight"] == 1.0
    assert found["torn"] < 0.5
    assert scores.set_auroc(1.0 - np.eye(9), NAMES, sets)["torn"] == 0.5


def test_neighbor_voting_by_its_definition():
    noise = RNG.random((9, 9))
    distances = noise + noise.T
    np.fill_diagonal(distances, 0.0)
    inside, outside = [1, 4, 6], [0, 2, 3, 5, 7, 8]

    def rank(i, j):
        return sum(distances[i] <= distances[i, j])

    areas = []
    for hidden in inside:  # folds of one
        rest = [i for i in inside if i != hidden]
        votes = [sum(rank(i, j) + rank(j, i) for i in rest) for j in range(9)]
        wins = [(votes[hidden] < votes[j]) + 0.5 * (votes[hidden] == votes[j]) for j in outside]
        areas.append(np.mean(wins))
    found = scores.set_auroc(distances, NAMES, {"set": ["g1", "g4", "g6"]})
    assert found["set"] == pytest.approx(np.mean(areas))


def test_nearest_items_share_sets():
    sets = {"a": ["g0", "g1", "g2"], "b": ["g2", "g3", "g8"]}
    # Of 0, 1, 2, 3, 8 the nearest is 1, 0, 1, 2, 3: all share a set.
    assert scores.shared_sets(LINE, NAMES, sets, k=1) == 1.0
    # The second nearest: 2, 2, 3, 1 (not shared), 2.
    assert scores.shared_sets(LINE, NAMES, sets, k=2) == pytest.approx(0.9)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_participation_ratio_counts_axes(axes):
    points = np.linalg.qr(RNG.normal(size=(30, 4)) - 0.0)[0]
    points = points - points.mean(axis=0)
    points = np.linalg.svd(points, full_matrices=False)[0][:, :axes]
    squares = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    assert_allclose(scores.participation_ratio(squares), axes, rtol=1e-10)
    assert_allclose(scores.participation_ratio(1.0 - np.eye(7)), 6.0)  # a simplex


def test_neighborhoods_agree_with_themselves_and_by_chance():
    assert scores.neighborhood_agreement(DISTANCES, 3 * DISTANCES) == 1.0
    noise = RNG.random((300, 300))
    other = RNG.random((300, 300))
    agreement = scores.neighborhood_agreement(noise + noise.T, other + other.T, k=10)
    assert agreement == pytest.approx(10 / 299, abs=0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: scores.silhouette(DISTANCES[:5], LABELS), r"`distances` has shape \(5, 60\)"),
        (lambda: scores.silhouette(DISTANCES, LABELS[:5]), "`labels` has 5 entries for 60 items"),
        (lambda: scores.knn_accuracy(DISTANCES, LABELS, k=60), "`k` is 60; choose between 1 and"),
        (lambda: scores.set_auroc(LINE, NAMES[:5], {}), "`names` has 5 entries for 9 items"),
        (lambda: scores.shared_sets(LINE, NAMES, {"a": ["x"] * 3}), "None of the 1 `sets` has 3 "),
        (lambda: scores.set_auroc(LINE, NAMES, {}, folds=1), "`folds` is 1; pass at least 2"),
        (lambda: scores.neighbors(DISTANCES, 0), "`k` is 0; choose between 1 and 59"),
        (lambda: scores.neighborhood_agreement(DISTANCES, LINE), r"`one` has shape .* `other` \(9"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
