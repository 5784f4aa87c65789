"""The loop of all solvers: step until the residual is small, and report how it ended."""

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
    """Iterations, sweeps and seconds of earlier stages of a solve."""

    iterations: int = 0
    sweeps: int = 0
    seconds: float = 0.0


NOTHING_YET = Spent()

SILENT = Bar(show=False)


class Limits(NamedTuple):
    """When the loop ends."""

    tol: float  # the residual that counts as converged
    max_iter: int
    stall: float = math.inf  # iterations without a new lowest residual
    accepts: Callable[[Iterate], bool] | None = None  # checks an iterate with a small residual


class Stage(Protocol):
    """The checkpoints of one stage of a solve."""

    history: list[Record]
    finished: bool

    def resume(self, now: State) -> State:
        """The iterate saved in this stage; ``now`` if there is none."""

    def begin_step(self) -> None:
        """Called before each step: during a step there is no complete state to save."""

    def end_step(self, now: State, record: Record) -> bool:
        """Called after each step, to save it; returns whether the run should stop now."""


class Solution(NamedTuple):
    """The last iterate, the status, the history, and a remark for the user."""

    iterate: Iterate
    status: Status
    history: list[Record]
    remark: str = ""
    solver: str = ""  # name of the solver's class
    change: float | None = None  # change per iteration if trees keep changing, see Result

    @property
    def spent(self) -> Spent:
        """Totals at the end of this stage; the next stage continues counting from them."""
        if not self.history:
            return NOTHING_YET
        last = self.history[-1]
        return Spent(last.iteration, self.iterate.sweeps, last.seconds)


def solve(
    phi: Coupled,
    solver: Solver[State],
    start: Metrics,
    limits: Limits,
    *,
    bar: Bar = SILENT,
    ahead: Ahead | None = None,
    callback: Callback | None = None,
    spent: Spent = NOTHING_YET,
    stage: Stage | None = None,
) -> Solution:
    """Step until the Hilbert residual is at most ``limits.tol``.

    The status is ``INTERRUPTED`` after Ctrl-C, with the last complete iterate; ``BOUNDARY`` if
    some distances become zero up to rounding; ``NOT_PSD`` if some become negative; ``MAX_ITER``
    if ``limits`` end the loop.

    Parameters
    ----------
    bar, ahead
        Shows each iteration; ``ahead`` is the remaining work of the run, if there are more stages.
    callback
        Called after each iteration.
    spent
        Totals of earlier stages, added to the counts in the history.
    stage
        Writes checkpoints; if it has one of this stage, the loop continues from there.
    """
    history: list[Record] = []
    now = replace(solver.init(phi, start), sweeps=spent.sweeps)
    if stage is not None:
        now, history = stage.resume(now), list(stage.history)
    before = spent.iterations
    elapsed = history[-1].seconds if history else spent.seconds
    began = time.perf_counter() - elapsed
    status, remark = _ending(phi, now, history, limits), ""
    ahead = ahead or Ahead(limits.tol, limits.max_iter)
    try:
        with bar.stage(phi, ahead, before + len(history), elapsed):
            while status is None:
                if stage is not None:
                    stage.begin_step()
                now = solver.step(phi, now)
                seconds = time.perf_counter() - began
                iteration = before + len(history) + 1
                history.append(Record(iteration, now.residual, *now.values, now.sweeps, seconds))
                bar.update(now.residual, seconds)
                if callback is not None:
                    callback(now, history[-1])
                status = _ending(phi, now, history, limits)
                if stage is not None and stage.end_step(now, history[-1]):
                    status = Status.INTERRUPTED
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interruption(error):
            raise
        status = Status.INTERRUPTED
    except NegativeDistances as error:
        status = Status.NOT_PSD
        remark = f"{error}: the entropic kernel is not positive."
    return Solution(now, status, history, remark)


def _ending(phi: Coupled, now: Iterate, history: list[Record], limits: Limits) -> Status | None:
    """The status if the loop ends after the last step of the history, None if it continues."""
    if not history:
        return None
    if touches_boundary(now.metrics, phi.boundary):
        return Status.BOUNDARY
    if now.residual <= limits.tol and (limits.accepts is None or limits.accepts(now)):
        return Status.CONVERGED
    if len(history) >= limits.max_iter:
        return Status.MAX_ITER
    if len(history) > limits.stall:
        lowest = min(range(len(history)), key=lambda k: history[k].residual)
        return Status.MAX_ITER if len(history) - lowest > limits.stall else None
    return None
