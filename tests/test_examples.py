"""The examples that take seconds: they run, and say what they claim."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


def test_the_limit_is_pca(capsys):
    pytest.importorskip("sklearn")
    run("limit")
    told = capsys.readouterr().out
    assert float(told.split()[-1]) < 1e-9
    shrinking = [float(line.split()[3]) for line in told.splitlines() if "times eps" in line]
    assert shrinking == sorted(shrinking, reverse=True)
