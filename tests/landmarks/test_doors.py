"""What is stored belongs to one run: of another one, or damaged, it is refused or computed anew."""

import json
import os
import platform
import subprocess
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

import cometric as cm
import doors
from cometric.checkpoints.saved import REASONS
from cometric.core.digest import digest
from cometric.core.formula import Formula
from cometric.files.storage import LOCK, lock, unlock
from cometric.landmarks import index, neighbors, pairwise
from cometric.landmarks.run_folder import MANIFEST
from cometric.learning.settings import Settings, options
from doors import KNOWN, NEW, TAU, C, quiet, same

CASES = doors.cases()
NEEDS = {"distances_to_zarr": "zarr", "AnnData, transform": "anndata", "AnnData, result": "anndata"}


@pytest.mark.parametrize("case", CASES, ids=" | ".join)
def test_another_result_is_refused_or_computed_anew(case, tmp_path):
    pytest.importorskip(NEEDS.get(case[0], "numpy"))
    assert doors.outcome(CASES[case], tmp_path / "stored") in ("refused", "anew")


@pytest.mark.parametrize("door", sorted({door for door, _ in CASES}))
def test_the_same_call_continues(door, tmp_path):
    pytest.importorskip(NEEDS.get(door, "numpy"))
    call = next(calls[0] for (name, _), calls in CASES.items() if name == door)
    first = call(tmp_path / "stored")
    assert same(call(tmp_path / "stored"), first)
    assert same(call(None), first)


def rows_of(door):
    return {option.split(",")[0] for name, option in CASES if name.startswith(door)}


def test_every_option_that_changes_a_result_is_in_the_table():
    """A new option of learn fails here until it has a row."""
    answer = {part.name for part in options() if part.metadata["answer"]}
    answer -= {"device"}  # needs a GPU
    assert answer - rows_of("checkpoint") == {"samples", "features"}  # these take no checkpoint
    # With distances between samples given, new samples have none.
    assert answer - rows_of("learn_landmarks") == {"samples"}
    request = {part.name for part in fields(neighbors.Request) if part.compare}
    assert request - {"random_state"} <= rows_of("neighbor_graph")
    own = set(signature(cm.learn_landmarks).parameters) - {"X", "options", "device", "folder"}
    assert own - {"n_threads", "progress"} <= rows_of("learn_landmarks")
    formula = {part.name for part in fields(Formula) if part.init}
    for door in ("neighbor_graph", "distances_to_zarr", "AnnData, transform"):
        assert formula <= rows_of(door)


def test_options_that_change_no_result_are_declared():
    neutral = {part.name for part in options() if not part.metadata["answer"]}
    assert neutral == {"n_threads", "progress", "callback", "checkpoint", "checkpoint_every"}
    answer = {part.name for part in options()} - neutral
    assert set(Settings().to_json("answer")) == answer | set(REASONS)


# --------------------------------------------------------------------------------- identity


@pytest.fixture(scope="module")
def learned():
    table = pd.DataFrame(KNOWN, columns=[f"g{k}" for k in range(16)])
    return quiet(cm.learn, table, restart=0.3, norm=(None, C), smoothing=0.01)


def other(value):
    """Another value of the same kind; a kind that is not here needs a line."""
    if value is None:
        return 0.5
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, Enum):
        return next(item for item in type(value) if item is not value)
    if isinstance(value, tuple):
        return (other(value[0]), *value[1:])
    if sparse.issparse(value):
        return 1.5 * value
    if isinstance(value, np.ndarray):
        value = value.copy()
        value[tuple(np.array(value.shape) - 1)] = other(value.flat[-1].item())
        return value
    if isinstance(value, cm.Transport):
        return cm.Entropic(0.7)
    raise TypeError(f"a field is of type {type(value)}; say how to change it")


def changed_fields(item):
    """The names of the fields of a dataclass, each with the item where it is another."""
    for part in fields(item):
        value = getattr(item, part.name)
        inside = is_dataclass(value) and not isinstance(value, cm.Transport)  # has its own turn
        if part.init and not inside and not isinstance(value, list):
            value = np.ones(16) if part.name == "scale" else other(value)
            yield part.name, replace(item, **{part.name: value})


def test_every_field_of_a_result_is_part_of_its_identity(learned):
    known = learned.identity
    problem = learned.problem
    variants = {f"result {name}": item for name, item in changed_fields(learned)}
    for name, parameters in changed_fields(learned.parameters):
        variants[f"parameters {name}"] = replace(learned, parameters=parameters)
    for name, item in changed_fields(problem):
        variants[f"problem {name}"] = replace(learned, problem=item)
    for name, formula in changed_fields(problem.formula):
        item = replace(problem, formula=formula)
        variants[f"formula {name}"] = replace(learned, problem=item)
    for side in ("samples", "features"):
        for name, part in changed_fields(getattr(problem, side)):
            item = replace(problem, **{side: part})
            variants[f"{side} {name}"] = replace(learned, problem=item)
    unchanged = {name for name, item in variants.items() if item.identity == known}
    # Trees that save time; the norm, whose name is a parameter, its matrices a part of the result.
    assert unchanged == {"result bases", "formula norm"}
    assert {"formula tau", "parameters transport", "samples full", "result norms"} <= set(variants)
    assert replace(learned, history=learned.history[:1]).identity == known  # seconds


@dataclass(frozen=True)
class Own(cm.Transport):
    """A transport of a user: its fields are its parameters."""

    strength: float = 1.0


def test_parameters_of_any_transport_are_part_of_the_identity(learned):
    found = {
        replace(learned, parameters=replace(learned.parameters, transport=transport)).identity
        for transport in (Own(1.0), Own(2.0), cm.Unbalanced(0.1, rho=1), cm.Unbalanced(0.1, rho=2))
    }
    assert len(found) == 4


@pytest.mark.parametrize(
    "option",
    [{}, {"tau": 0.1, "norm": 3}, {"tau": 0.1, "norm": [doors.D, None]}, {"features": C},
     {"eps": 0, "saturate": 0.3}, {"normalization_steps": 2}, {"eps": np.inf, "tau": 0.1}],
    ids=str,
)  # fmt: skip
def test_a_result_read_from_a_file_is_the_same_result(option, tmp_path):
    result = quiet(cm.learn, KNOWN, **option)
    result.save(tmp_path / "result.npz")
    assert cm.load(tmp_path / "result.npz").identity == result.identity


def test_a_result_read_from_an_anndata_is_the_same_result():
    anndata = pytest.importorskip("anndata")
    cms = pytest.importorskip("cometric.scverse")

    cells = quiet(anndata.AnnData, KNOWN)
    found = quiet(cm.learn, cells, tau=0.1)
    quiet(cms.tl.learn, cells, tau=0.1)
    assert cms.get.result(cells).identity == found.identity


def test_checksums_tell_nested_values_apart():
    A, names = np.arange(4.0).reshape(2, 2), ["a", "b"]
    values = [
        None, "", 0, 1, 2.5, "1", [1, 2], [1, [2, A]], [1, [2, A + 1]], {"a": A}, {"b": A}, A,
        A.astype(np.float32), A.T, A.ravel(), sparse.csr_array(A), sparse.csr_array(A.T),
        pd.DataFrame(A), pd.DataFrame(A, columns=names), pd.DataFrame(A, columns=names[::-1]),
        np.array(names, object), np.array(names[::-1], object), np.array(names), Own(1.0), Own(2.0),
    ]  # fmt: skip
    long = np.arange(1100)  # whose text leaves out most entries
    values += [long, np.where(long == 500, 0, long)]
    assert len({digest({"x": value}) for value in values}) == len(values)
    assert len({digest({name: 1}) for name in "xyz"}) == 3
    for equal in ((np.float64(2.5), 2.5), (np.asfortranarray(A), A), (A.T, A.T.copy()),
                  (sparse.csc_matrix(A), sparse.csr_array(A))):  # fmt: skip
        assert len({digest({"x": value}) for value in equal}) == 1


def test_checksums_of_arrays_are_those_of_earlier_files():
    """Checkpoints and AnnData files of version 0.2 store them."""
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array("text"), "c": np.zeros((0, 2))}
    expected = "ee072c42e0ac281cb5dfe66be32243f1400bc29ce423209ad269548f4ee37962"
    assert digest(arrays) == expected


# ---------------------------------------------------------------------------------- damage


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path, place=0.7):
    raw = bytearray(path.read_bytes())
    raw[int(place * len(raw))] ^= 16
    path.write_bytes(raw)


def foreign(path):
    """The result of other landmarks, of the same shapes."""
    quiet(cm.learn, NEW[::-1][:24], tau=0.1).save(path)


DAMAGES = {
    "truncated": truncated,
    "flipped": flipped,
    "empty": lambda path: path.write_bytes(b""),
    "deleted": Path.unlink,
    "foreign": foreign,
}


@pytest.mark.parametrize("part", ["result.npz", "seed.npz", "neighbors-000000000.npz"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_part_that_is_not_of_this_run_is_computed_again(damage, part, tmp_path):
    random_state = None if part == "seed.npz" else 0
    call = partial(doors.landmarks, NEW, **TAU, random_state=random_state)
    first = call(tmp_path / "run")
    stored = (tmp_path / "run" / part).read_bytes()
    DAMAGES[damage](tmp_path / "run" / part)
    again = call(tmp_path / "run")
    if part == "seed.npz":  # other landmarks: nothing is left of the first ones
        seed = int(np.load(tmp_path / "run" / part)["seed"])
        assert same(again, call(None, random_state=seed))
    else:
        assert same(again, first)
        assert len((tmp_path / "run" / part).read_bytes()) == len(stored)
    assert same(call(tmp_path / "run"), again)


def test_the_stored_metric_is_a_result(tmp_path):
    doors.landmarks(NEW, tmp_path / "run", **TAU)
    found = cm.load(tmp_path / "run" / "result.npz")
    assert_array_equal(found.features, doors.landmarks(NEW, None, **TAU)[0])


def test_blocks_of_other_clusters_are_computed_again(tmp_path, monkeypatch):
    """Another processor may round otherwise, and put other samples into a block."""
    result = doors.given(KNOWN, tau=0.1)
    monkeypatch.setattr(index, "BATCH", 10)
    doors.graph("index", result, NEW, tmp_path / "run")
    centers = index._centers
    rng = np.random.default_rng(99)
    monkeypatch.setattr(index, "_centers", lambda points, count, _: centers(points, count, rng))
    found = doors.graph("index", result, NEW, tmp_path / "run")
    rng = np.random.default_rng(99)
    assert same(found, doors.graph("index", result, NEW, None))


def chunks(path):
    return sorted(part for part in (path / "c").rglob("*") if part.is_file())


def swapped(path):
    """Two chunks exchanged: each is intact, but at another place."""
    first, second = chunks(path)[1], chunks(path)[5]
    raw = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(raw)


def foreign_tiles(path):
    """All tiles of another result, with their checksums."""
    other = path.with_name("other.zarr")
    doors.zarr(doors.given(KNOWN, tau=0.2), NEW, other)
    for part in ("c", pairwise.CHECKSUMS):
        (path / part).rename(path.with_name("before" + part))
        (other / part).rename(path / part)


def torn(path):
    """The file of checksums as a killed process may leave it."""
    with open(path / pairwise.CHECKSUMS, "a") as file:
        file.write("\n0,16 4a\n16,1")


ZARR_DAMAGES = {
    "deleted": (1, lambda path: chunks(path)[1].unlink()),
    "deleted, mirrored": (1, lambda path: chunks(path)[3].unlink()),
    "truncated": (1, lambda path: truncated(chunks(path)[1])),
    "empty": (1, lambda path: chunks(path)[1].write_bytes(b"")),
    "flipped": (1, lambda path: flipped(chunks(path)[2])),
    "diagonal": (1, lambda path: flipped(chunks(path)[0], 0.5)),
    "swapped": (2, swapped),
    "number": (1, lambda path: quiet(_zarr_array(path).__setitem__, (3, 20), 0.25)),
    "foreign": (6, foreign_tiles),
    "torn": (1, torn),
    "no checksums": (6, lambda path: (path / pairwise.CHECKSUMS).unlink()),
    "no text": (6, lambda path: (path / pairwise.CHECKSUMS).write_bytes(b"\xff" * 99)),
}


def _zarr_array(path):
    import zarr

    return zarr.open_array(path, mode="r+")


@pytest.mark.parametrize(
    ("part", "damaged"),
    [
        ('"shape": [42, 42]', '"shape": [40, 42]'),
        ('"shape": [42, 42]', '"shape": [42, 43]'),
        ('"data_type": "float64"', '"data_type": "float32"'),
        ('"data_type": "float64"', '"data_type": "float63"'),
        ('"checksum": false', '"checkswm": false'),
        ('"fill_value": "NaN"', '"fill_vblue": "NaN"'),
        ('"attributes": {', '"attributes": ['),
    ],
)
def test_an_array_whose_description_is_damaged_is_refused(part, damaged, tmp_path):
    pytest.importorskip("zarr")
    result, path = doors.given(KNOWN, tau=0.1), tmp_path / "distances.zarr"
    doors.zarr(result, NEW, path)
    text = json.dumps(json.loads((path / "zarr.json").read_text()))
    assert part in text
    (path / "zarr.json").write_text(text.replace(part, damaged))
    words = "is not a Zarr array|is an array of other samples, or of another result"
    with pytest.raises(ValueError, match=f"`path` .* ({words})"):
        cm.distances_to_zarr(result, NEW, path)


@pytest.mark.parametrize("damage", ZARR_DAMAGES)
def test_a_damaged_tile_is_computed_again(damage, tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    monkeypatch.setattr(pairwise, "TILE", 16)
    result = doors.given(KNOWN, tau=0.1)
    path = tmp_path / "distances.zarr"
    first = doors.zarr(result, NEW, path)
    count, damage = ZARR_DAMAGES[damage]
    damage(path)
    compute, computed = pairwise._compute, []

    def counted(distances, *tile):
        computed.append(tile)
        return compute(distances, *tile)

    monkeypatch.setattr(pairwise, "_compute", counted)
    assert same(doors.zarr(result, NEW, path), first)
    assert len(computed) == count
    assert same(doors.zarr(result, NEW, path), first)
    assert len(computed) == count


# --------------------------------------------------------------------- versions and folders


def test_folders_of_earlier_versions_are_refused(tmp_path):
    result = doors.given(KNOWN, tau=0.1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MANIFEST).write_text(json.dumps({"cometric": "0" * 64}))
    with pytest.raises(ValueError, match="`folder` .* is from another version of .* Delete it"):
        cm.neighbor_graph(result, NEW, 4, folder=tmp_path / "run")


def test_arrays_of_earlier_versions_are_refused(tmp_path):
    zarr = pytest.importorskip("zarr")
    result = doors.given(KNOWN, tau=0.1)
    attributes = {"cometric": "0" * 64}
    array = {"shape": (42, 42), "chunks": (42, 42), "dtype": "float64", "attributes": attributes}
    zarr.create_array(tmp_path / "old", **array)
    with pytest.raises(ValueError, match="`path` .* is from another version of .* Delete it"):
        cm.distances_to_zarr(result, NEW, tmp_path / "old")
    zarr.create_array(tmp_path / "other", **{**array, "attributes": {}})
    with pytest.raises(ValueError, match="`path` .* is an array of other samples, or of another"):
        cm.distances_to_zarr(result, NEW, tmp_path / "other")


# ----------------------------------------------------------------------------------- locks

HOLDER = """
import sys, time
from pathlib import Path
from cometric.files.storage import lock
for folder in sys.argv[2:]:
    Path(folder).mkdir(exist_ok=True)
    lock(Path(folder))
if sys.argv[1] == "fork":
    import os
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:  # its locks are gone
        os.write(done, b"x")
        time.sleep(600)
    os.read(ready, 1)
    print(child, flush=True)
print("locked", flush=True)
time.sleep(600)
"""


@contextmanager
def held(*folders, how="stay"):
    """Another process that has locked the folders; and its child, if it forks."""
    words = [sys.executable, "-c", HOLDER, how, *map(str, folders)]
    env = {**os.environ, "PYTHONPATH": str(Path(cm.__file__).parents[1])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env) as holder:
        child = int(holder.stdout.readline()) if how == "fork" else 0
        try:
            assert holder.stdout.readline() == b"locked\n"
            yield holder
        finally:
            holder.kill()
            if child:
                os.kill(child, 9)


@pytest.mark.skipif(os.name != "posix", reason="needs locks of Unix")
def test_a_folder_in_use_is_refused_at_once_until_its_process_dies(tmp_path):
    result = doors.given(KNOWN, tau=0.1)
    calls = {
        "graph": partial(cm.neighbor_graph, result, NEW, 4, folder=tmp_path / "graph"),
        "landmarks": partial(cm.learn_landmarks, NEW, 24, 4, **TAU, folder=tmp_path / "landmarks"),
        "checkpoint": partial(cm.learn, KNOWN, **TAU, checkpoint=tmp_path / "checkpoint"),
    }
    if find_spec("zarr"):
        calls["zarr"] = partial(cm.distances_to_zarr, result, NEW, tmp_path / "zarr")
    with held(*(tmp_path / name for name in calls)) as holder:
        words = rf"is in use by process {holder.pid} on {platform.node()}\. Wait for it, or pass"
        for call in calls.values():
            with pytest.raises(ValueError, match=words):
                quiet(call)
    for call in calls.values():
        quiet(call)


def test_runs_of_two_threads_cannot_share_a_folder(tmp_path):
    def intrude(*_):
        with pytest.raises(ValueError, match=rf"is in use by process {os.getpid()} on"):
            cm.learn_landmarks(NEW, 24, 4, **TAU, folder=tmp_path)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cm.learn_landmarks(NEW, 24, 4, **TAU, folder=tmp_path, callback=intrude)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    with held(tmp_path, how="fork") as holder:
        with pytest.raises(ValueError, match="in use"):
            lock(tmp_path)
        holder.kill()
        holder.wait()
        unlock(lock(tmp_path))


def test_a_lock_without_a_name_and_a_disk_without_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    with open(tmp_path / LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(cm.CheckpointError, match="is in use by another run"):
            lock(tmp_path, cm.CheckpointError)

        def unknown(*_):
            raise OSError(95, "not supported")

        monkeypatch.setattr(fcntl, "flock", unknown)
        unlock(lock(tmp_path))
    unlock(None)
