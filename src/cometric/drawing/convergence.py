"""The convergence plot of the report: coordinates of points, levels and ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT = 560.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 40.0
LEAST = 2.0**-52
"""Residuals of 0, which have no logarithm, are replaced by this."""


def convergence(records: Sequence[tuple[int, float, float]], tol: float) -> dict[str, Any] | None:
    """Coordinates of the residuals in the convergence plot, or None if there are too few.

    A record is an iteration, its residual and the seconds until then.
    """
    if len(records) < 2:
        return None
    logs = [math.log10(max(residual, LEAST)) for _, residual, _ in records]
    shown = [*logs, math.log10(tol)] if tol > 0 else logs
    low, high = math.floor(min(shown)), math.ceil(max(shown))
    high = max(high, low + 1)
    first, last = records[0][0], records[-1][0]

    def across(iteration: float) -> float:
        share = (iteration - first) / max(1, last - first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def down(log: float) -> float:
        return round(TOP + (high - log) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    every = max(1, math.ceil((high - low) / 5))
    step = _round_step((last - first) / 6)
    ticks = range(-(-first // step) * step, last + 1, step)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "bottom": HEIGHT - BOTTOM,
        "points": [
            {
                "x": across(iteration),
                "y": down(log),
                "text": f"iteration {iteration}: {residual:.1e}, after {seconds:.3g} s",
            }
            for (iteration, residual, seconds), log in zip(records, logs, strict=True)
        ],
        "levels": [(down(power), power) for power in range(low, high + 1, every)],
        "ticks": [(across(tick), tick) for tick in ticks],
        "tolerance": down(math.log10(tol)) if tol > 0 else None,
    }


def _round_step(least: float) -> int:
    """1, 2 or 5 times a power of ten, at least ``least``."""
    power = 10 ** max(0, math.floor(math.log10(max(least, 1.0))))
    return next(int(k * power) for k in (1, 2, 5, 10) if k * power >= least)
