"""The page of the report: its template, style and scripts, and data as text inside it."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

SCRIPTS = ("data.js", "map.js", "report.js")
"""The scripts of the page, in this order; each sees the names of those before it."""


def render(*, data: dict[str, Any], **context: Any) -> str:
    """The page; everything in ``context`` is escaped."""
    import jinja2

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
        data=_unescaped(text),
        style=_unescaped(style),
        script=_unescaped(script),
        policy=_policy(script, style),
        megabytes=sum(map(len, (text, style, script))) / 1e6,
    )


def _unescaped(text: str) -> Any:
    """Text to insert without escaping: trusted, or escaped already."""
    from markupsafe import Markup

    return Markup(text)


def _policy(script: str, style: str) -> str:
    """A content security policy: only this script and this style, and nothing is loaded."""
    return (
        f"default-src 'none'; script-src 'sha256-{_sha256(script)}'; "
        f"style-src 'sha256-{_sha256(style)}'; base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def embeddable_json(data: Any) -> str:
    """JSON that can stand in a script element: it contains no end tag and no comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # all ASCII
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
