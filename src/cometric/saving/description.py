"""A solver as JSON, for a checkpoint, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from cometric.saving.checkpoint import CheckpointError
from cometric.solvers import SOLVERS


def describe(value: Any) -> Any:
    """A solver (or one of its hyperparameters) as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    found = {"kind": f"{kind.__module__}.{kind.__qualname__}"}
    if is_dataclass(value):
        found |= {part.name: describe(getattr(value, part.name)) for part in fields(value)}
    return found


def rebuild(told: Any) -> Any:
    """The solver that :func:`describe` told of, if it is one of ours."""
    if not isinstance(told, dict):
        return told
    kinds = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in SOLVERS.values()}
    kind = kinds.get(told["kind"])
    if kind is None:
        raise CheckpointError(
            f"The checkpoint was made with {told['kind']}, which cannot be stored. Go on with "
            "learn(X, ..., checkpoint=...), as it was begun."
        )
    return kind(**{name: rebuild(part) for name, part in told.items() if name != "kind"})
