"""How long a solve will take, from parts of it.

Two things are measured. A call of either map for some of its histograms gives the time of a call
for all of them: histograms and cost are those of the run, only pairs are fewer. And parts with
random samples and features, solved to the tolerance, give the number of iterations and how many
such calls each of them is worth: more where pairs need further sweeps, fewer where the simplex
starts from good trees, many where every pair is solved at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.histograms import Histograms
from cometric.core.problem import Side
from cometric.core.types import Matrix, Vector
from cometric.kernels import threads
from cometric.machine.devices import torch_device
from cometric.maps.exact import is_metric
from cometric.maps.norms import norm_matrix, norm_name
from cometric.running.rehearsal import Course, Stopwatch, TimedMap, clock, rehearse
from cometric.running.run import Run
from cometric.transports.base import Lifts

SHARE = 0.08
"""Of the time that a run is expected to take, what may be spent on finding out."""

SHORTEST, LONGEST = 5.0, 30.0
"""Seconds that may be spent, whatever the share."""

FIRST_WORK = 3e6
"""Cells (see ``work_of``) of a sweep of the first parts, done in a moment."""

PARTS = 2
"""Parts of a size; how far they differ says how uncertain the number of iterations is."""

FEWEST = 24
"""Items of a side that a part has at least, where there are as many."""

MORE = 1.1
"""Times as many iterations as its parts that the whole takes: more pairs have to agree."""

MARGIN = 1.3
"""Factor by which the ends of a range lie beyond what was measured."""

ON_DEVICES = 3.0
"""The same for seconds on a device, where small calls take as long as large ones."""

REPEAT_BELOW = 0.1
"""Seconds of a part below which it is solved again, three times at most: the minimum counts."""

PROBE = 0.1
"""Seconds of a call for some histograms that is long enough."""

MOST_BINS = 500
"""Items of a side between which norms are computed to time them, or to time a call with them."""


@dataclass(frozen=True)
class Estimate:
    """Seconds and iterations of a solve: at least, likely, at most."""

    seconds: tuple[float, float, float]
    iterations: tuple[int, int, int]
    moves: float  # of the couplings, as a share of the most there could be
    measured: str  # in words
    whole: bool = False


def estimate(run: Run, lifts: Lifts, note: Callable[..., None]) -> Estimate:
    """What ``run`` takes with these maps; larger and larger parts while it is worth the time."""
    began = clock()
    setup = sum(_norm_seconds(run, side) for side in (run.problem.samples, run.problem.features))
    sweeps = [_call_seconds(run, lifts, k) for k in range(2)]
    goal = FIRST_WORK
    while True:
        start = clock()
        found = _from_parts(run, lifts, setup, sweeps, goal, note)
        took = clock() - start
        budget = min(LONGEST, max(SHORTEST, SHARE * found.seconds[1]))
        growth = 0.9 * (budget - (clock() - began)) / took
        if found.whole or growth < 1.5:
            return found
        goal *= min(growth, 30.0)


def _from_parts(
    run: Run,
    lifts: Lifts,
    setup: float,
    sweeps: list[float],
    goal: float,
    note: Callable[..., None],
) -> Estimate:
    """The same from parts whose sweeps are ``goal`` cells, or from the whole, if it has no more."""
    n, m = run.problem.samples.hist.shape
    count = _count(run, lifts, goal)
    if count == (n, m):
        course = _shortest_course(run, lifts, count, 0, note)
        total, exactly = setup + course.seconds, course.iterations
        return Estimate(
            (total / MARGIN, total, total * MARGIN),
            (exactly, exactly, exactly),
            course.moves,
            "all of it",
            whole=True,
        )
    courses = [_shortest_course(run, lifts, count, seed, note) for seed in range(PARTS)]
    margin = MARGIN if str(run.settings.device) == "cpu" else ON_DEVICES
    few, many = (pick(course.iterations for course in courses) for pick in (min, max))
    often = (
        max(1, math.floor(few / MARGIN)),
        min(round(MORE * math.sqrt(few * many)), int(run.settings.max_iter)),
        min(math.ceil(MORE * many * MARGIN), int(run.settings.max_iter)),
    )
    low, middle, high = (
        setup + float(np.mean([_seconds(run, lifts, course, sweeps, k) for course in courses]))
        for k in often
    )
    return Estimate(
        (low / margin, middle, high * margin),
        often,
        max(course.moves for course in courses),
        f"{PARTS} parts of {count[0]} x {count[1]}, solved in {few} and {many} iterations",
    )


def _count(run: Run, lifts: Lifts, goal: float) -> tuple[int, int]:
    """Samples and features of a part with at most so many cells.

    The longer side is cut first: what a short one consists of would be lost in a part of it.
    """
    n, m = run.problem.samples.hist.shape
    most = max(n, m)
    while _part_work(run, lifts, (min(n, most), min(m, most))) > goal and most > FEWEST:
        most = max(FEWEST, int(0.95 * most))
    return min(n, most), min(m, most)


def _shortest_course(
    run: Run, lifts: Lifts, count: tuple[int, int], seed: int, note: Callable[..., None]
) -> Course:
    """The course of a part, each time the shortest of some tries.

    Tries differ in nothing but what else the machine was doing.
    """
    tries: list[Course] = []
    while len(tries) < 3 and sum(course.seconds for course in tries) < REPEAT_BELOW:
        tries.append(rehearse(run, lifts, count, seed, note))
    return tries[0].shortened(tries[1:])


def _seconds(run: Run, lifts: Lifts, course: Course, sweeps: list[float], iterations: int) -> float:
    """Seconds of the whole in so many iterations, if it goes as the part went."""
    total, part, whole = 0.0, 0.0, 0.0
    for name, lift, sweep in zip(("samples", "features"), lifts, sweeps, strict=True):
        hist, own = (getattr(problem, name).hist for problem in (run.problem, course.problem))
        calls = getattr(course, name)
        if calls.any():  # the closed form calls no map
            unit = calls[0] if run.settings.transport.freezes else calls[calls > 0].min()
            total += sweep * _sum(calls / unit, iterations)
        frozen = getattr(course, f"frozen_{name}")
        total += _nodes(hist) / _nodes(own) * _sum(frozen, iterations)
        part, whole = part + own.shape[0] ** 2, whole + hist.shape[0] ** 2
    return total + whole / part * _sum(course.rest, iterations)


def _sum(per_iteration: Vector, iterations: int) -> float:
    """The sum over so many iterations, and what belongs to none of them (the last entry)."""
    inner = per_iteration[1:-1]
    typical = float(np.median(inner)) if len(inner) else 0.0
    return max(0.0, float(per_iteration.sum()) + typical * (iterations + 1 - len(per_iteration)))


# Calls of maps


def _call_seconds(run: Run, lifts: Lifts, k: int) -> float:
    """Seconds of a call of the k-th map for all its histograms, from calls for some of them.

    Of the simplex it is the first call, which has no trees to start from; of Sinkhorn a sweep.
    """
    lift = lifts[k]
    sides = run.problem.samples, run.problem.features
    exact = run.settings.transport.freezes
    hist, cost = sides[k].histograms, _some_cost(sides[1 - k], exact)
    order = np.random.default_rng(0).permutation(hist.shape[0])
    check = _metric_check(cost, lift.threads) if exact else 0.0
    count = FEWEST
    while True:
        part = hist.take(np.sort(order[:count]))
        spent = _call(run, part, lift, cost)
        if spent > PROBE or count >= hist.shape[0]:
            growth = work_of(run, lift, hist) / work_of(run, lift, part)
            return check + max(0.0, spent - check) * growth
        count *= 3


def _some_cost(bins: Side, exact: bool) -> Matrix:
    """A cost to time a call with: the l1 distances, where they matter or take no time."""
    d = bins.hist.shape[0]
    if exact or d <= MOST_BINS:
        cost = norm_matrix(bins.full_histograms, "l1")
    else:  # Sinkhorn takes the same time for any cost
        cost = np.random.default_rng(0).uniform(0.5, 1.0, (d, d))
        cost = np.triu(cost, 1) + np.triu(cost, 1).T
    cost /= cost.max()
    return cost


def _call(run: Run, hist: Histograms, lift: Any, cost: Matrix) -> float:
    """Seconds of a call for these histograms, the least of a few."""
    transport, resources = run.settings.transport, run.settings.resources()
    watch = Stopwatch()
    spent: list[float] = []
    phi = None
    while len(spent) < 3 and sum(spent) < PROBE:
        if phi is None or transport.freezes:  # the simplex would remember
            phi = TimedMap(transport.part_of(lift, hist, resources), watch, "probe")
            if not transport.freezes:
                phi(cost)  # where its scalings begin
        before = watch.spent["probe"]
        phi(cost)
        spent.append(watch.spent["probe"] - before)
    return min(spent)


def _metric_check(cost: Matrix, count: int) -> float:
    """Seconds in which an exact map sees whether a cost is a metric."""
    with threads(count):
        began = clock()
        is_metric(cost)
        return clock() - began


def _norm_seconds(run: Run, side: Side) -> float:
    """Seconds for R between all items of a side, and for the l1 distances to start from."""
    part, norm = side.full_histograms.take(slice(MOST_BINS)), run.settings.norm
    device = None if str(run.settings.device) == "cpu" else torch_device(run.settings.device)
    began = clock()
    if norm_name(norm) != "matrix":
        norm_matrix(part, norm, device)
    if norm_name(norm) != "l1":
        norm_matrix(part, "l1")
    return (clock() - began) * _nodes(side.full) / _nodes(part.rows)


# How the time of calls grows


def work_of(run: Run, lift: Any, hist: Histograms) -> float:
    """What a call of such a map takes for these histograms, in cells of Sinkhorn problems."""
    sizes = np.diff(hist.rows.indptr).astype(float)
    moments = float(sizes.mean()), float((sizes**2).mean())
    return float(run.settings.transport.work(lift, *hist.shape, *moments))


def _part_work(run: Run, lifts: Lifts, count: tuple[int, int]) -> float:
    """What a call of each map takes for a part with so many samples and features."""
    total = 0.0
    sides = run.problem.samples, run.problem.features
    for lift, side, (n, d) in zip(lifts, sides, (count, count[::-1]), strict=True):
        sizes = np.diff(side.hist.indptr) * (d / side.hist.shape[1])
        moments = float(sizes.mean()), float((sizes**2).mean())
        total += run.settings.transport.work(lift, n, d, *moments)
    return total


def _nodes(hist: sparse.csr_array) -> float:
    """Bins of the histograms of all pairs: what frozen couplings and norms go through."""
    return float(hist.nnz * max(1, hist.shape[0] - 1))
