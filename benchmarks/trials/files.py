"""Fuzzing: corrupted files must be read or refused, without a crash or a hang.

Small files and folders of every kind that is read are mutated, then read by child processes, some
hundreds each. A system timer, which also interrupts compiled code, ends a child that hangs. A
folder is mutated as an archive, which is unpacked before it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

import cometric as cm
from cometric.cli import files as command_line
from cometric.core.digest import digest
from cometric.core.given import read_given
from cometric.files import hdf5
from cometric.files.reading import read
from cometric.files.sets import read_sets
from cometric.files.stores import open_store
from cometric.large.progress import Progress
from cometric.saving.folder import CheckpointError
from cometric.saving.saved import latest, read_data
from cometric.scverse.slots import NotStored
from machine import cores
from trials import Outcome
from trials.processes import begin, end, in_child

CPU_SECONDS, WALL_SECONDS = 10, 120  # others use the machine, so that a clock on the wall says less
MOST_RSS = 1_000  # MB; libraries alone take a third of it
LIMIT = 1e8  # bytes that a file may ask for
BATCH = 500  # files per child

TEXT = [b",", b"\t", b"\n", b"\r", b'"', b'""', b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"'", b"-1"]
TEXT += [b"1e999", b"nan", b"NA", b"=cmd()", b"9" * 400, b"a" * 5000, b",," * 900, b"\n" * 900]
JSON = [
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"null",
    b"true",
    b"NaN",
    b"-1",
    b"1e999",
    b'"a"',
    b"{}",
]
JSON += [
    b"0" * 7,
    b"0" * 9,
    b"9" * 30,
    b"9" * 5000,
    b"[" * 3000,
    b'"\\ud800"',
    b"0.5",
    b"[]",
    b'{"array": "history"}',
]
BINARY = [struct.pack("<q", x) for x in (0, 1, -1, 2**31, 2**40, 2**62, -(2**63))]
BINARY += [struct.pack("<i", x) for x in (0, 1, -1, 2**16, 2**31 - 1)] + [b"\x80", b"|O", b"<U9"]
MATRIX = [b"%%MatrixMarket matrix ", b"array", b"coordinate", b"complex", b"pattern", b"symmetric"]
MATRIX += [b" ", b"%", b"0", b"4 3 12\n", b"9" * 12, b"0 0 1\n", b"99 1 1\n", *TEXT]
SETS = [b"set", b"\t\t\t", b"\xc2\x85", b'{"a": ' * 400, b'{"a": ' * 900 + b"1" + b"}" * 900]
SETS += [b"[" * 900 + b"]" * 900, b'"abc"', b"{" * 900]
ORIGIN = "checksum of a run"


class Kind(NamedTuple):
    """A sort of file, how to change it, and how to read it."""

    share: int
    name: str
    whole: bytes
    change: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], Any]


def fuzz(count: int) -> Outcome:
    kinds, folder = _kinds(), Path(tempfile.mkdtemp())
    children = [
        begin(partial(_read_share, kinds, range(k, count, cores()), folder)) for k in range(cores())
    ]
    found: Counter[str] = Counter()
    rss = 0.0
    for child in children:
        said = json.loads(end(child))
        rss = max(rss, said.pop("rss"))
        found.update(said)
    shutil.rmtree(folder)
    bad = {what: number for what, number in found.items() if what not in ("read", "refused")}
    words = ", ".join(f"{number} {what}" for what, number in sorted(bad.items()))
    return Outcome(
        f"{count:,} changed files ({', '.join(kind.name for kind in kinds)}) read",
        f"{found['refused']:,} refused with a message, {found['read']:,} read as they are, "
        f"{words or 'no hang, no crash, no other error'}; "
        f"at most {rss:.0f} MB of memory, libraries included",
        not bad and found["read"] + found["refused"] == count and rss < MOST_RSS,
    )


def _read_share(kinds: list[Kind], numbers: Sequence[int], folder: Path) -> str:
    """Read these files in children; a new child replaces one that died."""
    found: Counter[str] = Counter()
    rss = 0.0
    while numbers:
        batch = numbers[:BATCH]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            for number in batch:
                outcome = _read_one(kinds, number, folder)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
                os.write(writing, f"{json.dumps([outcome, peak])}\n".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as lines:
            outcomes = [json.loads(line) for line in lines]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for number, (outcome, peak) in zip(batch, outcomes, strict=False):
            found[outcome] += 1
            if peak > max(rss, MOST_RSS):
                print(f"  file {number}: {peak:.0f} MB", flush=True)
            rss = max(rss, peak)
        done = len(outcomes)
        if code != 0:
            hung = code in (-signal.SIGPROF, -signal.SIGALRM)
            found["hung" if hung else f"died with {code}"] += 1
            print(f"  file {numbers[done]}: code {code}", flush=True)
            done += 1
        numbers = numbers[done:]
    return json.dumps({**found, "rss": rss})


def _read_one(kinds: list[Kind], number: int, folder: Path) -> str:
    """The outcome for a file; any exception other than ``ValueError`` is a bug."""
    rng = random.Random(number)
    kind = rng.choices(kinds, [kind.share for kind in kinds])[0]
    own = folder / str(os.getpid())
    own.mkdir(exist_ok=True)
    path = own / kind.name
    path.write_bytes(kind.change(kind.whole, rng))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.alarm(WALL_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.read(path)
    except ValueError:
        return "refused"
    except BaseException as error:
        print(f"  file {number} ({kind.name}): {error!r}", flush=True)
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        path.unlink()
    return "read"


# ---------------------------------------------------------------------------- mutations


def _mutate(tokens: list[bytes], raw: bytes, rng: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        at = rng.randrange(len(data))
        to = min(len(data), at + int(10 ** rng.uniform(0, 3)))
        how = rng.randrange(7)
        if how == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[at:to] = rng.choice((b"\x00", b"\xff", rng.randbytes(1))) * (to - at)
        elif how == 2:
            del data[at:to]
        elif how == 3:
            data[at:at] = rng.choice(tokens)
        elif how == 4:
            token = rng.choice(tokens)
            data[at : at + len(token)] = token
        elif how == 5:
            data[at:at] = data[at:to] * rng.choice((1, 10, 100))
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def _inside_gzip(raw: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return _mutate(BINARY, raw, rng)
    return gzip.compress(_mutate(TEXT, gzip.decompress(raw), rng), 1)


def _inside_npz(raw: bytes, rng: random.Random) -> bytes:
    """Change one array and keep the archive around it valid, or change the archive."""
    if rng.random() < 0.3:
        return _mutate(BINARY, raw, rng)
    parts = _unpack(raw)
    name = rng.choice(list(parts))
    parts[name] = _mutate(BINARY + TEXT, parts[name], rng)
    return _pack(parts)


def _inside_manifest(raw: bytes, rng: random.Random) -> bytes:
    """Change the JSON and make the checksum right again, or change anything."""
    if rng.random() < 0.1:
        return _mutate(JSON, raw, rng)
    body = _mutate(JSON, raw.partition(b"\n")[2], rng)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _inside_hdf5(raw: bytes, rng: random.Random) -> bytes:
    """Delete, replace or exchange items and attributes of a valid file, or change its bytes."""
    import h5py

    if rng.random() < 0.3:
        return _mutate(BINARY, raw, rng)
    image = io.BytesIO(raw)
    with h5py.File(image, "r+") as file:
        for _ in range(rng.choice((1, 1, 2, 4))):
            names: list[str] = []
            file.visit(names.append)
            if names:
                _change_item(file, rng.choice(names), rng, names)
    return image.getvalue()


def _change_item(file: Any, name: str, rng: random.Random, names: list[str]) -> None:
    item = file[name]
    if item.attrs and rng.random() < 0.3:
        attribute = rng.choice(list(item.attrs))
        del item.attrs[attribute]
        if rng.random() < 0.7:
            item.attrs[attribute] = rng.choice(_VALUES)
    elif rng.random() < 0.3 or not hasattr(item, "shape"):
        del file[name]
        if rng.random() < 0.5:
            file[name] = rng.choice(_VALUES)
    elif rng.random() < 0.3:
        other = file[rng.choice(names)]
        if hasattr(other, "shape"):
            value = other[()]
            del file[name]
            file[name] = value
    elif item.shape and item.size and item.dtype.kind in "biuf":
        values = item[()]
        values.flat[rng.randrange(values.size)] = rng.choice((0, 1, 7, 100))
        item[...] = values
    else:
        value = item[()]
        del file[name]
        file[name] = np.concatenate([value, value]) if np.ndim(value) else rng.choice(_VALUES)


_VALUES: list[Any] = [0, -1, 3, 2**40, 0.5, np.nan, "x", "", "csr_matrix", "dict", "dataframe"]
_VALUES += [np.arange(3), np.zeros((0, 2)), np.ones((4, 4)), np.array([1e300, -1.0]), True]


def _inside_folder(raw: bytes, rng: random.Random) -> bytes:
    """Change, delete or exchange files of a folder that is packed as an archive."""
    parts = _unpack(raw)
    name = rng.choice(list(parts))
    how = rng.random()
    if how < 0.05:
        del parts[name]
    elif how < 0.1:
        parts[name] = parts[rng.choice(list(parts))]
    elif name.endswith(".gz"):
        parts[name] = _inside_gzip(parts[name], rng)
    elif name.endswith(".npz"):
        parts[name] = _inside_npz(parts[name], rng)
    else:
        tokens = JSON if name.endswith(".json") else MATRIX if "." in name else BINARY
        parts[name] = _mutate(tokens, parts[name], rng)
    return _pack(parts)


def _pack(parts: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return made.getvalue()


def _unpack(raw: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# --------------------------------------------------------------------------- whole files


def _kinds() -> list[Kind]:
    folder = Path(tempfile.mkdtemp())
    X = np.arange(12.0).reshape(4, 3) + 0.5
    run = folder / "run"
    in_child(partial(_write_all, folder, X))  # the parent uses neither kernels nor libraries
    manifest = sorted(run.glob("manifest-*"))[-1]
    parts = {"index": np.arange(12).reshape(4, 3), "near": X, "proved": np.ones(4, bool)}
    with Progress(folder / "progress") as progress:
        progress.bind(lambda: ORIGIN)
        progress.save("neighbors-000000000", parts)
    hdf5.subprocess = SimpleNamespace(run=_forked_look)  # type: ignore[attr-defined]
    small = partial(read, limit=LIMIT)
    metric = partial(_read_metric, X)
    mutations = {
        "data.csv": (30, partial(_mutate, TEXT), small),
        "data.tsv.gz": (6, _inside_gzip, small),
        "data.npy": (5, partial(_mutate, BINARY), small),
        "dense.npz": (6, _inside_npz, small),
        "sparse.npz": (8, _inside_npz, small),
        "data.h5ad": (8, _inside_hdf5, small),
        "10x.h5": (4, _inside_hdf5, small),
        "10x": (10, _inside_folder, partial(_read_folder, small)),
        "store.h5ad": (4, _inside_hdf5, _read_rows),
        "store.zarr": (8, _inside_folder, partial(_read_folder, _read_rows)),
        "store.npz": (5, _inside_npz, _read_rows),
        "store.npy": (2, partial(_mutate, BINARY), _read_rows),
        "metric.csv": (4, partial(_mutate, TEXT), metric),
        "sets.gmt": (3, partial(_mutate, TEXT + SETS), read_sets),
        "sets.json": (4, partial(_mutate, JSON + SETS), read_sets),
        "result.npz": (5, _inside_npz, cm.load),
        "result.h5ad": (5, _inside_hdf5, _read_result),
        "landmarks.h5ad": (5, _inside_hdf5, _read_result),
        "progress": (4, _inside_folder, partial(_read_folder, partial(_read_progress, parts))),
    }
    kinds = [
        Kind(share, name, _content(folder / name), change, how)
        for name, (share, change, how) in mutations.items()
    ]
    others = {path.name: path.read_bytes() for path in run.iterdir() if path.name != ".lock"}
    whole = others.pop(manifest.name)
    kinds.append(Kind(8, manifest.name, whole, _inside_manifest, partial(_read_checkpoint, others)))
    shutil.rmtree(folder)
    return kinds


def _content(path: Path) -> bytes:
    """The bytes of a file, or of an archive of a folder."""
    if path.is_file():
        return path.read_bytes()
    inside = sorted(part for part in path.rglob("*") if part.is_file())
    return _pack({str(part.relative_to(path)): part.read_bytes() for part in inside})


def _write_all(folder: Path, X: Any) -> str:
    """Everything that is read: data, a checkpoint, results in both formats, one of landmarks."""
    import cometric.scverse as cms

    _write_data(folder, X)
    options: dict[str, Any] = {"eps": 0.0, "tau": 0.5}
    result = cm.learn(X, checkpoint=folder / "run", checkpoint_every=0, **options)
    result.save(folder / "result.npz")
    data = read(folder / "data.h5ad")
    cms.tl.learn(data, **options)
    data.write_h5ad(folder / "result.h5ad")
    data = read(folder / "data.h5ad")
    cms.tl.landmarks(data, 3, n_neighbors=3, **options)
    data.write_h5ad(folder / "landmarks.h5ad")
    return "done"


def _write_data(folder: Path, X: Any) -> None:
    """The same small data in all formats, a metric of its features, and sets of these."""
    import anndata
    import h5py
    import pandas as pd
    from scipy.io import mmwrite

    names = ["a", "b", "=c"]
    table = pd.DataFrame(X, [f"cell {i}" for i in range(4)], names)
    table.to_csv(folder / "data.csv")
    table.to_csv(folder / "data.tsv.gz", sep="\t")
    np.save(folder / "data.npy", X)
    np.savez(folder / "dense.npz", X=X)
    rows = sparse.csr_matrix(X)
    sparse.save_npz(folder / "sparse.npz", rows)
    data = anndata.AnnData(rows, table[["a"]])
    data.write_h5ad(folder / "data.h5ad")
    data.write_h5ad(folder / "store.h5ad")
    data.write_zarr(folder / "store.zarr")
    sparse.save_npz(folder / "store.npz", rows, compressed=False)
    np.save(folder / "store.npy", X)
    pd.DataFrame(1.0 - np.eye(3), names, names).to_csv(folder / "metric.csv")
    (folder / "sets.gmt").write_text("one\tdescription\ta\tb\ntwo\t\tb\t=c\n")
    (folder / "sets.json").write_text('{"one": ["a", "b"], "more": {"two": ["b", "=c"]}}')
    tenx = folder / "10x"
    tenx.mkdir()
    mmwrite(tenx / "matrix.mtx", rows.T)
    lines = "".join(f"ID{name}\t{name}\tGene Expression\n" for name in names)
    (tenx / "features.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    (tenx / "barcodes.tsv").write_text("".join(f"cell {i}\n" for i in range(4)))
    with h5py.File(folder / "10x.h5", "w") as file:
        group = file.create_group("matrix")
        group["data"], group["indices"], group["indptr"] = rows.data, rows.indices, rows.indptr
        group["shape"], group["barcodes"] = np.array([3, 4]), [f"cell {i}" for i in range(4)]
        group["features/name"] = group["features/id"] = names
        group["features/feature_type"] = ["Gene Expression"] * 3


def _read_folder(how: Callable[[Path], Any], path: Path) -> None:
    """Read the folder that is packed in this file."""
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name, path.name)
        for part, content in _unpack(path.read_bytes()).items():
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / part).write_bytes(content)
        how(folder)


def _read_rows(path: Path) -> None:
    with open_store(path, limit=LIMIT) as store:
        store.X[0 : store.n_obs]
        store.X[np.array([0, store.n_obs - 1])]


def _read_result(path: Path) -> None:
    try:
        command_line.load(path, "cometric", LIMIT / 1e9)
    except NotStored as error:  # the command line shows its message
        raise ValueError(error.args[0]) from error


def _read_metric(X: Any, path: Path) -> None:
    read_given(read(path, limit=LIMIT), "features", cm.Problem.from_data(X).features)


def _read_progress(parts: dict[str, Any], folder: Path) -> None:
    """What a run would continue with: the stored arrays unchanged, or nothing."""
    with Progress(folder) as progress:
        progress.bind(lambda: ORIGIN)
        found = progress.load("neighbors-000000000")
    if found is None:
        raise ValueError("computed again")
    if digest(found) != digest(parts):
        raise RuntimeError("a run would continue with changed arrays")


def _read_checkpoint(others: dict[str, bytes], path: Path) -> None:
    """What the manifest leads to, beside the files that belong to it."""
    for name, content in others.items():
        if not (path.parent / name).exists():
            (path.parent / name).write_bytes(content)
    try:
        saved = latest(path.parent)
        if saved is not None:
            read_data(path.parent, saved)
    except CheckpointError:
        raise
    except ValueError as error:  # it would keep `latest` from going on with the previous one
        raise RuntimeError(f"{error!r} instead of a CheckpointError") from error


def _forked_look(command: list[str], **_: Any) -> Any:
    """The inspection of an HDF5 file, by a fork instead of a new interpreter."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        words = hdf5._fault(*command[-3:])
        os.write(writing, (words or "").encode()[:60_000])
        os._exit(hdf5.REFUSED if words else 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return SimpleNamespace(returncode=code, stdout=said)
