"""One solve, from the maps that ``eps`` asks for to a result with a status it can stand by."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from signal import SIGTERM
from typing import Any

import numpy as np
from scipy import sparse

from cometric.answers.result import Parameters, Record, Result
from cometric.core.arrays import to_numpy
from cometric.core.cones import log_width, normalize, ratio_bounds
from cometric.core.digest import digest
from cometric.core.problem import Problem
from cometric.core.types import Coupled, DistanceMap, Iterate, Matrix, Metrics, Solver, Status
from cometric.core.warn import warn
from cometric.machine.devices import free_memory, usable_memory
from cometric.machine.progress import Ahead, Bar
from cometric.machine.threads import workers
from cometric.maps.coupled import entropic_lifts, exact_lifts, regularize, tensor_lifts
from cometric.maps.entropic import EntropicMap
from cometric.maps.entropic_torch import TensorEntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.limit import LimitMap, correspondence
from cometric.maps.regularized import norm_name
from cometric.maps.tiled import TiledEntropicMap, TiledMap, tiled_entropic_lifts, tiled_lifts
from cometric.proofs.certificate import uniqueness
from cometric.running.memory import check_memory, kind_of_solve
from cometric.saving.checkpoint import Checkpoint
from cometric.saving.description import describe
from cometric.solvers import SOLVERS
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.loop import NOTHING_YET, Callback, Solution, Spent, solve
from cometric.solvers.policy import PolicyIteration
from cometric.solvers.power import PowerIteration
from cometric.solvers.stochastic import StochasticIteration

CONTINUATION = (1e-1, 1e-2, 1e-3, 1e-4)
"""Values of tau on the way to tau = 0."""

MARGIN = 0.03
"""Marginal errors up to this times the root of the residual do no harm on the way."""

FULL_SOLVES = 3.0
"""Iterations with few sweeps that solving every pair at the end takes the time of (1 to 5)."""

INNER = 3e-3
"""Marginal errors up to this times the root of the tolerance do no harm to the answer."""

STALL = 100
"""Iterations without a lower residual after which all Sinkhorn problems are solved."""

TRUSTED = {"float32": 1e-3, "tf32": 0.3}
"""Residual down to which a lower precision leads, where it was asked for; rounding is near."""

REMEDIES = {
    Status.MAX_ITER: "Raise `max_iter` or `tau`.",
    Status.NON_UNIQUE: "Pass `tau` > 0, which makes the answer unique.",
    Status.NOT_PSD: "Pass a smaller `eps` or a larger `tau`.",
    Status.LOOSE: "Pass a larger `eps`: Sinkhorn is slow at small ones.",
    Status.BOUNDARY: "Pass `tau` > 0, which keeps all distances positive.",
}


Exact = ExactMap | TiledMap
Entropic = EntropicMap | TensorEntropicMap | TiledEntropicMap


class ConvergenceWarning(UserWarning):
    """The result is the best that was reached, not what was asked for."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a solve; ``result`` is what had been reached, marked as interrupted."""

    result: Result


@dataclass(frozen=True)
class Run:
    """One call of ``learn``, whatever the kind of transport."""

    problem: Problem
    norms: Metrics
    begin: Metrics
    eps: float
    tau: float
    restart: float
    norm: Any
    solver: str | Solver[Any]
    tol: float
    max_iter: int
    sweeps: int
    device: str
    dtype: Any
    n_threads: int | None
    memory_limit: float | None
    client: Any
    progress: bool
    callback: Callback | None
    checkpoint: Checkpoint | None = None
    bar: Bar = field(default_factory=lambda: Bar(show=False))

    def learn(self) -> Result:
        """What comes out, or the exception or the warning that belongs to how it ended."""
        with workers(self.n_threads), Bar(self.progress) as bar:
            if self.checkpoint is not None:
                self.checkpoint.tell = bar.say
            solution, name = replace(self, bar=bar)._transport()
        saved = self.checkpoint is not None and self.checkpoint.flush()
        signal = None if self.checkpoint is None else self.checkpoint.interruption.number
        if signal is not None:
            solution = solution._replace(status=Status.INTERRUPTED)
        result = Result(
            samples=self.problem.samples.expand(solution.iterate.metrics.samples),
            features=self.problem.features.expand(solution.iterate.metrics.features),
            values=solution.iterate.values,
            status=solution.status,
            history=solution.history,
            bracket=solution.iterate.bracket,
            parameters=Parameters(
                eps=float(self.eps),
                tau=float(self.tau),
                norm=norm_name(self.norm),
                solver=name,
                tol=float(self.tol),
                max_iter=int(self.max_iter),
                restart=float(self.restart),
            ),
            problem=self.problem,
            norms=self._norm_matrices(),
        )
        if signal == SIGTERM:
            raise SystemExit(128 + SIGTERM)
        if result.status is Status.INTERRUPTED:
            further = ""
            if saved and self.checkpoint is not None:
                further = f"; cometric.resume({str(self.checkpoint.folder)!r}) goes on"
            interruption = Interrupted(f"interrupted; what was reached is in `.result`{further}")
            interruption.result = result
            raise interruption
        if solution.remark:
            warn(solution.remark)
        if not result.converged:
            warn(shortfall(result), ConvergenceWarning)
        return result

    def asked(self) -> dict[str, Any]:
        """All that changes the answer, but for where it starts."""
        name: Any = norm_name(self.norm)
        if name != "matrix":
            name = self.norm if isinstance(self.norm, str) else float(self.norm)
        return {
            "data": digest(self.data()),
            "eps": float(self.eps),
            "tau": float(self.tau),
            "restart": float(self.restart),
            "norm": name,
            "solver": describe(self.solver),
            "tol": float(self.tol),
            "sweeps": int(self.sweeps),
            "tiles": self.client is not None,
            "device": str(self.device),
            "dtype": np.dtype(self.dtype).name,
            "memory_limit": None if self.memory_limit is None else float(self.memory_limit),
        }

    def data(self) -> dict[str, Any]:
        """What is learned from, as arrays."""
        arrays, matrices = self.problem.to_arrays(), self._norm_matrices()
        if matrices is not None:
            arrays |= {"samples_norm": matrices[0], "features_norm": matrices[1]}
        return arrays

    def usable_memory(self) -> float:
        """Bytes that maps may remember in."""
        if self.memory_limit is not None:
            return float(self.memory_limit)
        if self.device != "cpu":
            return usable_memory(self.device)
        left = check_memory(self.problem, self.kind, taken=self._taken())
        return min(free_memory() / 2, left)

    @property
    def kind(self) -> str:
        """The kind of solve, for how much memory it needs."""
        return kind_of_solve(self.eps, self._plain, self.solver)

    def _norm_matrices(self) -> tuple[Matrix, Matrix] | None:
        """R, where it was given as matrices, between all kept items."""
        if norm_name(self.norm) != "matrix":
            return None
        samples, features = self.problem.samples, self.problem.features
        return samples.expand(self.norms.samples), features.expand(self.norms.features)

    def _transport(self) -> tuple[Solution, str]:
        """The solution by the kind of transport that eps asks for, and the name of its solver."""
        if self.client is not None:
            return self._in_tiles(None if self.client == "local" else self.client)
        limit = self.usable_memory()
        if self.eps == 0.0:
            lifts = exact_lifts(self.problem, n_threads=self.n_threads, memory_limit=limit)
            self._check_promise(sum(lift.kept for lift in lifts))
            return self._exact(*lifts)
        if self.eps == math.inf:
            sides = self.problem.samples.hist, self.problem.features.hist
            return self._limit(LimitMap(sides[0]), LimitMap(sides[1]))
        options: dict[str, Any] = {
            "sweeps": self.sweeps,
            "tol": INNER * math.sqrt(self.tol),
            "memory_limit": limit,
        }
        if self.device != "cpu":
            tensors = tensor_lifts(self.problem, self.eps, device=self.device, **options)
            for lift in tensors:
                lift.precision = rough_precision(tensors)
            return self._on_device(*tensors)
        maps = entropic_lifts(
            self.problem, self.eps, dtype=self.dtype, n_threads=self.n_threads, **options
        )
        self._check_promise(sum(lift.memory for lift in maps))
        return self._entropic(*maps)

    def _in_tiles(self, client: Any) -> tuple[Solution, str]:
        """The same by the workers of a cluster, or tile by tile in this process."""
        if self.eps == 0.0:
            return self._exact(*tiled_lifts(self.problem, client))
        inner = INNER * math.sqrt(self.tol)
        return self._entropic(
            *tiled_entropic_lifts(
                self.problem, self.eps, client, sweeps=self.sweeps, tol=inner, dtype=self.dtype
            )
        )

    def _check_promise(self, kept: float) -> None:
        """A ``memory_limit`` of the user's own may be more than there is."""
        if self.memory_limit is not None:
            check_memory(self.problem, self.kind, kept, self._taken())

    def _taken(self) -> float:
        """Bytes of the matrices that are there already."""
        return float(sum(matrix.nbytes for pair in (self.norms, self.begin) for matrix in pair))

    def _exact(self, to_samples: Exact, to_features: Exact) -> tuple[Solution, str]:
        """Policy iteration by default; tau = 0 is approached from above."""
        fits = to_samples.has_room_to_freeze and to_features.has_room_to_freeze
        chosen = self._choose("policy" if fits else "power")
        begin, spent = self.begin, NOTHING_YET
        if self._plain and isinstance(chosen, PolicyIteration):
            for number, weight in enumerate(CONTINUATION):
                phi = regularize(to_samples, to_features, weight, self.norms)
                tol = max(self.tol, 1e-2 * weight)
                ahead = Ahead(tol, self.max_iter, repeats=len(CONTINUATION) - number)
                stage = self._solve(phi, chosen, begin, spent, tol=tol, ahead=ahead)
                begin, spent = stage.iterate.metrics, stage.spent._replace(iterations=0)
                if stage.status is Status.INTERRUPTED:
                    return stage, type(chosen).__name__
        phi = self._regularize(to_samples, to_features)
        solution = self._solve(phi, chosen, begin, spent, callback=self.callback)
        solution = self._confirm(phi, chosen, solution)
        if self._plain:
            self.bar.say("checking whether the answer is the only one")
            status = _status_at_zero(self.problem, solution, to_samples, to_features)
            solution = solution._replace(status=status)
        return solution, type(chosen).__name__

    def _entropic(self, to_samples: Entropic, to_features: Entropic) -> tuple[Solution, str]:
        """A few sweeps per iteration to approach, then every pair to its tolerance.

        An extrapolation must know where it stands: with it a pair gets more sweeps where its
        marginals lag behind the residual, by the root because values are right to second order,
        and half of it after each failed trial. Single precision, where asked for, goes as far as
        it can be trusted. Unsolved problems may lead nowhere: all are solved after a hundred
        iterations without a lower residual, and from the start where distances came out negative.
        """
        lifts = to_samples, to_features
        chosen = self._choose("anderson")
        sampled = isinstance(chosen, StochasticIteration)
        phi = self._regularize(*lifts)

        def tighten(now: Iterate, record: Record) -> None:
            if isinstance(chosen, AndersonIteration) and now.residual <= chosen.begin:
                lag = MARGIN * math.sqrt(now.residual) * 0.5 ** getattr(now, "failures", 0)
                for lift in lifts:
                    lift.margin = lag
            if self.callback is not None:
                self.callback(now, record)

        solution = Solution(Iterate(self.begin, (1.0, 1.0)), Status.CONVERGED, [])
        for tol, precision, sweeps in self._stages(chosen, to_samples):
            left = self.max_iter - len(solution.history)
            if left <= 0 or solution.status in (Status.INTERRUPTED, Status.BOUNDARY):
                continue
            lost = solution.status is Status.NOT_PSD
            for lift in lifts:
                lift.precision, lift.sweeps = precision, sweeps
            stage = self._solve(
                phi,
                chosen,
                self.begin if lost else solution.iterate.metrics,
                solution.spent,
                tol=tol,
                max_iter=left,
                stall=math.inf if sweeps is None or sampled else STALL,
                callback=tighten,
                ahead=Ahead(self.tol, left, extra=0.0 if sweeps is None else FULL_SOLVES),
            )
            solution = stage._replace(history=solution.history + stage.history)
        if sampled:
            to_samples.sweeps = to_features.sweeps = None
            solution = self._confirm(phi, chosen, solution)
        if solution.status is Status.CONVERGED and to_samples.sweeps is not None:
            solution = solution._replace(status=Status.MAX_ITER)
        loose = any(lift.error > lift.tol for lift in lifts)
        if solution.status is Status.CONVERGED and loose:
            solution = solution._replace(status=Status.LOOSE)
        return self._unless_apart(solution), type(chosen).__name__

    def _stages(self, chosen: Solver[Any], lift: Entropic) -> list[tuple[float, str, int | None]]:
        """The tolerance, the precision and the sweeps per call of each stage; None solves."""
        few, rough = lift.sweeps, lift.precision
        if isinstance(chosen, StochasticIteration):  # full sweeps will confirm it
            return [(self.tol, "float64", few)]
        level = TRUSTED.get(rough, math.inf)
        stages: list[tuple[float, str, int | None]] = []
        if rough in TRUSTED:
            stages.append((max(self.tol, level), rough, few))
        if self.tol < level:
            stages.append((self.tol, "float64", few))
        return [*stages, (self.tol, "float64", None)]

    def _on_device(
        self, to_samples: TensorEntropicMap, to_features: TensorEntropicMap
    ) -> tuple[Solution, str]:
        """The same, with tensors all along."""
        norms, begin = (
            Metrics(*(on_torch(to_samples.device, matrix) for matrix in pair))
            for pair in (self.norms, self.begin)
        )
        solution, name = replace(self, norms=norms, begin=begin)._entropic(to_samples, to_features)
        found = Metrics(*map(to_numpy, solution.iterate.metrics))
        return solution._replace(iterate=replace(solution.iterate, metrics=found)), name

    def _limit(self, to_samples: LimitMap, to_features: LimitMap) -> tuple[Solution, str]:
        """The closed form at tau = 0; otherwise a linear map to iterate."""
        phi = self._regularize(to_samples, to_features)
        if not self._plain or self.solver != "auto":
            chosen = self._choose("anderson")
            solution = self._solve(phi, chosen, self.begin, callback=self.callback)
            return self._unless_apart(solution), type(chosen).__name__
        began = time.perf_counter()
        found = correspondence(self.problem.samples.hist, self.problem.features.hist)
        lam, mu = found.values
        low, high = ratio_bounds(normalize(found.image)[0], found.metrics.features)
        residual = log_width((low, high))
        iterate = Iterate(
            found.metrics, (lam, mu), residual, (lam * mu * low, lam * mu * high), sweeps=1
        )
        record = Record(1, residual, lam, mu, 1, time.perf_counter() - began)
        status = Status.CONVERGED
        if found.gap <= 1e-9:
            status = Status.NON_UNIQUE
        elif not residual <= self.tol:  # two items at the same place, up to rounding
            status = Status.BOUNDARY
        return Solution(iterate, status, [record]), "CorrespondenceAnalysis"

    @property
    def _plain(self) -> bool:
        """Whether there is transport only, no share of R."""
        return self.tau == 0.0 and self.restart == 0.0

    def _unless_apart(self, solution: Solution) -> Solution:
        """The same, but no success where distances between blocks are whatever they began as."""
        if self._plain and solution.status is Status.CONVERGED and _falls_apart(self.problem):
            return solution._replace(status=Status.NON_UNIQUE)
        return solution

    def _regularize(self, to_samples: DistanceMap, to_features: DistanceMap) -> Coupled:
        return regularize(to_samples, to_features, self.tau, self.norms, self.restart)

    def _solve(
        self,
        phi: Coupled,
        chosen: Solver[Any],
        begin: Metrics,
        spent: Spent = NOTHING_YET,
        tol: float | None = None,
        max_iter: int | None = None,
        stall: float = math.inf,
        callback: Callback | None = None,
        ahead: Ahead | None = None,
    ) -> Solution:
        stage = None if self.checkpoint is None else self.checkpoint.stage(phi)
        if stage is not None and stage.finished:  # before the run was stopped
            sweeps = stage.history[-1].sweeps if stage.history else 0
            end = Iterate(begin, (1.0, 1.0), sweeps=sweeps)
            return Solution(end, Status.CONVERGED, stage.history)
        return solve(
            phi,
            chosen,
            begin,
            tol=self.tol if tol is None else tol,
            max_iter=self.max_iter if max_iter is None else max_iter,
            bar=self.bar,
            ahead=ahead,
            stall=stall,
            callback=callback,
            spent=spent,
            stage=stage,
        )

    def _confirm(self, phi: Coupled, chosen: Solver[Any], solution: Solution) -> Solution:
        """A stochastic residual is sampled: full sweeps say whether it held, or go on.

        They begin anew where parts of the pairs, seen under different costs, led astray.
        """
        if not isinstance(chosen, StochasticIteration):
            return solution
        astray = solution.status in (Status.BOUNDARY, Status.NOT_PSD)
        if solution.status is not Status.CONVERGED and not astray:
            return solution
        left = max(1, self.max_iter - len(solution.history))
        last = self._solve(
            phi,
            PowerIteration(),
            self.begin if astray else solution.iterate.metrics,
            solution.spent,
            max_iter=left,
            callback=self.callback,
        )
        return last._replace(history=solution.history + last.history)

    def _choose(self, default: str) -> Solver[Any]:
        if not isinstance(self.solver, str):
            return self.solver
        return SOLVERS[default if self.solver == "auto" else self.solver]()


def shortfall(result: Result) -> str:
    """What kept a result from converging, and what to do about it."""
    return (
        f"{result.status.value}. Residual {result.residual:.1e} after {result.iterations} "
        f"iterations, tolerance {result.parameters.tol:.0e}. {REMEDIES[result.status]}"
    )


def rough_precision(lifts: Iterable[TensorEntropicMap]) -> str:
    """What maps on a device approach the answer in."""
    return "tf32" if all(lift.engine == "dense" for lift in lifts) else "float32"


def on_torch(device: Any, matrix: Matrix) -> Any:
    """A matrix as a tensor on a device."""
    import torch

    return torch.as_tensor(matrix, device=device)


def _status_at_zero(
    problem: Problem, solution: Solution, to_samples: Any, to_features: Any
) -> Status:
    """What may be said at tau = 0, where a small residual alone proves nothing.

    Blocks that share no feature leave the distances inside them unrelated. Otherwise a
    converged answer is called so unless its couplings show groups of distances that do not
    depend on one another.
    """
    if solution.status is Status.INTERRUPTED:
        return solution.status
    if _falls_apart(problem):
        return Status.NON_UNIQUE
    if solution.status is Status.CONVERGED:
        found = uniqueness(solution.iterate.metrics, to_samples, to_features)
        return Status.NON_UNIQUE if found.unique is False else Status.CONVERGED
    return solution.status


def _falls_apart(problem: Problem) -> bool:
    """Whether the data are blocks, several of them with distances inside, or more than two."""
    shared = problem.samples.hist + problem.features.hist.T  # who shares mass with whom
    tied = sparse.block_array([[None, shared], [shared.T, None]])
    blocks, label = sparse.csgraph.connected_components(tied, directed=False)
    inner = sum(np.bincount(label) > 2)  # blocks of more than one sample and one feature
    return bool(blocks > 2 or inner > 1)
