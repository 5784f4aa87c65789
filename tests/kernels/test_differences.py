"""Norms of chosen differences against all of them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

from cometric.kernels.differences import pair_norms


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, np.inf])
def test_pair_norms_are_norms_of_differences(p):
    rng = np.random.default_rng(0)
    rows = sparse.csr_array(np.where(rng.random((6, 9)) < 0.4, rng.random((6, 9)), 0.0))
    index = np.array([[0, 1], [5, 2], [3, 3]])
    parts = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data)
    dense = rows.toarray()
    expected = [np.linalg.norm(dense[i] - dense[j], p) for i, j in index]
    assert_allclose(pair_norms(*parts, index, p), expected, atol=1e-15)
