"""Numba, torch and Triton kernels. Importing this package sets up the cache of compiled code."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cometric.kernels.caching import ensure_cache_folder

_chosen = threading.local()


def is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether the error is of this kind, possibly wrapped in ``SystemError`` by compiled code."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, kind)


def in_forked_child(call: Callable[[], Any]) -> None:
    """Register a call for every forked child.

    A child has one thread, and inherits locks that other threads held at the fork.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run kernels on ``count`` threads (None: all) unless they are passed another number."""
    before = getattr(_chosen, "count", None)
    _chosen.count = count
    try:
        yield
    finally:
        _chosen.count = before


def thread_count(requested: int | None) -> int:
    """The number of threads to use: as requested, else as set by :func:`threads`, at most all."""
    count = getattr(_chosen, "count", None) if requested is None else requested
    return all_threads() if count is None else max(1, min(count, all_threads()))


def all_threads() -> int:
    """The number of threads that Numba may use: all cores, unless its settings say otherwise."""
    import numba

    count: int = numba.config.NUMBA_NUM_THREADS
    return count


ensure_cache_folder()
