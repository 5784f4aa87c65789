"""Norms of differences and the triangle inequality against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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


@given(cost=st.integers(2, 7).flatmap(costs))
def test_the_triangle_violation_is_the_worst_of_all_triples(cost):
    assert geometry.triangle_violation(cost) == naive.triangle_violation(cost)


@given(metric=st.integers(2, 7).flatmap(metrics))
def test_a_metric_violates_no_triangle(metric):
    assert geometry.triangle_violation(metric) <= 1e-15 * metric.max()


def test_a_shortcut_is_found_with_its_gain():
    cost = np.array([[0.0, 1.0, 10.0], [1.0, 0.0, 1.0], [10.0, 1.0, 0.0]])
    assert geometry.triangle_violation(cost) == 8.0
