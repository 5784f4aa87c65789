"""Plans of data that are not in memory."""

import numpy as np
import pytest

import cometric as cm
from cometric.learning import planning


def test_data_outside_memory_are_not_read(tmp_path, monkeypatch):
    array = pytest.importorskip("dask.array")
    seen = []

    def block(block_info=None):
        shape = block_info[None]["chunk-shape"]
        seen.append(shape)
        return np.eye(*shape)

    X = array.map_blocks(block, chunks=((1000,) * 1000, (1000,)), dtype=float)
    planned = cm.plan(X)
    assert (planned.samples, planned.features) == (1_000_000, 1000)
    assert planned.density == pytest.approx(1e-3)
    assert not planned.fits
    assert len(seen) <= 2
    assert any("learn_landmarks(X)" in line for line in planned.advice)
    assert any("open_store(path)" in line for line in planned.advice)
    assert "the data were not read" in str(planned)


def test_small_data_outside_memory_are_planned_as_in_memory(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).gamma(0.5, size=(20, 15)))
    with cm.open_store(tmp_path / "x.npy") as store:
        planned = cm.plan(store, eps=0.5, tol=1e-2)
        alone = cm.plan(store.X, eps=0.5, tol=1e-2)
    assert planned.fits
    assert planned.engine == alone.engine
    monkeypatch.setattr(planning, "free_memory", lambda: 1e4)
    with cm.open_store(tmp_path / "x.npy") as store:
        assert not cm.plan(store).fits
