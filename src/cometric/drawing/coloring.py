"""The colors of a map from ``color=``: values, an item of the other side, or modules."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cometric.answers.modules import Modules
from cometric.answers.result import Result
from cometric.core.arguments import find, other_side
from cometric.core.histograms import Side
from cometric.core.labels import as_array, categories_of, check_order
from cometric.core.types import Matrix, Vector
from cometric.drawing.canvas import BACKGROUND, IN_NO_GROUP
from cometric.drawing.layout import MANY_NUMBERS, by_size, checked, metric_of, names_of
from cometric.drawing.naming import in_turn, spread

HIGH = 0.1
"""A sample is colored by a module if its score is this share of the module's highest or more."""


class Colors(NamedTuple):
    """One value per item, or None; a title; the order of categories; modules they come from."""

    values: NDArray[Any] | None
    title: str = ""
    order: tuple[str, ...] = ()
    modules: Modules | None = None


def colors_of(result: Result, of: str, color: Any, as_labels: bool = False) -> Colors:
    """The values that ``color`` stands for; with ``as_labels`` one value per item only."""
    n = len(metric_of(result, of))
    if color is None:
        return Colors(None)
    check_order(color, "labels" if as_labels else "color", getattr(result.problem, of), of)
    if as_labels:
        values = checked(color, "labels", n, of)
        return Colors(
            as_array(color) if _has_groups(color) else values, _title(color), _order(color)
        )
    if isinstance(color, Modules):
        return _by_module(result, of, color)
    if isinstance(color, str | Integral):
        other = other_side(of)
        there = names_of(result, other)
        item = find(color, there, "color", other, names_of(result, of))
        title = f"{there[item]}, share of the {of[:-1]}"
        return Colors(_shares(getattr(result.problem, of), item), title)
    values = checked(color, "color", n, of)
    if (
        values.dtype.kind in "iu"
        and len(np.unique(values)) > MANY_NUMBERS
        and not _has_groups(color)
    ):
        return Colors(values.astype(np.float64), _title(color))
    return Colors(as_array(color) if _has_groups(color) else values, _title(color), _order(color))


def order_of_names(result: Result, of: str, places: Matrix, colors: Colors) -> list[int]:
    """All items, by the priority of their names on a map."""
    weights = _weights(result, of)
    first: list[int] = []
    if colors.modules is not None and colors.modules.of == of:
        first = in_turn(colors.modules.members)
    elif colors.values is not None and colors.values.dtype.kind != "f":
        groups = [own for label, own in by_size(colors.values) if label not in IN_NO_GROUP]
        first = in_turn(own[np.argsort(-weights[own], kind="stable")] for own in groups)
    known = set(first)
    return first + [item for item in spread(places, weights) if item not in known]


def _by_module(result: Result, of: str, modules: Modules) -> Colors:
    """Each item's module; for items of the other side the module of largest score, if high."""
    if modules.result is not result and modules.result.problem is not result.problem:
        same = all(
            getattr(modules.result.problem, side).item_names
            == getattr(result.problem, side).item_names
            for side in ("samples", "features")
        )
        if not same:
            raise ValueError("`color` has modules of another result; pass those of this one.")
    if not len(modules):
        raise ValueError("`color` has no modules: all items are background.")
    texts = np.array([*(f"{g}: {name}" for g, name in enumerate(modules.names)), BACKGROUND])
    if modules.of == of:
        numbers = modules.labels
    else:
        scores = modules.scores()
        numbers = scores.argmax(axis=1)
        low = scores.max(axis=1) < HIGH * scores.max(axis=0)[numbers]
        numbers = np.where(low, -1, numbers)
    title = "module" if modules.of == of else "module of largest score"
    return Colors(texts[numbers], title, tuple(texts.tolist()), modules)  # -1: the last text


def _shares(side: Side, item: int) -> Vector:
    """The share of a bin (before repeats are merged) in each item of a side."""
    column: Vector = side.full[:, [item]].toarray()[:, 0].astype(np.float64)
    return column[side.labels]


def _weights(result: Result, of: str) -> Vector:
    """The mean share of each item in the items of the other side."""
    other: Side = getattr(result.problem, other_side(of))
    return np.asarray(other.full.mean(axis=0)).ravel()


def _title(color: Any) -> str:
    """The name of a pandas Series, if it has one."""
    name = getattr(color, "name", None)
    return "" if name is None else str(name)


def _order(color: Any) -> tuple[str, ...]:
    """The order of categories; empty for floating-point numbers."""
    number = np.asarray(color).dtype.kind == "f" and not _has_groups(color)
    return () if number else categories_of(color)


def _has_groups(color: Any) -> bool:
    """Whether these are categories of pandas: groups, even if they are numbers."""
    return hasattr(getattr(color, "dtype", None), "categories")
