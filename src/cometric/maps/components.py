"""Truncated SVD of a matrix of items, for several numbers of components at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackError, LinearOperator, svds

from cometric.core.types import Matrix, Vector
from cometric.maps.euclidean import Vectors, sums_of_squares

EQUAL = 1e-9
"""Singular values that differ by less, relative to the largest one, count as equal."""

ROUNDING = 1e-12
"""Projections shorter than this fraction of their row are rounding errors."""

SMALL = 500
"""Matrices up to this size are decomposed as dense ones."""


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


def unit(rows: Any, least: Any = ROUNDING) -> Any:
    """Rows divided by their lengths; those of length at most ``least`` become zero."""
    lengths = np.sqrt(sums_of_squares(rows))
    lengths[lengths <= least] = np.inf
    if sparse.issparse(rows):
        data = rows.data / np.repeat(lengths, np.diff(rows.indptr))
        return sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)
    return rows / lengths[:, None]


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
