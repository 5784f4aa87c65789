"""The page of the report: template, style, scripts, data as text inside it, and its curve."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from importlib import resources
from typing import Any

import numpy as np

from cometric.drawing.packing import significant
from cometric.results.result import Result

SCRIPTS = ("data.js", "map.js", "report.js")
"""The scripts of the page, in this order; each sees the names of those before it."""


WIDTH, HEIGHT = 560.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 40.0
LEAST = 2.0**-52
"""Residuals of 0, which have no logarithm, are replaced by this."""


def render(*, data: dict[str, Any], **context: Any) -> str:
    """The page; everything in ``context`` is escaped, the rest is trusted or escaped already."""
    import jinja2
    from markupsafe import Markup

    page = resources.files("cometric.drawing") / "page"
    style = (page / "report.css").read_text("utf-8")
    parts = "\n".join((page / name).read_text("utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    text = embeddable_json(data)
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string((page / "report.html").read_text("utf-8"))
    return template.render(
        **context,
        data=Markup(text),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(script, style),
        megabytes=sum(map(len, (text, style, script))) / 1e6,
    )


def _policy(script: str, style: str) -> str:
    """A content security policy: only this script and this style, and nothing is loaded."""
    known, look = (
        base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
        for text in (script, style)
    )
    return (
        f"default-src 'none'; script-src 'sha256-{known}'; style-src 'sha256-{look}'; "
        "base-uri 'none'; form-action 'none'"
    )


def embeddable_json(data: Any) -> str:
    """JSON that can stand in a script element: it contains no end tag and no comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # all ASCII
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def convergence(result: Result) -> dict[str, Any] | None:
    """Coordinates of the residuals in the convergence plot, or None if there are too few."""
    records = [
        (record.iteration, significant(record.residual), significant(record.seconds))
        for record in result.history
        if np.isfinite(record.residual)
    ]
    tol = result.parameters.tol
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
