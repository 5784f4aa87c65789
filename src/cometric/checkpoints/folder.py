"""The files of a checkpoint folder: their names, how they are written, read and removed.

    data.npz            the histograms, and norms given as matrices; written once
    state-000012.npz    arrays of the iterate, of the maps, and the history
    manifest-000012     its own checksum, then JSON: the options, the progress of the run,
                        sizes and checksums of the other two

The folder has the two latest checkpoints, and a lock file against a second run. Each file is
written under a temporary name, synced and renamed, the manifest last: a checkpoint without a
manifest does not count, and a crash at any moment leaves the previous one intact. Nothing is
pickled, and nothing is larger in memory than on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from cometric.checkpoints.state import Arrays
from cometric.core.arrays import to_numpy
from cometric.files.storage import LOCK, lock, replacing, unlock
from cometric.files.storage import read_arrays as read_archive

DATA = "data.npz"
MANIFEST = re.compile(r"manifest-(\d{6,12})")
STATE = re.compile(r"state-(\d{6,12})\.npz")
TEMPORARY = re.compile(r"\.(data\.npz|state-\d+\.npz|manifest-\d+)\.part")


class CheckpointError(ValueError):
    """A checkpoint cannot be used: it is damaged, or from another run or version."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be read or written; the run continues without it."""


def state_name(number: int) -> str:
    """The name of the file with the arrays of a checkpoint."""
    return f"state-{number:06d}.npz"


def manifest_name(number: int) -> str:
    """The name of the file that describes a checkpoint."""
    return f"manifest-{number:06d}"


def numbered(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    """The files whose names match ``pattern``, each with its number."""
    if folder.is_dir():
        for path in list(folder.iterdir()):
            match = pattern.fullmatch(path.name)
            if match:
                yield int(match[1]), path


def next_number(folder: Path) -> int:
    """A number larger than those of all checkpoints, complete or not."""
    return 1 + max(
        (number for pattern in (MANIFEST, STATE) for number, _ in numbered(folder, pattern)),
        default=0,
    )


def temporary_files(folder: Path) -> list[Path]:
    """Temporary files left behind by a crash."""
    return [path for path in folder.glob(".*.part") if TEMPORARY.fullmatch(path.name)]


# ------------------------------------------------------------------------------- writing


def write_arrays(folder: Path, name: str, arrays: Arrays) -> dict[str, Any]:
    """Write a ``.npz`` file; return its size and checksum, for the manifest."""
    on_host = {key: to_numpy(array) for key, array in arrays.items()}
    return _write(folder, name, lambda file: np.savez(file, **on_host))


def write_manifest(folder: Path, number: int, content: dict[str, Any]) -> None:
    """Write a manifest, its checksum on the first line."""
    body = json.dumps(content, indent=1).encode()
    checksum = hashlib.sha256(body).hexdigest().encode()
    _write(folder, manifest_name(number), lambda file: file.write(checksum + b"\n" + body))


def _write(folder: Path, name: str, fill: Callable[[Any], Any]) -> dict[str, Any]:
    # The folder is locked, so a fixed temporary name is safe; it identifies leftovers of a crash.
    with replacing(folder / name, f".{name}.part") as file:
        fill(file)
        file.flush()
        return {"bytes": _size(file), "sha256": _checksum(file)}


# ------------------------------------------------------------------------------- reading


def read_manifest(path: Path) -> dict[str, Any]:
    """The content of a manifest; raises if its checksum is wrong."""
    checksum, _, body = path.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise CheckpointError(f"`{path}` is damaged: its checksum is wrong.")
    content: dict[str, Any] = json.loads(body)
    return content


def read_arrays(path: Path, recorded: dict[str, Any]) -> Arrays:
    """All arrays of a file; raises unless size and checksum match the manifest (``recorded``)."""
    try:
        with open(path, "rb") as file:
            size = _size(file)
            if size != recorded["bytes"]:
                raise CheckpointError(
                    f"`{path}` is damaged: it has {size} bytes instead of {recorded['bytes']}."
                )
            if _checksum(file) != recorded["sha256"]:
                raise CheckpointError(f"`{path}` is damaged: its checksum is wrong.")
            return read_archive(file, path, limit=size)
    except FileNotFoundError:
        raise CheckpointError(f"`{path}` is missing.") from None


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _checksum(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


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
    manifests = [path for _, path in numbered(folder, MANIFEST) if _is_own_file(path)]
    if not manifests:
        raise CheckpointError(f"`{checkpoint}` holds no checkpoint; nothing was removed.")
    handle = lock(folder, CheckpointError)
    try:
        arrays = [path for _, path in numbered(folder, STATE) if _is_own_file(path)]
        data = folder / DATA
        if _is_own_file(data) and data.stat().st_size in map(_data_size, manifests):
            arrays.append(data)
        # Manifests last: after a crash in between, they still identify our files.
        for path in (*temporary_files(folder), *arrays, *manifests):
            path.unlink(missing_ok=True)
        (folder / LOCK).unlink(missing_ok=True)
    finally:
        unlock(handle)
    if not any(folder.iterdir()) and not folder.is_symlink():
        folder.rmdir()


def _is_own_file(path: Path) -> bool:
    """Whether this is a regular file: we never write links or folders."""
    return path.is_file() and not path.is_symlink()


def _data_size(manifest: Path) -> int | None:
    """The size of data.npz according to a manifest; None if the manifest is damaged."""
    try:
        return int(read_manifest(manifest)["files"][DATA]["bytes"])
    except (CheckpointError, OSError, KeyError, TypeError, ValueError):
        return None
