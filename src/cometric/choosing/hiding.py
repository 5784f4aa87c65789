"""Halves of the data, one to learn from and one to predict, and the loss of a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.nearest import nearest
from cometric.core.types import Index, Matrix


class Split(NamedTuple):
    """Two halves of the data: one to learn from, and histograms to predict."""

    samples: Index  # those with mass in both halves
    visible: sparse.csr_array  # samples x features, without empty ones
    hidden: Matrix  # histograms as rows


def subsample(
    X: sparse.csr_array, n_samples: int, n_features: int, rng: np.random.Generator
) -> tuple[Index, Index]:
    """Random samples in random order, and the features that vary the most between them.

    The variance is that of the roots of masses, in which the loss is measured. All samples and
    features have some mass in this part of ``X``.
    """
    rows = rng.permutation(np.flatnonzero(np.diff(X.indptr) > 0))[:n_samples]
    part = normalize(X[rows])
    mean = part.sqrt().mean(axis=0)
    variance = part.mean(axis=0) - mean**2
    columns = np.sort(np.argsort(-variance, kind="stable")[:n_features])
    columns = columns[mean[columns] > 0.0]
    return rows[np.diff(part[:, columns].indptr) > 0], columns


def hide_features(X: sparse.csr_array, n_splits: int, rng: np.random.Generator) -> Iterator[Split]:
    """Splits into two random halves of the features."""
    for _ in range(n_splits):
        columns = rng.permutation(X.shape[1])
        half = X.shape[1] // 2
        yield _split(X[:, np.sort(columns[:half])], X[:, np.sort(columns[half:])])


def _split(visible: sparse.csr_array, hidden: sparse.csr_array) -> Split:
    samples = np.flatnonzero((visible.sum(axis=1) > 0) & (hidden.sum(axis=1) > 0))
    visible = visible[samples]
    used = np.flatnonzero(visible.sum(axis=0) > 0)
    return Split(samples, visible[:, used], normalize(hidden[samples]).toarray())


def normalize(X: sparse.csr_array) -> sparse.csr_array:
    """The rows divided by their sums."""
    return sparse.csr_array(sparse.diags_array(1.0 / X.sum(axis=1)) @ X)


def prediction_losses(distances: Matrix, hidden: Matrix, n_neighbors: int) -> Matrix:
    """Squared Hellinger distance of each histogram to the mean of its neighbors' ones.

    ``1 - sum_k sqrt(h_ik p_ik)``, with p_i the mean of the hidden histograms of the nearest
    samples of i.
    """
    index = nearest(distances, n_neighbors, skip_self=True)[0]
    n = len(hidden)
    rows = np.repeat(np.arange(n), n_neighbors)
    weights = np.full(n * n_neighbors, 1.0 / n_neighbors)
    average = sparse.csr_array((weights, (rows, index.ravel())), shape=(n, n))
    losses: Matrix = 1.0 - np.sqrt((average @ hidden) * hidden).sum(axis=1)
    return losses


def standard_error(values: Matrix) -> float:
    """Standard error of the mean of ``values``, splits by samples, NaN where left out.

    Splits share samples, and all samples of a split share the hidden features: the variances of
    the means by sample and of the means by split are added. This counts the variance within
    both twice, so the error is rather too large than too small.
    """
    values = values[:, ~np.isnan(values).all(axis=0)]
    variance = 0.0
    for axis in (0, 1):
        means = np.nanmean(values, axis=axis)
        if len(means) > 1:
            variance += means.var(ddof=1) / len(means)
    return float(np.sqrt(variance))
