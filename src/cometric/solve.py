"""The one loop, and ``learn``, the front door."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.certificate import uniqueness
from cometric.cones import normalize
from cometric.maps.coupled import exact_lifts, norm_matrices, regularize
from cometric.maps.exact import ExactMap
from cometric.maps.regularized import norm_matrix, norm_name
from cometric.problem import Problem, Side
from cometric.progress import Bar
from cometric.result import Parameters, Record, Result
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.policy import PolicyIteration
from cometric.solvers.power import PowerIteration
from cometric.types import Coupled, Iterate, Matrix, Metrics, Solver, State, Status

SOLVERS: dict[str, Callable[[], Solver[Any]]] = {
    "anderson": AndersonIteration,
    "policy": PolicyIteration,
    "power": PowerIteration,
}

CONTINUATION = (1e-1, 1e-2, 1e-3, 1e-4)
"""Values of tau on the way to tau = 0."""

BOUNDARY_LEVEL = 1e-13
"""Distances below this fraction of the largest count as zero."""

REMEDIES = {
    Status.MAX_ITER: "Raise `max_iter` or `tau`.",
    Status.NON_UNIQUE: "Pass `tau` > 0, which makes the answer unique.",
    Status.BOUNDARY: "Pass `tau` > 0, which keeps all distances positive.",
}

Callback = Callable[[Iterate, Record], None]


class ConvergenceWarning(UserWarning):
    """The result is the best that was reached, not what was asked for."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a solve; ``result`` is what had been reached, marked as interrupted."""

    result: Result


class Solution(NamedTuple):
    """The last iterate, how the loop ended, and its history."""

    iterate: Iterate
    status: Status
    history: list[Record]


def solve(
    phi: Coupled,
    solver: Solver[State],
    start: Metrics,
    *,
    tol: float,
    max_iter: int,
    progress: bool = False,
    callback: Callback | None = None,
    spent: tuple[int, float] = (0, 0.0),
) -> Solution:
    """Step until the Hilbert residual is at most ``tol``.

    Ctrl-C ends the loop with status ``INTERRUPTED``; the iterate is then the last complete
    one. Distances that fall below ``BOUNDARY_LEVEL`` end it with ``BOUNDARY``. ``spent`` are
    the sweeps and seconds that earlier stages took, for the history.
    """
    history: list[Record] = []
    began = time.perf_counter() - spent[1]
    now = replace(solver.init(phi, start), sweeps=spent[0])
    status = Status.MAX_ITER
    bar = Bar(progress, tol)
    try:
        with bar.watching(phi):
            for iteration in range(1, max_iter + 1):
                now = solver.step(phi, now)
                seconds = time.perf_counter() - began
                history.append(Record(iteration, now.residual, *now.values, now.sweeps, seconds))
                bar.update(now.residual, seconds)
                if callback is not None:
                    callback(now, history[-1])
                if now.residual <= tol:
                    status = Status.CONVERGED
                    break
                if _touches_boundary(now.metrics):
                    status = Status.BOUNDARY
                    break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return Solution(now, status, history)


def _touches_boundary(metrics: Metrics) -> bool:
    return any(
        metric[np.triu_indices(len(metric), 1)].min() < BOUNDARY_LEVEL * metric.max()
        for metric in metrics
    )


def learn(
    X: Any,
    eps: float = 0.1,
    tau: float = 1e-3,
    *,
    norm: Any = "l1",
    solver: str | Solver[Any] = "auto",
    tol: float = 1e-6,
    max_iter: int = 1000,
    start: Any = None,
    random_state: int | None = None,
    n_threads: int | None = None,
    memory_limit: float | None = None,
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
        Entropic regularization relative to the largest cost; 0 is exact transport.
    tau
        Weight of the norm R. Positive values make the answer unique; 0 is allowed.
    norm
        R: "l1", "l2", "linf", a power p >= 1, "discrete", or two matrices (samples, features).
    solver
        "auto" (policy iteration), "policy", "power", or a solver of your own.
    tol, max_iter
        Stop when the Hilbert distance between an iterate and its image is at most ``tol``.
    start
        Where to begin: a distance matrix between samples, a pair (samples, features), "random"
        (seeded by ``random_state``), or None for the l1 distances between histograms.
    n_threads
        Threads to use; the answer is the same, bit by bit, for any number.
    memory_limit
        Bytes the stored trees and couplings may take (of both sides together); half of what
        is free by default. Where they do not fit, slower ways that do are taken.
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
    problem = Problem.from_data(
        X, normalization_steps=normalization_steps, smoothing=smoothing, drop_empty=drop_empty
    )
    lifts = exact_lifts(problem, n_threads=n_threads, memory_limit=memory_limit)
    chosen = _choose_solver(solver, lifts)
    norms = norm_matrices(problem, norm)
    begin = _start(problem, start, random_state)
    spent = (0, 0.0)
    if tau == 0.0 and isinstance(chosen, PolicyIteration):
        for weight in CONTINUATION:
            stage = solve(
                regularize(*lifts, weight, norms),
                chosen,
                begin,
                tol=max(tol, 1e-2 * weight),
                max_iter=max_iter,
                progress=progress,
                spent=spent,
            )
            begin, spent = stage.iterate.metrics, (stage.iterate.sweeps, stage.history[-1].seconds)
            if stage.status is Status.INTERRUPTED:
                break
    solution = solve(
        regularize(*lifts, tau, norms),
        chosen,
        begin,
        tol=tol,
        max_iter=max_iter,
        progress=progress,
        callback=callback,
        spent=spent,
    )
    if tau == 0.0:
        solution = solution._replace(status=_status_at_zero(problem, solution, lifts))
    name = norm_name(norm)
    result = Result(
        samples=problem.samples.expand(solution.iterate.metrics.samples),
        features=problem.features.expand(solution.iterate.metrics.features),
        values=solution.iterate.values,
        status=solution.status,
        history=solution.history,
        bracket=solution.iterate.bracket,
        parameters=Parameters(eps, tau, name, type(chosen).__name__, tol, max_iter),
        problem=problem,
        norms=(np.asarray(norm[0]), np.asarray(norm[1])) if name == "matrix" else None,
    )
    if result.status is Status.INTERRUPTED:
        interruption = Interrupted("interrupted; what was reached is in `.result`")
        interruption.result = result
        raise interruption
    if not result.converged:
        warnings.warn(
            f"{result.status.value}. Residual {result.residual:.1e} after {result.iterations} "
            f"iterations, tolerance {tol:.0e}. {REMEDIES[result.status]}",
            ConvergenceWarning,
            stacklevel=2,
        )
    return result


def _status_at_zero(
    problem: Problem, solution: Solution, lifts: tuple[ExactMap, ExactMap]
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
        found = uniqueness(solution.iterate.metrics, *lifts)
        return Status.NON_UNIQUE if found.unique is False else Status.CONVERGED
    return solution.status


def warmup() -> float:
    """Compile every kernel (or load it from the cache) and return the seconds it took."""
    began = time.perf_counter()
    X = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 4.0]])
    for side in learn(X, eps=0.0, tau=0.1).problem.samples, Problem.from_data(X).features:
        phi = ExactMap(side.hist)
        cost = 1.0 - np.eye(3)
        phi.freeze(cost)(cost)
        phi.bounds(cost)
        cost[0, 1] = cost[1, 0] = 9.0  # no metric: the kernels take their other branch
        phi.plans(cost, np.array([[0, 1]]))
    return time.perf_counter() - began


def _start(problem: Problem, start: Any, random_state: int | None) -> Metrics:
    sides = (problem.samples, problem.features)
    if isinstance(start, str) and start == "random":
        rng = np.random.default_rng(random_state)
        return Metrics(*(_random_metric(side.hist.shape[0], rng) for side in sides))
    if isinstance(start, str):
        raise ValueError(f"`start` is {start!r}; the only name it knows is 'random'.")
    given = start if isinstance(start, tuple) else (start, None)
    return Metrics(
        *(
            normalize(norm_matrix(side.full, "l1"))[0]
            if matrix is None
            else _check_start(matrix, side, name)
            for matrix, side, name in zip(given, sides, ("samples", "features"), strict=True)
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


def _choose_solver(solver: str | Solver[Any], lifts: tuple[ExactMap, ExactMap]) -> Solver[Any]:
    if not isinstance(solver, str):
        return solver
    name = solver
    if solver == "auto":
        name = "policy" if all(lift.keeps_trees for lift in lifts) else "power"
    if name not in SOLVERS:
        raise ValueError(
            f"`solver` is {solver!r}; choose 'auto', {', '.join(map(repr, SOLVERS))}, "
            "or pass an instance."
        )
    return SOLVERS[name]()


def _check_options(eps: float, tau: float, tol: float, max_iter: int) -> None:
    for name, value in (("eps", eps), ("tau", tau), ("tol", tol)):
        if not value >= 0.0:
            raise ValueError(f"`{name}` is {value}; it must not be negative.")
    if not math.isfinite(tau):
        raise ValueError(f"`tau` is {tau}; it must be finite.")
    if max_iter < 1:
        raise ValueError(f"`max_iter` is {max_iter}; at least one iteration is needed.")
    if eps > 0.0:
        raise NotImplementedError(
            f"`eps` is {eps}: entropic transport is not in this version yet. "
            "Pass eps=0 for exact transport."
        )
