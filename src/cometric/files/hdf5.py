"""Checks of an HDF5 file before it is read.

The HDF5 library can loop forever or crash on a damaged file, so the checks run in a child process
with limited time and memory: this file, run as a program. It prints what is wrong.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

CPU_SECONDS, BYTES_PER_SECOND = 8, 5e6
"""Time for all names, attributes and sizes, and for text; a million names take a second."""

MAX_DEPTH, MAX_NODES = 16, 100_000
"""Levels and objects a file may have; with hard links, both can be infinite."""

STRING_BYTES, STRINGS = 64, 10_000
"""Memory of a string beside its characters, and how many strings are read at a time."""

CHUNK_BYTES = 2**12
"""Memory that HDF5 takes for each chunk of an array while it reads the array."""

SPARE_BYTES = 2**28
"""Memory of the child process beyond twice the limit for the file."""

REFUSED = 3
"""The exit code of a child process that refuses a file."""


def check_hdf5(path: Path, limit: float, *, in_chunks: bool = False) -> None:
    """Raise if an HDF5 file links to other files, is too large once unpacked, or is damaged.

    With ``in_chunks``, numbers are not read whole: only one chunk of each array counts as large.
    """
    way = "chunks" if in_chunks else "whole"
    child = subprocess.run(
        # -P: modules beside this file must not hide others of the same name
        [sys.executable, "-P", __file__, str(path), repr(float(limit)), way],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode == 0:
        return
    if child.returncode == REFUSED:
        raise ValueError(child.stdout.strip())
    raise ValueError(
        f"`{path}` is damaged: checking it crashed or timed out (exit code {child.returncode})."
    )


def _check(path: str, limit: float, in_chunks: bool) -> None:
    """Raise at the first fault of a file."""
    import h5py

    if not h5py.is_hdf5(path):
        raise ValueError(f"`{path}` is not an HDF5 file, or is cut off at its beginning.")
    with h5py.File(path, "r") as file:
        total = 0.0
        for item in _walk(file, path):
            total += _read_attributes(item)
            check_size(total, limit, path)
            if not isinstance(item, h5py.Dataset):
                continue
            _check_dataset(item, path)
            text = item.dtype.kind == "O"
            size = STRING_BYTES if text else item.dtype.itemsize
            # A chunk is unpacked whole, even if the data are only a corner of it.
            chunk = math.prod(item.chunks or ()) * size
            check_size(chunk, limit, path)
            if text or not in_chunks:
                total += max(math.prod(item.shape or ()) * size, chunk)
                total += CHUNK_BYTES * _count_chunks(item)
            check_size(total, limit, path)
            total += _read_strings(item) if text else 0.0
            check_size(total, limit, path)


def _walk(file: Any, path: str) -> Iterator[Any]:
    """All groups and datasets of a file; raises if it has links, or too many of them."""
    import h5py

    nodes, open_groups = 0, [(file["/"], 0)]
    while open_groups:
        group, depth = open_groups.pop()
        yield group
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
                yield item


def _count_chunks(item: Any) -> int:
    """The number of chunks of an array, written or not: damaged ones may promise millions."""
    if not item.chunks:
        return 0
    return math.prod(-(-size // chunk) for size, chunk in zip(item.shape, item.chunks, strict=True))


def _read_attributes(item: Any) -> float:
    """Read all attributes; their bytes, and those of the index of a sparse matrix they describe."""
    attributes: dict[str, Any] = {name: item.attrs[name] for name in item.attrs}
    total = float(sum(getattr(value, "nbytes", 0) for value in attributes.values()))
    shape: Any = attributes.get("shape")
    integers = getattr(getattr(shape, "dtype", None), "kind", "") in ("i", "u")
    return total + (8.0 * float(shape.max()) if integers and shape.size else 0.0)


def _read_strings(item: Any) -> float:
    """Bytes of all strings; a damaged length would exceed the memory limit of this process."""
    if not item.shape:
        return float(len(item[()] or ""))
    parts = (item[start : start + STRINGS] for start in range(0, item.shape[0], STRINGS))
    return float(sum(len(text) for part in parts for text in part.ravel()))


def _check_dataset(item: Any, path: str) -> None:
    import h5py

    if item.external or item.is_virtual:
        raise ValueError(
            f"`{path}` stores '{item.name}' in other files, which are not opened. "
            "Write it into one file."
        )
    text = h5py.check_string_dtype(item.dtype) is not None
    if item.dtype.hasobject and not text:
        raise ValueError(f"`{path}` has objects in '{item.name}'; only numbers and text are read.")


class TooLarge(ValueError):
    """A file that would take more memory than the limit."""


def check_size(size: float, limit: float, path: Path | str) -> None:
    """Raise if ``size`` bytes are above the limit."""
    if not size <= limit:  # also if the limit is NaN
        raise TooLarge(
            f"`{path}` holds {size / 1e9:.3g} GB or more once unpacked, above the limit of "
            f"{limit / 1e9:.3g} GB. If you trust it, raise `limit` (--read-limit)."
        )


def _limit_resources(path: str, limit: float) -> None:
    """Limit the time of this process, and its memory to little more than it has now."""
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


def _fault(path: str, limit: str, way: str) -> str | None:
    """What is wrong with a file, in one line that names it; None if nothing is."""
    try:
        import h5py  # noqa: F401  (before memory is limited)

        _limit_resources(path, float(limit))
        _check(path, float(limit), way == "chunks")
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        return text if path in text else f"`{path}` cannot be read: {text.rstrip('.')}."
    return None


if __name__ == "__main__":
    fault = _fault(*sys.argv[1:])
    if fault is not None:
        print(fault)
        sys.exit(REFUSED)
