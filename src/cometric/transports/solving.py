"""One solve in stages: what a transport is given to find the singular vectors with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cometric.core.problem import Problem
from cometric.core.types import Coupled, DistanceMap, Iterate, Metrics, Solver, Status, traits_of
from cometric.machine.progress import Ahead, Bar
from cometric.maps.regularized import couple
from cometric.solvers import SOLVERS
from cometric.solvers.loop import NOTHING_YET, Callback, Solution, Spent, Stage, solve
from cometric.solvers.power import PowerIteration


class Checkpoints(Protocol):
    """What keeps the stages of a solve."""

    def stage(self, phi: Coupled) -> Stage:
        """The next stage."""


@dataclass(frozen=True)
class Solving:
    """A problem, where to start, and how far to go."""

    problem: Problem
    norms: Metrics
    start: Metrics
    solver: str | Solver[Any]
    tol: float
    max_iter: int
    callback: Callback | None = None
    checkpoint: Checkpoints | None = None
    bar: Bar = field(default_factory=lambda: Bar(show=False))

    @property
    def is_plain(self) -> bool:
        """Whether there is transport only, no share of R."""
        return self.problem.formula.is_plain

    def choose(self, default: str) -> Solver[Any]:
        """The solver asked for, or the default."""
        if not isinstance(self.solver, str):
            return self.solver
        return SOLVERS[default if self.solver == "auto" else self.solver]()

    def couple(self, lifts: tuple[DistanceMap, DistanceMap], tau: float | None = None) -> Coupled:
        """Both maps with their share of R, of which ``tau`` may say another weight."""
        formula = self.problem.formula
        return couple(lifts, formula if tau is None else replace(formula, tau=tau), self.norms)

    def stage(
        self,
        phi: Coupled,
        solver: Solver[Any],
        start: Metrics | None = None,
        spent: Spent = NOTHING_YET,
        *,
        tol: float | None = None,
        max_iter: int | None = None,
        stall: float = math.inf,
        callback: Callback | None = None,
        ahead: Ahead | None = None,
    ) -> Solution:
        """Step until converged; a stage that a checkpoint says is over is not repeated."""
        start = self.start if start is None else start
        stage = None if self.checkpoint is None else self.checkpoint.stage(phi)
        name = type(solver).__name__
        if stage is not None and stage.finished:  # before the run was stopped
            sweeps = stage.history[-1].sweeps if stage.history else 0
            end = Iterate(start, (1.0, 1.0), sweeps=sweeps)
            return Solution(end, Status.CONVERGED, stage.history, solver=name)
        return solve(
            phi,
            solver,
            start,
            tol=self.tol if tol is None else tol,
            max_iter=self.max_iter if max_iter is None else max_iter,
            bar=self.bar,
            ahead=ahead,
            stall=stall,
            callback=callback,
            spent=spent,
            stage=stage,
        )._replace(solver=name)

    def confirm(self, phi: Coupled, solver: Solver[Any], solution: Solution) -> Solution:
        """A residual of sampled pairs is confirmed by full sweeps, which go on if it was wrong.

        They begin anew where the samples led astray.
        """
        if not traits_of(solver).samples_pairs:
            return solution
        astray = solution.status in (Status.BOUNDARY, Status.NOT_PSD)
        if solution.status is not Status.CONVERGED and not astray:
            return solution
        last = self.stage(
            phi,
            PowerIteration(),
            self.start if astray else solution.iterate.metrics,
            solution.spent,
            max_iter=max(1, self.max_iter - len(solution.history)),
            callback=self.callback,
        )
        return last._replace(history=solution.history + last.history, solver=solution.solver)

    def check_connected(self, solution: Solution) -> Solution:
        """Marked non-unique if there is no share of R and the data are disconnected blocks."""
        converged = solution.status is Status.CONVERGED
        if self.is_plain and converged and self.problem.is_disconnected:
            return solution._replace(status=Status.NON_UNIQUE)
        return solution
