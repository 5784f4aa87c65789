"""Trials: short runs of clever steps that must lower the residual, or plain steps take over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from cometric.core.types import Iterate, Matrix

LENGTH = 10
"""Evaluations after which a trial must have lowered the residual."""

FALL = 0.95
"""The residual must fall to this fraction of the lowest one before, for a trial to succeed."""

WAIT, MORE_WAIT = 2, 4
"""Plain steps after the first failure, and how many more after each one: 2 k^2 after k."""


@dataclass(frozen=True)
class TrialIterate(Iterate):
    """An iterate of a solver that mixes plain power steps with clever ones, on trial.

    A trial begins at an iterate that is kept, the anchor. It succeeds, and the next one begins
    where it ended, as soon as the residual is at most 0.95 of the lowest one at which any trial
    began or ended; it fails after 10 evaluations without. Then the solver returns to the anchor
    and takes plain steps, 2 after the first failure and 4 more after each further one.

    This holds for every map, whatever the clever steps do. Successes are at most
    20 log(r / tol) + 1 in number, r being the residual from which on trials are made. From one
    success to the next, all evaluations but 10 per failure are one uninterrupted power iteration,
    and N steps of it see at most sqrt(N / 2) + 1 failures. So the share of plain steps tends to 1,
    and where each plain step brings the residual down by a factor, so that N of them suffice from
    every start, N + 10 (sqrt(N / 2) + 1) + 200 log(r / tol) evaluations do, at most.
    """

    point: Matrix | None = None  # where to evaluate next; None is the metric itself
    anchor: Matrix | None = None  # where the trial under way began; None when there is none
    level: float = float("inf")  # the lowest residual at which a trial began or ended
    tried: int = 0  # evaluations of the trial under way
    wait: int = 0  # plain steps to take before the next trial
    failures: int = 0  # trials that have failed


Trial = TypeVar("Trial", bound=TrialIterate)


def begin(now: Trial) -> Trial:
    """The same with a trial under way, which begins here."""
    if now.anchor is not None:
        return now
    level = min(now.level, now.residual)
    return replace(now, anchor=now.metrics.samples, level=level, tried=0)


def judge(now: Trial) -> Trial:
    """The same after one more evaluation of the trial under way, if any, which may end it."""
    if now.anchor is None:
        return now
    if now.residual <= FALL * now.level:
        return replace(now, anchor=now.metrics.samples, level=now.residual, tried=0)
    if now.tried + 1 < LENGTH:
        return replace(now, tried=now.tried + 1)
    return give_up(replace(now, point=now.anchor))


def give_up(now: Trial) -> Trial:
    """The same with plain steps ahead, more than the last time."""
    wait = WAIT + MORE_WAIT * now.failures
    return replace(now, anchor=None, tried=0, wait=wait, failures=now.failures + 1)
