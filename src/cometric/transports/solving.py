"""One solve: a loop for each of the stages that a transport states."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from cometric.core.arrays import on_device, to_numpy
from cometric.core.cached import cached_property
from cometric.core.cones import negative_pairs
from cometric.core.formula import Formula
from cometric.core.problem import Problem
from cometric.core.types import (
    BOUNDARY,
    Coupled,
    Iterate,
    Metrics,
    Record,
    Status,
    Traits,
    traits_of,
)
from cometric.maps.regularized import Regularized
from cometric.maps.sinkhorn_map import inner_tolerance
from cometric.runtime.interruption import is_interruption
from cometric.runtime.progress import Ahead, Bar
from cometric.solvers import SOLVERS
from cometric.solvers.loop import SILENT, Callback, Saver, Solution, Stage, solve
from cometric.solvers.power import PowerIteration

if TYPE_CHECKING:
    from cometric.transports.base import Transport

Stages = Generator[Stage, Solution, Solution]
"""Yields stages, receives the solution after each, and returns the solution of the run."""


class Checkpoints(Protocol):
    """The checkpoints of all stages of a solve."""

    def stage(self, phi: Coupled) -> Saver:
        """The checkpoints of the next stage."""


UNDERFLOW = 2.0**-1000
"""With a norm term, distances below this fraction of the largest count as zero."""


def couple(lifts: tuple[Any, Any], formula: Formula, norms: Metrics) -> Coupled:
    """Both maps with a formula."""
    to_samples, to_features = map(Regularized, lifts, (formula, formula), norms)
    # R keeps distances positive, however small.
    boundary = UNDERFLOW if formula.has_norm else BOUNDARY
    return Coupled(to_samples, to_features, boundary)


@dataclass(frozen=True)
class Solving:
    """A solve: problem, starting metrics, maps, solver, and when to stop."""

    problem: Problem
    norms: Metrics
    start: Metrics
    lifts: tuple[Any, Any]  # the maps to samples and to features
    solver: Any  # or its name; "auto" is chosen by the transport
    tol: float
    max_iter: int
    callback: Callback | None = None
    checkpoint: Checkpoints | None = None
    bar: Bar = SILENT
    automatic: bool = False  # whether the transport chose the solver

    @cached_property
    def phi(self) -> Coupled:
        """The maps with the formula of the problem."""
        return couple(self.lifts, self.problem.formula, self.norms)

    @cached_property
    def traits(self) -> Traits:
        """The traits of the solver."""
        return traits_of(self.solver)

    @cached_property
    def begun(self) -> Solution:
        """The solution before the first stage, with the accuracy of the maps."""
        to_samples, to_features = (lift.accuracy for lift in self.lifts)
        accuracy = None if to_samples is None else (to_samples, to_features)
        now = Iterate(self.start, (1.0, 1.0), accuracy=accuracy)
        return Solution(now, Status.CONVERGED, [], solver=type(self.solver).__name__)

    def solve(self, transport: Transport) -> Solution:
        """The solution after all stages; if a metric is given, the other one computed from it."""
        if self.problem.fixed:
            return self.from_given()
        run, device = self, self.lifts[0].device
        if isinstance(run.solver, str):
            automatic = run.solver == "auto"
            name = transport.default_solver(run.lifts) if automatic else run.solver
            run = replace(run, solver=SOLVERS[name], automatic=automatic)
        if device is None:
            return run._follow(transport.stages(run))
        norms, start = (
            Metrics(*(on_device(device, matrix) for matrix in pair))
            for pair in (run.norms, run.start)
        )
        run = replace(run, norms=norms, start=start)
        solution = run._follow(transport.stages(run))
        metrics = Metrics(*map(to_numpy, solution.iterate.metrics))
        return solution._replace(iterate=replace(solution.iterate, metrics=metrics))

    def _follow(self, stages: Stages) -> Solution:
        """The solution that the stages return, after a loop for each."""
        solution, sent, counted = self.begun, None, True
        while True:
            try:
                stage = stages.send(sent)  # type: ignore[arg-type]  # None to begin
            except StopIteration as end:
                last: Solution = end.value
                return last
            phi = stage.phi or self.phi
            sent = solution = solve(
                phi,
                stage.solver or self.solver,
                self.start if stage.afresh else solution.iterate.metrics,
                stage,
                before=solution if counted else solution._replace(history=[]),
                bar=self.bar,
                callback=self.callback if stage.counted else None,
                saver=None if self.checkpoint is None else self.checkpoint.stage(phi),
            )
            counted = stage.counted

    def confirm(self, solution: Solution) -> Stages:
        """Continue with full sweeps after a solver that samples pairs, to confirm its residual.

        Starts over if the solver ended at the boundary or with negative distances.
        """
        failed = solution.status in (Status.BOUNDARY, Status.NOT_PSD)
        if not self.traits.samples_pairs:
            return solution
        if solution.status is not Status.CONVERGED and not failed:
            return solution
        accuracy = solution.iterate.accuracy
        if accuracy is not None:
            accuracy = accuracy[0]._replace(sweeps=None), accuracy[1]._replace(sweeps=None)
        return (
            yield Stage(
                self.tol,
                max(1, self.max_iter - len(solution.history)),
                accuracy=accuracy,
                ahead=Ahead(self.tol, self.max_iter, name="last stage: all pairs"),
                solver=PowerIteration(),
                afresh=failed,
            )
        )

    def check_connected(self, solution: Solution) -> Solution:
        """The solution, marked non-unique for plain transport on disconnected blocks of data."""
        converged = solution.status is Status.CONVERGED
        if self.problem.formula.is_plain and converged and self.problem.is_disconnected:
            return solution._replace(status=Status.NON_UNIQUE)
        return solution

    def from_given(self) -> Solution:
        """The metric computed from the given one (in ``start``), as one iteration.

        It has the units of the given metric: its singular value is 1, the other one NaN.
        """
        began = time.perf_counter()
        of_samples = self.problem.fixed == "features"
        side = 0 if of_samples else 1
        lift, R, given = self.lifts[side], self.norms[side], self.start[1 - side]
        with self.bar.stage(Coupled(*self.lifts), Ahead(self.tol, 1)):
            try:
                distances, is_solved = self._lift(lift, R, given)
            except SystemError as error:
                if is_interruption(error):
                    raise KeyboardInterrupt from error
                raise
        status, remark = Status.CONVERGED if is_solved else Status.INNER_NOT_CONVERGED, ""
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

    def _lift(self, lift: Any, R: Any, given: Any) -> tuple[Any, bool]:
        """The distances under a given metric, and whether all Sinkhorn problems were solved."""
        if lift.device is not None:
            R, given = on_device(lift.device, R), on_device(lift.device, given)
        phi, accuracy = Regularized(lift, self.problem.formula, R), lift.accuracy
        distances = to_numpy(phi(given))
        if accuracy is None:
            return distances, True
        tol = inner_tolerance(self.tol, float(distances.max() / given.max()))
        if tol < accuracy.tol:  # distances turn out to be small
            accuracy = accuracy._replace(tol=tol)
            distances = to_numpy(phi(given, accuracy))
        return distances, not lift.error > accuracy.tol
