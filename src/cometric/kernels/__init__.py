"""Numba kernels. Importing this package makes sure that compiled code can be cached."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cometric.kernels.caching import ensure_cache_folder

# What ``parallel=`` turns into threads: our own ``prange`` loops and nothing else. Looking for
# parallelism in every array expression inside them would take most of the compile time.
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
    """Remember in a forked child that OpenMP ran in its parent: it cannot run here again."""
    global _forked
    numba = sys.modules.get("numba")
    try:
        _forked = numba is not None and numba.threading_layer() == "omp"
    except ValueError:  # no parallel kernel has run yet: the child may be the first
        _forked = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_child)


def check_process() -> None:
    """Refuse to run in a forked process where GNU OpenMP would end it without a word."""
    if _forked:
        raise RuntimeError(
            "this process was forked from one in which cometric had run, and its OpenMP threads "
            "do not survive a fork. Start processes with "
            "multiprocessing.get_context('spawn'), or set NUMBA_THREADING_LAYER=workqueue "
            "before Python starts."
        )


def is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether this is such an error; compiled code wraps one in a ``SystemError`` or several."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, kind)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run kernels on ``count`` threads: idle ones would spin, which costs where others work."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(count)
    try:
        yield
    finally:
        numba.set_num_threads(before)


def thread_count(asked: int | None) -> int:
    """The threads to use: as many as asked for, or all there are."""
    import numba

    available: int = numba.config.NUMBA_NUM_THREADS
    return available if asked is None else max(1, min(asked, available))


ensure_cache_folder()
