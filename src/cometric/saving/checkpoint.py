"""Checkpoints: all a run needs to go on as if it had never stopped.

A checkpoint holds the whole state: the iterate with what its solver remembers, what the maps
remember (trees, scalings), the history, the stage. Taking one changes nothing, so it may be
taken after any iteration, at Ctrl-C too, and on the CPU a resumed run ends with the bits of one
that was never stopped. Restart points, where a run drops its memory on purpose, would be smaller
on disk, but would slow every run down and make its answer depend on when it was saved.

A folder holds

    data.npz            the histograms, and norms given as matrices; written once
    state-000012.npz    arrays of the iterate, of the maps, and the history
    manifest-000012     its own checksum, then JSON: what was asked for, where the run
                        stands, checksums of the other two

for the two latest checkpoints, and a lock that keeps a second run out. Each file is written
aside, synced and renamed, the manifest last: a checkpoint without one does not count, and a crash
at any moment leaves the previous one. Nothing is pickled, nothing is larger in memory than on
disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from cometric.answers.result import Record
from cometric.core.arrays import to_numpy
from cometric.core.types import Coupled, State
from cometric.core.warn import warn
from cometric.files.archive import MAX_ARRAYS
from cometric.machine.interruption import Interruption
from cometric.machine.progress import amount
from cometric.saving.state import Arrays, put_together, take_apart

SCHEMA = (1, 1)
"""A reader refuses another first number, and ignores what a later second one has added."""

MANIFEST_BYTES = 1 << 20
"""No manifest is longer."""

MANIFEST = re.compile(r"manifest-(\d{6,12})")
STATE = re.compile(r"state-(\d{6,12})\.npz")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, of another run, or of another version."""


_origin: ContextVar[dict[str, Any] | None] = ContextVar("origin", default=None)


@contextmanager
def noting(origin: dict[str, Any]) -> Iterator[None]:
    """Keep ``origin``, as JSON, in all checkpoints of runs that begin inside.

    It says where the data come from, for whoever needs more of them than histograms. It has no
    part in the answer, and a run with another one may go on from the checkpoint.
    """
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


class CheckpointWarning(UserWarning):
    """A checkpoint could not be read or written; the run goes on without it."""


@dataclass(frozen=True)
class Saved:
    """What one checkpoint says."""

    number: int
    asked: dict[str, Any]
    used: dict[str, Any]  # what was chosen where nothing was asked for
    stage: int
    iterate: dict[str, Any]  # its fields, with the places of arrays among ``arrays``
    arrays: Arrays
    data: dict[str, Any]  # size and checksum of data.npz
    origin: dict[str, Any]  # see ``noting``

    def history(self, stage: int) -> list[Record]:
        """The records of one stage."""
        return [
            Record.from_row(row)
            for number, *row in self.arrays["history"].tolist()
            if number == stage
        ]


class Checkpoint:
    """The checkpoints of one run: where it begins, and where it writes.

    Parameters
    ----------
    folder
        Where they are.
    every
        Seconds between two of them; 0 writes one after each iteration.
    asked
        Everything that changes the answer, by name, as JSON.
    used
        What was chosen where nothing was asked for; taken from the checkpoint, if there is one.
    data
        Gives the arrays of data.npz, when they are wanted.
    interruption
        Tells of signals: a run that was asked to stop writes and does so.
    """

    def __init__(
        self,
        folder: Path,
        every: float,
        asked: dict[str, Any],
        used: dict[str, Any],
        data: Callable[[], Arrays],
        interruption: Interruption,
        saved: Saved | None = None,
    ) -> None:
        self._called = folder
        folder = folder.absolute()  # wherever a callback may lead the process
        self.folder, self.every, self.asked, self.used = folder, every, asked, used
        self.interruption = interruption
        self.tell: Callable[[str], Any] | None = None  # of the size, before the first is written
        self._data = data
        self._saved = saved
        self._stages = 0
        self._history: list[tuple[float, ...]] = []
        self._latest: tuple[int, dict[str, Any], Arrays] | None = None  # complete, not yet written
        self._written = time.monotonic()
        self._good = [saved.number] if saved else []
        self._data_mark: dict[str, Any] | None = None
        self._origin = _origin.get() or (saved.origin if saved else {})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
        except OSError as problem:
            raise CheckpointError(
                f"`checkpoint` is `{folder}`, where nothing can be written ({problem.strerror}). "
                "Pass another folder."
            ) from problem
        self._clean()

    def close(self) -> None:
        """Let others use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def stage(self, phi: Coupled) -> Stage:
        """The next of the solves that the run consists of."""
        self._stages += 1
        return Stage(self, self._stages, phi)

    def flush(self) -> bool:
        """Write what has not been written yet; whether the folder now holds where we are."""
        if self._latest is not None:
            stage, iterate, arrays = self._latest
            try:
                self._write(stage, iterate, arrays)
            except OSError as problem:
                warn(
                    f"No checkpoint could be written to `{self.folder}`: {problem}. "
                    f"{'The previous one is intact' if self._good else 'There is none yet'}; "
                    "the run goes on.",
                    CheckpointWarning,
                )
            else:
                self._latest = None
            self._written = time.monotonic()
        return self._latest is None and bool(self._good)

    def _tell_size(self) -> None:
        """Say, once, how large a checkpoint is and when it will be written."""
        if self.tell is None or self._latest is None:
            return
        arrays = [*self._data().values(), *self._latest[2].values()]
        size = sum(getattr(array, "nbytes", 8) for array in arrays)
        often = f"every {self.every:g} s" if self.every > 0.0 else "after each iteration"
        self.tell(
            f"checkpoints in {self._called}: about {amount(size)} each, {often}; two are kept"
        )
        self.tell = None

    def _write(self, stage: int, iterate: dict[str, Any], arrays: Arrays) -> None:
        number = max([0, *_numbers(self.folder, MANIFEST), *_numbers(self.folder, STATE)]) + 1
        history = np.array(self._history, np.float64).reshape(-1, 1 + len(Record._fields))
        if self._data_mark is None:
            self._data_mark = _write_arrays(self.folder, "data.npz", self._data())
        marks = {
            "data.npz": self._data_mark,
            _state_name(number): _write_arrays(
                self.folder, _state_name(number), arrays | {"history": history}
            ),
        }
        content = json.dumps(
            {
                "schema": SCHEMA,
                "number": number,
                "versions": _versions(),
                "asked": self.asked,
                "used": self.used,
                "origin": self._origin,
                "stage": stage,
                "iterate": iterate,
                "files": marks,
            },
            indent=1,
        ).encode()
        _write_file(
            self.folder,
            _manifest_name(number),
            lambda file: file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content),
        )
        self._good.append(number)
        self._clean()

    def _clean(self) -> None:
        """Remove what is left of writes that failed and, once two are good, what is older."""
        for scrap in _scraps(self.folder):
            scrap.unlink(missing_ok=True)
        kept = self._good[-2:]
        if len(kept) == 2:
            for pattern in (MANIFEST, STATE):  # never a manifest without its state
                for number, path in _matching(self.folder, pattern):
                    if number not in kept:
                        path.unlink(missing_ok=True)


class Stage:
    """One solve of a run."""

    def __init__(self, run: Checkpoint, number: int, phi: Coupled) -> None:
        self._run, self._number, self._phi = run, number, phi
        saved = run._saved
        self.history = [] if saved is None else saved.history(number)
        self.finished = saved is not None and saved.stage > number
        for record in self.history:
            run._history.append((number, *record))

    def resume(self, now: State) -> State:
        """The iterate to go on from: the one saved in this stage, or ``now``."""
        saved = self._run._saved
        if saved is None or saved.stage != self._number:
            return now
        try:
            state = put_together(now, self._phi, saved.iterate, saved.arrays)
        except (KeyError, TypeError, ValueError) as problem:
            path = self._run.folder / _state_name(saved.number)
            raise CheckpointError(f"`{path}` does not fit this run: {problem}") from problem
        self._run._saved = None
        return state

    def leave(self) -> None:
        """A step begins: from here to its end there is nothing to save."""
        self._run._latest = None

    def keep(self, now: State, record: Record) -> bool:
        """A step is complete: save it if it is time; whether the run was asked to stop."""
        run = self._run
        run._history.append((self._number, *record))
        run._latest = self._number, *take_apart(now, self._phi)
        run._tell_size()
        if run.interruption.number is not None:
            return True
        if time.monotonic() - run._written >= run.every:
            run.flush()
        return False


# ------------------------------------------------------------------------------- reading


def latest(folder: Path) -> Saved | None:
    """The newest checkpoint that is intact, or None where there is none at all.

    A damaged one is passed over with a warning that names the file. If all are damaged, or the
    newest was written by another major version, that is an error.
    """
    damaged: list[str] = []
    for number, path in sorted(_matching(folder, MANIFEST), reverse=True):
        try:
            found = _read(folder, number, path)
        except Unknown as problem:
            raise CheckpointError(str(problem)) from None
        except (CheckpointError, OSError) as problem:
            damaged.append(str(problem))
            continue
        for words in damaged:
            warn(
                f"{words} Going on from the previous checkpoint, number {number}.",
                CheckpointWarning,
            )
        return found
    if damaged:
        raise CheckpointError(
            f"{' '.join(damaged)} No intact checkpoint is left in `{folder}`: "
            "remove the folder and start again."
        )
    return None


def read_data(folder: Path, saved: Saved) -> Arrays:
    """The arrays of data.npz."""
    return _read_arrays(folder / "data.npz", saved.data)


def compare(folder: Path, saved: Saved, asked: dict[str, Any]) -> None:
    """Refuse to go on with other data or other parameters than the checkpoint's."""
    here = json.loads(json.dumps(asked))
    differing = [
        _difference(key, here.get(key), saved.asked.get(key))
        for key in dict.fromkeys([*here, *saved.asked])
        if here.get(key) != saved.asked.get(key)
    ]
    if differing:
        raise CheckpointError(
            f"`{folder}` holds a checkpoint of another run: {'; '.join(differing)}. "
            "Pass the same again, or another folder."
        )


def _difference(key: str, here: Any, there: Any) -> str:
    if key == "data":  # of which we have checksums
        return "the data differ"
    show = amount if key == "memory_limit" else _short
    one, other = ("not given" if value is None else show(value) for value in (here, there))
    return f"`{key}` is {one} here and {other} there"


class Unknown(CheckpointError):
    """Written by a version whose files we cannot read."""


def _read(folder: Path, number: int, path: Path) -> Saved:
    content = _read_manifest(path)
    schema = content.get("schema")
    if not isinstance(schema, list) or schema[:1] != [SCHEMA[0]]:
        raise Unknown(
            f"`{path}` has schema {schema}; this version reads {SCHEMA[0]}. "
            "Resume with the version of cometric that wrote it."
        )
    try:
        if content["number"] != number:
            raise CheckpointError(f"`{path}` says that it is number {content['number']}.")
        files = content["files"]
        state = _state_name(number)
        saved = Saved(
            number=number,
            asked=dict(content["asked"]),
            used=dict(content["used"]),
            stage=int(content["stage"]),
            iterate=dict(content["iterate"]),
            arrays=_read_arrays(folder / state, files[state]),
            data=dict(files["data.npz"]),
            origin=dict(content.get("origin", {})),  # earlier versions have none
        )
        saved.history(saved.stage)
        versions = dict(content["versions"])
    except CheckpointError:
        raise
    except KeyError as problem:
        raise CheckpointError(f"`{path}` lacks {problem}.") from problem
    except (TypeError, ValueError, OverflowError) as problem:
        raise CheckpointError(f"`{path}` is no manifest: {problem}.") from problem
    now = _versions()
    other = [
        f"{name} {was} (now {now.get(name)})"
        for name, was in versions.items()
        if now.get(name) != was
    ]
    if other:
        warn(
            f"The checkpoint was written with {', '.join(other)}: the answer will agree to "
            "tolerance, perhaps not to the last bit.",
            CheckpointWarning,
        )
    return saved


def _read_manifest(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        raw = file.read(MANIFEST_BYTES + 1)
    if len(raw) > MANIFEST_BYTES:
        raise CheckpointError(f"`{path}` is longer than any manifest.")
    checksum, _, body = raw.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise CheckpointError(f"`{path}` is damaged: its checksum is wrong.")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"`{path}` is no JSON: {problem}.") from problem
    if not isinstance(content, dict):
        raise CheckpointError(f"`{path}` is no manifest.")
    return content


def _read_arrays(path: Path, mark: dict[str, Any]) -> Arrays:
    """All arrays of a file whose size and checksum are as the manifest says."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != mark["bytes"]:
                raise CheckpointError(
                    f"`{path}` is damaged: it has {size} bytes instead of {mark['bytes']}."
                )
            if hashlib.file_digest(file, "sha256").hexdigest() != mark["sha256"]:
                raise CheckpointError(f"`{path}` is damaged: its checksum is wrong.")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                parts = archive.infolist()
                if len(parts) > MAX_ARRAYS:
                    raise CheckpointError(f"`{path}` holds {len(parts)} arrays; that is too many.")
                total = sum(part.file_size for part in parts)
                if total > size:  # they are packed, or overlap
                    raise CheckpointError(f"`{path}` would unpack to {total} bytes.")
                return {
                    part.filename.removesuffix(".npy"): _read_array(archive, part, size)
                    for part in parts
                }
    except FileNotFoundError:
        raise CheckpointError(f"`{path}` is missing.") from None
    except CheckpointError:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, NotImplementedError, EOFError) as problem:
        raise CheckpointError(f"`{path}` is no file of arrays: {problem}.") from problem


def _read_array(archive: zipfile.ZipFile, part: zipfile.ZipInfo, limit: int) -> Any:
    """One array, whose size is known to be there before room is made for it."""
    if part.compress_type != zipfile.ZIP_STORED or part.file_size > limit:
        raise ValueError(f"{part.filename} would unpack to {part.file_size} bytes")
    with archive.open(part) as file:
        header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, in_columns, dtype = header[npy.read_magic(file)](file)
        raw = bytearray(file.read())  # bytes would make arrays that cannot be written to
    if dtype.hasobject or prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"{part.filename} does not hold what its header says")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if in_columns else "C")


def source(folder: Path) -> tuple[dict[str, Any], Arrays]:
    """What the newest checkpoint was told of where its data come from, and its data.npz."""
    for _, path in sorted(_matching(folder, MANIFEST), reverse=True):
        try:
            content = _read_manifest(path)
            origin, mark = dict(content.get("origin", {})), dict(content["files"]["data.npz"])
            return origin, _read_arrays(folder / "data.npz", mark)
        except (CheckpointError, OSError, KeyError, TypeError, ValueError):
            continue  # `latest` says what is wrong with it
    return {}, {}


# ------------------------------------------------------------------------------ removing


def remove_checkpoint(checkpoint: str | os.PathLike[str]) -> None:
    """Delete the checkpoints in a folder, and the folder itself if nothing else is in it.

    Only files that a run with ``checkpoint=...`` has written are deleted. A folder without
    checkpoints, or one that a run is using, is an error.

    Parameters
    ----------
    checkpoint
        The folder that was passed to :func:`learn`.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> result = cm.learn(X, eps=0, tau=0.1, checkpoint="run")
    >>> result.save("metrics.npz")
    >>> cm.remove_checkpoint("run")
    """
    folder = Path(checkpoint)
    manifests = [path for _, path in _matching(folder, MANIFEST) if _is_own_file(path)]
    if not manifests:
        raise CheckpointError(f"`{checkpoint}` holds no checkpoint; nothing was removed.")
    lock = _lock(folder)
    try:
        states = [path for _, path in _matching(folder, STATE) if _is_own_file(path)]
        data = folder / "data.npz"
        known = {_data_size(path) for path in manifests}
        if _is_own_file(data) and data.stat().st_size in known:
            states.append(data)
        # Manifests last: what is left by a crash in between can still be told to be ours.
        for path in (*_scraps(folder), *states, *manifests):
            path.unlink(missing_ok=True)
        (folder / ".lock").unlink(missing_ok=True)
    finally:
        if lock is not None:
            os.close(lock)
    if not any(folder.iterdir()) and not folder.is_symlink():
        folder.rmdir()


def _is_own_file(path: Path) -> bool:
    """A plain file: we never make links or folders."""
    return path.is_file() and not path.is_symlink()


def _data_size(manifest: Path) -> int | None:
    """How long data.npz is by a manifest; None if that is damaged."""
    try:
        return int(_read_manifest(manifest)["files"]["data.npz"]["bytes"])
    except (CheckpointError, OSError, KeyError, TypeError, ValueError):
        return None


def _scraps(folder: Path) -> list[Path]:
    """What is left of writes that failed."""
    names = re.compile(r"\.(data\.npz|state-\d+\.npz|manifest-\d+)\.part")
    return [path for path in folder.glob(".*.part") if names.fullmatch(path.name)]


# ------------------------------------------------------------------------------- writing


def _write_arrays(folder: Path, name: str, arrays: Arrays) -> dict[str, Any]:
    found = {key: to_numpy(array) for key, array in arrays.items()}
    return _write_file(folder, name, lambda file: np.savez(file, **found))


def _write_file(folder: Path, name: str, fill: Callable[[Any], Any]) -> dict[str, Any]:
    """Write a file that appears under its name only when complete; its size and checksum."""
    aside = folder / f".{name}.part"
    try:
        with open(aside, "w+b") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            mark = {
                "bytes": os.fstat(file.fileno()).st_size,
                "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
            }
        os.replace(aside, folder / name)
        _sync(folder)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return mark


def _lock(folder: Path) -> int | None:
    """Keep other runs out until the handle is closed, or the process dies."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        return None
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise CheckpointError(
            f"`{folder}` is in use by another run. Wait for it, or pass another folder."
        ) from None
    except OSError:  # a file system without locks
        pass
    return handle


def _sync(folder: Path) -> None:
    """Make renames in a folder last; systems without a way to do so need none."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ------------------------------------------------------------------------------ contents


def digest(arrays: Arrays) -> str:
    """A checksum of named arrays: equal for equal numbers, whatever holds them."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def _versions() -> dict[str, str]:
    """What the last bits depend on."""
    found = {"machine": platform.machine()}
    for name in ("cometric", "numpy", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree
            found[name] = "unknown"
    return found


def _matching(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    if folder.is_dir():
        for path in list(folder.iterdir()):
            found = pattern.fullmatch(path.name)
            if found:
                yield int(found[1]), path


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    return [number for number, _ in _matching(folder, pattern)]


def _state_name(number: int) -> str:
    return f"state-{number:06d}.npz"


def _manifest_name(number: int) -> str:
    return f"manifest-{number:06d}"


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 60 else f"{words[:20]}...{words[-10:]}"
