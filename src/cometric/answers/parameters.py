"""The options that a result was learned with, and how files store them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from cometric import transports
from cometric.core.formula import Formula
from cometric.core.validation import require


@dataclass(frozen=True)
class Parameters:
    """The options that a result was learned with."""

    eps: float
    tau: float
    norm: str
    solver: str
    tol: float
    max_iter: int
    restart: float = 0.0
    transport: Any = None  # the Transport; by default the one for eps
    saturate: float = 0.0

    def __post_init__(self) -> None:
        if self.transport is None:
            object.__setattr__(self, "transport", transports.from_eps(self.eps))

    def to_json(self) -> dict[str, Any]:
        """All parameters by name; the transport by its name and parameters."""
        stored = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**stored, "transport": transports.to_json(self.transport)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Parameters:
        """The parameters that :meth:`to_json` stored."""
        transport = stored.get("transport")  # version 0.1 stored eps only
        return cls(
            eps=number(stored, "eps"),
            tau=number(stored, "tau"),
            norm=str(stored["norm"]),
            solver=str(stored["solver"]),
            tol=number(stored, "tol"),
            max_iter=int(stored["max_iter"]),
            restart=number({"restart": 0.0, **stored}, "restart"),
            transport=None if transport is None else transports.from_json(transport),
            saturate=number({"saturate": 0.0, **stored}, "saturate"),
        )

    @property
    def formula(self) -> Formula:
        """The formula of distances; norms given as matrices by name only."""
        names = self.norm.split(", ")  # of a pair, one for each side
        norm = self.norm if len(names) == 1 else tuple(names)
        return Formula(self.tau, self.restart, norm, self.saturate)


def number(stored: Mapping[str, Any], name: str) -> float:
    """A number of a file by its name; raises if it is something else."""
    require(isinstance(stored[name], Real), f"{name} is {stored[name]!r}")
    return float(stored[name])
