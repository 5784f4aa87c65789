"""Sinkhorn divergences of chosen pairs of histograms under one cost, on torch tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.types import Matrix
from cometric.maps.blocks import LANES
from cometric.maps.entropic_torch import raise_if_small
from cometric.maps.norms_torch import Rows
from cometric.maps.sinkhorn_map import SELF_TOL

CHUNK = 32_768
"""Number of histograms whose self terms are computed at a time."""

COPIES, SCRATCH = 4 << 30, 2 << 30
"""Bytes for copied columns of the kernel, and for scalings of pairs."""

MAX_SWEEPS = 10_000


class TensorPairs:
    """Divergences as in :class:`EntropicMap`, of any pairs, under one cost.

    Scalings of histograms to themselves are computed once; pairs start from those of their first
    histogram. ``image`` and the rest are for lower bounds: ``Entropic.lower_bounds`` and
    ``Unbalanced.lower_bounds`` have the formulas.
    """

    def __init__(
        self,
        hist: sparse.csr_array,
        cost: Matrix,
        eps: float,
        rho: float | None,
        tol: float,
        device: Any,
        use: Any,
    ) -> None:
        import torch

        raise_if_small(eps)
        self.tol, self.error, self._use, self._device = tol, 0.0, use, device
        self.ratio = math.inf if rho is None else rho / eps
        self.unit = eps * float(cost.max())
        self.rows = Rows(hist, device)
        n, d = hist.shape
        self.depth = d + -d % LANES
        self._kernel = torch.ones((self.depth, self.depth), dtype=torch.float64, device=device)
        self._kernel[:d, :d] = (torch.as_tensor(cost, device=device) / -self.unit).exp()
        self.scalings = torch.empty_like(self.rows.data)
        self._own = torch.empty(n, dtype=torch.float64, device=device)
        self.p, self.q = torch.zeros_like(self._own), torch.empty_like(self._own)
        for start in range(0, n, CHUNK):
            self._match_to_themselves(start, min(start + CHUNK, n))

    def _match_to_themselves(self, first: int, last: int) -> None:
        """Scalings and costs of some histograms to themselves."""
        import torch

        from cometric.kernels.sinkhorn_torch import self_terms

        rows = self.rows
        some = torch.arange(first, last, device=self._device)
        hist = rows.dense(some, self.depth)
        scaling = (hist > 0).double()
        self._own[first:last], _ = self_terms(
            hist, self._kernel, scaling, MAX_SWEEPS, SELF_TOL, self.ratio
        )
        begin, end = int(rows.indptr[first]), int(rows.indptr[last])
        part = slice(begin, end)
        sizes = torch.as_tensor(rows.sizes[first:last], device=self._device)
        line = torch.repeat_interleave(some - first, sizes)
        u = scaling[line, rows.indices[part].long()]
        self.scalings[part] = u
        a = rows.data[part]

        def add(terms: Any) -> Any:
            return torch.zeros_like(self._own[first:last]).index_add_(0, line, terms)

        if math.isinf(self.ratio):
            self.q[first:last] = self.unit * add(a * (a / u).log())
            return
        lost = self.ratio * add(a * torch.expm1(-(u / a).log() / self.ratio))
        plans = (scaling * (scaling @ self._kernel)).sum(1)
        halves = lost + 0.5 * plans
        self.p[first:last] = self.unit * (halves - lost)
        self.q[first:last] = self.unit * (halves - hist.sum(1))

    def image(self, rows: Any) -> Any:
        """The vector x_i of the lower bounds p_i + q_j - <x_i, a_j>, for each of ``rows``."""
        d = self.rows.shape[1]
        logs = (self.rows.with_data(self.scalings).dense(rows, self.depth) @ self._kernel).log_()
        if math.isinf(self.ratio):
            return self.unit * logs[:, :d]
        return (self.unit * (self.ratio + 1.0)) * (logs[:, :d] / (self.ratio + 1.0)).expm1_()

    def bounds(self, rows: Any, image: Any, targets: Any) -> Any:
        """Lower bounds of the divergences from ``rows`` to ``targets`` (n, c)."""
        part = self.rows
        products = self._use.sums(image, part.indptr, part.indices, part.data, targets, False)
        return self.p[rows][:, None] + self.q[targets.long()] - products

    def __call__(self, rows: Any, slots: Any, targets: Any, sweeps: int = MAX_SWEEPS) -> Any:
        """Divergences of the pairs ``rows[slots[p]]``, ``targets[p]``, with slots in any order.

        Lower bounds if ``sweeps`` are too few for convergence.
        """
        import torch

        values = torch.empty(len(slots), dtype=torch.float64, device=self._device)
        if self.unit == 0.0:
            return values.zero_()
        sizes = (self.rows.indptr[rows + 1] - self.rows.indptr[rows]).cpu().numpy()
        order = np.argsort(sizes, kind="stable")
        rank = torch.as_tensor(np.argsort(order), device=self._device)
        by_rank, place = rank[slots.long()].sort()
        ends = (
            torch.searchsorted(by_rank, torch.arange(len(rows), device=self._device), right=True)
            .cpu()
            .numpy()
        )
        longest = int(self.rows.sizes.max())
        most = max(1, int(SCRATCH / (8 * longest)))
        sources = rows[torch.as_tensor(order, device=self._device)]
        first = 0
        while first < len(rows):
            last = _end_of_block(sizes[order], first, self.depth)
            start, end = (0 if first == 0 else int(ends[first - 1])), int(ends[last - 1])
            if end > start:
                source = self._padded(sources[first:last], int(sizes[order[last - 1]]))
                for at in range(start, end, most):
                    some = place[at : min(at + most, end)]
                    part, errors = self._use.pairs(
                        self._kernel, *source, (by_rank[at : min(at + most, end)] - first).int(),
                        targets[some].int(), self.rows.indptr, self.rows.indices, self.rows.data,
                        longest, sweeps, self.tol, self.ratio,
                    )  # fmt: skip
                    values[some] = part
                    if sweeps == MAX_SWEEPS:
                        self.error = max(self.error, float(errors.max()))
            first = last
        i = rows[slots.long()]
        own = 0.5 * (self._own[i] + self._own[targets.long()])
        values = self.unit * (values - own)
        values[i == targets] = 0.0
        return values

    def _padded(self, rows: Any, size: int) -> tuple[Any, Any, Any]:
        """Bins, masses and scalings of sources, padded with bin 0 and mass 0."""
        import torch

        width = size + -size % LANES
        begin, end = self.rows.indptr[rows][:, None], self.rows.indptr[rows + 1][:, None]
        place = begin + torch.arange(width, device=self._device)
        real = place < end
        place = torch.where(real, place, begin)
        return (
            torch.where(real, self.rows.indices[place], 0),
            torch.where(real, self.rows.data[place], 0.0),
            torch.where(real, self.scalings[place], 0.0),
        )


def _end_of_block(sizes: Any, first: int, depth: int) -> int:
    """The end of a block of sources of similar size whose copies of kernel columns fit."""
    small = max(16.0, sizes[first])
    last = int(np.searchsorted(sizes, 2.0 ** math.ceil(math.log2(small)), side="right"))
    last = max(last, first + 1)
    width = float(sizes[last - 1] + LANES)
    return min(last, first + max(1, int(COPIES / (8.0 * depth * width))))
