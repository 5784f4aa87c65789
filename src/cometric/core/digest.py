"""Checksums to test whether values, or the histograms of a problem, are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.arrays import to_numpy
from cometric.core.inputs import read_names

if TYPE_CHECKING:
    from cometric.core.problem import Problem


PLAIN = bool | int | float | str | None
"""Types that are identified by their repr."""


def digest(values: Mapping[str, Any]) -> str:
    """SHA-256 of named values, the same in every process.

    Arrays enter with dtype, shape and entries, whatever their memory layout; tables also with
    their names; dataclasses with the fields that ``==`` compares; sequences and mappings with all
    their items; other objects with their repr.
    """
    checksum = hashlib.sha256()
    for name in sorted(values):
        array = np.ascontiguousarray(_as_array(values[name]))
        checksum.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        checksum.update(array.reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


def _as_array(value: Any) -> NDArray[Any]:
    """An array that identifies a value: an array itself, otherwise text or a digest."""
    value = to_numpy(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    parts: Mapping[str, Any]
    if sparse.issparse(value):
        value = sparse.csr_array(value)
        names = ("indptr", "indices", "data", "shape")
        parts = {name: np.asarray(getattr(value, name)) for name in names}
    elif hasattr(value, "shape"):  # a table, or an array of objects
        array = np.asarray(value)
        array = array.astype(str) if array.dtype == object else array
        parts = {"array": array, "names": read_names(value)}
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value) if part.compare}
    elif isinstance(value, Mapping):
        parts = {repr(name): item for name, item in value.items()}
    elif isinstance(value, tuple | list) and not all(isinstance(item, PLAIN) for item in value):
        parts = {str(i): item for i, item in enumerate(value)}
    else:
        return np.array(repr(value))
    kind = type(value)
    return np.array(f"{kind.__module__}.{kind.__qualname__} {digest(parts)}")


def fingerprint(problem: Problem) -> str:
    """A short checksum of the histograms, the same on machines of either byte order.

    AnnData files store it: changing it would make them look as if their data had changed.
    """
    checksum = hashlib.blake2b(digest_size=16)
    for side in (problem.samples, problem.features):
        for part in (side.full.indptr, side.full.indices, side.full.data, side.labels):
            checksum.update(np.asarray(part, part.dtype.newbyteorder("<")).tobytes())
    return checksum.hexdigest()
