"""Distances on disk: the bytes of those in memory, whatever the tiles and however often stopped."""

import math
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cometric as cm
from cometric.files.rows import rows_of
from cometric.landmarks import pairwise
from cometric.landmarks.neighbors import read_histograms
from cometric.maps.norms import norm_matrix
from cometric.results.extension import HeldDistances

zarr = pytest.importorskip("zarr")

X = cm.datasets.simulate_counts(45, 20, density=0.3, random_state=1).X
OPTIONS = [(0.0, 0.05), (0.1, 1e-3), (math.inf, 0.01)]


@pytest.fixture(scope="module", params=OPTIONS, ids=str)
def result(request):
    eps, tau = request.param
    return cm.learn(X[:25], eps=eps, tau=tau, norm="l1", tol=1e-4, drop_empty=True)


@pytest.fixture(scope="module")
def entropic():
    return cm.learn(X[:25], eps=0.1, tol=1e-4, drop_empty=True)


def in_memory(result):
    """All distances from one call of a fresh map, and norms of all differences."""
    hist, full = read_histograms(result, rows_of(X))
    by = HeldDistances(result, "samples", hist, full)
    eps = result.parameters.eps
    if 0.0 < eps < math.inf:
        phi = cm.EntropicMap(hist, eps=eps, tol=by.phi.accuracy.tol)
    else:
        phi = cm.LimitMap(hist) if eps else cm.ExactMap(hist)
    return np.maximum(by.scale * phi(by.cost) + by.weight * norm_matrix(full, "l1"), 0.0)


@pytest.mark.parametrize("edge", [7, 16, 512])
def test_tiles_of_any_size_hold_the_bytes_of_the_map(result, edge, tmp_path, monkeypatch):
    monkeypatch.setattr(pairwise, "TILE", edge)
    found = cm.distances_to_zarr(result, X, tmp_path / "distances.zarr")
    assert found.chunks == (min(edge, 45), min(edge, 45))
    assert_array_equal(found[:], found[:].T)
    if result.parameters.eps < math.inf:
        assert_array_equal(found[:], in_memory(result))
    else:  # the map multiplies matrices, the pairs are sums of their own
        assert_allclose(found[:], in_memory(result), atol=1e-13)
    assert_allclose(found[:][:, :25], result.transform(X), atol=1e-6)


def test_the_progress_ends_at_the_number_of_pairs(entropic, tmp_path, monkeypatch):
    counts = []

    @contextmanager
    def counted(show, total):
        done = []
        yield lambda part, parts: done.append(parts)
        counts.append((total, sum(done)))

    monkeypatch.setattr(pairwise, "TILE", 16)
    monkeypatch.setattr(pairwise, "bar_of_pairs", counted)
    cm.distances_to_zarr(entropic, X, tmp_path / "distances.zarr", n_threads=1, progress=True)
    assert counts == [(45 * 46 // 2, 45 * 46 // 2)]


def test_after_an_interruption_only_missing_tiles_are_computed(entropic, tmp_path, monkeypatch):
    monkeypatch.setattr(pairwise, "TILE", 16)
    whole = cm.distances_to_zarr(entropic, X, tmp_path / "whole.zarr")[:]
    compute, computed = pairwise._compute, []

    def stop_at_the_fourth(distances, rows, columns):
        computed.append((rows.start, columns.start))
        if len(computed) == 4:
            raise KeyboardInterrupt
        return compute(distances, rows, columns)

    monkeypatch.setattr(pairwise, "_compute", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        cm.distances_to_zarr(entropic, X, tmp_path / "part.zarr")
    part = cm.distances_to_zarr(entropic, X, tmp_path / "part.zarr")
    assert computed[3] == computed[4]
    assert len(computed) == 7  # six tiles, one of them twice
    assert part[:].tobytes() == whole.tobytes()


def test_a_call_that_was_killed_while_it_began_can_begin_again(entropic, tmp_path):
    whole = cm.distances_to_zarr(entropic, X, tmp_path / "whole.zarr")[:]
    for begun in (tmp_path / "begun.zarr", tmp_path / "torn.zarr"):
        begun.mkdir()
        if begun.stem == "torn":
            (begun / "zarr.4711.partial").write_bytes(b"{")
        assert_array_equal(cm.distances_to_zarr(entropic, X, begun)[:], whole)


def test_repeated_samples_are_at_distance_zero(entropic, tmp_path):
    twice = np.concatenate([X.toarray(), 3.0 * X.toarray()[:1]])
    found = cm.distances_to_zarr(entropic, twice, tmp_path / "distances.zarr")
    assert found.shape == (46, 46)
    assert found[0, 45] == pytest.approx(0.0, abs=1e-9)


def test_a_file_or_folder_of_something_else_is_refused(entropic, tmp_path):
    (tmp_path / "notes.txt").touch()
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError, match="`path` .* is not a Zarr array"):
            cm.distances_to_zarr(entropic, X, path)


def test_without_zarr_it_says_what_to_install(entropic, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"pip install 'cometric\[zarr\]'"):
        cm.distances_to_zarr(entropic, X, tmp_path / "distances.zarr")
