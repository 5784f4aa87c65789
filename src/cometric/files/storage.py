"""Files of results and checkpoints: written atomically, locked, and checked when read.

They hold arrays and JSON, never pickles. An archive of a few kilobytes can unpack to terabytes, and
the header of an array can promise anything, so sizes are checked before memory is allocated.
"""

from __future__ import annotations

import errno
import math
import os
import platform
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from cometric.core.arguments import check_path

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

LOCK = ".lock"
"""The lock file; it contains the process id and the host name."""

_held: set[int] = set()


class TooLarge(ValueError):
    """A file that would take more memory than the limit."""


def read_arrays(file: IO[bytes], path: str | os.PathLike[str], limit: float) -> dict[str, Any]:
    """All arrays of an open ``.npz`` file, by name; messages call it ``path``.

    Raises if they take more than ``limit`` bytes, or hold objects, or contradict their headers.
    """
    with zipfile.ZipFile(file) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if not size <= limit:  # also if the limit is NaN
            raise TooLarge(
                f"`{path}` takes {size / 1e9:.3g} GB once unpacked, but `limit` is "
                f"{limit / 1e9:.3g} GB. Pass a larger `limit`, or free memory."
            )
        for member in archive.infolist():
            with archive.open(member) as part:
                _check_array(part, member.file_size, path)
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _check_array(file: IO[bytes], size: int, path: str | os.PathLike[str]) -> None:
    """Raise unless the header of a ``.npy`` file describes an array that fills its ``size``."""
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"`{path}` is in version {version} of the npy format; 1 and 2 are read.")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"`{path}` holds Python objects, which could run code; it is not read.")
    count = math.prod(shape)
    # With items of zero bytes, or two negative sizes, the size check below would prove nothing.
    if min(shape, default=0) < 0 or (count and not dtype.itemsize):
        raise ValueError(f"`{path}` is damaged: an array has shape {shape} of {dtype}.")
    if count * dtype.itemsize != size - file.tell():
        raise ValueError(f"`{path}` is damaged: an array is not as long as its header says.")


def check_target(path: Path) -> None:
    """Raise if ``path`` is a folder, or its parent is not."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))


@contextmanager
def replacing(path: Path, temporary: str | None = None) -> Iterator[IO[bytes]]:
    """A temporary file in the folder of ``path``, renamed to ``path`` once it is on the disk.

    Until then readers see the previous file, which stays if writing fails. ``temporary`` is the
    name of the temporary file, by default unique to the thread and process; it uses only the
    beginning of a long name, since names have at most 255 bytes.
    """
    path = check_path(path)
    check_target(path)
    if temporary is None:
        start = path.name[:40]  # at most 160 bytes
        temporary = f".{start}.{os.getpid()}.{threading.get_ident()}.part"
    part = path.with_name(temporary)
    try:
        with open(part, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where that needs an ``fsync`` of the folder."""
    if os.name != "posix":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder may be writable without being readable
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every file system syncs folders
            raise
    finally:
        os.close(handle)


def lock(folder: Path, error: type[ValueError] = ValueError) -> int | None:
    """A handle for :func:`unlock`; raises ``error`` if another run has the lock.

    The operating system releases the locks of a process that dies. None on systems without locks.
    """
    try:
        import fcntl
    except ImportError:  # not a Unix
        return None
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(handle, 1000).decode(errors="replace")
        os.close(handle)
        raise error(
            f"`{folder}` is in use by {owner or 'another run'}. Wait for it, or pass another "
            "folder."
        ) from None
    except OSError:  # a file system without locks
        pass
    with suppress(OSError):  # a full disk: the name is for a message only
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
    _held.add(handle)
    return handle


def unlock(handle: int | None) -> None:
    """Let others use the folder; does nothing in a forked child, which has no locks."""
    if handle in _held:
        _held.remove(handle)
        os.close(handle)


def _forget() -> None:
    """Close the handles in a forked child: it would keep the locks of a parent that died."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
