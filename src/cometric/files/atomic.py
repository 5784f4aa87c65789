"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path, or a ``ValueError`` where nothing can be called so."""
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise ValueError(
            f"`path` is {os.fspath(path)!r}; no file can be called so. Leave out NUL characters "
            "and lone surrogates."
        )
    return Path(path)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, beside ``path``, whose place it takes once all is on the disk.

    Whoever reads meanwhile finds what was there before, and if writing fails that stays. No
    other thread or process writes to it; of a long name only the beginning is taken, since 255
    bytes are all a name may have.
    """
    path = check_path(path)
    start = path.name[:40]  # no more than 160 bytes
    part = path.with_name(f".{start}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
