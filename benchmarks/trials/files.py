"""Files that somebody has changed: read or refused, but nothing else.

Small files of every kind are mutated and read by children of which each reads some hundreds. One
that hangs is ended by a timer of the system, which interrupts compiled code too.
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
from cometric.files import hdf5
from cometric.files.reading import read
from cometric.saving.folder import CheckpointError
from cometric.saving.saved import latest, read_data
from machine import cores
from trials import Outcome
from trials.processes import begin, end

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
JSON += [b"9" * 30, b"9" * 5000, b"[" * 3000, b'"\\ud800"', b"0.5", b"[]", b'{"array": "history"}']
BINARY = [struct.pack("<q", x) for x in (0, 1, -1, 2**31, 2**40, 2**62, -(2**63))]
BINARY += [struct.pack("<i", x) for x in (0, 1, -1, 2**16, 2**31 - 1)] + [b"\x80", b"|O", b"<U9"]


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
    """Read these files in children, another one after each that died."""
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
        for outcome, peak in outcomes:
            found[outcome] += 1
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
    """What becomes of a file; everything but a ``ValueError`` is a fault of ours."""
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
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(parts))
    parts[name] = _mutate(BINARY + TEXT, parts[name], rng)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return made.getvalue()


def _inside_manifest(raw: bytes, rng: random.Random) -> bytes:
    """Change the JSON and make the checksum right again, or change anything."""
    if rng.random() < 0.1:
        return _mutate(JSON, raw, rng)
    body = _mutate(JSON, raw.partition(b"\n")[2], rng)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


# --------------------------------------------------------------------------- whole files


def _kinds() -> list[Kind]:
    import anndata
    import pandas as pd

    folder = Path(tempfile.mkdtemp())
    X = np.arange(12.0).reshape(4, 3) + 0.5
    table = pd.DataFrame(X, [f"cell {i}" for i in range(4)], ["a", "b", "=c"])
    table.to_csv(folder / "data.csv")
    table.to_csv(folder / "data.tsv.gz", sep="\t")
    np.save(folder / "data.npy", X)
    np.savez(folder / "dense.npz", X=X)
    sparse.save_npz(folder / "sparse.npz", sparse.csr_matrix(X))
    anndata.AnnData(sparse.csr_matrix(X), table[["a"]]).write_h5ad(folder / "data.h5ad")
    run = folder / "run"
    end(begin(partial(_make_checkpoint, X, run, folder / "result.npz")))
    manifest = sorted(run.glob("manifest-*"))[-1]
    hdf5.subprocess = SimpleNamespace(run=_forked_look)  # type: ignore[attr-defined]
    small = partial(read, limit=LIMIT)
    mutations = {
        "data.csv": (40, partial(_mutate, TEXT), small),
        "data.tsv.gz": (8, _inside_gzip, small),
        "data.npy": (6, partial(_mutate, BINARY), small),
        "dense.npz": (8, _inside_npz, small),
        "sparse.npz": (10, _inside_npz, small),
        "data.h5ad": (12, partial(_mutate, BINARY), small),
        "result.npz": (6, _inside_npz, cm.load),
    }
    kinds = [
        Kind(share, name, (folder / name).read_bytes(), change, how)
        for name, (share, change, how) in mutations.items()
    ]
    others = {path.name: path.read_bytes() for path in run.iterdir() if path.name != ".lock"}
    whole = others.pop(manifest.name)
    kinds.append(
        Kind(10, manifest.name, whole, _inside_manifest, partial(_read_checkpoint, others))
    )
    shutil.rmtree(folder)
    return kinds


def _make_checkpoint(X: Any, run: Path, result: Path) -> str:
    cm.learn(X, 0.0, 0.5, checkpoint=run, checkpoint_every=0).save(result)
    return "done"


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
    """The look through an HDF5 file, by a fork instead of a new interpreter."""
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
