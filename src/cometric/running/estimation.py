"""The time of a solve: two calls of each map for some histograms, times a range of iterations.

A call for some of the histograms gives the time of a call for all of them, by the model
``Transport.work``. How many calls a solve takes is not measured: ranges are those of runs on data
of all kinds (``benchmarks/planning.py``), wide enough for most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from cometric.core.histograms import Histograms
from cometric.core.sides import Side
from cometric.core.types import Matrix
from cometric.maps.norms import norm_for, norm_matrix, norm_name
from cometric.running.run import Run
from cometric.running.settings import DEFAULT_TOL
from cometric.transports.base import Lifts
from cometric.transports.exact import CONTINUATION

SIDES = ("samples", "features")

FEWEST, ENOUGH = 24, 0.1
"""Histograms of the first calls, and the seconds of a call that are enough to measure it."""

SAMPLE = 1000
"""Items between which R is computed. Of fewer it may take longer: other methods compute it."""

RESTARTED, WEIGHTED, PLAIN = (2, 10), (5, 20), (15, 50)
"""Iterations to a residual of 1e-3: with a share of R, with ``tau`` from ``LARGE_TAU`` on, and with
a smaller one, or none."""

LARGE_TAU = 0.03

SOLVED, SOLVED_AT = (2.0, 8.0), 0.1
"""Sweeps in the last iteration, where every pair is solved; in proportion more for smaller eps."""

MORE = 1.3
"""Sweeps of all pairs in an iteration at most: pairs with large errors get more than one."""

COLD, COLD_POWER = (1.5, 6.5), (1.3, 6.5)
"""Solves of all pairs without a start that a run of exact transport takes as long as, with policy
and with power iteration. They include frozen solves, and calls that start from trees."""

EXACT_ITERATIONS, POWER_ITERATIONS = (1, 5), (2, 10)

PASSES = 6.0
"""Time of a solver's step for an entry of the metrics, in logarithms."""

NOISE = 1.7
"""Factor by which two measurements of one thing may differ on a machine with other work."""


class Estimate(NamedTuple):
    """Seconds and iterations of a solve, each as (low, high), and the seconds of one call."""

    seconds: tuple[float, float]
    iterations: tuple[int, int]
    call: float
    measured: str  # a description of what was measured


def estimate(run: Run, lifts: Lifts, solver: str, report: Callable[..., None]) -> Estimate | None:
    """An estimate of the time of ``run`` with these maps; None where there is no model of it.

    ``report`` is called after each measurement.
    """
    settings, sides = run.settings, (run.problem.samples, run.problem.features)
    if math.isnan(_work(run, lifts[0], sides[0].histograms)):
        return None
    if solver not in ("anderson", "policy", "power", "closed", "one"):
        return None
    fixed = run.problem.fixed
    asked = [k for k in range(2) if SIDES[k] != fixed]
    low, high = np.sum([_norm_seconds(run, sides[k], SIDES[k]) for k in asked], axis=0)
    calls, counts = zip(*(_call_seconds(run, lifts, k, report) for k in asked), strict=True)
    parts = [
        f"{count} of {sides[k].hist.shape[0]} {SIDES[k]}"
        for count, k in zip(counts, asked, strict=True)
    ]
    iterations, work = _iterations(settings, solver), _calls(settings, solver)
    entries = sum(side.hist.shape[0] ** 2 for side in sides)
    step = PASSES * _logarithm() * entries * (not fixed)
    seconds = (
        low + sum(calls) * work[0] + step * iterations[0] / NOISE,
        high + sum(calls) * work[1] + step * iterations[1] * NOISE,
    )
    return Estimate(seconds, iterations, sum(calls), f"calls for {' and '.join(parts)}")


def _iterations(settings: Any, solver: str) -> tuple[int, int]:
    """Least and largest number of iterations."""
    if solver in ("one", "closed"):
        return 1, 1
    if settings.transport.freezes:
        low, high = EXACT_ITERATIONS if solver == "policy" else POWER_ITERATIONS
    elif settings.restart > 0.0:
        low, high = RESTARTED
    else:
        low, high = WEIGHTED if settings.tau >= LARGE_TAU else PLAIN
    digits = math.log(min(settings.tol, 0.1) + 1e-16) / math.log(DEFAULT_TOL)
    high = math.ceil(high * max(1.0, digits))
    return min(low, int(settings.max_iter)), min(high, int(settings.max_iter))


def _calls(settings: Any, solver: str) -> tuple[float, float]:
    """Least and largest time of a solve, in the measured calls of both maps."""
    if solver == "one":
        return 1.0 / NOISE, NOISE
    low, high = _iterations(settings, solver)
    if settings.transport.freezes:
        cold = COLD if solver == "policy" else COLD_POWER
        stages = 1 + len(CONTINUATION) * (solver == "policy" and settings.formula.is_plain)
        return stages * cold[0], stages * cold[1]
    if solver == "closed" or not 0.0 < settings.transport.eps < math.inf:
        return low / NOISE, high * MORE
    finer = max(1.0, SOLVED_AT / settings.transport.eps)
    sweeps = max(1, settings.sweeps)
    return low + SOLVED[0] * finer / sweeps, high * MORE + SOLVED[1] * finer / sweeps


def _call_seconds(run: Run, lifts: Lifts, k: int, report: Callable[..., None]) -> tuple[float, int]:
    """Seconds of a call of the k-th map for all its histograms, and for how many it was timed.

    With the simplex method the first call, without trees to start from; with Sinkhorn a sweep, or
    a solve if a metric is given.
    """
    sides, lift = (run.problem.samples, run.problem.features), lifts[k]
    hist, cost = sides[k].histograms, _cost(run, sides[1 - k], 1 - k)
    order = np.random.default_rng(0).permutation(hist.shape[0])
    count = min(FEWEST, hist.shape[0])
    while True:
        part = hist.take(np.sort(order[:count]))
        seconds = min(_two_calls(run, lift, part, cost))
        report()
        if seconds > ENOUGH or count == hist.shape[0]:
            return seconds * _work(run, lift, hist) / _work(run, lift, part), count
        count = min(3 * count, hist.shape[0])


def _two_calls(run: Run, lift: Any, part: Histograms, cost: Matrix) -> list[float]:
    """Seconds of two calls for some histograms, that of ``lift`` being the map of all."""
    transport, resources = run.settings.transport, run.settings.resources()
    resources = replace(resources, dtype=getattr(lift, "dtype", resources.dtype))
    if getattr(lift, "stored", cost) is None:  # scalings do not fit
        resources = replace(resources, memory_limit=0.0)
    phi, spent = transport.lift(part, resources), []
    if not transport.freezes and not run.problem.fixed:
        phi(cost)  # the first call computes the scalings to start from
    for _ in range(2):
        began = time.perf_counter()
        phi(cost)
        spent.append(time.perf_counter() - began)
        if transport.freezes:  # the next call would start from trees
            phi = transport.lift(part, resources)
    return spent


def _cost(run: Run, bins: Side, k: int) -> Matrix:
    """The metric given, or a cost to measure with: l1 distances, if values matter or are few."""
    if run.problem.fixed:
        cost = run.problem.formula.saturated(run.start[k])
    elif run.settings.transport.freezes or bins.hist.shape[0] <= SAMPLE:
        cost = norm_matrix(bins.full_histograms, "l1")
    else:  # a sweep takes the same time for any cost
        cost = np.random.default_rng(0).uniform(0.5, 1.0, (bins.hist.shape[0],) * 2)
        cost = np.maximum(cost, cost.T) * (1.0 - np.eye(len(cost)))
    scaled: Matrix = cost / cost.max()
    return scaled


def _work(run: Run, lift: Any, hist: Histograms) -> float:
    return float(run.settings.transport.work(lift, hist.rows))


def _norm_seconds(run: Run, side: Side, of: str) -> tuple[float, float]:
    """Least and largest seconds for R between all items of a side, and for l1 distances.

    From ``SAMPLE`` items on, they grow somewhat less or more than the number of items.
    """
    part, norm = side.full_histograms.take(slice(SAMPLE)), norm_for(run.settings.norm, of)
    began = time.perf_counter()
    for name in {norm_name(norm) if run.problem.formula.has_norm else "l1", "l1"} - {"matrix"}:
        norm_matrix(part, name, run.settings.torch_device, of)
    seconds, growth = time.perf_counter() - began, side.full.shape[0] / part.shape[0]
    return seconds * growth**0.5 / NOISE, seconds * growth**1.5 * NOISE


def _logarithm() -> float:
    """Seconds of a logarithm in a large matrix."""
    matrix = np.full((SAMPLE, SAMPLE), 0.5)
    np.log(matrix)
    began = time.perf_counter()
    np.log(matrix)
    return (time.perf_counter() - began) / matrix.size
