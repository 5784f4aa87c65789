"""Work in other processes: one that may die, or one per core."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from typing import Any

from machine import cores

Child = tuple[int, int]  # process id, and the reading end of a pipe from it


def begin(work: Callable[[], str]) -> Child:
    """Start work in a forked process; :func:`end` returns its outcome."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            said = work()
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    return child, reading


def end(child: Child) -> str:
    """What the work returned, or how its process ended."""
    number, reading = child
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    return said if code == 0 else f"exit {code}"


def in_child(work: Callable[[], str]) -> str:
    """What ``work`` returns in a separate process, or how that process ended."""
    return end(begin(work))


@cache
def warm() -> None:
    """Compile the kernels, so that other processes load them from the cache."""
    subprocess.run([sys.executable, "-c", "import cometric; cometric.warmup()"], check=True)


def on_all_cores(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """``work`` of every item, in order of completion, by one single-threaded process per core."""
    warm()
    before = dict(os.environ)
    os.environ |= {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(cores(), mp_context=context) as pool:
            for job in as_completed([pool.submit(work, item) for item in items]):
                yield job.result()
    finally:
        os.environ.clear()
        os.environ |= before
