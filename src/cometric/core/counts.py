"""Whether data are counts, and warnings about data that probably are not what was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.core.warn import warn

if TYPE_CHECKING:
    from cometric.core.histograms import Side
    from cometric.core.problem import Problem

ROWS = 100
"""Only the first rows, up to this number, are tested."""

MULTIPLE, CLOSE = 100.0, 0.01
"""Ratios to the smallest entry are tested up to this one, and may be this far from integers."""

LARGEST = 50.0
"""Upper limit for logarithms of counts."""

NUMBERED = 10
"""Fewest samples for the warning about a feature that numbers them."""

SHARE = 0.8
"""Share of the rows with at least two values that must be logarithms of multiples."""


def warn_of_data(X: Any, problem: Problem, needs_counts: bool) -> None:
    """Warn if the first feature counts the samples: probably a column that should be the index.

    With ``needs_counts``, also warn if the data are logarithms of counts.
    """
    if _numbers_samples(problem.features):
        warn(
            f"The first feature of `X`, {problem.features.item_names[0]!r}, counts the samples, "
            "from 0 or 1. If it is their number, make it the index, by `set_index`; in a file, "
            "leave the upper left cell of the table empty."
        )
    if needs_counts and are_logarithms(X):
        warn(
            "`X` holds logarithms of counts, log(1 + x). Distances from counts are better: pass "
            "these, or `np.expm1(X)`, whose rows are proportional to them."
        )


def _numbers_samples(side: Side) -> bool:
    """Whether the first of named features is 0, 1, 2, ... or 1, 2, 3, ... times a factor."""
    if side.names is None or not side.kept[0]:
        return False
    column = side.full[[side.labels[0]]].toarray()[0]
    step = column[-1] - column[-2]
    if len(column) < NUMBERED or column[0] > 1.5 * step:
        return False
    return np.allclose(np.diff(column), step, rtol=1e-6, atol=0.0)


def is_whole(matrix: Any) -> bool:
    """Whether all entries of an array in memory, dense or sparse, are whole numbers."""
    if not sparse.issparse(matrix) and not isinstance(matrix, np.ndarray):
        return False
    data = matrix.data if sparse.issparse(matrix) else matrix
    kind = np.asarray(data).dtype.kind
    return kind in "biu" or (kind == "f" and bool(np.all(data == np.rint(data))))


def are_logarithms(X: Any) -> bool:
    """Whether rows are log(1 + s k) of whole numbers k, with a scale s for each row.

    This is the output of scanpy's ``normalize_total`` and ``log1p``. False for anything but an
    array or sparse matrix in memory, or an AnnData with one.
    """
    matrix = getattr(X, "X", X)
    if sparse.issparse(matrix) and matrix.ndim == 2:
        rows = sparse.csr_array(matrix)[:ROWS].astype(np.float64)
    elif isinstance(matrix, np.ndarray) and matrix.ndim == 2 and matrix.dtype.kind == "f":
        rows = sparse.csr_array(matrix[:ROWS].astype(np.float64))
    else:
        return False
    if is_whole(rows):
        return False
    data = np.split(rows.data, rows.indptr[1:-1])
    varied = [row[row > 0.0] for row in data if len(np.unique(row[row > 0.0])) > 1]
    logs = [row for row in varied if row.max() < LARGEST and _are_logarithms(row)]
    return bool(logs) and len(logs) >= SHARE * len(varied)


def _are_logarithms(row: Any) -> bool:
    """Whether a row is log(1 + x) of multiples x, not multiples itself (as for very small x)."""
    return _are_multiples(np.expm1(row)) and not _are_multiples(row)


def _are_multiples(row: Any) -> bool:
    """Whether the entries are multiples of the smallest; false if all are equal or far larger."""
    with np.errstate(over="ignore"):
        multiples = row / row.min()
    multiples = multiples[(multiples > 1.0 + CLOSE) & (multiples < MULTIPLE)]
    off = np.abs(multiples - np.rint(multiples))
    return len(off) > 0 and float(off.max()) < CLOSE
