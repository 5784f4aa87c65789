"""Stochastic iteration: every pair in its turn, the same for every machine, to the same answer."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cometric as cm
from cometric import StochasticIteration
from cometric.core.types import DistanceMap
from cometric.maps.norms import norm_matrices
from cometric.solvers.loop import Stage, solve
from lifts import exact_lifts, fresh_lifts, regularize

X = cm.datasets.torus("bimodal", 20, 16)
TAU = 0.1


def coupled(n_threads=None):
    """Both maps, and the l1 distances to start from."""
    problem = cm.Problem.from_data(X)
    norms = norm_matrices(problem, "l1")
    phi = regularize(*exact_lifts(problem, n_threads=n_threads), TAU, norms)
    return phi, cm.Metrics(*(R / R.max() for R in norms))


def steps(solver, number, n_threads=None):
    """The metrics after a number of steps from the l1 distances."""
    phi, start = coupled(n_threads)
    return solve(phi, solver, start, Stage(tol=0.0, max_iter=number)).iterate


@pytest.fixture(scope="module")
def truth():
    return cm.learn(X, eps=0, tau=TAU, tol=1e-11)


class Counting(DistanceMap):
    """A map that only notes which pairs it was asked for."""

    def __init__(self, n):
        self.shape = (n, n)

    def pairs(self, cost, index, accuracy=None):
        return index


def drawn(solver, n, steps):
    """The pairs of some steps of one side."""
    lift = Counting(n)
    count = min(solver._epoch, n * (n - 1) // 2)
    parts = solver._cut(lift, count, 0) if solver.draw == "parts" else []
    for t in range(1, steps + 1):
        part, _ = solver._choose(lift, parts, t, 0)
        assert_array_equal(part.pairs, part.distances(lift, None))
        yield part.pairs


@pytest.mark.parametrize("n", [2, 3, 11])
@pytest.mark.parametrize("fraction", [1.0, 0.3, 0.01])
def test_an_epoch_visits_every_pair_once(n, fraction):
    pairs = n * (n - 1) // 2
    epoch = min(int(np.ceil(1 / fraction)), pairs)
    for later in (0, 1):
        seen = list(drawn(StochasticIteration(fraction), n, 2 * epoch))
        seen = np.concatenate(seen[later * epoch : (later + 1) * epoch])
        assert len(seen) == pairs
        assert_array_equal(np.unique(seen, axis=0), np.stack(np.triu_indices(n, 1), axis=1))


def test_new_draws_are_pairs_without_repetition():
    one, other = drawn(StochasticIteration(0.1, "pairs"), 20, 2)
    assert len(one) == len(np.unique(one, axis=0)) == 19
    assert (one[:, 0] < one[:, 1]).all()
    assert not np.array_equal(one, other)


def test_the_first_epoch_is_an_iteration_of_both_sides_at_once():
    now = steps(StochasticIteration(0.25), 4)
    phi, start = coupled()
    samples, features = phi.to_samples(start.features), phi.to_features(start.samples)
    assert_allclose(now.metrics.samples, samples / samples.max())
    assert_allclose(now.metrics.features, features / features.max())


@pytest.mark.parametrize("eps", [0, 0.2])
def test_stored_parts_of_a_map_do_not_change_results(eps):
    problem = cm.Problem.from_data(X)
    lift = fresh_lifts(problem, eps)[0]
    index = np.array([[0, 3], [5, 2], [7, 7], [4, 19]])
    lift.divide([np.array([[1, 2]]), index])
    for cost in (norm_matrices(problem, "l1").features, norm_matrices(problem, "l2").features):
        assert_allclose(lift.part(1, index, cost), lift.pairs(cost, index), rtol=1e-9, atol=1e-15)


def test_a_step_of_all_pairs_is_a_power_step():
    ours, power = steps(StochasticIteration(1.0), 3), steps(cm.PowerIteration(), 3)
    assert cm.hilbert_distance(ours.metrics.samples, power.metrics.samples) < 1e-12


@pytest.mark.parametrize("eps", [0, 0.2])
@pytest.mark.parametrize("fraction", [0.1, 0.35])
def test_it_finds_the_solution_of_the_full_solve(eps, fraction):
    full = cm.learn(X, eps=eps, tau=TAU, norm="l1", tol=1e-8)
    result = cm.learn(X, eps=eps, tau=TAU, solver=StochasticIteration(fraction), tol=1e-5)
    assert result.converged
    assert result.residual <= 1e-5  # of a full sweep
    assert cm.hilbert_distance(result.samples, full.samples) < 1e-4
    assert cm.hilbert_distance(result.features, full.features) < 1e-4


def test_full_steps_converge_much_faster_than_those_of_the_paper(truth):
    ours = steps(StochasticIteration(0.1), 150)
    paper = steps(StochasticIteration.paper(0.1), 150)
    apart = [cm.hilbert_distance(end.metrics.samples, truth.samples) for end in (ours, paper)]
    assert apart[0] < 1e-3
    assert 1e-2 < apart[1] < 0.3


def test_seeds_and_nothing_else_decide():
    one, again, other = (
        steps(StochasticIteration(random_state=seed), 12, n_threads=threads)
        for seed, threads in ((1, 1), (1, 2), (2, 2))
    )
    assert_array_equal(one.metrics.samples, again.metrics.samples)
    assert_array_equal(one.metrics.features, again.metrics.features)
    assert not np.array_equal(one.metrics.samples, other.metrics.samples)


def test_there_is_no_residual_before_an_epoch_is_over():
    assert steps(StochasticIteration(0.25), 3).residual == np.inf
    assert steps(StochasticIteration(0.25), 4).residual < np.inf


def test_after_misleading_samples_full_sweeps_restart():
    """At a large eps the divergences of parts of the pairs may all but vanish on the way."""
    rng = np.random.default_rng(3)
    X = rng.poisson(1.0, (12, 34)) + np.eye(12, 34) + (np.arange(34) >= 12)
    X[:, 0] += 1000
    result = cm.learn(X, eps=3.0, tau=1e-3, tol=1e-6, solver="stochastic")
    assert result.converged
    plain = cm.learn(X, eps=3.0, tau=1e-3, norm="l1", tol=1e-6, solver="power")
    assert cm.hilbert_distance(result.samples, plain.samples) < 1e-4


def test_parts_without_a_positive_distance_start_over_with_all_pairs(monkeypatch):
    """At a huge eps all divergences of a part may be negative by rounding."""
    X = np.random.default_rng(0).random((6, 5))
    plain = cm.learn(X, eps=0.5, tau=0.1, norm="l1", solver="power")
    monkeypatch.setattr(
        "cometric.maps.regularized.Regularized.part",
        lambda self, number, index, cost: -np.ones(len(index)),
    )
    result = cm.learn(X, eps=0.5, tau=0.1, solver="stochastic")
    assert result.converged
    assert cm.hilbert_distance(result.samples, plain.samples) < 1e-3
