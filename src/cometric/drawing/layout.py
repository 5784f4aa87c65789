"""Where things go in a picture, and what they are called: shared by plots and the report."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cometric.answers.result import Result
from cometric.core.arrays import to_numpy
from cometric.core.kinds import check_side
from cometric.core.problem import Side
from cometric.core.types import Index, Matrix, Vector

OPTIMAL_ORDER = 1_000
"""Items up to which leaves are put in the best order; it takes cubic time."""

OUTSIDE = 0.01
"""The share of items, at each end, that may lie outside the frame of a map; at least one."""

COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000")
"""Told apart with any kind of color vision (Okabe and Ito), less their yellow, pale on white."""


def metric_of(result: Result, of: str) -> Matrix:
    """The learned distances between "samples" or "features", on the host."""
    check_side(of)
    metric: Matrix = to_numpy(getattr(result, of))
    return metric


def names_of(
    result: Result, of: str, names: Sequence[Any] | None = None, argument: str = "names"
) -> list[str]:
    """What the items of a side are called: as told, as in the data, or by their number there."""
    side: Side = getattr(result.problem, of)
    if names is None:
        return list(side.called)
    return [str(name) for name in checked(names, argument, len(side.labels), of)]


def checked(items: Any, argument: str, n: int, of: str) -> NDArray[Any]:
    """``items`` as an array, one for each of the n items of a side."""
    found = np.asarray(items)
    if found.shape != (n,):
        raise ValueError(
            f"`{argument}` has shape {found.shape}; there are {n} {of}, so pass {n} of them "
            "(those that were kept, where empty ones were dropped)."
        )
    return found


def by_size(labels: Any) -> list[tuple[str, Index]]:
    """Each label as text and the items that bear it, the largest group first."""
    texts = np.array([str(label) for label in labels])
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


def coordinates(distances: Matrix, method: str = "umap", random_state: int | None = 0) -> Matrix:
    """A place in the plane (n, 2) for each item, neighbors by distance kept together."""
    n = len(distances)
    if method not in ("umap", "tsne"):
        raise ValueError(f"`method` is {method!r}; choose 'umap' or 'tsne'.")
    begin = _classical(distances)
    if n < 5:  # too few for neighborhoods to mean anything
        return begin
    if method == "tsne":
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits

        begin *= 1e-4 / begin[:, 0].std()
        make = TSNE(
            metric="precomputed",
            init=begin,
            perplexity=min(30.0, (n - 1) / 3),
            random_state=random_state,
        )
        with threadpool_limits(1):  # its threads wait for one another at every step: slow if shared
            made = make.fit_transform(distances)
    else:
        try:
            from umap import UMAP
        except ImportError:
            raise ImportError(
                "UMAP needs umap-learn: pip install 'cometric[plot]', or pass method='tsne'."
            ) from None
        begin *= 10 / np.abs(begin).max()
        with warnings.catch_warnings():
            # It says that a seed means one thread, and that distances cannot be inverted.
            warnings.simplefilter("ignore")
            made = UMAP(
                metric="precomputed",
                init=begin,
                n_neighbors=min(15, n - 1),
                random_state=random_state,
            ).fit_transform(distances)
    return np.asarray(made, dtype=np.float64)


def frame(places: Matrix) -> tuple[Vector, Vector]:
    """The lower left and upper right corner of what to show, so that few do not shrink many.

    All items, unless a few lie farther out than the others are apart; then half as far.
    """
    ordered = np.sort(places, axis=0)
    few = 0 if len(places) < 10 else max(1, int(OUTSIDE * len(places)))
    low, high = ordered[few], ordered[-1 - few]
    span, first, last = high - low, ordered[0], ordered[-1]
    return (
        np.where(low - first > span, low - 0.5 * span, first),
        np.where(last - high > span, high + 0.5 * span, last),
    )


def _classical(distances: Matrix) -> Matrix:
    """Classical multidimensional scaling: where embeddings begin, so that islands lie well."""
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
    # The sign of an eigenvector means nothing: make it the same everywhere.
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), range(len(top))] < 0, -1.0, 1.0)
    return np.pad(axes, ((0, 0), (0, 2 - len(top))))
