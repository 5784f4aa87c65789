"""Learning with entropic transport: one sweep per iteration, and the same answer."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm
from cometric.maps.norms import norm_matrices
from cometric.solvers.loop import Stage, solve
from lifts import fresh_lifts, regularize


def fully_solved(X, eps, tau, tol):
    """Power iteration with every Sinkhorn problem solved to the end."""
    problem = cm.Problem.from_data(X)
    phi = regularize(*fresh_lifts(problem, eps), tau, norm_matrices(problem, "l1"))
    start = norm_matrices(problem, "l1")
    return solve(phi, cm.PowerIteration(), start, Stage(tol=tol, max_iter=500)).iterate


@pytest.mark.parametrize("eps", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("solver", ["auto", "power"])
def test_one_sweep_per_iteration_reaches_the_same_metrics(eps, solver):
    X = cm.datasets.torus("bimodal", 20, 16)
    truth = fully_solved(X, eps, 0.01, 1e-11)
    result = cm.learn(X, eps=eps, tau=0.01, norm="l1", tol=1e-9, solver=solver)
    assert result.converged
    assert_allclose(result.samples, truth.metrics.samples, atol=1e-6)
    assert_allclose(result.features, truth.metrics.features, atol=1e-6)
    assert_allclose(result.values, truth.values, rtol=1e-6)


@pytest.mark.parametrize(("mass", "eps"), [(1e3, 0.1), (1e4, 0.1), (1e3, 0.01), (1e5, 0.01)])
def test_a_heavy_feature_does_not_hide_the_differences(mass, eps):
    """Distances are then a hundred-thousandth of the costs, and so is what must be accurate."""
    rest = np.random.default_rng(0).random((6, 4))
    X = np.column_stack([np.full(6, mass), rest])
    result = cm.learn(X, eps=eps)
    assert result.converged
    assert min(result.values) < 1e-3
    assert max(result.certify().residuals) < 1e-3  # solved to the end
    assert_allclose(result.transform(X), result.samples, atol=1e-4)


def test_acceleration_takes_fewer_iterations():
    X = cm.datasets.simulate_counts(60, 50, random_state=1).X
    plain = cm.learn(X, eps=0.1, tau=1e-3, tol=1e-7, solver="power")
    fast = cm.learn(X, eps=0.1, tau=1e-3, tol=1e-7)
    assert fast.converged
    assert fast.iterations < 0.7 * plain.iterations
    assert cm.hilbert_distance(plain.samples, fast.samples) < 1e-4


def test_negative_distances_end_the_solve_with_a_count():
    parts = np.array([0, 0, 1, 1, 1])
    A = np.array([parts == 0, parts == 1]) / [[2], [3]]
    A = np.vstack([A, np.eye(5)])
    cost = np.where(parts[:, None] == parts, 2.0, 1.0)
    np.fill_diagonal(cost, 0.0)
    B = np.hstack([np.zeros((5, 2)), np.eye(5)])
    start = np.ones((7, 7)) - np.eye(7)
    start[2:, 2:] = cost
    with (
        pytest.warns(UserWarning, match="1 pair has a negative distance .lowest"),
        pytest.warns(cm.ConvergenceWarning, match="some entropic distances are negative"),
    ):
        result = cm.learn((A, B), eps=5.0, tau=0, start=start)
    assert result.status is cm.Status.NOT_PSD


def test_single_precision_ends_in_double():
    X = cm.datasets.simulate_counts(30, 25, random_state=0).X
    double, single = (cm.learn(X, 0.1, dtype=dtype, drop_empty=True) for dtype in ("f8", "f4"))
    assert single.converged
    assert_allclose(single.samples, double.samples, atol=1e-6)
    assert_allclose(single.features, double.features, atol=1e-6)


def test_the_iterations_of_both_stages_count():
    X = cm.datasets.simulate_counts(30, 25, random_state=0).X
    with pytest.warns(cm.ConvergenceWarning, match="iteration limit"):
        assert cm.learn(X, max_iter=5, drop_empty=True).iterations == 5
    whole = cm.learn(X, drop_empty=True)
    assert [line.iteration for line in whole.history] == [*range(1, whole.iterations + 1)]


@pytest.mark.parametrize("start", [0, 1])
def test_a_first_column_that_counts_the_samples_is_reported(start):
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(np.random.default_rng(0).random((12, 4)), columns=list("uvwx"))
    table = X.assign(id=np.arange(start, start + 12))[["id", *X]]
    words = r"first feature of `X`, 'id', counts the samples, .* make it the index, by `set_index`"
    with pytest.warns(UserWarning, match=words):
        cm.learn(table, eps=np.inf)
    for other in (X, table[["u", "id"]], table.iloc[:, :3].to_numpy(), table.iloc[:6]):
        cm.learn(other, eps=np.inf)  # no warning: not the first, without names, too few
    growing = X.assign(u=np.arange(12.0) + 5.0)
    cm.learn(growing, eps=np.inf)
