"""Certificates that start from the trees of a solve: as good as fresh ones, and never wrong."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm
import naive
from cometric.kernels.nodes import NO_TREE
from cometric.maps.checking import all_pairs
from cometric.maps.exact_map import Bases, ExactMap
from cometric.maps.exact_pairs import PairBatch


@pytest.fixture(scope="module")
def result():
    X = cm.datasets.simulate_counts(14, 11, density=0.6).X
    return cm.learn(X, eps=0, tau=0.05, norm="l1", tol=1e-9)


@pytest.fixture
def lift():
    """Histograms that share bins, a metric on the bins, and the true distances."""
    rng = np.random.default_rng(3)
    hist = rng.gamma(1.0, size=(7, 9)) * (rng.random((7, 9)) < 0.7) + np.eye(7, 9)
    hist /= hist.sum(axis=1, keepdims=True)
    points = rng.random((9, 3))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    return hist, cost, naive.lift(hist, cost)[np.triu_indices(7, 1)]


def solved(hist, cost):
    phi = ExactMap(hist)
    phi(cost)
    return phi.bases


def damage(bases, how, rng, hist, cost):
    """The bases, in a way that they must not be."""
    tree, state = bases.tree.copy(), bases.state.copy()
    if how == "random parents":
        tree[:] = rng.integers(0, 2**16, len(tree))
    elif how == "some parents":
        tree[rng.random(len(tree)) < 0.1] = 0
    elif how == "shuffled pairs":
        tree = rng.permutation(tree)
    elif how == "no trees":
        state[:] = NO_TREE
    elif how == "other states":
        state[:] = rng.integers(0, 256, len(state))
    elif how == "another cost":
        points = rng.random((len(cost), 2))
        return solved(hist, np.abs(points[:, None] - points).sum(axis=-1))
    elif how == "other histograms":
        return solved(hist[::-1].copy(), cost)
    elif how == "too short":
        tree = tree[:-1]
    elif how == "too few":
        state = state[:-1]
    return Bases(tree, state)


@pytest.mark.parametrize(
    "how",
    ["random parents", "some parents", "shuffled pairs", "no trees", "other states"]
    + ["another cost", "other histograms", "too short", "too few"],
)
def test_bounds_are_right_whatever_the_bases_are(how, lift):
    hist, cost, truth = lift
    bases = damage(solved(hist, cost), how, np.random.default_rng(5), hist, cost)
    phi = ExactMap(hist)
    phi.first_bases = bases
    lower, upper = phi.bounds(cost)
    assert (lower <= truth + 1e-12).all()
    assert (truth <= upper + 1e-12).all()
    assert_allclose(upper, lower, rtol=1e-12)  # solved to the end, from wherever it began


def test_bounds_of_poor_trees_are_worse_but_not_wrong(lift):
    hist, cost, truth = lift
    points = np.random.default_rng(8).random((9, 2))
    elsewhere = solved(hist, np.abs(points[:, None] - points).sum(axis=-1))
    batch = ExactMap(hist)._batch(all_pairs(7))
    batch.start_from(elsewhere.tree, elsewhere.state)
    lower, upper = batch.bounds(cost)  # without a solve
    assert (lower <= truth + 1e-12).all()
    assert (truth <= upper + 1e-12).all()
    assert (upper - lower).max() > 1e-2


def test_damaged_trees_are_dropped_and_others_used(lift):
    hist, cost, _ = lift
    bases = solved(hist, cost)
    batch = ExactMap(hist)._batch(all_pairs(7))
    tree = bases.tree.copy()
    tree[batch.room[4] : batch.room[5]] = 60000
    batch.start_from(tree, bases.state)
    assert np.flatnonzero(batch.state == NO_TREE).tolist() == [4]


def test_a_certificate_from_bases_equals_a_fresh_one(result, monkeypatch):
    used = []
    start_from = PairBatch.start_from
    monkeypatch.setattr(
        PairBatch, "start_from", lambda batch, *trees: (used.append(1), start_from(batch, *trees))
    )
    warm = result.certify()
    assert used
    used.clear()
    fresh = replace(result, bases=None).certify()
    assert not used
    assert_allclose(warm.value, fresh.value, rtol=1e-14)
    assert_allclose(warm.samples_error, fresh.samples_error, rtol=1e-4)
    assert_allclose(warm.features_error, fresh.features_error, rtol=1e-4)
    assert warm.gap < 1e-12


def test_a_certificate_leaves_the_bases_as_they_are(result):
    before = [array.copy() for bases in result.bases for array in bases]
    result.certify()
    for array, copied in zip((a for bases in result.bases for a in bases), before, strict=True):
        assert np.array_equal(array, copied)


def test_bases_are_neither_pickled_nor_copied_nor_saved(result, tmp_path):
    assert result.bases is not None
    assert pickle.loads(pickle.dumps(result)).bases is None
    assert copy.copy(result).bases is None
    result.save(tmp_path / "result.npz")
    loaded = cm.load(tmp_path / "result.npz")
    assert loaded.bases is None
    assert_allclose(loaded.certify().value, result.certify().value, rtol=1e-14)


def test_large_bases_are_not_stored(monkeypatch):
    monkeypatch.setattr("cometric.transports.exact.BASES", 10.0)
    X = cm.datasets.simulate_counts(14, 11, density=0.6).X
    again = cm.learn(X, eps=0, tau=0.05, norm="l1", tol=1e-9)
    assert again.bases is None
    assert again.certify().gap < 1e-12
