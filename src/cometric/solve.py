"""The one loop: step until the residual is small, and say honestly how it ended."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from cometric.arrays import upper
from cometric.progress import Bar
from cometric.result import Record
from cometric.types import Coupled, Iterate, Metrics, NegativeDistances, Solver, State, Status

BOUNDARY_LEVEL = 1e-13
"""Distances below this fraction of the largest count as zero."""

Callback = Callable[[Iterate, Record], None]


class Spent(NamedTuple):
    """What earlier stages of a solve have taken."""

    iterations: int = 0
    sweeps: int = 0
    seconds: float = 0.0


NOTHING_YET = Spent()


class Solution(NamedTuple):
    """The last iterate, how the loop ended, and its history."""

    iterate: Iterate
    status: Status
    history: list[Record]

    @property
    def spent(self) -> Spent:
        """What the stage that follows counts on from."""
        if not self.history:
            return NOTHING_YET
        last = self.history[-1]
        return Spent(last.iteration, self.iterate.sweeps, last.seconds)


def solve(
    phi: Coupled,
    solver: Solver[State],
    start: Metrics,
    *,
    tol: float,
    max_iter: int,
    progress: bool = False,
    callback: Callback | None = None,
    spent: Spent = NOTHING_YET,
) -> Solution:
    """Step until the Hilbert residual is at most ``tol``.

    Ctrl-C ends the loop with status ``INTERRUPTED``; the iterate is then the last complete
    one. Distances that fall below ``BOUNDARY_LEVEL`` end it with ``BOUNDARY``. The
    history counts on from what was ``spent`` before.
    """
    history: list[Record] = []
    began = time.perf_counter() - spent.seconds
    now = replace(solver.init(phi, start), sweeps=spent.sweeps)
    status = Status.MAX_ITER
    bar = Bar(progress, tol, spent.iterations)
    try:
        with bar.watching(phi):
            for iteration in range(spent.iterations + 1, spent.iterations + max_iter + 1):
                now = solver.step(phi, now)
                seconds = time.perf_counter() - began
                history.append(Record(iteration, now.residual, *now.values, now.sweeps, seconds))
                bar.update(now.residual, seconds)
                if callback is not None:
                    callback(now, history[-1])
                if _touches_boundary(now.metrics):
                    status = Status.BOUNDARY
                    break
                if now.residual <= tol:
                    status = Status.CONVERGED
                    break
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interruption(error):
            raise
        status = Status.INTERRUPTED
    except NegativeDistances as found:
        status = Status.NOT_PSD
        warnings.warn(f"{found}: the entropic kernel is not positive.", stacklevel=3)
    return Solution(now, status, history)


def is_interruption(error: BaseException | None) -> bool:
    """Whether this is Ctrl-C, which compiled code wraps in a ``SystemError`` or two."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


def _touches_boundary(metrics: Metrics) -> bool:
    """Whether some distance between different items has become as good as zero."""
    return any(upper(metric).min() < BOUNDARY_LEVEL * metric.max() for metric in metrics)
