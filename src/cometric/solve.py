"""The one loop: step until the residual is small, and say honestly how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cometric.progress import Bar
from cometric.result import Record
from cometric.types import Coupled, Iterate, Metrics, Solver, State, Status

BOUNDARY_LEVEL = 1e-13
"""Distances below this fraction of the largest count as zero."""

TRANSIENT = 10
"""Iterations after which negative distances are no longer blamed on the start."""

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
                if now.residual <= tol:
                    status = Status.CONVERGED
                    break
                ended = _out_of_bounds(now.metrics, iteration)
                if ended is not None:
                    status = ended
                    break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return Solution(now, status, history)


def _out_of_bounds(metrics: Metrics, iteration: int) -> Status | None:
    """Whether distances have become zero, or negative once the start is forgotten."""
    least = min(metric[np.triu_indices(len(metric), 1)].min() / metric.max() for metric in metrics)
    if least < 0.0:
        return Status.NOT_PSD if iteration >= TRANSIENT else None
    return Status.BOUNDARY if least < BOUNDARY_LEVEL else None
