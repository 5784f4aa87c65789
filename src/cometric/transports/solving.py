"""A solve in stages, as passed to :meth:`Transport.solve`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cometric.core.arrays import on_device, to_numpy
from cometric.core.cones import negative_pairs
from cometric.core.problem import Problem
from cometric.core.types import (
    Coupled,
    DistanceMap,
    Iterate,
    Matrix,
    Metrics,
    Record,
    Solver,
    Status,
    traits_of,
)
from cometric.machine.interruption import is_interruption
from cometric.machine.progress import Ahead, Bar
from cometric.maps.regularized import Regularized, couple
from cometric.maps.sinkhorn import inner_tolerance
from cometric.solvers import SOLVERS
from cometric.solvers.loop import (
    NOTHING_YET,
    SILENT,
    Callback,
    Limits,
    Solution,
    Spent,
    Stage,
    solve,
)
from cometric.solvers.power import PowerIteration


class Checkpoints(Protocol):
    """The checkpoints of all stages of a solve."""

    def stage(self, phi: Coupled) -> Stage:
        """The next stage."""


@dataclass(frozen=True)
class Solving:
    """A problem, the starting metrics, the solver and when to stop."""

    problem: Problem
    norms: Metrics
    start: Metrics
    solver: str | Solver[Any]
    tol: float
    max_iter: int
    callback: Callback | None = None
    checkpoint: Checkpoints | None = None
    bar: Bar = SILENT

    @property
    def limits(self) -> Limits:
        """The default limits of a stage."""
        return Limits(self.tol, self.max_iter)

    @property
    def is_plain(self) -> bool:
        """Whether distances are plain transport, without the norm R or saturation."""
        return self.problem.formula.is_plain

    def choose(self, default: str) -> Solver[Any]:
        """The solver passed by the user, or the default for "auto"."""
        if not isinstance(self.solver, str):
            return self.solver
        return SOLVERS[default if self.solver == "auto" else self.solver]()

    def couple(self, lifts: tuple[DistanceMap, DistanceMap], tau: float | None = None) -> Coupled:
        """Both maps with the norm R added; ``tau`` replaces its weight in the formula."""
        formula = self.problem.formula
        return couple(lifts, formula if tau is None else replace(formula, tau=tau), self.norms)

    def stage(
        self,
        phi: Coupled,
        solver: Solver[Any],
        start: Metrics | None = None,
        spent: Spent = NOTHING_YET,
        *,
        limits: Limits | None = None,
        callback: Callback | None = None,
        ahead: Ahead | None = None,
    ) -> Solution:
        """Step until converged; skips a stage that the checkpoint marks as finished."""
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
            limits or self.limits,
            bar=self.bar,
            ahead=ahead,
            callback=callback,
            spent=spent,
            stage=stage,
        )._replace(solver=name)

    def lift_given(self, lifts: tuple[Any, Any]) -> Solution:
        """The metric computed from the given one (in ``start``), as one iteration.

        It has the units of the given metric: its singular value is 1, the other one NaN.
        """
        began = time.perf_counter()
        of_samples = self.problem.fixed == "features"
        side = 0 if of_samples else 1
        lift, R, given = lifts[side], self.norms[side], self.start[1 - side]
        with self.bar.stage(Coupled(*lifts), Ahead(self.tol, 1)):
            distances = self._lift(lift, R, given)
            tol = inner_tolerance(self.tol, float(distances.max() / given.max()))
            if tol < getattr(lift, "tol", 0.0):  # distances turn out to be small
                lift.tol = tol
                distances = self._lift(lift, R, given)
        remark, status = "", Status.CONVERGED
        if getattr(lift, "error", 0.0) > getattr(lift, "tol", math.inf):
            status = Status.INNER_NOT_CONVERGED
        if distances.min() < 0.0:
            status = Status.NOT_PSD
            remark = (
                f"{negative_pairs(distances)}: the entropic kernel of "
                f"`{self.problem.fixed}` is not positive."
            )
        metrics = Metrics(distances, given) if of_samples else Metrics(given, distances)
        values = (math.nan, 1.0) if of_samples else (1.0, math.nan)
        iterate = Iterate(metrics, values, 0.0, (math.nan, math.nan), sweeps=1)
        record = Record(1, 0.0, *values, 1, time.perf_counter() - began)
        if self.callback is not None:
            self.callback(iterate, record)
        return Solution(iterate, status, [record], remark, solver="given")

    def _lift(self, lift: Any, R: Matrix, given: Matrix) -> Matrix:
        formula, device = self.problem.formula, getattr(lift, "device", None)
        if device is not None:
            R, given = on_device(device, R), on_device(device, given)
        phi = lift if formula.is_plain else Regularized(lift, formula, R)
        try:
            distances: Matrix = to_numpy(phi(given))
        except SystemError as error:
            if is_interruption(error):
                raise KeyboardInterrupt from error
            raise
        return distances

    def confirm(self, phi: Coupled, solver: Solver[Any], solution: Solution) -> Solution:
        """Continue with full sweeps after a solver that samples pairs, to confirm its residual.

        Starts over if the solver ended at the boundary or with negative distances.
        """
        if not traits_of(solver).samples_pairs:
            return solution
        failed = solution.status in (Status.BOUNDARY, Status.NOT_PSD)
        if solution.status is not Status.CONVERGED and not failed:
            return solution
        last = self.stage(
            phi,
            PowerIteration(),
            self.start if failed else solution.iterate.metrics,
            solution.spent,
            limits=Limits(self.tol, max(1, self.max_iter - len(solution.history))),
            callback=self.callback,
            ahead=Ahead(self.tol, self.max_iter, name="last stage: all pairs"),
        )
        return last._replace(history=solution.history + last.history, solver=solution.solver)

    def check_connected(self, solution: Solution) -> Solution:
        """The solution, marked non-unique for plain transport on disconnected blocks of data."""
        converged = solution.status is Status.CONVERGED
        if self.is_plain and converged and self.problem.is_disconnected:
            return solution._replace(status=Status.NON_UNIQUE)
        return solution
