"""How kernels run on several threads.

A kernel made by :func:`threaded` computes one of several tasks, and a call of it all of them, on
Python threads: compiled code does not hold the interpreter's lock. Numba's own parallel loops would
take a third to a half longer to compile, end a forked process without a message, and return as if
nothing had happened if a thread runs out of memory.
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
    """The threads on which tasks run beside the one that starts them."""

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
    """Forget the threads in a forked child: they exist in the parent only."""
    global _threads
    _threads = _Threads()


in_forked_child(_replace_threads)


def threaded(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a kernel of one task; the result computes all tasks, and waits for them.

    ``function`` takes the number of its task and the number of tasks last. The result takes the
    number of threads last; there are as many tasks, or ``portions`` times as many, which threads
    take one after the other: none waits long for another at the end.
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
    """Compute all tasks, some of them here; return or raise when none is running any more.

    If no thread can be started, for lack of memory, all are computed here.
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
    """A kernel of balanced and of unbalanced transport, which are compiled apart.

    Few users need both, and each takes half of the time to compile. ``make(balanced)`` returns one
    of them; Numba leaves out the branches of the other. Argument number ``place`` is ``ratio``,
    infinite for balanced transport.
    """
    kernels = {balanced: make(balanced) for balanced in (False, True)}

    @wraps(kernels[True])
    def launch(*args: Any) -> Any:
        return kernels[math.isinf(args[place])](*args)

    return launch
