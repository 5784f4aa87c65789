"""Trees from a file: whatever the simplex is allowed to start from ends at the right distances."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cometric.kernels import nodes
from cometric.maps.exact_map import ExactMap

HIST = np.array([[3, 1, 0, 2, 0], [0, 2, 2, 1, 1], [1, 1, 1, 1, 2], [2, 0, 0, 2, 2]]) / 6
rng = np.random.default_rng(0)
POINTS = rng.random((5, 2))
METRIC = np.abs(POINTS[:, None] - POINTS).sum(axis=-1)
SHORTCUT = METRIC**3  # not a metric: whole histograms are transported


def forged(memory, change):
    """The map whose trees are as ``change`` leaves them, or None where it is refused."""
    arrays = {name: array.copy() for name, array in memory.items()}
    change(arrays)
    phi = ExactMap(HIST)
    try:
        phi.restore(arrays)
    except ValueError:
        return None
    return phi


@pytest.mark.parametrize("cost", [METRIC, SHORTCUT])
def test_each_parent_changed_to_each_other_is_refused_or_harmless(cost):
    phi = ExactMap(HIST)
    expected = phi(cost)
    memory = phi.snapshot()
    refused = taken = 0
    for node in range(len(memory["tree"])):
        for parent in range(12):

            def change(arrays, node=node, parent=parent):
                arrays["tree"][node] = parent

            other = forged(memory, change)
            refused += other is None
            if other is not None:
                taken += 1
                assert_allclose(other(cost), expected, rtol=1e-14)
                assert_allclose(other.freeze(cost)(cost), expected, rtol=1e-14)
    assert refused > 5 * len(memory["tree"])
    assert taken >= len(memory["tree"])  # the changes that change nothing, at least


def test_random_trees_are_refused_or_harmless():
    phi = ExactMap(HIST)
    expected = phi(METRIC)
    memory = phi.snapshot()
    for _ in range(500):

        def change(arrays):
            arrays["tree"][:] = rng.integers(0, 12, len(arrays["tree"]))
            arrays["state"][:] = rng.integers(0, 3, len(arrays["state"]))

        other = forged(memory, change)
        if other is not None:
            assert_allclose(other(METRIC), expected, rtol=1e-14)


def test_a_cycle_is_refused():
    phi = ExactMap(HIST[:2])
    phi(METRIC)
    memory = {name: array.copy() for name, array in phi.snapshot().items()}
    assert memory["state"].tolist() == [nodes.REDUCED_TREE]
    memory["tree"][:4] = [2, 3, 0, 3]  # a source and a sink that are each other's parents
    with pytest.raises(ValueError, match="the stored trees do not match these histograms"):
        phi.restore(memory)


def test_a_tree_without_room_for_it_is_refused():
    phi = ExactMap(HIST, memory_limit=1)
    phi.divide([np.array([[0, 1], [2, 3]])])
    memory = phi.snapshot()
    assert len(memory["part0_tree"]) == 0
    memory["part0_state"] = np.full(2, nodes.REDUCED_TREE, np.uint8)
    with pytest.raises(ValueError, match="the stored trees do not match these histograms"):
        phi.restore(memory)


def test_equal_histograms_have_no_tree():
    phi = ExactMap(HIST[[0, 0, 1]])
    phi(METRIC)
    memory = phi.snapshot()
    assert memory["state"][0] == nodes.NO_TREE
    memory["state"] = np.full(3, nodes.REDUCED_TREE, np.uint8)
    with pytest.raises(ValueError, match="the stored trees do not match these histograms"):
        phi.restore(memory)
