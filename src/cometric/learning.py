"""``learn``, the front door: from a matrix to a pair of metrics."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from signal import SIGTERM
from typing import Any

import numpy as np
from scipy import sparse

from cometric.arrays import to_numpy
from cometric.certificate import uniqueness
from cometric.checkpoint import (
    Checkpoint,
    CheckpointError,
    Saved,
    compare,
    digest,
    latest,
    read_data,
)
from cometric.cones import log_width, normalize, ratio_bounds
from cometric.interruption import Interruption
from cometric.maps.checks import free_memory
from cometric.maps.coupled import (
    entropic_lifts,
    exact_lifts,
    norm_matrices,
    regularize,
    tensor_lifts,
)
from cometric.maps.entropic import EntropicMap
from cometric.maps.entropic_torch import TensorEntropicMap, torch_device, usable_memory
from cometric.maps.exact import ExactMap, ReplayedMap
from cometric.maps.limit import LimitMap, correspondence
from cometric.maps.regularized import norm_matrix, norm_name
from cometric.maps.tiled import TiledEntropicMap, TiledMap, tiled_entropic_lifts, tiled_lifts
from cometric.maps.workers import check_process, workers
from cometric.options import check_folder, check_options
from cometric.planning import check_memory
from cometric.problem import Problem, Side
from cometric.result import Parameters, Record, Result
from cometric.solve import NOTHING_YET, Callback, Solution, Spent, solve
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.policy import PolicyIteration
from cometric.solvers.power import PowerIteration
from cometric.solvers.stochastic import StochasticIteration
from cometric.types import Coupled, DistanceMap, Iterate, Matrix, Metrics, Solver, Status

SOLVERS: dict[str, Callable[..., Solver[Any]]] = {
    "anderson": AndersonIteration,
    "policy": PolicyIteration,
    "power": PowerIteration,
    "stochastic": StochasticIteration,
}

DEFAULT_TAU = 1e-3

CONTINUATION = (1e-1, 1e-2, 1e-3, 1e-4)
"""Values of tau on the way to tau = 0."""

MARGIN = 0.03
"""Marginal errors up to this times the root of the residual do no harm on the way."""

INNER = 3e-4
"""Marginal errors up to this times the root of the tolerance do no harm to the answer."""

SINGLE_PRECISION = {"float64": math.inf, "float32": 1e-3, "tf32": 0.3}
"""Residual down to which a precision is used where asked for; rounding is near."""


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


def learn(
    X: Any,
    eps: float = 0.1,
    tau: float = DEFAULT_TAU,
    *,
    restart: float = 0.0,
    norm: Any = "l1",
    solver: str | Solver[Any] = "auto",
    tol: float = 1e-6,
    max_iter: int = 1000,
    sweeps: int = 1,
    device: str = "cpu",
    dtype: Any = np.float64,
    start: Any = None,
    random_state: int | None = None,
    n_threads: int | None = None,
    memory_limit: float | None = None,
    client: Any = None,
    progress: bool = False,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    normalization_steps: int = 1,
    smoothing: float = 0.0,
    drop_empty: bool = False,
) -> Result:
    """Learn a distance between the rows of ``X`` and one between its columns.

    With A the rows and B the columns of X, each divided by its sum, the metrics C (features)
    and D (samples) solve ::

        Phi_B(D) = lam C,   Phi_A(C) = mu D,   Phi_A(C)_ij = W_C(a_i, a_j) + tau |C| R(a_i - a_j).

    Parameters
    ----------
    X
        Nonnegative matrix, samples by features (NumPy, SciPy sparse, pandas, torch, AnnData),
        or the histograms themselves as a tuple ``(A, B)``.
    eps
        Entropic regularization relative to the largest cost; 0 is exact transport, infinity the
        linear limit (correspondence analysis at tau = 0).
    tau
        Weight of the norm R. Positive values make the answer unique; 0 is allowed.
    restart
        A share alpha of R in every distance, instead of tau: with positive alpha, below 1,

            Phi_A(C)_ij = (1 - alpha) W_C(a_i, a_j) + alpha |W_C| R(a_i - a_j) / |R|.

        It means the same on all data, which tau does not; see docs/choosing.md.
    norm
        R: "l1", "l2", "linf", a power p >= 1, "discrete", or two matrices (samples, features).
    solver
        "auto" (policy iteration for eps = 0, Anderson acceleration for eps > 0, the closed form
        for eps infinite and tau = 0), "policy", "power", "anderson", "stochastic", or a solver of
        your own.
    tol, max_iter
        Stop when the Hilbert distance between an iterate and its image is at most ``tol``.
    sweeps, dtype
        For 0 < eps < infinity: Sinkhorn sweeps per iteration on the way (at the end every pair
        is brought to its tolerance, in float64), and the precision on the way.
    device
        "cpu" (Numba), or what PyTorch calls a GPU, "cuda" or "cuda:1", for 0 < eps < infinity:
        float32 to approach and float64 to finish, whatever ``dtype``. The metrics come back as
        NumPy arrays, or on the device if ``X`` was there; a ``callback`` sees tensors.
    start
        Where to begin: a distance matrix between samples, a pair (samples, features), "random"
        (seeded by ``random_state``), or None for the l1 distances between histograms.
    n_threads
        Threads to use; the answer is the same, bit by bit, for any number.
    memory_limit
        Bytes the stored trees and couplings may take (of both sides together); half of what
        is free by default. Where they do not fit, slower ways that do are taken.
    client
        A ``distributed.Client``: its workers compute the distances, tile by tile, with one thread
        of theirs each. The answer is the same, bit by bit, for any number of workers, lost ones
        included; "local" computes the same tiles in this process. See docs/scale.md.
    progress
        Show a bar with the residual and the time left.
    callback
        Called after each iteration with the iterate and its line of the history.
    checkpoint, checkpoint_every
        A folder to which all that the run needs to go on is written, so often (in seconds; 0
        means after each iteration), when it ends, and at Ctrl-C or SIGTERM, after the iteration
        they come in. The same call goes on from there, and so does :func:`resume`, to the same
        bits (on the CPU) as if nothing had happened. ``max_iter`` may be another then.
    normalization_steps, smoothing, drop_empty
        How histograms are made, see :meth:`Problem.from_data`.

    Returns
    -------
    Result
        Not converged results come with a :class:`ConvergenceWarning`.
    """
    check_options(
        eps=eps,
        tau=tau,
        tol=tol,
        max_iter=max_iter,
        sweeps=sweeps,
        device=device,
        dtype=dtype,
        random_state=random_state,
        n_threads=n_threads,
        memory_limit=memory_limit,
        callback=callback,
        solver=solver,
        solvers=SOLVERS,
        progress=progress,
        drop_empty=drop_empty,
    )
    _check_restart(restart, tau, solver)
    tau = 0.0 if restart > 0.0 else tau
    _check_client(client, eps, tau, device)
    folder = check_folder(checkpoint, checkpoint_every)
    problem = Problem.from_data(
        X, normalization_steps=normalization_steps, smoothing=smoothing, drop_empty=drop_empty
    )
    check_process()
    check_memory(problem, _is_accelerated(solver))
    norms = norm_matrices(problem, norm, _tensors_on(device))
    begin = _start(problem, start, random_state, norms if norm_name(norm) == "l1" else None)
    run = _Run(
        problem,
        norms,
        begin,
        eps=eps,
        tau=tau,
        restart=restart,
        norm=norm,
        solver=solver,
        tol=tol,
        max_iter=max_iter,
        sweeps=sweeps,
        device=device,
        dtype=dtype,
        n_threads=n_threads,
        memory_limit=memory_limit,
        client=client,
        progress=progress,
        callback=callback,
    )
    if folder is None:
        result = run.learn()
    else:
        drawn = isinstance(start, str) or start is None
        asked = run.asked() | {
            "start": start if drawn else digest(begin._asdict()),
            "random_state": None if random_state is None else int(random_state),
        }
        saved = latest(folder)
        if saved is not None:
            compare(folder, saved, asked)
        result = _keep(run, folder, checkpoint_every, asked, saved)
    if getattr(X, "is_cuda", False):
        result = replace(
            result,
            samples=_on(X.device, result.samples),
            features=_on(X.device, result.features),
        )
    return result


def resume(
    checkpoint: str | os.PathLike[str],
    *,
    max_iter: int | None = None,
    n_threads: int | None = None,
    client: Any = None,
    progress: bool = False,
    callback: Callback | None = None,
    checkpoint_every: float = 300.0,
) -> Result:
    """Go on from the folder that ``learn(..., checkpoint=...)`` has written.

    The data and all options come from there, but for those that do not change the answer;
    ``max_iter`` may be raised. What was begun on a cluster goes on with another ``client``, or
    in this process.
    """
    folder = check_folder(checkpoint, checkpoint_every)
    saved = None if folder is None else latest(folder)
    if folder is None or saved is None:
        raise CheckpointError(
            f"`{checkpoint}` holds no checkpoint. Start with learn(X, ..., checkpoint=...)."
        )
    check_process()
    arrays, asked = read_data(folder, saved), saved.asked
    try:
        problem = Problem.from_arrays(arrays)
        norm = asked["norm"]
        if norm == "matrix":
            norm = arrays["samples_norm"], arrays["features_norm"]
        run = _Run(
            problem,
            norm_matrices(problem, norm, _tensors_on(asked["device"])),
            _start(problem, None, None),  # not where we begin: the checkpoint says
            eps=asked["eps"],
            tau=asked["tau"],
            restart=asked["restart"],
            norm=norm,
            solver=_rebuild_solver(asked["solver"]),
            tol=asked["tol"],
            max_iter=saved.used["max_iter"] if max_iter is None else max_iter,
            sweeps=asked["sweeps"],
            device=asked["device"],
            dtype=asked["dtype"],
            n_threads=n_threads,
            memory_limit=asked["memory_limit"],
            client=(client or "local") if asked["tiles"] else None,
            progress=progress,
            callback=callback,
        )
        _check_client(run.client, run.eps, run.tau, run.device)
        check_options(
            eps=run.eps,
            tau=run.tau,
            tol=run.tol,
            max_iter=run.max_iter,
            sweeps=run.sweeps,
            device=run.device,
            dtype=run.dtype,
            n_threads=n_threads,
            memory_limit=run.memory_limit,
            callback=callback,
            solver=run.solver,
            solvers=SOLVERS,
            progress=progress,
        )
    except KeyError as missing:
        raise CheckpointError(f"`{folder}` holds a checkpoint without {missing}.") from missing
    return _keep(run, folder, checkpoint_every, asked, saved)


def _keep(
    run: _Run, folder: Path, every: float, asked: dict[str, Any], saved: Saved | None
) -> Result:
    """Learn with checkpoints, from the one that is there, if any."""
    interruption = Interruption()
    used = {
        # How much memory there is decides in which precision maps remember: it must not change.
        "memory_limit": run.usable_memory() if saved is None else saved.used["memory_limit"],
        "max_iter": int(run.max_iter),
    }
    kept = Checkpoint(folder, every, asked, used, run.data, interruption, saved)
    try:
        with interruption.listening():
            return replace(run, memory_limit=used["memory_limit"], checkpoint=kept).learn()
    finally:
        kept.close()


@dataclass(frozen=True)
class _Run:
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

    def learn(self) -> Result:
        """What comes out, or the exception or the warning that belongs to how it ended."""
        with workers(self.n_threads):
            solution, name = self._transport()
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
                self.eps,
                self.tau,
                norm_name(self.norm),
                name,
                self.tol,
                self.max_iter,
                self.restart,
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
        if not result.converged:
            warnings.warn(
                shortfall(result),
                ConvergenceWarning,
                stacklevel=3 if self.checkpoint is None else 4,
            )
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
            "solver": _describe(self.solver),
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
        left = check_memory(self.problem, _is_accelerated(self.solver), taken=self._taken())
        return min(free_memory() / 2, left)

    def _norm_matrices(self) -> tuple[Matrix, Matrix] | None:
        """R, where it was given as matrices, between all kept items."""
        if norm_name(self.norm) != "matrix":
            return None
        samples, features = self.problem.samples, self.problem.features
        return samples.expand(self.norms.samples), features.expand(self.norms.features)

    def _transport(self) -> tuple[Solution, str]:
        """Solve with the kind of transport that eps asks for."""
        if self.client is not None:
            return self._in_tiles(None if self.client == "local" else self.client)
        limit = self.usable_memory()
        if self.eps == 0.0:
            lifts = exact_lifts(self.problem, n_threads=self.n_threads, memory_limit=limit)
            self._check_promise(sum(lift.kept for lift in lifts))
            return self.exact(*lifts)
        if self.eps == math.inf:
            return self.limit()
        options: dict[str, Any] = {
            "sweeps": self.sweeps,
            "tol": INNER * math.sqrt(self.tol),
            "memory_limit": limit,
        }
        if self.device != "cpu":
            tensors = tensor_lifts(self.problem, self.eps, device=self.device, **options)
            rough = "tf32" if all(lift.engine == "dense" for lift in tensors) else "float32"
            for lift in tensors:
                lift.precision = rough
            return self.on_device(*tensors)
        maps = entropic_lifts(
            self.problem, self.eps, dtype=self.dtype, n_threads=self.n_threads, **options
        )
        self._check_promise(sum(lift.memory for lift in maps))
        return self.entropic(*maps)

    def _in_tiles(self, client: Any) -> tuple[Solution, str]:
        """The same by the workers of a cluster, or tile by tile in this process."""
        if self.eps == 0.0:
            return self.exact(*tiled_lifts(self.problem, client))
        inner = INNER * math.sqrt(self.tol)
        return self.entropic(
            *tiled_entropic_lifts(
                self.problem, self.eps, client, sweeps=self.sweeps, tol=inner, dtype=self.dtype
            )
        )

    def _check_promise(self, kept: float) -> None:
        """A ``memory_limit`` of the user's own may be more than there is."""
        if self.memory_limit is not None:
            check_memory(self.problem, _is_accelerated(self.solver), kept, self._taken())

    def _taken(self) -> float:
        """Bytes of the matrices that are there already."""
        return float(sum(matrix.nbytes for pair in (self.norms, self.begin) for matrix in pair))

    def exact(self, to_samples: Exact, to_features: Exact) -> tuple[Solution, str]:
        """Policy iteration by default; tau = 0 is approached from above."""
        fits = to_samples.keeps_trees and to_features.keeps_trees
        chosen = self._choose("policy" if fits else "power")
        begin, spent = self.begin, NOTHING_YET
        if self._plain and isinstance(chosen, PolicyIteration):
            for weight in CONTINUATION:
                phi = regularize(to_samples, to_features, weight, self.norms)
                stage = self._solve(phi, chosen, begin, spent, tol=max(self.tol, 1e-2 * weight))
                begin, spent = stage.iterate.metrics, stage.spent._replace(iterations=0)
                if stage.status is Status.INTERRUPTED:
                    return stage, type(chosen).__name__
        phi = self._regularize(to_samples, to_features)
        solution = self._solve(phi, chosen, begin, spent, callback=self.callback)
        solution = self._confirm(phi, chosen, solution)
        if self._plain:
            status = _status_at_zero(self.problem, solution, to_samples, to_features)
            solution = solution._replace(status=status)
        return solution, type(chosen).__name__

    def entropic(self, to_samples: Entropic, to_features: Entropic) -> tuple[Solution, str]:
        """A few sweeps per iteration to approach, then every pair to its tolerance.

        An extrapolation must know where it stands: with it a pair gets more sweeps where its
        marginals lag behind the residual, by the root because values are right to second order.
        Single precision, where asked for, goes as far as it can be trusted.
        """
        lifts = to_samples, to_features
        chosen = self._choose("anderson")
        phi = self._regularize(*lifts)

        def tighten(now: Iterate, record: Record) -> None:
            if isinstance(chosen, AndersonIteration) and now.residual <= chosen.begin:
                for lift in lifts:
                    lift.margin = MARGIN * math.sqrt(now.residual)
            if self.callback is not None:
                self.callback(now, record)

        few, rough = to_samples.sweeps, to_samples.precision
        level = SINGLE_PRECISION[rough]
        stages: list[tuple[float, str, int | None]] = [(self.tol, "float64", None)]
        if isinstance(chosen, StochasticIteration):  # full sweeps will confirm it
            stages = [(self.tol, "float64", few)]
        else:
            if self.tol < level:
                stages.insert(0, (self.tol, "float64", few))
            if rough != "float64":
                stages.insert(0, (max(self.tol, level), rough, few))
        solution = Solution(Iterate(self.begin, (1.0, 1.0)), Status.CONVERGED, [])
        for tol, precision, sweeps in stages:
            left = self.max_iter - len(solution.history)
            if solution.status is not Status.CONVERGED or left == 0:
                break
            for lift in lifts:
                lift.precision, lift.sweeps = precision, sweeps
            stage = self._solve(
                phi,
                chosen,
                solution.iterate.metrics,
                solution.spent,
                tol=tol,
                max_iter=left,
                callback=tighten,
            )
            solution = stage._replace(history=solution.history + stage.history)
        if isinstance(chosen, StochasticIteration):
            to_samples.sweeps = to_features.sweeps = None
            solution = self._confirm(phi, chosen, solution)
        if solution.status is Status.CONVERGED and to_samples.sweeps is not None:
            solution = solution._replace(status=Status.MAX_ITER)
        loose = any(lift.error > lift.tol for lift in lifts)
        if solution.status is Status.CONVERGED and loose:
            solution = solution._replace(status=Status.LOOSE)
        return solution, type(chosen).__name__

    def on_device(
        self, to_samples: TensorEntropicMap, to_features: TensorEntropicMap
    ) -> tuple[Solution, str]:
        """The same, with tensors all along."""
        norms, begin = (
            Metrics(*(_on(to_samples.device, matrix) for matrix in pair))
            for pair in (self.norms, self.begin)
        )
        solution, name = replace(self, norms=norms, begin=begin).entropic(to_samples, to_features)
        found = Metrics(*map(to_numpy, solution.iterate.metrics))
        return solution._replace(iterate=replace(solution.iterate, metrics=found)), name

    def limit(self) -> tuple[Solution, str]:
        """The closed form at tau = 0; otherwise a linear map to iterate."""
        sides = self.problem.samples.hist, self.problem.features.hist
        phi = self._regularize(LimitMap(sides[0]), LimitMap(sides[1]))
        if not self._plain or self.solver != "auto":
            chosen = self._choose("anderson")
            return self._solve(phi, chosen, self.begin, callback=self.callback), type(
                chosen
            ).__name__
        began = time.perf_counter()
        found = correspondence(*sides)
        image, mu = normalize(phi.to_samples(found.metrics.features))
        features, lam = normalize(phi.to_features(image))
        low, high = ratio_bounds(features, found.metrics.features)
        residual = log_width((low, high))
        iterate = Iterate(
            found.metrics, (lam, mu), residual, (lam * mu * low, lam * mu * high), sweeps=1
        )
        record = Record(1, residual, lam, mu, 1, time.perf_counter() - began)
        status = Status.CONVERGED if found.gap > 1e-9 else Status.NON_UNIQUE
        return Solution(iterate, status, [record]), "CorrespondenceAnalysis"

    @property
    def _plain(self) -> bool:
        """Whether there is transport only, no share of R."""
        return self.tau == 0.0 and self.restart == 0.0

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
        callback: Callback | None = None,
    ) -> Solution:
        stage = None if self.checkpoint is None else self.checkpoint.stage(phi)
        if stage is not None and stage.finished:  # before the run was stopped
            last = stage.history[-1]
            end = Iterate(begin, (last.lam, last.mu), last.residual, sweeps=last.sweeps)
            return Solution(end, Status.CONVERGED, stage.history)
        return solve(
            phi,
            chosen,
            begin,
            tol=self.tol if tol is None else tol,
            max_iter=self.max_iter if max_iter is None else max_iter,
            progress=self.progress,
            callback=callback,
            spent=spent,
            stage=stage,
        )

    def _confirm(self, phi: Coupled, chosen: Solver[Any], solution: Solution) -> Solution:
        """A stochastic residual is sampled: full sweeps say whether it held, or go on."""
        if not isinstance(chosen, StochasticIteration) or solution.status is not Status.CONVERGED:
            return solution
        left = max(1, self.max_iter - len(solution.history))
        last = self._solve(
            phi,
            PowerIteration(),
            solution.iterate.metrics,
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


def _tensors_on(device: str) -> Any:
    """The torch device to compute on, or None where NumPy does."""
    return None if device == "cpu" else torch_device(device)


def _on(device: Any, matrix: Matrix) -> Any:
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
    shared = problem.samples.hist + problem.features.hist.T  # who shares mass with whom
    tied = sparse.block_array([[None, shared], [shared.T, None]])
    blocks, label = sparse.csgraph.connected_components(tied, directed=False)
    inner = sum(np.bincount(label) > 2)  # blocks of more than one sample and one feature
    if blocks > 2 or inner > 1:
        return Status.NON_UNIQUE
    if solution.status is Status.CONVERGED:
        found = uniqueness(solution.iterate.metrics, to_samples, to_features)
        return Status.NON_UNIQUE if found.unique is False else Status.CONVERGED
    return solution.status


def warmup(kinds: Sequence[str] = ("exact", "entropic")) -> float:
    """Compile the kernels (or load them from the cache) and return the seconds it took."""
    began = time.perf_counter()
    X = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 4.0]])
    hist = Problem.from_data(X).samples.hist
    cost = 1.0 - np.eye(3)
    if "exact" in kinds:
        learn(X, eps=0.0, tau=0.1).certify()
        phi = ExactMap(hist)
        phi.plans(cost, np.array([[0, 1]]))
        ReplayedMap(phi._solve_all(cost))(cost)
    if "entropic" in kinds:
        for eps, dtype in ((0.5, np.float64), (0.5, np.float32), (1e-3, np.float64)):
            EntropicMap(hist, eps, dtype=dtype)(cost)
        EntropicMap(hist, 0.5).bounds(cost)
    return time.perf_counter() - began


def _start(
    problem: Problem, start: Any, random_state: int | None, l1: Metrics | None = None
) -> Metrics:
    """Where to begin; ``l1`` are the l1 distances, where somebody has computed them before."""
    sides = (problem.samples, problem.features)
    if isinstance(start, str) and start == "random":
        rng = np.random.default_rng(random_state)
        return Metrics(*(_random_metric(side.hist.shape[0], rng) for side in sides))
    if isinstance(start, str):
        raise ValueError(f"`start` is {start!r}; the only name it knows is 'random'.")
    given = start if isinstance(start, tuple) else (start, None)
    if len(given) != 2:
        raise ValueError(f"`start` has {len(given)} matrices; pass (samples, features) or one.")
    names = ("samples", "features")
    plain = l1 or [norm_matrix(side.full, "l1") for side in sides]
    return Metrics(
        *(
            normalize(distances)[0] if matrix is None else _check_start(matrix, side, name)
            for matrix, side, name, distances in zip(given, sides, names, plain, strict=True)
        )
    )


def _random_metric(k: int, rng: np.random.Generator) -> Matrix:
    """Distances between random points of a cube: a metric, generic in every entry."""
    points = rng.random((k, max(2, min(k, 10))))
    return normalize(np.abs(points[:, None] - points[None]).sum(axis=-1))[0]


def _check_start(matrix: Any, side: Side, name: str) -> Matrix:
    n = len(side.labels)
    try:
        matrix = np.array(matrix)
        matrix = matrix.astype(np.float64, casting="same_kind" if matrix.size else "unsafe")
    except (TypeError, ValueError) as problem:
        raise ValueError(f"`start` for {name} cannot be read as a matrix: {problem}.") from problem
    if matrix.shape != (n, n):
        raise ValueError(f"`start` for {name} has shape {matrix.shape}; there are {n} {name}.")
    if not np.isfinite(matrix).all() or (matrix < 0).any() or np.diagonal(matrix).any():
        raise ValueError(f"`start` for {name} must be finite, nonnegative, zero on the diagonal.")
    if (matrix != matrix.T).any():
        raise ValueError(f"`start` for {name} is not symmetric.")
    return normalize(matrix[np.ix_(side.first, side.first)])[0]


def _describe(value: Any) -> Any:
    """A solver (or one of its hyperparameters) as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    found = {"kind": f"{kind.__module__}.{kind.__qualname__}"}
    if is_dataclass(value):
        found |= {part.name: _describe(getattr(value, part.name)) for part in fields(value)}
    return found


def _check_restart(restart: float, tau: float, solver: str | Solver[Any]) -> None:
    if not 0.0 <= restart < 1.0:
        raise ValueError(f"`restart` is {restart}; it must be at least 0 and below 1.")
    if restart > 0.0 and tau not in (0.0, DEFAULT_TAU):
        raise ValueError(
            f"`restart` is {restart} and `tau` is {tau}; both say how much the norm counts. "
            "Pass one of them."
        )
    if restart > 0.0 and (solver == "stochastic" or isinstance(solver, StochasticIteration)):
        raise ValueError(
            "`restart` needs the largest of all distances in each step, and stochastic iteration "
            "looks at a part of them. Pass `tau`, or another `solver`."
        )


def _rebuild_solver(told: Any) -> Any:
    """The solver that ``_describe`` told of, if it is one of ours."""
    if not isinstance(told, dict):
        return told
    kinds = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in SOLVERS.values()}
    kind = kinds.get(told["kind"])
    if kind is None:
        raise CheckpointError(
            f"The checkpoint was made with {told['kind']}, which cannot be stored. Go on with "
            "learn(X, ..., checkpoint=...), as it was begun."
        )
    return kind(**{name: _rebuild_solver(part) for name, part in told.items() if name != "kind"})


def _is_accelerated(solver: str | Solver[Any]) -> bool:
    """Whether a solver, as far as its name tells, keeps a history of metrics."""
    return not (
        solver in ("power", "stochastic")
        or isinstance(solver, PowerIteration | StochasticIteration)
    )


def _check_client(client: Any, eps: float, tau: float, device: str) -> None:
    if client is None:
        return
    if client != "local" and not hasattr(client, "submit"):
        raise ValueError(f"`client` is {client!r}; pass a `distributed.Client`, or 'local'.")
    if device != "cpu":
        raise ValueError(f"`client` and device {device!r} exclude each other: leave one out.")
    if eps == math.inf:
        raise ValueError("`client` is of no use at eps = inf, a product of matrices: leave it out.")
    if eps == 0.0 and tau == 0.0:
        raise ValueError("`client` needs tau > 0 at eps = 0: uniqueness is decided on one machine.")
