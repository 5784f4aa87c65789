"""Errors name the invalid argument, before any computation, also without assertions."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bad_inputs import cases, outcome

CASES = list(cases())


@pytest.mark.parametrize(
    ("name", "arguments", "words"), CASES, ids=[re.sub(" at 0x\\w+", "", case[0]) for case in CASES]
)
def test_bad_input_is_refused_by_name(name, arguments, words, monkeypatch):
    monkeypatch.setattr("cometric.learning.run.Run.learn", lambda run: pytest.fail("too late"))
    kind, said = outcome(arguments)
    assert kind == "ValueError"
    assert re.search(words, said)
    assert said[-1] in ".)"


OPTIMIZED = """
import re, sys
from bad_inputs import cases, outcome
if __debug__:
    sys.exit("assertions are on")
found = [(name, outcome(arguments), words) for name, arguments, words in cases()]
bad = [line for line in found if line[1][0] != "ValueError" or not re.search(line[2], line[1][1])]
print(len(found), bad)
"""


def test_all_of_it_holds_without_assertions():
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent / "src")])
    said = subprocess.run(
        [sys.executable, "-O", "-c", OPTIMIZED],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.split() == [str(len(CASES)), "[]"]
    assert len(CASES) >= 300
