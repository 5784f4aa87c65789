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


class Solution(NamedTuple):
    """The last iterate, how the loop ended, and its history."""

    iterate: Iterate
    status: Status
    history: list[Record]

    @property
    def spent(self) -> tuple[int, float]:
        """Sweeps and seconds, for the stage that follows."""
        return self.iterate.sweeps, self.history[-1].seconds if self.history else 0.0


def solve(
    phi: Coupled,
    solver: Solver[State],
    start: Metrics,
    *,
    tol: float,
    max_iter: int,
    progress: bool = False,
    callback: Callback | None = None,
    spent: tuple[int, float] = (0, 0.0),
) -> Solution:
    """Step until the Hilbert residual is at most ``tol``.

    Ctrl-C ends the loop with status ``INTERRUPTED``; the iterate is then the last complete
    one. Distances that fall below ``BOUNDARY_LEVEL`` end it with ``BOUNDARY``. ``spent`` are
    the sweeps and seconds that earlier stages took, for the history.
    """
    history: list[Record] = []
    began = time.perf_counter() - spent[1]
    now = replace(solver.init(phi, start), sweeps=spent[0])
    status = Status.MAX_ITER
    bar = Bar(progress, tol)
    try:
        with bar.watching(phi):
            for iteration in range(1, max_iter + 1):
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
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except NegativeDistances as found:
        status = Status.NOT_PSD
        warnings.warn(f"{found}: the entropic kernel is not positive.", stacklevel=3)
    return Solution(now, status, history)


def _touches_boundary(metrics: Metrics) -> bool:
    """Whether some distance between different items has become as good as zero."""
    return any(upper(metric).min() < BOUNDARY_LEVEL * metric.max() for metric in metrics)
