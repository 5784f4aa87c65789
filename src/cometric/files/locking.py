"""A lock on a folder: one run at a time writes to it, until it ends or its process dies."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

LOCK = ".lock"
"""The file that is locked; it holds the number of the process and the name of its machine."""

_held: set[int] = set()


def lock(folder: Path, error: type[ValueError] = ValueError) -> int | None:
    """A handle for :func:`unlock`; raises ``error`` if another run has the lock.

    The operating system releases the locks of a process that dies. None where it has none.
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
