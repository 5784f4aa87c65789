"""Numba kernels. Importing this package makes sure that compiled code can be cached."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _ensure_cache_directory() -> None:
    """Send Numba's cache to a private temporary folder where neither default is writable.

    Numba tries ``__pycache__`` beside the source, then a folder of the user, and refuses to
    compile when both are read-only, as on a shared cluster installation.
    """
    beside, home = Path(__file__).parent, Path.home()
    if "NUMBA_CACHE_DIR" in os.environ or os.access(beside, os.W_OK) or os.access(home, os.W_OK):
        return
    fallback = Path(tempfile.gettempdir()) / f"cometric-cache-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    os.environ["NUMBA_CACHE_DIR"] = str(fallback)


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


_ensure_cache_directory()
