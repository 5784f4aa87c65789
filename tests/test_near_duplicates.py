"""Laws of data with nearly equal rows: an answer is right to its tolerance, or not "converged".

A new reference, or a new map of divergences, joins by an entry in `near_duplicates.py`.
"""

import numpy as np
import pytest
from mpmath import mp
from numpy.testing import assert_allclose, assert_array_equal

import cometric as cm
import near_duplicates as near
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.norms import norm_matrix
from cometric.transports.quadratic import MahalanobisMap
from fifty_digits import divergence


@pytest.mark.parametrize("norm", near.NORMS)
@pytest.mark.parametrize("kind", near.MAPS)
def test_distances_are_right_or_not_called_converged(kind, norm):
    number = list(near.MAPS).index(kind) * len(near.NORMS) + near.NORMS.index(norm)
    if (kind, norm) == ("entropic", "local"):
        assert near.check(331, kind, norm) == ""  # small scalings: a difference of 7e-6 is large
    for seed in (number,) if kind == "entropic" else (number, number + 1000):
        said = near.check(seed, kind, norm)
        assert said in ("", "repeats"), said
    if (kind, norm) == ("limit", "local"):
        assert near.check(247, kind, norm) == "negative"
        assert near.check(400454, kind, norm) == ""  # features change more than samples
    if (kind, norm) == ("mahalanobis", "local"):
        assert near.check(200007, kind, norm) == ""  # nearly equal features on nearly equal samples
        assert near.check(400847, kind, norm) == ""  # two nearly constant features


@pytest.mark.parametrize("norm", near.NORMS)
def test_references_of_near_duplicates_are_accurate(norm):
    for seed in range(4):
        X, _ = near.random_case(seed)
        with mp.workdps(near.DIGITS):
            sides = near.histograms(X), near.histograms(X.T)
            for hist, of in zip(sides, ("samples", "features"), strict=True):
                R = norm_matrix(hist.astype(float), norm, of=of)
                assert_allclose(R, near.reference(norm, hist, of), rtol=1e-5)


@pytest.mark.parametrize("eps", [0.05, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("gap", [5e-6, 1e-6, 1e-9])
def test_divergences_of_near_duplicates_are_accurate(eps, gap):
    rng = np.random.default_rng(0)
    points = rng.random((5, 2))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    a = rng.dirichlet(np.ones(5))
    a[4] = 0.0  # an empty bin in one of the two
    b = a * (1.0 + gap * rng.standard_normal(5))
    b[4] = 0.1 * gap
    hist = np.array([a / a.sum(), b / b.sum(), np.full(5, 0.2)])
    truth = float(divergence(*hist[:2], cost, eps))
    phi = EntropicMap(hist, eps)
    assert_allclose(phi(cost)[0, 1], truth, rtol=1e-4)
    assert_allclose(phi.pairs(cost, np.array([[1, 0], [0, 2]]))[0], truth, rtol=1e-4)
    assert_array_equal(phi(0.0 * cost), 0.0)


@pytest.mark.parametrize(("eps", "rho"), [(0.1, 1.0), (1.0, 0.3), (0.1, 10.0)])
@pytest.mark.parametrize("heavier", [False, True])
def test_unbalanced_divergences_are_of_second_order(eps, rho, heavier):
    """Divided by the square of the difference, they are the same at any scale."""
    rng = np.random.default_rng(1)
    points = rng.random((5, 2))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    a = rng.dirichlet(np.ones(5))
    z = a * rng.standard_normal(5)
    z -= 0.0 if heavier else a * z.sum()
    large, small = (
        EntropicMap(np.array([a, a + t * z]), eps, rho=rho, tol=1e-15)(cost)[0, 1] / t**2
        for t in (1e-3, 3e-6)
    )
    assert_allclose(small, large, rtol=2e-3)


def test_small_eps_leaves_divergences_to_the_sweeps():
    """They are then linear in the difference, and the equations of the expansion singular."""
    a, gap = np.array([0.5, 0.3, 0.2]), 1e-6
    hist = np.array([a, a + gap * np.array([1.0, -1.0, 0.0])])
    phi = EntropicMap(hist, 1e-2, max_sweeps=100)
    assert 0.0 < phi(1.0 - np.eye(3))[0, 1] <= gap
    assert phi.error > phi.accuracy.tol


@pytest.mark.parametrize("kind", ["limit", "mahalanobis"])
@pytest.mark.parametrize("case", ["near", "heavy"])
def test_quadratic_forms_are_accurate(kind, case):
    rng = np.random.default_rng(0)
    X = rng.gamma(1.0, 1.0, (10, 7))
    if case == "near":
        X[5] = X[4] * (1.0 + 1e-7 * rng.standard_normal(7))
    else:
        X[:, 0] += 1e5
    points = rng.random((7, 2))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    make = {"limit": cm.LimitMap, "mahalanobis": MahalanobisMap}[kind]
    phi = make(X / X.sum(axis=1, keepdims=True))
    with mp.workdps(near.DIGITS):
        exact = near.differences(near.histograms(X))
    want = near.quadratic(kind, cost, exact)
    if kind == "mahalanobis":
        want *= cost.max()
    assert_allclose(phi(cost), want, rtol=1e-8)
    assert_array_equal(phi(cost), phi(cost).T)
    index = np.array([[4, 5], [0, 1], [3, 3]])
    assert_allclose(phi.pairs(cost, index), want[tuple(index.T)], rtol=1e-8)
    assert_allclose(phi.between(cost, slice(2, 6), slice(4, 9)), want[2:6, 4:9], rtol=1e-8)


def test_the_certificate_of_the_limit_sees_near_duplicates():
    rng = np.random.default_rng(0)
    X = rng.gamma(1.0, 1.0, (10, 8))
    X[5] = X[4] * (1.0 + 1e-9 * rng.standard_normal(8))
    result = cm.learn(X, transport=cm.Limit(), tau=0)
    assert result.converged
    assert max(result.certify().residuals) < 1e-5


def test_maps_that_are_not_monotone_converge_on_both_sides():
    X, _ = near.random_case(400454)
    result = cm.learn(X, transport=cm.Limit(), restart=0.5)
    assert result.converged
    assert max(result.certify().residuals) <= 1e-3


@pytest.mark.parametrize("seed", [1, 9])
def test_a_tolerance_below_the_accuracy_of_matrix_products_is_reached(seed):
    rng = np.random.default_rng(seed)
    X = rng.gamma(1.0, 1.0, (60, 40))
    for i in range(10):
        X[i] = X[i + 20] * np.abs(1 + 10.0 ** -rng.uniform(1, 4) * rng.standard_normal(40))
    for k in range(8):
        X[:, k] = X[:, k + 20] * np.abs(1 + 10.0 ** -rng.uniform(1, 4) * rng.standard_normal(60))
    result = cm.learn(X, tau=0.1, norm="l1", transport=cm.Mahalanobis(), tol=1e-12, max_iter=100)
    assert result.converged


@pytest.mark.parametrize("spread", [1e-6, 1e-9, 1e-11])
def test_references_of_nearly_constant_features_are_accurate(spread):
    X, _ = near.random_case(400847)
    X[:, 3] = 3.0 * (1.0 + spread * np.random.default_rng(0).standard_normal(len(X)))
    with mp.workdps(near.DIGITS):
        hist = near.histograms(X.T)
        want = near.reference("local", hist, "features")
    assert_allclose(norm_matrix(hist.astype(float), "local", of="features"), want, rtol=1e-4)


@pytest.mark.parametrize("norm", near.NORMS)
@pytest.mark.parametrize("eps", [0.0, 0.1, np.inf])
@pytest.mark.filterwarnings("ignore:`X` has:UserWarning")
def test_a_learned_sample_placed_again_is_at_zero(norm, eps):
    rng = np.random.default_rng(0)
    X = rng.poisson(1.0, (12, 9)) + 1.0 * (rng.random((12, 9)) < 0.1)
    X[:, 0] += 1.0
    X[3] = 2 * X[5]
    result = cm.learn(X, restart=0.5, norm=norm, eps=eps)
    again = result.transform(X)
    assert_array_equal(np.diag(again), 0.0)
    assert again[3, 5] == again[5, 3] == 0.0
    off = ~np.eye(12, dtype=bool)
    off[3, 5] = off[5, 3] = False
    assert (again[off] > 0.0).all()


@pytest.mark.parametrize("norm", ["local", "local-0.2"])
@pytest.mark.parametrize("gap", [4e-12, 1e-11, 1e-8])
def test_many_near_duplicates_placed_again_keep_their_distances(norm, gap):
    """Different by less than 1e-12 in a view, or with more than ten that are nearly at 0."""
    rng = np.random.default_rng(0)
    X = rng.poisson(2.0, (30, 12)) + 1.0
    X[1:15] = X[0] * (1.0 + gap * rng.standard_normal((14, 12)))
    result = cm.learn(X, transport=cm.Limit(), restart=0.5, norm=norm)
    assert result.problem.merged == (0, 0)
    assert_allclose(result.transform(X), result.samples, rtol=1e-3, atol=1e-20)
    assert_allclose(result.transform(X[9:12]), result.samples[9:12], rtol=1e-3, atol=1e-20)
    assert_allclose(result.transform(X[[2]]), result.samples[[2]], rtol=1e-3, atol=1e-20)


def test_no_distance_touches_the_boundary_where_a_reference_is_added():
    X, _ = near.random_case(2)
    result = cm.learn(X)
    assert result.converged
    smallest = min(metric[np.triu_indices(len(metric), 1)].min() for metric in result.metrics)
    assert 0.0 < smallest < 1e-10
