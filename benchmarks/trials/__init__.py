"""What ``benchmarks/torture.py`` does to the package, one module for each kind of trial."""

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path += [
    str(TESTS / part) for part in ("", "kernels", "proofs")
]  # trials are large helpings of the tests


class Outcome(NamedTuple):
    """A line of the table: what was done, what came out, and whether that is as promised."""

    done: str
    found: str
    passed: bool
