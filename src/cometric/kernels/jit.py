"""Numba's ``njit`` with a cache that cannot return the code of another kernel.

Numba's own cache can, in two ways. It compares a cached function with the file it is in, not with
the files of the functions it calls and inlines: after an update of the package a kernel could run
with old code inside. And it numbers the files of compiled code without a lock: of two processes
that compile variants of one function at once, both write number 1, and the index names one of them,
for ever.
"""

import hashlib
import os
from contextlib import suppress

import numba
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock

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


class KernelCache(IndexDataCacheFile):
    """Compiled variants of one function; each file says which variant it holds.

    What cannot be read, or is another variant, is compiled again; what cannot be written is not
    cached.
    """

    def save(self, key, data):
        with suppress(OSError):
            super().save(key, (self._source_stamp, key, data))

    def load(self, key):
        with suppress(Exception):  # a damaged pickle can raise anything
            stamp, variant, data = super().load(key)
            if (stamp, variant) == (self._source_stamp, key):
                return data
        return None

    def _load_index(self):
        with suppress(Exception):
            return super()._load_index()
        return {}


def njit(function=None, **options):
    """Compile a function in nopython mode; compiled code is cached until any kernel changes."""
    if function is None:
        return lambda function: njit(function, **options)
    kernel = numba.njit(cache=True, **options)(function)
    cache = getattr(kernel, "_cache", None)
    if cache is not None:  # compiled
        stamp = (cache._cache_file._source_stamp, SOURCES)
        cache._cache_file = KernelCache(cache.cache_path, cache._impl.filename_base, stamp)
    return kernel


if hasattr(os, "register_at_fork"):
    # A fork waits until no kernel is compiled or loaded: a child could not finish what another
    # thread has begun, nor take the locks inside LLVM.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
