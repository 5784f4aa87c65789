"""Compiled code is used again until any kernel changes, not only the file it came from."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometric.kernels import jit

SRC = Path(__file__).parents[2] / "src"

COUNT = """
import sys
from cometric.kernels import jit
jit.SOURCES += sys.argv[1]
sys.path.insert(0, sys.argv[2])
import kernel
kernel.twice(1)
print(sum(kernel.twice.stats.cache_hits.values()), sum(kernel.twice.stats.cache_misses.values()))
"""

KERNEL = """
from cometric.kernels.jit import njit

@njit
def twice(x):
    return 2 * x
"""


def hits_and_misses(folder, change):
    environment = {**os.environ, "PYTHONPATH": str(SRC), "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", COUNT, change, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_a_change_in_another_kernel_is_noticed(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    assert hits_and_misses(tmp_path, "") == (0, 1)
    assert hits_and_misses(tmp_path, "") == (1, 0)
    assert hits_and_misses(tmp_path, "changed") == (0, 1)


def test_the_checksum_is_that_of_all_kernels():
    assert len(jit.SOURCES) == 64
    assert jit.KERNELS / "simplex.py" in list(jit.KERNELS.glob("*.py"))
