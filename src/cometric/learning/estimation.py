"""The time of a solve: two calls of each map on a sample, times a range of iterations.

Calls on a sample of the histograms are scaled to all of them by the model ``Transport.work``. The
number of calls is not measured: its ranges come from runs on many data sets
(``benchmarks/planning.py``), and are wide enough for most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cometric.core.histograms import Histograms
from cometric.core.types import Matrix
from cometric.learning.run import Run
from cometric.learning.settings import DEFAULT_TOL
from cometric.maps.norms import norm_for, norm_matrix
from cometric.transports.base import Lifts
from cometric.transports.exact import CONTINUATION

SIDES = ("samples", "features")

FEWEST, ENOUGH = 24, 0.1
"""Sample size of the first calls, and the seconds that a call must take to be measured."""

SAMPLE, GROWTH = 1000, (1.25, 1.75)
"""Number of items to time R with, and the range of exponents with which its time grows."""

RESTARTED, LIMIT, WEIGHTED, PLAIN, LARGE_TAU = (2, 10), (2, 6), (5, 20), (15, 50), 0.03
"""Iterations to a residual of 1e-3: with a restart; the same at infinite ``eps``; with ``tau`` of
at least ``LARGE_TAU``; with a smaller one."""

SOLVED, SOLVED_AT, MORE = (2.5, 8.0), 0.1, 1.4
"""Sweeps of the last iteration, which solves every pair, at this ``eps`` (more at smaller ones);
and the most sweeps of other iterations, where pairs with large errors get extra ones."""

COLD, CLOSED = (1.25, 6.0), (0.15, 0.8)
"""Ranges of time, in cold calls for all pairs: an exact solve, and the closed form."""

POLICY, POWER = (1, 5), (2, 10)
"""Iterations with exact transport."""

PASSES = 6.0
"""Time of a solver's step per entry of the metrics, in units of a logarithm."""

NOISE = 1.9
"""Factor by which measurements may differ on a busy machine."""


def estimate(run: Run, lifts: Lifts, solver: str, report: Callable[..., None]) -> dict[str, Any]:
    """The time fields of :class:`Plan` for these maps; empty if there is no model of their time.

    ``report`` is called after each measurement.
    """
    sides = (run.problem.samples, run.problem.features)
    known = solver in ("anderson", "policy", "power", "closed", "one")
    if not known or math.isnan(_work(run, lifts[0], sides[0].histograms)):
        return {}
    seconds, total, parts = np.zeros(2), 0.0, []
    for k in (k for k in range(2) if SIDES[k] != run.problem.fixed):
        seconds += _norm_seconds(run, k)
        call, count = _call_seconds(run, lifts[k], k, report)
        total += call
        parts.append(f"{count} of {sides[k].hist.shape[0]} {SIDES[k]}")
    iterations, calls = _range(run.settings, solver)
    entries = sum(side.hist.shape[0] ** 2 for side in sides) * (not run.problem.fixed)
    step = PASSES * _logarithm() * entries
    seconds += total * np.array(calls) + step * np.array(iterations)
    low, high = seconds.tolist()
    return {
        "total": math.sqrt(low * high),
        "total_range": (low, high),
        "iterations": iterations,
        "seconds": total,
        "measured": f"calls for {' and '.join(parts)}",
    }


def _range(settings: Any, solver: str) -> tuple[tuple[int, int], tuple[float, float]]:
    """Ranges of the number of iterations, and of the equivalent number of calls of both maps."""
    if solver in ("one", "closed"):
        return (1, 1), CLOSED if solver == "closed" else (1 / NOISE, NOISE)
    exact, eps = settings.transport.freezes, settings.transport.eps
    if exact:
        low, high = POLICY if solver == "policy" else POWER
    elif settings.restart > 0.0:
        low, high = RESTARTED if eps < math.inf else LIMIT
    else:
        low, high = WEIGHTED if settings.tau >= LARGE_TAU else PLAIN
    digits = math.log(max(settings.tol, 1e-16)) / math.log(DEFAULT_TOL)
    most = int(settings.max_iter)
    finer = max(1.0, digits)
    low, high = min(round(low * finer), most), min(math.ceil(high * finer), most)
    if exact:
        stages = 1 + len(CONTINUATION) * (solver == "policy" and settings.formula.is_plain)
        return (low, high), (stages * COLD[0], stages * COLD[1])
    if not 0.0 < eps < math.inf:
        return (low, high), (low, high * MORE)
    solved = max(1.0, SOLVED_AT / eps) / settings.sweeps
    return (low, high), (low + solved * SOLVED[0], high * MORE + solved * SOLVED[1])


def _call_seconds(run: Run, lift: Any, k: int, report: Callable[..., None]) -> tuple[float, int]:
    """Seconds of a call of the k-th map for all its histograms, and the size of the timed sample.

    For the simplex method, a call without starting trees; for Sinkhorn a sweep, or a solve if a
    metric is given.
    """
    hist = getattr(run.problem, SIDES[k]).histograms
    cost, order = _cost(run, 1 - k), np.random.default_rng(0).permutation(hist.shape[0])
    count = FEWEST
    while True:
        part = hist.take(np.sort(order[:count]))
        seconds = min(_two_calls(run, lift, part, cost))
        report()
        if seconds > ENOUGH or count >= len(order):
            growth = _work(run, lift, hist) / _work(run, lift, part)
            return seconds * growth, min(count, len(order))
        count *= 3


def _two_calls(run: Run, lift: Any, part: Histograms, cost: Matrix) -> list[float]:
    """Seconds of two calls for the histograms ``part``; ``lift`` is the map of all of them."""
    transport, resources = run.settings.transport, run.resources
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


def _cost(run: Run, k: int) -> Matrix:
    """A cost for timing: the given metric, l1 distances if values matter or are few, or random."""
    side = getattr(run.problem, SIDES[k])
    d = side.hist.shape[0]
    if run.problem.fixed:
        cost = run.problem.formula.saturated(run.start[k])
    elif run.settings.transport.freezes or d <= SAMPLE:
        cost = norm_matrix(side.full_histograms, "l1")
    else:  # a sweep takes the same time for any cost
        cost = np.random.default_rng(0).uniform(0.5, 1.0, (d, d))
        cost = np.maximum(cost, cost.T) * (1.0 - np.eye(d))
    scaled: Matrix = cost / cost.max()
    return scaled


def _work(run: Run, lift: Any, hist: Histograms) -> float:
    return float(run.settings.transport.work(lift, hist.rows))


def _norm_seconds(run: Run, k: int) -> tuple[float, float]:
    """Range of seconds to compute R and l1 distances between all items of a side."""
    hist = getattr(run.problem, SIDES[k]).full_histograms
    part, norm = hist.take(slice(SAMPLE)), norm_for(run.settings.norm, SIDES[k])
    began = time.perf_counter()
    norm_matrix(part, "l1", run.settings.torch_device)
    if run.problem.formula.has_norm and np.ndim(norm) != 2:
        norm_matrix(part, norm, run.settings.torch_device, SIDES[k])
    seconds, growth = time.perf_counter() - began, hist.shape[0] / part.shape[0]
    return seconds * growth ** GROWTH[0] / NOISE, seconds * growth ** GROWTH[1] * NOISE


def _logarithm() -> float:
    """Seconds of a logarithm in a large matrix."""
    matrix = np.full((SAMPLE, SAMPLE), 0.5)
    np.log(matrix)
    began = time.perf_counter()
    np.log(matrix)
    return (time.perf_counter() - began) / matrix.size
