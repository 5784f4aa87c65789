"""The options that a result was learned with, and how files store them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from cometric import transports
from cometric.core.formula import Formula
from cometric.core.validation import require

CAREFUL = 0.1
"""The smaller ``eps`` to retry with if the one chosen by the data gives negative distances."""


@dataclass(frozen=True)
class Parameters:
    """The options that a result was learned with."""

    eps: float
    tau: float
    norm: str
    solver: str
    tol: float
    max_iter: int
    transport: Any  # a Transport
    restart: float = 0.0
    saturate: float = 0.0
    overlap: float | None = None  # mean number of features two samples share, if it chose `restart`
    chosen: bool = False  # whether it chose `eps`, too

    def to_json(self) -> dict[str, Any]:
        """All parameters by name; the transport by its name and parameters."""
        stored = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**stored, "transport": transports.to_json(self.transport)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Parameters:
        """The parameters that :meth:`to_json` stored."""
        names = ("eps", "tau", "tol", "restart", "saturate")
        return cls(
            **{name: number(stored, name) for name in names},
            norm=_norm_of(stored),
            solver=str(stored["solver"]),
            max_iter=int(stored["max_iter"]),
            transport=transports.from_json(stored["transport"]),
            overlap=None if stored.get("overlap") is None else number(stored, "overlap"),
            chosen=bool(stored.get("chosen", False)),
        )

    def __str__(self) -> str:
        """How distances are computed, with reasons for what the data chose; without the solver."""
        transport = str(self.transport)
        if not (self.transport.parameters() or math.isnan(self.eps)):
            transport = f"eps = {self.eps:g}"
        parts = [
            transport,
            f"restart = {self.restart:g}" if self.restart else f"tau = {self.tau:g}",
        ]
        if self.overlap is not None:
            share = f"{_percent(self.restart)} of R, as two samples share {_few(self.overlap)}"
            parts = [transport, share]
            if self.chosen:
                more = {math.inf: " (matrix products)", CAREFUL: " (more: negative distances)"}
                parts = [f"eps = {self.eps:.3g}{more.get(self.eps, '')} and {share}"]
        if self.saturate:
            parts.append(f"saturate = {self.saturate:g}")
        return ", ".join([*parts, f"norm {self.norm}"])

    @property
    def formula(self) -> Formula:
        """The formula of distances; norms given as matrices by name only."""
        names = self.norm.split(", ")  # of a pair, one for each side
        norm = self.norm if len(names) == 1 else tuple(names)
        return Formula(self.tau, self.restart, norm, self.saturate)


def _norm_of(stored: Mapping[str, Any]) -> str:
    """The norm. Version 0.2, which stored no ``chosen``, meant another reference by "local"."""
    names = str(stored["norm"]).split(", ")
    if "chosen" not in stored:
        names = ["local-0.2" if name == "local" else name for name in names]
    return ", ".join(names)


def number(stored: Mapping[str, Any], name: str) -> float:
    """A stored value as a float; raises unless it is a real number."""
    require(isinstance(stored[name], Real), f"{name} is {stored[name]!r}")
    return float(stored[name])


def _percent(share: float) -> str:
    """A share with enough digits to tell it from 1."""
    rest = float(f"{100.0 * (1.0 - share):.2g}")
    return f"{100.0 * share:.0f} %" if rest > 1.0 else f"{100.0 - rest:.9g} %"


def _few(overlap: float) -> str:
    """The mean number of features that two samples share, in words."""
    return f"{overlap:.0f} features" if overlap >= 10.0 else f"{overlap:.2g} features on average"
