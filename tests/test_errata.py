"""Errata of the paper and traps for implementers (docs/theory.md, section 7).

Each test shows that the printed statement fails on a small example, and that we do not repeat
it. T1, T2 and T7 concern the limit map, T3 to T6 and T8 the entropic one.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import naive
from cometric import Entropic, EntropicMap, LimitMap, learn
from cometric.core.cones import hilbert_distance, normalize, ratio_bounds
from cometric.core.problem import Problem
from cometric.kernels.geometry import triangle_violation
from cometric.maps.exact_map import ExactMap
from cometric.maps.norms import norm_matrices
from lifts import exact_lifts, regularize


def symmetric(*above):
    """The 3 x 3 matrix with entries 12, 13, 23 and zero diagonal."""
    matrix = np.zeros((3, 3))
    matrix[np.triu_indices(3, 1)] = above
    return matrix + matrix.T


def maps_of(X, tau=0.0):
    problem = Problem.from_data(X)
    return regularize(*exact_lifts(problem), tau, norm_matrices(problem, "l1"))


def residual(phi, cost):
    """Hilbert distance between a cost on the features and its image under a full sweep."""
    return hilbert_distance(phi.to_features(phi.to_samples(cost)), cost)


def test_t01_limit_value_is_lambda_squared():
    A = np.array([[2, 1], [1, 2]]) / 3
    singular = np.linalg.svd(A - A.mean(axis=1, keepdims=True), compute_uv=False)[0]
    value = LimitMap(A)(1.0 - np.eye(2))[0, 1]
    assert_allclose([singular, value], [1 / 3, 1 / 9], rtol=1e-12)
    assert_allclose(value, singular**2)
    assert not np.isclose(value, 2 * singular**2)  # as printed


def test_t02_limit_is_correspondence_analysis_not_pca():
    X = np.array([[3, 1, 1], [1, 2, 1], [0, 1, 4]], float)
    A, B = X / X.sum(axis=1, keepdims=True), (X / X.sum(axis=0)).T

    def ratios(v):
        C = (v[:, None] - v) ** 2
        return (LimitMap(B)(LimitMap(A)(C)) / (C + np.eye(3)))[np.triu_indices(3, 1)]

    axis = np.linalg.svd(A - A.mean(axis=1, keepdims=True))[2][0]
    assert_allclose(ratios(axis), [0.262, 0.149, 0.097], atol=5e-4)  # as printed: no eigenvector
    result = learn(X, eps=np.inf, tau=0)
    assert_allclose(np.prod(result.values), 0.146404, atol=5e-7)
    assert_allclose(ratios(np.sqrt(result.features[0])), 0.146404, atol=5e-7)


@pytest.mark.parametrize(("x", "value"), [(0.5, 0.90502863), (1.0, 0.85844521)])
def test_t03_sinkhorn_divergence_is_not_monotone(x, value):
    hist = np.array([[0.5, 0, 0.5], [0, 1, 0]])
    phi = EntropicMap(hist, 0.5, tol=1e-14)  # the largest cost is 1: a dearer x, a shorter distance
    assert_allclose(phi(symmetric(1.0, x, 1.0))[0, 1], value, atol=1e-8)
    assert not Entropic.monotone


@pytest.mark.parametrize(("eps", "value"), [(5.0, -0.11901848), (1.0, 0.07294693)])
def test_t04_sinkhorn_divergence_can_be_negative_on_a_metric(eps, value):
    part = np.array([0, 0, 1, 1, 1])
    cost = np.where(part[:, None] == part, 2.0, 1.0) * (1 - np.eye(5))
    assert triangle_violation(cost) == 0.0
    phi = EntropicMap(np.array([part == 0, part == 1]) / [[2], [3]], eps, tol=1e-14)
    assert_allclose(phi(cost)[0, 1], value, atol=1e-8)


def test_t05_sinkhorn_dual_value_scales_with_the_cost():
    a, b, cost = np.array([0.75, 0.25]), np.array([0.5, 0.5]), 2 * (1 - np.eye(2))
    assert_allclose(naive.entropic_cost(a, b, cost, 0.5), -0.548493, atol=1e-6)
    K = np.exp(-cost / (0.5 * cost.max()))
    v = np.ones(2)
    for _ in range(1000):
        u = a / (K @ v)
        v = b / (K.T @ u)
    printed = 0.5 * (a @ np.log(u) + b @ np.log(v) - u @ K @ v)
    assert_allclose(printed, -0.774247, atol=1e-6)
    hist = np.array([a, b])
    once, twice = (EntropicMap(hist, 0.5, tol=1e-14)(scale * cost) for scale in (0.5, 1.0))
    assert_allclose(twice, 2 * once, rtol=1e-12)


def test_t06_scaling_updates_fit_an_asymmetric_cost():
    a, b = np.array([0.75, 0.25]), np.array([0.5, 0.5])
    K = np.exp(-np.array([[0.0, 1.0], [0.0, 0.0]]) / 0.5)

    def row_error(first, second):
        v = np.ones(2)
        for _ in range(1000):
            u = a / (first @ v)
            v = b / (second @ u)
        return np.abs(u * (K @ v) - a).sum()

    assert row_error(K, K.T) < 1e-12
    assert_allclose(row_error(K.T, K), 0.5315, atol=5e-5)  # as printed
    with pytest.raises(ValueError, match="not symmetric"):
        EntropicMap(np.array([a, b]), 0.5)(np.array([[0.0, 1.0], [0.0, 0.0]]))


def test_t07_limit_map_stays_symmetric():
    X = np.array([[4, 1, 1, 2], [1, 3, 1, 1], [2, 1, 5, 1], [1, 2, 1, 3]], float)
    A, B = X / X.sum(axis=1, keepdims=True), (X / X.sum(axis=0)).T

    def printed(hist, cost):  # 2 K in place of K + K'
        K = hist @ cost @ hist.T
        return -0.5 * (np.diag(K)[:, None] + np.diag(K) - 2 * K)

    ours = theirs = 1.0 - np.eye(4)
    to_samples, to_features = LimitMap(A), LimitMap(B)
    for _ in range(400):
        ours, _ = normalize(to_features(to_samples(ours)))
        theirs = printed(B, printed(A, theirs))
        theirs = theirs / np.abs(theirs).max()
    assert_array_equal(ours, ours.T)
    assert_allclose(ours, learn(X, eps=np.inf, tau=0).features, atol=1e-10)
    assert np.abs(theirs - theirs.T).max() > 0.1


def test_t08_debiased_error_is_linear_in_eps():
    hist = np.array([[0.5, 0, 0.5], [0, 1, 0]])
    cost = symmetric(1.0, 1.0, 1.0)
    ratios = [(EntropicMap(hist, e, tol=1e-14)(cost)[0, 1] - 1) / e for e in (0.1, 0.05)]
    assert_allclose(ratios[0], -0.346551, atol=1e-6)
    assert_allclose(ratios, -0.5 * np.log(2), atol=1e-4)  # printed: of second order


def test_t09_torus_symmetry_is_that_of_the_gcd():
    n, m = 6, 4
    t = (np.arange(n)[:, None] / n - np.arange(m) / m) % 1.0
    X = np.exp(-(np.minimum(t, 1.0 - t) ** 2) / 0.05)
    result = learn(X, 0, 0.1, solver="power", tol=1e-13)
    for metric, size in ((result.features, m), (result.samples, n)):
        step = size // np.gcd(n, m)
        assert_allclose(np.roll(metric, (step, step), axis=(0, 1)), metric, rtol=1e-12)
    printed = np.roll(result.features, (1, 1), axis=(0, 1))  # C_kl = c_(k - l)
    assert np.abs(printed - result.features).max() == pytest.approx(0.106, abs=5e-4)


def test_t10_a_non_metric_pair_exists_at_tau_zero():
    cost, phi = symmetric(1.0, 10.0, 1.0), maps_of(np.eye(3))
    assert_array_equal(phi.to_samples(cost), cost)
    assert_array_equal(phi.to_features(cost), cost)
    assert triangle_violation(cost) == 8.0
    # With tau > 0 the same start ends at a metric.
    result = learn(np.eye(3), 0, 0.1, solver="power", tol=1e-12, start=(cost, cost))
    assert triangle_violation(result.samples) <= 1e-15
    assert_allclose(result.samples, symmetric(1.0, 1.0, 1.0), rtol=1e-10)


def test_t11_duplicate_columns_are_at_distance_zero():
    X = np.array([[3.0, 1.0, 1.0, 1.0], [1.0, 2.0, 2.0, 5.0], [2.0, 1.0, 1.0, 7.0]])
    with pytest.warns(UserWarning, match="1 column that repeats others"):
        result = learn(X, 0, 0.1, solver="power", tol=1e-12)
    assert result.features[1, 2] == 0.0  # printed: every distance is positive
    others = result.features[np.triu_indices(4, 1)] > 0
    assert others.sum() == 5
    assert np.prod(result.values) == pytest.approx(0.243405, abs=5e-7)


def test_t11_a_positive_duplicate_pair_breaks_the_lower_bound_of_the_value():
    X = np.array([[3.0, 1.0, 1.0, 1.0], [1.0, 2.0, 2.0, 5.0], [2.0, 1.0, 1.0, 7.0]])
    A, B = X / X.sum(axis=1, keepdims=True), X.T / X.T.sum(axis=1, keepdims=True)
    brackets = {}
    for duplicate in (0.0, 5.0):
        cost = 1.0 - np.eye(4)
        cost[1, 2] = cost[2, 1] = duplicate
        image = naive.lift(B, naive.lift(A, cost, 0.1), 0.1)
        live = (np.triu(np.ones((4, 4)), 1) > 0) & (naive.norms(B, 1) > 1e-12)
        brackets[duplicate] = ratio_bounds(
            np.where(live | live.T, image, 0.0), np.where(live | live.T, cost, 0.0)
        )
    assert_allclose(brackets[0.0], (0.1603, 0.2679), atol=5e-5)
    assert_allclose(brackets[5.0], (0.2671, 0.4465), atol=5e-5)
    assert brackets[0.0][0] < 0.243405 < brackets[0.0][1]
    assert not brackets[5.0][0] < 0.243405


def test_t12_no_positive_pair_at_tau_zero():
    phi = maps_of(np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    cost, inner = symmetric(1.0, 1.0, 1.0), []
    for _ in range(3):
        distances = phi.to_samples(cost)
        image = phi.to_features(distances)
        low, high = ratio_bounds(image, cost)
        assert low <= 1 / 9 * (1 + 1e-14)
        assert high >= 1.0 - 1e-14
        inner.append(normalize(distances)[0][0, 1])
        cost = normalize(image)[0]
    assert_allclose(inner, [1 / 3, 1 / 27, 1 / 243], rtol=1e-13)
    # What remains is a pair of pseudo-metrics.
    pseudo = symmetric(0.0, 1.0, 1.0)
    assert_allclose(phi.to_features(phi.to_samples(pseudo)), pseudo, atol=1e-16)


def test_t13_zero_residual_at_tau_zero_proves_nothing():
    X = np.eye(3) + 0.3
    one, other = symmetric(1.0, 1.0, 1.0), symmetric(1.0, 0.2, 0.9)
    assert residual(maps_of(X), one) <= 1e-14
    assert residual(maps_of(X), other) <= 1e-14
    assert hilbert_distance(one, other) == pytest.approx(np.log(5.0))
    assert residual(maps_of(X, tau=0.1), one) <= 1e-14
    assert residual(maps_of(X, tau=0.1), other) == pytest.approx(0.80, abs=5e-3)


def test_t14_division_by_the_maximum_expands():
    d = 100
    one, other = np.ones(d), np.ones(d)
    other += 1e-4 * np.concatenate([[1.0], np.full(d - 1, -1 / (d - 1))])
    before = np.linalg.norm(one - other)
    after = np.linalg.norm(normalize(one)[0] - normalize(other)[0])
    assert after / before == pytest.approx(9.999, abs=5e-3)  # a projection would give 1 at most


def test_t15_positive_tau_needs_no_graph():
    to_samples, _ = exact_lifts(Problem.from_data(np.eye(3)))
    plans = to_samples.plans(1.0 - np.eye(3), np.array([[0, 1], [0, 2], [1, 2]]))
    # Printed: uniqueness where couplings tie all pairs together. Here each pair uses itself only.
    moves = {(p, *pair) for p in range(3) for pair in moved(plans, p)}
    assert moves == {(0, 0, 1), (1, 0, 2), (2, 1, 2)}
    for seed in range(5):
        options = {"solver": "power", "tol": 1e-12, "start": "random", "random_state": seed}
        result = learn(np.eye(3), 0, 0.1, **options)
        assert_allclose(result.samples, symmetric(1.0, 1.0, 1.0), rtol=1e-10)


def moved(plans, p):
    """The unordered pairs of different bins between which plan p moves mass."""
    part = slice(plans.start[p], plans.start[p + 1])
    pairs = zip(plans.source[part].tolist(), plans.target[part].tolist(), strict=True)
    return {(min(k, l), max(k, l)) for k, l in pairs if k != l}


def test_t16_common_mass_cancels_only_for_metrics():
    hist = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    reduced = hist - np.minimum(*hist)
    shortcut, line = symmetric(1.0, 10.0, 1.0), symmetric(1.0, 2.0, 1.0)
    printed = naive.emd(*(2 * reduced), shortcut) / 2
    assert printed == 5.0
    assert ExactMap(hist)(shortcut)[0, 1] == 1.0
    assert ExactMap(hist)(line)[0, 1] == naive.emd(*(2 * reduced), line) / 2 == 1.0


def test_t17_map_is_homogeneous_and_leaves_the_data_alone():
    X = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
    problem, tau = Problem.from_data(X), 0.1
    R = norm_matrices(problem, "l1")
    cost, phi = R.features, maps_of(X, tau)
    assert cost.max() == pytest.approx(4 / 3)
    assert phi.to_samples(cost)[0, 1] == pytest.approx(7 / 12, rel=1e-15)
    unscaled = ExactMap(problem.samples.hist)(cost) + tau * R.samples
    assert unscaled[0, 1] == pytest.approx(5 / 9, rel=1e-15)
    # Nothing is added to the data, nothing is rounded to float32.
    hist = problem.samples.hist.toarray()
    smoothed = (hist + 1e-6) / (1 + 3e-6)
    exact = ExactMap(hist)(cost)[0, 1]
    assert exact == pytest.approx(naive.emd(*hist[:2], cost), rel=1e-15)
    assert abs(naive.emd(*smoothed[:2], cost) / exact - 1) > 1e-6
    assert abs(np.float32(exact) / exact - 1) > 1e-9
