"""Figures, colors, scales, legends and shapes of all plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from cometric.core.types import Matrix
from cometric.drawing.layout import COLORS, MISSING, MODULE_COLORS, by_size
from cometric.results.explanation import Flow
from cometric.results.modules import Modules

MARKERS = "o^Dsv"
"""When colors repeat, the marker changes."""

LARGER = 1.8
"""Factor of the area of all markers but the first: their shapes are hard to see if small."""

BACKGROUND = "background"
"""The label of items that belong to no module."""

IN_NO_GROUP = (BACKGROUND, MISSING)
"""Items with these labels are drawn in gray, below the others."""

GRAY = "0.82"

SCALE, FLOWS = "viridis", "viridis_r"
"""Colormaps of values, and of the distances of flows: the darker, the farther."""

TAILS = 0.02
"""Share of the values to clip at either end of a color scale."""

ALL_COUNT = 50
"""Fewer values than this are not clipped."""

DOT = 30.0
"""Area of a point in a legend, in square points of type."""

LEGEND_ROWS = 16
"""A legend with more entries has several columns."""


def axes(ax: Axes | None, size: tuple[float, float], layout: str = "constrained") -> Axes:
    """The given Axes, or those of a new figure of this size in inches."""
    return plt.figure(figsize=size, layout=layout).subplots() if ax is None else ax


def pair(size: tuple[float, float], widths: tuple[float, float]) -> tuple[Axes, Axes]:
    """Two Axes side by side in a new figure."""
    figure = plt.figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=widths)
    return left, right


def plain(ax: Axes) -> None:
    """Remove the frame above and to the right."""
    ax.spines[["top", "right"]].set_visible(False)


def legend(ax: Axes, title: str | None = None, markers: float = 1.0) -> None:
    """A legend to the right of the axes, away from the data; ``markers`` enlarges its points."""
    count = len(ax.get_legend_handles_labels()[1])
    ax.legend(
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=9,
        title=title,
        markerscale=markers,
        ncols=-(-count // LEGEND_ROWS) or 1,
    )


def limits(values: Any) -> tuple[float, float]:
    """The ends of a color scale, by quantiles of the finite values.

    If most values are equal, such as the zeros of a rare gene, the upper end is a quantile of the
    larger ones. Few values are not clipped.
    """
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if len(finite) >= ALL_COUNT and low < high:
        first, last = (float(edge) for edge in np.quantile(finite, [TAILS, 1 - TAILS]))
        if first == last:
            first, last = low, float(np.quantile(finite[finite > low], 1 - TAILS))
        low, high = first, last
    return (low, high) if low < high else (low, low + 1.0)


def scale(values: Any) -> tuple[Normalize, str]:
    """A color scale for values, and the ends (``extend``) at which it clips some of them."""
    low, high = limits(values)
    numbers = np.asarray(values, dtype=np.float64)
    below, above = bool((numbers < low).any()), bool((numbers > high).any())
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max"}
    return Normalize(low, high), ends.get((below, above), "both")


def color_bar(ax: Axes, drawn: Any, label: str = "", *, extend: str = "neither") -> None:
    """Draw the color bar of ``drawn`` next to the axes."""
    ax.figure.colorbar(drawn, ax=ax, shrink=0.8, extend=extend, label=label)


class Colors(NamedTuple):
    """One value per item, or None; a title; the order of categories; modules they come from."""

    values: NDArray[Any] | None
    title: str = ""
    order: tuple[str, ...] = ()
    modules: Modules | None = None


def points(ax: Axes, positions: Matrix, size: float, colors: Colors) -> None:
    """A point per item: of one color, on a scale, or by category with a legend.

    Categories are in the order of ``colors``, and each keeps its color if another is empty. Modules
    have colors of their own. Items in no group, and missing numbers, are gray, below the others.
    """
    values = colors.values
    if values is None:
        _dots(ax, positions, s=size, color=COLORS[0], alpha=0.8)
    elif values.dtype.kind == "f":
        known = np.isfinite(values)
        if not known.all():
            _dots(ax, positions[~known], s=size, color=GRAY)
        order = np.flatnonzero(known)[np.argsort(values[known], kind="stable")]  # largest on top
        norm, extend = scale(values[known])
        drawn = _dots(ax, positions[order], s=size, c=values[order], cmap=SCALE, norm=norm)
        color_bar(ax, drawn, colors.title, extend=extend)
    else:
        _by_category(ax, positions, size, values, colors)


def _dots(ax: Axes, positions: Matrix, **look: Any) -> Any:
    return ax.scatter(positions[:, 0], positions[:, 1], lw=0, **look)


def _by_category(
    ax: Axes, positions: Matrix, size: float, values: NDArray[Any], colors: Colors
) -> None:
    """A color and a marker for each label."""
    groups = dict(by_size(values))
    palette = COLORS if colors.modules is None else MODULE_COLORS
    kinds = [kind for kind in dict.fromkeys([*colors.order, *groups]) if kind not in IN_NO_GROUP]
    for g, label in enumerate(kinds):
        if label not in groups:
            continue
        turn, color = divmod(g, len(palette))
        _dots(
            ax,
            positions[groups[label]],
            s=size if turn == 0 else LARGER * size,  # shapes differ visibly only when large
            color=palette[color],
            marker=MARKERS[turn % len(MARKERS)],
            label=label,
        )
    for label in IN_NO_GROUP:
        if label in groups:
            _dots(ax, positions[groups[label]], s=size, color=GRAY, label=label, zorder=0.9)
    legend(ax, colors.title or None, float(np.sqrt(DOT / size)))


def stack(chosen: Sequence[Flow], side: str, gap: float) -> dict[str, tuple[float, float]]:
    """Upper edge and height of each bin of one side, the heaviest first, downward from 0."""
    masses: dict[str, float] = {}
    for flow in chosen:
        masses[getattr(flow, side)] = masses.get(getattr(flow, side), 0.0) + flow.mass
    positions, top = {}, 0.0
    for name, mass in sorted(masses.items(), key=lambda item: -item[1]):
        positions[name] = (top, mass)
        top -= mass + gap / len(masses)
    return positions


def band(begin: float, end: float, mass: float, color: Any) -> PathPatch:
    """A ribbon from the left, its upper edge at ``begin``, to the right, at ``end``."""
    points = [(0, begin), (0.5, begin), (0.5, end), (1, end)]
    back = [(x, y - mass) for x, y in reversed(points)]
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    return PathPatch(Path([*points, *back, points[0]], codes), fc=color, ec="none", alpha=0.8)
