"""Stochastic iteration: every pair in its turn, the same for every machine, to the same answer."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cometric as cm
from cometric import StochasticIteration
from cometric.maps.coupled import exact_lifts, norm_matrices, regularize
from cometric.solve import solve

X = cm.datasets.torus("bimodal", 20, 16)
TAU = 0.1


def steps(solver, number, n_threads=None):
    """The metrics after a number of steps from the l1 distances."""
    problem = cm.Problem.from_data(X)
    norms = norm_matrices(problem, "l1")
    phi = regularize(*exact_lifts(problem, n_threads=n_threads), TAU, norms)
    start = cm.Metrics(*(R / R.max() for R in norms))
    return solve(phi, solver, start, tol=0.0, max_iter=number).iterate


@pytest.fixture(scope="module")
def truth():
    return cm.learn(X, eps=0, tau=TAU, tol=1e-11)


@pytest.mark.parametrize("n", [2, 3, 11])
@pytest.mark.parametrize("fraction", [1.0, 0.3, 0.01])
def test_an_epoch_visits_every_pair_once(n, fraction):
    solver = StochasticIteration(fraction)
    parts = int(np.ceil(1 / fraction))
    drawn = np.concatenate([solver._draw(n, t, 0) for t in range(1, parts + 1)])
    i, j = np.unique(drawn, axis=0).T
    assert_array_equal(np.stack([i, j]), np.triu_indices(n, 1))
    if n * (n - 1) // 2 >= parts:
        assert len(drawn) == n * (n - 1) // 2


def test_a_step_of_all_pairs_is_a_power_step():
    ours, power = steps(StochasticIteration(1.0), 3), steps(cm.PowerIteration(), 3)
    assert cm.hilbert_distance(ours.metrics.samples, power.metrics.samples) < 1e-12


@pytest.mark.parametrize("eps", [0, 0.2])
@pytest.mark.parametrize("fraction", [0.1, 0.35])
def test_it_finds_the_answer_of_the_full_solve(eps, fraction):
    full = cm.learn(X, eps=eps, tau=TAU, tol=1e-8)
    result = cm.learn(X, eps=eps, tau=TAU, solver=StochasticIteration(fraction), tol=1e-5)
    assert result.converged
    assert result.residual <= 1e-5  # of a full sweep
    assert cm.hilbert_distance(result.samples, full.samples) < 1e-4
    assert cm.hilbert_distance(result.features, full.features) < 1e-4


def test_whole_images_leave_the_paper_far_behind(truth):
    ours = steps(StochasticIteration(0.1), 150)
    paper = steps(StochasticIteration.paper(0.1), 150)
    apart = [cm.hilbert_distance(end.metrics.samples, truth.samples) for end in (ours, paper)]
    assert apart[0] < 1e-3
    assert 1e-2 < apart[1] < 0.3


@pytest.mark.parametrize(
    "options",
    [{"step_size": "harmonic"}, {"step_size": 0.5, "multiplicative": True},
     {"step_size": lambda t: 2 / (1 + t), "reshuffle": False}],
)  # fmt: skip
def test_other_steps_approach_too(truth, options):
    end = steps(StochasticIteration(0.3, **options), 60)
    start = norm_matrices(cm.Problem.from_data(X), "l1").samples
    before = cm.hilbert_distance(start, truth.samples)
    assert cm.hilbert_distance(end.metrics.samples, truth.samples) < 0.8 * before


def test_seeds_and_nothing_else_decide():
    one, again, other = (
        steps(StochasticIteration(random_state=seed), 12, n_threads=threads)
        for seed, threads in ((1, 1), (1, 2), (2, 2))
    )
    assert_array_equal(one.metrics.samples, again.metrics.samples)
    assert_array_equal(one.metrics.features, again.metrics.features)
    assert not np.array_equal(one.metrics.samples, other.metrics.samples)


def test_no_residual_is_told_before_an_epoch_is_over():
    assert steps(StochasticIteration(0.25), 3).residual == np.inf
    assert steps(StochasticIteration(0.25), 4).residual < np.inf


@pytest.mark.parametrize(
    ("options", "words"),
    [({"fraction": 0.0}, "above 0, at most 1"), ({"step_size": "fast"}, "choose 'sqrt'")],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        StochasticIteration(**options)
