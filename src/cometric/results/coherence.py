"""Moran's I of each feature: how much more alike its values are in neighboring samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds
from scipy.spatial.distance import cdist

from cometric.core.nearest import nearest
from cometric.core.types import Matrix, Vector
from cometric.maps.views import Shifted

FEWEST = 4
"""Fewest samples for the variance of Moran's I, and fewest features in each half."""

N_NEIGHBORS = 15
"""Nearest neighbors of each sample in the graph."""

N_COMPONENTS = 20
"""Principal components of each half of the features, for finding neighbors."""

SMALL = 200
"""Up to this many samples or features, use a full SVD."""


class Coherence(NamedTuple):
    """Moran's I of each feature, and how many standard deviations it is above chance."""

    value: Vector
    deviations: Vector


class Standard(NamedTuple):
    """Mean and standard deviation of each feature over the samples."""

    mean: Vector
    deviation: Vector


def standardization(values: sparse.csr_array) -> Standard:
    """Mean and standard deviation of each column; constant columns get the deviation 1."""
    n = values.shape[0]
    mean = np.asarray(values.sum(axis=0)).ravel() / n
    squares = np.asarray(values.power(2).sum(axis=0)).ravel() / n
    deviation = np.sqrt(np.maximum(squares - mean**2, 0.0))
    return Standard(mean, np.where(deviation <= 1e-9 * np.sqrt(squares), 1.0, deviation))


def split_coherence(
    values: sparse.csr_array, standard: Standard, random_state: int = 0
) -> Coherence:
    """Coherence of each feature (column) on a neighbor graph built without that feature.

    The features are split at random into two halves, each tested on the neighbor graph of the
    other. On one graph of all features, noise would look coherent: each feature would help to
    choose the neighbors that it is compared with.
    """
    m = values.shape[1]
    half = np.random.default_rng(random_state).permutation(m) < m // 2
    found = Coherence(np.zeros(m), np.zeros(m))
    if min(half.sum(), (~half).sum()) < FEWEST:
        return found
    for judges in (half, ~half):
        positions = _principal_components(
            sparse.csr_array(values[:, np.flatnonzero(judges)]),
            Standard(standard.mean[judges], standard.deviation[judges]),
        )
        graph = neighbor_pairs(cdist(positions, positions), N_NEIGHBORS)
        part = coherence(sparse.csr_array(values[:, np.flatnonzero(~judges)].T), graph)
        found.value[~judges], found.deviations[~judges] = part
    return found


def _principal_components(values: sparse.csr_array, standard: Standard) -> Matrix:
    """Coordinates of the samples, scaled to length 1: distances then compare angles."""
    n, m = values.shape
    scaled = sparse.csr_array(values.multiply(1.0 / standard.deviation))
    centered = Shifted(scaled, np.ones(n), standard.mean / standard.deviation)
    count = min(N_COMPONENTS, min(n, m) - 1)
    if min(n, m) <= SMALL:  # works for any rank
        vectors, sizes, _ = np.linalg.svd(centered.dense, full_matrices=False)
    else:
        vectors, sizes, _ = svds(centered.operator, count, v0=np.arange(1.0, min(n, m) + 1.0))
    positions: Matrix = vectors[:, :count] * sizes[:count]
    positions /= np.maximum(np.linalg.norm(positions, axis=1, keepdims=True), 1e-300)
    return positions


def neighbor_pairs(distances: Matrix, n_neighbors: int) -> sparse.csr_array:
    """Symmetric neighbor weights: 1 for mutual neighbors, 1/2 for one direction only."""
    n = len(distances)
    index, _ = nearest(distances, min(n_neighbors, n - 1), skip_self=True)
    parts = np.full(index.size, 0.5), index.ravel(), np.arange(0, index.size + 1, index.shape[1])
    graph = sparse.csr_array(parts, shape=(n, n))
    return sparse.csr_array(graph + graph.T)


def coherence(profiles: sparse.csr_array, graph: sparse.csr_array) -> Coherence:
    """Moran's I of each row of ``profiles``, whose columns are the items of ``graph``.

    With z the row minus its mean, n columns and the symmetric weights w of the graph, ::

        I = (n / sum_ij w_ij) (sum_ij w_ij z_i z_j) / (sum_i z_i^2).

    Its mean and variance under all permutations of the columns are known in closed form (Cliff
    and Ord), so no permutations are drawn. A constant row gets 0 and 0.
    """
    n = profiles.shape[1]
    if n < FEWEST:
        raise ValueError(f"There are {n} samples; their coherence needs at least {FEWEST}.")
    degree = np.asarray(graph.sum(axis=1)).ravel()
    total = degree.sum()
    mean = np.asarray(profiles.sum(axis=1)).ravel() / n
    powers = [np.asarray(profiles.power(p).sum(axis=1)).ravel() for p in (1, 2, 3, 4)]
    second = powers[1] - n * mean**2
    fourth = (
        powers[3] - 4 * mean * powers[2] + 6 * mean**2 * powers[1] - 4 * mean**3 * powers[0]
    ) + n * mean**4
    product = np.asarray((profiles @ graph).multiply(profiles).sum(axis=1)).ravel()
    product += mean**2 * total - 2.0 * mean * (profiles @ degree)
    varies = second > 1e-12 * powers[1]
    second = np.where(varies, second, 1.0)
    value = np.where(varies, n / total * product / second, 0.0)
    error = np.sqrt(_variance(graph, degree, n * fourth / second**2))
    deviations = np.where(
        varies & (error > 0), (value + 1.0 / (n - 1)) / np.where(error > 0, error, 1), 0.0
    )
    return Coherence(value, deviations)


def _variance(graph: sparse.csr_array, degree: Vector, kurtosis: Vector) -> Vector:
    """The variance of I over all permutations."""
    n = len(degree)
    s0 = degree.sum()
    s1 = 2.0 * float((graph.data**2).sum())
    s2 = 4.0 * float((degree**2).sum())
    plain = n * ((n * n - 3 * n + 3) * s1 - n * s2 + 3 * s0**2)
    heavy = (n * n - n) * s1 - 2 * n * s2 + 6 * s0**2
    whole = (n - 1) * (n - 2) * (n - 3) * s0**2
    variance: Vector = (plain - kurtosis * heavy) / whole - 1.0 / (n - 1) ** 2
    return np.maximum(variance, 0.0)
