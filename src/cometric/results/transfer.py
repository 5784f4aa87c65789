"""The function ``transfer_labels``: labels of new items by a vote of their nearest labeled ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.arguments import checks_options
from cometric.core.inputs import check_distances, counted, unwrap
from cometric.core.labels import is_missing
from cometric.core.nearest import (
    check_neighbors,
    default_neighbors,
    fewest_stored,
    gaussian_weights,
    nearest_given,
)
from cometric.core.types import Index, Matrix, Vector
from cometric.results.groups import without_dropped
from cometric.results.result import Result

UNLABELED = -1
"""The code of unlabeled items."""

SURE, NOVEL = 0.9, 0.95
"""Least confidence of a sure label, and the novelty above which an item counts as new."""


@dataclass(frozen=True, eq=False, repr=False)
class Transfer:
    """Labels of new items, with their confidence.

    Attributes
    ----------
    labels
        The label of each new item; None where no neighbor has a label.
    confidence
        The probability that the label is right, estimated from the labeled items; see
        :func:`transfer_labels`.
    shares
        The share of the vote for each label, (new items, labels). Rows sum to 1, or to less where
        neighbors have no label.
    classes
        The label of each column of ``shares``.
    novelty
        The share of the labeled items whose neighbors are nearer, on average, than those of the new
        item. Near 1 for items unlike all labeled ones. None without ``within``.
    """

    labels: NDArray[Any]
    confidence: Vector
    shares: Matrix
    classes: NDArray[Any]
    novelty: Vector | None = None

    def __str__(self) -> str:
        texts = np.array([str(label) for label in self.labels], dtype=object)
        width = max([5, *map(len, texts.tolist())])
        unlike = f"   novelty above {NOVEL:g}" if self.novelty is not None else ""
        lines = [
            f"Labels of {counted(len(texts), 'new item')}",
            f"  {'label':{width}}   items   mean confidence   below {SURE:g}{unlike}",
        ]
        for label in dict.fromkeys(sorted(texts.tolist(), key=str)):
            own = texts == label
            sure = self.confidence[own]
            line = f"  {label:{width}} {own.sum():7d} {sure.mean():17.2f} {(sure < SURE).sum():11d}"
            if self.novelty is not None:
                line += f" {(self.novelty[own] > NOVEL).sum():20d}"
            lines.append(line)
        return "\n".join(lines)

    __repr__ = __str__


@checks_options
def transfer_labels(
    distances: Any, labels: Any, n_neighbors: int | None = None, *, within: Any = None
) -> Transfer:
    """Labels of new items, by a weighted vote of their nearest labeled items.

    The weight of a neighbor at distance d is exp(-2 (d / r)^2), with r the distance to the farthest
    of the ``n_neighbors`` nearest. The label with the largest sum of weights wins, with a share s
    of all weights. Without ``within``, the confidence is s. With it, the confidence is calibrated:
    each labeled item is also given a label by its neighbors, itself left out, and isotonic
    regression on s estimates how often such labels are right.

    The confidence is meaningful only for items of the labeled kinds. Other items also get one of
    these labels, often with high confidence; their ``novelty`` is near 1.

    Parameters
    ----------
    distances
        From each new item (rows) to each labeled item (columns): ``result.transform(new)``, or
        distances of any other origin. A sparse matrix has the distances of nearest items
        only, as ``result.transform(new, n_neighbors=15)``.
    labels
        One for each column. Items with the label None or NaN count in the vote, but for no label,
        which lowers the confidence near them.
    n_neighbors
        Number of neighbors that vote: by default 15, or all if there are fewer.
    within
        Distances between the labeled items, ``result.samples``, for confidence and novelty.

    Returns
    -------
    Transfer
        The ``labels`` of the new items, their ``confidence``, and with ``within`` their
        ``novelty``.

    Examples
    --------
    >>> import cometric as cm
    >>> digits = cm.datasets.digits(150)
    >>> X, labels = digits.X, digits.labels
    >>> result = cm.learn(X[:120], drop_empty=True)
    >>> new = result.transform(X[120:])
    >>> answer = cm.transfer_labels(new, labels[:120], 5, within=result.samples)
    >>> print((answer.labels == labels[120:]).mean() > 0.9)
    True
    """
    across = _read(distances, "distances")
    n = across.shape[1]
    classes, codes = _encode(labels, n)
    most = n if within is None else n - 1
    if sparse.issparse(across):
        most = min(most, fewest_stored(across))
    k = default_neighbors(n_neighbors, most)
    check_neighbors(k, n)
    index, near = nearest_given(across, k, "distances")
    shares = _shares(index, near, codes, len(classes))
    winner, share = shares.argmax(axis=1), shares.max(axis=1)
    given = classes[winner]
    if (share == 0.0).any():
        given = np.where(share > 0.0, given.astype(object), None)
    if within is None:
        return Transfer(given, share, shares, classes)
    among = _read(within, "within")
    if among.shape != (n, n):
        raise ValueError(
            f"`within` has shape {among.shape}; pass the distances between the {n} labeled items, "
            f"an array of shape {(n, n)}."
        )
    check_neighbors(k, n - 1)
    others, known = nearest_given(among, k, "within", skip_self=True)
    confidence = _calibrated(share, _shares(others, known, codes, len(classes)), codes)
    nearer = np.searchsorted(np.sort(known.mean(axis=1)), near.mean(axis=1))
    return Transfer(given, confidence, shares, classes, nearer / n)


def _shares(index: Index, near: Matrix, codes: Index, count: int) -> Matrix:
    """The share of each of ``count`` labels in the vote of the neighbors of each row."""
    weights = gaussian_weights(near)
    weights /= weights.sum(axis=1, keepdims=True)
    votes = codes[index]
    shares = np.zeros((len(index), count + 1))  # those of items without a label last
    np.add.at(shares, (np.arange(len(index))[:, None], votes), weights)
    return np.round(shares[:, :-1], 9)  # so that all unanimous votes are equal


def _calibrated(share: Vector, left_out: Matrix, codes: Index) -> Vector:
    """How often labels with such shares are right, judged by the ``left_out`` votes."""
    from sklearn.isotonic import IsotonicRegression

    known, highest = codes != UNLABELED, left_out.max(axis=1)
    right = (left_out.argmax(axis=1) == codes) & (highest > 0.0)  # without votes there is no label
    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    model.fit(highest[known], right[known])
    confidence: Vector = model.predict(share)
    return np.where(share > 0.0, confidence, 0.0)


def _encode(labels: Any, count: int) -> tuple[NDArray[Any], Index]:
    """The distinct labels in order, and the code of each item's label."""
    values = np.asarray(labels, dtype=object)
    if values.shape != (count,):
        raise ValueError(
            f"`labels` has shape {values.shape}; `distances` has {count} columns, so pass "
            f"{count} labels. {without_dropped('labels', 'samples')}"
        )
    known = np.array([not is_missing(value) for value in values], dtype=bool)
    if not known.any():
        raise ValueError("`labels` are all missing; pass a label for some items at least.")
    try:
        classes, numbers = np.unique(values[known], return_inverse=True)
    except TypeError as error:
        raise ValueError(
            "`labels` mixes types that have no order. Pass all of them as strings."
        ) from error
    codes = np.full(count, UNLABELED, dtype=np.int64)
    codes[known] = numbers
    return np.array(classes.tolist()), codes


def _read(distances: Any, name: str) -> Any:
    """Distances as floats, nonnegative and finite; sparse ones in rows."""
    if isinstance(distances, Result):
        call = "samples" if name == "within" else "transform(new)"
        raise ValueError(f"`{name}` is a Result; pass distances, `result.{call}`.")
    matrix = unwrap(distances, name)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf" or 0 in matrix.shape:
        raise ValueError(
            f"`{name}` has shape {matrix.shape}; pass a matrix of numbers, new by labeled."
        )
    matrix = sparse.csr_array(matrix) if sparse.issparse(matrix) else matrix
    check_distances(matrix, name)
    return matrix
