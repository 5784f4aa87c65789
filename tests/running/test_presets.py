"""Advice by size, and plans of data that are not in memory."""

import numpy as np
import pytest

import cometric as cm
from cometric.running import planning
from cometric.running.presets import preset


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (5_000, ["up to 5,000", "`learn`"]),
        (5_001, ["up to 50,000", "`learn_landmarks`", "`search='exhaustive'` proves"]),
        (50_001, ["up to 500,000", "index", "recall", "open_store(path)", "`folder='run'`"]),
        (5_000_000, ["more than 500,000", "kmeans++", "open_store(path)", "`folder='run'`"]),
    ],
)
def test_there_is_advice_for_every_size(samples, words):
    text = " ".join(preset(samples))
    assert [word for word in words if word not in text] == []


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
    assert any("more than 500,000 samples" in line for line in planned.advice)
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
