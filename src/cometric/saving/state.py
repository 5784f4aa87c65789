"""Where a run stands, as JSON and named arrays, and back: the content of a checkpoint."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from cometric.core.arrays import is_tensor, namespace, to_numpy
from cometric.core.types import Coupled, FreezableMap, Metrics, RememberingMap, State
from cometric.core.validation import check_metric

Arrays = dict[str, Any]


def take_apart(now: State, phi: Coupled) -> tuple[dict[str, Any], Arrays]:
    """The fields of an iterate as JSON; and, by name, its arrays and what the maps remember."""
    arrays: Arrays = {}
    iterate = {
        field.name: _place(getattr(now, field.name), f"iterate.{field.name}", arrays)
        for field in fields(now)
        if field.metadata.get("saved", True)
    }
    for name, lift in _maps(phi).items():
        arrays |= {f"{name}.{key}": value for key, value in lift.snapshot().items()}
    return iterate, arrays


def put_together(now: State, phi: Coupled, iterate: dict[str, Any], arrays: Arrays) -> State:
    """The iterate ``now`` with the fields that :func:`take_apart` gave; the maps remember again."""
    for name, lift in _maps(phi).items():
        lift.restore(_memory(arrays, name))
    return _rebuild(now, iterate, arrays, phi)


def _place(value: Any, name: str, arrays: Arrays) -> Any:
    """A field as JSON; its arrays are put among ``arrays`` and named in their place."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray) or is_tensor(value):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, tuple):
        return [_place(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, Coupled):  # couplings are read off the trees again
        return {"couplings": True}
    raise TypeError(
        f"`{name.removeprefix('iterate.')}` of the iterate is a {type(value).__name__}, which no "
        "checkpoint can hold. Keep numbers, strings, arrays and tuples of them there."
    )


def _rebuild(now: State, stored: dict[str, Any], arrays: Arrays, phi: Coupled) -> State:
    """The iterate ``now`` with the stored fields, on the device it is on."""
    like = now.metrics.samples

    def value(item: Any) -> Any:
        if isinstance(item, list):
            return tuple(map(value, item))
        if isinstance(item, dict) and "array" in item:
            array = arrays[item["array"]].copy()
            return (
                namespace(like).as_tensor(array, device=like.device) if is_tensor(like) else array
            )
        if isinstance(item, dict):
            sides = (phi.to_samples, phi.to_features)
            return Coupled(*(side.couplings() for side in sides if isinstance(side, FreezableMap)))
        return item

    found = {name: value(item) for name, item in stored.items()}
    metrics = Metrics(*found["metrics"])
    for name, metric, own in zip(Metrics._fields, metrics, now.metrics, strict=True):
        if metric.shape != own.shape or metric.dtype != own.dtype:
            raise ValueError(f"its {name} are {metric.dtype} of shape {tuple(metric.shape)}.")
        check_metric(to_numpy(metric), name, len(own))
    return replace(now, **found | {"metrics": metrics})


def _maps(phi: Coupled) -> dict[str, RememberingMap]:
    """The maps that remember something, by name, without their tau term."""
    sides = {"to_samples": phi.to_samples, "to_features": phi.to_features}
    bare = {name: getattr(side, "phi", side) for name, side in sides.items()}
    return {name: side for name, side in bare.items() if isinstance(side, RememberingMap)}


def _memory(arrays: Arrays, name: str) -> Arrays:
    return {
        key.removeprefix(f"{name}."): array
        for key, array in arrays.items()
        if key.startswith(f"{name}.")
    }
