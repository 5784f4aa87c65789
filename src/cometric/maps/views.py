"""What references compare: shares and vectors of histograms, and the distances between these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackError, LinearOperator, svds

from cometric.core.histograms import QUANTUM, Histograms
from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import geometry

RESOLUTIONS = (5, 10, 30, 100)
"""Numbers of components of the views of "local", from coarse to fine."""

COMPONENTS = (30,)
"""The same for "lsa", "local-0.2", and between features."""

PAIRS = 2_000_000
"""Pairs of histograms in one call of a kernel."""

CONSTANT, NEARLY = 1e-12, 1e-5
"""Items whose deviations from their mean are below these fractions of it count as constant, and as
nearly constant."""

EQUAL = 1e-9
"""Singular values that differ by less, relative to the largest one, count as equal."""

ROUNDING = 1e-12
"""Projections shorter than this fraction of their row are rounding errors."""

SMALL = 500
"""Matrices up to this size are decomposed as dense ones."""

CANCELED = 1e-6
"""Squares below this fraction of the terms of the sum are recomputed from differences; all others
have nine digits."""

CELLS = 200_000
"""Maximum number of entries of dense rows in memory at a time."""

CACHED = 50_000
"""Entries in a block of rows that stays in the cache through several operations."""


# Placed items, and their distances


class Shares(Histograms):
    """Histograms compared by their l1 distance."""

    def between(self, columns: Histograms) -> Matrix:
        """Distances from each of these to each of the ``columns``; symmetric if they are these."""
        if self is columns:
            all_pairs: Matrix = QUANTUM * geometry.pairwise_norms(*self.integer_parts, 1.0)
            return all_pairs
        n, k = self.shape[0], columns.shape[0]
        one, other = self.integer_parts, columns.integer_parts
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

    def join(self, others: Shares) -> Shares:
        """These, then the others."""
        return Shares(sparse.vstack([self.rows, others.rows], format="csr"))

    def pairs(self, index: Index) -> Vector:
        """Distances of the pairs ``index``."""
        distances: Vector = QUANTUM * geometry.pair_norms(*self.integer_parts, index, 1.0)
        return distances


class Vectors(NamedTuple):
    """Rows of a dense or sparse matrix, their squared lengths, compared by Euclidean distances.

    With ``halved``, by half the squares of these: for unit vectors, one minus the cosine.
    """

    rows: Any
    squares: Vector
    halved: bool = False

    @classmethod
    def of(cls, rows: Any, halved: bool = False) -> Vectors:
        return cls(rows, sums_of_squares(rows), halved)

    def take(self, items: slice) -> Vectors:
        return Vectors(self.rows[items], self.squares[items], self.halved)

    def join(self, others: Vectors) -> Vectors:
        """These, then the others."""
        parts = [self.rows, others.rows]
        rows = (
            sparse.vstack(parts, format="csr") if sparse.issparse(self.rows) else np.vstack(parts)
        )
        return Vectors(rows, np.concatenate([self.squares, others.squares]), self.halved)

    def between(self, columns: Vectors) -> Matrix:
        """Distances from each of these to each of the ``columns``; symmetric if they are these."""
        products = self.rows @ columns.rows.T
        if sparse.issparse(products):
            products = products.toarray()

        def exact(i: Index, j: Index) -> Vector:
            return sums_of_squares(self.rows[i] - columns.rows[j])

        few = in_parts(self.rows.shape[1], exact)
        distances: Matrix = self._finish(
            squares_of_differences(self.squares, columns.squares, products, few)
        )
        return distances

    def pairs(self, index: Index) -> Vector:
        """Distances of the pairs ``index``."""
        if sparse.issparse(self.rows):
            rows = self.rows.sorted_indices()
            parts = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
            squares: Vector = geometry.pair_squares(*parts, np.asarray(index))
        else:
            squares = sums_of_squares(self.rows[index[:, 0]] - self.rows[index[:, 1]])
        distances: Vector = self._finish(squares)
        return distances

    def _finish(self, squares: Any) -> Any:
        return 0.5 * squares if self.halved else np.sqrt(squares, out=squares)


def sums_of_squares(rows: Any) -> Vector:
    """The squared lengths of the rows of a dense or sparse matrix."""
    if sparse.issparse(rows):
        places = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        sums: Vector = np.bincount(places, rows.data**2, rows.shape[0]).astype(np.float64)
        return sums
    return np.asarray((rows * rows).sum(axis=1), dtype=np.float64).ravel()


def unit(rows: Any, least: Any = ROUNDING) -> Any:
    """Rows divided by their lengths; those of length at most ``least`` become zero."""
    lengths = np.sqrt(sums_of_squares(rows))
    lengths[lengths <= least] = np.inf
    if sparse.issparse(rows):
        return _with_data(rows, rows.data / np.repeat(lengths, np.diff(rows.indptr)))
    return rows / lengths[:, None]


# Squared differences: by |a|^2 + |b|^2 - 2 <a, b> where that is accurate, else computed again


def squares_of_differences(
    rows: Vector, columns: Vector, products: Matrix, exact: Callable[[Index, Index], Vector]
) -> Matrix:
    """``rows_i + columns_j - 2 products_ij``; small values are recomputed by ``exact(i, j)``.

    Overwrites ``products``.
    """
    sizes = CANCELED * np.abs(rows), CANCELED * np.abs(columns)
    for part in row_blocks(products.shape):
        block = products[part]
        block *= 2.0
        least = np.abs(block)
        least *= CANCELED
        least += sizes[0][part, None] + sizes[1]
        np.subtract(rows[part, None] + columns, block, out=block)  # symmetric if both are the same
        i, j = np.divmod(np.flatnonzero(np.abs(block) < least), block.shape[1])
        block[i, j] = exact(part.start + i, j)
    return products


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of a few rows of a matrix, each small enough for the CPU cache."""
    step = max(1, CACHED // max(shape[1], 1))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def in_parts(width: int, function: Callable[[Any, Any], Vector]) -> Callable[[Any, Any], Vector]:
    """``function`` of two index arrays, called for a few pairs (rows of ``width``) at a time."""
    step = max(1, CELLS // max(width, 1))

    def by_parts(i: Index, j: Index) -> Vector:
        values = np.empty(len(i))
        for start in range(0, len(i), step):
            part = slice(start, start + step)
            values[part] = function(i[part], j[part])
        return values

    return by_parts


# The views of each reference


class Views:
    """Several views of histograms, fitted to the learned ones; a reference combines distances.

    ==================  ============================================================
    "local"             l1, tf-idf, LSA and correspondence analysis (CA), each of the
                        latter two with each of ``RESOLUTIONS`` components
    "local-0.2"         l1, tf-idf, LSA
    both, of features   l1, the loadings of a PCA
    "lsa"               tf-idf, the first singular vectors, length 1
    "cosine"            rows of length 1
    "hellinger"         square roots
    ==================  ============================================================

    ``weights``, one for each view, are between 0 and 1; ``known`` are the learned items, placed,
    and ``blocks`` slices of rows of matrices between them.
    """

    def __init__(self, name: str, hist: Histograms, of: str) -> None:
        self._name = "features" if of == "features" and name.startswith("local") else name
        self.weights = [1.0] * {"features": 2, "local-0.2": 3}.get(self._name, 1)
        if name not in ("cosine", "hellinger"):
            self._fit(name, hist.rows)
        self.known = self.place(hist)
        self.blocks = list(row_blocks((hist.shape[0], hist.shape[0])))

    def _fit(self, name: str, known: sparse.csr_array) -> None:
        """Compute what places histograms in the views of a damped reference."""
        n, d = known.shape
        self._median = float(np.median(known.data))
        damped = self._damped(known)
        if self._name == "features":
            self._pca = Components(_centered(damped), COMPONENTS)
            return
        holders = np.bincount(known.indices, minlength=d)
        self._rarity = np.log((1.0 + n) / (1.0 + holders)) + 1.0
        numbers = RESOLUTIONS if name == "local" else COMPONENTS
        self._lsa = Components(_unshifted(self._tfidf(damped)), numbers)
        if name == "local":
            self._roots = np.sqrt(known.sum(axis=0) / n)
            self._ca = Components(self._residuals(known), RESOLUTIONS)
            self.weights = [1.0, 1.0, *self._lsa.weights, *self._ca.weights]

    def place(self, hist: Histograms) -> list[Any]:
        """The histograms as seen in each view: :class:`Shares` or :class:`Vectors`."""
        rows = hist.rows
        if self._name == "cosine":
            return [Vectors.of(unit(rows), halved=True)]
        if self._name == "hellinger":
            return [Vectors.of(_with_data(rows, np.sqrt(rows.data)))]
        damped = self._damped(rows)
        if self._name == "features":
            return [_shares(damped), *self._pca.place(_centered(damped))]
        weighted = self._tfidf(damped)
        lsa = self._lsa.place(_unshifted(weighted))
        if self._name == "lsa":
            return lsa
        ca = self._ca.place(self._residuals(rows)) if self._name == "local" else []
        return [_shares(damped), Vectors.of(weighted), *lsa, *ca]

    @staticmethod
    def between(rows: list[Any], columns: list[Any]) -> Iterator[Matrix]:
        """In each view, the distances from the placed items ``rows`` to the ``columns``."""
        for some, others in zip(rows, columns, strict=True):
            yield some.between(others)

    def _damped(self, rows: sparse.csr_array) -> sparse.csr_array:
        """log(1 + x / median), with the median of the positive entries: large ones count less."""
        return _with_data(rows, np.log1p(rows.data / self._median))

    def _tfidf(self, damped: sparse.csr_array) -> sparse.csr_array:
        """Entries weighted by inverse document frequency; rows have length 1."""
        weighted = _with_data(damped, damped.data * self._rarity[damped.indices])
        rows: sparse.csr_array = unit(weighted)
        return rows

    def _residuals(self, rows: sparse.csr_array) -> Shifted:
        """Residuals of correspondence analysis: (a - c) / sqrt(c), c the mean learned histogram."""
        roots = self._roots
        inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0.0)
        scaled = _with_data(rows, rows.data * inverse[rows.indices])
        return Shifted(scaled, np.ones(rows.shape[0]), roots)


def _shares(damped: sparse.csr_array) -> Shares:
    """Damped masses, divided by their sum."""
    sums = np.repeat(damped.sum(axis=1), np.diff(damped.indptr))
    return Shares(_with_data(damped, damped.data / sums))


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


# Truncated SVD of a matrix of items, for several numbers of components at once


class Shifted(NamedTuple):
    """The matrix ``rows - outer(left, right)``, not formed, so that sparse rows stay sparse."""

    rows: sparse.csr_array
    left: Vector
    right: Vector

    def times(self, vectors: Matrix) -> Matrix:
        product: Matrix = self.rows @ vectors
        if self.left.any():
            product -= np.outer(self.left, self.right @ vectors)
        return product

    @property
    def dense(self) -> Matrix:
        dense: Matrix = self.rows.toarray() - np.outer(self.left, self.right)
        return dense

    @property
    def freedom(self) -> tuple[int, int]:
        """The numbers of rows and columns, each reduced by 1 if there is a shift."""
        n, d = self.rows.shape
        shifted = int(self.left.any())
        return max(n - shifted, 1), max(d - shifted, 1)

    @property
    def squares(self) -> float:
        """The sum of the squares of all entries."""
        places = np.repeat(np.arange(self.rows.shape[0]), np.diff(self.rows.indptr))
        shift = self.left[places] * self.right[self.rows.indices]
        elsewhere = (self.left @ self.left) * (self.right @ self.right) - shift @ shift
        return float(np.sum((self.rows.data - shift) ** 2) + max(elsewhere, 0.0))

    @property
    def operator(self) -> Any:
        """The matrix as a SciPy linear operator."""
        if not self.left.any():
            return self.rows
        left, right, back = self.left, self.right, sparse.csr_array(self.rows.T)
        return LinearOperator(
            self.rows.shape,
            matvec=lambda v: self.rows @ np.ravel(v) - left * (right @ np.ravel(v)),
            rmatvec=lambda u: back @ np.ravel(u) - right * (left @ np.ravel(u)),
            dtype=np.float64,
        )


class Components:
    """The spaces spanned by the first right singular vectors, for several numbers of them.

    Equal singular values are not separated: fewer vectors are taken instead. ``weights`` has a
    weight for each number: min(1, (e / s)^2), where s is the largest singular value left out, and
    e the largest one that noise would have: about sigma (sqrt(n) + sqrt(d)) for an n x d matrix of
    noise with standard deviation sigma.
    """

    def __init__(self, known: Shifted, numbers: Sequence[int]) -> None:
        values, vectors = _singular_vectors(known, max(numbers))
        equal = EQUAL * values[0]
        smallest = max(equal, ROUNDING * float(np.sqrt(sums_of_squares(known.rows).sum())))
        edge = _edge(values, known.squares, *known.freedom)
        values = np.append(values, 0.0)
        self.weights: list[float] = []
        self._counts: list[int] = []
        for number in numbers:
            count = min(number, len(values) - 1)
            while count and (
                values[count - 1] <= smallest or values[count - 1] - values[count] <= equal
            ):
                count -= 1
            left_out = values[count]
            self._counts.append(count)
            self.weights.append(min(1.0, (edge / left_out) ** 2) if left_out > smallest else 1.0)
        self._vectors = vectors[: max(self._counts)].T

    def place(self, items: Shifted) -> list[Vectors]:
        """The items projected to each space and scaled to length 1."""
        projected = items.times(self._vectors)
        least = ROUNDING * np.sqrt(sums_of_squares(items.rows))
        return [Vectors.of(unit(projected[:, :count], least)) for count in self._counts]


def _singular_vectors(matrix: Shifted, count: int) -> tuple[Vector, Matrix]:
    """The first singular values, one more than ``count``, and right singular vectors as rows."""
    smaller = min(matrix.rows.shape)
    if smaller > max(SMALL, 2 * count):
        start = np.random.default_rng(0).standard_normal(smaller)
        try:
            _, values, vectors = svds(
                matrix.operator, count + 1, ncv=3 * (count + 1) // 2, v0=start,
                return_singular_vectors="vh",
            )  # fmt: skip
            order = np.argsort(-values)
            return values[order], vectors[order]
        except ArpackError:  # no convergence
            pass
    _, values, vectors = np.linalg.svd(matrix.dense, full_matrices=False)
    return values[: count + 1], vectors[: count + 1]


def _edge(values: Vector, squares: float, n: int, d: int) -> float:
    """The largest singular value expected of noise alone, after removing components above it.

    Each round removes more components than the one before, so the loop ends.
    """
    count = 0
    while True:
        rest = max(squares - float(np.sum(values[:count] ** 2)), 0.0)
        sigma = np.sqrt(rest / max((n - count) * (d - count), 1))
        edge = float(sigma * (np.sqrt(n) + np.sqrt(d)))
        above = int((values > edge).sum())
        if above <= count:
            return edge
        count = above
