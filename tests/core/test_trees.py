"""Trees of items: from and to SciPy, Newick, distances, repeated items, bisection."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.cluster import hierarchy
from scipy.spatial.distance import pdist, squareform

from cometric.core.trees import LINKAGES, MetricTree
from strategies import positive_costs

# ((0, 1), 2) with edges of length 1, 2, 4 and 0.5 above the node (0, 1).
TREE = MetricTree(np.array([3, 3, 4, 4, -1]), np.array([1.0, 2.0, 4.0, 0.5, 0.0]), 3)


def random_distances(n, seed=0):
    return squareform(pdist(np.random.default_rng(seed).random((n, 3))))


def test_distances_are_lengths_of_paths():
    assert_allclose(TREE.distances(), [[0, 3, 5.5], [3, 0, 6.5], [5.5, 6.5, 0]])
    assert_allclose(TREE.depths, [1.5, 2.5, 4, 0.5, 0])
    assert_allclose(TREE.heights, [0, 0, 0, 2, 4])
    assert_array_equal(TREE.levels, [2, 2, 1, 1, 0])


def test_vectors_have_the_masses_below_each_node():
    hist = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    assert_allclose(TREE.masses(hist).toarray(), [[0.5, 0.25, 0.25, 0.75], [0, 1, 0, 1]])
    vectors = TREE.vectors(hist).toarray()
    assert_allclose(vectors, [[0.5, 0.5, 1.0, 0.375], [0, 2, 0, 0.5]])


@pytest.mark.parametrize("linkage", LINKAGES)
def test_a_linkage_survives_the_round_trip_and_gives_its_cophenetic_distances(linkage):
    distances = random_distances(20)
    merges = hierarchy.linkage(squareform(distances), linkage)
    tree = MetricTree.from_linkage(merges)
    wanted = squareform(hierarchy.cophenet(merges))
    assert_allclose(tree.distances(), wanted, rtol=1e-12)
    assert_allclose(MetricTree.from_distances(distances, linkage).distances(), wanted, rtol=1e-11)
    assert_allclose(squareform(hierarchy.cophenet(tree.linkage())), wanted, rtol=1e-12)
    assert hierarchy.is_valid_linkage(tree.linkage())


@given(
    distances=st.integers(2, 7).flatmap(positive_costs),
    scale=st.floats(1e-6, 1e6),
    linkage=st.sampled_from(LINKAGES),
)
def test_scaled_distances_give_the_same_tree_also_where_they_tie(distances, scale, linkage):
    tree = MetricTree.from_distances(distances, linkage)
    scaled = MetricTree.from_distances(scale * distances, linkage)
    assert_allclose(scaled.distances(), scale * tree.distances(), rtol=1e-9)


def test_the_newick_text_quotes_names_and_has_all_lengths():
    assert TREE.newick() == "(2:4,(0:1,1:2):0.5);"
    assert TREE.newick(["a b", "it's", "C"]) == "(C:4,('a b':1,'it''s':2):0.5);"
    with pytest.raises(ValueError, match="`names` has 2 names; the tree has 3 leaves"):
        TREE.newick(["a", "b"])


def test_repeated_items_share_a_leaf_of_the_old_tree():
    labels = np.array([2, 0, 1, 0, 2])
    tree = TREE.expand(labels)
    assert_allclose(tree.distances(), TREE.distances()[np.ix_(labels, labels)])
    assert (tree.parents[:-1] > np.arange(len(tree) - 1)).all()
    assert TREE.expand(np.arange(3)) is TREE
    assert hierarchy.is_valid_linkage(tree.linkage())
