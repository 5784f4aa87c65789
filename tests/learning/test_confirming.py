"""Entropic runs that say "converged" solve their equations, small distances included."""

import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cometric as cm
import naive
from cometric.certificates import diagnosis
from cometric.core.types import Status
from cometric.maps.sinkhorn_map import inner_tolerance
from cometric.transports import entropic

OPTIONS = {"eps": 0.1, "tau": 1e-3, "norm": "l1", "tol": 1e-3}


@pytest.fixture
def X():
    """Two features, and samples so alike that their distances need more than the usual accuracy."""
    rng = np.random.default_rng(18)
    return rng.gamma(0.5, size=(int(rng.integers(5, 14)), 2)) + 1e-6


def true_residual(X, result):
    A, C = X / X.sum(axis=1, keepdims=True), result.features

    def cost(a, b):
        return naive.two_bin_cost(a, b, C, 0.1 * C.max())

    own = [cost(a, a) for a in A]
    ratios = [
        (cost(A[i], A[j]) - (own[i] + own[j]) / 2 + 1e-3 * np.abs(A[i] - A[j]).sum())
        / result.samples[i, j]
        for i in range(len(A))
        for j in range(i)
    ]
    return math.log(max(ratios) / min(ratios))


def test_pairs_are_solved_until_their_distances_are_accurate(X, monkeypatch):
    result = cm.learn(X, **OPTIONS)
    assert result.status is Status.CONVERGED
    assert true_residual(X, result) < 1e-3
    monkeypatch.setattr(entropic.Entropic, "_is_accurate", lambda *args: True)
    unconfirmed = cm.learn(X, **OPTIONS)
    assert unconfirmed.iterations < result.iterations
    assert true_residual(X, unconfirmed) > 1e-2  # the data need it


@pytest.mark.parametrize("stop_after", [1, 45, 46])
def test_a_confirmed_run_resumes_with_the_same_bits(X, tmp_path, stop_after):
    whole = cm.learn(X, **OPTIONS)
    assert whole.iterations == 47  # the last two are of the stages that are more accurate

    class Stop(Exception):
        pass

    def stop(iterate, record):
        if record.iteration == stop_after + 1:
            raise Stop

    options = {**OPTIONS, "checkpoint": tmp_path / "run", "checkpoint_every": 0}
    with pytest.raises(Stop):
        cm.learn(X, **options, callback=stop)
    resumed = cm.resume(tmp_path / "run")
    assert_array_equal(resumed.samples, whole.samples)
    assert resumed.iterations == whole.iterations


def test_inaccurate_runs_are_not_called_converged(X, monkeypatch):
    monkeypatch.setattr(entropic, "ACCEPTED", 0.0)
    monkeypatch.setattr(diagnosis, "ROUNDING", 0.0)
    with pytest.warns(cm.ConvergenceWarning):
        result = cm.learn(X, **OPTIONS)
    assert result.status is Status.INNER_NOT_CONVERGED


def test_iterations_are_not_exceeded(X):
    with pytest.warns(cm.ConvergenceWarning):
        result = cm.learn(X, **OPTIONS, max_iter=45)
    assert result.iterations == 45
    assert result.status is Status.INNER_NOT_CONVERGED


def test_stochastic_runs_are_confirmed_too(X):
    result = cm.learn(X, **OPTIONS, solver="stochastic", random_state=0)
    assert result.status is Status.CONVERGED
    assert true_residual(X, result) < 1.5e-3


def test_tensors_are_confirmed_too(X):
    pytest.importorskip("torch")
    result = cm.learn(X, **OPTIONS, device="torch:cpu")
    assert true_residual(X, result) < 1.5e-3


def test_the_pairs_of_many_items_are_the_smallest_and_others():
    points = np.random.default_rng(0).uniform(size=(300, 2))
    metric = np.abs(points[:, None] - points).sum(axis=-1)
    index = diagnosis._smallest_and_others(metric)
    assert (index[:, 0] < index[:, 1]).all()
    assert len(np.unique(index, axis=0)) == len(index)
    found = {tuple(pair) for pair in index.tolist()}
    away = metric + 9 * np.eye(300)
    for i in np.argsort(away.min(axis=1))[:50].tolist():
        assert tuple(sorted((i, int(away[i].argmin())))) in found
    assert 250 < len(index) <= 400


def test_the_residual_of_some_pairs_is_that_of_all_where_they_are_few(X):
    result = cm.learn(X, **OPTIONS)
    side, formula = result.problem.samples, result.problem.formula
    R = np.abs(side.hist.toarray()[:, None] - side.hist.toarray()).sum(axis=-1)

    def lift(index):
        return cm.EntropicMap(side.histograms.take(index), 0.1, tol=1e-13)

    found = diagnosis.residual_of_some(lift, result.features, result.samples, formula, R)
    assert found == pytest.approx(true_residual(X, result), rel=0.01)
    negative = result.samples.copy()
    negative[0, 1] = negative[1, 0] = -0.1
    assert diagnosis.residual_of_some(lift, result.features, negative, formula, R) == math.inf


def test_a_tolerance_of_zero_asks_for_no_more_than_rounding_allows(monkeypatch):
    """Pairs are not swept until their errors are exactly zero, which many never are."""
    tolerances = []

    def watched(*given):
        tolerances.append(inner_tolerance(*given))
        return tolerances[-1]

    monkeypatch.setattr(entropic, "inner_tolerance", watched)
    X = cm.datasets.simulate_counts(30, 20, types=2, density=0.5, random_state=0).X
    with pytest.warns(cm.ConvergenceWarning):
        result = cm.learn(X, eps=0.1, tol=0.0, max_iter=40, drop_empty=True)
    assert result.history[-1].residual < 1e-13
    assert min(tolerances) == 1e-14
