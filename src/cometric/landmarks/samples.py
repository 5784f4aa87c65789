"""Many samples under a learned metric: stored compressed, scored and compared in small parts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.cached import cached_property
from cometric.core.histograms import Histograms, make_side, normalize, smooth
from cometric.core.rounding import Known
from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import candidates, thread_count
from cometric.landmarks.stored import LongArray, StoredRows
from cometric.maps.norms import Local, LocalItems
from cometric.maps.views import Views, row_blocks
from cometric.results.extension import HeldDistances
from cometric.transports.base import LowerBounds, quadratic_forms

if TYPE_CHECKING:
    from cometric.results.result import Result

COMPONENTS = 32
"""Singular vectors of the potentials of landmarks by which transport is approximated."""

DESCRIBED = 8192
"""Samples that are described, and stored in a file, together."""

SLACK = 1e-4
"""Scores are in float32: references in bounds are lowered by this fraction."""

ROUNDING = 2e-6
"""The same for transport, relative to the range of potentials."""


class Samples:
    """All samples, and for each the numbers from which its scores are computed.

    A score is the lower bound of the transport term, plus the l1 norm or a local reference, which
    are exact up to rounding; other references are computed pair by pair, and norms other
    than l1 are left out. Exact and tree transport have no bound that ranks well: scores take their
    linear limit instead, and ``bounded`` is False.
    """

    def __init__(self, result: Result, stored: StoredRows, n_threads: int | None = None) -> None:
        self.problem, self.stored = result.problem, stored
        # Samples that equal learned ones up to rounding have their neighborhoods.
        self._known_rows = Known(self.problem.samples.full, self.problem.rounding)
        self.tasks = thread_count(n_threads)
        known = result.problem.samples
        self.base = HeldDistances(result, "samples", known.hist, known.full, n_threads)
        eps = self.base.transport.eps
        self.bounded = eps > 0.0  # False for NaN, too
        # The limit is negative for some pairs if the cost is not of negative type.
        self._least = -np.inf if np.isinf(eps) else 0.0
        self.keeps_own = hasattr(self.base.phi, "own_terms")
        reference = None if self.base.norms is None else self.base.norms.reference
        self.local = reference if isinstance(reference, Local) else None
        self._other = reference if self.local is None else None
        self.l1_weight = self.base.weight if self.base.norm == "l1" else 0.0
        # Dense vectors: those of "lsa", or of the views of a local reference that are not sums.
        self._views = (
            Views("lsa", known.full_histograms, "samples")
            if self.local is None
            else self.local.views
        )
        self._dense = slice(0 if self.local is None else 2, None)
        own_vectors = self._views.known[self._dense]
        self.cuts = np.cumsum([0, *(part.rows.shape[1] for part in own_vectors)])
        images = self._bounds(known.hist, self.base.phi).image(slice(0, known.hist.shape[0]))
        self._center = images.mean(axis=0)
        spread = images - self._center
        _, _, basis = np.linalg.svd(spread, full_matrices=False)
        self._basis = basis[: min(COMPONENTS, len(basis))].T
        coordinates = spread @ self._basis
        masses = known.hist @ self._basis
        stds = masses.std(axis=0)
        ratios = coordinates.std(axis=0) / np.where(stds > 0.0, stds, 1.0)
        self.stretch = np.sqrt(self.base.scale * ratios)
        self.slope = self._reference_slope(result, _side_by_side(own_vectors))
        n = stored.shape[0]
        self.q, self.p = np.empty(n), np.empty(n)
        self.around: list[Vector] = []
        self.mean = np.empty(n)
        self.coordinates = np.empty((n, self._basis.shape[1]), np.float32)
        self.vectors = np.empty((n, int(self.cuts[-1])), np.float32)
        self._self_terms: Vector | None = None  # self terms of entropic transport
        self._arrays: dict[str, Any] = {}
        self._starts: Index = np.zeros(1, np.int64)

    # ------------------------------------------------------------------------- samples

    def histograms(self, rows: Any) -> tuple[sparse.csr_array, sparse.csr_array]:
        """Some samples as histograms over the distinct features, and over all."""
        features = self.problem.features
        hist = normalize(features.scaled(self.stored.take(rows)))
        full = self._known_rows.replace(smooth(hist, self.problem.smoothing))
        kept = np.ones(full.shape[0], bool)
        side = make_side(full, np.arange(full.shape[0]), features.labels, kept, None)
        return side.hist, side.full

    def blocks(self) -> Iterator[slice]:
        n = self.stored.shape[0]
        for start in range(0, n, DESCRIBED):
            yield slice(start, min(start + DESCRIBED, n))

    def describe(self, rows: slice) -> dict[str, Any]:
        """The numbers of a block of samples from which scores are computed."""
        hist, full = self.histograms(np.arange(rows.start, rows.stop))
        base = self.base
        phi = base.transport.lift(Histograms(hist), base._resources)
        described: dict[str, Any] = {"sizes": np.diff(hist.indptr)}
        if self.keeps_own:
            described["own"], described["self"] = phi.own_terms(base.cost)
        bounds = self._bounds(hist, phi, described.get("own"))
        described["p"], described["q"] = base.scale * bounds.p, base.scale * bounds.q
        described["coordinates"] = (hist @ self._basis).astype(np.float32)
        described["mean"] = base.scale * (hist @ self._center)
        described["one"] = full.data.astype(np.float32)
        histograms = Histograms(full)
        if self.local is None:
            described["vectors"] = _side_by_side(self._views.place(histograms))
            return described
        items = self.local.place(histograms)
        low, dot, *dense = items.places
        described["two"], described["three"] = (
            part.rows.data.astype(np.float32) for part in (low, dot)
        )
        described["vectors"], described["around"] = _side_by_side(dense), np.stack(items.around)
        return described

    def collect(self, described: Iterator[dict[str, Any]], memory_limit: float | None) -> None:
        """Store what :meth:`describe` returned for the blocks, in order."""
        long: dict[str, LongArray] = {}
        sizes, around, own, start = [], [], [], 0
        for block in described:
            stop = start + len(block["p"])
            rows = slice(start, stop)
            self.p[rows], self.q[rows] = block["p"], block["q"]
            self.mean[rows], self.coordinates[rows] = block["mean"], block["coordinates"]
            self.vectors[rows] = block["vectors"]
            sizes.append(block["sizes"])
            if "around" in block:
                around.append(block["around"])
            if "self" in block:
                own.append(block["self"])
            for name in ("own", "one", "two", "three"):
                if name in block:
                    long.setdefault(name, LongArray(np.float32, memory_limit)).append(block[name])
            start = stop
        self._starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
        self._arrays = {name: array.finish() for name, array in long.items()}
        self._self_terms = np.concatenate(own) if own else None
        self.around = list(np.concatenate(around, axis=1)) if around else []

    # -------------------------------------------------------------------------- scores

    def potentials(self, rows: Index) -> tuple[Matrix, Matrix]:
        """Images of some samples over the distinct features, and their coordinates."""
        hist, _ = self.histograms(rows)
        phi = self.base.transport.lift(Histograms(hist), self.base._resources)
        own = self._own(rows)
        bounds = self._bounds(hist, phi, None if own is None else own[0])
        cuts = np.linspace(0, len(rows), self.tasks + 1).astype(int)
        with ThreadPoolExecutor(self.tasks) as pool:
            images = pool.map(bounds.image, map(slice, cuts[:-1], cuts[1:]))
            image = np.concatenate(list(images))
        return image, (image - self._center) @ self._basis

    def score(self, rows: Index, images: Matrix, index: Index) -> Matrix:
        """Scores of the samples ``rows`` and their candidates ``index``, lowered by rounding."""
        one = self._arrays["one"]
        two, three = self._arrays.get("two", one), self._arrays.get("three", one)
        expanded = images[:, self.problem.features.labels].astype(np.float32)
        low, dot = (np.zeros(expanded.shape, np.float32) for _ in range(2))
        pattern = self.stored.take(rows) if not self.problem.smoothing else self.histograms(rows)[1]
        place = np.repeat(np.arange(len(rows)), np.diff(pattern.indptr))
        entries = self.entries(rows)
        if self.local is not None:
            low[place, pattern.indices], dot[place, pattern.indices] = two[entries], three[entries]
        elif self.l1_weight:
            low[place, pattern.indices] = one[entries]
        sums = candidates.pair_sums(
            *self._pattern, one, two, three, expanded, low, dot, index, self.tasks
        )
        transport = self.base.scale * -sums[0] + self.p[rows][:, None] + self.q[index]
        largest = self.base.scale * float(np.abs(images).max(initial=0.0))
        scores: Matrix = np.maximum(transport - ROUNDING * largest, self._least)
        if self.local is not None:
            squares = candidates.view_squares(self.vectors, self.cuts, rows, index, self.tasks)

            def add(part: slice) -> None:
                """Add the local reference to the scores of a part of the rows."""
                norms = self._local_norms(rows[part], index[part], sums[:, part], squares[:, part])
                scores[part] += (1.0 - SLACK) * self.base.weight * norms

            with ThreadPoolExecutor(self.tasks) as pool:
                list(pool.map(add, row_blocks(index.shape)))
        elif self.l1_weight:
            scores += (1.0 - SLACK) * self.l1_weight * (2.0 - 2.0 * sums[1])
        elif self._other is not None:
            scores += (1.0 - SLACK) * self.base.weight * self._other_norms(rows, index)
        return scores

    def distances(self, index: Index) -> Vector:
        """Distances of the pairs ``index`` (p, 2)."""
        rows, back = np.unique(index, return_inverse=True)
        hist, full = self.histograms(rows)
        places = None
        if self.local is not None:
            placed = self._views.place(Histograms(full))
            places = LocalItems(placed, [part[rows] for part in self.around])
        some = self.base.on(hist, full, places, self._own(rows))
        return some.pairs(back.reshape(-1, 2))

    @property
    def has_common_sums(self) -> bool:
        """Whether the reference is made of sums over the features that two samples share."""
        return self.local is not None or self.l1_weight > 0.0

    @property
    def common_entries(self) -> tuple[Index, NDArray[np.int32], Any, Any]:
        """Samples as CSR rows with two values per entry, for these sums; no entries without."""
        one = self._arrays["one"]
        if not self.has_common_sums:
            return np.zeros(len(self.p) + 1, np.int64), np.empty(0, np.int32), one[:0], one[:0]
        return (*self._pattern, self._arrays.get("two", one), self._arrays.get("three", one))

    # -------------------------------------------------------------------------- helpers

    @cached_property
    def _pattern(self) -> tuple[Index, NDArray[np.int32]]:
        """Pointers and bins of all samples as CSR rows; smoothing fills every bin."""
        if self.problem.smoothing:
            n, m = self.stored.shape
            return np.arange(0, n * m + 1, m), np.tile(np.arange(m, dtype=np.int32), n)
        return self.stored.indptr, self.stored.indices

    def entries(self, rows: Index) -> Index:
        """Places of the entries of some samples in the stored arrays."""
        starts = self._pattern[0]
        return _ranges(starts[rows], starts[rows + 1])

    def _own(self, rows: Index) -> tuple[Vector, Vector] | None:
        """The self terms of some samples."""
        if self._self_terms is None:
            return None
        entries = _ranges(self._starts[rows], self._starts[rows + 1])
        return self._arrays["own"][entries].astype(np.float64), self._self_terms[rows]

    def _bounds(self, hist: sparse.csr_array, phi: Any, own: Vector | None = None) -> LowerBounds:
        base = self.base
        if self.bounded:
            bounds: LowerBounds = base.transport.lower_bounds(phi, hist, base.cost, own)
            return bounds
        halves = -0.5 * quadratic_forms(hist, base.cost)
        products = hist @ base.cost
        return LowerBounds(
            halves, halves, np.empty((hist.shape[0], 0)), lambda rows: -products[rows]
        )

    def _local_norms(self, rows: Index, index: Index, sums: Any, squares: Any) -> Matrix:
        """A local reference, from the sums over common features and the squares of other views."""
        local: Any = self.local
        common, cosines = (part.astype(np.float64) for part in sums[1:])
        tfidf = np.sqrt(np.maximum(2.0 - 2.0 * cosines, 0.0))
        parts = (2.0 - 2.0 * common, tfidf, *map(np.sqrt, squares))
        norms: Matrix = local.combine(parts, self.around, (rows[:, None], index))
        return norms

    def _other_norms(self, rows: Index, index: Index) -> Matrix:
        """A reference other than "local", for pairs."""
        norms: Any = self.base.norms
        i = np.repeat(rows, index.shape[1])
        pairs = np.stack([i, index.ravel()], axis=1)
        numbers, back = np.unique(pairs, return_inverse=True)
        placed = norms.on(self.histograms(numbers)[1])
        values: Matrix = placed(back.reshape(-1, 2)).reshape(index.shape)
        return values

    def _reference_slope(self, result: Result, vectors: NDArray[np.float32]) -> float:
        """How much R grows with the squared distance of vectors, among near landmarks."""
        if self.base.norms is None:
            return 0.0
        known = self.problem.samples
        metric = np.asarray(known.reduce(np.asarray(result.samples)))
        near = np.argsort(metric, axis=1)[:, 1:31]
        squares = ((vectors[:, None] - vectors[near]) ** 2).sum(axis=2)
        index = np.stack([np.repeat(np.arange(len(near)), near.shape[1]), near.ravel()], axis=1)
        values = self.base.weight * self.base.norms(index).reshape(near.shape)
        centered = squares - squares.mean(axis=1, keepdims=True)
        total = float((centered**2).sum())
        return max(0.0, float((centered * values).sum()) / total) if total > 0.0 else 0.0


def _side_by_side(places: list[Any]) -> NDArray[np.float32]:
    return np.concatenate([part.rows for part in places], axis=1).astype(np.float32)


def _ranges(starts: Index, stops: Index) -> Index:
    """The numbers from each start to its stop, one after the other."""
    sizes = stops - starts
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(total)
