"""Trees drawn as dendrograms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scipy.cluster import hierarchy

from cometric.core.types import Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NAMES = 60
"""Up to this many leaves are labeled."""


def draw_tree(ax: Axes, merges: Matrix, labels: list[str]) -> None:
    """Draw a SciPy linkage from left to right, with the names of its leaves if they are few."""
    shown = len(labels) <= MAX_NAMES
    hierarchy.dendrogram(
        merges,
        ax=ax,
        orientation="left",
        labels=labels if shown else None,
        no_labels=not shown,
        color_threshold=0.0,
        above_threshold_color="0.3",
    )
    ax.spines[["top", "left", "right"]].set_visible(False)
    ax.set_xlabel("distance along the tree")
