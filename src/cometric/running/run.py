"""One call of ``learn``: from a problem and its settings to a result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from signal import SIGTERM
from typing import Any

from cometric.answers.result import Parameters, Result
from cometric.core.digest import digest
from cometric.core.errors import REMEDIES, ConvergenceWarning, Interrupted
from cometric.core.problem import Problem
from cometric.core.types import Matrix, Metrics, Status
from cometric.core.warn import warn
from cometric.machine.devices import free_memory, usable_memory
from cometric.machine.progress import Bar
from cometric.machine.threads import workers
from cometric.maps.norms import norm_name
from cometric.running.memory import check_memory
from cometric.running.settings import Settings
from cometric.saving.checkpoint import Checkpoint
from cometric.solvers.loop import Solution
from cometric.transports.base import Lifts
from cometric.transports.solving import Solving


@dataclass(frozen=True)
class Run:
    """A problem with its norms R, where to start, and all options."""

    settings: Settings
    problem: Problem
    norms: Metrics
    start: Metrics
    checkpoint: Checkpoint | None = None
    bar: Bar = field(default_factory=lambda: Bar(show=False))

    def learn(self) -> Result:
        """The result, or the exception or the warning that belongs to how the solve ended."""
        with workers(self.settings.n_threads), Bar(self.settings.progress) as bar:
            if self.checkpoint is not None:
                self.checkpoint.tell = bar.say
            solution = replace(self, bar=bar).solve(self.lifts())
        saved = self.checkpoint is not None and self.checkpoint.flush()
        signal = None if self.checkpoint is None else self.checkpoint.interruption.number
        if signal is not None:
            solution = solution._replace(status=Status.INTERRUPTED)
        if signal == SIGTERM:
            raise SystemExit(128 + SIGTERM)
        result = self._result(solution)
        if result.status is Status.INTERRUPTED:
            raise self._interruption(result, saved)
        if solution.remark:
            warn(solution.remark)
        if not result.converged:
            warn(shortfall(result), ConvergenceWarning)
        return result

    def lifts(self) -> Lifts:
        """The maps to samples and to features."""
        settings = self.settings
        if settings.client is not None:
            tiled: Lifts = settings.transport.lifts(self.problem, settings.resources())
            return tiled
        resources = settings.resources(self.usable_memory())
        lifts: Lifts = settings.transport.lifts(self.problem, resources)
        if settings.memory_limit is not None:  # it may be more than there is
            promised = settings.transport.bytes_promised(lifts)
            check_memory(self.problem, settings, promised, self._allocated)
        return lifts

    def solve(self, lifts: Lifts) -> Solution:
        """Find the singular vectors with these maps."""
        settings = self.settings
        solving = Solving(
            self.problem,
            self.norms,
            self.start,
            solver=settings.solver,
            tol=settings.tol,
            max_iter=int(settings.max_iter),
            callback=settings.callback,
            checkpoint=self.checkpoint,
            bar=self.bar,
        )
        solution: Solution = settings.transport.solve(solving, lifts)
        return solution

    def usable_memory(self) -> float:
        """Bytes that maps may remember in."""
        if self.settings.memory_limit is not None:
            return float(self.settings.memory_limit)
        if str(self.settings.device) != "cpu":
            return usable_memory(self.settings.device)
        left = check_memory(self.problem, self.settings, allocated=self._allocated)
        return min(free_memory() / 2, left)

    def data(self) -> dict[str, Any]:
        """What is learned from, as arrays."""
        arrays, matrices = self.problem.to_arrays(), self._norm_matrices()
        if matrices is not None:
            arrays |= {"samples_norm": matrices[0], "features_norm": matrices[1]}
        return arrays

    def to_json(self) -> dict[str, Any]:
        """All that changes the answer, the data and given starts by their checksums."""
        stored = {"data": digest(self.data()), **self.settings.to_json()}
        if stored["start"] == "matrix":
            stored["start"] = digest(self.start._asdict())
        return stored

    @property
    def _allocated(self) -> float:
        """Bytes of the matrices that are there already."""
        return float(sum(matrix.nbytes for pair in (self.norms, self.start) for matrix in pair))

    def _norm_matrices(self) -> tuple[Matrix, Matrix] | None:
        """R, where it was given as matrices, between all kept items."""
        if norm_name(self.settings.norm) != "matrix":
            return None
        samples, features = self.problem.samples, self.problem.features
        return samples.expand(self.norms.samples), features.expand(self.norms.features)

    def _result(self, solution: Solution) -> Result:
        settings, metrics = self.settings, solution.iterate.metrics
        return Result(
            samples=self.problem.samples.expand(metrics.samples),
            features=self.problem.features.expand(metrics.features),
            values=solution.iterate.values,
            status=solution.status,
            history=solution.history,
            bracket=solution.iterate.bracket,
            parameters=Parameters(
                eps=float(settings.transport.eps),
                tau=settings.tau,
                norm=norm_name(settings.norm),
                solver=solution.solver,
                tol=float(settings.tol),
                max_iter=int(settings.max_iter),
                restart=settings.restart,
                transport=settings.transport,
            ),
            problem=self.problem,
            norms=self._norm_matrices(),
        )

    def _interruption(self, result: Result, saved: bool) -> Interrupted:
        further = ""
        if saved and self.checkpoint is not None:
            further = f"; cometric.resume({str(self.checkpoint.folder)!r}) continues from here"
        interruption = Interrupted(f"interrupted; the partial result is in `.result`{further}")
        interruption.result = result
        return interruption


def shortfall(result: Result) -> str:
    """What kept a result from converging, and what to do about it."""
    return (
        f"{result.status.value}. Residual {result.residual:.1e} after {result.iterations} "
        f"iterations, tolerance {result.parameters.tol:.0e}. {REMEDIES[result.status]}"
    )
