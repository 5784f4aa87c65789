"""Limits on the number of threads of the kernels and of BLAS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cometric.kernels import thread_count, threads


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
def workers(n_threads: int | None) -> Iterator[None]:
    """Run kernels on this many threads, and BLAS on one; both are restored afterwards."""
    with one_blas_thread(), threads(thread_count(n_threads)):
        yield
