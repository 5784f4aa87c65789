"""Limits on the number of threads of the kernels and of BLAS."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from cometric.core.arguments import check_count
from cometric.kernels import in_forked_child, threads

Item = TypeVar("Item")
Value = TypeVar("Value")
AnyLock = TypeVar("AnyLock", bound=Any)


class _OneBlasThread:
    """A context in which BLAS is limited to one thread.

    BLAS threads would compete with those of the kernels for the same cores, and their number
    changes the order of sums, hence the last bits. The limit is global to the process, so it is
    lifted when the last of several users leaves the context.

    Ctrl-C can interrupt between any two calls, and a fork can copy any state. So the old limits
    are stored before they are changed, every step may be repeated, and a forked child lifts the
    limit: the threads that used it exist in the parent only.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: garbage collection may close a context inside
        self._users: set[object] = set()
        self._before: list[tuple[Any, int]] = []  # BLAS libraries and their numbers of threads

    @contextmanager
    def __call__(self) -> Iterator[None]:
        user = object()
        try:
            self._enter(user)
            yield
        finally:
            try:
                self._leave(user)
            except KeyboardInterrupt:
                self._leave(user)
                raise

    def _enter(self, user: object) -> None:
        libraries = None if self._before else _blas_libraries()  # takes milliseconds: no lock yet
        with self._lock:
            if not self._before:
                libraries = _blas_libraries() if libraries is None else libraries
                self._before = [(library, library.num_threads) for library in libraries]
            self._users.add(user)
            for library, _ in self._before:
                library.set_num_threads(1)

    def _leave(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users:
                for library, count in self._before:
                    library.set_num_threads(count)
                self._before = []

    def after_fork(self) -> None:
        """Lift the limit, in a forked child."""
        self._lock = threading.RLock()
        self._users.clear()
        self._leave(None)


def _blas_libraries() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


one_blas_thread = _OneBlasThread()
in_forked_child(one_blas_thread.after_fork)


def free_in_children(lock: AnyLock) -> AnyLock:
    """The lock, released in forked children: a thread holding it exists in the parent only."""
    in_forked_child(lock._at_fork_reinit)
    return lock


@contextmanager
def workers(n_threads: int | None) -> Iterator[None]:
    """Run kernels on this many threads, and BLAS on one; both are restored afterwards."""
    if n_threads is not None:
        check_count("n_threads", n_threads)
    with one_blas_thread(), threads(n_threads):
        yield


def map_in_order(
    function: Callable[[Item], Value], items: Iterable[Item], at_once: int, n_threads: int
) -> Iterator[Value]:
    """The values of a function in the order of the items, ``at_once`` computed at the same time.

    Each call runs its kernels on ``n_threads``. At most ``at_once`` + 1 items are in flight.
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
