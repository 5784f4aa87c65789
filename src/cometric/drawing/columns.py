"""What colors the maps of the report: labels and numbers of items, modules, values of features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.histograms import Side
from cometric.core.inputs import read_matrix, read_names
from cometric.core.labels import as_array, categories_of, check_order, is_missing
from cometric.core.problem import Problem
from cometric.core.text import storable
from cometric.core.types import Index, Vector
from cometric.drawing.layout import MANY_NUMBERS, MISSING, checked
from cometric.drawing.packing import pack, pack_numbers
from cometric.results.modules import BACKGROUND, Modules, modules
from cometric.results.result import Result

MAX_SCORES = 24
"""Most modules whose scores can color samples."""


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
        colors = self.colors or range(len(self.groups))
        return replace(
            self,
            groups=[self.groups[g] for g in present],
            codes=codes.astype(np.int64),
            background=self.background and bool(present[-1] == len(self.groups) - 1),
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


Column = Groups | Numbers


def read_columns(given: Any, argument: str, side: Side, of: str) -> list[Column]:
    """The columns of an array, a dictionary of arrays, or a data frame; none if it is None."""
    if given is None:
        return []
    if hasattr(given, "columns") and hasattr(given, "iloc"):
        arrays = [(str(name), given.iloc[:, k]) for k, name in enumerate(given.columns)]
    elif isinstance(given, Mapping):
        arrays = [(str(name), values) for name, values in given.items()]
    else:
        name = getattr(given, "name", None)
        return [_column(name if isinstance(name, str) else "label", given, argument, side, of)]
    return [_column(name, values, f"{argument}[{name!r}]", side, of) for name, values in arrays]


def _column(name: str, values: Any, argument: str, side: Side, of: str) -> Column:
    """Numbers, if there are many different ones; otherwise groups."""
    check_order(values, argument, side, of)
    array, labels = np.asarray(values), as_array(values)
    ordered = None
    if hasattr(values, "dtype") and array.ndim == 1:
        ordered = categories_of(values if hasattr(values.dtype, "categories") else labels)
    if array.shape == side.kept.shape:  # including dropped items
        array, labels = array[side.kept], labels[side.kept]
    array = checked(values if isinstance(values, str) else array, argument, len(side.labels), of)
    if array.dtype.kind in "fiu" and len(np.unique(array[np.isfinite(array)])) > MANY_NUMBERS:
        return Numbers(storable(name), array.astype(np.float64))
    return _group_column(name, labels, categories_of(labels) if ordered is None else ordered)


def _group_column(name: str, labels: Any, order: tuple[str, ...]) -> Groups:
    """Labels as groups in this order; missing ones are background."""
    texts = [MISSING if is_missing(label) else storable(str(label)) for label in labels]
    kinds = [*(kind for kind in map(storable, order) if kind != MISSING), MISSING]
    number = {kind: g for g, kind in enumerate(dict.fromkeys(kinds))}
    present = set(texts)
    groups = [kind for kind in number if kind in present]
    code = {kind: g for g, kind in enumerate(groups)}
    codes = np.array([code[text] for text in texts], np.int64)
    colors = tuple(number[kind] for kind in groups)
    return Groups(storable(name), groups, codes, MISSING in code, colors)


# --------------------------------------------------------------------------- modules


def find_modules(result: Result, given: Modules | bool | None) -> tuple[Modules | None, str]:
    """The modules of the features, or None, and why there are none."""
    if isinstance(given, Modules):
        if given.of != "features" or len(given.labels) != len(result.problem.features.labels):
            raise ValueError(
                f"`modules` are {len(given.labels)} {given.of}; pass modules of the "
                f"{len(result.problem.features.labels)} features, cm.modules(result)."
            )
        return given, ""
    if given is not None and not isinstance(given, bool | np.bool_):
        raise ValueError(
            f"`modules` is {given!r}; pass what cm.modules(result) returned, True or False."
        )
    if given is not None and not given:
        return None, ""
    try:
        return modules(result), ""
    except ImportError:
        if given:
            raise
        return None, "Install igraph 1.0 (cometric[modules]) to see modules of features."


def central(found: Modules, names: list[str]) -> list[str]:
    """The names of the three most central members of each module."""
    return [storable(", ".join(names[k] for k in own[:3])) for own in found.members]


def module_columns(of: str, found: Modules | None, names: list[str]) -> list[Column]:
    """The module of each feature and its coherence, or the scores of samples for each module."""
    if found is None or not len(found):
        return []
    titles = [f"{g}: {name}" for g, name in enumerate(central(found, names))]
    if of == "samples":
        scores = found.scores().T[:MAX_SCORES]
        return [Numbers(f"module {t}", own) for t, own in zip(titles, scores, strict=False)]
    codes = np.where(found.labels == BACKGROUND, len(titles), found.labels)
    background = bool((found.labels == BACKGROUND).any())
    titles += ["in no module"] * background
    return [
        Groups("modules", titles, codes, background, palette="modules"),
        Numbers("coherence (Moran's I)", found.coherence),
    ]


# --------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Values:
    """A matrix of nonnegative numbers, samples by features, and the names of the features."""

    matrix: sparse.csc_array
    names: list[str]

    def take(self, rows: Index, first: list[str], most: int) -> Values:
        """The values of some samples, for as many features as fit into ``most`` entries.

        Features in ``first`` are preferred, then those with larger sums.
        """
        part = sparse.csc_array(self.matrix[rows])
        preferred = np.isin(np.array(self.names, dtype=object), np.array(first, dtype=object))
        columns = fitting(part, np.lexsort((-part.sum(axis=0), ~preferred)), most)
        return Values(sparse.csc_array(part[:, columns]), [self.names[k] for k in columns])


def fitting(matrix: sparse.csc_array, order: Index, most: int) -> Index:
    """The first columns in this order that have ``most`` entries together, sorted."""
    entries = np.cumsum(np.diff(matrix.indptr)[order])
    return np.sort(order[: int(np.searchsorted(entries, most, side="right"))])


def read_values(X: Any, problem: Problem, names: list[str]) -> Values:
    """The values of a matrix with features ``names``, of a data frame, or of an AnnData."""
    matrix, own = read_matrix(X, "X", (1, 1)), read_names(X)[1]
    samples, features = problem.samples, problem.features
    if matrix.shape[0] == len(samples.kept):
        matrix = matrix[samples.kept]
    if own is None and matrix.shape[1] == len(features.kept):
        matrix = matrix[:, features.kept]
    shape = (len(samples.labels), len(names) if own is None else len(own))
    if matrix.shape != shape:
        raise ValueError(
            f"`X` has shape {matrix.shape}; there are {shape[0]} samples and {shape[1]} features, "
            f"so pass a matrix of shape {shape}, or a data frame with named features."
        )
    return Values(sparse.csc_array(matrix), own or [storable(name) for name in names])
