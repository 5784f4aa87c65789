"""The norm R between histograms, for all pairs or for some: norms of differences, and references.

References are named matrices R that compare items as text and cell analysis usually do. A reference
is fitted to the learned histograms; then any histograms over the same bins can be placed, so that
new items have distances to the learned ones. Its matrix is symmetric and positive between different
items, which is all that the theory requires of R. "local" is not a metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.arguments import shown
from cometric.core.histograms import MERGE_TOLERANCE, QUANTUM, Histograms, Side
from cometric.core.problem import Problem
from cometric.core.types import Index, Matrix, Metrics, Vector
from cometric.kernels import geometry
from cometric.maps.views import Views, row_blocks

NAMES = ("local", "local-0.2", "lsa", "cosine", "hellinger")

NEAR, AROUND = 10, 30
"""Numbers of nearest items by which "local" scales each of its distances, and their sum."""

NOISE = 0.9
"""Fraction of the distance to the nearest item that "local" subtracts as noise."""

SHARPNESS = 1.5
"""The power to which "local" raises distances."""

FAR = 0.99
"""Quantile at which "local" clips distances: otherwise a few outliers would determine the weight of
all other distances."""

SMALLEST = 1e-6
"""Distances between different items are at least this fraction of the mean distance."""

ALIKE = 1e-8
"""Items closer than this in the first view of "local" may be equal: their histograms are compared.
These distances are a few times those of the histograms."""

LEAST_DEVIATION = 0.01
"""Lower limit of the standard deviation of distances, as a fraction of their mean: without it, a
view with nearly constant distances would get an unbounded weight. Measured: 0.018 and above."""

BLOCK = 10_000_000
"""Maximum number of distances from new to learned items in memory at a time."""


def norm_matrices(problem: Problem, norm: Any, device: Any = None) -> Metrics:
    """R between the distinct samples and between the distinct features; see ``norm_matrix``."""
    return Metrics(
        side_norm(problem, norm, "samples", device), side_norm(problem, norm, "features", device)
    )


def side_norm(problem: Problem, norm: Any, of: str, device: Any = None) -> Matrix:
    """R between the distinct items of one side; ``norm`` may be a pair, one for each side."""
    if getattr(norm, "ndim", 0) == 2:
        raise ValueError(
            "`norm` is one matrix; pass two, (for samples, for features), or None for one of them."
        )
    return _norm(getattr(problem, of), norm_for(norm, of), device, of)


def norm_for(norm: Any, of: str) -> Any:
    """The norm of one side; ``norm`` is the same for both, or a pair."""
    return norm[0 if of == "samples" else 1] if is_pair(norm) else norm


def is_pair(norm: Any) -> bool:
    """Whether R is given for samples and features separately."""
    return isinstance(norm, tuple | list) and len(norm) == 2


def _norm(side: Side, norm: Any, device: Any, of: str) -> Matrix:
    """R between the distinct items of a side; if given as a matrix, it covers all kept items."""
    if not hasattr(norm, "shape") or np.ndim(norm) != 2:
        return norm_matrix(side.full_histograms, norm, device, of)
    n = len(side.labels)
    if np.shape(norm) != (n, n):
        raise ValueError(f"`norm` has shape {np.shape(norm)}; this side has {n} items.")
    return norm_matrix(side.full_histograms, side.reduce(np.asarray(norm)))


def norm_matrix(hist: Any, norm: Any, device: Any = None, of: str = "samples") -> Matrix:
    """R for all pairs: ``norm`` is a name, a power p >= 1, or the matrix itself.

    With a torch ``device``, l1, l2 and linf are computed there and stay there. ``of`` is the side
    of the histograms: the reference "local" compares features in another way than samples.
    """
    hist = Histograms.of(hist)
    k = hist.shape[0]
    if is_reference(norm):
        return fit(norm, hist, of).matrix
    if isinstance(norm, str) and norm == "discrete":
        return np.ones((k, k)) - np.eye(k)
    power = norm_power(norm)
    if power is not None:
        accurate = power in (1.0, 2.0, np.inf)  # in torch
        if device is not None and accurate:
            return _pairwise_on(device, hist, power)
        return _pairwise(hist, power)
    matrix = np.asarray(norm)
    if matrix.dtype.kind not in "fiu" or matrix.ndim != 2:
        description = f"an array of {matrix.dtype}" if hasattr(norm, "dtype") else shown(norm)
        raise ValueError(
            f"`norm` is {description}; pass 'l1', 'l2', 'linf', a power p >= 1, 'discrete', "
            f"{', '.join(map(repr, NAMES))}, or a pair of matrices (for samples, for "
            "features)."
        )
    if matrix.shape != (k, k):
        raise ValueError(f"`norm` has shape {matrix.shape}; this side has {k} items.")
    matrix = matrix.astype(np.float64)
    off = ~np.eye(k, dtype=bool)
    if not np.isfinite(matrix).all() or np.diagonal(matrix).any() or (matrix != matrix.T).any():
        raise ValueError("`norm` must be finite and symmetric with a zero diagonal.")
    if (matrix[off] <= 0).any():
        i, j = np.argwhere((matrix <= 0) & off)[0]
        raise ValueError(
            f"`norm` is {matrix[i, j]:g} between the different items {i} and {j}; "
            "it must be positive there."
        )
    return matrix


def is_reference(norm: Any) -> bool:
    """Whether R is a reference: not a norm of the difference of two histograms."""
    return isinstance(norm, str) and norm in NAMES


def norm_name(norm: Any) -> str:
    """The name of a norm: "l1", "l2.5", "linf", "discrete", a reference, or "matrix".

    For a pair, both names, as in "l1, matrix", or "matrix" for two matrices.
    """
    if is_pair(norm):
        names = [norm_name(part) for part in norm]
        return "matrix" if names == ["matrix", "matrix"] else ", ".join(names)
    if is_reference(norm):
        return str(norm)
    power = norm_power(norm)
    if power is None:
        return "discrete" if isinstance(norm, str) and norm == "discrete" else "matrix"
    return f"l{power!r}".removesuffix(".0")


def name_for(name: str, of: str) -> str:
    """The name of the norm of one side, from a result of :func:`norm_name`."""
    return name.split(", ")[0 if of == "samples" else -1]


def norm_power(norm: Any) -> float | None:
    """The p of an l_p norm given as "lp" or as p itself; None for anything else."""
    if isinstance(norm, bool | np.bool_):
        return None
    try:
        power = float(norm[1:] if isinstance(norm, str) and norm.startswith("l") else norm)
    except (TypeError, ValueError):
        return None
    return power if power >= 1.0 else None


class PairNorms:
    """R between any pairs of histograms, for named norms; at first, of the learned ones, ``known``.

    Norms are computed from integer masses, as for the learned items. A reference is fitted to
    the learned items; the other items are placed among them.
    """

    def __init__(self, norm: str, known: Histograms, of: str) -> None:
        self._rows = known
        self._discrete = norm == "discrete"
        self._power = 1.0 if self._discrete else norm_power(norm)
        self._reference: Any = None
        if is_reference(norm):
            self._reference = fit(norm, known, of)
            self._places = self._reference.known
            self._matrix: Matrix = self._reference.matrix
            del self._reference.matrix  # n x n: no new item needs it
        else:
            self._matrix = norm_matrix(known, norm)

    def release_matrix(self) -> Matrix:
        """R between all learned items, which is not stored from now on."""
        matrix = self._matrix
        del self._matrix
        return matrix

    @property
    def reference(self) -> Any:
        """The fitted reference; None for a norm of differences."""
        return self._reference

    def on(self, rows: sparse.csr_array, places: Any = None) -> PairNorms:
        """The same norm between other histograms, with their ``places`` in a reference if known."""
        other = copy(self)
        other._rows = Histograms(rows)
        if self._reference is not None:
            other._places = self._reference.place(other._rows) if places is None else places
        return other

    def joined(self, rows: sparse.csr_array) -> PairNorms:
        """The same norm between new histograms, then those of this one."""
        other = copy(self)
        other._rows = Histograms(sparse.vstack([rows, self._rows.rows], format="csr"))
        if self._reference is not None:
            other._places = self._reference.place(Histograms(rows)).join(self._places)
        return other

    def __call__(self, index: Index) -> Vector:
        if self._reference is not None:
            distances: Vector = self._reference.pairs(self._places, index)
            return distances
        parts = self._rows.integer_parts
        norms: Vector = QUANTUM * geometry.pair_norms(*parts, index, self._power)
        return (norms > MERGE_TOLERANCE).astype(np.float64) if self._discrete else norms

    def between(self, rows: slice, columns: slice) -> Matrix:
        """R from the histograms ``rows`` to the histograms ``columns``."""
        if self._reference is not None:
            distances: Matrix = self._reference.between(self._places, rows, columns)
            return distances
        i, j = np.mgrid[rows, columns]
        return self(np.stack([i.ravel(), j.ravel()], axis=1)).reshape(i.shape)


def _pairwise(hist: Histograms, p: float) -> Matrix:
    """Norms of differences of integer masses: differences are exact, also of close rows."""
    norms: Matrix = geometry.pairwise_norms(*hist.integer_parts, p)
    return QUANTUM * norms


def _pairwise_on(device: Any, hist: Histograms, p: float) -> Matrix:
    import torch

    dense = torch.as_tensor(hist.rows.toarray(), device=device)
    mode = "donot_use_mm_for_euclid_dist"  # products lose half the digits of small distances
    norms: Matrix = torch.cdist(dense, dense, p=p, compute_mode=mode)
    return norms


# References


class PlainItems(NamedTuple):
    """Placed items, and their histograms."""

    places: Any
    hist: Histograms

    def take(self, items: slice) -> PlainItems:
        return PlainItems(self.places.take(items), self.hist.take(items))

    def join(self, others: PlainItems) -> PlainItems:
        """These, then the others."""
        rows = sparse.vstack([self.hist.rows, others.hist.rows], format="csr")
        return PlainItems(self.places.join(others.places), Histograms(rows))


class Plain:
    """A single distance, raised to a positive minimum between different items."""

    def __init__(self, name: str, hist: Histograms, of: str) -> None:
        self.views = Views(name, hist, of)
        (placed,) = self.views.known
        self.known = PlainItems(placed, hist)
        self.matrix = placed.between(placed)
        np.fill_diagonal(self.matrix, 0.0)
        self.smallest = SMALLEST * _mean(self.matrix)  # between different items
        np.maximum(self.matrix, self.smallest, out=self.matrix)
        np.fill_diagonal(self.matrix, 0.0)

    def place(self, hist: Histograms) -> PlainItems:
        (places,) = self.views.place(hist)
        return PlainItems(places, hist)

    def pairs(self, items: PlainItems, index: Index) -> Vector:
        distances: Vector = items.places.pairs(index)
        low = np.flatnonzero(distances < self.smallest)
        distances[low] = self.smallest * items.hist.differ(items.hist, *np.asarray(index)[low].T)
        return distances

    def between(self, items: PlainItems, rows: slice, columns: slice) -> Matrix:
        one, other = items.take(rows), items.take(columns)
        distances: Matrix = one.places.between(other.places)
        i, j = np.nonzero(distances < self.smallest)
        distances[i, j] = self.smallest * one.hist.differ(other.hist, i, j)
        return distances


class LocalItems(NamedTuple):
    """Placed items: in each view, and the scales, noise and spread around every item."""

    places: list[Any]
    around: list[Vector]

    def join(self, others: LocalItems) -> LocalItems:
        """These, then the others."""
        pairs = zip(self.places, others.places, strict=True)
        around = [np.concatenate(both) for both in zip(self.around, others.around, strict=True)]
        return LocalItems([part.join(other) for part, other in pairs], around)


class LocalParts(NamedTuple):
    """The fitted parameters of a local reference.

    ``floors`` are the minimum scales, ``farthest`` is the largest value.
    """

    known: list[Any]
    scales: list[Vector]
    floors: list[float]
    weights: list[float]
    farthest: float


class Local:
    """A weighted sum of several views, scaled by local distances and with noise subtracted.

    In every view d, item i has a scale s_i: the mean distance to its ten nearest learned items.
    Let a be the weighted sum of all d_ij / sqrt(s_i s_j), each divided by its standard deviation
    over all pairs (of features, and in "local-0.2", by its mean); this equalizes sparse and dense
    neighborhoods, and noisy and clean items. Let the noise n_i be 0.9 times the distance a to the
    nearest item, and t_i the mean of a - n_i over the 30 nearest items. Then ::

        R_ij = ((a_ij - n_i) (a_ij - n_j) / (t_i t_j)) ^ (3/4),

    clipped at the 99 % quantile of all pairs.

    The first view must be positive between different items.
    """

    def __init__(self, name: str, hist: Histograms, of: str) -> None:
        self.views = Views(name, hist, of)
        self._hist, self._known = hist, self.views.known
        unit = _deviation if (name, of) == ("local", "samples") else _mean
        self._scales: list[Vector] = []
        self._floors: list[float] = []
        self._weights: list[float] = []
        n = hist.shape[0]
        total, same, blocks = np.zeros((n, n)), np.eye(n, dtype=bool), self.views.blocks
        parts = self.views.between(self._known, self._known)
        for part, share in zip(parts, self.views.weights, strict=True):
            np.fill_diagonal(part, 0.0)
            scale = _mean_near(part, same, blocks)
            floor = max(SMALLEST * float(scale.mean()), np.finfo(float).tiny)
            np.maximum(scale, floor, out=scale)
            for rows in blocks:
                part[rows] /= _outer(scale[rows], scale)
            with np.errstate(over="ignore"):  # overflows if the ten nearest are at distance 0
                size = unit(part, blocks)
            weight = share / size if 0.0 < size < np.inf else 0.0
            for rows in blocks:
                total[rows] += weight * part[rows]
            self._scales.append(scale)
            self._floors.append(floor)
            self._weights.append(weight)
        noise, spread = _noise_and_spread(total, same, blocks)
        self.known = LocalItems(self._known, [*self._scales, noise, spread])
        self._farthest = np.inf
        for rows in blocks:
            around = (noise[rows, None], noise), np.outer(spread[rows], spread)
            total[rows] = self._relative(total[rows], *around)
        np.fill_diagonal(total, 0.0)
        self._farthest = _quantile(total, FAR)
        self.matrix = np.minimum(total, self._farthest, out=total)

    @property
    def parts(self) -> LocalParts:
        """The fitted parameters, for other implementations."""
        return LocalParts(self._known, self._scales, self._floors, self._weights, self._farthest)

    def place(self, hist: Histograms) -> LocalItems:
        places = self.views.place(hist)
        n, known = hist.shape[0], len(self._scales[0])
        step = max(1, BLOCK // known)
        blocks = [self._around(places, hist, slice(i, min(i + step, n))) for i in range(0, n, step)]
        return LocalItems(places, [np.concatenate(part) for part in zip(*blocks, strict=True)])

    def around(self, parts: Iterable[Matrix], same: NDArray[np.bool_]) -> list[Vector]:
        """The scales, noise and spread of items, from their distances to the learned ones.

        ``same`` marks pairs of equal items.
        """
        scales: list[Vector] = []
        total, blocks = np.zeros(()), list(row_blocks(same.shape))
        fitted = zip(self._scales, self._floors, self._weights, strict=True)
        for part, (known, floor, weight) in zip(parts, fitted, strict=True):
            scales.append(np.maximum(_mean_near(part, same, blocks), floor))
            total = total + weight * part / _outer(scales[-1], known)
        return [*scales, *_noise_and_spread(total, same, blocks)]

    def combine(
        self, parts: Iterable[Any], around: Sequence[Vector], index: tuple[Any, Any]
    ) -> Any:
        """R of pairs, from their distances ``parts`` and the results of :meth:`around`.

        ``index`` has the numbers of the items, in shapes that broadcast to that of the parts.
        """
        i, j = index
        *scales, noise, spread = around
        total = np.zeros(())
        for part, scale, weight in zip(parts, map(np.sqrt, scales), self._weights, strict=True):
            total = total + weight * part / (scale[i] * scale[j])
        return self._relative(total, (noise[i], noise[j]), spread[i] * spread[j])

    def pairs(self, items: LocalItems, index: Index) -> Vector:
        parts = (placed.pairs(index) for placed in items.places)
        i, j = np.asarray(index).T
        distances: Vector = self.combine(parts, items.around, (i, j))
        return distances

    def between(self, items: LocalItems, rows: slice, columns: slice) -> Matrix:
        one, other = ([placed.take(part) for placed in items.places] for part in (rows, columns))
        parts = self.views.between(one, other)
        numbers = np.arange(len(items.around[0]))
        index = numbers[rows, None], numbers[None, columns]
        distances: Matrix = self.combine(parts, items.around, index)
        return distances

    def _around(self, places: list[Any], hist: Histograms, rows: slice) -> list[Vector]:
        """The scales, noise and spread of some items, relative to the learned ones."""
        parts = self.views.between([placed.take(rows) for placed in places], self._known)
        first = next(parts)
        same = first <= ALIKE
        i, j = np.nonzero(same)
        same[i, j] = ~hist.differ(self._hist, rows.start + i, j)
        return self.around(chain([first], parts), same)

    def _relative(self, total: Any, noise: tuple[Vector, Vector], spreads: Any) -> Any:
        above = [np.maximum(total - part, SMALLEST * total) for part in noise]
        relative = (above[0] * above[1] / spreads) ** (SHARPNESS / 2)
        return np.minimum(relative, self._farthest)


def fit(name: str, hist: Histograms, of: str) -> Plain | Local:
    """The reference ``name`` between items of one side, "samples" or "features"."""
    return (Local if name.startswith("local") else Plain)(name, hist, of)


# Matrices of distances; ``blocks`` are slices of their rows that fit the CPU cache


def _outer(one: Vector, other: Vector) -> Matrix:
    """Geometric means of all pairs; no product underflows."""
    return np.outer(np.sqrt(one), np.sqrt(other))


def _mean(distances: Matrix, blocks: object = None) -> float:
    n = len(distances)
    return float(distances.sum() / (n * (n - 1)))


def _deviation(distances: Matrix, blocks: list[slice]) -> float:
    """The standard deviation over all pairs, or a small part of the mean if that is larger."""
    n, mean = len(distances), _mean(distances)
    if not np.isfinite(mean):
        return mean
    squares = sum(float(((distances[rows] - mean) ** 2).sum()) for rows in blocks)
    variance = (squares - n * mean**2) / (n * (n - 1))  # without the diagonal
    return max(float(np.sqrt(max(variance, 0.0))), LEAST_DEVIATION * mean)


def _quantile(distances: Matrix, share: float) -> float:
    """The distance at quantile ``share`` of all pairs."""
    n = len(distances)
    rank = n + int(np.ceil(share * n * (n - 1))) - 1  # the diagonal comes first
    return float(np.partition(distances, rank, axis=None)[rank])


def _mean_near(distances: Matrix, same: NDArray[np.bool_], blocks: list[slice]) -> Vector:
    mean: Vector = _near(distances, same, NEAR, blocks).mean(axis=1)
    return mean


def _noise_and_spread(total: Matrix, same: Any, blocks: list[slice]) -> tuple[Vector, Vector]:
    near = _near(total, same, AROUND, blocks)
    noise = NOISE * near.min(axis=1)
    return noise, (near - noise[:, None]).mean(axis=1)


def _near(distances: Matrix, same: NDArray[np.bool_], count: int, blocks: list[slice]) -> Matrix:
    """The ``count`` smallest distances of each row, without ``same`` items; all if fewer."""
    n, columns = distances.shape
    # As many for new items as for learned ones, which do not count themselves
    count = min(count, columns - int(same.sum(axis=1).max(initial=1)))
    near = np.empty((n, count))
    for rows in blocks:
        masked = np.where(same[rows], np.inf, distances[rows])
        near[rows] = np.partition(masked, count - 1, axis=1)[:, :count]
    return near
