"""Parts of plots: stacks and bands of flows, and heat maps of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from cometric.answers.explanation import Flow
from cometric.core.types import Matrix
from cometric.drawing.layout import leaf_order


def stack(chosen: Sequence[Flow], side: str, gap: float) -> dict[str, tuple[float, float]]:
    """Upper edge and height of each bin of one side, the heaviest first, downward from 0."""
    masses: dict[str, float] = {}
    for flow in chosen:
        masses[getattr(flow, side)] = masses.get(getattr(flow, side), 0.0) + flow.mass
    places, top = {}, 0.0
    for name, mass in sorted(masses.items(), key=lambda item: -item[1]):
        places[name] = (top, mass)
        top -= mass + gap / len(masses)
    return places


def band(begin: float, end: float, mass: float, color: Any) -> PathPatch:
    """A ribbon from the left, its upper edge at ``begin``, to the right, at ``end``."""
    points = [(0, begin), (0.5, begin), (0.5, end), (1, end)]
    back = [(x, y - mass) for x, y in reversed(points)]
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    return PathPatch(Path([*points, *back, points[0]], codes), fc=color, ec="none", alpha=0.8)


def heat_map(ax: Axes, values: Matrix, rows: Sequence[str], columns: Sequence[str]) -> Any:
    """A table around 0 as colors, similar rows side by side; returns the image.

    The scale is symmetric and ends at the median, over rows, of their largest absolute values, so
    that one row of large values, such as that of a rare group, does not dominate it.
    """
    differences = np.abs(values[:, None] - values[None]).sum(axis=2)
    order = leaf_order(differences)
    limit = float(np.median(np.abs(values).max(axis=1))) or 1.0
    image = ax.imshow(values[order], cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    ax.set_yticks(range(len(rows)), [rows[k] for k in order], fontsize=8)
    ax.set_xticks(range(len(columns)), columns, fontsize=8, rotation=45, ha="right")
    return image
