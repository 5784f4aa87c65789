"""What ``cometric info`` tells of the machine."""

import json
import os
import sys
from types import SimpleNamespace

import psutil
import pytest

from cometric.cli import system
from shell import run


def test_the_model_is_that_of_the_system(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Fast: 9000\nmodel name\t: Fast: 9000\n")
    assert system._processor(str(path)).startswith("Fast: 9000 (")
    assert system._processor(str(tmp_path / "none"))  # what Python knows


def test_vector_extensions_are_those_that_numba_compiles_for(monkeypatch):
    from llvmlite import binding

    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "old")
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: {"avx2": True, "avx512f": False})
    assert system._processor().endswith("(old: avx2)")
    monkeypatch.setattr(binding, "get_host_cpu_features", dict)
    assert system._processor().endswith("(old: no vector extensions we know)")


@pytest.mark.parametrize(
    ("limit", "said"), [(float("inf"), "16.0 GB in all, no limit"), (4e9, "limited to 4.0 GB")]
)
def test_memory_is_shown_with_its_limit(monkeypatch, limit, said):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16e9))
    monkeypatch.setattr(system, "free_memory", lambda: 2.5e9)
    monkeypatch.setattr(system, "memory_limit", lambda: limit)
    assert system._memory().startswith("2.5 GB free, 16.0 GB in all")
    assert system._memory().endswith(said)


def test_every_gpu_is_shown(monkeypatch):
    known = SimpleNamespace(name="H200", total_memory=150e9, major=9, minor=0)
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda _: known
    )
    torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    one = "H200, 150 GB, compute capability 9.0"
    assert system._gpu() == f"{one}; {one}; CUDA 12.8"
    cuda.is_available = lambda: False
    assert system._gpu() == "none that torch can use"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert system._gpu() == "none: torch is not installed"


def test_variables_are_shown_if_they_are_set(monkeypatch):
    for name in [name for name in os.environ if name.startswith(system.VARIABLES)]:
        monkeypatch.delenv(name)
    assert "no variables for threads and kernels" in run("info").stdout
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    assert json.loads(run("info", "--json").stdout)["environment"] == "NUMBA_NUM_THREADS=3"
