"""Kill, corrupt and starve runs: the guarantees of checkpoints must hold each time.

Children are forked before any kernel has run, so that each starts at once; the parent runs
none. All faults are injected here, without hooks in the package.
"""

from __future__ import annotations

import errno
import io
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import cores

import cometric as cm
from cometric.checkpoints.folder import CheckpointError, CheckpointWarning
from cometric.checkpoints.saved import latest, read_data
from cometric.core.digest import digest
from cometric.files import storage as module
from cometric.kernels.compiling import run_tasks
from cometric.learning.learn import learn, resume
from trials import Outcome
from trials.processes import in_child

X = cm.datasets.simulate_counts(30, 24, density=0.4, random_state=5).X.toarray() + np.eye(30, 24)
RUNS: list[dict[str, Any]] = [
    {"eps": 0.0, "tau": 0.05, "solver": "power"},
    {"eps": 0.0, "tau": 0.0, "tol": 1e-8},
    {"eps": 0.1, "tau": 0.05},
    {"eps": 0.3, "tau": 1.0, "solver": "stochastic", "tol": 1e-3},
    {"tol": 1e-8},
    {"transport": cm.Unbalanced(0.2, rho=0.5), "tol": 1e-6},
    {"transport": cm.Tree()},
    {"transport": cm.Mahalanobis()},
    {"saturate": 0.5, "tau": 0.05, "dtype": "float32"},
]


def bits(result: cm.Result) -> str:
    status = np.array([result.status.name, repr(result.values), str(result.iterations)])
    return digest({"samples": result.samples, "features": result.features, "status": status})


def quiet(work: Callable[[], cm.Result]) -> str:
    """The bits of a run in which every warning but that of convergence is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", cm.ConvergenceWarning)
        return bits(work())


def finish(folder: Path, options: dict[str, Any]) -> str:
    """Resume in a new process, without the data if possible."""
    if list(folder.glob("manifest-*")):
        return in_child(lambda: quiet(lambda: resume(folder)))
    return in_child(lambda: quiet(lambda: learn(X, checkpoint=folder, **options)))


# ---------------------------------------------------------------------------------- kills


def kill_somewhere(folder: Path, options: dict[str, Any], rng: random.Random) -> bool:
    """Kill a run from outside after a random time; whether it was still running."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:

        def linger(now: Any, record: Any) -> None:
            os.write(writing, b".")
            time.sleep(0.01)

        learn(X, checkpoint=folder, checkpoint_every=0, callback=linger, **options)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)  # the first iteration is there
    time.sleep(rng.uniform(0.0, 0.4))
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(reading)
    return code == -signal.SIGKILL


class Deadly(io.FileIO):
    """A file that kills the process once a given number of bytes has been written in total."""

    left = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size >= Deadly.left:
            super().write(memoryview(data).cast("B")[: Deadly.left])
            os.kill(os.getpid(), signal.SIGKILL)
        Deadly.left -= size
        return super().write(data)


def die_in_write(rng: random.Random, most_bytes: int, most_calls: int) -> None:
    """Make this process die inside a write: between two bytes, or around a sync or a rename."""
    where = rng.choice(["bytes", "bytes", "fsync", "replace", "after replace"])
    count = rng.randint(1, most_calls)
    if where == "bytes":
        Deadly.left = rng.randint(1, most_bytes)
        module.open = lambda path, mode: Deadly(path, mode)  # type: ignore[attr-defined]
        return
    name = where.removeprefix("after ")
    real, calls = getattr(os, name), [0]

    def strike(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == count:
            if where.startswith("after"):
                real(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    setattr(os, name, strike)


def kill_in_write(folder: Path, options: dict[str, Any], rng: random.Random) -> bool:
    """Kill a run inside a write."""

    def work() -> str:
        die_in_write(rng, 400_000, 12)
        learn(X, checkpoint=folder, checkpoint_every=0, **options)
        return "finished"

    return in_child(work) == f"exit {-signal.SIGKILL}"


def kills(count: int, inside: int) -> Outcome:
    rng = random.Random(1)
    truth = [in_child(lambda o=o: quiet(lambda: learn(X, **o))) for o in RUNS]
    found: Counter[str] = Counter()
    while found["inside"] < inside or found["outside"] < count - inside:
        kind = "inside" if found["inside"] < inside else "outside"
        kill = kill_in_write if kind == "inside" else kill_somewhere
        which = rng.randrange(len(RUNS))
        folder = Path(tempfile.mkdtemp())
        if kill(folder, RUNS[which], random.Random(rng.random())):
            found[kind] += 1
            found["from a checkpoint"] += bool(list(folder.glob("manifest-*")))
            said = finish(folder, RUNS[which])
            found["identical"] += said == truth[which]
            found["scraps"] += len(list(folder.glob(".*.part")))
            if said != truth[which]:
                print(f"not identical ({kind}, {RUNS[which]}): {said[-600:]}", flush=True)
        else:
            found["too late"] += 1
        shutil.rmtree(folder)
    total = found["inside"] + found["outside"]
    return Outcome(
        f"kill -9 at {total} random moments, {found['inside']} of them inside a write",
        f"{found['identical']} of {total} resumed to identical bytes ({found['from a checkpoint']} "
        f"from a checkpoint, the others were killed before the first), "
        f"{found['scraps']} scraps left",
        found["identical"] == total and not found["scraps"],
    )


# ------------------------------------------------------------------------------- damage


def corruptions(count: int) -> Outcome:
    rng = random.Random(2)
    source = Path(tempfile.mkdtemp())
    in_child(lambda: quiet(lambda: learn(X, checkpoint=source, checkpoint_every=0, **RUNS[2])))
    (manifest_1, manifest_2), (state_1, state_2) = (
        sorted(source.glob(f"{kind}-*")) for kind in ("manifest", "state")
    )
    newest, data = int(manifest_2.name[-6:]), source / "data.npz"
    whole = {path: path.read_bytes() for path in source.iterdir()}
    found: Counter[str] = Counter()
    for _ in range(count):
        kind = rng.choice(["flip", "truncation", "swap"])
        if kind == "swap":
            one, other = rng.choice(
                [(manifest_1, manifest_2), (state_1, state_2), (state_2, data), (manifest_2, data)]
            )
            damaged = {one: whole[other], other: whole[one]}
        else:
            path = rng.choice([manifest_2, state_2, data])
            raw = bytearray(whole[path])
            if kind == "flip":
                raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            else:
                raw = raw[: rng.randrange(len(raw))]
            damaged = {path: bytes(raw)}
        for path, content in damaged.items():
            path.write_bytes(content)
        found[kind] += 1
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                saved = latest(source)
                if saved is None or (data not in damaged and saved.number == newest):
                    found["accepted"] += 1
                elif data in damaged:
                    read_data(source, saved)
                    found["accepted"] += 1
                else:
                    named = any(path.name in str(line.message) for line in said for path in damaged)
                    found["fell back, said so" if named else "silent"] += 1
            except CheckpointError:
                found["refused"] += 1
            except Exception:
                found["crashed"] += 1
                traceback.print_exc()
        for path in damaged:
            path.write_bytes(whole[path])
    shutil.rmtree(source)
    bad = found["accepted"] + found["crashed"] + found["silent"]
    return Outcome(
        f"{count} corrupted checkpoints: {found['flip']} bit flips, {found['truncation']} "
        f"truncations, {found['swap']} swapped files",
        f"{found['accepted']} accepted, {found['crashed']} crashes; {found['refused']} refused, "
        f"{found['fell back, said so']} fell back to the previous one and said so",
        bad == 0,
    )


# ------------------------------------------------------------------------------- faults


class Full(io.FileIO):
    """A file whose n-th write, counted over all files, fails."""

    left, code = 0, errno.ENOSPC

    def write(self, data: Any) -> int:
        Full.left -= 1
        if Full.left == 0:
            raise OSError(Full.code, os.strerror(Full.code))
        return super().write(data)


SMALL = {"eps": 0.0, "tau": 0.5, "tol": 1e-4}


def every_write(step: int) -> Outcome:
    """Make the n-th write, sync and rename fail, for every n (or every ``step``-th)."""

    def work() -> str:
        small = X[:6, :5] + 1
        truth = quiet(lambda: learn(small, **SMALL))
        total, survived = 0, 0
        for kind in ("write", "fsync", "replace"):
            for code in (errno.ENOSPC, errno.EIO):
                n = 1
                while True:
                    folder = Path(tempfile.mkdtemp())
                    failed, same = _with_failing(kind, code, n, small, folder, truth)
                    shutil.rmtree(folder)
                    if not failed:
                        break
                    total, survived, n = total + 1, survived + same, n + step
        return f"{total} {survived}"

    total, survived = _counts(in_child(work))
    return Outcome(
        f"n-th write, sync or rename fails with ENOSPC or EIO, {each(step)}: {total} runs",
        f"{survived} of {total} ended with the same bytes, then resumed to them",
        survived == total,
    )


def _counts(said: str) -> tuple[int, int]:
    """The numbers of runs and of successes that a child reported; its other output is shown."""
    if not said.replace(" ", "").isdigit():
        print(said)
        return 0, -1
    total, good = map(int, said.split())
    return total, good


def each(step: int) -> str:
    return "every n" if step == 1 else f"every {step}th n"


def _with_failing(
    kind: str, code: int, n: int, data: Any, folder: Path, truth: str
) -> tuple[bool, bool]:
    """Whether the fault occurred, and whether the run and the folder survived it."""
    real, calls = {name: getattr(os, name) for name in ("fsync", "replace")}, [0]

    def fail(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == n:
            raise OSError(code, os.strerror(code))
        return real[kind](*args)

    Full.left, Full.code = n, code
    try:
        if kind == "write":
            module.open = lambda path, mode: Full(path, mode)  # type: ignore[attr-defined]
        else:
            setattr(os, kind, fail)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = learn(data, checkpoint=folder, checkpoint_every=0, **SMALL)
    finally:
        module.__dict__.pop("open", None)
        for name, function in real.items():
            setattr(os, name, function)
    failed = any(issubclass(line.category, CheckpointWarning) for line in said)
    same = bits(result) == truth and quiet(lambda: resume(folder)) == truth
    return failed, same and not list(folder.glob(".*.part"))


def every_allocation(step: int) -> Outcome:
    """Make the n-th allocation of a NumPy array by Python code fail."""

    def work() -> str:
        small = X[:6, :5] + 1
        truth = quiet(lambda: learn(small, **SMALL))
        real = {name: getattr(np, name) for name in ("empty", "zeros", "ones", "full")}
        total = clean = 0
        n = 1
        while True:
            folder, calls = Path(tempfile.mkdtemp()), [0]

            def make(function: Any, n: int = n, calls: list[int] = calls) -> Any:
                def allocate(*args: Any, **options: Any) -> Any:
                    calls[0] += 1
                    if calls[0] == n:
                        raise MemoryError("injected")
                    return function(*args, **options)

                return allocate

            outcome = "finished"
            try:
                for name, function in real.items():
                    setattr(np, name, make(function))
                learn(small, checkpoint=folder, checkpoint_every=0, **SMALL)
            except MemoryError:
                outcome = "MemoryError"
            finally:
                for name, function in real.items():
                    setattr(np, name, function)
            struck = calls[0] >= n
            if struck:
                total += 1
                again = quiet(lambda f=folder: learn(small, checkpoint=f, **SMALL))
                clean += outcome == "MemoryError" and again == truth
            shutil.rmtree(folder)
            if not struck:
                return f"{total} {clean}"
            n += step

    total, clean = _counts(in_child(work))
    return Outcome(
        f"n-th allocation (np.empty, zeros, ones, full) fails, {each(step)}: {total} runs",
        f"{clean} of {total} raised MemoryError and then went on to the same bytes",
        clean == total,
    )


def starvation(count: int) -> Outcome:
    """Lift a cost with little memory: only the right bytes or ``MemoryError`` are allowed."""
    size = 800
    hist = np.random.default_rng(0).random((6, size))
    hist /= hist.sum(axis=1, keepdims=True)
    cost, part, thin = 1.0 - np.eye(size), hist[:, :300], np.ones((size, 9)) / size
    makers = [cm.ExactMap, lambda hist: cm.EntropicMap(hist, 0.1)]

    def multiply(_: int) -> None:
        np.dot(cost, thin)
        time.sleep(0.01)  # so that every thread takes part

    def work(make: Callable[[Any], Any], spare: float) -> str:
        # Loads kernels, starts threads, and gives each a buffer of OpenBLAS: where GNU OpenMP or
        # OpenBLAS have no memory for these, they end the process themselves.
        run_tasks(multiply, 4 * cores(), cores())
        make(part / part.sum(axis=1, keepdims=True))(cost[:300, :300])
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + int(spare)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        try:
            found = make(hist)(cost)
        except MemoryError:
            return "MemoryError"
        finally:
            resource.setrlimit(resource.RLIMIT_AS, 2 * (resource.RLIM_INFINITY,))
        return "the same bytes" if (found == make(hist)(cost)).all() else "WRONG"

    most = 12 * cost.nbytes
    found = Counter(
        in_child(lambda i=i: work(makers[i % 2], i / count * most)) for i in range(count)
    )
    good = found["MemoryError"] + found["the same bytes"]
    for said in set(found) - {"MemoryError", "the same bytes"}:
        print(said, flush=True)
    return Outcome(
        f"{count} lifts with 0 to {most / 1e6:.0f} MB more memory than was taken before",
        f"{found['the same bytes']} gave the same bytes, {found['MemoryError']} raised "
        f"MemoryError, {count - good} anything else",
        good == count,
    )
