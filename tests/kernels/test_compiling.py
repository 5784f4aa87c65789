"""Kernels are compiled with a message, and used again until any kernel changes."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit

import cometric as cm
from cometric.core.types import Coupled
from cometric.kernels import compiling
from cometric.kernels.compiling import MESSAGE, announce_compilation
from cometric.runtime.progress import Ahead, Bar


def compile_a_kernel(module="cometric.kernels.new"):
    kernel = njit(lambda x: x + 1)
    kernel.py_func.__module__ = module
    assert kernel(1) == 2
    assert kernel(1.5) == 2.5  # compiled again, for another type


def test_compilation_is_announced_once():
    said = []
    with announce_compilation(said.append):
        compile_a_kernel()
    assert said == [MESSAGE]
    compile_a_kernel()  # the listener is removed
    assert said == [MESSAGE]


def test_kernels_of_other_packages_are_not_announced():
    said = []
    with announce_compilation(said.append):
        compile_a_kernel(__name__)
    assert said == []


def test_only_the_outermost_context_announces():
    outer, inner = [], []
    with announce_compilation(outer.append), announce_compilation(inner.append):
        compile_a_kernel()
    assert (outer, inner) == ([MESSAGE], [])


def test_kernels_loaded_from_the_cache_are_not_announced():
    cm.learn([[3, 1, 1], [1, 3, 2]], eps=0.5, tau=0.1)
    said = []
    with announce_compilation(said.append):
        cm.learn([[3, 1, 1], [1, 3, 2]], eps=0.5, tau=0.1)
    assert said == []


def test_a_bar_announces_on_standard_error(capfd):
    class Map:
        on_progress = None

    phi = Coupled(Map(), Map())
    for show in (False, True):
        with Bar.shown(show) as bar, bar.stage(phi, Ahead(1e-6, 10)):
            compile_a_kernel()
        output = capfd.readouterr()
        assert (MESSAGE in output.err) == show
        assert output.out == ""


SRC = Path(__file__).parents[2] / "src"

COUNT = """
import sys
from cometric.kernels import compiling
compiling.SOURCES += sys.argv[1]
sys.path.insert(0, sys.argv[2])
import kernel
kernel.twice(1)
print(sum(kernel.twice.stats.cache_hits.values()), sum(kernel.twice.stats.cache_misses.values()))
"""

KERNEL = """
from cometric.kernels.compiling import njit

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


def test_two_processes_that_compile_at_once_do_not_mix_their_code(tmp_path):
    """Both choose the same name for their files, since neither sees the index of the other."""
    first, second = (compiling.KernelCache(tmp_path, "kernel", "stamp") for _ in range(2))
    second._load_index = dict
    write = first._save_data

    def write_last(name, data):
        second.save("unbalanced", "code of the second")
        write(name, data)

    first._save_data = write_last
    first.save("balanced", "code of the first")
    found = compiling.KernelCache(tmp_path, "kernel", "stamp")
    assert found._load_index() == {"unbalanced": "kernel.1.nbc"}
    assert found.load("unbalanced") is None
    found.save("unbalanced", "code of the second")
    assert found.load("unbalanced") == "code of the second"


def test_an_index_without_its_file_does_not_return_older_code(tmp_path):
    compiling.KernelCache(tmp_path, "kernel", "old").save("key", "old code")
    killed = compiling.KernelCache(tmp_path, "kernel", "new")
    killed._save_data = lambda name, data: None
    killed.save("key", "new code")
    assert compiling.KernelCache(tmp_path, "kernel", "new").load("key") is None


@pytest.mark.parametrize("damaged", ["kernel.nbi", "kernel.1.nbc"])
def test_a_damaged_cache_is_replaced(tmp_path, damaged):
    cache = compiling.KernelCache(tmp_path, "kernel", "stamp")
    cache.save("key", "code")
    (tmp_path / damaged).write_bytes(b"")
    assert cache.load("key") is None
    cache.save("key", "code")
    assert cache.load("key") == "code"


def test_a_full_disk_leaves_kernels_uncached(tmp_path):
    cache = compiling.KernelCache(tmp_path, "kernel", "stamp")

    def fail(name, data):
        raise OSError(errno.ENOSPC, "no space left")

    cache._save_data = fail
    cache.save("key", "code")
    assert cache.load("key") is None


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_kernels_use_this_cache():
    assert isinstance(compiling.njit(lambda x: x)._cache._cache_file, compiling.KernelCache)


BITS = """
import hashlib, sys
import cometric as cm
X = cm.datasets.simulate_counts(20, 16, density=0.5, random_state=0).X.toarray() + 1
result = cm.learn(X, transport=eval(sys.argv[1]), tol=1e-6)
print(hashlib.sha256(result.samples.tobytes() + result.features.tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "transport", ["cm.Entropic(0.2)", "cm.Unbalanced(0.2, rho=0.5)", "cm.Exact()", "cm.Tree()"]
)
def test_bits_are_those_of_the_code_just_compiled(tmp_path, transport):
    """Which copy of an inlined function runs may differ; what it computes must not."""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", BITS, transport]
    compiled, cached = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert compiled == cached
