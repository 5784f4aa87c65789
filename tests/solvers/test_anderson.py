"""Anderson acceleration on maps whose fixed point is known."""

import numpy as np

from cometric.cones import hilbert_distance, normalize
from cometric.solvers.anderson import Anderson


def linear_map(n=12, seed=0):
    """C -> S C S' plus a little: positive, linear, slow to converge; and its eigenvector."""
    rng = np.random.default_rng(seed)
    pairs = n * (n - 1) // 2
    above = np.triu_indices(n, 1)
    M = np.diag(np.linspace(0.9, 1.0, pairs)) + 1e-3 * rng.random((pairs, pairs))

    def step(matrix):
        image = np.zeros((n, n))
        image[above] = M @ matrix[above]
        return image + image.T

    values, vectors = np.linalg.eig(M)
    truth = np.zeros((n, n))
    truth[above] = np.abs(vectors[:, np.argmax(values.real)].real)
    return step, truth + truth.T


def test_it_finds_the_eigenvector_in_far_fewer_steps():
    step, truth = linear_map()
    start = 1 - np.eye(12)
    fixed = Anderson().solve(step, start, 1e-10, 2000)
    assert fixed.residual <= 1e-10
    assert hilbert_distance(fixed.point, truth) < 1e-7
    plain, residual, count = start, np.inf, 0
    while residual > 1e-10:
        image, _ = normalize(step(plain))
        residual, plain, count = hilbert_distance(image, plain), image, count + 1
    assert fixed.steps < count / 3


def test_a_step_that_makes_things_worse_is_not_kept():
    step, _ = linear_map()
    seen = []

    def noisy(matrix):  # every third evaluation lies
        seen.append(matrix)
        image = step(matrix)
        if len(seen) % 3 == 0:
            image = image * np.exp(0.1 * np.sin(np.arange(12)[:, None] + np.arange(12)))
            image = image + image.T
        return image

    start = 1 - np.eye(12)
    fixed = Anderson().solve(noisy, start, 1e-10, 60)
    first = hilbert_distance(step(start), start)
    assert fixed.residual <= first


def test_zeros_end_the_solve_at_the_start():
    start = 1 - np.eye(3)
    dead = start.copy()
    dead[0, 1] = dead[1, 0] = 0.0
    fixed = Anderson().solve(lambda matrix: matrix * dead, start, 1e-10, 50)
    assert fixed.residual == np.inf
    assert (fixed.point == start).all()
