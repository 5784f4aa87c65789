"""Parts of a problem, solved with the options of the whole, by maps that take the time."""

from __future__ import annotations

import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.problem import Problem
from cometric.core.types import Index, Matrix, Vector
from cometric.machine.threads import workers
from cometric.maps.coupled import norm_matrices
from cometric.maps.entropic import EntropicMap
from cometric.maps.entropic_torch import TensorEntropicMap
from cometric.maps.exact import REPLAYED, ExactMap, FrozenMap, ReplayedMap
from cometric.maps.limit import LimitMap
from cometric.maps.regularized import norm_name
from cometric.running.run import INNER, Run
from cometric.running.start import starting_metrics
from cometric.solvers.loop import Solution

Lifts = tuple[Any, Any]
"""The maps to samples and to features."""

clock = time.perf_counter


class Stopwatch:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = clock()
        try:
            yield
        finally:
            self.spent[name] += clock() - began


class TimedExact(ExactMap):
    """Tells a stopwatch how long it took, by the side it lifts to; counts the moves it wrote."""

    watch: Stopwatch
    side: str
    moves_written = 0

    def _solve_all(self, cost: Matrix) -> Any:
        with self.watch(self.side):
            return super()._solve_all(cost)

    def _renew(self, batch: Any, cost: Matrix) -> Vector:
        with self.watch(self.side):
            return super()._renew(batch, cost)

    def couplings(self) -> Any:
        with self.watch(f"frozen {self.side}"):
            frozen = super().couplings()
        if isinstance(frozen, FrozenMap):
            self.moves_written = len(frozen._cells)
        return TimedFrozen(frozen, self.watch, self.side)


class TimedFrozen:
    """Frozen couplings, timed."""

    homogeneous = True
    monotone = True

    def __init__(self, phi: FrozenMap | ReplayedMap, watch: Stopwatch, side: str) -> None:
        self.phi, self.watch, self.side, self.shape = phi, watch, side, phi.shape

    def __call__(self, cost: Matrix) -> Matrix:
        with self.watch(f"frozen {self.side}"):
            return self.phi(cost)

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        return self.phi.pairs(cost, index)


class TimedEntropic(EntropicMap):
    """Tells a stopwatch how long it took, by the side it lifts to."""

    watch: Stopwatch
    side: str

    def __call__(self, cost: Matrix) -> Matrix:
        with self.watch(self.side):
            return super().__call__(cost)

    def _renew(self, *args: Any) -> Vector:
        with self.watch(self.side):
            return super()._renew(*args)


class TimedLimit(LimitMap):
    """The same for the linear limit."""

    watch: Stopwatch
    side: str

    def __call__(self, cost: Matrix) -> Matrix:
        with self.watch(self.side):
            return super().__call__(cost)


class TimedTensor(TensorEntropicMap):
    """The same on a device, which is waited for."""

    watch: Stopwatch
    side: str

    def __call__(self, cost: Any) -> Any:
        import torch

        with self.watch(self.side):
            distances = super().__call__(cost)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return distances


class Course(NamedTuple):
    """How the solve of a part went: seconds by what they were spent on, per iteration.

    The last row is what belongs to no iteration.
    """

    problem: Problem
    iterations: int
    moves: float  # written out, as a share of the most that there could be; 1 if none were
    samples: Vector
    features: Vector
    frozen_samples: Vector
    frozen_features: Vector
    rest: Vector

    @property
    def seconds(self) -> float:
        return float(sum(column.sum() for column in self[3:]))

    def shortened(self, others: list[Course]) -> Course:
        """The same with the shortest times of any of these, which did the same."""
        columns = zip(*(course[3:] for course in (self, *others)), strict=True)
        return Course(*self[:3], *map(np.minimum.reduce, columns))


@dataclass(frozen=True)
class Rehearsal(Run):
    """A run on maps that take the time."""

    def play(self, lifts: Lifts) -> Course:
        """Solve with these maps and say what took how long in each iteration."""
        watch = Stopwatch()
        for lift, side in zip(lifts, ("samples", "features"), strict=True):
            lift.watch, lift.side = watch, side
        rows: list[dict[str, float]] = []
        began = clock()

        def note(*_: Any) -> None:
            if self.callback is not None:
                self.callback(*_)
            rows.append({**watch.spent, "all": clock() - began})

        with workers(self.n_threads):
            solution = replace(self, callback=note)._by(lifts)
        rows.append({**watch.spent, "all": clock() - began})
        return _course(self.problem, len(solution.history), _share_of_moves(lifts), rows)

    def _by(self, lifts: Lifts) -> Solution:
        if self.device != "cpu":
            return self._on_device(*lifts)[0]
        if self.eps == 0.0:
            return self._exact(*lifts)[0]
        return (self._limit if self.eps == math.inf else self._entropic)(*lifts)[0]


def _share_of_moves(lifts: Lifts) -> float:
    """Moves of the last couplings, of as many as there are nodes in the trees; 1 without any."""
    written = sum(getattr(lift, "moves_written", 0) for lift in lifts)
    nodes = [lift.histograms.nnz * (lift.shape[0] - 1) for lift in lifts if written]
    return written / sum(nodes) if written else 1.0


def _course(
    problem: Problem, iterations: int, moves: float, rows: list[dict[str, float]]
) -> Course:
    names = ("samples", "features", "frozen samples", "frozen features")
    spent = [np.diff([row.get(name, 0.0) for row in rows], prepend=0.0) for name in names]
    whole = np.diff([row["all"] for row in rows], prepend=0.0)
    a, b, c, d = spent
    return Course(problem, iterations, moves, a, b, c, d, whole - (a + b + c + d))


def rehearse(
    run: Run, lifts: Lifts, count: tuple[int, int], seed: int, note: Callable[..., None]
) -> Course:
    """The course of a part of ``run`` with ``count`` samples and features, drawn at random.

    ``lifts`` are the maps of the whole: those of the part store what they store. ``note`` is
    called after each iteration.
    """
    problem, norm = take_part(run.problem, run.norm, count, seed)
    norms = norm_matrices(problem, norm)
    known = norms if norm_name(norm) == "l1" else None
    part = Rehearsal(
        **{name: getattr(run, name) for name in Run.__dataclass_fields__}
        | {
            "problem": problem,
            "norms": norms,
            "norm": norm,
            "begin": starting_metrics(problem, None, None, known),
            "callback": note,
        }
    )
    sides = problem.samples, problem.features
    one, other = (timed(run, side.hist, lift) for side, lift in zip(sides, lifts, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a part that is not what the whole is
        return part.play((one, other))


def take_part(
    problem: Problem, norm: Any, count: tuple[int, int], seed: int
) -> tuple[Problem, Any]:
    """Some samples and features of a problem, as a problem, and R between them."""
    sides = problem.samples, problem.features
    rng = np.random.default_rng(seed)
    rows, columns = (
        np.sort(rng.permutation(side.hist.shape[0])[:k])
        for side, k in zip(sides, count, strict=True)
    )
    while True:  # an item may have had its mass on others only
        A = sides[0].hist[rows][:, columns]
        B = sides[1].hist[columns][:, rows]
        filled = np.diff(A.indptr) > 0, np.diff(B.indptr) > 0
        if all(map(np.all, filled)):
            break
        rows, columns = rows[filled[0]], columns[filled[1]]
    if isinstance(norm, tuple | list):
        norm = tuple(
            side.reduce(np.asarray(given))[np.ix_(chosen, chosen)]
            for side, given, chosen in zip(sides, norm, (rows, columns), strict=True)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # items that differ in the whole may be alike in a part
        return Problem.from_data((_histograms(A), _histograms(B))), norm


def _histograms(matrix: sparse.csr_array) -> sparse.csr_array:
    return sparse.csr_array(matrix.multiply(1.0 / matrix.sum(axis=1)[:, None]))


def timed(run: Run, hist: sparse.csr_array, lift: Any) -> Any:
    """A timed map of some histograms that stores what the map of all of them does."""
    if isinstance(lift, LimitMap):
        return TimedLimit(hist)
    if isinstance(lift, ExactMap):
        trees, moves = ExactMap(hist, memory_limit=math.inf).memory
        if not lift.keeps_trees:
            limit = 0
        elif lift.kept < sum(lift.memory):
            limit = REPLAYED * trees if lift.has_room_to_freeze else trees
        else:
            limit = trees + moves
        return TimedExact(hist, n_threads=run.n_threads, memory_limit=limit)
    options: dict[str, Any] = {"sweeps": run.sweeps, "tol": INNER * math.sqrt(run.tol)}
    if isinstance(lift, TensorEntropicMap):
        tensors = TimedTensor(hist, run.eps, device=run.device, **options)
        tensors.precision = lift.precision
        return tensors
    small = TimedEntropic(hist, run.eps, dtype=run.dtype, n_threads=run.n_threads, **options)
    small.stored = lift.stored
    return small
