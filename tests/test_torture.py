"""A little of ``make torture``: kills, corruption, full disks, no memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_short_version_of_the_stress_tests_passes():
    said = subprocess.run(
        [sys.executable, "benchmarks/torture.py", "--short"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("| pass") == 11
