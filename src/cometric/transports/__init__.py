"""Ways of comparing histograms under a cost: what ``learn(X, transport=...)`` takes.

A new one is a file beside these, with a subclass of :class:`~cometric.transports.base.Transport`,
and a line in ``TRANSPORTS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cometric.core.errors import UnknownKind
from cometric.transports.base import Transport
from cometric.transports.entropic import Entropic
from cometric.transports.exact import Exact
from cometric.transports.limit import Limit
from cometric.transports.tree import Tree

TRANSPORTS: Mapping[str, type[Transport]] = {
    "exact": Exact,
    "entropic": Entropic,
    "limit": Limit,
    "tree": Tree,
}
"""Transports that files and checkpoints can store, by name."""


def from_eps(eps: Any) -> Transport:
    """The transport for a regularization: exact for 0, the linear limit for infinity."""
    if eps == 0.0:
        return Exact()
    return Limit() if eps == float("inf") else Entropic(float(eps))


def to_json(transport: Transport) -> dict[str, Any]:
    """The name of a transport and its parameters; if it is not registered, its class."""
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
            f"the transport {stored['kind']} is not one of {', '.join(TRANSPORTS)}. Register it in "
            "cometric.transports.TRANSPORTS before reading the file"
        )
    return kind(**parameters)
