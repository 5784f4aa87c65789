"""The command ``choose``: what Python returns, with advice that names options."""

import json
import re

import pytest

import cometric as cm
from cometric.choosing.choice import Choice, Row

pytest.importorskip("anndata")
from shell import run, write_table

QUICK = ["--n-splits", "1", "--n-neighbors", "3"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A table of 24 samples and 10 features, in the folder we stand in."""
    monkeypatch.chdir(tmp_path)
    return write_table(24, 10)


def test_choose_gives_what_choose_gives(data):
    found = json.loads(run("choose", "x.csv", *QUICK, "--seed", "3", "--json").stdout)
    choice = cm.choose(data, n_splits=1, n_neighbors=3, random_state=3)
    assert [row["name"] for row in found["table"]] == [row.name for row in choice.table]
    assert [row["loss"] for row in found["table"]] == [row.loss for row in choice.table]
    assert found["settings"] == choice.settings
    assert (found["best"], found["picked"]) == (choice.best, choice.picked)
    assert found["advice"].split(":")[0] == choice.advice.split(":")[0]
    assert (found["samples"], found["features"]) == (24, 5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "Use the defaults of `learn`: "), ({"norm": "lsa"}, "Use `norm='lsa'`: ")],
)
def test_the_advice_is_in_options_of_the_command_line(data, monkeypatch, settings, said):
    rows = [
        ("mine", True, 0.1, 0.01, 0.0, 0.0, 0.0, 1.0),
        ("R alone", False, 0.2, 0.01, 0.1, 0.01, 0.12, 1.0),
        ("random", False, 0.4, 0.01, 0.3, 0.01, 0.32, 1.0),
    ]
    best = Choice(tuple(Row(*row) for row in rows), {"mine": settings}, 24, 5, 1, 3)
    monkeypatch.setattr(cm, "choose", lambda *_, **__: best)
    text = run("choose", "x.csv", "-q").stdout
    assert re.search(said, text)
    assert "cm.learn" not in text
    assert re.search(said, json.loads(run("choose", "x.csv", "--json").stdout)["advice"])


def test_bad_options_are_refused(data):
    for words, said in (
        (["--n-splits", "0"], "`n_splits` is 0; pass a whole number, at least 1"),
        (["--n-neighbors", "23"], "`X` has 24 rows .* more than `n_neighbors`"),
    ):
        assert re.search(said, run("choose", "x.csv", *words, code=2).stderr)
