"""Numba, torch and Triton kernels. Importing this package sets up the cache of compiled code."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cometric.kernels.caching import ensure_cache_folder

# For ``njit(parallel=...)``: only explicit ``prange`` loops run in parallel. Looking for more of it
# in every array expression would take most of the compile time.
PARALLEL = {
    "prange": True,
    "comprehension": False,
    "fusion": False,
    "inplace_binop": False,
    "numpy": False,
    "reduction": False,
    "setitem": False,
    "stencil": False,
}


_forked = False


def _mark_child() -> None:
    """Record in a forked child whether OpenMP ran in its parent: it cannot run here again."""
    global _forked
    numba = sys.modules.get("numba")
    try:
        _forked = numba is not None and numba.threading_layer() == "omp"
    except ValueError:  # no parallel kernel has run yet: the child may be the first
        _forked = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_child)


def check_process() -> None:
    """Raise in a forked process, which GNU OpenMP would end without a message."""
    if _forked:
        raise RuntimeError(
            "this process was forked from one in which cometric had run, and its OpenMP threads "
            "do not survive a fork. Start processes with "
            "multiprocessing.get_context('spawn'), or set NUMBA_THREADING_LAYER=workqueue "
            "before Python starts."
        )


def is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether the error is of this kind, possibly wrapped in ``SystemError`` by compiled code."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, kind)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run kernels on ``count`` threads: idle ones would spin and slow other programs down."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(count)
    try:
        yield
    finally:
        numba.set_num_threads(before)


def thread_count(requested: int | None) -> int:
    """The number of threads to use: as many as requested and available, or all."""
    import numba

    available: int = numba.config.NUMBA_NUM_THREADS
    return available if requested is None else max(1, min(requested, available))


ensure_cache_folder()
