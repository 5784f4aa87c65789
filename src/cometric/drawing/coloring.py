"""Colors of the points of a map, from ``color=``, and the names beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from cometric.core.arguments import find, other_side
from cometric.core.histograms import Side
from cometric.core.labels import as_array, categories_of, check_order
from cometric.core.types import Index, Matrix, Vector
from cometric.drawing.canvas import BACKGROUND, IN_NO_GROUP, Colors
from cometric.drawing.layout import MANY_NUMBERS, by_size, checked, names_of
from cometric.results.modules import Modules
from cometric.results.result import Result

HIGH = 0.1
"""A sample is colored by a module if its score is this share of the module's highest or more."""

GRID = 6
"""Without modules, names are taken in turn from the squares of a ``GRID`` x ``GRID`` grid."""

FONT = 8
"""Size of names in points."""

DIRECTIONS = ((1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Directions to try for a name, in this order."""

BORDER = 4.0
"""Points of type between a name and the border of the axes."""

REACH = (4.0, 14.0)
"""Distances of names from their points to try, in points of type; the last gets a line."""


def colors_of(result: Result, of: str, color: Any, argument: str) -> Colors:
    """The values that ``color`` stands for; ``labels`` may not be the name of another item."""
    side: Side = getattr(result.problem, of)
    if color is None:
        return Colors(None)
    check_order(color, argument, side, of)
    if isinstance(color, Modules):
        return _by_module(result, of, color)
    if argument == "color" and isinstance(color, str | Integral):
        other = other_side(of)
        there = names_of(result, other)
        item = find(color, there, "color", other, names_of(result, of))
        shares: Vector = side.full[:, [item]].toarray()[side.labels, 0].astype(np.float64)
        return Colors(shares, f"{there[item]}, share of the {of[:-1]}")
    values = checked(color, argument, len(side.labels), of)
    title = "" if getattr(color, "name", None) is None else str(color.name)  # of a Series
    if hasattr(getattr(color, "dtype", None), "categories"):  # groups, even if they are numbers
        return Colors(as_array(color), title, categories_of(color))
    if values.dtype.kind in "iu" and len(np.unique(values)) > MANY_NUMBERS:
        values = values.astype(np.float64)
    return Colors(values, title, () if values.dtype.kind == "f" else categories_of(color))


def order_of_names(result: Result, of: str, positions: Matrix, colors: Colors) -> list[int]:
    """All items, by the priority of their names on a map."""
    # The mean share of each item in the items of the other side.
    weights = np.asarray(getattr(result.problem, other_side(of)).full.mean(axis=0)).ravel()
    first: list[int] = []
    if colors.modules is not None and colors.modules.of == of:
        first = in_turn(colors.modules.members)
    elif colors.values is not None and colors.values.dtype.kind != "f":
        groups = [own for label, own in by_size(colors.values) if label not in IN_NO_GROUP]
        first = in_turn(own[np.argsort(-weights[own], kind="stable")] for own in groups)
    known = set(first)
    return first + [item for item in spread(positions, weights) if item not in known]


def _by_module(result: Result, of: str, modules: Modules) -> Colors:
    """Each item's module; for items of the other side the module of largest score, if high."""
    for side in ("samples", "features"):
        own, other = (getattr(found.problem, side) for found in (result, modules.result))
        if own.item_names != other.item_names:
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


def in_turn(groups: Iterable[Sequence[int] | Index]) -> list[int]:
    """The first of each group, then the second of each, and so on."""
    waiting = [list(map(int, group)) for group in groups]
    longest = max(map(len, waiting), default=0)
    return [group[k] for k in range(longest) for group in waiting if k < len(group)]


def spread(positions: Matrix, weights: Vector) -> list[int]:
    """All items, the heaviest of each part of the map first, then the second of each."""
    low, high = positions.min(axis=0), positions.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    square = np.minimum((positions - low) / span * GRID, GRID - 1).astype(np.int64)
    where = square[:, 0] * GRID + square[:, 1]
    order = np.argsort(-weights, kind="stable")
    kinds = dict.fromkeys(where[order].tolist())  # squares, that of the heaviest item first
    return in_turn(order[where[order] == kind] for kind in kinds)


def write_names(
    ax: Axes,
    positions: Matrix,
    names: Sequence[str],
    marked: Sequence[int],
    order: Sequence[int],
    most: int,
) -> list[int]:
    """Write the names of all ``marked`` items and of ``most`` others; returns those written.

    A name must overlap no other name and stay inside the axes; items without such a place are
    skipped, unless marked. Marked items get a ring; the others are tried in ``order``.
    """
    if not marked and not most:
        return []
    whole: Any = ax.figure.figure  # of a subfigure too
    whole.draw_without_rendering()  # so that the sizes of all parts are known
    at = ax.transData.transform(positions)
    pixels = whole.dpi / 72.0
    inside = ax.get_window_extent().padded(-BORDER * pixels)
    taken: list[Bbox] = []
    written: list[int] = []
    for item in dict.fromkeys([*marked, *order]):
        always = item in marked
        if len(written) == len(set(marked)) + most:
            break
        trial = ax.text(0, 0, names[item], fontsize=FONT)
        size = trial.get_window_extent()
        trial.remove()
        free = _free(at[item], size.width, size.height, taken, inside, pixels)
        if free is None and not always:
            continue
        (right, up), reach, own = free or (DIRECTIONS[0], REACH[0], size)
        line = {"arrowstyle": "-", "color": "0.5", "lw": 0.6, "shrinkA": 0, "shrinkB": 0}
        ax.annotate(
            names[item],
            (positions[item, 0], positions[item, 1]),
            xytext=(reach * right, reach * up),
            textcoords="offset points",
            fontsize=FONT,
            ha={1: "left", -1: "right", 0: "center"}[right],
            va={1: "bottom", -1: "top", 0: "center"}[up],
            arrowprops=line if reach > REACH[0] else None,
            path_effects=[withStroke(linewidth=2.0, foreground="white")],
            zorder=5,
        )
        if always:
            ax.plot(*positions[item], marker="o", ms=6, mfc="none", mec="black", mew=1.2)
        taken.append(own)
        written.append(item)
    return written


def _free(
    point: Vector, width: float, height: float, taken: list[Bbox], inside: Bbox, pixels: float
) -> tuple[tuple[int, int], float, Bbox] | None:
    """Direction, distance and box of the first free place for a name, or None."""
    for reach in REACH:
        for right, up in DIRECTIONS:
            x = point[0] + pixels * reach * right + width * (right - 1) / 2
            y = point[1] + pixels * reach * up + height * (up - 1) / 2
            box = Bbox.from_bounds(x, y, width, height)
            within = inside.x0 <= box.x0 and box.x1 <= inside.x1
            within = within and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if within and not any(box.overlaps(other) for other in taken):
                return (right, up), reach, box
    return None
