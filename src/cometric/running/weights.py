"""The regularization and the share of R, chosen by how many features two samples share."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import sparse

TRANSPORT, HALVED = 0.7, 3.0
"""The share of transport where samples have no features in common, and the number of common
features that halves it. Measured on 31 sets, docs/notes/usefulness.md."""

SPARSE_EPS = 0.3
"""The regularization where samples have no features in common."""

MOST_EPS = 30.0
"""Above it, the limit is used: distances differ by less than the default tolerance."""

MOST_SHARED = 0.9
"""Cap on the number of common features where the limit cannot be computed."""


class Chosen(NamedTuple):
    """Values chosen by the data, from the number of features that two samples share."""

    eps: float
    restart: float
    overlap: float


def chosen(hist: sparse.csr_array, *, limit: bool) -> Chosen:
    """The regularization and the share of R for the histograms of samples.

    The regularization grows with the overlap, to infinity (the linear limit) at 1: continuously,
    so that small changes of the data have small effects. Without ``limit``, it grows to 3.
    """
    shared = overlap(hist)
    restart = 1.0 - TRANSPORT / (1.0 + (shared / HALVED) ** 2)
    least = shared if limit else min(shared, MOST_SHARED)
    eps = SPARSE_EPS / (1.0 - least) if least < 1.0 else math.inf
    return Chosen(eps if eps <= MOST_EPS else math.inf, restart, shared)


def overlap(rows: sparse.csr_array) -> float:
    """The number of features that two histograms share, averaged over all pairs of rows.

    The mean of <b_i, b_j>, where b = a / |a|^2, and a is log(1 + x / median) divided by its sum
    (the median of all positive x). For flat histograms this is the number of common bins.
    """
    damped = np.log1p(rows.data / np.median(rows.data))
    of_row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    totals = np.bincount(of_row, damped, rows.shape[0])
    squares = np.bincount(of_row, damped**2, rows.shape[0])
    scaled = damped * (totals / squares)[of_row]
    sums = np.bincount(rows.indices, scaled, rows.shape[1])
    n = rows.shape[0]
    together = sums @ sums - (totals**2 / squares).sum()
    return max(0.0, float(together / (n * (n - 1))))  # below 0 by rounding only
