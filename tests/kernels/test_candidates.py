"""The lowest bounds of every row against all bounds, written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

from cometric.kernels.candidates import lowest

FIRST, ROWS = 3, 19  # more rows than lanes, and a part of the last lanes


@pytest.fixture(scope="module")
def parts():
    rng = np.random.default_rng(0)
    hist = rng.dirichlet(np.full(20, 0.2), 40)
    hist[hist < 0.01] = 0.0
    hist /= hist.sum(axis=1, keepdims=True)
    return {
        "hist": hist,
        "p": rng.random(ROWS),
        "q": rng.random(40) - 0.5,
        "images": rng.random((ROWS, 20)) - 0.5,
        "means": rng.random((40, 3)),
    }


def naive(hist, p, q, images, means, share):
    bounds = np.full((ROWS, 40), np.inf)
    for row in range(ROWS):
        i = FIRST + row
        for j in range(40):
            if j != i:
                gap = np.abs(means[i] - means[j]).max(initial=0.0)
                l1 = np.abs(hist[i] - hist[j]).sum()
                bound = p[row] + q[j] - images[row] @ hist[j] + gap + share * l1
                bounds[row, j] = max(0.0, bound)
    return bounds


@pytest.mark.parametrize("share", [0.0, 0.7])
@pytest.mark.parametrize("references", [0, 3])
@pytest.mark.parametrize("count", [1, 7, 39])
def test_the_lowest_of_all_bounds_in_their_order(parts, share, references, count):
    parts = parts | {"means": np.ascontiguousarray(parts["means"][:, :references])}
    expected = naive(**parts, share=share)
    rows = sparse.csr_array(parts["hist"])
    csr = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
    others = (parts["p"], parts["q"], parts["images"], parts["means"])
    bounds, index = lowest(*csr, FIRST, *others, share, np.empty((0, 0)), count, 2)
    assert_allclose(bounds, np.sort(expected, axis=1)[:, :count], atol=1e-14)
    assert_allclose(np.take_along_axis(expected, index, axis=1), bounds, atol=1e-14)
    assert all(len(set(row)) == count for row in index.tolist())
