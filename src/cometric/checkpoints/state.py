"""Conversion of the state of a run to JSON and named arrays, and back, for checkpoints."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from cometric.core.arrays import is_tensor, namespace
from cometric.core.types import Accuracy, Coupled, DistanceMap, FreezableMap, Metrics, State

Arrays = dict[str, Any]


def serialize(now: State, phi: Coupled) -> tuple[dict[str, Any], Arrays]:
    """The fields of an iterate as JSON, and the arrays of the iterate and the maps by name."""
    arrays: Arrays = {}
    iterate = {
        field.name: _to_json(getattr(now, field.name), f"iterate.{field.name}", arrays)
        for field in fields(now)
        if field.metadata.get("saved", True)
    }
    for name, lift in _bare_maps(phi).items():
        arrays |= {f"{name}.{key}": value for key, value in lift.snapshot().items()}
    return iterate, arrays


def deserialize(now: State, phi: Coupled, iterate: dict[str, Any], arrays: Arrays) -> State:
    """The iterate ``now`` with the serialized fields; also restores the memory of the maps."""
    for name, lift in _bare_maps(phi).items():
        prefix = f"{name}."
        lift.restore(
            {
                key.removeprefix(prefix): array
                for key, array in arrays.items()
                if key.startswith(prefix)
            }
        )
    values = {name: _from_json(item, arrays, now, phi) for name, item in iterate.items()}
    metrics = Metrics(*values["metrics"])
    for name, metric, own in zip(Metrics._fields, metrics, now.metrics, strict=True):
        if metric.shape != own.shape or metric.dtype != own.dtype:
            raise ValueError(f"its {name} are {metric.dtype} of shape {tuple(metric.shape)}.")
    if values["accuracy"] is not None:
        values["accuracy"] = tuple(Accuracy(*part) for part in values["accuracy"])
    return replace(now, **values | {"metrics": metrics})


def _to_json(value: Any, name: str, arrays: Arrays) -> Any:
    """A field as JSON; its arrays are added to ``arrays`` and replaced by their names."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray) or is_tensor(value):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, tuple):
        return [_to_json(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, Coupled):  # couplings are recomputed from the trees
        return {"couplings": True}
    raise TypeError(
        f"`{name.removeprefix('iterate.')}` of the iterate is a {type(value).__name__}, which no "
        "checkpoint can hold. Use numbers, strings, arrays and tuples of them."
    )


def _from_json(item: Any, arrays: Arrays, now: State, phi: Coupled) -> Any:
    """The inverse of :func:`_to_json`, with arrays on the device of ``now``."""
    if isinstance(item, list):
        return tuple(_from_json(part, arrays, now, phi) for part in item)
    if isinstance(item, dict) and "array" in item:
        array, like = arrays[item["array"]].copy(), now.metrics.samples
        return namespace(like).as_tensor(array, device=like.device) if is_tensor(like) else array
    if isinstance(item, dict):
        to_samples, to_features = phi.to_samples, phi.to_features
        if isinstance(to_samples, FreezableMap) and isinstance(to_features, FreezableMap):
            return Coupled(to_samples.couplings(), to_features.couplings())
    return item


def _bare_maps(phi: Coupled) -> dict[str, DistanceMap]:
    """The maps by name, without the norm term."""
    return {"to_samples": phi.to_samples.phi, "to_features": phi.to_features.phi}
