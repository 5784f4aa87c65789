"""Free memory: that of the machine, within the limit of a container."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from cometric.runtime import devices


@pytest.mark.parametrize(("cgroup", "free"), [(np.inf, 5e9), (2e9, 2e9), (6e9, 5e9)])
def test_the_smaller_of_machine_and_container_counts(cgroup, free, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5_000_000_000))
    monkeypatch.setattr(devices, "_free_in_cgroup", lambda: cgroup)
    assert devices.free_memory() == free


def test_this_machine_has_some():
    assert 1e6 < devices.free_memory() <= psutil.virtual_memory().total


def test_the_limit_of_a_container_is_read(tmp_path):
    free = devices._free_in_cgroup
    assert free(str(tmp_path)) == devices.memory_limit(str(tmp_path)) == np.inf
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert free(str(tmp_path)) == 450.0
    assert devices.memory_limit(str(tmp_path)) == 1000.0
    (tmp_path / "memory.max").write_text("max\n")
    assert free(str(tmp_path)) == devices.memory_limit(str(tmp_path)) == np.inf


@pytest.mark.parametrize("name", ["mps", "meta"])
def test_devices_of_other_kinds_are_refused(name):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=f"`device` is '{name}', which is not supported; pass"):
        devices.torch_device(name)
