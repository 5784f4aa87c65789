"""Plots of a result: convergence, distances, embeddings, neighbors, flows of mass.

``result`` is what :func:`cometric.learn` returned. Each function draws on ``ax``, or on a new
figure, and returns the Axes without showing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.cluster import hierarchy

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle
except ImportError:
    raise ImportError("plots need matplotlib: pip install 'cometric[plot]'.") from None

from cometric.core.arguments import check_count, check_side, find, other_side
from cometric.core.labels import check_order
from cometric.core.nearest import nearest_to
from cometric.core.types import Index, Matrix
from cometric.drawing import canvas
from cometric.drawing.coloring import colors_of, order_of_names, write_names
from cometric.drawing.layout import (
    COLORS,
    by_size,
    checked,
    color_limits,
    coordinates,
    frame,
    leaf_order,
    metric_of,
    names_of,
)
from cometric.results.explanation import Explanation
from cometric.results.modules import Modules, ModuleTable
from cometric.results.result import Result, check_is_result

__all__ = [
    "changes", "choice", "convergence", "distances", "embedding", "flows", "modules", "nearest",
    "tree",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


MAX_NAMES = 40
"""Label at most this many rows of a matrix."""

MAX_LEAVES = 60
"""Label the leaves of a tree if there are at most this many."""

NAMES_ON_A_MAP = 30
"""Most names on a map of features, by default."""

AGAINST = {
    "iteration": "iteration",
    "sweeps": "transport sweeps of both sides",
    "seconds": "seconds",
}


def convergence(result: Result, ax: Axes | None = None, *, against: str = "iteration") -> Axes:
    """The Hilbert residual against "iteration", "sweeps" or "seconds", and the tolerance."""
    check_is_result(result)
    if against not in AGAINST:
        raise ValueError(f"`against` is {against!r}; choose one of {', '.join(AGAINST)}.")
    ax = canvas.axes(ax, (7.0, 3.6))
    records = [record for record in result.history if np.isfinite(record.residual)]
    x = [getattr(record, against) for record in records]
    # Zero has no logarithm: it is drawn at the level of rounding.
    residuals = [max(record.residual, np.finfo(float).eps) for record in records]
    ax.semilogy(x, residuals, color=COLORS[0], marker="o", ms=4, lw=1.5, label="residual")
    tol = result.parameters.tol
    if tol > 0:
        ax.axhline(tol, color=COLORS[3], ls="--", lw=1.2, label=f"tolerance {tol:.0e}")
    ax.set(
        title=result.status.outcome.capitalize(),
        xlabel=AGAINST[against],
        ylabel="residual (Hilbert metric)",
    )
    canvas.legend(ax)
    canvas.plain(ax)
    return ax


def choice(choice: Any, ax: Axes | None = None) -> Axes:
    """The losses of all candidates of a :class:`~cometric.Choice`, the smallest at the top.

    Bars are standard errors of the difference to the first candidate (dashed line). Random
    neighbors, whose loss is far larger, are left out.
    """
    rows = [row for row in choice.table if row.name != "random"][::-1]
    ax = canvas.axes(ax, (6.6, 0.8 + 0.28 * len(rows)))
    for learned, color, label in ((True, COLORS[0], "learned"), (False, COLORS[1], "baseline")):
        own = [k for k, row in enumerate(rows) if row.learned == learned]
        losses = [rows[k].loss for k in own]
        errors = [rows[k].difference_error for k in own]
        ax.errorbar(losses, own, xerr=errors, fmt="o", ms=5, color=color, label=label)
    [first] = [row.loss for row in rows if row.name == choice.first]
    ax.axvline(first, color=COLORS[3], ls="--", lw=1.2)
    ax.set(
        title="Prediction of hidden features",
        xlabel="loss (one minus the cosine)",
        yticks=range(len(rows)),
        yticklabels=[row.name for row in rows],
    )
    canvas.legend(ax)
    canvas.plain(ax)
    return ax


def distances(
    result: Result,
    of: str = "samples",
    labels: Any = None,
    ax: Axes | None = None,
    *,
    names: Sequence[Any] | None = None,
    vmax: float | None = None,
) -> Axes:
    """The distance matrix of one side, rows and columns in the order of a clustering.

    Parameters
    ----------
    of
        "samples" or "features".
    labels
        A label per item: items are grouped by label, and similar groups are placed side by side.
    names
        Names of the items, instead of those in the data.
    vmax
        The distance at which the color scale ends; 1, the largest distance, shows the whole range.
        By default outliers are clipped, so that a few items far from all others do not dominate
        the scale: it ends at most three interquartile ranges above the upper quartile of the
        distances. The label of the color bar says so.
    """
    check_is_result(result)
    metric = metric_of(result, of)
    n = len(metric)
    check_order(labels, "labels", getattr(result.problem, of), of)
    groups = _groups(metric, None if labels is None else checked(labels, "labels", n, of))
    order = np.concatenate([members for _, members in groups])
    item_names = names_of(result, of, names)
    low, high = color_limits(metric, vmax)
    ax = canvas.axes(ax, (6.4 if labels is None else 7.8, 5.2), "compressed")
    image = ax.imshow(
        metric[np.ix_(order, order)], cmap="magma", vmin=low, vmax=high, interpolation="nearest"
    )
    ax.set(title=f"Distances between {n} {of}", xticks=[])
    if labels is not None:
        ends = np.cumsum([len(members) for _, members in groups])
        for end in ends[:-1]:
            ax.axhline(end - 0.5, color="white", lw=0.6)
            ax.axvline(end - 0.5, color="white", lw=0.6)
        shown = [g for g, (_, members) in enumerate(groups) if len(members) >= n / MAX_NAMES]
        middles = [ends[g] - len(groups[g][1]) / 2 - 0.5 for g in shown]
        ax.set_yticks(middles, [str(groups[g][0]) for g in shown])
    elif n <= MAX_NAMES:
        ax.set_yticks(range(n), [item_names[i] for i in order], fontsize=8)
    else:
        ax.set_yticks([])
        ax.set_ylabel(f"{of}, clustered")
    largest = metric.max()
    clipped = high < largest
    label = (
        f"distance (colors end at {high:.2g}, largest: {largest:.3g})" if clipped else "distance"
    )
    canvas.color_bar(ax, image, label, extend="both" if clipped else "min")
    return ax


def embedding(
    result: Result,
    of: str = "samples",
    method: str = "umap",
    labels: Any = None,
    random_state: int | None = 0,
    ax: Axes | None = None,
    *,
    mark: int | str | Sequence[int | str] = (),
    names: Sequence[Any] | None = None,
    color: Any = None,
    n_names: int | None = None,
) -> Axes:
    """An embedding of the samples or features in the plane, from their distances alone.

    Parameters
    ----------
    of
        "samples" or "features".
    method, random_state
        "umap" (needs umap-learn) or "tsne", and its random seed.
    labels
        The same as ``color``, for one value per item.
    color
        One value per item: floating-point numbers on a color scale, anything else as categories.
        Or the name (or number) of a feature: samples are colored by its share of their mass; for
        ``of="features"``, of a sample. Or :class:`~cometric.Modules`: features are colored by
        their module, samples by the module whose score is largest, or as background if even this
        score is below a tenth of the module's highest in any sample.
    mark
        An item or several, by name or number, to mark by a ring and the name.
    names
        Names of the items, instead of those in the data.
    n_names
        Maximum number of names to show besides ``mark``, where they do not overlap: those of the
        most central features of each module, or of the heaviest in each part of the map. By
        default 30 for features that have names, if ``mark`` is empty, otherwise none.

    Notes
    -----
    A color scale ends at the 2 % and 98 % quantiles of the values. A few points far from all others
    are drawn at the border, with a cross, and counted in the title: otherwise they would shrink the
    rest.
    """
    check_is_result(result)
    metric = metric_of(result, of)
    item_names = names_of(result, of, names)
    marks = [mark] if isinstance(mark, str) or not isinstance(mark, Iterable) else mark
    marked = [find(item, item_names, "mark", of) for item in marks]
    if labels is not None and color is not None:
        raise ValueError("`labels` and `color` are both given; pass one of them.")
    argument, given = ("color", color) if labels is None else ("labels", labels)
    chosen = colors_of(result, of, given, argument)
    if n_names is None:
        named = names is not None or getattr(result.problem, of).names is not None
        n_names = NAMES_ON_A_MAP if of == "features" and named and not marked else 0
    if n_names != 0:
        check_count("n_names", n_names)
    positions = coordinates(metric, method, random_state)
    inside = np.clip(positions, *frame(positions))
    away = np.flatnonzero((inside != positions).any(axis=1))
    ax = canvas.axes(ax, (5.6 if chosen.values is None else 7.4, 4.8))
    size = float(np.clip(6_000 / len(metric), 4, 40))
    canvas.points(ax, inside, size, chosen)
    if len(away):
        ax.scatter(inside[away, 0], inside[away, 1], s=4 * size, marker="x", color="0.3", lw=1.2)
    beyond = f" ({len(away)} far outside, at the border)" if len(away) else ""
    ax.set(
        title=f"{len(metric)} {of}, by their learned distances{beyond}",
        xticks=[],
        yticks=[],
        xlabel={"umap": "UMAP 1", "tsne": "t-SNE 1"}[method],
        ylabel={"umap": "UMAP 2", "tsne": "t-SNE 2"}[method],
    )
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.15 if marked else 0.05)  # room for names
    canvas.plain(ax)
    order = order_of_names(result, of, inside, chosen) if n_names else []
    write_names(ax, inside, item_names, marked, order, n_names)
    return ax


def nearest(
    result: Result,
    feature: int | str,
    k: int = 10,
    names: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The k features nearest to one, by name or number, and their distances to it."""
    check_is_result(result)
    item_names = names_of(result, "features", names)
    chosen = find(feature, item_names, "feature", "features", names_of(result, "samples"))
    check_count("k", k)
    away = metric_of(result, "features")[chosen]
    order = nearest_to(away, min(k, len(away) - 1), chosen)
    median = float(np.median(np.delete(away, chosen)))
    rows = range(len(order))
    ax = canvas.axes(ax, (7.0, 1.2 + 0.27 * len(order)))
    ax.hlines(rows, 0, away[order], color="0.8", lw=1.5, zorder=1)
    ax.plot(away[order], rows, "o", color=COLORS[0], ms=7)
    ax.axvline(median, color="0.4", ls="--", lw=1.2, label="median of all features")
    ax.set_yticks(rows, [item_names[l] for l in order])
    ax.set(title=f"Nearest to {item_names[chosen]}", xlabel=f"distance from {item_names[chosen]}")
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    canvas.legend(ax)
    canvas.plain(ax)
    return ax


def changes(
    result: Result,
    i: int | str,
    j: int | str,
    top: int = 10,
    names: Sequence[Any] | None = None,
    ax: Axes | None = None,
    *,
    of: str = "samples",
) -> Axes:
    """What changes from sample i to sample j: the features that lose or gain the most mass.

    Samples are given by name or number. Bars to the left are features on which i has more mass,
    those to the right features on which j has more, ``top`` of each; the darker, the farther this
    mass moves. ``names`` are names of the features. With ``of="features"``, i and j are features
    and the bars are samples. See :meth:`cometric.Result.explain`.
    """
    explanation = _explained(result, i, j, of, names, top)
    losses, gains = explanation.losses[:top], explanation.gains[:top]
    ax = canvas.axes(ax, (5.2, 1.4 + 0.24 * (len(losses) + len(gains))))
    _draw_changes(ax, explanation, top)
    return ax


def flows(
    result: Result,
    i: int | str,
    j: int | str,
    top: int = 20,
    names: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The costliest flows of the optimal transport plan from sample i to sample j.

    Samples are given by name or number. Bands run from the features of i, left, to those of j,
    right, as wide as the mass they carry; the darker, the farther it moves. ``names`` are names of
    the features. With eps > 0 the plan is blurred, and a few flows are a small part of it, given
    in the title; so a new figure also shows the net :func:`changes`, beside the flows.
    """
    explanation = _explained(result, i, j, "samples", names, top)
    chosen = explanation.flows[:top]
    if ax is None:
        half = max(1, top // 2)
        nets = len(explanation.losses[:half]) + len(explanation.gains[:half])
        beside, ax = canvas.pair((11.0, 1.5 + 0.24 * max(nets, len(chosen))), (1.0, 1.3))
        _draw_changes(beside, explanation, half)
    total = sum(flow.mass for flow in chosen)
    scale, extend = canvas.scale([flow.cost for flow in chosen])
    shades = mpl.colormaps[canvas.FLOWS]
    left, right = (canvas.stack(chosen, side, gap=0.25 * total) for side in ("source", "target"))
    used = {("source", name): top for name, (top, _) in left.items()}
    used |= {("target", name): top for name, (top, _) in right.items()}
    for flow in sorted(chosen, key=lambda flow: (left[flow.source], right[flow.target])):
        begin, end = used["source", flow.source], used["target", flow.target]
        used["source", flow.source] -= flow.mass
        used["target", flow.target] -= flow.mass
        ax.add_patch(canvas.band(begin, end, flow.mass, shades(scale(flow.cost))))
    for x, side, align, shift in ((0.0, left, "right", -0.02), (1.0, right, "left", 0.02)):
        for name, (high, mass) in side.items():
            ax.add_patch(Rectangle((x - 0.008, high - mass), 0.016, mass, color="0.2", lw=0))
            ax.text(x + shift, high - mass / 2, name, ha=align, va="center", fontsize=8)
    bottom = min(high - mass for side in (left, right) for high, mass in side.values())
    ax.set(xlim=(-0.3, 1.3), ylim=(bottom - 0.02 * total, 0.02 * total))
    ax.axis("off")
    share = sum(flow.share for flow in chosen)
    ax.set_title(
        f"From {explanation.items[0]} to {explanation.items[1]}\n"
        f"{len(chosen)} of {len(explanation.flows)} flows, {100 * share:.3g} % of the cost, "
        f"{100 * total:.3g} % of the mass; {100 * explanation.stays:.3g} % stays",
        fontsize=10,
    )
    drawn = mpl.cm.ScalarMappable(scale, shades)
    canvas.color_bar(ax, drawn, "distance between the features", extend=extend)
    return ax


def tree(
    result: Result,
    ax: Axes | None = None,
    *,
    of: str = "samples",
    names: Sequence[Any] | None = None,
) -> Axes:
    """The tree of the samples, or of the features, as a dendrogram from left to right.

    Two items are joined at their distance along the tree; see :meth:`cometric.Result.tree`.
    ``names`` are those of the items, which are shown for up to 60 of them.
    """
    check_is_result(result)
    check_side(of)
    labels = names_of(result, of, names)
    few = len(labels) <= MAX_LEAVES
    ax = canvas.axes(ax, (5.5, 1.0 + 0.2 * min(max(len(labels), 8), MAX_LEAVES)))
    hierarchy.dendrogram(
        result.tree(of).linkage(),
        ax=ax,
        orientation="left",
        labels=labels if few else None,
        no_labels=not few,
        color_threshold=0.0,
        above_threshold_color="0.3",
    )
    ax.spines[["top", "left", "right"]].set_visible(False)
    ax.set_xlabel("distance along the tree")
    return ax


def modules(modules: Modules | ModuleTable, labels: Any = None, ax: Axes | None = None) -> Axes:
    """The mean score of each module in each group of samples, a heat map, similar rows together.

    The color scale is symmetric and ends at the median, over rows, of their largest absolute
    values, so that one row of large values, such as that of a rare group, does not dominate it.
    Pass what :func:`cometric.modules` returned and the label of each sample, or a table made by
    :meth:`cometric.Modules.table`.
    """
    if not isinstance(modules, Modules | ModuleTable):
        raise ValueError(
            f"`modules` is of class {type(modules).__name__}; pass what `cm.modules(result)` "
            "returned, and labels."
        )
    if isinstance(modules, Modules) and labels is None:
        raise ValueError("`labels` is None; pass the label of each sample, or a table.")
    table = modules.table(labels) if isinstance(modules, Modules) else modules
    if not table.modules:
        raise ValueError("There are no modules to draw: all items are background.")
    ax = canvas.axes(ax, (3.2 + 0.45 * len(table.groups), 1.6 + 0.28 * len(table.modules)))
    values = table.values
    order = leaf_order(np.abs(values[:, None] - values[None]).sum(axis=2))
    limit = float(np.median(np.abs(values).max(axis=1))) or 1.0
    image = ax.imshow(values[order], cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    ax.set_yticks(range(len(values)), [table.modules[k] for k in order], fontsize=8)
    ax.set_xticks(range(len(table.groups)), table.groups, fontsize=8, rotation=45, ha="right")
    ax.set_title("Modules by group")
    canvas.color_bar(ax, image, "mean score", extend="both")
    return ax


def _explained(
    result: Result, i: int | str, j: int | str, of: str, names: Sequence[Any] | None, top: int
) -> Explanation:
    """The explanation of two items, with ``names`` for its bins; raises if no mass moves."""
    check_is_result(result)
    check_count("top", top)
    explanation = result.explain(i, j, of=of)
    if not explanation.flows:
        raise ValueError(
            f"no mass moves between {explanation.items[0]} and {explanation.items[1]}."
        )
    if names is None:
        return explanation
    bins = other_side(of)
    new = dict(zip(names_of(result, bins), names_of(result, bins, names), strict=True))
    return replace(
        explanation,
        flows=[f._replace(source=new[f.source], target=new[f.target]) for f in explanation.flows],
        changes=[change._replace(name=new[change.name]) for change in explanation.changes],
    )


def _draw_changes(ax: Axes, explanation: Explanation, top: int) -> None:
    """Bars to the left for the largest losses, to the right for the largest gains."""
    losses, gains = explanation.losses[:top], explanation.gains[:top]
    shown = [*losses, *gains]
    scale, extend = canvas.scale([0.0, *(change.distance for change in shown)])
    shades = mpl.colormaps[canvas.FLOWS]
    rows = range(len(shown))
    ax.barh(
        rows,
        [100 * change.change for change in shown],
        color=[shades(scale(change.distance)) for change in shown],
        height=0.8,
    )
    ax.axvline(0.0, color="0.3", lw=0.8)
    ax.axhline(len(losses) - 0.5, color="0.8", lw=0.8)
    ax.set_yticks(rows, [change.name for change in shown], fontsize=8)
    ax.invert_yaxis()
    part = sum(abs(change.change) for change in shown)
    whole = sum(abs(change.change) for change in explanation.changes)
    first, second = explanation.items
    ax.set_xlabel(f"← more in {first}      % of the mass      more in {second} →", fontsize=8)
    ax.set_title(
        f"Net change from {first} to {second}\n{len(shown)} of {len(explanation.changes)} changes, "
        f"{100 * part / whole:.3g} % of the mass that changes",
        fontsize=10,
    )
    drawn = mpl.cm.ScalarMappable(scale, shades)
    canvas.color_bar(ax, drawn, "mean distance it moves", extend=extend)
    canvas.plain(ax)


def _groups(metric: Matrix, labels: Any) -> list[tuple[str, Index]]:
    """Groups in the order of a clustering of their mean distances, members likewise."""
    if labels is None:
        return [("", leaf_order(metric))]
    largest = by_size(labels)
    means = np.array([[metric[np.ix_(a, b)].mean() for _, b in largest] for _, a in largest])
    np.fill_diagonal(means, 0.0)
    groups = [largest[g] for g in leaf_order(means)]
    return [(name, own[leaf_order(metric[np.ix_(own, own)])]) for name, own in groups]
