"""``learn``, the front door: from a matrix to a pair of metrics."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from cometric.arrays import to_numpy
from cometric.certificate import uniqueness
from cometric.cones import log_width, normalize, ratio_bounds
from cometric.maps.coupled import (
    entropic_lifts,
    exact_lifts,
    norm_matrices,
    regularize,
    tensor_lifts,
)
from cometric.maps.entropic import EntropicMap
from cometric.maps.entropic_torch import TensorEntropicMap, torch_device
from cometric.maps.exact import ExactMap, ReplayedMap
from cometric.maps.limit import LimitMap, correspondence
from cometric.maps.regularized import norm_matrix, norm_name
from cometric.maps.tiled import (
    TiledEntropicMap,
    TiledMap,
    tiled_entropic_lifts,
    tiled_lifts,
)
from cometric.problem import Problem, Side
from cometric.result import Parameters, Record, Result
from cometric.solve import NOTHING_YET, Callback, Solution, Spent, solve
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.policy import PolicyIteration
from cometric.solvers.power import PowerIteration
from cometric.solvers.stochastic import StochasticIteration
from cometric.types import Coupled, Iterate, Matrix, Metrics, Solver, Status

SOLVERS: dict[str, Callable[[], Solver[Any]]] = {
    "anderson": AndersonIteration,
    "policy": PolicyIteration,
    "power": PowerIteration,
    "stochastic": StochasticIteration,
}

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
    tau: float = 1e-3,
    *,
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
    normalization_steps: int = 1,
    smoothing: float = 0.0,
    drop_empty: bool = False,
) -> Result:
    """Learn a distance between the rows of ``X`` and one between its columns.

    With A the rows and B the columns of X, each divided by its sum, the metrics C (features)
    and D (samples) solve

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
    normalization_steps, smoothing, drop_empty
        How histograms are made, see :meth:`Problem.from_data`.

    Returns
    -------
    Result
        Not converged results come with a :class:`ConvergenceWarning`.
    """
    _check_options(eps, tau, tol, max_iter)
    _check_device(device, eps)
    _check_client(client, eps, tau, device)
    problem = Problem.from_data(
        X, normalization_steps=normalization_steps, smoothing=smoothing, drop_empty=drop_empty
    )
    norms = norm_matrices(problem, norm, None if device == "cpu" else torch_device(device))
    begin = _start(problem, start, random_state, norms if norm_name(norm) == "l1" else None)
    run = _Run(problem, tau, norms, begin, solver, tol, max_iter, progress, callback)
    inner = INNER * math.sqrt(tol)
    if client is not None:
        workers = None if client == "local" else client
        if eps == 0.0:
            solution, name = run.exact(*tiled_lifts(problem, workers))
        else:
            solution, name = run.entropic(
                *tiled_entropic_lifts(problem, eps, workers, sweeps=sweeps, tol=inner, dtype=dtype)
            )
    elif eps == 0.0:
        lifts = exact_lifts(problem, n_threads=n_threads, memory_limit=memory_limit)
        solution, name = run.exact(*lifts)
    elif eps == math.inf:
        solution, name = run.limit()
    elif device != "cpu":
        tensor_maps = tensor_lifts(
            problem,
            eps,
            device=device,
            sweeps=sweeps,
            tol=inner,
            memory_limit=memory_limit,
        )
        rough = "tf32" if all(lift.engine == "dense" for lift in tensor_maps) else "float32"
        for lift in tensor_maps:
            lift.precision = rough
        solution, name = run.on_device(*tensor_maps)
    else:
        maps = entropic_lifts(
            problem,
            eps,
            sweeps=sweeps,
            tol=inner,
            dtype=dtype,
            n_threads=n_threads,
            memory_limit=memory_limit,
        )
        solution, name = run.entropic(*maps)
    matrices = norm_name(norm) == "matrix"
    result = Result(
        samples=problem.samples.expand(solution.iterate.metrics.samples),
        features=problem.features.expand(solution.iterate.metrics.features),
        values=solution.iterate.values,
        status=solution.status,
        history=solution.history,
        bracket=solution.iterate.bracket,
        parameters=Parameters(eps, tau, norm_name(norm), name, tol, max_iter),
        problem=problem,
        norms=(problem.samples.expand(norms.samples), problem.features.expand(norms.features))
        if matrices
        else None,
    )
    if getattr(X, "is_cuda", False):
        result = replace(
            result,
            samples=_on(X.device, result.samples),
            features=_on(X.device, result.features),
        )
    if result.status is Status.INTERRUPTED:
        interruption = Interrupted("interrupted; what was reached is in `.result`")
        interruption.result = result
        raise interruption
    if not result.converged:
        warnings.warn(shortfall(result), ConvergenceWarning, stacklevel=2)
    return result


def shortfall(result: Result) -> str:
    """What kept a result from converging, and what to do about it."""
    return (
        f"{result.status.value}. Residual {result.residual:.1e} after {result.iterations} "
        f"iterations, tolerance {result.parameters.tol:.0e}. {REMEDIES[result.status]}"
    )


@dataclass(frozen=True)
class _Run:
    """One call of ``learn``, whatever the kind of transport."""

    problem: Problem
    tau: float
    norms: Metrics
    begin: Metrics
    solver: str | Solver[Any]
    tol: float
    max_iter: int
    progress: bool
    callback: Callback | None

    def exact(self, to_samples: Exact, to_features: Exact) -> tuple[Solution, str]:
        """Policy iteration by default; tau = 0 is approached from above."""
        fits = to_samples.keeps_trees and to_features.keeps_trees
        chosen = self._choose("policy" if fits else "power")
        begin, spent = self.begin, NOTHING_YET
        if self.tau == 0.0 and isinstance(chosen, PolicyIteration):
            for weight in CONTINUATION:
                phi = regularize(to_samples, to_features, weight, self.norms)
                stage = self._solve(phi, chosen, begin, spent, tol=max(self.tol, 1e-2 * weight))
                begin, spent = stage.iterate.metrics, stage.spent._replace(iterations=0)
                if stage.status is Status.INTERRUPTED:
                    return stage, type(chosen).__name__
        phi = regularize(to_samples, to_features, self.tau, self.norms)
        solution = self._solve(phi, chosen, begin, spent, callback=self.callback)
        solution = self._confirm(phi, chosen, solution)
        if self.tau == 0.0:
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
        phi = regularize(*lifts, self.tau, self.norms)

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
        phi = regularize(LimitMap(sides[0]), LimitMap(sides[1]), self.tau, self.norms)
        if self.tau > 0.0 or self.solver != "auto":
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
        return solve(
            phi,
            chosen,
            begin,
            tol=self.tol if tol is None else tol,
            max_iter=self.max_iter if max_iter is None else max_iter,
            progress=self.progress,
            callback=callback,
            spent=spent,
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
        name = default if self.solver == "auto" else self.solver
        if name not in SOLVERS:
            raise ValueError(
                f"`solver` is {self.solver!r}; choose 'auto', {', '.join(map(repr, SOLVERS))}, "
                "or pass an instance."
            )
        return SOLVERS[name]()


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
    matrix = np.array(matrix, dtype=np.float64)
    if matrix.shape != (n, n):
        raise ValueError(f"`start` for {name} has shape {matrix.shape}; there are {n} {name}.")
    if not np.isfinite(matrix).all() or (matrix < 0).any() or np.diagonal(matrix).any():
        raise ValueError(f"`start` for {name} must be finite, nonnegative, zero on the diagonal.")
    if (matrix != matrix.T).any():
        raise ValueError(f"`start` for {name} is not symmetric.")
    return normalize(matrix[np.ix_(side.first, side.first)])[0]


def _check_options(eps: float, tau: float, tol: float, max_iter: int) -> None:
    for name, value in (("eps", eps), ("tau", tau), ("tol", tol)):
        if not value >= 0.0:
            raise ValueError(f"`{name}` is {value}; it must not be negative.")
    if not math.isfinite(tau):
        raise ValueError(f"`tau` is {tau}; it must be finite.")
    if max_iter != int(max_iter) or max_iter < 1:
        raise ValueError(f"`max_iter` is {max_iter}; pass a whole number, at least 1.")


def _check_device(device: str, eps: float) -> None:
    if device == "cpu":
        return
    if not 0.0 < eps < math.inf:
        kind = "exact transport" if eps == 0.0 else "the linear limit"
        raise ValueError(
            f"`device` is {device!r}, but eps = {eps:g} means {kind}, which runs on the CPU: "
            "leave `device` out, or pass a positive, finite `eps`."
        )
    torch_device(device)


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
