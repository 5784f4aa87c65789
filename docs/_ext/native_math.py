"""Formulas as MathML, which browsers draw themselves: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)

# What TeX reads and docutils does not, or reads as something else: \tfrac12 is a half.
HABITS = (
    (re.compile(r"\\([dt]?frac)\s*(\d)\s*([\da-zA-Z])"), r"\\\1{\2}{\3}"),
    (re.compile(r"\\([dt]?frac)\s*(\d)(?=\s*\{)"), r"\\\1{\2}"),
    (re.compile(r"\\[bB]ig(?![a-zA-Z])"), ""),
    (re.compile(r"\\dots(?![a-zA-Z])"), r"\\ldots"),
    (re.compile(r"\\textstyle(?![a-zA-Z])"), ""),
)


def mathml(node: nodes.Element, *, block: bool) -> str:
    tex = node.astext()
    for habit, instead in HABITS:
        tex = habit.sub(instead, tex)
    try:
        # Chromium draws what is called an accent into a tall letter instead of above it.
        return str(tex2mathml(tex, as_block=block)).replace('<mover accent="true">', "<mover>")
    except MathError as problem:
        LOGGER.warning("no MathML for %r: %s", node.astext(), problem, location=node)
        return ""


def visit_inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(mathml(node, block=False))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.Element) -> None:
    translator.body.append(f'<div class="formula">{mathml(node, block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
