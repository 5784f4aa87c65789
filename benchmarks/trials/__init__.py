"""The trials of ``benchmarks/torture.py``, one module for each kind."""

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path += [
    str(TESTS / part) for part in ("", "kernels", "certificates")
]  # trials run the tests at a larger scale


class Outcome(NamedTuple):
    """A line of the table: what was done, what came out, and whether it passed."""

    done: str
    found: str
    passed: bool
