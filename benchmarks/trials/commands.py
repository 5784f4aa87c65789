"""Kill commands and calls that write files: output must be complete, and a repeat must succeed.

As in :mod:`trials.crashes`, children are forked before any kernel has run. Each works in a separate
folder, with a copy of the same input.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cometric as cm
from cometric.core.digest import digest
from cometric.files.reading import read
from cometric.landmarks import pairwise
from trials import Outcome
from trials.crashes import bits, die_in_write
from trials.processes import begin, end, in_child

QUICK = ["--eps", "0.2", "--tau", "0.1", "--tol", "1e-3"]
PREVIOUS = b"a previous file"
CODES = (0, 3)  # done, or done but not converged


class Work(NamedTuple):
    """A command or a call, the files it writes, and folders from which it continues."""

    run: Callable[[], Any]
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


def command(*words: str, force: bool = True) -> Callable[[], str]:
    """A command line, in this process."""

    def run() -> str:
        from cometric.cli.program import run as run_command

        with io.StringIO() as said, redirect_stdout(said), redirect_stderr(said):
            code = run_command([*words, *(["--force"] if force else [])])
            if code not in CODES:
                raise RuntimeError(f"exit code {code}: {said.getvalue()}")
        return ""

    return run


def _distances() -> str:
    pairwise.TILE = 8
    found = cm.distances_to_zarr(cm.load("learned.npz"), read("x.h5ad"), "distances.zarr")
    return digest({"distances": found[:]})


def _graph(search: str) -> str:
    options: dict[str, Any] = {"search": search, "folder": "graph", "check": 5}
    found = cm.neighbor_graph(cm.load("learned.npz"), read("x.h5ad"), 4, **options)
    return digest({"index": found.graph.indices, "near": found.graph.data, "proved": found.proved})


_learn = ["learn", "x.h5ad", *QUICK]
_begun = ["--checkpoint", "begun", "--solver", "power"]
_checkpoint = ["--checkpoint", "run", "--checkpoint-every", "0"]
_sketch = ["landmarks", "x.h5ad", "-o", "out.h5ad", *QUICK, "--n-landmarks", "20", "-n", "5"]
_groups = ["rank", "learned.h5ad", "--labels", "kind", "-o", "out.csv"]
WORKS = {
    "learn .npz": Work(command(*_learn, "-o", "out.npz", *_checkpoint), ("out.npz",), ("run",)),
    "learn .h5ad": Work(command(*_learn, "-o", "out.h5ad", *_checkpoint), ("out.h5ad",), ("run",)),
    "learn .tsv.gz": Work(
        command(*_learn, "-o", "out.tsv.gz"), ("out.samples.tsv.gz", "out.features.tsv.gz")
    ),
    "learn, begun": Work(command(*_learn, "-o", "out.npz", *_begun), ("out.npz",)),
    "landmarks": Work(command(*_sketch, "--checkpoint", "run"), ("out.h5ad",), ("run",)),
    "neighbors": Work(command("neighbors", "learned.npz", "-o", "out.tsv"), ("out.tsv",)),
    "transform": Work(command("transform", "learned.npz", "x.h5ad", "-o", "out.csv"), ("out.csv",)),
    "modules": Work(
        command("modules", "learned.npz", "-o", "out.csv", "--sets", "sets.json"), ("out.csv",)
    ),
    "transfer": Work(
        command("transfer", "learned.h5ad", "x.h5ad", "--labels", "kind", "-o", "out.csv"),
        ("out.csv",),
    ),
    "rank": Work(command(*_groups), ("out.csv",)),
    "report": Work(command("report", "learned.npz", "-o", "out.html"), ("out.html",)),
    "plan": Work(command("plan", "x.h5ad", *QUICK, force=False)),
    "distances_to_zarr": Work(_distances, (), ("distances.zarr",)),
    "neighbor_graph": Work(partial(_graph, "exhaustive"), (), ("graph",)),
    "neighbor_graph, index": Work(partial(_graph, "index"), (), ("graph",)),
}


def kills(count: int, names: tuple[str, ...] = tuple(WORKS)) -> Outcome:
    """Kill each of them, every other time inside a write; then repeat the call."""
    _import_all()
    rng = random.Random(4)
    source = Path(tempfile.mkdtemp())
    said = in_child(partial(_write_input, source))
    if said:
        raise RuntimeError(said)
    truths = {name: _uninterrupted(WORKS[name], source) for name in names}
    found: Counter[str] = Counter()
    while found["killed"] < count:
        name = names[(found["killed"] + found["too late"]) % len(names)]
        work, (truth, seconds) = WORKS[name], truths[name]
        own = random.Random(rng.random())
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, "work")
            shutil.copytree(source, folder)
            for file in work.files if own.random() < 0.5 else ():
                (folder / file).write_bytes(PREVIOUS)
            if not _killed(work, folder, seconds, own):
                found["too late"] += 1
                continue
            found["killed"] += 1
            wrong = _left_by_kill(work, folder, source, truth)
            found["leftovers"] += len(list(folder.rglob(".*.part")))
            again = _outcome(work, folder)
            wrong += [] if again == truth else [f"other outcome: {str(again)[:2000]}"]
            found["wrong"] += bool(wrong)
            if wrong:
                print(f"{name}: {'; '.join(wrong)}", flush=True)
    shutil.rmtree(source)
    return Outcome(
        f"kill -9 at {found['killed']} random moments of {len(names)} commands and calls "
        f"({', '.join(names)}), about half of them inside a write",
        f"output complete, previous or absent, and the same bytes when repeated, in "
        f"{found['killed'] - found['wrong']} of {found['killed']}; {found['leftovers']} "
        "temporary files left, which nothing reads",
        not found["wrong"],
    )


def _import_all() -> None:
    """Import the libraries that commands load lazily, so that no child has to."""
    import h5py  # noqa: F401
    import igraph  # noqa: F401
    import sklearn.manifold  # noqa: F401
    import zarr  # noqa: F401

    import cometric.cli.program
    import cometric.report
    import cometric.scverse  # noqa: F401


def _write_input(folder: Path) -> str:
    """Counts of three kinds of samples, what is learned from them, and a run that has begun."""
    import anndata

    rng = np.random.default_rng(0)
    rates = np.full((36, 24), 0.3)
    for g in range(3):
        rates[12 * g : 12 * (g + 1), 8 * g : 8 * (g + 1)] = 5.0
    data = anndata.AnnData((rng.poisson(rates) + np.eye(36, 24)).astype(np.float32))
    data.obs_names = [f"s{i}" for i in range(36)]
    data.var_names = [f"g{k}" for k in range(24)]
    data.obs["kind"] = np.repeat(["a", "b", "c"], 12)
    data.write_h5ad(folder / "x.h5ad")
    (folder / "sets.json").write_text('{"one": ["g0", "g1", "g2", "g3"], "two": ["g9", "g10"]}')
    os.chdir(folder)
    command(*_learn, "-o", "learned.npz")()
    command(*_learn, "-o", "learned.h5ad")()
    command(*_learn, "-o", "partial.npz", *_begun, "--max-iter", "2")()
    return ""


def _uninterrupted(work: Work, source: Path) -> tuple[list[str], float]:
    """The outcome of an uninterrupted call, and its seconds."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "work")
        shutil.copytree(source, folder)
        began = time.perf_counter()
        outcome = _outcome(work, folder)
        return outcome, time.perf_counter() - began


def _outcome(work: Work, folder: Path) -> list[str]:
    """What a call returns, and what its files hold."""
    return [in_child(partial(_inside, work, folder)), *_contents(work, folder)]


def _inside(work: Work, folder: Path) -> str:
    os.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(work.run())


def _killed(work: Work, folder: Path, seconds: float, rng: random.Random) -> bool:
    """Kill a call from outside after a random time, or inside a write; whether it was running."""
    if (work.files or work.folders) and rng.random() < 0.5:

        def dying() -> str:
            die_in_write(rng, 100_000 if work.folders else 10_000, 8 if work.folders else 2)
            return _inside(work, folder)

        return in_child(dying) == f"exit {-signal.SIGKILL}"
    child = begin(partial(_inside, work, folder))
    time.sleep(rng.uniform(0.0, seconds))
    os.kill(child[0], signal.SIGKILL)
    return end(child) == f"exit {-signal.SIGKILL}"


def _left_by_kill(work: Work, folder: Path, source: Path, truth: list[str]) -> list[str]:
    """What is wrong with the files that a killed call left."""
    wrong = []
    for file, state, whole in zip(work.files, _contents(work, folder), truth[1:], strict=True):
        if state not in ("absent", "previous", whole):
            wrong.append(f"{file} is incomplete")
    known = {path.name for path in source.iterdir()} | {*work.files, *work.folders}
    strange = [path.name for path in folder.iterdir() if path.name not in known]
    strange = [name for name in strange if not (name.startswith(".") and name.endswith(".part"))]
    return wrong + ([f"it left {strange}"] if strange else [])


def _contents(work: Work, folder: Path) -> list[str]:
    return [in_child(partial(_content, folder / file)) for file in work.files]


def _content(path: Path) -> str:
    """A checksum of what a file holds, without the seconds that its run took."""
    if not path.exists():
        return "absent"
    raw = path.read_bytes()
    if raw == PREVIOUS:
        return "previous"
    if path.suffix == ".npz":
        return bits(cm.load(path))
    if path.suffix != ".h5ad":
        return digest({"bytes": np.frombuffer(raw, np.uint8)})
    import h5py

    arrays = {}

    def collect(name: str, item: Any) -> None:
        if hasattr(item, "shape") and not name.endswith("/seconds"):
            values = np.asarray(item[()])
            arrays[name] = values.astype(str) if values.dtype.hasobject else values

    with h5py.File(path, "r") as file:
        file.visititems(collect)
    return digest(arrays)
