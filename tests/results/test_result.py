"""What a result says, and what survives being saved."""

import gc
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cometric import ConvergenceWarning, learn, load
from cometric.core.problem import Problem
from strategies import REPEATS_AND_HOLES

X = np.array([[3.0, 1.0, 1.0], [1.0, 2.0, 5.0], [2.0, 1.0, 7.0], [0.0, 4.0, 1.0]])


@pytest.fixture(scope="module")
def result():
    return learn(X, eps=0, tau=0.1, solver="power")


@pytest.fixture
def saved(result, tmp_path):
    path = tmp_path / "metrics.npz"
    result.save(path)
    return path


def assert_same(one, other):
    """Equal to the last bit."""
    assert_array_equal(one.samples, other.samples, strict=True)
    assert_array_equal(one.features, other.features, strict=True)
    for name in ("values", "status", "history", "bracket", "parameters"):
        assert getattr(one, name) == getattr(other, name)
    for side in ("samples", "features"):
        mine, theirs = getattr(one.problem, side), getattr(other.problem, side)
        assert_array_equal(mine.labels, theirs.labels, strict=True)
        assert_array_equal(mine.kept, theirs.kept, strict=True)
        assert (mine.full is mine.hist) == (theirs.full is theirs.hist)
        for part in ("hist", "full"):
            a, b = getattr(mine, part), getattr(theirs, part)
            assert a.shape == b.shape
            for field in ("data", "indices", "indptr"):
                assert_array_equal(getattr(a, field), getattr(b, field), strict=True)


def test_its_text_describes_the_result(result):
    lines = str(result).splitlines()
    assert lines[0] == "Learned a distance between 4 samples and one between 3 features"
    assert repr(result) == f"<{lines[0]}>"
    assert lines[1] == "  converged: the residual is below the tolerance"
    assert "(tolerance 1e-03, Hilbert metric)" in lines[2]
    lam, mu = result.values
    assert f"lam = {lam:.6f}, mu = {mu:.6f}, lam mu in [" in lines[3]
    assert "eps = 0, tau = 0.1, norm l1, PowerIteration" in lines[4]
    assert f"{result.iterations} iterations, {result.iterations} transport sweeps" in lines[5]
    with pytest.warns(ConvergenceWarning):
        stopped = learn(X, eps=0, tau=0.1, solver="power", tol=1e-12, max_iter=2)
    assert "not converged: the iteration limit was reached first" in str(stopped)


def test_a_saved_result_is_read_back_bit_by_bit_without_a_pickle(result, saved):
    assert_same(load(saved), result)
    with np.load(saved, allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)


def test_merged_and_dropped_items_are_read_back_too(tmp_path):
    with pytest.warns(UserWarning, match="repeats others"):
        merged = learn(REPEATS_AND_HOLES, eps=0, tau=0.1, solver="power", drop_empty=True)
    merged.save(tmp_path / "merged.npz")
    back = load(tmp_path / "merged.npz")
    assert_same(back, merged)
    assert back.samples.shape == (4, 4)
    assert back.samples[0, 3] == 0.0
    assert back.problem.features.kept.tolist() == 4 * [True] + [False]
    assert isinstance(back.problem, Problem)


@pytest.mark.parametrize(
    "options",
    [{"eps": 0.1, "norm": ("lsa", 2.5)}, {"tau": np.float32(0.125)}, {"max_iter": np.int64(500)}],
)
def test_pairs_of_names_and_numbers_of_numpy_come_back(tmp_path, options):
    given = learn(X, **{"eps": 0, "tau": 0.1, **options})
    given.save(tmp_path / "r.npz")
    back = load(tmp_path / "r.npz")
    assert_same(back, given)
    assert str(back.certify()) == str(given.certify())


def test_a_name_without_ending_is_used_as_it_is(result, tmp_path):
    result.save(os.fspath(tmp_path / "metrics"))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics"]
    assert_same(load(tmp_path / "metrics"), result)


@pytest.mark.parametrize("name", ["r.txt", "r.csv", "r.h5ad", "eps0.1", "r.npz.gz"])
def test_another_ending_than_npz_is_refused(result, tmp_path, name):
    path = os.fspath(tmp_path / name)
    words = rf"`path` is {path!r}; its ending should be .npz. For a table, write `samples` or"
    with pytest.raises(ValueError, match=words):
        result.save(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("letter", ["a", "ä", "日", "🌍"])
def test_a_name_as_long_as_any_can_be_saved(result, tmp_path, letter):
    path = tmp_path / (letter * (251 // len(letter.encode())) + ".npz")
    result.save(path)
    assert_array_equal(load(path).samples, result.samples)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_failed_save_leaves_nothing_behind(result, tmp_path, monkeypatch):
    def full_disk(file, **arrays):
        file.write(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="No space left"):
        result.save(tmp_path / "metrics.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file_alone(result, saved, monkeypatch):
    before = saved.read_bytes()

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        result.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.npz"):
        load(tmp_path / "nowhere.npz")
    (tmp_path / "metrics.npz").touch()
    with pytest.raises(FileNotFoundError, match=r"metric.npz` does not exist. Did you mean '.*met"):
        load(tmp_path / "metric.npz")


def refusal(path):
    """The message with which a damaged file is refused; None if it is not."""
    try:
        load(path)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_by_name_and_closed(saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    assert refusal(saved).startswith(f"`{saved}` is not a saved result, or is damaged")
    gc.collect()  # a file left open warns, which is an error


def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(result, saved):
    whole, rng = saved.read_bytes(), np.random.default_rng(0)
    refused = 0
    for bit in rng.choice(8 * len(whole), 200, replace=False):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        saved.write_bytes(flipped)
        message = refusal(saved)
        if message is None:  # dates and other fields of the archive that nobody reads
            assert_same(load(saved), result)
        else:
            assert f"`{saved}`" in message
            refused += 1
    gc.collect()
    assert refused > 100


def test_flipping_the_middle_of_every_array_is_noticed(saved):
    whole = saved.read_bytes()
    with zipfile.ZipFile(saved) as archive:
        entries = archive.infolist()
    for entry in entries:
        name_length, extra_length = (
            int.from_bytes(whole[entry.header_offset + at :][:2], "little") for at in (26, 28)
        )
        data = entry.header_offset + 30 + name_length + extra_length
        flipped = bytearray(whole)
        flipped[data + entry.compress_size // 2] ^= 0x10
        saved.write_bytes(flipped)
        with pytest.raises(ValueError, match="metrics.npz` is not a saved result, or is damaged"):
            load(saved)


def test_other_files_are_refused_by_name(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, numbers=np.arange(3))
    with pytest.raises(ValueError, match="other.npz` is not a saved result.* learn from it first"):
        load(path)
    path.write_bytes(pickle.dumps({"samples": [1, 2]}))
    with pytest.raises(ValueError, match="other.npz` is not a saved result"):
        load(path)


class Trap:
    """Raises an alarm when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_a_pickled_object_is_refused_and_not_run(saved):
    with np.load(saved) as file:
        arrays = dict(file)
    arrays["samples"] = np.array([Trap()], dtype=object)
    np.savez(saved, **arrays)
    with pytest.raises(ValueError, match="metrics.npz` is not a saved result, or is damaged"):
        load(saved)


def rewritten(path, header=None, **arrays):
    """The saved file with some parts replaced, or left out where None is given."""
    with np.load(path) as file:
        kept = dict(file) | arrays
    if header is not None:
        kept["header"] = np.frombuffer(header, np.uint8)
    np.savez(path, **{name: array for name, array in kept.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"header": b"[]"}, "metrics.npz"),
        ({"header": b'{"schema": 3}'}, "is damaged"),
        ({"header": b'{"schema": 2}'}, "metrics.npz` has schema 2; this version reads 3"),
        ({"history": None}, "metrics.npz"),
        ({"features_hist_data": None}, "metrics.npz"),
        ({"history": np.zeros((2, 3))}, "metrics.npz"),
        ({"samples": np.zeros((2, 2))}, r"damaged: .*samples has shape \(2, 2\), not \(4, 4\)"),
    ],
)
def test_a_file_with_other_parts_is_refused_by_name(saved, changes, words):
    rewritten(saved, **changes)
    with pytest.raises(ValueError, match=words):
        load(saved)


@pytest.mark.parametrize("n_threads", [0, -1, 2.0, "2", [2], True])
def test_a_wrong_number_of_threads_is_refused(result, n_threads):
    for call in (result.certify, lambda count: result.transform(X, n_threads=count)):
        with pytest.raises(ValueError, match="`n_threads` is .*; pass a whole number, at least 1"):
            call(n_threads)


@pytest.mark.parametrize("of", ["sample", None, 0, ["samples"], np.array("samples")])
def test_a_wrong_side_is_refused(result, of):
    for call in (result.tree, lambda of: result.nearest(0, of=of),
                 lambda of: result.transform(X, of=of)):  # fmt: skip
        with pytest.raises(ValueError, match="`of` is .*; choose 'samples' or 'features'"):
            call(of)


@pytest.mark.parametrize("items", [None, 1.0, True, b"0", [None], [[0]], np.array(1.5)])
def test_items_that_are_neither_names_nor_numbers_are_refused(result, items):
    with pytest.raises(TypeError, match="`items` is .*; pass the name or number of one of the"):
        result.nearest(items)


def test_items_may_be_any_sequence(result):
    expected = result.nearest([0, 1])
    for items in ((0, 1), np.array([0, 1]), iter([0, 1]), range(2)):
        assert result.nearest(items) == expected
    assert result.nearest(np.int64(1)) == result.nearest(1)
    with pytest.raises(ValueError, match="names of features are numbers .'0', '1'.*: pass one of"):
        result.nearest("film")


@pytest.mark.parametrize("path", [None, 3, "", b"x.npz", 1.0, ["x.npz"]])
def test_a_path_that_is_not_a_file_name_is_refused(result, path):
    for call in (result.save, load):
        with pytest.raises(ValueError, match="`path` is .*; pass the name of a file"):
            call(path)


def test_an_error_names_the_folder_and_not_a_temporary_file(result, tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        result.save(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    with pytest.raises(FileNotFoundError) as missing:
        result.save(tmp_path / "none" / "x.npz")
    assert missing.value.filename == str(tmp_path / "none")


def test_files_of_version_0_2_have_its_reference(tmp_path):
    """Which stored no ``overlap`` and ``chosen``, and called its reference "local"."""
    counts = np.random.default_rng(0).poisson(2.0, (30, 20)) + 1.0
    result = learn(counts, tau="0.2")
    result.save(tmp_path / "r.npz")
    with np.load(tmp_path / "r.npz") as stored:
        header = json.loads(bytes(stored["header"]))
    header["parameters"]["norm"] = "local"
    del header["parameters"]["overlap"], header["parameters"]["chosen"]
    rewritten(tmp_path / "r.npz", json.dumps(header).encode())
    loaded = load(tmp_path / "r.npz")
    assert loaded.parameters.norm == "local-0.2"
    assert_array_equal(loaded.transform(counts[:3] + 1.0), result.transform(counts[:3] + 1.0))
