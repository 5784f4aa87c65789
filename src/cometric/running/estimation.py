"""Estimates of the time of a solve, measured on parts of the problem.

Two things are measured. Calls of both maps for some of the histograms give the time of a call for
all of them. Parts with random samples and features, solved to the tolerance, give the number of
iterations and the time of each, in units of such calls: more than one if pairs need more sweeps,
less than one if the simplex method starts from good trees, many if every pair is solved at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.histograms import Histograms
from cometric.core.sides import Side
from cometric.core.types import Matrix, Vector
from cometric.kernels import threads
from cometric.maps.exact_pairs import is_metric
from cometric.maps.norms import is_pair, norm_matrix, norm_name
from cometric.running.rehearsal import Course, Stopwatch, TimedMap, clock, rehearse
from cometric.running.run import Run
from cometric.transports.base import Lifts

SHARE = 0.08
"""Time of an estimate, as a fraction of the estimated time of the run."""

SHORTEST, LONGEST = 5.0, 30.0
"""Least and largest number of seconds of an estimate."""

FIRST_WORK = 3e6
"""Work (see ``work_of``) of a sweep of the first parts, which take less than a second."""

PARTS = 2
"""Number of parts of each size; their differences measure the uncertainty."""

FEWEST = 24
"""Least number of items of a side in a part, if there are as many."""

MORE = 1.1
"""Iterations of the whole problem relative to its parts: it has more pairs that must converge."""

MARGIN = 1.3
"""Factor by which a range extends beyond the measured values."""

ON_DEVICES = 3.0
"""The same for seconds on a device, where small calls may take as long as large ones."""

REPEAT_BELOW = 0.1
"""Parts that take fewer seconds are solved up to three times, for the shortest time."""

PROBE = 0.1
"""Seconds of a call for some histograms that are enough to measure its time."""

MOST_BINS = 500
"""Largest number of items between which norms are computed for an estimate."""


@dataclass(frozen=True)
class Estimate:
    """Seconds and iterations of a solve, each as (low, likely, high)."""

    seconds: tuple[float, float, float]
    iterations: tuple[int, int, int]
    moves: float  # of the couplings, relative to the largest possible number
    measured: str  # a description of what was solved
    whole: bool = False  # whether the whole problem was solved
    serial: float = 0.0  # likely seconds outside of the maps
    calls: float = 1.0  # of each map per iteration


def estimate(run: Run, lifts: Lifts, report: Callable[..., None]) -> Estimate:
    """Estimate the time of ``run`` with these maps, from larger and larger parts.

    ``report`` is called after each iteration of a part.
    """
    if run.problem.fixed:
        return _estimate_lift(run, lifts)
    began = clock()
    setup = sum(_norm_seconds(run, side) for side in (run.problem.samples, run.problem.features))
    sweeps = [_call_seconds(run, lifts, k) for k in range(2)]
    goal = FIRST_WORK
    while True:
        start = clock()
        result = _from_parts(run, lifts, setup, sweeps, goal, report)
        took = clock() - start
        budget = min(LONGEST, max(SHORTEST, SHARE * result.seconds[1]))
        growth = 0.9 * (budget - (clock() - began)) / took
        if result.whole or growth < 1.5:
            return result
        goal *= min(growth, 30.0)


def _estimate_lift(run: Run, lifts: Lifts) -> Estimate:
    """The time of computing one metric from the other, which is given: a single call."""
    of_samples = run.problem.fixed == "features"
    side, k = (run.problem.samples, 0) if of_samples else (run.problem.features, 1)
    setup = _norm_seconds(run, side) if run.problem.formula.has_norm else 0.0
    cost = run.problem.formula.saturated(run.start[1 - k])
    seconds = setup + _call_seconds(run, lifts, k, cost)
    margin = MARGIN if run.settings.torch_device is None else ON_DEVICES
    return Estimate(
        (seconds / margin, seconds, seconds * margin),
        (1, 1, 1),
        1.0,
        f"some of the distances between {'samples' if of_samples else 'features'}",
    )


def _from_parts(
    run: Run,
    lifts: Lifts,
    setup: float,
    sweeps: list[float],
    goal: float,
    report: Callable[..., None],
) -> Estimate:
    """The estimate from parts with sweeps of work ``goal``, or from the whole if it has no more."""
    n, m = run.problem.samples.hist.shape
    count = _count(run, lifts, goal)
    if count == (n, m):
        course = _shortest_course(run, lifts, count, 0, report)
        total, iterations = setup + course.seconds, course.iterations
        return Estimate(
            (total / MARGIN, total, total * MARGIN),
            (iterations, iterations, iterations),
            course.moves,
            "the whole problem",
            whole=True,
            serial=setup + float(course.rest.sum()),
            calls=course.calls / 2 / max(1, iterations),
        )
    courses = [_shortest_course(run, lifts, count, seed, report) for seed in range(PARTS)]
    margin = MARGIN if run.settings.torch_device is None else ON_DEVICES
    few, many = (pick(course.iterations for course in courses) for pick in (min, max))
    iterations_range = (
        max(1, math.floor(few / MARGIN)),
        min(round(MORE * math.sqrt(few * many)), int(run.settings.max_iter)),
        min(math.ceil(MORE * many * MARGIN), int(run.settings.max_iter)),
    )
    low, middle, high = (
        setup + float(np.mean([_seconds(run, course, sweeps, k) for course in courses]))
        for k in iterations_range
    )
    rest = [_rest_seconds(run, course, iterations_range[1]) for course in courses]
    return Estimate(
        (low / margin, middle, high * margin),
        iterations_range,
        max(course.moves for course in courses),
        f"{PARTS} parts of {count[0]} x {count[1]}, solved in {few} and {many} iterations",
        serial=setup + float(np.mean(rest)),
        calls=float(np.mean([course.calls / 2 / max(1, course.iterations) for course in courses])),
    )


def _count(run: Run, lifts: Lifts, goal: float) -> tuple[int, int]:
    """Numbers of samples and features of a part whose sweeps have at most work ``goal``.

    The longer side is reduced first: a part of a short side would lose its structure.
    """
    n, m = run.problem.samples.hist.shape
    limit = max(n, m)
    while _part_work(run, lifts, (min(n, limit), min(m, limit))) > goal and limit > FEWEST:
        limit = max(FEWEST, int(0.95 * limit))
    return min(n, limit), min(m, limit)


def _shortest_course(
    run: Run, lifts: Lifts, count: tuple[int, int], seed: int, report: Callable[..., None]
) -> Course:
    """The course of a part, with the shortest times of several runs.

    These differ only by the load of the machine.
    """
    tries: list[Course] = []
    while len(tries) < 3 and sum(course.seconds for course in tries) < REPEAT_BELOW:
        tries.append(rehearse(run, lifts, count, seed, report))
    return tries[0].shortened(tries[1:])


def _seconds(run: Run, course: Course, sweeps: list[float], iterations: int) -> float:
    """Seconds of this number of iterations of the whole, extrapolated from a part."""
    total = _rest_seconds(run, course, iterations)
    for name, sweep in zip(("samples", "features"), sweeps, strict=True):
        whole, part = (getattr(problem, name).hist for problem in (run.problem, course.problem))
        calls = getattr(course, name)
        if calls.any():  # the closed form calls no map
            unit = calls[0] if run.settings.transport.freezes else calls[calls > 0].min()
            total += sweep * _sum(calls / unit, iterations)
        frozen = getattr(course, f"frozen_{name}")
        total += _nodes(whole) / _nodes(part) * _sum(frozen, iterations)
    return total


def _rest_seconds(run: Run, course: Course, iterations: int) -> float:
    """Seconds outside of the maps, which grow as the metrics."""
    whole, part = (
        sum(side.hist.shape[0] ** 2 for side in (problem.samples, problem.features))
        for problem in (run.problem, course.problem)
    )
    return float(whole / part) * _sum(course.rest, iterations)


def _sum(per_iteration: Vector, iterations: int) -> float:
    """The sum over this number of iterations, plus the last entry, which is outside of them."""
    inner = per_iteration[1:-1]
    typical = float(np.median(inner)) if len(inner) else 0.0
    return max(0.0, float(per_iteration.sum()) + typical * (iterations + 1 - len(per_iteration)))


# Calls of maps


def _call_seconds(run: Run, lifts: Lifts, k: int, cost: Matrix | None = None) -> float:
    """Seconds of a call of the k-th map for all its histograms, from calls for some of them.

    With the simplex method the first call, without trees to start from; with Sinkhorn a sweep, or
    a solve if the ``cost`` is given.
    """
    lift = lifts[k]
    sides = run.problem.samples, run.problem.features
    exact = run.settings.transport.freezes
    hist = sides[k].histograms
    cost = _some_cost(sides[1 - k], exact) if cost is None else cost
    order = np.random.default_rng(0).permutation(hist.shape[0])
    check = _metric_check(cost, lift.threads) if exact else 0.0
    count = FEWEST
    while True:
        part = hist.take(np.sort(order[:count]))
        seconds = _call(run, part, lift, cost)
        if seconds > PROBE or count >= hist.shape[0]:
            growth = work_of(run, lift, hist) / work_of(run, lift, part)
            return check + max(0.0, seconds - check) * growth
        count *= 3


def _some_cost(bins: Side, exact: bool) -> Matrix:
    """A cost for measuring a call: l1 distances, if the values matter or are fast to compute."""
    d = bins.hist.shape[0]
    if exact or d <= MOST_BINS:
        cost = norm_matrix(bins.full_histograms, "l1")
    else:  # Sinkhorn takes the same time for any cost
        cost = np.random.default_rng(0).uniform(0.5, 1.0, (d, d))
        cost = np.triu(cost, 1) + np.triu(cost, 1).T
    cost /= cost.max()
    return cost


def _call(run: Run, hist: Histograms, lift: Any, cost: Matrix) -> float:
    """Seconds of a call for these histograms, the shortest of a few."""
    transport, resources = run.settings.transport, run.settings.resources()
    watch = Stopwatch()
    spent: list[float] = []
    phi = None
    while len(spent) < 3 and sum(spent) < PROBE:
        if phi is None or transport.freezes:  # the simplex method would start from stored trees
            phi = TimedMap(transport.part_of(lift, hist, resources), watch, "probe")
            if not transport.freezes:
                phi(cost)  # the first call initializes the scalings
        before = watch.spent["probe"]
        phi(cost)
        spent.append(watch.spent["probe"] - before)
    return min(spent)


def _metric_check(cost: Matrix, count: int) -> float:
    """Seconds that an exact map takes to check whether a cost is a metric."""
    with threads(count):
        began = clock()
        is_metric(cost)
        return clock() - began


def _norm_seconds(run: Run, side: Side) -> float:
    """Seconds for R between all items of a side, and for l1 distances, where most runs start."""
    part, norm = side.full_histograms.take(slice(MOST_BINS)), run.settings.norm
    began = clock()
    for name in norm if is_pair(norm) else (norm,):
        if norm_name(name) != "matrix":
            norm_matrix(part, name, run.settings.torch_device)
    if norm_name(norm) != "l1":
        norm_matrix(part, "l1")
    return (clock() - began) * _nodes(side.full) / _nodes(part.rows)


# How the time of calls grows


def work_of(run: Run, lift: Any, hist: Histograms) -> float:
    """The time of a call of such a map for these histograms, in cells of Sinkhorn problems."""
    sizes = np.diff(hist.rows.indptr).astype(float)
    moments = float(sizes.mean()), float((sizes**2).mean())
    return float(run.settings.transport.work(lift, *hist.shape, *moments))


def _part_work(run: Run, lifts: Lifts, count: tuple[int, int]) -> float:
    """The work of a call of both maps for a part with these numbers of samples and features."""
    total = 0.0
    sides = run.problem.samples, run.problem.features
    for lift, side, (n, d) in zip(lifts, sides, (count, count[::-1]), strict=True):
        sizes = np.diff(side.hist.indptr) * (d / side.hist.shape[1])
        moments = float(sizes.mean()), float((sizes**2).mean())
        total += run.settings.transport.work(lift, n, d, *moments)
    return total


def _nodes(hist: sparse.csr_array) -> float:
    """Support sizes summed over all pairs: the work of frozen couplings and of norms."""
    return float(hist.nnz * max(1, hist.shape[0] - 1))
