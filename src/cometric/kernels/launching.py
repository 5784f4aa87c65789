"""How parallel kernels are started, and how errors of their threads are detected.

All parallel kernels are made by :func:`parallel`, so that every call is guarded:

- GNU OpenMP ends a forked process without a message. There a kernel raises instead.
- Numba's workqueue ends the process when two threads start kernels at once. There a lock serializes
  them.
- Other Python threads run while a kernel does.
- Numba drops the error of a thread that runs out of memory, and returns as if its part had been
  computed. So kernels whose threads allocate set a flag per finished task, and check the flags.
"""

import math
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

import numba

from cometric.kernels import PARALLEL, check_process, is_caused_by
from cometric.kernels.jit import njit

NO_MEMORY = (
    "not enough memory for the work arrays of a kernel. Pass a smaller `n_threads`, or use a "
    "machine with more memory."
)

_lock = threading.RLock()


def _reset_lock() -> None:
    """Replace the lock in a forked child: the thread that held it exists in the parent only."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)


def parallel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel whose ``prange`` loops run on threads, with guarded calls."""
    kernel = njit(parallel=PARALLEL, nogil=True)(function)

    @wraps(function)
    def launch(*args: Any) -> Any:
        check_process()
        with _lock if needs_lock() else nullcontext():
            try:
                return kernel(*args)
            except (MemoryError, SystemError) as error:
                if is_caused_by(error, MemoryError):
                    raise MemoryError(NO_MEMORY) from None
                raise

    return launch


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


def needs_lock() -> bool:
    """Whether two threads must not start kernels at the same time."""
    try:
        return bool(numba.threading_layer() == "workqueue")
    except ValueError:  # no kernel has run yet
        return True


@njit
def check_finished(finished):
    """Raise unless every task of a parallel loop has set its flag."""
    for task in range(len(finished)):
        if not finished[task]:
            raise MemoryError("a thread ran out of memory")
