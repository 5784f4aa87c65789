"""Sweeps of single pairs against those of all targets of a source."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm


@pytest.fixture
def given():
    """Histograms, a metric between their bins, and some pairs of them."""
    rng = np.random.default_rng(0)
    hist = rng.dirichlet(np.full(21, 0.3), 25)
    hist[hist < 0.01] = 0.0
    points = rng.random((21, 2))
    cost = np.linalg.norm(points[:, None] - points, axis=2)
    return hist / hist.sum(axis=1, keepdims=True), cost, rng.integers(0, 25, (60, 2))


@pytest.mark.parametrize("rho", [None, 0.5])
@pytest.mark.parametrize("sweeps", [None, 3])
def test_sweeps_are_those_of_the_kernel_for_many_targets(given, rho, sweeps):
    hist, cost, index = given
    rank = np.argsort(np.argsort(-(hist > 0).sum(axis=1), kind="stable"))
    swapped = rank[index[:, 0]] > rank[index[:, 1]]
    index[swapped] = index[swapped, ::-1]  # the larger is the source, for many targets
    many, few = (cm.EntropicMap(hist, 0.1, rho=rho, sweeps=sweeps, tol=1e-8) for _ in range(2))
    found = few.under(cost, few=True)(index)
    assert_allclose(found, many.pairs(cost, index), rtol=1e-9, atol=1e-13)
    assert few.error == pytest.approx(many.error, rel=1e-6)


def test_own_terms_that_are_known_give_the_same_divergences(given):
    hist, cost, index = given
    phi = cm.EntropicMap(hist, 0.1, tol=1e-10)
    own = phi.own_terms(cost)
    again = cm.EntropicMap(hist, 0.1, tol=1e-10).under(cost, own)
    assert_allclose(again(index), phi.under(cost)(index), rtol=1e-7, atol=1e-12)
