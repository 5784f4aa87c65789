"""Trials: short runs of accelerated steps that must lower the residual, or plain steps follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from cometric.core.types import Iterate, Matrix

LENGTH = 10
"""Evaluations within which a trial must lower the residual."""

FALL = 0.95
"""A trial succeeds if the residual falls to this fraction of its lowest value so far."""

WAIT, MORE_WAIT = 2, 4
"""Plain steps after the first failure, and increment per further one: 2 k^2 after k failures."""


@dataclass(frozen=True)
class TrialIterate(Iterate):
    """An iterate of a solver that mixes plain power steps with trials of accelerated ones.

    A trial begins at a stored iterate, the anchor. It succeeds as soon as the residual is at most
    0.95 times the lowest residual at which any trial began or ended; the next trial begins there.
    It fails after 10 evaluations without success. Then the solver returns to the anchor and takes
    plain steps: 2 after the first failure, 4 more after each further one.

    The following holds for every map and every kind of accelerated steps. At most
    20 log(r / tol) + 1 trials succeed, where r is the residual below which trials are made.
    Between two successes, all evaluations but 10 per failure form one uninterrupted power
    iteration, and N steps of it include at most sqrt(N / 2) + 1 failures. So the fraction of plain
    steps tends to 1. If plain steps contract, so that N of them suffice from every start, then
    N + 10 (sqrt(N / 2) + 1) + 200 log(r / tol) evaluations suffice here.
    """

    point: Matrix | None = None  # where to evaluate next; None for the metric itself
    anchor: Matrix | None = None  # where the current trial began; None if there is none
    level: float = float("inf")  # the lowest residual at which a trial began or ended
    tried: int = 0  # evaluations in the current trial
    wait: int = 0  # plain steps to take before the next trial
    failures: int = 0  # trials that have failed


Trial = TypeVar("Trial", bound=TrialIterate)


def begin(now: Trial) -> Trial:
    """The iterate with a trial in progress; begins one if there is none."""
    if now.anchor is not None:
        return now
    level = min(now.level, now.residual)
    return replace(now, anchor=now.metrics.samples, level=level, tried=0)


def judge(now: Trial) -> Trial:
    """The iterate after an evaluation of the current trial, if any; the trial may end."""
    if now.anchor is None:
        return now
    if now.residual <= FALL * now.level:
        return replace(now, anchor=now.metrics.samples, level=now.residual, tried=0)
    if now.tried + 1 < LENGTH:
        return replace(now, tried=now.tried + 1)
    return give_up(replace(now, point=now.anchor))


def give_up(now: Trial) -> Trial:
    """The iterate after a failed trial; more plain steps follow than after the last failure."""
    wait = WAIT + MORE_WAIT * now.failures
    return replace(now, anchor=None, tried=0, wait=wait, failures=now.failures + 1)
