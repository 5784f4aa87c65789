"""Values of features, by which the report colors samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.problem import Problem
from cometric.core.text import storable
from cometric.core.types import Index


@dataclass(frozen=True)
class Values:
    """A matrix of nonnegative numbers, samples by features, and the names of the features."""

    matrix: sparse.csc_array
    names: list[str]

    def take(self, rows: Index, first: list[str], most: int) -> Values:
        """The values of some samples, for as many features as fit into ``most`` entries.

        Features in ``first`` are preferred, then those with larger sums.
        """
        part = sparse.csc_array(self.matrix[rows])
        preferred = np.isin(np.array(self.names, dtype=object), np.array(first, dtype=object))
        sums = np.asarray(part.sum(axis=0)).ravel()
        order = np.lexsort((-sums, ~preferred))
        entries = np.cumsum(np.diff(part.indptr)[order])
        columns = np.sort(order[: int(np.searchsorted(entries, most, side="right"))])
        return Values(sparse.csc_array(part[:, columns]), [self.names[k] for k in columns])


def read_values(X: Any, problem: Problem, names: list[str]) -> Values:
    """The values of a matrix with features ``names``, of a data frame, or of an AnnData."""
    own: list[str] | None = None
    if hasattr(X, "var_names") and hasattr(X, "X"):
        own, X = [str(name) for name in X.var_names], X.X
        if X is None:
            raise ValueError("`X` is an AnnData without `.X`; pass one of its layers.")
    elif hasattr(X, "columns") and hasattr(X, "to_numpy"):
        own, X = [str(name) for name in X.columns], X.to_numpy()
    try:
        matrix = sparse.csc_array(X, dtype=np.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`X` is not a matrix of numbers: {error}.") from None
    samples, features = problem.samples, problem.features
    if matrix.shape[0] == len(samples.kept):
        matrix = matrix[samples.kept]
    if own is None and matrix.shape[1] == len(features.kept):
        matrix = matrix[:, features.kept]
    shape = (len(samples.labels), len(names) if own is None else len(own))
    if matrix.shape != shape:
        raise ValueError(
            f"`X` has shape {matrix.shape}; there are {shape[0]} samples and {shape[1]} features, "
            f"so pass a matrix of shape {shape}, or a data frame with named features."
        )
    matrix = sparse.csc_array(matrix)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise ValueError("`X` has negative or missing entries; pass finite numbers from 0 up.")
    return Values(matrix, [storable(name) for name in own or names])
