"""Lifts by quadratic forms: the naive twin, laws, and solves with them."""

import numpy as np
import pytest
from scipy import sparse

import cometric as cm
from cometric.transports.quadratic import MahalanobisMap

MAPS = {"mahalanobis": MahalanobisMap, "narrow": lambda hist: MahalanobisMap(hist, 0.05)}
TRANSPORTS = [cm.Mahalanobis(), cm.Mahalanobis(0.1)]


def naive(name, hist, cost):
    """The formula, pair by pair."""
    n, top = len(hist), cost.max()
    distances = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            z = hist[i] - hist[j]
            kernel = np.exp(-cost / top / (0.05 if name == "narrow" else 0.5))
            distances[i, j] = top * np.sqrt(z @ kernel @ z)
    return distances


def some(seed=0, n=9, d=7):
    rng = np.random.default_rng(seed)
    hist = rng.dirichlet(np.full(d, 0.4), n)
    points = rng.random((d, 3))
    return hist, np.linalg.norm(points[:, None] - points, axis=-1)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("seed", range(3))
def test_the_naive_twin(name, seed):
    hist, cost = some(seed)
    expected, phi = naive(name, hist, cost), MAPS[name](sparse.csr_array(hist))
    np.testing.assert_allclose(phi(cost), expected, atol=1e-7)
    index = np.array([[0, 3], [4, 4], [8, 1]])
    np.testing.assert_allclose(
        phi.pairs(cost, index), expected[index[:, 0], index[:, 1]], atol=1e-7
    )
    block = phi.between(cost, slice(1, 4), slice(2, 9))
    np.testing.assert_allclose(block, expected[1:4, 2:9], atol=1e-7)
    assert not phi(0.0 * cost).any()


def test_a_narrow_kernel_gives_euclidean_distances():
    hist, cost = some(8)
    euclidean = np.linalg.norm(hist[:, None] - hist, axis=-1)
    np.testing.assert_allclose(MahalanobisMap(hist, 1e-3)(cost), cost.max() * euclidean, atol=1e-6)


def test_a_wide_kernel_gives_roots_of_the_limit():
    hist, cost = some(9)
    roots = np.sqrt(2e6 * cost.max() * cm.LimitMap(hist)(cost) / 1e12)
    np.testing.assert_allclose(MahalanobisMap(hist, 1e6)(cost), roots, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("transport", TRANSPORTS, ids=str)
def test_learning_converges_to_singular_vectors(transport, tmp_path):
    X = np.random.default_rng(0).poisson(2.0, (16, 11)) + np.eye(16, 11)
    result = cm.learn(X, transport=transport, tau=1e-3, norm="l1", tol=1e-7)
    assert result.converged
    mu = result.values[1]
    A = X / X.sum(axis=1, keepdims=True)
    R = np.abs(A[:, None] - A).sum(axis=-1)
    image = transport.lift(cm.Problem.from_data(X).samples.histograms, None)(result.features)
    np.testing.assert_allclose(image + 1e-3 * R, mu * result.samples, atol=1e-6)
    assert "Diagnosis" in str(result.certify())
    result.save(tmp_path / "r.npz")
    loaded = cm.load(tmp_path / "r.npz")
    assert loaded.parameters.transport == transport
    np.testing.assert_allclose(loaded.transform(X), result.samples, atol=1e-6)
    assert cm.plan(X, transport=transport, tau=1e-3).engine == "matrix products"


def test_given_metrics_have_quadratic_lifts_too():
    hist, cost = some(3, n=8)
    result = cm.learn(hist, features=cost, transport=cm.Mahalanobis())
    expected = naive("mahalanobis", hist / hist.sum(axis=1, keepdims=True), cost)
    np.testing.assert_allclose(result.samples, expected, atol=1e-7)


def test_there_is_no_plan_to_explain():
    result = cm.learn(some()[0], transport=cm.Mahalanobis(), tau=0.1)
    with pytest.raises(NotImplementedError, match="Mahalanobis moves no mass"):
        result.explain(0, 1)
