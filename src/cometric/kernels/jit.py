"""Numba's ``njit`` with a cache that notices changes in any kernel.

Numba compares a cached function with the file it is in, not with the files of the functions it
calls and inlines. So after an update of the package a kernel could run with old code inside.
"""

import hashlib
from contextlib import suppress

import numba

from cometric.kernels.caching import KERNELS

SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(KERNELS.glob("*.py")))
).hexdigest()
"""Checksum of all kernel files."""


BORROWED = {"_nrt": False}
"""Options of kernels that are called for every pair, by kernels that own the arrays.

Numba counts references to arrays, and to those in records, in every call and for every slice: some
200 ns per pair. Such a kernel cannot create arrays.
"""


def njit(function=None, **options):
    """Compile a function in nopython mode; compiled code is cached until any kernel changes."""
    if function is None:
        return lambda function: njit(function, **options)
    kernel = numba.njit(cache=True, **options)(function)
    with suppress(AttributeError):  # not compiled, or another version of Numba
        cache = kernel._cache._cache_file
        cache._source_stamp = (cache._source_stamp, SOURCES)
    return kernel
