"""Anderson acceleration on maps whose fixed point is known."""

import numpy as np

from cometric.cones import hilbert_distance
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.power import PowerIteration
from cometric.types import Coupled, Metrics

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


def steps_until(solver, phi, tol, limit=5000):
    state = solver.init(phi, START)
    while state.residual > tol and state.sweeps < limit:
        state = solver.step(phi, state)
    return state


def test_it_finds_the_eigenvector_in_far_fewer_steps():
    phi, truth = linear_map()
    fast = steps_until(AndersonIteration(), phi, 1e-10)
    plain = steps_until(PowerIteration(), phi, 1e-10)
    assert hilbert_distance(fast.metrics.samples, truth) < 1e-7
    assert fast.sweeps < plain.sweeps / 3


def test_extrapolations_that_fail_leave_the_power_iteration():
    phi, _ = linear_map()
    returned = [START.samples]

    def lying(matrix):  # true where the plain iteration asks, far off anywhere else
        image = phi.to_samples(matrix)
        if not np.array_equal(matrix, returned[-1]):
            bend = np.exp(np.sin(np.arange(N)[:, None] + np.arange(N)))
            return image * (bend + bend.T)
        returned.append(image / image.max())
        return image

    solver = AndersonIteration(begin=np.inf)
    state = solver.init(phi, START)
    for _ in range(30):  # two plain steps, then one failure, again and again
        state = solver.step(Coupled(lying, phi.to_features), state)
    plain = steps_until(PowerIteration(), phi, 0.0, limit=20)
    assert np.isclose(state.residual, plain.residual)


def test_zeros_are_reported_as_an_infinite_residual():
    dead = 1 - np.eye(N)
    dead[0, 1] = dead[1, 0] = 0.0
    phi = Coupled(lambda matrix: matrix * dead, lambda matrix: matrix)
    solver = AndersonIteration()
    state = solver.step(phi, solver.init(phi, START))
    assert state.residual == np.inf
    assert state.point is None
