"""Modules of features in the report: their names, their columns of colors, their table."""

from __future__ import annotations

import numpy as np

from cometric.answers.modules import BACKGROUND, Modules, modules
from cometric.answers.result import Result
from cometric.core.text import storable
from cometric.core.types import Index
from cometric.drawing.columns import Groups, Numbers

MODULES = "modules"
"""The name of the column of modules."""

MAX_SCORES = 24
"""Most modules whose scores can color samples."""


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


def central(found: Modules, g: int, names: list[str]) -> str:
    """The names of the most central members of a module."""
    return storable(", ".join(names[k] for k in found.members[g][:3]))


def module_columns(found: Modules, names: list[str]) -> list[Groups | Numbers]:
    """The module of each feature, and its coherence."""
    groups = [f"{g}: {central(found, g, names)}" for g in range(len(found))]
    codes = np.where(found.labels == BACKGROUND, len(groups), found.labels)
    background = bool((found.labels == BACKGROUND).any())
    shown = [*groups, *["in no module"] * background]
    return [
        Groups(MODULES, shown, codes, background, palette="modules"),
        Numbers("coherence (Moran's I)", found.coherence),
    ]


def score_columns(found: Modules, names: list[str], chosen: Index) -> list[Groups | Numbers]:
    """The scores of some of the samples for each module."""
    table = found.scores()[chosen]
    return [
        Numbers(f"module {g}: {central(found, g, names)}", table[:, g])
        for g in range(min(MAX_SCORES, len(found)))
    ]


def module_rows(found: Modules | None, names: list[str]) -> list[tuple[int, int, list[str]]]:
    """Number, size and most central members of each module."""
    if found is None:
        return []
    return [
        (g, len(own), [storable(names[k]) for k in own[:10]]) for g, own in enumerate(found.members)
    ]
