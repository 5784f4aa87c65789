"""The one loop, and ``learn``, the front door."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cometric.cones import normalize
from cometric.maps.exact import ExactMap
from cometric.maps.regularized import Regularized, norm_matrix
from cometric.problem import Problem, Side
from cometric.result import Parameters, Record, Result
from cometric.solvers.power import PowerIteration
from cometric.types import Coupled, DistanceMap, Iterate, Matrix, Metrics, Solver, Status

SOLVERS: dict[str, Callable[[], Solver]] = {"power": PowerIteration}

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
    solver: Solver,
    start: Metrics,
    *,
    tol: float,
    max_iter: int,
    progress: bool = False,
    callback: Callback | None = None,
) -> Solution:
    """Step until the Hilbert residual is at most ``tol``.

    Ctrl-C ends the loop between two blocks of work with status ``INTERRUPTED``; the iterate
    is then the last complete one.
    """
    history: list[Record] = []
    began = time.perf_counter()
    now = solver.init(phi, start)
    status = Status.MAX_ITER
    bar = _Bar(progress, tol, max_iter)
    try:
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
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    finally:
        bar.close()
    return Solution(now, status, history)


class _Bar:
    """A progress bar that knows linear convergence: the time left follows from the rate."""

    def __init__(self, show: bool, tol: float, max_iter: int) -> None:
        self._tol = tol
        self._recent = deque[tuple[float, float]](maxlen=4)  # residual, seconds
        self._bar: Any = None
        if show:
            from tqdm.auto import tqdm

            layout = "{desc}: {n_fmt} iterations [{elapsed}{postfix}]"
            self._bar = tqdm(desc="learning", total=max_iter, bar_format=layout, delay=0.5)

    def update(self, residual: float, seconds: float) -> None:
        if self._bar is None:
            return
        self._recent.append((residual, seconds))
        left = self._seconds_left()
        words = f"residual {residual:.1e}" + ("" if left is None else f", about {left:.0f} s left")
        self._bar.set_postfix_str(words, refresh=False)
        self._bar.update()

    def _seconds_left(self) -> float | None:
        (first, since), (last, now) = self._recent[0], self._recent[-1]
        if not 0.0 < last < first < math.inf:
            return None
        decades_to_go, decades_gone = math.log(last / self._tol), math.log(first / last)
        return max(0.0, decades_to_go / decades_gone * (now - since))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def learn(
    X: Any,
    eps: float = 0.1,
    tau: float = 1e-3,
    *,
    norm: Any = "l1",
    solver: str | Solver = "auto",
    tol: float = 1e-6,
    max_iter: int = 1000,
    start: Any = None,
    random_state: int | None = None,
    n_threads: int | None = None,
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
        "auto", "power", or a solver of your own.
    tol, max_iter
        Stop when the Hilbert distance between an iterate and its image is at most ``tol``.
    start
        Where to begin: a distance matrix between samples, a pair (samples, features), "random"
        (seeded by ``random_state``), or None for the l1 distances between histograms.
    n_threads
        Threads to use; the answer is the same, bit by bit, for any number.
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
    chosen = _choose_solver(solver)
    phi = build_maps(problem, tau=tau, norm=norm, n_threads=n_threads)
    begin = _start(problem, start, random_state)
    solution = solve(
        phi, chosen, begin, tol=tol, max_iter=max_iter, progress=progress, callback=callback
    )
    words = norm if isinstance(norm, str) else f"l{norm!s}" if np.isscalar(norm) else "matrix"
    asked = Parameters(eps, tau, words, type(chosen).__name__, tol, max_iter)
    result = _result(problem, solution, asked)
    if result.status is Status.INTERRUPTED:
        interruption = Interrupted("interrupted; what was reached is in `.result`")
        interruption.result = result
        raise interruption
    if not result.converged:
        warnings.warn(
            f"{result.status.value}. Residual {result.residual:.1e} after "
            f"{len(result.history)} iterations, tolerance {tol:.0e}: raise `max_iter` or `tau`.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return result


def warmup() -> float:
    """Compile every kernel (or load it from the cache) and return the seconds it took."""
    began = time.perf_counter()
    X = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 4.0]])
    for side in learn(X, eps=0.0, tau=0.1).problem.samples, Problem.from_data(X).features:
        phi = ExactMap(side.hist)
        cost = 1.0 - np.eye(3)
        phi.freeze(cost)(cost)
        phi.gaps(cost)
        cost[0, 1] = cost[1, 0] = 9.0  # no metric: the kernels take their other branch
        phi.plans(cost, np.array([[0, 1]]))
    return time.perf_counter() - began


def build_maps(
    problem: Problem, *, tau: float, norm: Any = "l1", n_threads: int | None = None
) -> Coupled:
    """The two exact lifts of a problem, regularized when ``tau`` > 0."""
    norms = norm if isinstance(norm, tuple) and len(norm) == 2 else (norm, norm)

    def lift(side: Side, norm: Any) -> DistanceMap:
        phi = ExactMap(side.hist, n_threads=n_threads)
        if tau == 0.0:
            return phi
        return Regularized(phi, tau, norm_matrix(side.full, _distinct(norm, side)))

    return Coupled(lift(problem.samples, norms[0]), lift(problem.features, norms[1]))


def _distinct(matrix: Any, side: Side) -> Any:
    """A user's matrix over all kept items, reduced to the distinct ones; anything else as is."""
    if not hasattr(matrix, "shape") or len(side.labels) == side.hist.shape[0]:
        return matrix
    return np.asarray(matrix)[np.ix_(side.first, side.first)]


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


def _choose_solver(solver: str | Solver) -> Solver:
    if not isinstance(solver, str):
        return solver
    name = "power" if solver == "auto" else solver
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


def _result(problem: Problem, solution: Solution, asked: Parameters) -> Result:
    iterate, status, history = solution
    return Result(
        samples=problem.samples.expand(iterate.metrics.samples),
        features=problem.features.expand(iterate.metrics.features),
        values=iterate.values,
        status=status,
        history=history,
        bracket=iterate.bracket,
        parameters=asked,
        problem=problem,
    )
