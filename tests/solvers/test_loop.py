"""The loop and the front door: options, starts, histories, endings."""

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cometric as cm
from cometric import ConvergenceWarning, Interrupted, PolicyIteration, PowerIteration, Status, learn
from cometric.core.problem import Problem
from cometric.core.types import Coupled, Metrics
from cometric.maps.norms import norm_matrices
from cometric.solvers.loop import Stage, solve
from lifts import block_diagonal, exact_lifts, regularize

X = np.array([[3.0, 1.0, 1.0], [1.0, 2.0, 5.0], [2.0, 1.0, 7.0], [0.0, 4.0, 1.0]])
# Row 3 is twice row 0; column 3 is half of column 0.
REPEATS = np.array(
    [[2.0, 3.0, 1.0, 1.0], [4.0, 1.0, 0.0, 2.0], [6.0, 0.0, 5.0, 3.0], [4.0, 6.0, 2.0, 2.0]]
)
POINTS = np.array([0.0, 1.0, 3.0, 4.0])
START = np.abs(POINTS[:, None] - POINTS)
every_solver = pytest.mark.parametrize("solver", ["power", "policy", "auto"])


def quick(data=X, **options):
    """Exact metrics at tau = 0.1 by power iteration, unless told otherwise."""
    return learn(data, **({"eps": 0, "tau": 0.1, "solver": "power"} | options))


def trace(data=X, **options):
    """The iterates of such a solve."""
    steps = []
    quick(data, callback=lambda now, _: steps.append(now), **options)
    return steps


def test_the_loop_stops_at_the_tolerance_and_not_before():
    problem = Problem.from_data(X)
    phi = regularize(*exact_lifts(problem), 0.1, norm_matrices(problem, "l1"))
    start = Metrics(1.0 - np.eye(4), 1.0 - np.eye(3))
    end = solve(phi, PowerIteration(), start, Stage(tol=1e-8, max_iter=500))
    assert end.status is Status.CONVERGED
    assert end.history[-1].residual <= 1e-8
    assert all(record.residual > 1e-8 for record in end.history[:-1])
    assert end.iterate.residual == end.history[-1].residual


def test_a_loop_without_a_lower_residual_ends_at_its_limit():
    one, other = START + 1.0 - np.eye(4), (START + 1.0 - np.eye(4)) ** 2
    turns = iter(range(100))
    cycle = Coupled(lambda _: (other, one)[next(turns) % 2], lambda matrix: matrix)
    limits = Stage(tol=1e-8, max_iter=50, stall=7)
    end = solve(cycle, PowerIteration(), Metrics(one, one), limits)
    assert end.status is Status.MAX_ITER
    lowest = min(end.history, key=lambda record: record.residual)
    assert len(end.history) == lowest.iteration + 7


def test_the_history_counts_iterations_sweeps_and_seconds():
    result = quick(tol=1e-8)
    count = list(range(1, len(result.history) + 1))
    assert [record.iteration for record in result.history] == count
    assert [record.sweeps for record in result.history] == count
    seconds = [record.seconds for record in result.history]
    assert seconds[0] > 0
    assert seconds == sorted(seconds)
    assert (result.history[-1].lam, result.history[-1].mu) == result.values
    assert result.iterations == len(result.history)
    assert result.residual == result.history[-1].residual


def test_the_callback_sees_every_iterate_with_its_record():
    seen = []
    result = quick(callback=lambda now, record: seen.append((now, record)))
    assert [record for _, record in seen] == result.history
    assert [now.residual for now, _ in seen] == [record.residual for record in result.history]
    assert_array_equal(seen[-1][0].metrics.samples, result.samples)


def test_the_parameters_record_the_options():
    asked = quick(norm="l2", tol=1e-5, max_iter=77).parameters
    assert (asked.eps, asked.tau, asked.norm) == (0, 0.1, "l2")
    assert (asked.solver, asked.tol, asked.max_iter) == ("PowerIteration", 1e-5, 77)


def test_reaching_the_iteration_limit_first_is_a_warning_and_not_success():
    words = "iteration limit was reached first. Residual .* after 3 iterations, tolerance 1e-12"
    with pytest.warns(ConvergenceWarning, match=words):
        result = quick(tol=1e-12, max_iter=3)
    assert result.status is Status.MAX_ITER
    assert not result.converged
    assert result.iterations == 3
    assert 1e-12 < result.residual < 1.0


@every_solver
@pytest.mark.parametrize(("at", "tol"), [(2, 0), (1, np.inf)])  # the second has converged by then
def test_ctrl_c_ends_with_the_last_iterate_and_is_not_success(solver, at, tol):
    def press(now, record):
        if record.iteration == at:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="the partial result is in `.result`") as caught:
        quick(solver=solver, tol=tol, callback=press)
    result = caught.value.result
    assert result.status is Status.INTERRUPTED
    assert not result.converged
    assert result.iterations == at
    assert result.samples.max() == 1.0
    assert isinstance(caught.value, KeyboardInterrupt)


def test_ctrl_c_within_compiled_code_is_ctrl_c():
    """Numba passes it on inside a SystemError, sometimes inside two."""

    def press(now, record):
        try:
            raise SystemError("inner") from KeyboardInterrupt()
        except SystemError as inner:
            raise SystemError("returned a result with an exception set") from inner

    def fail(now, record):
        raise SystemError("something else")

    with pytest.raises(Interrupted):
        quick(tol=0, callback=press)
    with pytest.raises(SystemError, match="something else"):
        quick(tol=0, callback=fail)


@dataclass(frozen=True)
class Impatient(PolicyIteration):
    """Policy iteration during which Ctrl-C is pressed once, in step number ``at`` of all."""

    at: int = 1
    steps: list = field(default_factory=list)

    def step(self, phi, now):
        self.steps.append(now)
        if len(self.steps) == self.at:
            raise KeyboardInterrupt
        return super().step(phi, now)


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_on_the_way_to_tau_zero_is_not_lost(at):
    with pytest.raises(Interrupted) as caught:
        quick(tau=0.0, solver=Impatient(at=at))
    assert caught.value.result.status is Status.INTERRUPTED


@every_solver
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]), Status.BOUNDARY),
        (np.eye(3), Status.NON_UNIQUE),
        (np.eye(3) + 0.3, Status.NON_UNIQUE),
        (block_diagonal([(3, 2), (2, 3)]), Status.NON_UNIQUE),
    ],
    ids=["no positive pair", "identity", "identity plus constant", "blocks"],
)
def test_at_tau_zero_data_without_a_unique_solution_are_not_success(solver, data, status):
    with pytest.warns(ConvergenceWarning, match="Pass `tau` > 0"):
        result = quick(data, tau=0.0, solver=solver)
    assert result.status is status
    assert not result.converged


def test_a_tolerance_of_zero_has_a_bar_too(capsys, monkeypatch):
    monkeypatch.setattr("cometric.runtime.progress.EVERY", 0.0)
    with pytest.warns(ConvergenceWarning):
        quick(tol=0, max_iter=5, progress=True, callback=lambda now, record: time.sleep(0.15))
    assert "residual" in capsys.readouterr().err


def test_a_start_between_samples_is_where_the_first_step_begins():
    (step,) = trace(start=START, tol=np.inf)
    problem = Problem.from_data(X)
    phi = regularize(*exact_lifts(problem), 0.1, norm_matrices(problem, "l1"))
    image = phi.to_features(START / 4)
    assert_allclose(step.metrics.features, image / image.max(), rtol=1e-14)


def test_a_pair_of_starts_may_leave_either_open():
    plain = trace(tol=np.inf)[0]
    given = trace(start=(None, 1.0 - np.eye(3)), tol=np.inf)[0]
    assert_array_equal(plain.metrics.features, given.metrics.features)
    both = trace(start=(START, 1.0 - np.eye(3)), tol=np.inf)[0]
    assert_array_equal(both.metrics.features, trace(start=START, tol=np.inf)[0].metrics.features)


def test_random_starts_follow_their_seed():
    one, again, other = (
        trace(start="random", random_state=seed, tol=np.inf)[0].metrics for seed in (0, 0, 1)
    )
    assert_array_equal(one.samples, again.samples)
    assert np.abs(one.samples - other.samples).max() > 1e-3


def test_two_matrices_serve_as_norms():
    by_name = quick(tol=1e-12)
    R = norm_matrices(Problem.from_data(X), "l1")
    by_matrix = quick(norm=(R.samples, R.features), tol=1e-12)
    assert_array_equal(by_name.samples, by_matrix.samples)
    assert by_matrix.parameters.norm == "matrix"


@pytest.mark.filterwarnings("ignore:.*repeats others")
def test_norm_matrices_and_starts_cover_repeated_items_too():
    discrete = quick(REPEATS, norm="discrete", tol=1e-12)
    for norm in ("discrete", (1.0 - np.eye(4), 1.0 - np.eye(4))):
        result = quick(REPEATS, norm=norm, start=START, tol=1e-12)
        assert result.samples.shape == (4, 4)
        assert_allclose(result.samples, discrete.samples, rtol=1e-10)


def test_options_of_the_problem_reach_it():
    with_empty = np.vstack([X, np.zeros(3)])
    assert quick(with_empty, drop_empty=True).problem.samples.kept.tolist() == 4 * [True] + [False]
    smoothed = quick(smoothing=0.1).problem.samples.hist.toarray()
    assert smoothed.min() > 0
    balanced = quick(normalization_steps=50).problem.samples.hist.toarray()
    assert_allclose(balanced.sum(axis=0), 4 / 3, rtol=1e-3)


def test_the_input_is_left_alone():
    data, start = X.copy(), START.copy()
    quick(data, start=start)
    assert_array_equal(data, X)
    assert_array_equal(start, START)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cm.StochasticIteration("a"), "`fraction` is 'a'; pass a number"),
        (lambda: cm.StochasticIteration(True), "`fraction` is True; pass a number"),
        (lambda: cm.StochasticIteration(0), "`fraction` is 0; it must be above 0 and at most 1"),
        (lambda: cm.StochasticIteration(draw="all"), "choose 'parts', 'pairs'"),
        (lambda: cm.StochasticIteration(random_state=None), "`random_state` is None; pass a whole"),
        (lambda: cm.StochasticIteration(random_state=-1), "`random_state` is -1; it must not be"),
        (lambda: cm.AndersonIteration(0), "`memory` is 0; pass a whole number, at least 1"),
        (lambda: cm.AndersonIteration(tolerance=np.nan), "`tolerance` is nan; pass a number"),
        (lambda: cm.AndersonIteration(begin="x"), "`begin` is 'x'; pass a number"),
        (lambda: cm.PolicyIteration(-1), "`frozen_steps` is -1; it must not be negative"),
        (lambda: cm.PolicyIteration(accuracy=-1.0), "`accuracy` is -1.0; it must not be negative"),
        (lambda: cm.PolicyIteration(far=np.nan), "`far` is nan; pass a number"),
    ],
)
def test_solvers_refuse_what_is_no_parameter(make, words):
    with pytest.raises(ValueError, match=words):
        make()
