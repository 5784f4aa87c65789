"""Solvers: frozen hyperparameters with ``init`` and ``step``; ``loop.solve`` runs them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from cometric.core.errors import UnknownKind
from cometric.core.types import Solver
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.policy import PolicyIteration
from cometric.solvers.power import PowerIteration
from cometric.solvers.stochastic import StochasticIteration

SOLVERS: dict[str, Solver[Any]] = {
    "anderson": AndersonIteration(),
    "policy": PolicyIteration(),
    "power": PowerIteration(),
    "stochastic": StochasticIteration(),
}
"""The solvers that have a name, with their default hyperparameters."""


def solver_to_json(value: Any) -> Any:
    """A solver (or one of its hyperparameters) as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    stored = {"kind": f"{kind.__module__}.{kind.__qualname__}"}
    if is_dataclass(value):
        stored |= {part.name: solver_to_json(getattr(value, part.name)) for part in fields(value)}
    return stored


def solver_from_json(stored: Any) -> Any:
    """The solver that :func:`solver_to_json` stored; raises unless it is a built-in one."""
    if not isinstance(stored, dict):
        return stored
    kinds = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in map(type, SOLVERS.values())}
    kind = kinds.get(stored["kind"])
    if kind is None:
        raise UnknownKind(
            f"The checkpoint was made with {stored['kind']}, which cannot be stored. Continue with "
            "the call that started the run: learn(X, ..., checkpoint=...)."
        )
    return kind(**{name: solver_from_json(part) for name, part in stored.items() if name != "kind"})
