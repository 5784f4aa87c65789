"""The dry run: it names the engine, and its estimates are of the right order."""

import time

import numpy as np
import pytest

import cometric as cm
from cometric.maps import device

X = cm.datasets.simulate_counts(150, 120, random_state=0).X


@pytest.mark.parametrize(
    ("eps", "words"),
    [(0.0, "network simplex, policy"), (0.1, "Sinkhorn, float64"), (1e-3, "logarithms"),
     (np.inf, "closed form")],
)  # fmt: skip
def test_the_engine_is_named(eps, words):
    planned = cm.plan(np.eye(20, 15) + np.arange(300).reshape(20, 15) % 7, eps)
    assert words in planned.engine
    assert words in str(planned)
    assert planned.memory < planned.available
    assert planned.seconds > 0


def test_the_options_of_learn_are_heard():
    assert "float32, scalings kept in float32" in cm.plan(X, dtype="f4", drop_empty=True).engine
    assert "no memory" in cm.plan(X, memory_limit=1e5, drop_empty=True).engine


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": np.nan}, "`eps` is nan; it must not be negative"),
        ({"n_threads": 0}, "`n_threads` is 0; pass a whole number"),
        ({"dtype": "no such"}, "`dtype` is 'no such'; choose float64 or float32"),
        ({"memory_limit": "1 GB"}, "`memory_limit` is '1 GB'; pass a number"),
    ],
)
def test_options_that_learn_would_refuse_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        cm.plan(X, **options)


def test_the_time_of_a_sweep_is_of_the_right_order():
    planned = cm.plan(X, drop_empty=True)
    problem = cm.Problem.from_data(X, drop_empty=True)
    spent = 0.0
    for side in (problem.samples, problem.features):
        phi = cm.EntropicMap(side.hist, 0.1, sweeps=1)
        cost = 1.0 - np.eye(side.hist.shape[1])
        phi(cost)
        began = time.perf_counter()
        phi(cost)
        spent += time.perf_counter() - began
    assert spent / 10 < planned.seconds < 10 * spent


# Memory


@pytest.fixture
def small_machine(monkeypatch):
    """A way to pretend that only so many bytes are free."""

    def pretend(free):
        for module in ("planning", "run", "maps.coupled", "maps.exact", "maps.entropic"):
            monkeypatch.setattr(f"cometric.{module}.free_memory", lambda: free)

    return pretend


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.1, np.inf])
@pytest.mark.parametrize(
    ("free", "words"),
    [
        (5e5, "need about 0.0059 GB .* 0.0005 GB are available. Take fewer samples"),
        (3e6, "0.003 GB are available. Pass solver='power', which needs about 0.00236 GB, or ta"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_allocated(
    eps, free, words, small_machine, monkeypatch
):
    def allocate(*args):
        raise AssertionError("too late")

    monkeypatch.setattr("cometric.learning.norm_matrices", allocate)
    small_machine(free)
    with pytest.raises(MemoryError, match=f"150 samples and 120 features .*{words}"):
        cm.learn(X, eps, drop_empty=True)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_a_memory_limit_beyond_what_there_is_is_refused(eps, small_machine):
    small_machine(7e6)
    words = "`memory_limit` promises .* GB more; 0.00759 GB are available. Pass a `memory_limit` of"
    with pytest.raises(MemoryError, match=words):
        cm.learn(X, eps, drop_empty=True, memory_limit=1e12)
    with pytest.warns(cm.ConvergenceWarning):
        cm.learn(X, eps, drop_empty=True, memory_limit=1e4, max_iter=1)


def test_maps_remember_only_in_what_the_metrics_leave(small_machine):
    small_machine(5.95e6)
    with pytest.warns(cm.ConvergenceWarning):
        result = cm.learn(X, 0.0, drop_empty=True, max_iter=1)
    assert result.parameters.solver == "PowerIteration"


def test_the_memory_of_a_group_counts(tmp_path):
    room = device._room_in_group
    assert room(str(tmp_path)) == np.inf
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert room(str(tmp_path)) == 450.0
    (tmp_path / "memory.max").write_text("max\n")
    assert room(str(tmp_path)) == np.inf
