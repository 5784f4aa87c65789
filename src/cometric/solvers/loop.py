"""The loop of all solvers: step until the residual is small, and report how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from cometric.core.cones import touches_boundary
from cometric.core.types import (
    Accuracies,
    Coupled,
    Iterate,
    Metrics,
    NegativeDistances,
    Record,
    Solver,
    State,
    Status,
)
from cometric.runtime.interruption import is_interruption
from cometric.runtime.progress import Ahead, Bar

Callback = Callable[[Iterate, Record], None]


SILENT = Bar(show=False)


@dataclass(frozen=True)
class Stage:
    """A stage of a solve: how accurately maps are called, and when it ends.

    Parameters
    ----------
    tol
        The residual that counts as converged.
    max_iter, stall
        Largest number of iterations, and of iterations without a new lowest residual.
    accepts
        Checks an iterate with a small residual.
    accuracy
        The accuracy of both maps in the first step; None for their own in all steps.
    tighten
        Their accuracy in the next step, given the iterate; by default it does not change.
    ahead
        The work of the run from here on, if more stages follow.
    phi, solver
        Maps and solver, if they differ from those of the run.
    afresh
        Begin where the run began, not where the last stage ended.
    counted
        Whether its iterations are part of the history, and shown to the callback.
    """

    tol: float
    max_iter: int
    stall: float = math.inf
    accepts: Callable[[Iterate], bool] | None = None
    accuracy: Accuracies | None = None
    tighten: Callable[[Iterate], Accuracies] | None = None
    ahead: Ahead | None = None
    phi: Coupled | None = None
    solver: Solver[Any] | None = None
    afresh: bool = False
    counted: bool = True


class Saver(Protocol):
    """Writes the checkpoints of one stage."""

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
    solver: str = ""  # name of the class of the run's solver
    change: float | None = None  # change per iteration if trees keep changing, see Result
    seconds: float = 0.0


def solve(
    phi: Coupled,
    solver: Solver[State],
    start: Metrics,
    stage: Stage,
    *,
    before: Solution | None = None,
    bar: Bar = SILENT,
    callback: Callback | None = None,
    saver: Saver | None = None,
) -> Solution:
    """Step until the Hilbert residual is at most ``stage.tol``.

    The status is ``INTERRUPTED`` after Ctrl-C, with the last complete iterate; ``BOUNDARY`` if
    some distances become zero up to rounding; ``NOT_PSD`` if some become negative; ``MAX_ITER``
    if a limit of the stage ends the loop.

    Parameters
    ----------
    before
        The solution of earlier stages, from which counts, seconds and history continue.
    bar
        Shows each iteration.
    callback
        Called after each iteration.
    saver
        Writes checkpoints; if it has one of this stage, the loop continues from there. A stage
        that it marks as finished is skipped.
    """
    if before is None:
        before = Solution(Iterate(start, (1.0, 1.0)), Status.CONVERGED, [])
    earlier, sweeps, seconds = before.history, before.iterate.sweeps, before.seconds
    if saver is not None and saver.finished:  # before the run was stopped
        sweeps = saver.history[-1].sweeps if saver.history else 0
        seconds = saver.history[-1].seconds if saver.history else 0.0
        end = Iterate(start, (1.0, 1.0), sweeps=sweeps, accuracy=stage.accuracy)
        return before._replace(iterate=end, history=earlier + saver.history, seconds=seconds)
    history: list[Record] = []
    now = replace(solver.init(phi, start), sweeps=sweeps, accuracy=stage.accuracy)
    if saver is not None:
        now, history = saver.resume(now), list(saver.history)
    seconds = history[-1].seconds if history else seconds
    began = time.perf_counter() - seconds
    status, remark = _ending(phi, now, history, stage), ""
    ahead = stage.ahead or Ahead(stage.tol, stage.max_iter)
    try:
        with bar.stage(phi, ahead, len(earlier) + len(history), seconds):
            while status is None:
                if saver is not None:
                    saver.begin_step()
                accuracy = now.accuracy
                called = phi if accuracy is None else phi.at(accuracy)
                now = replace(solver.step(called, now), accuracy=accuracy)
                if stage.tighten is not None:
                    now = replace(now, accuracy=stage.tighten(now))
                seconds = time.perf_counter() - began
                iteration = len(earlier) + len(history) + 1
                history.append(Record(iteration, now.residual, *now.values, now.sweeps, seconds))
                bar.update(now.residual, seconds)
                if callback is not None:
                    callback(now, history[-1])
                status = _ending(phi, now, history, stage)
                if saver is not None and saver.end_step(now, history[-1]):
                    status = Status.INTERRUPTED
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interruption(error):
            raise
        status = Status.INTERRUPTED
    except NegativeDistances as error:
        status = Status.NOT_PSD
        remark = f"{error}: the entropic kernel is not positive."
    history = earlier + history
    return Solution(now, status, history, remark, before.solver, seconds=seconds)


def _ending(phi: Coupled, now: Iterate, history: list[Record], stage: Stage) -> Status | None:
    """The status if the loop ends after the last step of the history, None if it continues."""
    if not history:
        return None
    if touches_boundary(now.metrics, phi.boundary):
        return Status.BOUNDARY
    if now.residual <= stage.tol and (stage.accepts is None or stage.accepts(now)):
        return Status.CONVERGED
    if len(history) >= stage.max_iter:
        return Status.MAX_ITER
    if len(history) > stage.stall:
        lowest = min(range(len(history)), key=lambda k: history[k].residual)
        return Status.MAX_ITER if len(history) - lowest > stage.stall else None
    return None
