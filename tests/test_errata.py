"""Errata of the paper and traps for implementers (docs/theory.md, section 7).

Each test shows that the printed statement fails on a small example, and that we do not repeat
it. T1 to T8 concern entropic maps and are not here.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import naive
from cometric import learn
from cometric.cones import hilbert_distance, normalize, ratio_bounds
from cometric.kernels.geometry import triangle_violation
from cometric.maps.coupled import exact_lifts, norm_matrices, regularize
from cometric.maps.exact import ExactMap
from cometric.problem import Problem


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
    phi = maps_of(np.eye(3))
    plans = phi.to_samples.plans(1.0 - np.eye(3), np.array([[0, 1], [0, 2], [1, 2]]))
    # Printed: uniqueness where couplings tie all pairs together. Here each pair uses itself only.
    moves = {(p, *pair) for p in range(3) for pair in moved(plans, p)}
    assert moves == {(0, 0, 1), (1, 0, 2), (2, 1, 2)}
    for seed in range(5):
        result = learn(
            np.eye(3), 0, 0.1, solver="power", tol=1e-12, start="random", random_state=seed
        )
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
