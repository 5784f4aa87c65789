"""Part of ``benchmarks/convergence.py``: default solvers converge where power iteration does."""

import importlib.util
import sys
from pathlib import Path

import pytest

import cometric as cm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "convergence.py"


@pytest.fixture(scope="module")
def convergence():
    spec = importlib.util.spec_from_file_location("convergence", SCRIPT)
    module = sys.modules["convergence"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["convergence"]


def test_a_few_dozen_random_problems_converge(convergence):
    found = list(convergence.search(36, seed=24, processes=1))
    assert [f"{one.number}: {one.problem}" for one in found if convergence.failures(one)] == []
    assert sum(one.endings[0].status == "CONVERGED" for one in found) > 30
    assert "auto" in convergence.table(found)


@pytest.mark.parametrize("number", [72, 888])
def test_problems_left_unsolved_in_tiles_do_not_stall_a_run(convergence, number):
    """Tiles solved to a margin only: a residual of 6e-6, one of 0.6, for ever."""
    seed = {72: 10, 888: 11}[number]
    problem = convergence.draw(seed, number)
    assert convergence.solve(problem, "tiles", client="local", max_iter=300).status == "CONVERGED"


def test_negative_distances_from_unsolved_problems_restart_the_run(convergence):
    problem = convergence.draw(11, 440)
    result = cm.learn(problem.X, client="local", **problem.options)
    assert result.converged


def test_negative_distances_from_extrapolation_are_recovered_from(convergence):
    """Plain steps never see one; after an extrapolation it comes a few steps later."""
    problem = convergence.draw(0, 3424)
    power, anderson = (
        convergence.solve(problem, solver, solver=solver) for solver in ("power", "anderson")
    )
    assert power.status == anderson.status == "CONVERGED"
    assert anderson.iterations > power.iterations  # it began anew, with plain steps
