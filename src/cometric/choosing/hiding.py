"""Halves of the data, one to learn from and one to predict, and the loss of a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cometric import baselines
from cometric.core.nearest import nearest
from cometric.core.types import Index, Matrix

COMPONENTS = 10
"""Components of the hidden half that are predicted; see docs/notes/choosing.md."""

ERRORS = 2.0
"""A difference counts if it is above this many of its standard errors."""


class Split(NamedTuple):
    """Two halves of the data: one to learn from, and vectors to predict."""

    samples: Index  # those with mass in both halves
    visible: sparse.csr_array  # samples x features, without empty ones
    hidden: Matrix  # vectors of length 1 as rows


def subsample(
    X: sparse.csr_array, n_samples: int, n_features: int, rng: np.random.Generator
) -> tuple[Index, Index]:
    """Random samples in random order, and the features that vary the most between them.

    The variance is that of square roots, so that a few large masses do not dominate. Samples and
    features that are empty in this part of ``X`` are left out.
    """
    rows = rng.permutation(np.flatnonzero(np.diff(X.indptr) > 0))[:n_samples]
    if not len(rows):
        raise ValueError("`X` has no mass: all entries are zero.")
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
        visible, hidden = X[:, np.sort(columns[:half])], X[:, np.sort(columns[half:])]
        samples = np.flatnonzero((visible.sum(axis=1) > 0) & (hidden.sum(axis=1) > 0))
        visible, hidden = visible[samples], hidden[samples]
        used = np.flatnonzero(visible.sum(axis=0) > 0)
        vectors = np.empty((len(samples), 0))
        if len(samples) > 1:  # the caller raises for fewer
            n_components = min(COMPONENTS, *hidden.shape)
            vectors = baselines.lsa_vectors(baselines.log_normalized(hidden), n_components)
        yield Split(samples, visible[:, used], vectors)


def normalize(X: sparse.csr_array) -> sparse.csr_array:
    """The rows divided by their sums."""
    return sparse.csr_array(sparse.diags_array(1.0 / X.sum(axis=1)) @ X)


def prediction_losses(distances: Matrix, hidden: Matrix, n_neighbors: int) -> Matrix:
    """One minus the cosine between each vector and the mean of its neighbors' vectors.

    ``1 - <v_i, p_i> / |p_i|``, with p_i the mean of the hidden vectors of the nearest samples of i.
    """
    index = nearest(distances, n_neighbors, skip_self=True)[0]
    means = np.zeros_like(hidden)
    for column in index.T:
        means += hidden[column]
    length = np.linalg.norm(means, axis=1)
    losses: Matrix = 1.0 - (means * hidden).sum(axis=1) / np.where(length > 0.0, length, 1.0)
    return losses


def standard_error(values: Matrix) -> float:
    """Standard error of the mean of ``values``, splits by samples, NaN where left out.

    Splits share samples, and all samples of a split share the hidden features: the variances of
    the means by sample and of the means by split are added. This counts the variance within
    both twice, so the error tends to be too large.
    """
    values = values[:, ~np.isnan(values).all(axis=0)]
    variance = 0.0
    for axis in (0, 1):
        means = np.nanmean(values, axis=axis)
        if len(means) > 1:
            variance += means.var(ddof=1) / len(means)
    return float(np.sqrt(variance))
