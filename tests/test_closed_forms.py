"""Data whose metrics are known in closed form (docs/theory.md, section 4), exact maps only."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cometric import learn
from cometric.core.cones import hilbert_distance
from cometric.core.problem import Problem
from cometric.maps.exact_map import ExactMap
from cometric.maps.norms import norm_matrix
from lifts import block_diagonal

SOLVERS = ["power", "policy"]
every_solver = pytest.mark.parametrize("solver", SOLVERS)
TRIDIAGONAL = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
TWO_BLOCKS = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
SMALL = np.array([[3.0, 1.0, 1.0], [1.0, 2.0, 5.0], [2.0, 1.0, 7.0], [0.0, 4.0, 1.0]])


def discrete(n):
    return 1.0 - np.eye(n)


def histograms(X):
    problem = Problem.from_data(X)
    return problem.samples.hist.toarray(), problem.features.hist.toarray()


@every_solver
@pytest.mark.parametrize("tau", [0.0, 0.01, 1.0])
def test_two_samples_and_two_features(solver, tau):
    X = np.array([[3.0, 1.0], [1.0, 4.0]])
    A, B = histograms(X)
    result = learn(X, 0, tau, solver=solver, tol=1e-14)
    assert_array_equal(result.samples, discrete(2))
    assert_array_equal(result.features, discrete(2))
    lam, mu = (0.5 + tau) * np.abs(B[0] - B[1]).sum(), (0.5 + tau) * np.abs(A[0] - A[1]).sum()
    assert_allclose(result.values, (lam, mu), rtol=1e-13)


@every_solver
@pytest.mark.parametrize("tau", [0.05, 0.5])
@pytest.mark.parametrize(("n", "alpha", "beta"), [(3, 1.0, 0.3), (5, 2.0, 1.0), (4, -0.5, 1.0)])
def test_identity_plus_constant_has_the_discrete_metric(solver, tau, n, alpha, beta):
    X = alpha * np.eye(n) + beta
    result = learn(X, 0, tau, solver=solver, tol=1e-14, start="random", random_state=0)
    assert_allclose(result.samples, discrete(n), rtol=1e-13)
    assert_allclose(result.features, discrete(n), rtol=1e-13)
    assert_allclose(result.values, (1 + 2 * tau) * abs(alpha) / (alpha + n * beta), rtol=1e-13)


@every_solver
@pytest.mark.parametrize("tau", [0.05, 0.3])
def test_blocks_are_at_distance_one_and_the_value_is_one_plus_two_tau_squared(solver, tau):
    sizes = [(3, 2), (2, 2), (4, 3)]
    result = learn(block_diagonal(sizes), 0, tau, solver=solver, tol=1e-14)
    for metric, side in zip(result.metrics, zip(*sizes, strict=True), strict=True):
        block = np.repeat(np.arange(3), side)
        assert_allclose(metric[block[:, None] != block], 1.0, rtol=1e-14)
        assert metric[block[:, None] == block].max() < 1.0
    assert np.prod(result.values) == pytest.approx((1 + 2 * tau) ** 2, rel=1e-13)


@pytest.mark.parametrize("tau", [0.05, 0.2])
def test_two_blocks_know_the_distance_inside_them(tau):
    result = learn(TWO_BLOCKS, 0, tau, solver="power", tol=1e-14)
    assert result.samples[0, 1] == pytest.approx(tau / (1 + 3 * tau), rel=1e-13)
    assert result.features[0, 1] == pytest.approx(tau / (1 + 3 * tau), rel=1e-13)


@pytest.mark.parametrize("tau", [0.05, 0.2])
@pytest.mark.parametrize(("norm", "slope"), [("discrete", 1.0), ("l2", 14**0.5 / 3)])
def test_the_value_of_blocks_depends_on_the_norm(norm, slope, tau):
    result = learn(TWO_BLOCKS, 0, tau, norm=norm, solver="power", tol=1e-14)
    assert np.prod(result.values) == pytest.approx((1 + tau * slope) ** 2, rel=1e-13)


def test_metrics_tend_to_the_norm_like_one_over_tau():
    taus = np.array([10.0, 100.0, 1000.0])
    problem = Problem.from_data(SMALL)
    for side, name in ((problem.samples, "samples"), (problem.features, "features")):
        R = norm_matrix(side.full, "l1")
        found = [getattr(learn(SMALL, 0, tau, solver="power", tol=1e-14), name) for tau in taus]
        gaps = [np.abs(metric - R / R.max()).max() for metric in found]
        slope = np.polyfit(np.log(taus), np.log(gaps), 1)[0]
        assert slope == pytest.approx(-1.0, abs=0.05)
        for tau, metric in zip(taus, found, strict=True):
            assert hilbert_distance(metric, R) <= np.log(1 + 1 / (2 * tau)) + 1e-12


@every_solver
def test_the_tridiagonal_matrix_has_the_line_metric_at_tau_zero(solver):
    result = learn(TRIDIAGONAL, 0, 0.0, solver=solver, tol=1e-14)
    line = np.array([[0.0, 0.5, 1.0], [0.5, 0.0, 0.5], [1.0, 0.5, 0.0]])
    assert_allclose(result.samples, line, rtol=1e-13)
    assert_allclose(result.features, line, rtol=1e-13)
    assert np.prod(result.values) == pytest.approx(4 / 9, rel=1e-13)


def test_every_metric_is_a_singular_vector_of_identity_plus_constant_at_tau_zero():
    metric = np.array([[0.0, 1.0, 0.2], [1.0, 0.0, 0.9], [0.2, 0.9, 0.0]])
    A, B = histograms(np.eye(3) + 0.3)
    assert_allclose(ExactMap(A)(metric), metric / 1.9, rtol=1e-14)
    assert_allclose(ExactMap(B)(metric), metric / 1.9, rtol=1e-14)


def test_the_rate_of_power_iteration_is_attained():
    tau, residuals = 0.1, []
    options = {"solver": "power", "tol": 1e-10, "start": "random", "random_state": 0}
    learn(
        np.eye(5) + 0.3, 0, tau, **options, callback=lambda now, _: residuals.append(now.residual)
    )
    assert residuals[-1] / residuals[-2] == pytest.approx((1 + 2 * tau) ** -2, rel=1e-4)


def test_scaling_single_rows_is_no_invariance():
    options = {"eps": 0, "tau": 0.1, "solver": "power", "tol": 1e-12}
    scaled = SMALL * np.array([[1.0], [100.0], [1.0], [1.0]])
    (A, B), (other_A, other_B) = histograms(SMALL), histograms(scaled)
    assert_allclose(other_A, A, rtol=1e-14)
    assert np.abs(other_B - B).max() > 0.3
    moved = learn(SMALL, **options).features - learn(scaled, **options).features
    assert np.abs(moved).max() > 0.1
