"""Parts of a problem, solved with the options of the whole, and the time of each step."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.problem import Problem
from cometric.core.types import Index, Matrix, Vector, divide, freezable
from cometric.machine.progress import Bar
from cometric.machine.threads import workers
from cometric.running.run import Run
from cometric.transports.base import Lifts

SIDES = ("samples", "features")

LEAST = 8
"""Items of a side that a part has at least, if there are as many."""

clock = time.perf_counter


class Stopwatch:
    """Seconds spent, by name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.calls = 0  # of maps, frozen ones included

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = clock()
        try:
            yield
        finally:
            self.spent[name] += clock() - began


class TimedMap:
    """Any map, with the time of its calls recorded by a stopwatch under the name of its side.

    All other attributes are those of the map.
    """

    def __init__(self, phi: Any, watch: Stopwatch, side: str) -> None:
        vars(self).update(phi=phi, watch=watch, side=side, moves=0)

    @property
    def shape(self) -> tuple[int, int]:
        shape: tuple[int, int] = self.phi.shape
        return shape

    def __call__(self, cost: Matrix) -> Matrix:
        self.watch.calls += 1
        with self.watch(self.side):
            distances: Matrix = self.phi(cost)
            _wait_for(distances)
            return distances

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        with self.watch(self.side):
            distances: Vector = self.phi.pairs(cost, index)
            return distances

    def freeze(self, cost: Matrix) -> TimedMap:
        freezable(self.phi)
        self(cost)
        return self.couplings()

    def couplings(self) -> TimedMap:
        """The couplings optimal at the cost of the last call."""
        with self.watch(f"frozen {self.side}"):
            frozen = freezable(self.phi).couplings()
        vars(self)["moves"] = getattr(frozen, "moves", 0)
        return TimedMap(frozen, self.watch, f"frozen {self.side}")

    def divide(self, parts: Sequence[Index]) -> list[Callable[[Matrix], Vector]]:
        return [partial(self._renew, distances) for distances in divide(self.phi, parts)]

    def _renew(self, distances: Callable[[Matrix], Vector], cost: Matrix) -> Vector:
        with self.watch(self.side):
            return distances(cost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.phi, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.phi, name, value)


def _wait_for(distances: Any) -> None:
    """Wait until a device has computed the distances."""
    if getattr(distances, "is_cuda", False):
        import torch

        torch.cuda.synchronize(distances.device)


class Course(NamedTuple):
    """The solve of a part: seconds per iteration, by what they were spent on.

    The last entry of each vector is the time outside of iterations.
    """

    problem: Problem
    iterations: int
    moves: float  # of the couplings, relative to the largest possible number; 1 if none
    calls: int  # of both maps, frozen ones included
    samples: Vector
    features: Vector
    frozen_samples: Vector
    frozen_features: Vector
    rest: Vector

    @property
    def seconds(self) -> float:
        return float(sum(column.sum() for column in self._columns))

    @property
    def _columns(self) -> tuple[Vector, ...]:
        return self[4:]

    def shortened(self, others: list[Course]) -> Course:
        """The course with the shortest times of this and other solves of the same part."""
        columns = zip(*(course._columns for course in (self, *others)), strict=True)
        return Course(*self[:4], *map(np.minimum.reduce, columns))


def _timed_solve(run: Run, lifts: Lifts, report: Callable[..., None]) -> Course:
    """Solve with these maps, and measure the time of each iteration."""
    watch = Stopwatch()
    one, other = (TimedMap(lift, watch, side) for lift, side in zip(lifts, SIDES, strict=True))
    rows: list[dict[str, float]] = []
    began = clock()

    def count(*_: Any) -> None:
        report()
        rows.append({**watch.spent, "all": clock() - began})

    with workers(run.settings.n_threads):
        settings = replace(run.settings, callback=count)
        solution = replace(run, settings=settings).solve((one, other), Bar(show=False))
    rows.append({**watch.spent, "all": clock() - began})
    moves = _share_of_moves((one, other))
    return _course(run.problem, len(solution.history), moves, watch.calls, rows)


def _share_of_moves(lifts: Lifts) -> float:
    """Moves of the last couplings, relative to the nodes of the trees; 1 without couplings."""
    moves = sum(lift.moves for lift in lifts)
    nodes = [lift.histograms.nnz * (lift.shape[0] - 1) for lift in lifts if moves]
    return moves / sum(nodes) if moves else 1.0


def _course(
    problem: Problem, iterations: int, moves: float, calls: int, rows: list[dict[str, float]]
) -> Course:
    names = ("samples", "features", "frozen samples", "frozen features")
    spent = [np.diff([row.get(name, 0.0) for row in rows], prepend=0.0) for name in names]
    whole = np.diff([row["all"] for row in rows], prepend=0.0)
    a, b, c, d = spent
    return Course(problem, iterations, moves, calls, a, b, c, d, whole - (a + b + c + d))


def rehearse(
    run: Run, lifts: Lifts, count: tuple[int, int], seed: int, report: Callable[..., None]
) -> Course:
    """The course of a part of ``run`` with ``count`` samples and features, drawn at random.

    ``lifts`` are the maps of the whole: those of the part store as much per pair. ``report`` is
    called after each iteration.
    """
    problem, settings = take_part(run.problem, count, seed), run.settings
    part = Run.prepare(settings, problem)
    hists = problem.samples.histograms, problem.features.histograms
    one, other = (
        settings.transport.part_of(lift, hist, settings.resources())
        for lift, hist in zip(lifts, hists, strict=True)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about a part may not apply to the whole
        return _timed_solve(part, (one, other), report)


def take_part(problem: Problem, count: tuple[int, int], seed: int) -> Problem:
    """Random samples and features of a problem, with R between them if given as matrices.

    Those without mass on the others are left out. If the data are so sparse that hardly any are
    left, more than ``count`` are drawn.
    """
    sides, norm = (problem.samples, problem.features), problem.formula.norm
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(side.hist.shape[0]) for side in sides]
    n, m = count
    rows, columns = _with_mass(problem, orders[0][:n], orders[1][:m])
    while len(rows) < min(LEAST, len(orders[0])) or len(columns) < min(LEAST, len(orders[1])):
        n, m = 2 * n, 2 * m
        rows, columns = _with_mass(problem, orders[0][:n], orders[1][:m])
    A = sides[0].hist[rows][:, columns]
    B = sides[1].hist[columns][:, rows]
    if isinstance(norm, tuple | list):
        norm = tuple(
            side.reduce(np.asarray(R))[np.ix_(chosen, chosen)] if np.ndim(R) == 2 else R
            for side, R, chosen in zip(sides, norm, (rows, columns), strict=True)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # different items may be equal in a part
        return Problem.from_data(
            (_histograms(A), _histograms(B)), formula=replace(problem.formula, norm=norm)
        )


def _with_mass(problem: Problem, rows: Index, columns: Index) -> tuple[Index, Index]:
    """Those of some samples and features that have mass on one another, in their order."""
    rows, columns = np.sort(rows), np.sort(columns)
    while True:
        A = problem.samples.hist[rows][:, columns]
        B = problem.features.hist[columns][:, rows]
        filled = np.diff(A.indptr) > 0, np.diff(B.indptr) > 0
        if all(map(np.all, filled)):
            return rows, columns
        rows, columns = rows[filled[0]], columns[filled[1]]


def _histograms(matrix: sparse.csr_array) -> sparse.csr_array:
    return sparse.csr_array(matrix.multiply(1.0 / matrix.sum(axis=1)[:, None]))
