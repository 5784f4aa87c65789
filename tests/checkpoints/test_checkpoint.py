"""A run that was stopped goes on to the same bits, and no damage goes unnoticed."""

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import cometric as cm
from cometric.checkpoints import checkpoint as module
from cometric.checkpoints.folder import CheckpointError, CheckpointWarning
from cometric.checkpoints.saved import latest
from cometric.core.types import Iterate

X = cm.datasets.simulate_counts(14, 12, density=0.5, random_state=1).X.toarray() + np.eye(14, 12)
TORUS = cm.datasets.torus("bimodal", 8, 6)
SLOW = np.random.default_rng(0).poisson(0.4, (16, 12)) + np.eye(16, 12)
SLOW += np.arange(16)[:, None] % 12 == np.arange(12)
RUNS = {
    "policy": (X, {"eps": 0, "tau": 0.01, "tol": 1e-10}),
    "policy at tau = 0": (TORUS, {"eps": 0, "tau": 0, "tol": 1e-8}),
    "policy, couplings replayed": (X, {"eps": 0, "tau": 0.01, "tol": 1e-10, "memory_limit": 3e4}),
    "exact power": (X, {"eps": 0, "tau": 0.3, "solver": "power", "memory_limit": 1}),
    "exact stochastic": (X, {"eps": 0, "tau": 1, "solver": "stochastic", "tol": 1e-2}),
    "anderson": (X, {"eps": 0.1, "tau": 0.1}),
    "anderson, float32 first": (X, {"eps": 0.1, "tau": 0.1, "dtype": "f4"}),
    "anderson, trials that fail": (SLOW, {"eps": 0.3, "tau": 1e-3, "tol": 1e-6}),
    "one heavy feature": (np.column_stack([np.full(14, 1e4), X]), {"eps": 0.1, "tau": 1e-3}),
    "logarithms": (X[:6, :5] + 1, {"eps": 0.0066, "tau": 0.5, "tol": 0.1}),
    "nothing remembered": (X, {"eps": 0.2, "tau": 0.3, "memory_limit": 1, "solver": "power"}),
    "stochastic": (X, {"eps": 0.3, "tau": 0.5, "solver": cm.StochasticIteration(0.5)}),
    "limit": (X, {"eps": np.inf, "tau": 0.1}),
    "unbalanced": (X, {"transport": cm.Unbalanced(0.2, rho=0.5), "tau": 0.05}),
    "trees": (X, {"transport": cm.Tree("complete"), "tau": 0.1}),
}  # fmt: skip


class Stopped(Exception):
    pass


@pytest.fixture(autouse=True)
def attentive():
    """Ctrl-C is heard here, even if whoever started the tests ignores it, as nohup does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """No test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def stop_after(count):
    """A callback that lets ``count`` iterations be saved."""
    calls = []

    def call(now, record):
        calls.append(record)
        if len(calls) > count:
            raise Stopped

    return call


def start(folder, count=3, data=X, **options):
    """Begin a run and stop it after ``count`` checkpoints."""
    eps = {} if "transport" in options else {"eps": 0.1}
    options = eps | {"tau": 0.1} | options
    with pytest.raises(Stopped):
        cm.learn(data, checkpoint=folder, checkpoint_every=0, callback=stop_after(count), **options)


def assert_same(one, other):
    """Everything but the seconds."""
    assert one.samples.tobytes() == other.samples.tobytes()
    assert one.features.tobytes() == other.features.tobytes()
    assert one.values == other.values
    assert one.bracket == other.bracket
    assert one.status is other.status
    assert [line[:5] for line in one.history] == [line[:5] for line in other.history]


# Going on


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_ends_with_the_same_bits(name, tmp_path):
    data, options = RUNS[name]
    seen = []
    whole = cm.learn(data, callback=lambda *line: seen.append(line), **options)
    for count in {1, len(seen) - 1}:
        folder = tmp_path / str(count)
        start(folder, count, data, **options)
        assert_same(cm.resume(folder), whole)
    shutil.rmtree(folder)
    start(folder, 1, data, **options)
    assert_same(cm.learn(data, checkpoint=folder, **options), whole)


@pytest.mark.parametrize("name", ["anderson, trials that fail", "policy"])
def test_trials_and_waits_in_progress_resume_where_they_were(name, tmp_path):
    data, options = RUNS[name]
    seen = []
    whole = cm.learn(data, callback=lambda now, _: seen.append(now), **options)
    trial = next(k for k, now in enumerate(seen) if now.tried > 0 or now.anchor is not None)
    wait = next((k for k, now in enumerate(seen) if now.wait > 0), trial)
    assert name == "policy" or wait > trial
    for at in {trial, wait, wait + 1}:
        folder = tmp_path / str(at)
        start(folder, at + 1, data, **options)
        assert_same(cm.resume(folder), whole)


def test_every_stage_on_the_way_to_tau_zero_can_be_resumed(tmp_path):
    data, options = RUNS["policy at tau = 0"]
    whole = cm.learn(data, checkpoint=tmp_path / "all", checkpoint_every=0, **options)
    total = latest(tmp_path / "all").number
    assert latest(tmp_path / "all").stage == 5

    def fail_after(count):
        real, left = module.write_arrays, [count]

        def write(folder, name, arrays):
            left[0] -= name != "data.npz"
            if left[0] < 0:
                raise Stopped
            return real(folder, name, arrays)

        return write

    stages = set()
    for count in range(1, total, 2):
        folder = tmp_path / str(count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "write_arrays", fail_after(count))
            with pytest.raises(Stopped):
                cm.learn(data, checkpoint=folder, checkpoint_every=0, **options)
        stages.add(latest(folder).stage)
        assert_same(cm.resume(folder), whole)
    assert stages == {1, 2, 3, 4, 5}


def test_elapsed_time_and_iteration_count_continue(tmp_path):
    start(tmp_path, 3)
    before = latest(tmp_path).history(1)
    after = cm.resume(tmp_path).history
    assert after[:3] == before
    assert sorted(line.seconds for line in after) == [line.seconds for line in after]


def test_a_finished_run_is_read_rather_than_repeated(tmp_path):
    whole = cm.learn(X, 0.1, 0.1, checkpoint=tmp_path)
    steps = []
    again = cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, callback=lambda *line: steps.append(line))
    assert_same(again, whole)
    assert steps == []


def test_the_iteration_limit_may_be_raised(tmp_path):
    with pytest.warns(cm.ConvergenceWarning, match="after 4 iterations"):
        cm.learn(X, 0.1, 0.1, max_iter=4, checkpoint=tmp_path)
    with pytest.warns(cm.ConvergenceWarning, match="after 4 iterations"):
        cm.resume(tmp_path)
    assert_same(cm.resume(tmp_path, max_iter=1000), cm.learn(X, 0.1, 0.1))


def test_norms_names_and_starts_come_along(tmp_path):
    rng = np.random.default_rng(0)
    norms = []
    for k in X.shape:
        points = rng.random((k, 3))
        norms.append(np.abs(points[:, None] - points).sum(-1))
    options = {"norm": tuple(norms), "start": "random", "eps": 0.1, "tau": 0.1}
    whole = cm.learn(X, random_state=3, **options)
    start(tmp_path, random_state=3, **options)
    result = cm.resume(tmp_path)
    assert_same(result, whole)
    assert (result.norms[0] == norms[0]).all()
    start(tmp_path / "unseeded", **options)
    cm.learn(X, checkpoint=tmp_path / "unseeded", **options)  # not refused: the start was drawn


def test_numbers_of_numpy_are_numbers(tmp_path):
    options = {
        "eps": np.float64(0.1),
        "tau": np.float32(0.5),
        "max_iter": np.int64(500),
        "random_state": np.int32(1),
        "memory_limit": np.int64(10**6),
        "solver": cm.AndersonIteration(memory=np.int64(3)),
    }
    start(tmp_path, 2, **options)
    assert_same(cm.resume(tmp_path), cm.learn(X, **options))
    cm.learn(X, checkpoint=tmp_path, **options)


def test_checkpoints_are_written_at_the_given_interval(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def pass_a_second(*line):
        now[0] += 1.0

    result = cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, checkpoint_every=4, callback=pass_a_second)
    assert latest(tmp_path).number == -(-result.iterations // 4)  # and one at the end


def test_the_folder_has_two_checkpoints_and_no_temporary_files(tmp_path):
    for name in (".state-000009.npz.part", ".data.npz.part", ".manifest-000009.part"):
        (tmp_path / name).write_bytes(b"scrap")
    (tmp_path / ".mine.part").write_bytes(b"not ours")
    start(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        ".mine.part",
        "data.npz",
        "manifest-000004",
        "manifest-000005",
        "state-000004.npz",
        "state-000005.npz",
    ]


@pytest.mark.parametrize("device", ["torch:cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_runs_on_tensors_resume_too(device, tmp_path):
    pytest.importorskip("torch")
    options = {"eps": 0.3, "tau": 0.5, "tol": 1e-3, "device": device}
    small = X[:6, :5] + 1
    whole = cm.learn(small, **options)
    start(tmp_path, 2, small, **options)
    result = cm.resume(tmp_path)
    assert result.status is whole.status
    np.testing.assert_allclose(result.samples, whole.samples, rtol=1e-10)
    assert [line.iteration for line in result.history] == [line.iteration for line in whole.history]


# What does not fit is refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tau": 0.2}, "`tau` is 0.2 here and 0.1 there"),
        ({"eps": 0}, r"`transport` is exact\(\) here and entropic\(eps=0.1\) there"),
        ({"norm": "l2"}, "`norm` is 'l2' here and 'local' there"),
        ({"dtype": "f4"}, "`dtype` is 'float32' here and 'auto' there"),
        ({"solver": cm.AndersonIteration(memory=2)}, r"`solver` is AndersonIteration\(.*\) here"),
        ({"memory_limit": 1e9}, "`memory_limit` is 1 GB here and not given there"),
        ({"start": "random"}, "`start` is 'random' here and not given there"),
        ({"smoothing": 0.1}, "the data differ"),
        ({"X": X + 1}, "the data differ"),
        ({"tau": 0.2, "eps": 0.3}, "`tau` is 0.2 here .* there; `eps` is 0.3 here"),
    ],
)  # fmt: skip
def test_another_run_is_refused_and_what_differs_is_named(change, words, tmp_path):
    start(tmp_path)
    options = {"X": X, "eps": 0.1, "tau": 0.1} | change
    with pytest.raises(CheckpointError, match=f"holds a checkpoint of another run: .*{words}"):
        cm.learn(checkpoint=tmp_path, **options)


def rewrite(folder, change):
    """Change a manifest and give it a right checksum: what an attacker would do."""
    path = max(folder.glob("manifest-*"))
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    change(content)
    body = json.dumps(content).encode()
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def rewrite_state(folder, change):
    """Change the arrays of the newest state, likewise."""
    path = max(folder.glob("state-*"))
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    sign(folder, path)


def sign(folder, path):
    raw = path.read_bytes()
    mark = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    rewrite(folder, lambda content: content["files"].update({path.name: mark}))


@pytest.mark.parametrize("schema", [[2, 1], [4, 0], None, "2.0", []])
def test_another_schema_is_refused_and_not_skipped(schema, tmp_path):
    start(tmp_path)
    rewrite(tmp_path, lambda content: content.update(schema=schema))
    with pytest.raises(CheckpointError, match="manifest-000003` has schema .*; this version reads"):
        cm.resume(tmp_path)


def test_a_later_minor_schema_is_read(tmp_path):
    start(tmp_path)
    rewrite(tmp_path, lambda content: content.update(schema=[3, 7], something="new"))
    assert_same(cm.resume(tmp_path), cm.learn(X, 0.1, 0.1))


def test_other_versions_are_reported(tmp_path):
    start(tmp_path)
    rewrite(tmp_path, lambda content: content["versions"].update(numba="0.1"))
    with pytest.warns(CheckpointWarning, match=r"written with numba 0.1 \(now .*to tolerance"):
        cm.resume(tmp_path)


def test_a_solver_that_cannot_be_stored_must_be_passed_again(tmp_path):
    solver = OwnIteration()
    whole = cm.learn(X, 0.3, 0.5, tol=1e-2, solver=solver)
    start(tmp_path, eps=0.3, tau=0.5, tol=1e-2, solver=solver)
    with pytest.raises(CheckpointError, match="made with .*OwnIteration, which cannot be stored"):
        cm.resume(tmp_path)
    again = cm.learn(X, 0.3, 0.5, tol=1e-2, solver=solver, checkpoint=tmp_path)
    assert_same(again, whole)


class OwnIteration(cm.PowerIteration):
    """A solver that a manifest cannot name."""


def test_a_state_that_cannot_be_stored_is_an_error_after_the_first_step(tmp_path):
    @dataclass(frozen=True)
    class Hoard(Iterate):
        pile: list = field(default_factory=list)

    class Hoarder(cm.PowerIteration):
        def init(self, phi, start):
            return Hoard(start, values=(1.0, 1.0))

    with pytest.raises(TypeError, match="`pile` of the iterate is a list, which no checkpoint"):
        cm.learn(X, 0.1, 0.1, solver=Hoarder(), checkpoint=tmp_path)


def test_an_empty_folder_cannot_be_resumed(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="holds no checkpoint. Start with learn"):
            cm.resume(folder)
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for folder in (
        tmp_path / "file" / "below",
        tmp_path / "dangling",
        tmp_path / "a" / ("b" * 300),
    ):
        with pytest.raises(CheckpointError, match="where nothing can be written .*another folder"):
            cm.learn(X, tau=0.1, checkpoint=folder)


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    call = lambda now, record: os.chdir(elsewhere)  # noqa: E731
    found = cm.learn(X, tau=0.1, checkpoint="run", checkpoint_every=0, callback=call)
    assert not list(elsewhere.iterdir())
    assert np.array_equal(cm.resume(tmp_path / "run").samples, found.samples)


def test_a_client_is_refused_where_none_was(tmp_path):
    cm.learn(X, tau=0.1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="`client` has no effect: .* was started without"):
        cm.resume(tmp_path, client="local")


def test_a_folder_in_use_is_neither_resumed_nor_removed(tmp_path):
    def intrude(now, record):
        for use in (cm.resume, cm.remove_checkpoint):
            with pytest.raises(CheckpointError, match=r"in use by process \d+ on .+\. Wait for it"):
                use(tmp_path)

    start(tmp_path)
    result = cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, checkpoint_every=0, callback=intrude)
    assert_same(cm.resume(tmp_path), result)


# Damage


def newest(folder, kind):
    return max(folder.glob(f"{kind}-*"))


@pytest.mark.parametrize("kind", ["manifest", "state"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(kind, damage, tmp_path):
    start(tmp_path)
    path = newest(tmp_path, kind)
    raw = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        raw[len(raw) // 2] ^= 4
        kept = {"flip": raw, "truncate": raw[:-9], "empty": b""}[damage]
        path.write_bytes(kept)
    if (kind, damage) == ("manifest", "remove"):  # then it was never complete
        result = cm.resume(tmp_path)
    else:
        with pytest.warns(CheckpointWarning, match=f"{path.name}` is .*the previous checkpoint"):
            result = cm.resume(tmp_path)
    assert_same(result, cm.learn(X, 0.1, 0.1))


def test_swapped_files_are_noticed(tmp_path):
    start(tmp_path)
    for kind in ("manifest", "state"):
        one, other = sorted(tmp_path.glob(f"{kind}-*"))
        aside = tmp_path / "aside"
        one.rename(aside), other.rename(one), aside.rename(other)
        with pytest.raises(CheckpointError, match="No intact checkpoint is left"):
            cm.resume(tmp_path)
        one.rename(aside), other.rename(one), aside.rename(other)


def test_damaged_data_matter_only_to_those_who_need_them(tmp_path):
    start(tmp_path)
    path = tmp_path / "data.npz"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="data.npz` is damaged: its checksum is wrong"):
        cm.resume(tmp_path)
    whole = cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, checkpoint_every=0)
    assert_same(cm.resume(tmp_path), whole)


def test_after_a_fall_back_no_damaged_file_counts_as_previous(tmp_path):
    start(tmp_path)
    newest(tmp_path, "state").write_bytes(b"")
    with pytest.warns(CheckpointWarning), pytest.raises(Stopped):
        cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, checkpoint_every=0, callback=stop_after(1))
    newest(tmp_path, "manifest").unlink()
    assert latest(tmp_path).number == 2


@pytest.mark.parametrize("option", ["transport", "solver"])
def test_options_of_a_later_version_are_refused(option, tmp_path):
    cm.learn(X, 0.5, 0.5, solver=cm.PowerIteration(), checkpoint=tmp_path)
    kinds = {"transport": "entropic", "solver": "cometric.solvers.power.PowerIteration"}
    later = {"kind": kinds[option], "later": 1}
    rewrite(tmp_path, lambda content: content["asked"].update({option: later}))
    with pytest.raises(CheckpointError, match="options that this version does not know: .*'later'"):
        cm.resume(tmp_path)


def test_parameters_that_are_missing_are_named(tmp_path):
    start(tmp_path, 1)
    rewrite(tmp_path, lambda content: content["asked"].pop("tau"))
    with pytest.raises(CheckpointError, match="a checkpoint without 'tau'"):
        cm.resume(tmp_path)


@pytest.mark.parametrize(
    ("options", "name", "value", "words"),
    [
        ({}, "iterate.metrics.0", np.zeros((3, 3)), "samples are float64 of shape"),
        ({}, "to_samples.scalings", np.zeros(3), "the stored scalings are float64 of shape"),
        ({}, "to_samples.self", np.zeros(3, "f4"), "scalings of histograms to themselves are"),
        ({"eps": 0}, "to_samples.tree", np.zeros(3, "u2"), "the stored trees are uint16"),
        ({"eps": 0}, "to_samples.tree", 60000, "the stored trees do not match these histograms"),
        ({"eps": 0}, "to_samples.tree", 0, "the stored trees do not match these histograms"),
        ({"eps": 0}, "to_features.tree", 1, "the stored trees do not match these histograms"),
        ({"eps": 0}, "to_samples.state", 2, "the stored trees do not match these histograms"),
        ({"eps": 0}, "to_samples.state", 9, "the stored trees do not match these histograms"),
    ],
)
def test_memory_of_other_maps_is_refused(options, name, value, words, tmp_path):
    start(tmp_path, 1, **options)

    def change(arrays):
        arrays[name] = np.full_like(arrays[name], value) if np.ndim(value) == 0 else value

    rewrite_state(tmp_path, change)
    with pytest.raises(CheckpointError, match=f"does not fit this run: .*{words}"):
        cm.resume(tmp_path)


# Disks


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("at", [1, 2, 3, 5, 8])
def test_a_failing_disk_leaves_the_run_and_the_old_checkpoint_alone(
    code, call, at, tmp_path, monkeypatch
):
    real, calls = getattr(os, call), []

    def fail(*args):
        calls.append(args)
        if len(calls) == at:
            raise OSError(code, os.strerror(code))
        return real(*args)

    monkeypatch.setattr(os, call, fail)
    with pytest.warns(CheckpointWarning, match=f"{os.strerror(code)}.*the run continues"):
        result = cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, checkpoint_every=0)
    monkeypatch.undo()
    whole = cm.learn(X, 0.1, 0.1)
    assert_same(result, whole)
    assert_same(cm.resume(tmp_path), whole)
    assert not list(tmp_path.glob(".*.part"))


def test_a_disk_that_stays_full_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    start(tmp_path, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CheckpointWarning, match="The previous one is intact; the run continues"):
        cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, checkpoint_every=0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# Signals

CHILD = """
import os, signal, sys
import numpy as np
import cometric as cm

signal.signal(signal.SIGINT, signal.default_int_handler)
folder, name, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = np.load(folder + ".npy")

def strike(now, record):
    if record.iteration == at:
        os.kill(os.getpid(), getattr(signal, name))

cm.learn(data, 0.1, 0.1, checkpoint=folder, callback=strike)
"""


def run_child(folder, name, at):
    np.save(f"{folder}.npy", X)
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), name, str(at)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 1)])
def test_a_signal_ends_the_process_with_a_checkpoint(name, code, tmp_path):
    child = run_child(tmp_path / "run", name, 5)
    assert child.returncode == code
    assert ("resume" in child.stderr) == (name == "SIGINT")
    assert len(latest(tmp_path / "run").history(1)) == 5
    assert_same(cm.resume(tmp_path / "run"), cm.learn(X, 0.1, 0.1))


def press(at, times=1):
    """A callback during which Ctrl-C is pressed."""

    def call(now, record):
        if record.iteration == at:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return call


def test_ctrl_c_finishes_the_iteration_saves_and_raises(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(cm.Interrupted, match=r"`.result`; cometric.resume\('.*'\) continues") as e:
        cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, callback=press(4))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert e.value.result.iterations == 4
    assert e.value.result.status is cm.Status.INTERRUPTED
    assert_same(cm.resume(tmp_path), cm.learn(X, 0.1, 0.1))


def test_ctrl_c_in_the_last_iteration_is_not_success(tmp_path):
    whole = cm.learn(X, 0.1, 0.1)
    with pytest.raises(cm.Interrupted):
        cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, callback=press(whole.iterations))
    assert_same(cm.resume(tmp_path), whole)


def test_ctrl_c_twice_does_not_wait(tmp_path):
    with pytest.raises(cm.Interrupted, match="`.result`$"):
        cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, callback=press(2, times=2))
    assert latest(tmp_path) is None


def test_a_full_disk_at_ctrl_c_is_not_hidden(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: os.write(-1, b""))
    with (
        pytest.warns(CheckpointWarning, match="There is none yet"),
        pytest.raises(cm.Interrupted, match="`.result`$"),
    ):
        cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, callback=press(3))


def test_without_a_checkpoint_ctrl_c_raises_where_it_comes():
    with pytest.raises(KeyboardInterrupt):
        cm.learn(X, 0.1, 0.1, callback=press(1))


def test_ignored_signals_stay_ignored(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert cm.learn(X, 0.1, 0.1, checkpoint=tmp_path, callback=press(2)).converged
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_learn_with_checkpoints_but_set_no_handlers(tmp_path):
    found = []
    thread = threading.Thread(
        target=lambda: found.append(cm.learn(X, 0.1, 0.1, checkpoint=tmp_path))
    )
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert_same(found[0], cm.learn(X, 0.1, 0.1))


# What is told, what is noted, what is removed


def test_the_size_is_shown_before_the_first_checkpoint_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cm.learn(X, eps=0.1, tau=0.1, checkpoint="run", progress=True)
    said = capsys.readouterr().err
    found = re.search(r"checkpoints in run: about (\d+) kB each, every 300 s; two are kept\n", said)
    size = sum(path.stat().st_size for path in Path("run").glob("*.npz"))
    assert 0.3 * size < 1000 * int(found[1]) <= size  # small arrays have large headers
    assert said.count("checkpoints in") == 1
    cm.learn(X, eps=0.1, tau=0.1, checkpoint="more", checkpoint_every=0, progress=True)
    assert "each, after each iteration; two are kept" in capsys.readouterr().err
    cm.learn(X, eps=0.1, tau=0.1, checkpoint="quiet")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_size_includes_what_strips_store(eps, tmp_path, capsys):
    data = cm.datasets.simulate_counts(50, 40, density=0.5, random_state=1).X
    for client in (None, "local"):
        cm.learn(data, eps, 0.1, client=client, checkpoint=tmp_path / f"{client}", progress=True)
    one, strips = map(float, re.findall(r"about ([\d.]+) kB each", capsys.readouterr().err))
    assert 0.7 * one < strips < 1.5 * one


def test_removing_leaves_nothing(tmp_path):
    folder = tmp_path / "run"
    whole = cm.learn(X, eps=0.1, tau=0.1, checkpoint=folder, checkpoint_every=0)
    (folder / ".state-000099.npz.part").write_bytes(b"half")
    newest(folder, "state").write_bytes(b"damaged")
    cm.remove_checkpoint(folder)
    assert not folder.exists()
    again = cm.learn(X, eps=0.1, tau=0.1, checkpoint=folder)
    assert_same(again, whole)


def test_removing_leaves_other_files_alone(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "precious.npz"
    cm.learn(X, eps=0.1, tau=0.1, checkpoint=folder)
    elsewhere.write_text("mine")
    (folder / "data.npz").write_text("mine")  # not what the manifest describes
    (folder / "state-000001.npz.bak").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    (folder / "state-000777.npz").symlink_to(elsewhere)
    (folder / "state-000778.npz").mkdir()
    cm.remove_checkpoint(folder)
    left = {path.name for path in folder.iterdir()}
    assert left == {
        "data.npz",
        "notes.txt",
        "state-000001.npz.bak",
        "state-000777.npz",
        "state-000778.npz",
    }
    assert elsewhere.read_text() == "mine"


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: None])
def test_removing_without_checkpoints_is_an_error(make, tmp_path):
    make(tmp_path / "run")
    with pytest.raises(CheckpointError, match="holds no checkpoint; nothing was removed"):
        cm.remove_checkpoint(tmp_path / "run")
    if (tmp_path / "run").is_dir():
        (tmp_path / "run" / "data.npz").touch()
        with pytest.raises(CheckpointError, match="nothing was removed"):
            cm.remove_checkpoint(tmp_path / "run")
        assert (tmp_path / "run" / "data.npz").exists()


def test_a_folder_that_is_a_link_loses_its_checkpoints_only(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cm.learn(X, eps=0.1, tau=0.1, checkpoint=tmp_path / "link")
    cm.remove_checkpoint(tmp_path / "link")
    assert list((tmp_path / "real").iterdir()) == []
