"""Threads and processes: who may run the kernels, and on how many cores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cometric.kernels import check_process, thread_count, threads


class _OneBlasThread:
    """BLAS on one thread while anybody asks for it.

    Threads of BLAS beside those of our kernels would fight for the same cores, and how many there
    are changes the order of its sums, hence the last bits. The setting belongs to the whole
    process, so calls from several threads count themselves in and out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limits: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        from threadpoolctl import threadpool_limits

        with self._lock:
            self._users += 1
            if self._users == 1:
                self._limits = threadpool_limits(limits=1, user_api="blas")
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._limits.restore_original_limits()


one_blas_thread = _OneBlasThread()


@contextmanager
def workers(asked: int | None) -> Iterator[None]:
    """Run on so many threads, all of them our own; everything is put back afterwards."""
    check_process()
    with one_blas_thread(), threads(thread_count(asked)):
        yield
