"""Compiling kernels, once and without wrong code, and running them on several threads.

Numba's own cache can return wrong code, in two ways. It checks only the file of the cached
function, not the files of the functions that it inlines: after an update of the package, a kernel
could contain old code. And it numbers the files of compiled code without a lock: if two processes
compile variants of one function at once, both write number 1, and the index refers to only one
variant from then on. So :func:`njit` has a cache of its own.

A kernel made by :func:`threaded` is compiled for one task; calling it runs all tasks on Python
threads, since compiled code releases the GIL. Numba's own parallel loops would take a third to a
half longer to compile, kill a forked process without a message, and return silently if a thread
runs out of memory.
"""

import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import numba
from numba.core import event
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock

from cometric.kernels import all_threads, in_forked_child, is_caused_by, thread_count
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


# ---------------------------------------------------------------------------------------- a message

MESSAGE = "compiling kernels for this call, once: up to a minute; later calls of its kind load them"

_listening = False


class _Once(event.Listener):
    """Calls ``show`` with the message when the first of our kernels is compiled."""

    def __init__(self, show: Callable[[str], Any]) -> None:
        self._show, self._shown = show, False

    def on_start(self, event: Any) -> None:
        ours = event.data["dispatcher"].py_func.__module__.startswith("cometric.")
        if ours and not self._shown:
            self._shown = True
            self._show(MESSAGE)

    def on_end(self, event: Any) -> None:
        """Do nothing; the base class requires the method."""


@contextmanager
def announce_compilation(show: Callable[[str], Any]) -> Iterator[None]:
    """Show the message once if a kernel is compiled inside; nested contexts do nothing."""
    global _listening
    if _listening:
        yield
        return
    _listening = True
    try:
        with event.install_listener("numba:compile", _Once(show)):
            yield
    finally:
        _listening = False


# ------------------------------------------------------------------------------------------ threads

NO_MEMORY = (
    "not enough memory for the work arrays of a kernel. Pass a smaller `n_threads`, or use a "
    "machine with more memory."
)


class _Threads:
    """A pool of threads for tasks, in addition to the calling thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, compute: Callable[[int], None], task: int) -> Future[None]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(all_threads(), "cometric")
            return self._pool.submit(compute, task)


_threads = _Threads()


def _replace_threads() -> None:
    """Replace the pool in a forked child: its threads exist in the parent only."""
    global _threads
    _threads = _Threads()


in_forked_child(_replace_threads)


def threaded(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a kernel of one task; the returned function runs all tasks, and waits for them.

    The last arguments of ``function`` are the number of its task and the number of tasks. The last
    argument of the returned function is the number of threads, or None, see ``thread_count``. There
    are ``portions`` tasks per thread, taken one after the other: more balance the load better.
    """
    kernel = njit(nogil=True)(function)

    @wraps(function)
    def launch(*args: Any, portions: int = 1) -> None:
        *inputs, requested = args
        threads = thread_count(None) if requested is None else requested
        tasks = threads * portions if threads > 1 else 1
        try:
            run_tasks(lambda task: kernel(*inputs, task, tasks), tasks, threads)
        except (MemoryError, SystemError) as error:
            if is_caused_by(error, MemoryError):
                raise MemoryError(NO_MEMORY) from None
            raise

    return launch


def run_tasks(compute: Callable[[int], None], tasks: int, threads: int) -> None:
    """Run all tasks, some in this thread; return or raise only when no task is running.

    If no thread can be started, for lack of memory, all tasks run in this thread.
    """
    numbers, lock = iter(range(tasks)), threading.Lock()

    def work(_: int = 0) -> None:
        while True:
            with lock:
                task = next(numbers, None)
            if task is None:
                return
            compute(task)

    others: list[Future[None]] = []
    with suppress(RuntimeError):
        for thread in range(1, min(threads, tasks)):
            others.append(_threads.submit(work, thread))
    try:
        work()
    except KeyboardInterrupt:
        with lock:  # no further tasks
            list(numbers)
        raise
    finally:
        _wait(others)
    for other in others:
        other.result()


def _wait(futures: list[Future[None]]) -> None:
    """Wait for all tasks, which write to the arrays of the caller, even if interrupted."""
    interruption: KeyboardInterrupt | None = None
    while wait(futures, 0).not_done:
        try:
            wait(futures)
        except KeyboardInterrupt as error:
            interruption = error
    if interruption is not None:
        raise interruption


def for_both(make: Callable[[bool], Callable[..., Any]], place: int) -> Callable[..., Any]:
    """A kernel with separately compiled variants for balanced and unbalanced transport.

    Few users need both, and each takes half the time to compile. ``make(balanced)`` returns a
    variant, from which Numba removes the branches of the other. Argument number ``place`` is
    ``ratio``, infinite for balanced transport.
    """
    kernels = {balanced: make(balanced) for balanced in (False, True)}

    @wraps(kernels[True])
    def launch(*args: Any) -> Any:
        return kernels[math.isinf(args[place])](*args)

    return launch
