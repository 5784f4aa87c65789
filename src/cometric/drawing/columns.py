"""Columns that color the maps of the report: labels, or numbers, one for each item of a side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cometric.core.histograms import Side
from cometric.core.labels import as_array, categories_of, check_order, is_missing
from cometric.core.text import storable
from cometric.core.types import Index, Vector
from cometric.drawing.layout import MANY_NUMBERS, MISSING, checked
from cometric.drawing.packing import pack, pack_numbers


@dataclass(frozen=True)
class Groups:
    """The group of each item; if ``background``, the last group means ungrouped.

    ``colors`` are the numbers of the groups in their palette, by default 0, 1, 2, and so on.
    """

    name: str
    groups: list[str]
    codes: Index
    background: bool = False
    colors: tuple[int, ...] = ()
    palette: str = "labels"  # or "modules"

    @property
    def count(self) -> int:
        """The number of groups, without the background."""
        return len(self.groups) - self.background

    @property
    def known(self) -> Index:
        """The items in a group, without the background."""
        return np.flatnonzero(self.codes < self.count)

    def take(self, chosen: Index) -> Groups:
        """The groups of some of the items, without those that become empty."""
        present, codes = np.unique(self.codes[chosen], return_inverse=True)
        last = len(self.groups) - 1
        colors = self.colors or range(len(self.groups))
        return replace(
            self,
            groups=[self.groups[g] for g in present],
            codes=codes.astype(np.int64),
            background=self.background and bool(present[-1] == last),
            colors=tuple(colors[g] for g in present),
        )

    def payload(self) -> dict[str, Any]:
        return {
            "kind": "groups",
            "name": self.name,
            "groups": self.groups,
            "codes": pack(self.codes, np.uint16),
            "background": self.background,
            "colors": list(self.colors or range(len(self.groups))),
            "palette": self.palette,
        }


@dataclass(frozen=True)
class Numbers:
    """A number per item, NaN if missing."""

    name: str
    values: Vector

    def take(self, chosen: Index) -> Numbers:
        """The numbers of some of the items."""
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
    check_order(values, argument, side, of)
    array, labels = np.asarray(values), as_array(values)
    ordered = None
    if hasattr(values, "dtype") and array.ndim == 1:
        ordered = categories_of(values if hasattr(values.dtype, "categories") else labels)
    if array.shape == side.kept.shape:  # including dropped items
        array, labels = array[side.kept], labels[side.kept]
    array = checked(values if isinstance(values, str) else array, argument, len(side.labels), of)
    if _is_scale(array):
        return Numbers(storable(name), array.astype(np.float64))
    return group_column(name, labels, ordered)


def _is_scale(array: NDArray[Any]) -> bool:
    if array.dtype.kind not in "fiu":
        return False
    finite = array[np.isfinite(array)]
    return len(np.unique(finite)) > MANY_NUMBERS


def group_column(name: str, labels: Any, order: tuple[str, ...] | None = None) -> Groups:
    """Labels as groups, in this order or that of their categories; missing ones are background."""
    texts = [MISSING if is_missing(label) else storable(str(label)) for label in labels]
    kinds = [storable(kind) for kind in (categories_of(labels) if order is None else order)]
    present = set(texts)
    number = {kind: g for g, kind in enumerate(dict.fromkeys(kinds))}
    groups = [kind for kind in number if kind in present and kind != MISSING]
    colors = [number[kind] for kind in groups]
    if MISSING in present:
        groups.append(MISSING)
        colors.append(len(number))
    code = {kind: g for g, kind in enumerate(groups)}
    codes = np.array([code[text] for text in texts], np.int64)
    return Groups(storable(name), groups, codes, MISSING in present, tuple(colors))
