"""Views: distances that references combine, fitted to the learned histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from cometric.core.histograms import QUANTUM, Histograms
from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import geometry
from cometric.maps.components import Components, Shifted, unit
from cometric.maps.euclidean import Euclidean, Vectors, sums_of_squares

RESOLUTIONS = (5, 10, 30, 100)
"""Numbers of components of the views of "local", from coarse to fine."""

COMPONENTS = (30,)
"""The same for "lsa", "local-0.2", and between features."""

PAIRS = 2_000_000
"""Pairs of histograms in one call of a kernel."""

CONSTANT, NEARLY = 1e-12, 1e-5
"""Items whose deviations from their mean are below these fractions of it count as constant, and as
nearly constant."""


class Distance(Protocol):
    """A distance between placed items; these have a method ``take`` that selects some."""

    def between(self, rows: Any, columns: Any) -> Matrix:
        """Distances from rows to columns; symmetric if both are the same object."""

    def pairs(self, items: Any, index: Index) -> Vector: ...


class Views(NamedTuple):
    """Several distances between histograms; ``place`` returns the placed items for each of them.

    ``weights`` are between 0 and 1.
    """

    place: Callable[[Histograms], list[Any]]
    distances: Sequence[Distance]
    weights: Sequence[float]


class Manhattan:
    """l1 distances."""

    def between(self, rows: Histograms, columns: Histograms) -> Matrix:
        if rows is columns:
            all_pairs: Matrix = QUANTUM * geometry.pairwise_norms(*rows.integer_parts, 1.0)
            return all_pairs
        n, k = rows.shape[0], columns.shape[0]
        one, other = rows.integer_parts, columns.integer_parts
        both = (
            np.concatenate([one[0], one[0][-1] + other[0][1:]]),
            np.concatenate([one[1], other[1]]),
            np.concatenate([one[2], other[2]]),
        )
        distances = np.empty((n, k))
        step = max(1, PAIRS // k)
        for start in range(0, n, step):
            end = min(start + step, n)
            i, j = np.mgrid[start:end, n : n + k]
            index = np.stack([i.ravel(), j.ravel()], axis=1)
            norms = geometry.pair_norms(*both, index, 1.0)
            distances[start:end] = QUANTUM * norms.reshape(end - start, k)
        return distances

    def pairs(self, items: Histograms, index: Index) -> Vector:
        distances: Vector = QUANTUM * geometry.pair_norms(*items.integer_parts, index, 1.0)
        return distances


# Several views


def at_all_resolutions(hist: Histograms) -> Views:
    """Views of samples: l1, tf-idf, and LSA and CA with each of ``RESOLUTIONS`` components."""
    known = hist.rows
    damp, residuals = _damping(known), _residuals(known)
    tfidf = _tfidf(damp(known))
    lsa = Components(_unshifted(tfidf(damp(known))), RESOLUTIONS)
    ca = Components(residuals(known), RESOLUTIONS)

    def place(hist: Histograms) -> list[Any]:
        damped = damp(hist.rows)
        weighted = tfidf(damped)
        vectors = [*lsa.place(_unshifted(weighted)), *ca.place(residuals(hist.rows))]
        return [_shares(damped), Vectors.of(weighted), *vectors]

    weights = [1.0, 1.0, *lsa.weights, *ca.weights]
    return Views(place, [Manhattan(), *[Euclidean()] * (len(weights) - 1)], weights)


def of_version_0_2(hist: Histograms) -> Views:
    """Three views of samples: l1, tf-idf and LSA."""
    damp = _damping(hist.rows)
    tfidf = _tfidf(damp(hist.rows))
    lsa = Components(_unshifted(tfidf(damp(hist.rows))), COMPONENTS)

    def place(hist: Histograms) -> list[Any]:
        damped = damp(hist.rows)
        weighted = tfidf(damped)
        return [_shares(damped), Vectors.of(weighted), *lsa.place(_unshifted(weighted))]

    return Views(place, [Manhattan(), Euclidean(), Euclidean()], [1.0, 1.0, 1.0])


def of_features(hist: Histograms) -> Views:
    """Two views of features: l1, and the loadings of a PCA."""
    damp = _damping(hist.rows)
    pca = Components(_centered(damp(hist.rows)), COMPONENTS)

    def place(hist: Histograms) -> list[Any]:
        damped = damp(hist.rows)
        return [_shares(damped), *pca.place(_centered(damped))]

    return Views(place, [Manhattan(), Euclidean()], [1.0, 1.0])


# One view


def lsa(hist: Histograms) -> Views:
    """Latent semantic analysis: tf-idf, the first singular vectors, length 1."""
    damp = _damping(hist.rows)
    tfidf = _tfidf(damp(hist.rows))
    vectors = Components(_unshifted(tfidf(damp(hist.rows))), COMPONENTS)
    return Views(lambda hist: vectors.place(_unshifted(tfidf(damp(hist.rows)))), [Euclidean()], [1])


def cosine(hist: Histograms) -> Views:
    """One minus the cosine."""
    return Views(lambda hist: [Vectors.of(unit(hist.rows))], [Euclidean(squared=True)], [1])


def hellinger(hist: Histograms) -> Views:
    """Euclidean distances of the square roots of masses."""

    def place(hist: Histograms) -> list[Any]:
        return [Vectors.of(_with_data(hist.rows, np.sqrt(hist.rows.data)))]

    return Views(place, [Euclidean()], [1])


# Embeddings


def _damping(known: sparse.csr_array) -> Callable[[sparse.csr_array], sparse.csr_array]:
    """log(1 + x / median), with the median of the positive entries: large entries count less."""
    median = float(np.median(known.data))
    return lambda rows: _with_data(rows, np.log1p(rows.data / median))


def _shares(damped: sparse.csr_array) -> Histograms:
    """Damped masses, divided by their sum."""
    sums = np.repeat(damped.sum(axis=1), np.diff(damped.indptr))
    return Histograms(_with_data(damped, damped.data / sums))


def _tfidf(known: sparse.csr_array) -> Callable[[sparse.csr_array], sparse.csr_array]:
    """Entries weighted by inverse document frequency in the learned items; rows have length 1."""
    n, d = known.shape
    holders = np.bincount(known.indices, minlength=d)
    weight = np.log((1.0 + n) / (1.0 + holders)) + 1.0

    def embed(damped: sparse.csr_array) -> sparse.csr_array:
        weighted: sparse.csr_array = unit(_with_data(damped, damped.data * weight[damped.indices]))
        return weighted

    return embed


def _residuals(known: sparse.csr_array) -> Callable[[sparse.csr_array], Shifted]:
    """Residuals of correspondence analysis: (a - c) / sqrt(c), c the mean learned histogram."""
    roots = np.sqrt(known.sum(axis=0) / known.shape[0])
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0.0)

    def embed(rows: sparse.csr_array) -> Shifted:
        scaled = _with_data(rows, rows.data * inverse[rows.indices])
        return Shifted(scaled, np.ones(rows.shape[0]), roots)

    return embed


def _centered(damped: sparse.csr_array) -> Shifted:
    """Rows minus their means, divided by their lengths."""
    means, stored = damped.mean(axis=1), np.diff(damped.indptr)
    deviations = _with_data(damped, damped.data - np.repeat(means, stored))
    squares = sums_of_squares(deviations) + (damped.shape[1] - stored) * means**2
    sizes = np.sqrt(damped.shape[1]) * means
    # Entries minus the mean would lose digits in nearly constant rows. As these have no zeros, they
    # are replaced by their deviations, without the rounding error of the mean.
    nearly = np.sqrt(squares) <= NEARLY * sizes
    deviations.data -= np.repeat(np.where(nearly, deviations.mean(axis=1), 0.0), stored)
    squares[nearly] = sums_of_squares(deviations)[nearly]
    lengths = np.sqrt(squares)
    lengths[lengths <= CONSTANT * sizes] = np.inf  # only rounding errors are left
    data = np.where(np.repeat(nearly, stored), deviations.data, damped.data)
    scaled = _with_data(damped, data / np.repeat(lengths, stored))
    return Shifted(scaled, np.where(nearly, 0.0, means) / lengths, np.ones(damped.shape[1]))


def _unshifted(rows: sparse.csr_array) -> Shifted:
    return Shifted(rows, np.zeros(rows.shape[0]), np.zeros(rows.shape[1]))


def _with_data(rows: sparse.csr_array, data: Vector) -> sparse.csr_array:
    return sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)
