"""How good a distance matrix is: with labels, and without.

Every function takes distances between all items, (n, n), whoever computed them. Those with
``labels`` ask whether items of one label stand together; the others need no labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cometric.core.nearest import nearest
from cometric.core.types import Index, Matrix

__all__ = [
    "adjusted_rand",
    "knn_accuracy",
    "neighborhood_agreement",
    "neighbors",
    "participation_ratio",
    "silhouette",
]


def __dir__() -> list[str]:
    return __all__


def silhouette(distances: Matrix, labels: Any) -> float:
    """Average silhouette width, from -1 to 1: the score of the paper."""
    from sklearn.metrics import silhouette_score

    given = _checked(distances, labels)
    return float(silhouette_score(given, np.asarray(labels), metric="precomputed"))


def knn_accuracy(distances: Matrix, labels: Any, k: int = 10) -> float:
    """Share of items whose label is that of most of their k nearest others.

    A tie between labels goes to the one with the nearest item.
    """
    found = np.unique(np.asarray(labels), return_inverse=True)[1]
    near = found[neighbors(_checked(distances, labels), k)]
    votes = (near[:, :, None] == near[:, None, :]).sum(axis=2)  # for the label of each neighbor
    chosen = near[np.arange(len(near)), votes.argmax(axis=1)]
    return float((chosen == found).mean())


def adjusted_rand(distances: Matrix, labels: Any, min_cluster_size: int = 10) -> float:
    """Adjusted Rand index of an HDBSCAN clustering of the distances against the labels.

    What the clustering leaves out as noise counts as one more cluster.
    """
    from sklearn.cluster import HDBSCAN
    from sklearn.metrics import adjusted_rand_score

    given = _checked(distances, labels)
    clustering = HDBSCAN(min_cluster_size=min_cluster_size, metric="precomputed", copy=True)
    return float(adjusted_rand_score(labels, clustering.fit_predict(given)))


def participation_ratio(distances: Matrix) -> float:
    """How many axes the distances use: (sum of x)² / sum of x², x the eigenvalues of their kernel.

    The kernel is -1/2 J D J with J the centering, D being taken for squared distances, which it
    is at eps = infinity. One axis gives 1, a simplex with n corners n - 1.
    """
    D = _checked(distances)
    kernel = D - D.mean(axis=0)
    kernel = -0.5 * (kernel - kernel.mean(axis=1)[:, None])
    return float(np.trace(kernel) ** 2 / (kernel**2).sum())


def neighborhood_agreement(one: Matrix, other: Matrix, k: int = 10) -> float:
    """Share of each item's k nearest others that two distance matrices have in common.

    Learned from two halves of the features, say, it tells without labels how much of the
    neighborhoods is more than noise. Chance gives k / (n - 1).
    """
    one, other = _checked(one), _checked(other)
    if one.shape != other.shape:
        raise ValueError(f"`one` is about {len(one)} items and `other` about {len(other)}.")
    first, second = neighbors(one, k), neighbors(other, k)
    return float((first[:, :, None] == second[:, None, :]).any(axis=2).mean())


def neighbors(distances: Matrix, k: int) -> Index:
    """The k nearest others of each item, (n, k), the nearest first."""
    if not 1 <= k < len(distances):
        raise ValueError(f"`k` is {k}; choose between 1 and {len(distances) - 1} neighbors.")
    return nearest(distances, k, skip_self=True)[0]


def _checked(distances: Matrix, labels: Any = None) -> Matrix:
    """The distances with labels for all of them, or an error that says what does not fit."""
    given: Matrix = np.asarray(distances, dtype=np.float64)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise ValueError(f"`distances` has shape {given.shape}; pass them between all items.")
    if labels is not None and len(labels) != len(given):
        raise ValueError(f"`labels` has {len(labels)} entries for {len(given)} items.")
    return given
