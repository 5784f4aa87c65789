"""A metric between the samples, or between the features, that is given rather than learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.arguments import quoted
from cometric.core.histograms import Side
from cometric.core.inputs import counted, counted_that, read_names, unwrap
from cometric.core.matching import is_numbering
from cometric.core.types import Index, Matrix

ROUNDING = 1e-9
"""Asymmetry, and entries on the diagonal, that count as rounding errors, over the largest entry."""


def read_given(value: Any, name: str, side: Side) -> Matrix:
    """The given distances between the kept items of a side, checked.

    Parameters
    ----------
    value
        A square matrix with a row for each sample (or feature) of the data, empty ones included, in
        their order; if it and the data have names, these are matched, in any order and number.
    name
        "samples" or "features", the argument it was passed as.
    """
    matrix = unwrap(value, name)
    if sparse.issparse(matrix):
        raise ValueError(
            f"`{name}` is sparse, where entries that are not stored would be distances of 0. Pass "
            "a dense array with all distances."
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"`{name}` has shape {tuple(matrix.shape)}; pass a square matrix, the distances "
            f"between all {name}. Of vectors, compute distances first, with SciPy's cdist."
        )
    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"`{name}` has dtype {matrix.dtype}; pass real numbers.")
    places = _find_items(len(matrix), read_names(value), name, side)
    chosen = np.array(matrix[np.ix_(places, places)], dtype=np.float64)
    _check(chosen, name)
    chosen = 0.5 * (chosen + chosen.T)  # equal to itself if symmetric
    np.fill_diagonal(chosen, 0.0)
    return chosen


def _find_items(width: int, names: tuple[Any, Any], name: str, side: Side) -> Index:
    """The row of each kept item in the given matrix, matched by name if both have names."""
    rows, columns = names
    fits = width == len(side.kept)
    if rows is not None and rows != columns:
        raise ValueError(
            f"`{name}` has other names of rows than of columns; both must be the names of the "
            f"{name}, in the same order."
        )
    if rows is not None and side.names is not None and not is_numbering(rows):
        if fits and tuple(np.array(rows, dtype=object)[side.kept]) == side.names:
            return np.flatnonzero(side.kept)
        if not is_numbering(side.names):
            return _match(rows, side.names, name)
    if not fits:
        raise ValueError(
            f"`{name}` has {counted(width, 'row')}; `X` has {len(side.kept)} {name}. Pass the "
            f"distances between all of them, in their order. (Another number or order is matched "
            f"by name, where `X` and `{name}` both have names.)"
        )
    return np.flatnonzero(side.kept)


def _match(given: Sequence[str], wanted: Sequence[str], name: str) -> Index:
    counts = Counter(given)
    missing = [item for item in wanted if item not in counts]
    if missing:
        raise ValueError(
            f"`{name}` lacks {len(missing)} of the {len(wanted)} {name} of `X` "
            f"({quoted(missing)}). Add them, or leave them out of `X`."
        )
    for counted_names, owner in ((counts, f"`{name}`"), (Counter(wanted), "`X`")):
        repeated = [item for item in dict.fromkeys(wanted) if counted_names[item] > 1]
        if repeated:
            raise ValueError(
                f"{owner} has several {name} with the same name ({quoted(repeated)}), which "
                "cannot be matched. Make names unique, or pass a matrix without names, in the "
                "order of `X`."
            )
    position = {item: k for k, item in enumerate(given)}
    return np.array([position[item] for item in wanted], dtype=np.int64)


def _check(matrix: Matrix, name: str) -> None:
    """Raise unless finite, nonnegative, symmetric with a zero diagonal, and not all zero."""
    for bad, what in ((~np.isfinite(matrix), "not finite"), (matrix < 0.0, "negative")):
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ValueError(
                f"`{name}` has {counted_that(int(bad.sum()), 'entry')} {what} "
                f"(first: {matrix[i, j]:g} between items {i} and {j}). Pass distances."
            )
    top = float(matrix.max())
    if top == 0.0:
        raise ValueError(f"`{name}` is zero everywhere: all {name} would be equal. Pass distances.")
    if np.diagonal(matrix).max() > ROUNDING * top:
        raise ValueError(
            f"`{name}` has a non-zero diagonal; an item is at distance 0 from itself. Pass "
            "distances, not similarities."
        )
    if (abs(matrix - matrix.T) > ROUNDING * top).any():
        raise ValueError(
            f"`{name}` is not symmetric; pass the mean of it and its transpose, if that is meant."
        )
