"""Nearest neighbors against a plain sort."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from cometric.core.nearest import (
    check_neighborhood,
    check_neighbors,
    default_neighbors,
    nearest,
    nearest_stored,
    nearest_to,
    neighbor_matrix,
)

rng = np.random.default_rng(0)
TIES = rng.integers(0, 4, (12, 12)).astype(float)
TIES = TIES + TIES.T
np.fill_diagonal(TIES, 0.0)


def naive(row, k, item=None):
    return sorted((j for j in range(len(row)) if j != item), key=lambda j: (row[j], j))[:k]


@pytest.mark.parametrize("k", [1, 3, 11])
def test_ties_go_to_the_lower_number(k):
    before = TIES.copy()
    index, near = nearest(TIES, k, skip_self=True)
    assert_array_equal(index, [naive(row, k, i) for i, row in enumerate(TIES)])
    assert_array_equal(near, np.take_along_axis(TIES, index, axis=1))
    assert_array_equal(nearest(TIES[:5], k)[0], [naive(row, k) for row in TIES[:5]])
    assert_array_equal(nearest_to(TIES[0], 12), naive(TIES[0], 12))
    assert_array_equal(TIES, before)


def test_nan_is_farthest():
    row = np.array([np.nan, 2.0, np.nan, 1.0, 0.0])
    assert_array_equal(nearest_to(row, 3, 4), [3, 1, 0])
    assert_array_equal(nearest_to(np.full(3, np.nan), 2, 1), [0, 2])
    assert np.isnan(row[0])
    assert row[4] == 0.0


def test_a_graph_holds_the_neighbors_and_gives_them_back():
    index, near = nearest(TIES, 4, skip_self=True)
    graph = neighbor_matrix(index, near, 12)
    assert isinstance(graph, sparse.csr_matrix)
    assert graph.nnz == 48
    for k in (2, 4):
        again = nearest_stored(graph, k)
        assert_array_equal(again[0], index[:, :k])
        assert_array_equal(again[1], near[:, :k])


@pytest.mark.parametrize("wrong", [0, 6, 2.0, True, "3", None])
def test_numbers_of_neighbors_that_do_not_exist_are_refused(wrong):
    check_neighbors(5, 5)
    check_neighborhood(5, 5, "cell")
    words = "`n_neighbors` is .*; pass a whole number from "
    with pytest.raises(ValueError, match=f"{words}1 to 5"):
        check_neighbors(wrong, 5)
    with pytest.raises(ValueError, match=f"{words}2 to 5, the cell itself included"):
        check_neighborhood(wrong or 1, 5, "cell")
    with pytest.raises(ValueError, match="`n_neighbors` is 15, the default; pass .* 1 to 5"):
        check_neighbors(15, 5)
    with pytest.raises(ValueError, match="`n_neighbors` is 15, the default; pass .* 2 to 5"):
        check_neighborhood(15, 5, "cell")


def test_the_default_is_15_or_all_of_fewer():
    assert [default_neighbors(None, count) for count in (1, 5, 15, 16)] == [1, 5, 15, 15]
    assert default_neighbors(7, 3) == 7


@pytest.mark.parametrize("dtype", [int, np.uint8, np.float32])
def test_distances_may_be_integers(dtype):
    expected = nearest(TIES, 3, skip_self=True)
    for found, right in zip(nearest(TIES.astype(dtype), 3, skip_self=True), expected, strict=True):
        assert_array_equal(found, right)
