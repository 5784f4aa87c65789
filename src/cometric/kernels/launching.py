"""Running kernels on several threads.

A kernel made by :func:`threaded` is compiled for one task; calling it runs all tasks on Python
threads, since compiled code releases the GIL. Numba's own parallel loops would take a third to a
half longer to compile, kill a forked process without a message, and return silently if a thread
runs out of memory.
"""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import wraps
from typing import Any

from cometric.kernels import in_forked_child, is_caused_by, thread_count
from cometric.kernels.jit import njit

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
                self._pool = ThreadPoolExecutor(thread_count(None), "cometric")
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
    argument of the returned function is the number of threads. There are ``portions`` tasks per
    thread; threads take them one after the other, so more portions balance the load better.
    """
    kernel = njit(nogil=True)(function)

    @wraps(function)
    def launch(*args: Any, portions: int = 1) -> None:
        *inputs, threads = args
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
