"""Positions, orders, names and colors of items, shared by plots and the report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cometric.core.arguments import check_number, check_side
from cometric.core.arrays import to_numpy, upper
from cometric.core.histograms import Side
from cometric.core.labels import is_missing
from cometric.core.types import Index, Matrix, Vector
from cometric.results.groups import without_dropped
from cometric.results.result import Result

OPTIMAL_ORDER = 1_000
"""Up to this many items the order of leaves is optimized, which takes cubic time."""

OUTSIDE = 0.01
"""The share of items, at each end of an axis, that may lie outside the frame; at least one."""

MANY = 1_500
"""With more items than this, t-SNE takes fewer and longer steps."""

EXAGGERATION = 12.0
"""Attraction is multiplied by this in the first iterations, so that groups can move."""

COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000")
"""Safe for color-blind readers (Okabe and Ito), without their yellow, which is pale on white."""

MODULE_COLORS = (
    "#332288", "#44AA99", "#CC6677", "#999933", "#88CCEE", "#882255", "#DDCC77", "#117733",
    "#AA4499", "#4477DD", "#8C5A2B", "#F4845F", "#D4242A", "#B9A3E3",
)  # fmt: skip
"""Colors of modules, different from those of labels; the first nine are after Paul Tol."""

MANY_NUMBERS = 30
"""Numbers with more distinct values than this are a color scale, not groups."""

MISSING = "(missing)"
"""The group of items without a label."""

FENCE = 3.0
"""Distances this many interquartile ranges above the upper quartile are outliers (Tukey)."""


def metric_of(result: Result, of: str) -> Matrix:
    """The learned distances between "samples" or "features", on the host."""
    check_side(of)
    metric: Matrix = to_numpy(getattr(result, of))
    return metric


def names_of(
    result: Result, of: str, names: Sequence[Any] | None = None, argument: str = "names"
) -> list[str]:
    """Names of the items of a side: those given, those of the data, or numbers."""
    side: Side = getattr(result.problem, of)
    if names is None:
        return list(side.item_names)
    return [str(name) for name in checked(names, argument, len(side.labels), of)]


def checked(items: Any, argument: str, n: int, of: str) -> NDArray[Any]:
    """``items`` as an array, one for each of the n items of a side."""
    if isinstance(items, str):
        table = "obs" if of == "samples" else "var"
        raise ValueError(
            f"`{argument}` is {items!r}; pass one for each of the {n} {of}, such as "
            f"`adata.{table}[{items!r}]`, not a name."
        )
    array = np.asarray(items)
    if array.shape != (n,):
        raise ValueError(
            f"`{argument}` has shape {array.shape}; there are {n} {of}, so pass {n} of them. "
            f"{without_dropped(argument, of)}"
        )
    return array


def color_limits(metric: Matrix, vmax: float | None) -> tuple[float, float]:
    """The ends of a color scale for distances, without outliers.

    The upper end is not a fixed quantile: k outliers among n items are in a share 2k / n of all
    pairs.
    """
    if vmax is not None:
        check_number("vmax", vmax)
        if vmax == 0:
            raise ValueError("`vmax` is 0; pass a distance above 0, at most 1.")
    away = upper(metric)
    low, first, third = np.quantile(away, [0.01, 0.25, 0.75])
    high = min(float(away.max()), third + FENCE * (third - first)) if vmax is None else float(vmax)
    return (float(low) if low < high else 0.0), high


def by_size(labels: Any) -> list[tuple[str, Index]]:
    """Each label as text and the items with that label, the largest group first."""
    texts = np.array([MISSING if is_missing(label) else str(label) for label in labels])
    kinds, back, counts = np.unique(texts, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(str(kinds[g]), np.flatnonzero(back == g)) for g in order]


def leaf_order(distances: Matrix) -> Index:
    """All items in the order of the leaves of a hierarchical clustering (average linkage)."""
    n = len(distances)
    if n < 3:
        return np.arange(n)
    tree = hierarchy.linkage(
        squareform(distances, checks=False), "average", optimal_ordering=n <= OPTIMAL_ORDER
    )
    leaves: Index = hierarchy.leaves_list(tree).astype(np.int64)
    return leaves


def coordinates(
    distances: Matrix,
    method: str = "umap",
    random_state: int | None = 0,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Matrix:
    """An embedding in the plane, (n, 2), by UMAP or t-SNE.

    ``report`` is called with the part of the items that counts as done, below their number.
    """
    n = len(distances)
    if method not in ("umap", "tsne"):
        raise ValueError(f"`method` is {method!r}; choose 'umap' or 'tsne'.")
    start = _classical_scaling(distances)
    if n < 5:  # too few for neighborhoods
        return start
    if method == "tsne":
        embedded = _tsne(distances, start, random_state, report)
    else:
        try:
            from umap import UMAP
        except ImportError:
            raise ImportError(
                "UMAP needs umap-learn: pip install 'cometric[plot]', or pass method='tsne'."
            ) from None
        start *= 10 / np.abs(start).max()
        with warnings.catch_warnings():
            # UMAP warns that a seed means one thread, and that distances cannot be inverted.
            warnings.simplefilter("ignore")
            embedded = UMAP(
                metric="precomputed",
                init=start,
                n_neighbors=min(15, n - 1),
                random_state=random_state,
            ).fit_transform(distances)
    return np.asarray(embedded, dtype=np.float64)


def _tsne(
    distances: Matrix,
    start: Matrix,
    random_state: int | None,
    report: Callable[[int, int], None],
) -> Matrix:
    """t-SNE; for many items in two stages of 250 iterations with longer steps.

    scikit-learn makes 1,000 iterations with steps a quarter as long.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    n = len(distances)
    positions: Matrix = start * (1e-4 / start[:, 0].std())
    options: dict[str, Any] = {"perplexity": min(30.0, (n - 1) / 3), "random_state": random_state}
    stages: list[dict[str, Any]] = [{}]
    if n > MANY:
        quick = {"max_iter": 250, "learning_rate": n / EXAGGERATION, "angle": 0.6}
        stages = [{**quick, "early_exaggeration": factor} for factor in (EXAGGERATION, 1.0)]
    for done, stage in enumerate(stages, 1):
        model = TSNE(metric="precomputed", init=positions, **options, **stage)
        with threadpool_limits(1):  # its threads synchronize at every step: slow on shared cores
            positions = np.asarray(model.fit_transform(distances), np.float64)
        report(int(done / len(stages) * (n - 1)), n)
    return positions


def frame(positions: Matrix) -> tuple[Vector, Vector]:
    """The lower left and upper right corner of the part of a map to show.

    It contains all items, unless a few lie farther out than the extent of the others; then it
    ends half that extent beyond the others.
    """
    ordered = np.sort(positions, axis=0)
    few = 0 if len(positions) < 10 else max(1, int(OUTSIDE * len(positions)))
    low, high = ordered[few], ordered[-1 - few]
    span, first, last = high - low, ordered[0], ordered[-1]
    return (
        np.where(low - first > span, low - 0.5 * span, first),
        np.where(last - high > span, high + 0.5 * span, last),
    )


def _classical_scaling(distances: Matrix) -> Matrix:
    """Classical multidimensional scaling, the start of embeddings: it separates clusters well."""
    from scipy.sparse.linalg import eigsh

    squares = distances**2
    squares = squares - squares.mean(axis=0)
    gram = -0.5 * (squares - squares.mean(axis=1)[:, None])
    if len(gram) < 5:
        values, vectors = np.linalg.eigh(gram)
    else:
        values, vectors = eigsh(gram, 2, which="LA", v0=np.ones(len(gram)) + np.arange(len(gram)))
    top = np.argsort(values)[::-1][:2]
    axes = vectors[:, top] * np.sqrt(np.maximum(values[top], 1e-30))
    # The sign of an eigenvector is arbitrary: make it the same on all machines.
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), range(len(top))] < 0, -1.0, 1.0)
    return np.pad(axes, ((0, 0), (0, 2 - len(top))))
