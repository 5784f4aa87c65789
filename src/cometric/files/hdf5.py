"""A look through an HDF5 file before anybody trusts it.

The library that reads these files can loop for ever or crash on a damaged one, so the look is
taken by a child process with little time to spend: this file, run as a program. What it has to
say it prints.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

CPU_SECONDS, BYTES_PER_SECOND = 8, 5e6
"""For all names, attributes and sizes, and for text; a million names take a second."""

MAX_DEPTH, MAX_NODES = 16, 100_000
"""Levels and objects a file may have; hard links can make both endless."""

STRING_BYTES, STRINGS = 64, 10_000
"""What a name takes in memory beside its letters, and how many are read at a time."""

SPARE_BYTES = 2**28
"""Memory of the child beyond twice what the file may take."""

REFUSED = 3
"""The exit code of a child that has found something."""


def check_hdf5(path: Path, limit: float) -> None:
    """Refuse HDF5 files that reach outside themselves, unpack to too much, or are damaged."""
    child = subprocess.run(
        [sys.executable, "-P", __file__, str(path), repr(float(limit))],  # -P: not our `types`
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode == 0:
        return
    if child.returncode == REFUSED:
        raise ValueError(child.stdout.strip())
    raise ValueError(
        f"`{path}` is damaged: looking through it ended or held up a process "
        f"(code {child.returncode})."
    )


def _look(path: str, limit: float) -> None:
    """Walk through all groups; what is wrong is an error."""
    import h5py

    with h5py.File(path, "r") as file:
        total, nodes, open_groups = 0.0, 0, [(file["/"], 0)]
        while open_groups:
            group, depth = open_groups.pop()
            total += _look_at_attributes(group)
            check_size(total, limit, path)
            for name in group:
                nodes += 1
                if depth >= MAX_DEPTH or nodes > MAX_NODES:
                    raise ValueError(
                        f"`{path}` is nested more than {MAX_DEPTH} levels deep or holds more than "
                        f"{MAX_NODES:,} objects; it is not read."
                    )
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise ValueError(
                        f"`{path}` has a link at '{group.name.rstrip('/')}/{name}', which may "
                        "lead anywhere; it is not read. Write the file without links."
                    )
                item = group[name]
                if isinstance(item, h5py.Group):
                    open_groups.append((item, depth + 1))
                elif isinstance(item, h5py.Dataset):
                    total += _look_at_attributes(item)
                    _check_dataset(item, path)
                    text = item.dtype.kind == "O"
                    size = STRING_BYTES if text else item.dtype.itemsize
                    # A chunk is unpacked whole, even if the data are only a corner of it.
                    total += max(math.prod(item.shape or ()), math.prod(item.chunks or ())) * size
                    check_size(total, limit, path)
                    total += _read_strings(item) if text else 0.0
                    check_size(total, limit, path)


def _look_at_attributes(item: Any) -> float:
    """Read them all; their bytes, and those of a sparse matrix of the shape they tell."""
    found: dict[str, Any] = {name: item.attrs[name] for name in item.attrs}
    total = float(sum(getattr(value, "nbytes", 0) for value in found.values()))
    shape: Any = found.get("shape")
    numbers = getattr(getattr(shape, "dtype", None), "kind", "") in ("i", "u")
    return total + (8.0 * float(shape.max()) if numbers and shape.size else 0.0)


def _read_strings(item: Any) -> float:
    """Bytes of all letters; a damaged length asks for gigabytes, which this process has not."""
    if not item.shape:
        return float(len(item[()] or ""))
    parts = (item[start : start + STRINGS] for start in range(0, item.shape[0], STRINGS))
    return float(sum(len(text) for part in parts for text in part.ravel()))


def _check_dataset(item: Any, path: str) -> None:
    import h5py

    if item.external or item.is_virtual:
        raise ValueError(
            f"`{path}` keeps '{item.name}' in other files, which are not opened. "
            "Write it into one file."
        )
    text = h5py.check_string_dtype(item.dtype) is not None
    if item.dtype.hasobject and not text:
        raise ValueError(f"`{path}` has objects in '{item.name}'; numbers and text are read.")


class TooLarge(ValueError):
    """A file that would take more memory than its reader allows."""


def check_size(size: float, limit: float, path: Path | str) -> None:
    """Refuse what would take more memory than ``limit``."""
    if not size <= limit:  # nor if the limit is NaN
        raise TooLarge(
            f"`{path}` holds {size / 1e9:.3g} GB or more once unpacked, above the limit of "
            f"{limit / 1e9:.3g} GB. If you trust it, raise `limit` (--read-limit)."
        )


def _hold_down(path: str, limit: float) -> None:
    """Give this process little time, and little more memory than it has."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    seconds = CPU_SECONDS + int(os.path.getsize(path) / BYTES_PER_SECOND)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with suppress(OSError):  # not on Linux
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + 2.0 * limit + SPARE_BYTES
        if most < 2**62:
            resource.setrlimit(resource.RLIMIT_AS, (int(most), int(most)))


def _complaint(path: str, limit: str) -> str | None:
    """What is wrong with a file, in one line that names it."""
    try:
        import h5py  # noqa: F401  (before memory is counted)

        _hold_down(path, float(limit))
        _look(path, float(limit))
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        return words if path in words else f"`{path}` cannot be read: {words.rstrip('.')}."
    return None


if __name__ == "__main__":
    found = _complaint(*sys.argv[1:])
    if found is not None:
        print(found)
        sys.exit(REFUSED)
