"""Numba's ``njit`` with a cache that never returns wrong code.

Numba's own cache can, in two ways. It checks only the file of the cached function, not the files of
the functions that it inlines: after an update of the package, a kernel could contain old code. And
it numbers the files of compiled code without a lock: if two processes compile variants of one
function at once, both write number 1, and the index refers to only one variant from then on.
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
"""Options of kernels that are called for every pair with arrays that the caller owns.

They turn off Numba's reference counting of arrays in every call and slice, about 200 ns per pair.
Such a kernel cannot create arrays.
"""


class KernelCache(IndexDataCacheFile):
    """Compiled variants of one function; each file names its variant.

    Files that cannot be read, or have another variant, are compiled again; files that cannot be
    written are skipped.
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
    if cache is not None:  # None if Numba's JIT is turned off
        stamp = (cache._cache_file._source_stamp, SOURCES)
        cache._cache_file = KernelCache(cache.cache_path, cache._impl.filename_base, stamp)
    return kernel


if hasattr(os, "register_at_fork"):
    # A fork waits until no kernel is being compiled or loaded: a child could not finish what
    # another thread began, nor acquire the locks inside LLVM.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
