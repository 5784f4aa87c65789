"""How good a distance matrix is: with labels, and without.

Every function takes distances between all items, (n, n), of any origin. Those with ``labels``
measure whether items of one label are close; the others need no labels.

>>> import cometric as cm
>>> digits = cm.datasets.digits(100)
>>> cm.scores.knn_accuracy(cm.baselines.l1(digits.X), digits.labels) > 0.8
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from cometric.core.nearest import nearest
from cometric.core.types import Index, Matrix

__all__ = [
    "knn_accuracy", "neighborhood_agreement", "neighbors", "participation_ratio",
    "set_auroc", "shared_sets", "silhouette",
]  # fmt: skip


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


def set_auroc(
    distances: Matrix,
    names: Sequence[str],
    sets: Mapping[str, Iterable[str]],
    *,
    min_size: int = 3,
    folds: int = 3,
    random_state: int = 0,
) -> dict[str, float]:
    """How well a part of each set of features predicts the rest: AUROC by name of the set.

    Neighbor voting: the members of a set are divided into folds at random. Each fold is hidden
    in turn, and every item is ranked by its distance to the other members, the average of
    (rank of j from i + rank of i from j) over them. The AUROC is the probability that a hidden
    member comes before an item outside the set; chance gives 0.5.

    Parameters
    ----------
    names
        The name of each item, for example of a gene.
    sets
        Names of the members of each set; those not in ``names`` are left out. Then sets with fewer
        members than ``min_size`` or ``folds``, and sets of all items, are left out.
    folds
        Number of parts of a set, at least 2.
    """
    matrix = _checked(distances)
    if folds < 2:
        raise ValueError(f"`folds` is {folds}; pass at least 2.")
    members = _members(matrix, names, sets, max(min_size, folds))
    ranks = rankdata(matrix, axis=1)
    ranks += ranks.T
    return {
        name: _voting(ranks, inside, folds, random_state)
        for name, inside in members.items()
        if len(inside) < len(matrix)
    }


def shared_sets(
    distances: Matrix,
    names: Sequence[str],
    sets: Mapping[str, Iterable[str]],
    *,
    min_size: int = 3,
    k: int = 10,
) -> float:
    """Share of the k nearest items that have a set in common with an item, on average.

    ``names``, ``sets`` and ``min_size`` are as in :func:`set_auroc`. Items in no set are left out.
    """
    matrix = _checked(distances)
    members = _members(matrix, names, sets, min_size)
    in_set = np.zeros((len(matrix), len(members)), dtype=bool)
    for column, inside in enumerate(members.values()):
        in_set[inside, column] = True
    known = in_set.any(axis=1)
    in_set = in_set[known]
    near = neighbors(matrix[np.ix_(known, known)], k)
    return float(np.mean([in_set[j][:, in_set[i]].any(axis=1) for i, j in enumerate(near)]))


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


def _members(
    matrix: Matrix, names: Sequence[str], sets: Mapping[str, Iterable[str]], min_size: int
) -> dict[str, Index]:
    """The numbers of the items in each set that is large enough."""
    if len(names) != len(matrix):
        raise ValueError(f"`names` has {len(names)} entries for {len(matrix)} items.")
    number = {name: i for i, name in enumerate(names)}
    members = {
        name: np.array(sorted({number[item] for item in items if item in number}), dtype=np.int64)
        for name, items in sets.items()
    }
    large = {name: inside for name, inside in members.items() if len(inside) >= min_size}
    if not large:
        raise ValueError(
            f"None of the {len(sets)} `sets` has {min_size} members among `names`. Check that both "
            "use the same names."
        )
    return large


def _voting(ranks: Matrix, inside: Index, folds: int, random_state: int) -> float:
    """Mean AUROC over the folds of one set."""
    outside = np.setdiff1d(np.arange(len(ranks)), inside)
    areas = []
    for hidden in np.array_split(np.random.default_rng(random_state).permutation(inside), folds):
        votes = ranks[:, np.setdiff1d(inside, hidden)].mean(axis=1)
        order = rankdata(np.concatenate([votes[hidden], votes[outside]]))[: len(hidden)]
        below = order.sum() - 0.5 * len(hidden) * (len(hidden) + 1)  # nonmembers ranked before
        areas.append(1.0 - below / (len(hidden) * len(outside)))
    return float(np.mean(areas))


def _checked(distances: Matrix, labels: Any = None) -> Matrix:
    """The distances as a square float64 matrix; raises if the number of labels differs."""
    matrix: Matrix = np.asarray(distances, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"`distances` has shape {matrix.shape}; pass a square matrix.")
    if labels is not None and len(labels) != len(matrix):
        raise ValueError(f"`labels` has {len(labels)} entries for {len(matrix)} items.")
    return matrix
