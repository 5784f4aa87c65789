"""Sweeps for few targets against those for many, and sums of pairs written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

import cometric as cm
from cometric.kernels.differences import pair_squares
from cometric.kernels.scoring import pair_sums


def histograms():
    rng = np.random.default_rng(0)
    hist = rng.dirichlet(np.full(21, 0.3), 25)
    hist[hist < 0.01] = 0.0
    return hist / hist.sum(axis=1, keepdims=True), rng


@pytest.mark.parametrize("rho", [None, 0.5])
@pytest.mark.parametrize("sweeps", [None, 3])
def test_sweeps_are_those_of_the_kernel_for_many_targets(rho, sweeps):
    hist, rng = histograms()
    points = rng.random((21, 2))
    cost = np.linalg.norm(points[:, None] - points, axis=2)
    index = rng.integers(0, 25, (60, 2))
    rank = np.argsort(np.argsort(-(hist > 0).sum(axis=1), kind="stable"))
    swapped = rank[index[:, 0]] > rank[index[:, 1]]
    index[swapped] = index[swapped, ::-1]  # the larger is the source, for many targets
    many, few = (cm.EntropicMap(hist, 0.1, rho=rho, sweeps=sweeps, tol=1e-8) for _ in range(2))
    found = few.under(cost, few=True)(index)
    assert_allclose(found, many.pairs(cost, index), rtol=1e-9, atol=1e-13)
    assert few.error == pytest.approx(many.error, rel=1e-6)


def test_own_terms_that_are_known_give_the_same_divergences():
    hist, rng = histograms()
    points = rng.random((21, 2))
    cost = np.linalg.norm(points[:, None] - points, axis=2)
    index = rng.integers(0, 25, (60, 2))
    phi = cm.EntropicMap(hist, 0.1, tol=1e-10)
    own = phi.own_terms(cost)
    again = cm.EntropicMap(hist, 0.1, tol=1e-10).under(cost, own)
    assert_allclose(again(index), phi.under(cost)(index), rtol=1e-7, atol=1e-12)


def test_sums_of_pairs_are_those_written_out():
    hist, rng = histograms()
    rows = sparse.csr_array(hist)
    two, three = rng.random((2, rows.nnz))
    x, low, z = rng.random((3, 4, 21))
    index = np.array([[0, 5, -1], [1, 1, 24], [3, 2, 7], [9, 8, 6]])
    sums = pair_sums(
        rows.indptr.astype(np.int64), rows.indices, rows.data, two, three, x, low, z, index, 2
    )
    for i, line in enumerate(index):
        for c, j in enumerate(line):
            own = slice(rows.indptr[j], rows.indptr[j + 1]) if j >= 0 else slice(0, 0)
            k = rows.indices[own]
            expected = (
                x[i, k] @ rows.data[own],
                np.minimum(low[i, k], two[own]).sum(),
                z[i, k] @ three[own],
            )
            assert_allclose(sums[:, i, c], expected, atol=1e-14)


def test_squares_of_pairs_are_those_of_dense_rows():
    hist, rng = histograms()
    rows = sparse.csr_array(hist)
    index = rng.integers(0, 25, (40, 2))
    squares = pair_squares(rows.indptr.astype(np.int64), rows.indices, rows.data, index)
    expected = ((hist[index[:, 0]] - hist[index[:, 1]]) ** 2).sum(axis=1)
    assert_allclose(squares, expected, atol=1e-15)
