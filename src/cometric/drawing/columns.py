"""Columns that color the maps of the report: labels, or numbers, one for each item of a side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cometric.core.sides import Side
from cometric.core.text import storable
from cometric.core.types import Index, Vector
from cometric.drawing.layout import by_size, checked
from cometric.drawing.packing import pack, pack_numbers

MISSING = "(missing)"
"""The group of items without a label."""

MANY_NUMBERS = 30
"""Columns of numbers with more distinct values than this are a color scale, not groups."""


@dataclass(frozen=True)
class Groups:
    """A group of each item; if ``background`` the last group is what is in none."""

    name: str
    groups: list[str]
    codes: Index
    background: bool = False

    @property
    def count(self) -> int:
        """The number of groups, without the background."""
        return len(self.groups) - self.background

    def take(self, chosen: Index) -> Groups:
        """Those of some of the items, without groups that become empty."""
        present, codes = np.unique(self.codes[chosen], return_inverse=True)
        last = len(self.groups) - 1
        return Groups(
            self.name,
            [self.groups[g] for g in present],
            codes.astype(np.int64),
            self.background and bool(present[-1] == last),
        )

    def payload(self) -> dict[str, Any]:
        return {
            "kind": "groups",
            "name": self.name,
            "groups": self.groups,
            "codes": pack(self.codes, np.uint16),
            "background": self.background,
        }


@dataclass(frozen=True)
class Numbers:
    """A number of each item, NaN if it is missing."""

    name: str
    values: Vector

    def take(self, chosen: Index) -> Numbers:
        """Those of some of the items."""
        return Numbers(self.name, self.values[chosen])

    def payload(self) -> dict[str, Any]:
        return {"kind": "numbers", "name": self.name, **pack_numbers(self.values)}


def read_columns(given: Any, argument: str, side: Side, of: str) -> list[Groups | Numbers]:
    """The columns of an array, a dictionary of arrays, or a data frame; none if it is None."""
    if given is None:
        return []
    if hasattr(given, "columns") and hasattr(given, "iloc"):
        names = list(map(str, given.columns))
        arrays = [(name, given.iloc[:, k]) for k, name in enumerate(names)]
    elif isinstance(given, Mapping):
        arrays = [(str(name), values) for name, values in given.items()]
    else:
        name = getattr(given, "name", None)
        return [_column(name if isinstance(name, str) else "label", given, argument, side, of)]
    return [_column(name, values, f"{argument}[{name!r}]", side, of) for name, values in arrays]


def _column(name: str, values: Any, argument: str, side: Side, of: str) -> Groups | Numbers:
    array = np.asarray(values)
    if array.shape == side.kept.shape:  # empty items that were dropped included
        array = array[side.kept]
    array = checked(array, argument, len(side.labels), of)
    if _is_scale(array):
        return Numbers(storable(name), array.astype(np.float64))
    return group_column(name, array)


def _is_scale(array: NDArray[Any]) -> bool:
    if array.dtype.kind not in "fiu":
        return False
    finite = array[np.isfinite(array)]
    return len(np.unique(finite)) > MANY_NUMBERS


def group_column(name: str, labels: Any) -> Groups:
    """Labels as groups, the largest first."""
    texts = [MISSING if _is_missing(label) else storable(str(label)) for label in labels]
    groups = by_size(texts)
    codes = np.empty(len(texts), np.int64)
    for g, (_, members) in enumerate(groups):
        codes[members] = g
    return Groups(storable(name), [label for label, _ in groups], codes)


def _is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, or pandas' NA or NaT."""
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):  # NA has no truth value
        return True
