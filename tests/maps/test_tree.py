"""Transport along trees, against the definition and POT."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import naive
from cometric import TreeMap
from cometric.core.trees import LINKAGES
from strategies import lifts


@given(lift=lifts(), linkage=st.sampled_from(LINKAGES))
def test_distances_are_those_of_the_definition(lift, linkage):
    hist, cost, _ = lift
    phi = TreeMap(hist, linkage)
    tree, distances = phi.tree(cost), phi(cost)
    scale = max(cost.max(), tree.depths.max())
    for i in range(len(hist)):
        for j in range(len(hist)):
            wanted = naive.tree_cost(hist[i], hist[j], tree.parents, tree.lengths)
            assert abs(distances[i, j] - wanted) <= 1e-14 * scale


@given(lift=lifts(), linkage=st.sampled_from(LINKAGES))
def test_they_are_optimal_transport_under_distances_along_the_tree(lift, linkage):
    pytest.importorskip("ot")
    hist, cost, _ = lift
    phi = TreeMap(hist, linkage)
    ground = phi.tree(cost).distances()
    wanted = naive.emd(hist[0], hist[1], ground)
    assert_allclose(phi(cost)[0, 1], wanted, rtol=1e-12, atol=1e-14 * ground.max())


def test_pairs_and_blocks_are_parts_of_the_whole():
    rng = np.random.default_rng(0)
    hist = rng.dirichlet(np.full(30, 0.2), 25)
    cost = rng.random((30, 30))
    cost = np.triu(cost, 1) + np.triu(cost, 1).T
    phi = TreeMap(hist)
    distances = phi(cost)
    assert_array_equal(distances, distances.T)
    index = rng.integers(0, 25, (40, 2))
    assert_allclose(phi.pairs(cost, index), distances[tuple(index.T)], rtol=1e-14, atol=1e-16)
    block = phi.between(cost, slice(3, 9), slice(10, 25))
    assert_array_equal(block, distances[3:9, 10:25])
    assert phi.shape == (25, 30)
    assert repr(phi) == "TreeMap(25 histograms on 30 bins, average)"


def test_histograms_that_hardly_differ_keep_their_distance():
    hist = np.array([[0.5, 0.5, 0.0], [0.5 - 1e-11, 0.5, 1e-11]])
    cost = np.array([[0, 1, 3], [1, 0, 3], [3, 3, 0]], float)
    assert_allclose(TreeMap(hist)(cost)[0, 1], 3e-11, rtol=1e-5)
