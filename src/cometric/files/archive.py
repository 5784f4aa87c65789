"""Arrays out of ``.npz`` files that nobody vouches for.

Sizes are looked at before memory is asked for: a zip archive of some kilobytes can unpack to
terabytes, and the header of an array can promise anything. Nothing is unpickled.
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from cometric.files.hdf5 import check_size

MAX_BYTES = 8e9
"""What the arrays of a file may take in memory, unless told otherwise."""

MAX_ARRAYS = 10_000
"""No file holds more."""

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What NumPy writes; others can ask for gigabytes of memory to unpack a single byte."""

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(file: IO[bytes], path: str | os.PathLike[str], limit: float) -> dict[str, Any]:
    """All arrays of an open ``.npz`` file, called ``path`` in messages, by name."""
    check_arrays(file, path, limit)
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def check_arrays(
    file: IO[bytes], path: str | os.PathLike[str], limit: float
) -> dict[str, tuple[int, ...]]:
    """The shapes in a ``.npz`` file that holds what it declares, no objects, at most ``limit``."""
    shapes = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MAX_ARRAYS:
            raise ValueError(f"`{path}` holds {len(members):,} arrays; at most {MAX_ARRAYS:,} are.")
        check_size(sum(member.file_size for member in members), limit, Path(path))
        for member in members:
            if member.compress_type not in COMPRESSIONS:
                raise ValueError(
                    f"`{path}` is compressed in another way than NumPy does; it is not read."
                )
            with archive.open(member) as part:
                shape = check_array(part, member.file_size, path)
            shapes[member.filename.removesuffix(".npy")] = shape
    return shapes


def check_array(file: IO[bytes], size: int, path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The shape in the header of a ``.npy`` file, which must be as long as it says."""
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"`{path}` is in version {version} of the npy format; 1 and 2 are read.")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"`{path}` holds Python objects, which could run code; it is not read.")
    count = math.prod(shape)
    # Items of no bytes, or two negative sizes, would make any number of items out of nothing.
    if min(shape, default=0) < 0 or (count and not dtype.itemsize):
        raise ValueError(f"`{path}` is damaged: an array has shape {shape} of {dtype}.")
    if count * dtype.itemsize != size - file.tell():
        raise ValueError(f"`{path}` is damaged: an array is not as long as it says.")
    return tuple(shape)
