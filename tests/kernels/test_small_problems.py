"""Transport and Sinkhorn on problems so small that they can be run without the compiler too.

``make coverage`` does so: what is compiled, coverage cannot see.
"""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
import naive
from cometric.kernels import simplex
from cometric.kernels.geometry import l1_distances
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.exact_map import ExactMap
from cometric.maps.exact_pairs import ReplayedMap

rng = np.random.default_rng(3)
HIST = rng.dirichlet(np.full(6, 0.7), size=4)
HIST[HIST < 0.05] = 0.0
HIST[3] = [0, 1, 2, 0, 1, 0]
HIST /= HIST.sum(axis=1, keepdims=True)
POINTS = rng.random((6, 2))
METRIC = np.abs(POINTS[:, None] - POINTS).sum(axis=-1)
SHORTCUT = METRIC**3
CORNERS = np.triu_indices(4, 1)


@pytest.mark.parametrize("cost", [METRIC, SHORTCUT, 1.0 - np.eye(6)])
def test_exact_distances_plans_and_bounds(cost):
    phi = ExactMap(HIST)
    expected = naive.lift(HIST, cost)
    assert_allclose(phi(cost), expected, rtol=1e-13)
    assert_allclose(phi(cost), expected, rtol=1e-13)  # from its own trees
    low, high = phi.bounds(cost)
    above = expected[np.triu_indices(len(HIST), 1)]
    assert (low <= above * (1 + 1e-14)).all()
    assert_allclose(high, above, rtol=1e-13)
    plans = phi.plans(cost, np.array([[0, 1], [2, 2], [3, 0]]))
    assert_allclose(plans.values, expected[[0, 2, 3], [1, 2, 0]], rtol=1e-13)
    assert_allclose(plans.bounds, plans.values, rtol=1e-13)


def test_trees_go_from_metric_to_cost_and_back():
    phi = ExactMap(HIST)
    for cost in (METRIC, SHORTCUT, METRIC, METRIC[::-1, ::-1]):
        assert_allclose(phi(cost), naive.lift(HIST, cost), rtol=1e-13)


def test_frozen_couplings_are_linear_whether_written_out_or_read_off_the_trees():
    phi = ExactMap(HIST)
    frozen = phi.freeze(METRIC)
    replayed = ReplayedMap(phi.shape, phi._all)
    assert_allclose(frozen(METRIC), phi(METRIC), rtol=1e-14)
    assert_allclose(replayed(SHORTCUT), frozen(SHORTCUT), rtol=1e-14)


@pytest.mark.parametrize("cost", [METRIC, SHORTCUT])
def test_trees_are_reused_and_others_refused_or_harmless(cost):
    phi = ExactMap(HIST[:2])
    expected = phi(cost)
    memory = {name: array.copy() for name, array in phi.snapshot().items()}
    refused = 0
    for node in range(len(memory["tree"])):
        for parent in range(len(memory["tree"]) + 1):
            forged = {name: array.copy() for name, array in memory.items()}
            forged["tree"][node] = parent
            other = ExactMap(HIST[:2])
            try:
                other.restore(forged)
            except ValueError:
                refused += 1
            else:
                assert_allclose(other(cost), expected, rtol=1e-14)
    assert refused > len(memory["tree"])


def test_ties_without_end():
    hist = np.vstack([np.kron(np.eye(2), np.ones(4) / 4), np.ones(8) / 8])
    cost = np.minimum(np.abs(np.subtract.outer(np.arange(8.0), np.arange(8.0))), 2.0)
    assert_allclose(ExactMap(hist)(cost), naive.lift(hist, cost), rtol=1e-13)
    assert_allclose(ExactMap(hist)(cost**2), naive.lift(hist, cost**2), rtol=1e-13)
    assert_array_equal(ExactMap(hist)(0 * cost), 0.0)


def test_supports_larger_than_a_pricing_block(monkeypatch):
    monkeypatch.setattr(simplex, "BLOCK", 4)
    hist = rng.dirichlet(np.ones(12), size=2)
    cost = rng.random((12, 12))
    cost = np.triu(cost, 1) + np.triu(cost, 1).T
    assert_allclose(ExactMap(hist)(cost), naive.lift(hist, cost), rtol=1e-13)


@pytest.mark.parametrize("eps", [0.004, 0.1, 10.0])
def test_entropic_divergences(eps):
    phi = EntropicMap(HIST, eps, tol=1e-10, max_sweeps=3000)
    low, high = phi.bounds(METRIC)
    values = phi(METRIC)[CORNERS]
    assert (low - 1e-9 <= values).all()
    assert (values <= high + 1e-9).all()
    if eps >= 0.1:
        assert_allclose(values, naive.sinkhorn_divergences(HIST, METRIC, eps)[CORNERS], atol=1e-9)


@pytest.mark.parametrize("limit", [0, 300, None])
def test_entropic_divergences_with_little_memory_and_single_precision(limit):
    wide = rng.dirichlet(np.ones(40), size=3)  # rows longer than a register
    points = rng.random((40, 2))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    make = partial(EntropicMap, wide, 0.5, memory_limit=limit)
    assert_allclose(make(tol=1e-9)(cost), naive.sinkhorn_divergences(wide, cost, 0.5), atol=1e-7)
    rough = make(sweeps=4, dtype=np.float32)
    assert_allclose(rough(cost), make(tol=1e-9)(cost), atol=1e-4)


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_candidates_of_lowest_bounds_hold_the_nearest(eps, norm):
    X = rng.random((11, 5)) * (rng.random((11, 5)) < 0.8) + 0.01
    result = cm.learn(X[:4], eps=eps, tau=0.1, norm=norm, tol=1e-2)
    few = cm.neighbor_graph(result, X, 2, max_candidates=4, check=11)
    whole = cm.neighbor_graph(result, X, 2, max_candidates=10, check=0)
    assert whole.proved.all()
    same = few.proved
    assert_allclose(few.graph[same].toarray(), whole.graph[same].toarray(), atol=1e-12)
    assert few.recall > 0.5


@pytest.mark.parametrize("upper", [True, False])
def test_l1_distances_of_sparse_integers_are_those_of_dense_rows(upper):
    own = np.random.default_rng(8)
    x = own.integers(0, 2**40, (9, 7)) * (own.random((9, 7)) < 0.5)
    y = x if upper else own.integers(0, 2**40, (4, 7)) * (own.random((4, 7)) < 0.5)
    left, right = sparse.csr_array(x), sparse.csc_array(y)
    found = l1_distances(
        (left.indptr, left.indices, left.data, x.sum(axis=1)),
        (right.indptr, right.indices, right.data, y.sum(axis=1)),
        upper,
    )
    assert_array_equal(found, np.abs(x[:, None] - y).sum(axis=2))
