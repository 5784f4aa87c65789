"""Power iteration: one step, what it reports, and how fast it goes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cometric.core.cones import hilbert_distance
from cometric.core.problem import Problem
from cometric.core.types import Metrics
from cometric.maps.norms import norm_matrices
from cometric.solvers.power import PowerIteration
from lifts import exact_lifts, regularize

X = np.array([[3.0, 1.0, 1.0], [1.0, 2.0, 5.0], [2.0, 1.0, 7.0], [0.0, 4.0, 1.0]])
TAU = 0.1
START = Metrics(1.0 - np.eye(4), 1.0 - np.eye(3))


@pytest.fixture
def phi():
    problem = Problem.from_data(X)
    return regularize(*exact_lifts(problem), TAU, norm_matrices(problem, "l1"))


def test_a_step_reports_the_residual_and_the_bracket_of_its_start(phi):
    begun = PowerIteration().init(phi, START)
    assert (begun.residual, begun.bracket, begun.sweeps) == (np.inf, (0.0, np.inf), 0)
    now = PowerIteration().step(phi, begun)
    image = phi.to_samples(phi.to_features(START.samples))
    off = ~np.eye(4, dtype=bool)
    ratios = image[off] / START.samples[off]
    assert_allclose(now.bracket, (ratios.min(), ratios.max()), rtol=1e-13)
    assert now.residual == pytest.approx(hilbert_distance(image, START.samples), rel=1e-13)
    assert now.sweeps == 1


def test_the_bound_of_theorem_1_holds_at_every_step(phi):
    solver, steps = PowerIteration(), [PowerIteration().init(phi, START)]
    for _ in range(100):
        steps.append(solver.step(phi, steps[-1]))
    limit = steps[-1].metrics.samples
    errors = np.array([hilbert_distance(now.metrics.samples, limit) for now in steps[:30]])
    bound = np.log1p((1 + 2 * TAU) ** (-2.0 * np.arange(30)) * np.expm1(errors[0]))
    assert errors[0] > 0.1
    assert (errors <= bound + 1e-13).all()
    low, high = steps[-1].bracket
    assert low * (1 - 1e-15) <= np.prod(steps[-1].values) <= high * (1 + 1e-15)
    assert max(high - low, steps[-1].residual) <= 1e-14
