"""Files that appear under their name only when complete."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cometric.core.kinds import check_path


def check_target(path: Path) -> None:
    """Raise unless a file can have this path: it is not a folder, and lies in one."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))


@contextmanager
def replacing(path: Path, temporary: str | None = None) -> Iterator[IO[bytes]]:
    """A temporary file in the folder of ``path``, renamed to ``path`` once it is on the disk.

    Until then readers see the previous file, which stays if writing fails. ``temporary`` is its
    name; the default is one that no other thread or process uses. That takes only the beginning
    of a long name, since names have at most 255 bytes.
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
    """Make a rename durable, on systems where that takes a call of its own."""
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
