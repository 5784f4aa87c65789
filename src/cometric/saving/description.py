"""Solvers as JSON, for a checkpoint, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from cometric.saving.folder import CheckpointError
from cometric.solvers import SOLVERS


def describe(value: Any) -> Any:
    """A solver (or one of its hyperparameters) as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    description = {"kind": _full_name(kind)}
    if is_dataclass(value):
        description |= {part.name: describe(getattr(value, part.name)) for part in fields(value)}
    return description


def rebuild(description: Any) -> Any:
    """The solver that :func:`describe` described, if it is one of ours."""
    if not isinstance(description, dict):
        return description
    kinds = {_full_name(kind): kind for kind in SOLVERS.values()}
    kind = kinds.get(description["kind"])
    if kind is None:
        raise CheckpointError(
            f"The checkpoint was made with {description['kind']}, which cannot be stored. "
            "Continue with learn(X, ..., checkpoint=...) and the options of the first call."
        )
    options = {name: rebuild(part) for name, part in description.items() if name != "kind"}
    return kind(**options)


def _full_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
