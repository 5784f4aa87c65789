"""Neighbors from an index: scores are below distances, and the same bytes come back every time."""

import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
from cometric.files import rows
from cometric.files.rows import rows_of
from cometric.landmarks import index as clusters
from cometric.landmarks import samples
from cometric.landmarks.neighbors import learned_rows, read_histograms
from cometric.landmarks.run_folder import RunFolder, open_run
from cometric.landmarks.stored import StoredRows
from cometric.results.extension import HeldDistances

X = cm.datasets.simulate_counts(150, 30, density=0.3, random_state=1).X
OPTIONS = {
    "default": {},
    "local": {"eps": 0.1, "restart": 0.5},
    "local-0.2": {"tau": "0.2"},
    "l1": {"tau": 1e-3},
    "exact": {"eps": 0.0, "tau": 0.05},
    "limit": {"eps": np.inf, "tau": 0.01, "norm": "l2"},
    "cosine": {"restart": 0.3, "norm": "cosine"},
    "hellinger": {"restart": 0.3, "norm": "hellinger"},
    "lsa": {"restart": 0.3, "norm": "lsa"},
    "merged": {"tau": 1e-3},
}


@pytest.fixture(scope="module", params=OPTIONS)
def case(request):
    """With "merged", one feature is twice another."""
    if request.param != "merged":
        return X, cm.learn(X[:70], tol=1e-3, **OPTIONS[request.param])
    more = sparse.csr_array(sparse.hstack([X, 2.0 * X[:, [3]]]))
    with pytest.warns(UserWarning, match="column that repeats"):
        return more, cm.learn(more[:70], tol=1e-3, **OPTIONS[request.param])


@pytest.fixture
def small(monkeypatch):
    """Blocks, scans and groups so small that several of each are used."""
    monkeypatch.setattr(samples, "DESCRIBED", 64)
    monkeypatch.setattr(clusters, "SCANNED", 60)
    monkeypatch.setattr(clusters, "GROUP", 7)
    monkeypatch.setattr(clusters, "BATCH", 40)
    monkeypatch.setattr(clusters, "SCORED", {True: 30, False: 30})


def distances_of(result, X):
    n = X.shape[0]
    distances = HeldDistances(result, "samples", *read_histograms(result, rows_of(X)))
    index = np.stack(np.indices((n, n)), axis=-1).reshape(-1, 2)
    return distances.pairs(index).reshape(n, n)


def described(result, X):
    found = samples.Samples(result, learned_rows(result, rows_of(X), np.inf))
    found.collect(map(found.describe, found.blocks()), np.inf)
    return found


def test_distances_are_those_of_the_map_of_all(case):
    X, result = case
    pairs = np.random.default_rng(0).integers(0, X.shape[0], (200, 2))
    true = distances_of(result, X)[pairs[:, 0], pairs[:, 1]]
    assert_allclose(described(result, X).distances(pairs), true, rtol=1e-6, atol=1e-6)


def test_scores_are_below_the_distances_and_close(case):
    X, result = case
    n = X.shape[0]
    found = described(result, X)
    every = np.arange(n)
    images, _ = found.potentials(every)
    scores = found.score(every, images, np.broadcast_to(every, (n, n)).copy())
    true, off = distances_of(result, X), ~np.eye(n, dtype=bool)
    assert np.corrcoef(scores[off], true[off])[0, 1] > 0.7
    if found.bounded:
        assert (scores[off] <= true[off] + 1e-6 * true.max()).all()
        off &= true > 0.0
        assert np.median(scores[off] / true[off]) > 0.6


@pytest.mark.parametrize("name", ["local", "local-0.2"])
def test_scores_have_the_exact_reference(name):
    result = cm.learn(X[:70], eps=0.1, norm=name, tol=1e-3)
    found, every, n = described(result, X), np.arange(150), 150
    images, _ = found.potentials(every)
    scores = found.score(every, images, np.broadcast_to(every, (n, n)).copy())
    hist, full = found.histograms(every)
    bounds = found.base.scale * -(images @ hist.T.toarray()) + found.p[:, None] + found.q
    R = found.base.norms.on(full).between(slice(0, n), slice(0, n))
    off = ~np.eye(n, dtype=bool)
    scored = (scores - np.maximum(bounds, 0.0)) / found.base.weight
    assert_allclose(scored[off], R[off], rtol=3 * samples.SLACK, atol=1e-5 * R.max())


@pytest.mark.parametrize("name", ["local", "local-0.2", "lsa", "cosine", "hellinger", "l1"])
def test_learned_samples_have_the_learned_distances(name):
    result = cm.learn(X[:70], eps=0.1, restart=0.4, norm=name, tol=1e-7)
    found = described(result, X[:70])
    pairs = np.stack(np.triu_indices(70, 1), axis=1)
    assert_allclose(found.distances(pairs), result.samples[tuple(pairs.T)], atol=1e-5)


def test_nearly_all_neighbors_are_found(case, small):
    X, result = case
    found = cm.neighbor_graph(result, X, 5, search="index", check=150)
    true = distances_of(result, X)
    near = found.graph.data.reshape(-1, 5)
    assert_allclose(true[np.arange(150)[:, None], found.graph.indices.reshape(-1, 5)], near,
                    rtol=1e-5, atol=1e-6)  # fmt: skip
    np.fill_diagonal(true, np.inf)
    level = np.sort(true, axis=1)[:, 4]
    hits = near <= level[:, None] * (1 + 1e-5) + 1e-6
    assert found.recall == pytest.approx(hits.mean(), abs=0.01)
    assert found.recall > 0.8
    assert found.check_proofs == 150
    assert hits[found.proved].all()
    assert found.proved.mean() > 0.4
    assert "by an index, without proofs" in repr(found)


def test_all_samples_as_candidates_with_none_left_out_give_all_neighbors(monkeypatch):
    monkeypatch.setattr(clusters, "_high_ratio", lambda low, _: np.full(len(low), np.inf))
    result = cm.learn(X[:70], tol=1e-3)
    found = cm.neighbor_graph(result, X, 4, search="index", max_candidates=149, check=150)
    assert found.recall == 1.0
    assert found.proved.all()


def test_the_number_of_threads_does_not_change_a_byte(small):
    result = cm.learn(X[:70], tol=1e-3)
    one, two = (
        cm.neighbor_graph(result, X, 5, search="index", check=0, n_threads=k).graph for k in (1, 2)
    )
    assert one.data.tobytes() == two.data.tobytes()
    assert one.indices.tobytes() == two.indices.tobytes()


@pytest.mark.parametrize("search", ["index", "exhaustive"])
def test_sources_of_rows_give_what_matrices_give(search, monkeypatch, small):
    monkeypatch.setattr(rows, "CHUNK", 30 * 40)  # rows of 40 samples at a time
    reads = []

    class Source:
        shape = X.shape

        def __getitem__(self, part):
            reads.append(part)
            return X[part].toarray()

    options = {"search": search, "check": 10, "tol": 1e-3, "random_state": 3}
    whole = cm.learn_landmarks(X, 60, 4, **options)
    parts = cm.learn_landmarks(Source(), 60, 4, **options)
    assert_array_equal(parts.landmarks, whole.landmarks)
    assert_array_equal(parts.features, whole.features)
    assert parts.graph.data.tobytes() == whole.graph.data.tobytes()
    assert max(part.stop - part.start for part in reads) == 40


def test_faults_of_a_source_name_the_row():
    bad = X.toarray()

    class Source:
        shape = bad.shape

        def __getitem__(self, part):
            return bad[part]

    for value, words in ((-1.0, "1 negative entry"), (np.nan, "1 NaN entry")):
        bad[131, 4] = value
        with pytest.raises(ValueError, match=f"{words} .first: row 131, column 4"):
            list(rows_of(Source()).chunks())
    bad[131] = 0.0
    with pytest.raises(ValueError, match=r"`X` has 1 empty row \(first: 131\)"):
        list(rows_of(Source()).chunks())


def test_values_that_float32_would_change_are_stored_in_float64(monkeypatch):
    chunks = [sparse.csr_array([[1.0, 2.0]]), sparse.csr_array([[0.1, 0.0]])]
    for limit in (np.inf, 16.0):  # in memory, and in a file
        stored = StoredRows(chunks, 2, limit)
        assert stored.data.dtype == np.float64
        assert_array_equal(stored.take(np.array([1, 0])).toarray(), [[0.1, 0.0], [1.0, 2.0]])
    assert StoredRows(chunks[:1], 2, np.inf).data.dtype == np.float32
    assert isinstance(stored.data, np.memmap)


@pytest.mark.parametrize("search", ["index", "exhaustive"])
def test_an_interrupted_run_continues_with_the_same_bytes(search, tmp_path, small, monkeypatch):
    monkeypatch.setattr("cometric.landmarks.exhaustive.BLOCK", 30 * 150)
    options = {"search": search, "check": 10, "tol": 1e-3}
    whole = cm.learn_landmarks(X, 60, 4, **options)
    saved, calls = RunFolder.save, []

    def dies(self, name, arrays):
        calls.append(name)
        if len(calls) > 4:
            raise KeyboardInterrupt
        saved(self, name, arrays)

    with monkeypatch.context() as patch:
        patch.setattr("cometric.landmarks.run_folder.RunFolder.save", dies)
        with pytest.raises(KeyboardInterrupt):
            cm.learn_landmarks(X, 60, 4, folder=tmp_path / "run", **options)
    parts = sorted((tmp_path / "run").glob("*.npz"))
    assert len(parts) == 4
    assert "result.npz" in [part.name for part in parts]
    again = cm.learn_landmarks(X, 60, 4, folder=tmp_path / "run", **options)
    assert all(part.exists() for part in parts)
    for found in (again, cm.learn_landmarks(X, 60, 4, folder=tmp_path / "run", **options)):
        assert found.graph.data.tobytes() == whole.graph.data.tobytes()
        assert found.graph.indices.tobytes() == whole.graph.indices.tobytes()
        assert found.neighbors.recall == whole.neighbors.recall
    with pytest.raises(ValueError, match="holds a run with other data or other settings"):
        cm.learn_landmarks(X, 61, 4, folder=tmp_path / "run", **options)
    with pytest.raises(ValueError, match="holds a run with other data or other settings"):
        cm.learn_landmarks(X[:140], 60, 4, folder=tmp_path / "run", **options)


def test_a_run_with_other_names_is_not_continued(tmp_path):
    """Items are matched by their names: with others, equal numbers are another problem."""
    names = [f"f{k}" for k in range(8)]
    counts = cm.datasets.simulate_counts(40, 8, types=2, density=0.8).X.toarray()
    table = pd.DataFrame(counts, columns=names)
    metric = np.abs(np.subtract.outer(np.arange(8.0) ** 2, np.arange(8.0) ** 2))
    run = partial(cm.learn_landmarks, landmarks=20, n_neighbors=2, check=0)
    run(table, folder=tmp_path / "data", tol=1e-1)
    with pytest.raises(ValueError, match="holds a run with other data or other settings"):
        run(table.set_axis(names[::-1], axis=1), folder=tmp_path / "data", tol=1e-1)
    given = pd.DataFrame(metric, names, names)
    run(table, folder=tmp_path / "given", features=given)
    swapped = pd.DataFrame(metric, names[::-1], names[::-1])
    with pytest.raises(ValueError, match="holds a run with other data or other settings"):
        run(table, folder=tmp_path / "given", features=swapped)


@pytest.mark.parametrize("search", ["exhaustive", "index"])
def test_a_run_without_a_seed_is_continued_with_its_own(tmp_path, search):
    """Otherwise the landmarks of the answer are not those of the stored result."""
    options = {"folder": tmp_path / "run", "random_state": None, "search": search}
    first, again = (cm.learn_landmarks(X, 60, 4, **options) for _ in range(2))
    assert_array_equal(first.landmarks, again.landmarks)
    assert first.neighbors.recall == again.neighbors.recall
    other = cm.learn_landmarks(X, 60, 4, **{**options, "folder": None})
    assert (first.landmarks[:20] != other.landmarks[:20]).any()


def test_a_run_is_continued_by_another_client_with_another_callback(tmp_path, monkeypatch):
    """After a crash the scheduler and functions have other addresses."""

    @wraps(cm.learn)
    def learn(X, *, client, **options):
        return cm.learn(X, **options)

    monkeypatch.setattr("cometric.landmarks.landmarks.learn", learn)
    options = {"folder": tmp_path / "run", "check": 0}
    first, again = (
        cm.learn_landmarks(X, 60, 4, client=client, callback=callback, **options)
        for client, callback in [(SimpleNamespace(submit=None), lambda *_: None) for _ in range(2)]
    )
    assert_array_equal(first.features, again.features)


@contextmanager
def begun(folder, origin="these data"):
    with open_run(folder) as run:
        run.bind(lambda: origin)
        yield run


def test_a_run_that_was_killed_while_it_began_can_begin_again(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".run.json.4711.99.part").write_bytes(b"{")
    with begun(folder) as progress:
        progress.save("one", {"x": np.arange(3)})
    with begun(folder) as progress:
        assert_array_equal(progress.load("one")["x"], np.arange(3))


def test_parts_that_are_not_as_they_were_stored_are_computed_again(tmp_path):
    with begun(tmp_path / "run") as run, begun(tmp_path / "other", "others") as other:
        for parts in (run, other):
            parts.save("one", {"x": np.arange(3)})
        part = tmp_path / "run" / "one.npz"
        whole = part.read_bytes()
        assert_array_equal(run.load("one")["x"], np.arange(3))
        (tmp_path / "run" / "two.npz").write_bytes(whole)
        assert run.load("two") is None
        part.write_bytes((tmp_path / "other" / "one.npz").read_bytes())
        assert run.load("one") is None
        for arrays in ({"x": np.arange(4)}, {"x": np.arange(3), "checksum": np.array("0")}):
            np.savez(part, **arrays)
            assert run.load("one") is None
        part.write_bytes(whole.replace(b"(3,)", b"(3, "))
        assert run.load("one") is None
    for damaged in ("[" * 100_000, "[]"):
        (tmp_path / "run" / "run.json").write_text(damaged)
        with (
            pytest.raises(ValueError, match="holds a run with other data or other settings"),
            begun(tmp_path / "run"),
        ):
            pass


def test_folders_of_something_else_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        cm.learn_landmarks(X, 60, 4, folder=tmp_path / "file")
    with pytest.raises(ValueError, match="is not empty, and not from an earlier run"):
        cm.learn_landmarks(X, 60, 4, folder=tmp_path)


CHILD = """
    import resource
    import numpy as np
    from scipy import sparse
    from cometric.files.rows import rows_of
    from cometric.landmarks.stored import store_rows

    class Source:  # 160 GB if it were dense
        shape = (2_000_000, 10_000)
        def __getitem__(self, part):
            n = len(range(*part.indices(self.shape[0])))
            columns = (np.arange(2 * n) * 7919) % 10_000
            return sparse.csr_array((np.ones(2 * n), columns, np.arange(0, 2 * n + 1, 2)),
                                    shape=(n, 10_000))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (1_500_000_000, limit))
    stored = store_rows(rows_of(Source()), 4e7)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert stored.shape == Source.shape and isinstance(stored.data, np.memmap)
    print((after - before) / 1e6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA and ru_maxrss are those of Linux")
def test_reading_in_chunks_keeps_to_a_cap_on_the_process():
    code = textwrap.dedent(CHILD)
    environment = {**os.environ, "PYTHONPATH": str(Path(cm.__file__).parents[1])}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert float(said.stdout) < 0.6  # GB
