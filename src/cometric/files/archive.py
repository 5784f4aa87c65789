"""Arrays from ``.npz`` and ``.npy`` files that may be damaged or hostile.

Sizes are checked before memory is allocated: a zip archive of a few kilobytes can unpack to
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
"""Default limit for the size in memory of the arrays of a file."""

MAX_ARRAYS = 10_000
"""Files with more arrays are refused."""

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those NumPy writes; others can take gigabytes of memory to unpack a single byte."""

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(file: IO[bytes], path: str | os.PathLike[str], limit: float) -> dict[str, Any]:
    """All arrays of an open ``.npz`` file, by name; messages call it ``path``."""
    check_arrays(file, path, limit)
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def check_arrays(
    file: IO[bytes], path: str | os.PathLike[str], limit: float
) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in a ``.npz`` file, after checks.

    They take at most ``limit`` bytes, none holds objects, and each is as long as its header says.
    """
    shapes = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MAX_ARRAYS:
            raise ValueError(
                f"`{path}` holds {len(members):,} arrays; at most {MAX_ARRAYS:,} are read."
            )
        check_size(sum(member.file_size for member in members), limit, Path(path))
        for member in members:
            if member.compress_type not in COMPRESSIONS:
                raise ValueError(
                    f"`{path}` uses a compression that NumPy does not write; it is not read."
                )
            with archive.open(member) as part:
                shape = check_array(part, member.file_size, path)
            shapes[member.filename.removesuffix(".npy")] = shape
    return shapes


def check_array(file: IO[bytes], size: int, path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The shape in the header of a ``.npy`` file of ``size`` bytes, which must be as it says."""
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
        raise ValueError(f"`{path}` is damaged: an array is not as long as its header says.")
    return tuple(shape)
