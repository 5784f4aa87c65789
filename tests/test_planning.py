"""The dry run: it names the engine, and its estimates are of the right order."""

import time

import numpy as np
import pytest

import cometric as cm

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
