"""The one loop: step until the residual is small, and say honestly how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from cometric.core.cones import touches_boundary
from cometric.core.types import (
    Coupled,
    Iterate,
    Metrics,
    NegativeDistances,
    Record,
    Solver,
    State,
    Status,
)
from cometric.machine.interruption import is_interruption
from cometric.machine.progress import Ahead, Bar

Callback = Callable[[Iterate, Record], None]


class Spent(NamedTuple):
    """What earlier stages of a solve have taken."""

    iterations: int = 0
    sweeps: int = 0
    seconds: float = 0.0


NOTHING_YET = Spent()

SILENT = Bar(show=False)


class Stage(Protocol):
    """What keeps a stage of a solve in checkpoints, and may have one to continue from."""

    history: list[Record]
    finished: bool

    def resume(self, now: State) -> State:
        """The iterate that was saved in this stage, or ``now``."""

    def leave(self) -> None:
        """A step begins: from here to its end there is nothing to save."""

    def keep(self, now: State, record: Record) -> bool:
        """A step is complete; whether the run was asked to stop."""


class Solution(NamedTuple):
    """The last iterate, how the loop ended, its history, and what else a user should know."""

    iterate: Iterate
    status: Status
    history: list[Record]
    remark: str = ""
    solver: str = ""  # the name of its class

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
    bar: Bar = SILENT,
    ahead: Ahead | None = None,
    stall: float = math.inf,
    callback: Callback | None = None,
    spent: Spent = NOTHING_YET,
    stage: Stage | None = None,
) -> Solution:
    """Step until the Hilbert residual is at most ``tol``.

    Ctrl-C ends the loop with status ``INTERRUPTED``; the iterate is then the last complete
    one. Distances that are as good as zero end it with ``BOUNDARY``. It ends with ``MAX_ITER``
    after ``max_iter`` steps, or ``stall`` steps after the lowest residual. The history counts on
    from what was ``spent`` before. A ``stage`` keeps checkpoints, and may have one to go on from.
    The ``bar`` is told of each iteration, and what lies ``ahead`` of it where this is not all of
    the run.
    """
    history: list[Record] = []
    now = replace(solver.init(phi, start), sweeps=spent.sweeps)
    if stage is not None:
        now, history = stage.resume(now), list(stage.history)
    before = spent.iterations
    elapsed = history[-1].seconds if history else spent.seconds
    began = time.perf_counter() - elapsed
    status, remark = _ending(now, history, tol, max_iter, stall), ""
    ahead = ahead or Ahead(tol, max_iter)
    try:
        with bar.stage(phi, ahead, before + len(history), elapsed):
            while status is None:
                if stage is not None:
                    stage.leave()
                now = solver.step(phi, now)
                seconds = time.perf_counter() - began
                iteration = before + len(history) + 1
                history.append(Record(iteration, now.residual, *now.values, now.sweeps, seconds))
                bar.update(now.residual, seconds)
                if callback is not None:
                    callback(now, history[-1])
                status = _ending(now, history, tol, max_iter, stall)
                if stage is not None and stage.keep(now, history[-1]):
                    status = Status.INTERRUPTED
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interruption(error):
            raise
        status = Status.INTERRUPTED
    except NegativeDistances as found:
        status = Status.NOT_PSD
        remark = f"{found}: the entropic kernel is not positive."
    return Solution(now, status, history, remark)


def _ending(
    now: Iterate, history: list[Record], tol: float, max_iter: int, stall: float
) -> Status | None:
    """How the loop ends after the last step of the history, or None: it goes on."""
    if not history:
        return None
    if touches_boundary(now.metrics):
        return Status.BOUNDARY
    if now.residual <= tol:
        return Status.CONVERGED
    if len(history) >= max_iter:
        return Status.MAX_ITER
    if len(history) > stall:
        lowest = min(range(len(history)), key=lambda k: history[k].residual)
        return Status.MAX_ITER if len(history) - lowest > stall else None
    return None
