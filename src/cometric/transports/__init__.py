"""Ways of comparing histograms under a cost, for ``learn(X, transport=...)``.

To add one, write a module here with a subclass of
:class:`~cometric.transports.base.Transport`, and add a line to ``TRANSPORTS``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from cometric.core.arguments import shown
from cometric.core.errors import UnknownKind
from cometric.transports.base import Transport
from cometric.transports.entropic import Entropic
from cometric.transports.exact import Exact
from cometric.transports.limit import Limit
from cometric.transports.quadratic import Mahalanobis
from cometric.transports.tree import Tree
from cometric.transports.unbalanced import Unbalanced

TRANSPORTS: Mapping[str, type[Transport]] = {
    "exact": Exact,
    "entropic": Entropic,
    "limit": Limit,
    "mahalanobis": Mahalanobis,
    "unbalanced": Unbalanced,
    "tree": Tree,
}
"""Transports that files and checkpoints can store, by name."""


def from_text(text: str) -> Transport:
    """The transport described by a text such as ``unbalanced(0.1, rho=1)``; raises ValueError.

    A registered name, in upper or lower case, with parameters in Python syntax: numbers, strings,
    lists. Single words need no quotes: ``tree(single)``.
    """
    try:
        call: Any = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            call = ast.Call(call, [], [])
        name = call.func.id.lower()
        kind = TRANSPORTS[name]
        values = [_value(value) for value in call.args]
        named = {part.arg: _value(part.value) for part in call.keywords}
        if None in named:
            raise ValueError("a dictionary of parameters")
    except (SyntaxError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as wrong:
        raise ValueError(
            f"{shown(text)} does not name a transport. Write one of {', '.join(TRANSPORTS)}, with "
            "parameters in parentheses, such as entropic(0.1) or unbalanced(0.1, rho=1)."
        ) from wrong
    try:
        inspect.signature(kind).bind(*values, **named)
    except TypeError as wrong:
        known = ", ".join(
            f"{part.name}={part.default!r}" for part in inspect.signature(kind).parameters.values()
        )
        rule = f"write {name}({known})" if known else f"write {name}, which has none"
        raise ValueError(f"{shown(text)} has other parameters than {name}; {rule}.") from wrong
    return kind(*values, **named)


def _value(node: ast.expr) -> Any:
    """The value of a literal, or a single word without quotes."""
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    return float(node.id) if node.id in ("inf", "nan") else node.id


def to_json(transport: Transport) -> dict[str, Any]:
    """The name of a transport (its class if not registered) and its parameters."""
    names = {kind: name for name, kind in TRANSPORTS.items()}
    kind = type(transport)
    name = names.get(kind, f"{kind.__module__}.{kind.__qualname__}")
    return {"kind": name, **transport.parameters()}


def from_json(stored: Mapping[str, Any]) -> Transport:
    """The transport that :func:`to_json` stored; raises UnknownKind if it is not registered."""
    parameters = {name: value for name, value in stored.items() if name != "kind"}
    kind = TRANSPORTS.get(stored["kind"])
    if kind is None:
        raise UnknownKind(
            f"the transport {stored['kind']} is not one of {', '.join(TRANSPORTS)}. First pass its "
            f"class: cometric.transports.TRANSPORTS[{stored['kind']!r}] = ..."
        )
    return kind(**parameters)
