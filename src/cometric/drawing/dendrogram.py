"""The tree of a result as a dendrogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.cluster import hierarchy

from cometric.answers.result import Result
from cometric.core.kinds import check_side
from cometric.drawing.layout import names_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NAMES = 60
"""Up to this many leaves are labeled."""


def tree(
    result: Result,
    ax: Axes | None = None,
    *,
    of: str = "samples",
    names: Sequence[Any] | None = None,
) -> Axes:
    """The tree of the samples, or of the features, drawn from left to right.

    Two items are joined at their distance along the tree; see :meth:`cometric.Result.tree`.
    ``names`` are those of the items; they are shown if there are at most 60.
    """
    from matplotlib import pyplot as plt

    check_side(of)
    labels = names_of(result, of, names)
    n = len(labels)
    if ax is None:
        ax = plt.figure(
            figsize=(5.5, 1.0 + 0.2 * np.clip(n, 8, 60)), layout="constrained"
        ).subplots()
    shown = n <= MAX_NAMES
    hierarchy.dendrogram(
        result.tree(of).linkage(),
        ax=ax,
        orientation="left",
        labels=labels if shown else None,
        no_labels=not shown,
        color_threshold=0.0,
        above_threshold_color="0.3",
    )
    ax.spines[["top", "left", "right"]].set_visible(False)
    ax.set_xlabel("distance along the tree")
    return ax
