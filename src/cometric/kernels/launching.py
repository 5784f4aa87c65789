"""How a parallel kernel is started, and what its threads could not say.

All parallel kernels are made by :func:`parallel`, so that every way into the package is guarded:

- GNU OpenMP ends a forked process without a word. There a kernel raises instead.
- Numba's workqueue ends the process when two threads start kernels at once. There they take turns.
- Numba loses the error of a thread that finds no memory, and returns as if its part had been
  computed. So kernels whose threads allocate mark each finished task, and check the marks.
"""

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

import numba

from cometric.kernels import PARALLEL, check_process, is_caused_by

NO_MEMORY = (
    "not enough memory for the work arrays of a kernel. Pass a smaller `n_threads`, or use a "
    "machine with more memory."
)

_turn = threading.RLock()


def _forget_turn() -> None:
    """In a forked child nobody holds the lock, whoever held it in the parent."""
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_turn)


def parallel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel whose ``prange`` loops run on threads, and guard its calls."""
    kernel = numba.njit(parallel=PARALLEL, cache=True)(function)

    @wraps(function)
    def launch(*args: Any) -> Any:
        check_process()
        with _turn if _takes_turns() else nullcontext():
            try:
                return kernel(*args)
            except (MemoryError, SystemError) as error:
                if is_caused_by(error, MemoryError):
                    raise MemoryError(NO_MEMORY) from None
                raise

    return launch


def _takes_turns() -> bool:
    """Whether threads must not start kernels at once."""
    try:
        return bool(numba.threading_layer() == "workqueue")
    except ValueError:  # no kernel has run yet
        return True


@numba.njit(cache=True)
def check_finished(finished):
    """Raise unless every task of a parallel loop has set its mark at its end."""
    for task in range(len(finished)):
        if not finished[task]:
            raise MemoryError("a thread found no memory")
