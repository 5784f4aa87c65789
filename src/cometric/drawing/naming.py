"""Names beside points: which items are named, and where their names do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from cometric.core.types import Index, Matrix, Vector

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


def in_turn(groups: Iterable[Sequence[int] | Index]) -> list[int]:
    """The first of each group, then the second of each, and so on."""
    waiting = [list(map(int, group)) for group in groups]
    longest = max(map(len, waiting), default=0)
    return [group[k] for k in range(longest) for group in waiting if k < len(group)]


def spread(places: Matrix, weights: Vector) -> list[int]:
    """All items, the heaviest of each part of the map first, then the second of each."""
    low, high = places.min(axis=0), places.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    square = np.minimum((places - low) / span * GRID, GRID - 1).astype(np.int64)
    where = square[:, 0] * GRID + square[:, 1]
    order = np.argsort(-weights, kind="stable")
    kinds = dict.fromkeys(where[order].tolist())  # squares, that of the heaviest item first
    return in_turn(order[where[order] == kind] for kind in kinds)


def write_names(
    ax: Axes,
    places: Matrix,
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
    at = ax.transData.transform(places)
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
            (places[item, 0], places[item, 1]),
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
            ax.plot(*places[item], marker="o", ms=6, mfc="none", mec="black", mew=1.2)
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
