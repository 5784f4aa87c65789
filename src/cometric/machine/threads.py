"""Limits on the number of threads of the kernels and of BLAS."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from cometric.core.kinds import Count
from cometric.kernels import thread_count, threads

Item = TypeVar("Item")
Value = TypeVar("Value")


class _OneBlasThread:
    """A context in which BLAS is limited to one thread.

    BLAS threads would compete with those of the kernels for the same cores, and their number
    changes the order of sums, hence the last bits. The limit is global to the process, so it is
    lifted when the last of several threads leaves the context.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limits: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        from threadpoolctl import threadpool_limits

        with self._lock:
            if self._users == 0:
                self._limits = threadpool_limits(limits=1, user_api="blas")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._limits.restore_original_limits()


one_blas_thread = _OneBlasThread()


@contextmanager
def workers(n_threads: int | None) -> Iterator[None]:
    """Run kernels on this many threads, and BLAS on one; both are restored afterwards."""
    Count(optional=True).check("n_threads", n_threads)
    with one_blas_thread(), threads(thread_count(n_threads)):
        yield


def map_in_order(
    function: Callable[[Item], Value], items: Iterable[Item], at_once: int, n_threads: int
) -> Iterator[Value]:
    """The values of a function in the order of the items, ``at_once`` computed at the same time.

    Each call runs its kernels on ``n_threads``. Few items are taken ahead of the value returned.
    """
    if at_once == 1:
        yield from map(function, items)
        return

    def call(item: Item) -> Value:
        with threads(n_threads):
            return function(item)

    with ThreadPoolExecutor(at_once) as pool:
        waiting: deque[Future[Value]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(call, item))
                if len(waiting) > at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
