"""Anderson acceleration on maps whose fixed point is known."""

import math

import numpy as np
import pytest

import cometric as cm
from cometric.core.cones import hilbert_distance
from cometric.core.types import Coupled, Metrics, NegativeDistances
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.power import PowerIteration

N = 12
ABOVE = np.triu_indices(N, 1)
START = Metrics(1 - np.eye(N), 1 - np.eye(N))


def linear_map(seed=0):
    """A positive linear map that is slow to iterate, beside the identity; its eigenvector."""
    rng = np.random.default_rng(seed)
    pairs = N * (N - 1) // 2
    M = np.diag(np.linspace(0.9, 1.0, pairs)) + 1e-3 * rng.random((pairs, pairs))

    def lift(matrix):
        image = np.zeros((N, N))
        image[ABOVE] = M @ matrix[ABOVE]
        return image + image.T

    values, vectors = np.linalg.eig(M)
    truth = np.zeros((N, N))
    truth[ABOVE] = np.abs(vectors[:, np.argmax(values.real)].real)
    return Coupled(lift, lambda matrix: matrix), truth + truth.T


def steps_until(solver, phi, tol, limit=5000, start=START):
    state = solver.init(phi, start)
    while state.residual > tol and state.sweeps < limit:
        state = solver.step(phi, state)
    return state


def test_it_finds_the_eigenvector_in_far_fewer_steps():
    phi, truth = linear_map()
    fast = steps_until(AndersonIteration(), phi, 1e-10)
    plain = steps_until(PowerIteration(), phi, 1e-10)
    assert hilbert_distance(fast.metrics.samples, truth) < 1e-7
    assert fast.sweeps < plain.sweeps / 3


def off_the_path(phi, answer):
    """The map ``phi`` where the power iteration from START asks, ``answer`` anywhere else."""
    visited, residual = {START.samples.tobytes()}, np.inf

    def lift(matrix):
        nonlocal residual
        if matrix.tobytes() not in visited:
            return answer(matrix, residual)
        image = phi.to_samples(matrix)
        visited.add((image / image.max()).tobytes())
        residual = hilbert_distance(image, matrix)
        return image

    return Coupled(lift, phi.to_features)


def raise_negative(matrix, residual):
    raise NegativeDistances("some are negative")


RIPPLE = np.sin(np.arange(N)[:, None] + np.arange(N))
ONE_PAIR = np.eye(N, k=N - 1) + np.eye(N, k=1 - N)
ANSWERS = {
    "far away": lambda matrix, residual: matrix * np.exp(RIPPLE),
    "a little better": lambda matrix, residual: matrix * np.exp(0.99 * residual * ONE_PAIR),
    "not a divergence": raise_negative,
    "zero": lambda matrix, residual: matrix * (np.arange(N)[:, None] + np.arange(N) > 1),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_at_worst_it_is_power_iteration(answer):
    """The bound of the docstring, on a contraction that fools every extrapolation."""
    phi, _ = linear_map()
    plain = steps_until(PowerIteration(), phi, 1e-6)
    fooled = steps_until(AndersonIteration(), off_the_path(phi, ANSWERS[answer]), 1e-6)
    assert fooled.residual <= 1e-6
    assert hilbert_distance(fooled.metrics.samples, plain.metrics.samples) < 1e-12
    failures = math.sqrt(plain.sweeps / 2) + 1
    most = plain.sweeps + 10 * failures + 200 * math.log(0.1 / 1e-6)
    assert plain.sweeps < fooled.sweeps <= most
    assert fooled.sweeps <= 1.4 * plain.sweeps


def flow(speed):
    """A map on three items that moves s = log D_01 / D_02 by ``speed(s)``, and halves log D_12."""

    def lift(D):
        s, rest = np.log(D[0, 1] / D[0, 2]), np.log(D[1, 2] / D[0, 2])
        return triangle(np.clip(s + speed(s), -3.0, 3.0), 0.5 * rest)

    return Coupled(lift, lambda D: D)


def triangle(s, rest):
    D = np.zeros((3, 3))
    D[0, 1], D[0, 2], D[1, 2] = np.exp(s), 1.0, np.exp(rest)
    return D + D.T


def place(state):
    """The s of :func:`flow` where a solver stands."""
    return np.log(state.metrics.samples[0, 1] / state.metrics.samples[0, 2])


@pytest.mark.parametrize("least", [0.05, 0.02, 0.002])
def test_it_passes_regions_of_small_steps_without_a_fixed_point(least):
    """Least squares alone return to s = 0, where the step is smallest: it took 1688 of them."""
    phi = flow(lambda s: (least + s * s) * (2.0 - s) / 8.0)
    start = Metrics(triangle(-1.0, 0.3), triangle(-1.0, 0.3))
    plain = steps_until(PowerIteration(), phi, 1e-8, start=start)
    fast = steps_until(AndersonIteration(), phi, 1e-8, start=start)
    assert np.isclose(place(fast), 2.0, atol=1e-6)
    assert fast.sweeps < plain.sweeps


@pytest.mark.parametrize("s", [0.1, -0.02])
def test_a_fixed_point_that_power_iteration_leaves_does_not_attract_it(s):
    phi = flow(lambda s: 0.1 * s * (1.0 - s * s))
    start = Metrics(triangle(s, 1e-4), triangle(s, 1e-4))
    plain = steps_until(PowerIteration(), phi, 1e-8, start=start)
    fast = steps_until(AndersonIteration(), phi, 1e-8, start=start)
    assert np.isclose(place(fast), np.sign(s), atol=1e-6)
    assert fast.sweeps < plain.sweeps


@pytest.mark.parametrize("seed", [0, 4])
def test_counts_beside_a_diagonal_are_learned(seed):
    """Without the safeguards the residual stayed at 0.03 for ever."""
    n, m = 80, 60
    rng = np.random.default_rng(seed)
    X = rng.poisson(0.4, (n, m)) + np.eye(n, m) + (np.arange(n)[:, None] % m == np.arange(m))
    assert cm.learn(X, tau=1e-3, tol=1e-6, max_iter=100).converged


def test_zeros_are_reported_as_an_infinite_residual():
    dead = 1 - np.eye(N)
    dead[0, 1] = dead[1, 0] = 0.0
    phi = Coupled(lambda matrix: matrix * dead, lambda matrix: matrix)
    solver = AndersonIteration()
    state = solver.step(phi, solver.init(phi, START))
    assert state.residual == np.inf
    assert state.point is None


def test_two_equal_steps_do_not_divide_by_zero():
    phi = flow(lambda s: 0.05 if s < 1.0 else 0.0)
    start = Metrics(triangle(0.0, 0.0), triangle(0.0, 0.0))
    assert np.isclose(place(steps_until(AndersonIteration(), phi, 1e-8, 100, start)), 1.0, atol=0.1)
