"""The limit map and its closed form, correspondence analysis."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cometric as cm

X = np.array([[4, 1, 1, 2], [1, 3, 1, 1], [2, 1, 5, 1], [1, 2, 1, 3]], float)


def test_it_is_the_quadratic_form():
    A = X / X.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(0)
    C = np.triu(rng.random((4, 4)), 1)
    C = C + C.T
    D = cm.LimitMap(A)(C)
    change = A[1] - A[3]
    assert_allclose(D[1, 3], -0.5 * change @ C @ change, rtol=1e-12)
    assert_array_equal(D, D.T)
    index = np.array([[1, 3], [2, 0]])
    assert_allclose(cm.LimitMap(A).pairs(C, index), D[tuple(index.T)], rtol=1e-12)


def test_many_pairs_take_little_memory():
    rng = np.random.default_rng(0)
    hist = rng.dirichlet(np.full(200, 0.1), size=60)
    points = rng.random((200, 2))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    phi = cm.LimitMap(hist)
    index = rng.integers(0, 60, (20_000, 2))
    tracemalloc.start()
    found = phi.pairs(cost, index)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000 * 200 * 8  # of one dense row for each pair
    assert_allclose(found, phi(cost)[tuple(index.T)], atol=1e-15)
    assert_array_equal(phi.pairs(cost, [[7, 7]]), 0.0)


def test_learning_at_infinity_is_correspondence_analysis():
    result = cm.learn(X, eps=np.inf, tau=0)
    rows, columns = X.sum(axis=1), X.sum(axis=0)
    s = np.linalg.svd(X / np.sqrt(np.outer(rows, columns)), compute_uv=False)
    assert result.converged
    assert_allclose(np.prod(result.values), s[1] ** 4, rtol=1e-12)
    assert result.residual < 1e-10
    power = cm.learn(X, eps=np.inf, tau=0, solver="power", tol=1e-13)
    assert_allclose(result.features, power.features, atol=1e-10)
    assert_allclose(result.samples, power.samples, atol=1e-10)


def test_an_axis_that_is_not_determined_is_called_so():
    with pytest.warns(cm.ConvergenceWarning, match="not unique"):
        result = cm.learn(np.eye(3) + 0.3, eps=np.inf, tau=0)
    assert result.status is cm.Status.NON_UNIQUE


def test_the_closed_form_keeps_its_digits_where_distances_are_small():
    data = np.random.default_rng(0).gamma(0.5, 1.0, (300, 200))
    result = cm.learn(data, eps=np.inf, tau=0)  # smallest distance 6e-12 of the largest
    assert result.converged
    assert result.residual <= 1e-6


def test_blocks_whose_inner_distances_vanish_are_no_success():
    data = np.kron(np.eye(2), X[:3])
    with pytest.warns(cm.ConvergenceWarning, match="on the boundary.*Pass `tau` > 0"):
        result = cm.learn(data, eps=np.inf, tau=0)
    assert result.status is cm.Status.BOUNDARY


@pytest.mark.parametrize("eps", [0.1, 5.0, np.inf])
@pytest.mark.parametrize("solver", ["power", "anderson"])
def test_more_than_two_blocks_have_no_unique_solution(eps, solver):
    with pytest.warns(cm.ConvergenceWarning, match="not unique.*Pass `tau` > 0"):
        result = cm.learn(np.eye(4), eps, 0, solver=solver, start="random", random_state=0)
    assert result.status is cm.Status.NON_UNIQUE


def test_the_torus_gives_a_cosine():
    t = (np.arange(12)[:, None] - np.arange(12)) % 12
    h = np.exp(-((np.minimum(t, 12 - t) / 12) ** 2) / 0.02)
    result = cm.learn(h, eps=np.inf, tau=0, solver="power", tol=1e-12, start=1.0 - np.eye(12))
    known = 1 - np.cos(2 * np.pi * t / 12)
    assert_allclose(result.features, known / known.max(), atol=1e-9)
    first = np.abs(np.fft.fft(h[:, 0] / h[:, 0].sum())[1])
    assert_allclose(np.prod(result.values), first**4, rtol=1e-9)
