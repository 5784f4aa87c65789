"""References: named matrices R that compare items as text and cell analysis usually do.

A reference is fitted to the learned histograms and then places any histograms over the same bins,
so that new items have distances to the learned ones. Its matrix is symmetric and positive between
different items, which is all that the theory asks of R. "local" is not a metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import ArpackError, LinearOperator, svds

from cometric.core.histograms import MERGE_TOLERANCE, QUANTUM, Histograms
from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import differences, geometry
from cometric.maps.euclidean import Embedding, Euclidean, sums_of_squares

NAMES = ("local", "lsa", "cosine", "hellinger", "local-0.2")

COMPONENTS = 30
"""Singular vectors to keep; fewer if a cut there would divide equal singular values."""

NEAR, AROUND = 10, 30
"""Nearest items by which "local" scales each of its distances, and their sum."""

NOISE = 0.9
"""The part of the distance to the nearest item that "local" takes for noise."""

SHARPNESS = 1.5
"""The power to which "local" raises distances."""

FAR = 0.99
"""The share of all pairs beyond which "local" calls items equally far apart: a few outliers would
otherwise decide how much all other distances weigh."""

SMALLEST = 1e-6
"""Distances between different items are at least this part of the mean distance."""

BLOCK = 10_000_000
"""Distances of new items to learned ones that are in memory at a time."""

PAIRS = 2_000_000
"""Pairs of histograms in one call of a kernel."""

CONSTANT = 1e-8
"""Deviations from a mean, relative to it, below which an item counts as constant."""

SMALL = 200
"""Size up to which singular vectors are computed from a dense matrix."""


class Distance(Protocol):
    """A distance between histograms, computed from what ``place`` returns for them.

    The result of ``place`` has a method ``take`` for some of the items.
    """

    def place(self, hist: Histograms) -> Any: ...

    def between(self, rows: Any, columns: Any) -> Matrix: ...

    def pairs(self, items: Any, index: Index) -> Vector: ...


class Manhattan:
    """l1 distances between the histograms that ``embed`` computes from others, unnormalized."""

    def __init__(self, embed: Embedding) -> None:
        self._embed = embed

    def place(self, hist: Histograms) -> Histograms:
        rows = self._embed(hist.rows)
        rows.data /= np.repeat(rows.sum(axis=1), np.diff(rows.indptr))
        return Histograms(rows)

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
            norms = differences.pair_norms(*both, index, 1.0)
            distances[start:end] = QUANTUM * norms.reshape(end - start, k)
        return distances

    def pairs(self, items: Histograms, index: Index) -> Vector:
        distances: Vector = QUANTUM * differences.pair_norms(*items.integer_parts, index, 1.0)
        return distances


class PlainItems(NamedTuple):
    """Placed items, and their histograms."""

    places: Any
    hist: Histograms

    def take(self, items: slice) -> PlainItems:
        return PlainItems(self.places.take(items), self.hist.take(items))


class Plain:
    """One distance; small ones are raised, so that different items are apart."""

    def __init__(self, hist: Histograms, distance: Distance) -> None:
        self._distance = distance
        placed = distance.place(hist)
        self.matrix = _symmetric(distance.between(placed, placed))
        self._smallest = SMALLEST * _mean(self.matrix)
        np.maximum(self.matrix, self._smallest, out=self.matrix)
        np.fill_diagonal(self.matrix, 0.0)

    def place(self, hist: Histograms) -> PlainItems:
        return PlainItems(self._distance.place(hist), hist)

    @property
    def components(self) -> Sequence[Distance]:
        """The distance, as the only one."""
        return [self._distance]

    @property
    def smallest(self) -> float:
        """The least distance between different items."""
        return self._smallest

    def pairs(self, items: PlainItems, index: Index) -> Vector:
        distances = self._distance.pairs(items.places, index)
        low = np.flatnonzero(distances < self._smallest)
        distances[low] = self._smallest * items.hist.differ(items.hist, *np.asarray(index)[low].T)
        return distances

    def between(self, items: PlainItems, rows: slice, columns: slice) -> Matrix:
        one, other = items.take(rows), items.take(columns)
        distances = self._distance.between(one.places, other.places)
        i, j = np.nonzero(distances < self._smallest)
        distances[i, j] = self._smallest * one.hist.differ(other.hist, i, j)
        return distances


class LocalItems(NamedTuple):
    """Placed items: for each distance, and then for their sum, the scale around every item."""

    places: list[Any]
    scales: list[Vector]
    noise: Vector
    spread: Vector


class LocalParts(NamedTuple):
    """What a local reference is put together from; ``farthest`` is its largest value."""

    distances: Sequence[Distance]
    known: list[Any]
    scales: list[Vector]
    weights: list[float]
    farthest: float


class Local:
    """Several distances, each relative to those in the neighborhood, and without their noise.

    In every distance d, items have a scale s_i: the mean distance to their ten nearest learned
    items. The sum of all d_ij / sqrt(s_i s_j), each divided by its mean, is a distance a in which
    sparse and dense neighborhoods, and noisy and clean items, are alike. Of a, 0.9 times the
    distance to the nearest item, n_i, is taken for noise, and with t_i the mean of a - n_i
    over the 30 nearest items ::

        R_ij = ((a_ij - n_i) (a_ij - n_j) / (t_i t_j)) ^ (3/4),

    or the 99 % quantile of all these, where they are larger.

    The first of the distances must be positive between different items.
    """

    def __init__(self, hist: Histograms, distances: Sequence[Distance]) -> None:
        self._distances = distances
        self._known = [distance.place(hist) for distance in distances]
        self._scales: list[Vector] = []
        self._weights: list[float] = []
        total = np.zeros((hist.shape[0], hist.shape[0]))
        same = np.eye(hist.shape[0], dtype=bool)
        for distance, placed in zip(distances, self._known, strict=True):
            part = _symmetric(distance.between(placed, placed))
            scale = self._scale(part, same)
            part /= _outer(scale, scale)
            with np.errstate(over="ignore"):  # all of the ten nearest are at distance 0: no weight
                mean = _mean(part)
            self._scales.append(scale)
            self._weights.append(1.0 / mean if mean > 0.0 else 0.0)
            total += self._weights[-1] * part
        noise, spread = self._noise_and_spread(total, same)
        self._farthest = np.inf
        self.matrix = self._relative(total, (noise[:, None], noise), np.outer(spread, spread))
        np.fill_diagonal(self.matrix, 0.0)
        self._farthest = _quantile(self.matrix, FAR)
        np.minimum(self.matrix, self._farthest, out=self.matrix)

    @property
    def parts(self) -> LocalParts:
        """What was fitted, for the same computation elsewhere."""
        return LocalParts(self._distances, self._known, self._scales, self._weights, self._farthest)

    def place(self, hist: Histograms) -> LocalItems:
        places = [distance.place(hist) for distance in self._distances]
        n, known = hist.shape[0], len(self._scales[0])
        step = max(1, BLOCK // known)
        blocks = [self._around(places, slice(i, min(i + step, n))) for i in range(0, n, step)]
        *scales, noise, spread = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return LocalItems(places, scales, noise, spread)

    @property
    def components(self) -> Sequence[Distance]:
        """The distances of which this is made."""
        return self._distances

    def around(self, parts: Sequence[Matrix]) -> list[Vector]:
        """What :meth:`place` finds out about items, from their distances to the learned ones."""
        same = parts[0] <= MERGE_TOLERANCE  # an item that equals a learned one
        scales = [self._scale(part, same) for part in parts]
        total = np.zeros(())
        for c, part in enumerate(parts):
            total = total + self._weights[c] * part / _outer(scales[c], self._scales[c])
        return [*scales, *self._noise_and_spread(total, same)]

    def combine(self, parts: Sequence[Matrix], around: list[Vector], index: tuple[Any, Any]) -> Any:
        """R of pairs from their distances ``parts`` and what :meth:`around` gave for all items.

        ``index`` are the numbers of the items, in shapes that broadcast to that of the parts.
        """
        i, j = index
        *scales, noise, spread = around
        total = np.zeros(())
        for c, part in enumerate(parts):
            scale = np.sqrt(scales[c])
            total = total + self._weights[c] * part / (scale[i] * scale[j])
        return self._relative(total, (noise[i], noise[j]), spread[i] * spread[j])

    def _around(self, places: list[Any], rows: slice) -> list[Vector]:
        """The scales of some items, their noise and their spread, by the learned items."""
        return self.around(
            [
                distance.between(places[c].take(rows), self._known[c])
                for c, distance in enumerate(self._distances)
            ]
        )

    def pairs(self, items: LocalItems, index: Index) -> Vector:
        i, j = np.asarray(index).T
        total = np.zeros(len(i))
        for c, distance in enumerate(self._distances):
            scale = np.sqrt(items.scales[c])
            part = distance.pairs(items.places[c], index)
            total += self._weights[c] * part / (scale[i] * scale[j])
        noise, spreads = (items.noise[i], items.noise[j]), items.spread[i] * items.spread[j]
        distances: Vector = self._relative(total, noise, spreads)
        return distances

    def between(self, items: LocalItems, rows: slice, columns: slice) -> Matrix:
        total = np.zeros(())
        for c, distance in enumerate(self._distances):
            placed, scale = items.places[c], items.scales[c]
            part = distance.between(placed.take(rows), placed.take(columns))
            total = total + self._weights[c] * part / _outer(scale[rows], scale[columns])
        noise = items.noise[rows, None], items.noise[columns]
        spreads = np.outer(items.spread[rows], items.spread[columns])
        distances: Matrix = self._relative(total, noise, spreads)
        return distances

    @staticmethod
    def _scale(distances: Matrix, same: NDArray[np.bool_]) -> Vector:
        scale: Vector = _near(distances, same, NEAR).mean(axis=1)
        return np.maximum(scale, max(SMALLEST * float(scale.mean()), np.finfo(float).tiny))

    @staticmethod
    def _noise_and_spread(total: Matrix, same: Any) -> tuple[Vector, Vector]:
        near = _near(total, same, AROUND)
        noise = NOISE * near.min(axis=1)
        return noise, (near - noise[:, None]).mean(axis=1)

    def _relative(self, total: Any, noise: tuple[Vector, Vector], spreads: Any) -> Any:
        above = [np.maximum(total - part, SMALLEST * total) for part in noise]
        relative = (above[0] * above[1] / spreads) ** (SHARPNESS / 2)
        return np.minimum(relative, self._farthest)


def fit(name: str, hist: Histograms, of: str) -> Plain | Local:
    """The reference ``name`` between items of one side, "samples" or "features"."""
    if name == "cosine":
        return Plain(hist, Euclidean(_unit, squared=True))
    if name == "hellinger":
        return Plain(hist, Euclidean(lambda rows: _with_data(rows, np.sqrt(rows.data))))
    damp = _damping(hist.rows)
    tfidf = _tfidf(damp, hist.rows)
    if name == "lsa":
        return Plain(hist, Euclidean(_projection(tfidf, hist.rows)))
    manhattan = Manhattan(damp)
    if of == "features":
        return Local(hist, [manhattan, Euclidean(_loadings(damp, hist.rows))])
    return Local(hist, [manhattan, Euclidean(tfidf), Euclidean(_projection(tfidf, hist.rows))])


def lsa_vectors(hist: Histograms) -> Matrix:
    """The vectors whose Euclidean distances are the reference "lsa", one per histogram."""
    vectors: Matrix = _projection(_tfidf(_damping(hist.rows), hist.rows), hist.rows)(hist.rows)
    return vectors


# Embeddings


def _damping(known: sparse.csr_array) -> Embedding:
    """log(1 + x / median), with the median of the positive entries: large entries count less."""
    median = float(np.median(known.data))
    return lambda rows: _with_data(rows, np.log1p(rows.data / median))


def _tfidf(damp: Embedding, known: sparse.csr_array) -> Embedding:
    """Entries weighted by how few of the learned items have them, each row of length 1."""
    n, d = known.shape
    holders = np.bincount(known.indices, minlength=d)
    weight = np.log((1.0 + n) / (1.0 + holders)) + 1.0

    def embed(rows: sparse.csr_array) -> sparse.csr_array:
        damped = damp(rows)
        return _unit(_with_data(damped, damped.data * weight[damped.indices]))

    return embed


def _projection(embed: Embedding, known: sparse.csr_array) -> Embedding:
    """Rows projected to the first singular vectors of the learned ones, then of length 1."""
    vectors = _singular_vectors(embed(known))
    return lambda rows: _unit(embed(rows) @ vectors)


def _loadings(damp: Embedding, known: sparse.csr_array) -> Embedding:
    """The same for rows that are centered and of length 1: the loadings of features in a PCA."""

    def center(rows: sparse.csr_array) -> tuple[sparse.csr_array, Vector]:
        damped = damp(rows)
        means, stored = damped.mean(axis=1), np.diff(damped.indptr)
        centered = _with_data(damped, damped.data - np.repeat(means, stored))
        squares = sums_of_squares(centered) + (rows.shape[1] - stored) * means**2
        lengths = np.sqrt(squares)
        constant = lengths <= CONSTANT * np.sqrt(rows.shape[1]) * means
        lengths[constant] = np.inf  # what is left of them is rounding
        data = damped.data / np.repeat(lengths, stored)
        return _with_data(damped, data), means / lengths

    scaled, means = center(known)
    vectors = _singular_vectors(
        LinearOperator(
            known.shape,
            matvec=lambda v: scaled @ np.ravel(v) - means * np.sum(v),
            rmatvec=lambda u: scaled.T @ np.ravel(u) - np.dot(means, np.ravel(u)),
            matmat=lambda V: scaled @ V - np.outer(means, V.sum(axis=0)),
            rmatmat=lambda U: scaled.T @ U - (means @ U)[None],
            dtype=np.float64,
        )
    )

    def embed(rows: sparse.csr_array) -> Matrix:
        scaled, means = center(rows)
        loadings: Matrix = _unit(scaled @ vectors - np.outer(means, vectors.sum(axis=0)))
        return loadings

    return embed


def _singular_vectors(matrix: Any) -> Matrix:
    """The first right singular vectors as columns, up to a gap between singular values."""
    n, d = matrix.shape
    if min(n, d) > SMALL:
        start = np.random.default_rng(0).standard_normal(min(n, d))
        try:
            _, values, vectors = svds(matrix, COMPONENTS + 1, v0=start)
            order = np.argsort(-values)
            return _cut_at_gap(values[order], vectors[order])
        except ArpackError:  # no convergence
            pass
    if not isinstance(matrix, LinearOperator):
        dense = matrix.toarray()
    else:
        dense = matrix.rmatmat(np.eye(n)).T if n <= d else matrix.matmat(np.eye(d))
    _, values, vectors = np.linalg.svd(dense, full_matrices=False)
    return _cut_at_gap(values, vectors)


def _cut_at_gap(values: Vector, vectors: Matrix) -> Matrix:
    values = np.append(values, 0.0)
    count = min(COMPONENTS, len(vectors))
    while count and values[count - 1] - values[count] <= 1e-9 * values[0]:
        count -= 1
    return vectors[:count].T


# Rows


def _with_data(rows: sparse.csr_array, data: Vector) -> sparse.csr_array:
    return sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)


def _unit(rows: Any) -> Any:
    """Rows divided by their lengths; rows of zeros stay."""
    lengths = np.sqrt(sums_of_squares(rows))
    lengths[lengths <= 1e-12] = np.inf
    if sparse.issparse(rows):
        return _with_data(rows, rows.data / np.repeat(lengths, np.diff(rows.indptr)))
    return rows / lengths[:, None]


# Matrices of distances


def _symmetric(distances: Matrix) -> Matrix:
    distances = 0.5 * (distances + distances.T)
    np.fill_diagonal(distances, 0.0)
    return distances


def _outer(one: Vector, other: Vector) -> Matrix:
    """Geometric means of all pairs; no product underflows."""
    return np.outer(np.sqrt(one), np.sqrt(other))


def _mean(distances: Matrix) -> float:
    n = len(distances)
    return float(distances.sum() / (n * (n - 1)))


def _quantile(distances: Matrix, share: float) -> float:
    """The smallest distance that this share of the pairs does not exceed."""
    n = len(distances)
    rank = n + int(np.ceil(share * n * (n - 1))) - 1  # the diagonal comes first
    return float(np.partition(distances, rank, axis=None)[rank])


def _near(distances: Matrix, same: NDArray[np.bool_], count: int) -> Matrix:
    """The ``count`` smallest distances of each row, or all, without those of ``same`` items."""
    others = distances.shape[1] - int(same.sum(axis=1).max(initial=0))
    count = min(count, others)
    masked = np.where(same, np.inf, distances)
    near: Matrix = np.partition(masked, count - 1, axis=1)[:, :count]
    return near
