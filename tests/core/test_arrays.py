"""Halves of symmetric matrices: taken and put back without an index of all pairs."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cometric.core.arrays import BLOCK, symmetric, upper
from cometric.maps.checking import all_pairs

SIZES = [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5]


@pytest.mark.parametrize("n", SIZES)
def test_halves_and_pairs_are_in_the_order_of_numpy(n):
    values = np.random.default_rng(0).random(n * (n - 1) // 2)
    rows, columns = np.triu_indices(n, 1)
    matrix = symmetric(values, n)
    assert_array_equal(matrix[rows, columns], values)
    assert_array_equal(matrix, matrix.T, strict=True)
    assert not np.diagonal(matrix).any()
    assert_array_equal(upper(matrix), values, strict=True)
    assert_array_equal(all_pairs(n), np.stack([rows, columns], axis=1), strict=True)


def test_halves_take_no_memory_beside_themselves():
    n = 400
    matrix = np.ones((n, n))
    tracemalloc.start()
    half = upper(matrix)
    assert tracemalloc.get_traced_memory()[1] < 1.05 * half.nbytes
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    symmetric(half, n)
    assert tracemalloc.get_traced_memory()[1] - before < 1.05 * matrix.nbytes + 4 * 8 * BLOCK**2
    tracemalloc.stop()
