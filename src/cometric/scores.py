"""How good a distance matrix is: with labels, and without.

Every function takes distances between all items, (n, n), of any origin. Those with ``labels``
measure whether items of one label are close; the others need no labels.
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

    matrix = _checked(distances, labels)
    return float(silhouette_score(matrix, np.asarray(labels), metric="precomputed"))


def knn_accuracy(distances: Matrix, labels: Any, k: int = 10) -> float:
    """Accuracy of a k-nearest-neighbor classifier, each item classified by the others.

    A tie between labels goes to the one with the nearest item.
    """
    classes = np.unique(np.asarray(labels), return_inverse=True)[1]
    near = classes[neighbors(_checked(distances, labels), k)]
    votes = (near[:, :, None] == near[:, None, :]).sum(axis=2)  # for the label of each neighbor
    chosen = near[np.arange(len(near)), votes.argmax(axis=1)]
    return float((chosen == classes).mean())


def adjusted_rand(distances: Matrix, labels: Any, min_cluster_size: int = 10) -> float:
    """Adjusted Rand index of an HDBSCAN clustering of the distances against the labels.

    Noise counts as one more cluster.
    """
    from sklearn.cluster import HDBSCAN
    from sklearn.metrics import adjusted_rand_score

    matrix = _checked(distances, labels)
    clustering = HDBSCAN(min_cluster_size=min_cluster_size, metric="precomputed", copy=True)
    return float(adjusted_rand_score(labels, clustering.fit_predict(matrix)))


def participation_ratio(distances: Matrix) -> float:
    """Effective dimension: (sum of x)² / sum of x², with x the eigenvalues of a kernel.

    The kernel is -1/2 J D J with J the centering matrix: D is taken as squared distances, which it
    is at eps = infinity. Points on a line give 1, a regular simplex with n vertices n - 1.
    """
    D = _checked(distances)
    kernel = D - D.mean(axis=0)
    kernel = -0.5 * (kernel - kernel.mean(axis=1)[:, None])
    return float(np.trace(kernel) ** 2 / (kernel**2).sum())


def neighborhood_agreement(one: Matrix, other: Matrix, k: int = 10) -> float:
    """Mean share of the k nearest neighbors that two distance matrices have in common.

    With distances learned from two halves of the features, for example, it measures without
    labels how reproducible neighborhoods are. Chance gives k / (n - 1).
    """
    one, other = _checked(one), _checked(other)
    if one.shape != other.shape:
        raise ValueError(
            f"`one` has shape {one.shape} and `other` {other.shape}; pass distances between the "
            "same items."
        )
    first, second = neighbors(one, k), neighbors(other, k)
    return float((first[:, :, None] == second[:, None, :]).any(axis=2).mean())


def neighbors(distances: Matrix, k: int) -> Index:
    """The k nearest neighbors of each item, itself not counted: (n, k), the nearest first."""
    if not 1 <= k < len(distances):
        raise ValueError(f"`k` is {k}; choose between 1 and {len(distances) - 1} neighbors.")
    return nearest(distances, k, skip_self=True)[0]


def _checked(distances: Matrix, labels: Any = None) -> Matrix:
    """The distances as a square float64 matrix; raises if the labels are not as many."""
    matrix: Matrix = np.asarray(distances, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"`distances` has shape {matrix.shape}; pass a square matrix.")
    if labels is not None and len(labels) != len(matrix):
        raise ValueError(f"`labels` has {len(labels)} entries for {len(matrix)} items.")
    return matrix
