"""Nearest neighbors of all samples on a torch device, from bounds of all pairs.

Three filters, each for fewer pairs than the one before:

1. Products of float16 numbers give a lower bound of every distance, lowered by the largest possible
   rounding error (``kernels/lowest_bounds.py``). Each sample keeps some thousand of the lowest; the
   highest of these is a bound for all other samples.
2. The bounds that are kept are computed again in float64, with the exact norm or reference.
3. Distances are computed in the order of these bounds, until the rest are proved farther. Before
   that, two sweeps of Sinkhorn raise the bound of a pair: dual values are lower bounds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.types import Index, Matrix
from cometric.landmarks.exhaustive import count_hits
from cometric.results.distances_torch import TensorDistances
from cometric.runtime.progress import bar_of_pairs

if TYPE_CHECKING:
    from cometric.results.result import Result

BLOCK = 8192
"""Samples to search neighbors of at a time."""

SLOTS = 1024
"""Pairs kept by the first filter for each sample, at least; twice as many as distances allowed."""

DEPTH = 64
"""In products, features are padded with zeros to a multiple of this."""

ROUNDING = 2.0**-51
"""Relative rounding error of one operation in float64; bounds are lowered by its effect."""

SINGLE = 2.0**-21
"""The same for several operations in float32."""

SWEEPS = 2
"""Sweeps of Sinkhorn that raise a bound, before a distance is computed."""

MASSES = 2.0**10
"""Factor of masses in float16, a power of two."""

Found = tuple[Index, Matrix, NDArray[np.bool_], Index]


class TensorSearch:
    """The k nearest neighbors of every histogram, with at most ``limit`` distances each."""

    def __init__(
        self,
        result: Result,
        hist: sparse.csr_array,
        full: sparse.csr_array,
        k: int,
        limit: int,
        device: Any,
    ) -> None:
        n = hist.shape[0]
        self._k, self._limit, self._n = k, limit, n
        # In random order, so that the columns seen first are like the others.
        self._order = np.random.default_rng(0).permutation(n)
        same = full is hist
        hist = hist[self._order]
        full = hist if same else full[self._order]
        self._distances = TensorDistances(result, "samples", hist, full, device)
        self._device = self._distances.device
        self._columns = self._make_columns(int(np.diff(hist.indptr).max()))
        self._rounding = self._rounding_error()

    # ---------------------------------------------------------------------- first filter

    def _make_columns(self, longest: int) -> Any:
        """All samples as the columns of products, in float16."""
        import torch

        from cometric.kernels.lowest_bounds import Columns

        distances, n = self._distances, self._n
        transport, norm = distances.transport, distances.norm
        some = torch.arange(min(n, 4096), device=self._device)
        self._center = transport.image(some).mean(0)  # subtracted to keep products small
        part = transport.rows
        means = distances.kernels.sums(
            self._center[None], part.indptr, part.indices, part.data,
            torch.arange(n, device=self._device), False,
        )[0]  # fmt: skip
        q = distances.scale * (transport.q - means)
        self._p = distances.scale * transport.p
        self._largest_q = float(q.abs().max())
        masses, self._lost = self._float16(part, lambda x: (MASSES * x).half(), True)
        self._sums = (longest + 32) * 2.0**-22  # relative error of sums in float32
        numbers = torch.zeros((n, 8), device=self._device)
        numbers[:, 0] = q
        overlap = angle = place = None
        if norm is not None:
            overlap, angle, place = self._norm_columns(numbers)
        return Columns(masses, overlap, angle, place, numbers, _padded(self._full_bins))

    def _rounding_error(self) -> float:
        """The largest rounding error of a bound in float64."""
        import torch

        distances, transport = self._distances, self._distances.transport
        image = transport.image(torch.arange(min(self._n, BLOCK), device=self._device))
        largest = max(float(part.abs().max()) for part in (image, transport.p, transport.q))
        count = float(transport.rows.sizes.max()) + 16.0
        return count * ROUNDING * (2.0 * distances.scale * largest + distances.weight)

    @property
    def _full_bins(self) -> int:
        norm = self._distances.norm
        for part in () if norm is None else (norm.least, norm.angle, norm.cosine):
            if part is not None:
                return part.shape[1]
        return 0

    def _norm_columns(self, numbers: Any) -> tuple[Any, Any, Any]:
        """The columns for the norm, and their numbers."""
        import torch

        from cometric.kernels.lowest_bounds import PLACES, round_up

        norm: Any = self._distances.norm
        overlap = angle = place = None
        if norm.least is not None:
            overlap, _ = self._float16(norm.least, lambda x: round_up(x.sqrt(), self._sums))
        if norm.cosine is not None:
            overlap, _ = self._float16(norm.cosine, lambda x: round_up(x, self._sums))
        if norm.angle is not None:
            angle, _ = self._float16(norm.angle, lambda x: round_up(x, self._sums))
        if norm.place is not None:
            place = torch.zeros((self._n, PLACES), device=self._device)
            place[:, : norm.place.shape[1]] = norm.place
            numbers[:, 4] = (norm.place**2).sum(1) - 4e-6
        scales = [torch.ones((), device=self._device)] * 3
        if norm.local is not None:
            weights = [math.sqrt(weight) for weight in norm.local.weights]
            scales = [
                weight / scale.sqrt() for weight, scale in zip(weights, norm.scales, strict=True)
            ]
            numbers[:, 5] = norm.noise * (1.0 + 2e-7)
            numbers[:, 6] = 1.0 / norm.spread
        for column, scale in zip((1, 2, 3), scales, strict=True):
            numbers[:, column] = scale
        return overlap, angle, place

    def _float16(self, rows: Any, convert: Any, losses: bool = False) -> tuple[Any, float]:
        """Sparse rows as a dense float16 matrix, and the largest mass lost by rounding a row."""
        import torch

        n, depth = rows.shape[0], _padded(rows.shape[1])
        dense = torch.empty((n, depth), dtype=torch.float16, device=self._device)
        lost = 0.0
        for start in range(0, n, BLOCK):
            some = torch.arange(start, min(start + BLOCK, n), device=self._device)
            exact = rows.dense(some, depth)
            dense[start : start + len(some)] = convert(exact)
            if losses:
                rounded = dense[start : start + len(some)].double() / MASSES
                lost = max(lost, float((exact - rounded).abs().sum(1).max()))
        return dense, lost

    def _make_rows(self, some: Any, image: Any) -> Any:
        """Samples as the rows of products; bounds are lowered by the largest rounding error."""
        import torch

        from cometric.kernels.lowest_bounds import Rows

        distances, columns = self._distances, self._columns
        x = distances.scale * (image - self._center)
        largest = float(x.abs().max())
        factor = 2.0 ** math.floor(math.log2(256.0 / largest)) if largest > 0.0 else 1.0
        rounded = torch.zeros(
            (len(some), columns.x.shape[1]), dtype=torch.float16, device=self._device
        )
        rounded[:, : x.shape[1]] = factor * x
        used = rounded[:, : x.shape[1]].double() / factor
        size = used.abs().amax(1)
        slack = (x - used).abs().amax(1) + size * (1.001 * self._lost + 2.0 * self._sums)
        numbers = columns.numbers[some].clone()
        p = self._p[some]
        slack += SINGLE * (p.abs() + self._largest_q + size + distances.weight)
        numbers[:, 0] = p - slack
        norm = distances.norm
        if norm is not None and norm.cosine is not None:
            numbers[:, 1] *= 0.5
        local = None if norm is None else norm.local
        return Rows(
            rounded,
            None if columns.overlap is None else columns.overlap[some],
            None if columns.angle is None else columns.angle[some],
            None if columns.place is None else columns.place[some],
            numbers,
            some.int(),
            1.0 / (factor * MASSES),
            distances.weight * (1.0 - 3e-5),
            math.inf if local is None else local.farthest,
            local is not None,
        )

    # ------------------------------------------------------------------------ the search

    def run(self, progress: bool = False) -> Found:
        """Neighbors, their distances, whether they are proved, and the number of distances."""
        blocks = []
        with bar_of_pairs(progress, self._n, "sample", "finding neighbors") as report:
            for start in range(0, self._n, BLOCK):
                stop = min(start + BLOCK, self._n)
                blocks.append(self._block(start, stop))
                report(stop, self._n)
        back = np.argsort(self._order)
        index, near, proved, compared = (
            np.concatenate(part)[back] for part in zip(*blocks, strict=True)
        )
        return self._order[index], near, proved, compared

    def _block(self, start: int, stop: int) -> Found:
        import torch

        some = torch.arange(start, stop, device=self._device)
        low, index, norms, floor = self.candidates(some)
        k, slots = self._k, low.shape[1]
        distances = torch.full_like(low, math.inf)
        solved = torch.zeros_like(low, dtype=torch.bool)
        swept = torch.zeros_like(solved)
        width = min(4 * k // 3, self._limit, slots)
        while True:  # each round of distances excludes more of the other candidates
            worst = distances.topk(min(k, slots), largest=False).values[:, -1:]
            if bool(solved.any()):
                fresh = ~(solved | swept) & (low < worst)
                self._raise_bounds(low, fresh, some, index, norms)
                swept |= fresh
            left = low.masked_fill(solved, math.inf)
            bounds, place = left.topk(width, largest=False)
            allowed = self._limit - solved.sum(1, keepdim=True)
            due = (bounds < worst) & (torch.arange(width, device=low.device) < allowed)
            slot, at = due.nonzero(as_tuple=True)
            if len(slot) == 0:
                break
            at = place[slot, at]
            R = None if norms is None else norms[slot, at]
            distances[slot, at] = self._distances.pairs(some, slot, index[slot, at], R)
            solved[slot, at] = True
        near, order = distances.sort(dim=1, stable=True)
        near, order = near[:, :k], order[:, :k]
        proved = torch.minimum(left.amin(1), floor) >= near[:, -1]
        found = (index.gather(1, order), near, proved, solved.sum(1))
        return tuple(part.cpu().numpy() for part in found)

    def _raise_bounds(self, low: Any, fresh: Any, some: Any, index: Any, norms: Any) -> None:
        """Raise the bounds of the pairs ``fresh`` to their dual values after a few sweeps."""
        slot, at = fresh.nonzero(as_tuple=True)
        if len(slot) == 0:
            return
        distances = self._distances
        values = distances.scale * distances.transport(some, slot, index[slot, at], SWEEPS)
        values -= self._rounding
        if norms is not None:
            values += distances.weight * norms[slot, at]
        low[slot, at] = low[slot, at].maximum(values)

    def candidates(self, some: Any) -> tuple[Any, Any, Any, Any]:
        """Lower bounds of distances from the samples ``some``, candidates, and norms R.

        The last value bounds the distances to all samples that are not candidates.
        """
        import torch

        from cometric.kernels.lowest_bounds import select

        distances, n = self._distances, self._n
        transport = distances.transport
        image = transport.image(some)
        slots = min(n, max(SLOTS, 2 * self._limit))
        rows = self._make_rows(some, image)
        state = select(rows, self._columns, slots, 5 * slots, distances.kernels.append)
        index = state.found[:, :slots].long()
        low = distances.scale * transport.bounds(some, image, index) - self._rounding
        norms = None
        if distances.norm is not None:
            norms = distances.norm(some, index)
            low += distances.weight * norms
        low = low.masked_fill(~torch.isfinite(state.bounds[:, :slots]), math.inf)
        return low, index, norms, state.threshold.double()

    def recall(self, queries: Index, near: Matrix, progress: bool = False) -> float:
        """The fraction of true neighbors of ``queries`` among those at distances ``near``."""
        import torch

        hits = 0
        everyone = torch.arange(self._n, device=self._device)
        places = np.argsort(self._order)[queries]
        with bar_of_pairs(progress, len(queries), "sample", "measuring recall") as report:
            for done, (i, row) in enumerate(zip(places, near, strict=True), 1):
                values = self._distances.from_rows(everyone[i : i + 1], everyone)[0]
                values = values.clamp_(min=0.0)
                values[i] = math.inf
                true = float(values.topk(self._k, largest=False).values[-1])
                hits += count_hits(row, true)
                report(done, len(queries))
        return hits / (len(queries) * self._k)


def _padded(depth: int) -> int:
    return depth + -depth % DEPTH
