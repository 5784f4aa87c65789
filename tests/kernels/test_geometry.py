"""Norms of differences and the triangle inequality against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import naive
from cometric.kernels import geometry
from strategies import costs, histograms, metrics


def pairwise_norms(hist, p):
    rows = sparse.csr_array(hist)
    return geometry.pairwise_norms(rows.indptr.astype(np.int64), rows.indices, rows.data, float(p))


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, np.inf])
@given(hist=st.integers(2, 8).flatmap(lambda d: histograms(4, d)))
def test_norms_are_those_of_numpy(p, hist):
    norms = pairwise_norms(hist, p)
    assert_allclose(norms, naive.norms(hist, p), rtol=1e-13, atol=1e-16)
    assert_array_equal(norms, norms.T)
    assert_array_equal(np.diagonal(norms), 0.0)


@given(
    hist=arrays(
        np.int64, st.tuples(st.integers(2, 5), st.integers(1, 7)), elements=st.integers(0, 2**40)
    ),
    top=st.booleans(),
)
def test_l1_norms_of_integers_are_exact(hist, top):
    if top:  # two histograms without common bins have the distance 2^63
        hist[:, :] = 0
        hist[0, 0], hist[1, -1] = 2**62, 2**62
    rows = sparse.csr_array(hist)
    parts = rows.indptr.astype(np.int64), rows.indices, rows.data
    if rows.nnz == 0:
        return
    exact = [
        [float(sum(abs(int(x) - int(y)) for x, y in zip(a, b, strict=True))) for b in hist]
        for a in hist
    ]
    assert_array_equal(geometry.pairwise_norms(*parts, 1.0), exact)
    index = np.argwhere(np.ones((len(hist), len(hist)), bool))
    assert_array_equal(geometry.pair_norms(*parts, index, 1.0), np.ravel(exact))


@given(cost=st.integers(2, 7).flatmap(costs))
def test_the_triangle_violation_is_the_worst_of_all_triples(cost):
    assert geometry.triangle_violation(cost) == naive.triangle_violation(cost)


@given(metric=st.integers(2, 7).flatmap(metrics))
def test_a_metric_violates_no_triangle(metric):
    assert geometry.triangle_violation(metric) <= 1e-15 * metric.max()


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, np.inf])
def test_pair_norms_are_norms_of_differences(p):
    rng = np.random.default_rng(0)
    rows = sparse.csr_array(np.where(rng.random((6, 9)) < 0.4, rng.random((6, 9)), 0.0))
    index = np.array([[0, 1], [5, 2], [3, 3]])
    parts = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data)
    dense = rows.toarray()
    expected = [np.linalg.norm(dense[i] - dense[j], p) for i, j in index]
    assert_allclose(geometry.pair_norms(*parts, index, p), expected, atol=1e-15)


def test_squares_of_pairs_are_those_of_dense_rows():
    rng = np.random.default_rng(0)
    hist = np.where(rng.random((25, 21)) < 0.4, rng.random((25, 21)), 0.0)
    rows, index = sparse.csr_array(hist), rng.integers(0, 25, (40, 2))
    squares = geometry.pair_squares(rows.indptr.astype(np.int64), rows.indices, rows.data, index)
    expected = ((hist[index[:, 0]] - hist[index[:, 1]]) ** 2).sum(axis=1)
    assert_allclose(squares, expected, atol=1e-14)
