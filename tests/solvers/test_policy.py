"""Policy iteration: few sweeps, the same answer, and never worse than power iteration."""

from dataclasses import dataclass, field

import numpy as np
import pytest

import cometric as cm
from cometric.core.types import Coupled, DistanceMap
from cometric.maps.exact_pairs import ReplayedMap
from cometric.maps.norms import norm_matrices
from cometric.solvers.policy import PolicyIteration
from lifts import exact_lifts, regularize


def lifts(X, tau, **options):
    problem = cm.Problem.from_data(X)
    return regularize(*exact_lifts(problem, **options), tau, norm_matrices(problem, "l1"))


@pytest.mark.parametrize("template", ["unimodal", "bimodal", "asymmetric"])
@pytest.mark.parametrize("tau", [0.001, 0.01, 0.1])
def test_a_torus_takes_at_most_ten_sweeps(template, tau):
    result = cm.learn(cm.datasets.torus(template, 24, 20), eps=0, tau=tau, tol=1e-10)
    assert result.converged
    assert result.residual <= 1e-10
    assert result.history[-1].sweeps <= 10
    assert result.parameters.solver == "PolicyIteration"


@pytest.mark.parametrize("tau", [0.01, 0.3])
def test_policy_and_power_iteration_agree(tau):
    X = np.random.default_rng(3).integers(0, 6, (9, 7)) + np.eye(9, 7)
    policy = cm.learn(X, eps=0, tau=tau, tol=1e-12)
    power = cm.learn(X, eps=0, tau=tau, tol=1e-12, solver="power")
    assert cm.hilbert_distance(policy.samples, power.samples) < 1e-10
    assert cm.hilbert_distance(policy.features, power.features) < 1e-10
    assert policy.history[-1].sweeps < power.history[-1].sweeps / 2


def test_the_value_of_exact_frozen_solves_never_rises():
    X = np.random.default_rng(0).gamma(0.5, size=(12, 10))
    phi = lifts(X, 0.01)
    solver = PolicyIteration(accuracy=1e-12)
    n, m = 12, 10
    now = solver.init(phi, cm.Metrics(1 - np.eye(n), 1 - np.eye(m)))
    values = []
    for _ in range(6):
        now = solver.step(phi, now)
        values.append(now.bracket[1])
    assert (np.diff(values) <= 1e-12).all()
    assert values[0] - values[-1] > 1e-6


class Astray(PolicyIteration):
    """Frozen solves that lead nowhere."""

    def _settle(self, frozen, now):
        rng = np.random.default_rng(now.sweeps)
        noise = rng.uniform(0.1, 1.0, now.metrics.samples.shape)
        return now.metrics.samples * (noise + noise.T)


def test_frozen_solves_without_progress_are_discarded():
    X = np.random.default_rng(1).gamma(0.5, size=(8, 6))
    astray = cm.learn(X, eps=0, tau=0.1, tol=1e-9, solver=Astray())
    power = cm.learn(X, eps=0, tau=0.1, tol=1e-9, solver="power")
    assert astray.converged
    assert cm.hilbert_distance(astray.samples, power.samples) < 1e-7
    wasted = np.log2(power.iterations) + 2  # waits double after each failure
    assert astray.history[-1].sweeps <= power.iterations + wasted


@dataclass(frozen=True)
class Creeping(PolicyIteration):
    """Frozen solves that return to where the first began, each a little nearer to the answer."""

    answer: np.ndarray | None = None
    calls: list = field(default_factory=list)

    def _settle(self, frozen, now):
        self.calls.append(now.metrics.samples)
        share = min(1.0, 1e-3 * len(self.calls))
        one = np.eye(len(self.answer))
        return (self.calls[0] + one) ** (1 - share) * (self.answer + one) ** share - one


def test_slow_frozen_solves_give_way_to_power_steps():
    """Each one narrows the bracket, by a thousandth: that alone took a thousand of them."""
    X = np.random.default_rng(1).gamma(0.5, size=(8, 6))
    power = cm.learn(X, eps=0, tau=0.01, tol=1e-9, solver="power")
    creeping = cm.learn(X, eps=0, tau=0.01, tol=1e-9, solver=Creeping(answer=power.samples))
    assert creeping.converged
    failures = np.sqrt(power.iterations / 2) + 1
    assert creeping.history[-1].sweeps <= power.iterations + 10 * failures


def test_couplings_that_do_not_fit_are_computed_from_the_trees():
    X = cm.datasets.torus("bimodal", 24, 20)
    need = sum(lift.memory.trees for lift in exact_lifts(cm.Problem.from_data(X)))
    written = cm.learn(X, eps=0, tau=0.01, tol=1e-10)
    replayed = cm.learn(X, eps=0, tau=0.01, tol=1e-10, memory_limit=4 * need)
    frozen = lifts(X, 0.0, memory_limit=4 * need).to_samples.freeze(1 - np.eye(20))
    assert type(frozen.phi) is ReplayedMap
    assert cm.hilbert_distance(written.samples, replayed.samples) < 1e-12
    assert written.history[-1].sweeps == replayed.history[-1].sweeps


def test_without_room_for_trees_power_iteration_is_chosen():
    X = cm.datasets.torus("asymmetric", 12, 10)
    result = cm.learn(X, eps=0, tau=0.1, memory_limit=100)
    assert result.parameters.solver == "PowerIteration"
    assert result.converged
    with pytest.raises(MemoryError, match="Raise `memory_limit`"):
        cm.learn(X, eps=0, tau=0.1, memory_limit=100, solver="policy")


def test_other_maps_are_refused_with_a_remedy():
    metric = 1 - np.eye(2)
    solver = PolicyIteration()
    phi = Coupled(DistanceMap(), DistanceMap())
    with pytest.raises(TypeError, match="solver='power'"):
        solver.step(phi, solver.init(phi, cm.Metrics(metric, metric)))


def test_tau_zero_is_reached_by_continuation():
    X = cm.datasets.torus("asymmetric", 24, 20)
    result = cm.learn(X, eps=0, tau=0, tol=1e-10)
    assert result.converged
    assert result.residual <= 1e-10
    power = cm.learn(X, eps=0, tau=0, tol=1e-12, solver="power")
    assert cm.hilbert_distance(result.features, power.features) < 1e-9


def test_eigenvectors_are_the_case_of_equal_sides():
    A = np.random.default_rng(5).dirichlet(np.ones(6), size=6)
    result = cm.learn((A, A), eps=0, tau=0.05, tol=1e-12)
    assert cm.hilbert_distance(result.samples, result.features) < 1e-10
    assert np.isclose(*result.values, rtol=1e-10)


def test_a_far_start_is_improved_by_sketched_plans_before_the_first_sweep(monkeypatch):
    from cometric.maps.exact_map import ExactMap

    sketched = []
    sketch = ExactMap.sketch
    monkeypatch.setattr(
        ExactMap, "sketch", lambda phi, cost: (sketched.append(1), sketch(phi, cost))[1]
    )
    X = cm.datasets.simulate_counts(30, 24, density=0.4).X
    options = {"eps": 0, "tau": 0.001, "norm": "l1", "tol": 1e-10}
    near = cm.learn(X, solver=cm.PolicyIteration(), **options)
    assert len(sketched) == 2  # both sides, once
    plain = cm.learn(X, solver=cm.PolicyIteration(far=np.inf), **options)
    assert near.history[0].residual < 0.5 * plain.history[0].residual
    assert cm.hilbert_distance(near.samples, plain.samples) < 1e-8


def test_a_start_at_the_solution_is_left_alone():
    X = cm.datasets.simulate_counts(30, 24, density=0.4).X
    options = {"eps": 0, "tau": 0.01, "norm": "l1"}
    solution = cm.learn(X, tol=1e-12, **options)
    again = cm.learn(X, tol=1e-8, start=solution.samples, **options)
    assert again.iterations == 1
