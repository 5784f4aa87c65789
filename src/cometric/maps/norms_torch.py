"""The norm R between histograms on torch tensors: l1, and the references."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.histograms import MERGE_TOLERANCE, Histograms, label_repeats
from cometric.core.types import Matrix
from cometric.maps.norms import (
    AROUND,
    NAMES,
    NEAR,
    NOISE,
    SHARPNESS,
    SMALLEST,
    LocalParts,
    Plain,
    fit,
    is_reference,
    norm_matrix,
)

CHUNK = 8192
"""Number of histograms placed among the learned ones at a time."""


class Rows:
    """A sparse matrix on a device."""

    def __init__(self, rows: sparse.csr_array, device: Any) -> None:
        import torch

        self.indptr = torch.as_tensor(rows.indptr.astype(np.int64), device=device)
        self.indices = torch.as_tensor(rows.indices.astype(np.int32), device=device)
        self.data = torch.as_tensor(np.asarray(rows.data, np.float64), device=device)
        self.shape: tuple[int, int] = rows.shape
        self.sizes = np.diff(rows.indptr)

    def with_data(self, data: Any) -> Rows:
        other = object.__new__(Rows)
        other.__dict__.update(self.__dict__, data=data)
        return other

    def dense(self, rows: Any, depth: int | None = None) -> Any:
        """Some rows as a dense matrix, padded with zeros to ``depth`` columns."""
        import torch

        begin, sizes = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        line = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), sizes)
        starts = sizes.cumsum(0) - sizes
        at = torch.arange(len(line), device=rows.device) - starts[line] + begin[line]
        dense = self.data.new_zeros((len(rows), depth or self.shape[1]))
        dense[line, self.indices[at].long()] = self.data[at]
        return dense


class TensorNorm:
    """R between any of the histograms ``full``, as in :class:`PairNorms`.

    R combines at most one distance of each kind, between the rows of ``least`` (l1 norm),
    ``angle`` (Euclidean, unit vectors), ``cosine`` (one minus the product) and ``place``
    (Euclidean, dense vectors); unused kinds are None. Local references divide them by ``scales``.
    The reference "local" between samples, with dense vectors of six kinds, runs on the CPU only.
    """

    def __init__(
        self, norm: str, known: Histograms, full: sparse.csr_array, of: str, device: Any, use: Any
    ) -> None:
        if norm != "l1" and not is_reference(norm):
            names = [name for name in NAMES if name != "local"]
            raise ValueError(
                f"`norm` was {norm!r}, which runs on the CPU only: pass device='cpu', or learn "
                f"with 'l1', {', '.join(map(repr, names))}."
            )
        import torch

        self._device, self._sums = device, use.sums
        self.least: Rows | None = None
        self.angle: Rows | None = None
        self.cosine: Rows | None = None
        self.place: Any = None
        self.local: LocalParts | None = None
        self.smallest = 0.0
        if norm == "l1":
            self.known: Matrix = norm_matrix(known, norm)
            self.least = Rows(full, device)
            return
        reference: Any = fit(norm, known, of)
        self.known = reference.matrix
        rows = Histograms(full)
        if isinstance(reference, Plain):
            placed = reference.place(rows).places.rows
            self.smallest = reference.smallest
            self._labels = torch.as_tensor(label_repeats(full), device=device)
            if not sparse.issparse(placed):
                self.place = torch.as_tensor(placed, device=device)
            elif norm == "cosine":
                self.cosine = Rows(placed, device)
            else:
                self.angle = Rows(placed, device)
            return
        self.local = reference.parts
        shape: Rows | None = None
        for part in reference.views.place(rows):
            if isinstance(part, Histograms):
                shape = self.least = Rows(part.rows, device)
            elif sparse.issparse(part.rows) and shape is not None:  # the same entries as before
                self.angle = shape.with_data(torch.as_tensor(part.rows.data, device=device))
            else:
                self.place = torch.as_tensor(part.rows, device=device)
        self._place_among_known()

    def _kinds(self) -> list[Any]:
        return [part for part in (self.least, self.angle, self.place) if part is not None]

    def _place_among_known(self) -> None:
        """Compute the scale, noise and spread of every histogram, relative to the learned ones."""
        import torch

        reference: Any = self.local
        blocks = []
        known = [
            Rows(part.rows, self._device)
            if isinstance(part, Histograms) or sparse.issparse(part.rows)
            else torch.as_tensor(part.rows, device=self._device)
            for part in reference.known
        ]
        scales = [torch.as_tensor(scale, device=self._device) for scale in reference.scales]
        everyone = torch.arange(len(reference.scales[0]), device=self._device)
        first: Any = self.least  # all local references have l1 distances
        for start in range(0, first.shape[0], CHUNK):
            rows = torch.arange(start, min(start + CHUNK, first.shape[0]), device=self._device)
            total, same, own = 0.0, None, []
            for c, part in enumerate(self._distances(rows, everyone, known)):
                if same is None:
                    same = part <= MERGE_TOLERANCE  # a histogram that equals a learned one
                scale = _nearest(part, same, NEAR).mean(1)
                own.append(scale.clamp_(min=reference.floors[c]))
                outer = own[c].sqrt()[:, None] * scales[c].sqrt()
                total = total + reference.weights[c] * part / outer
            near = _nearest(total, same, AROUND)
            noise = NOISE * near.amin(1)
            blocks.append((*own, noise, (near - noise[:, None]).mean(1)))
        *self.scales, self.noise, self.spread = map(torch.cat, zip(*blocks, strict=True))

    def _distances(self, rows: Any, targets: Any, others: list[Any]) -> list[Any]:
        """Distances of each kind to the ``targets`` in ``others``, one matrix per kind."""
        distances = []
        for part, other in zip(self._kinds(), others, strict=True):
            if part is self.place:
                distances.append(_euclidean(part[rows], other, targets))
                continue
            least = part is self.least
            products = self._sums(
                part.dense(rows), other.indptr, other.indices, other.data, targets, least
            )
            squares = (2.0 - 2.0 * products).clamp_(min=0.0)
            distances.append(squares if least else squares.sqrt_())
        return distances

    def __call__(self, rows: Any, targets: Any) -> Any:
        """R from ``rows`` to ``targets``, (n, c), or (c,) if the same for all rows."""
        import torch

        if self.cosine is not None:
            other = self.cosine
            products = self._sums(
                other.dense(rows), other.indptr, other.indices, other.data, targets, False
            )
            return self._raised(1.0 - products, rows, targets)
        parts = self._distances(rows, targets, self._kinds())
        if self.local is None:
            return parts[0] if self.smallest == 0.0 else self._raised(parts[0], rows, targets)
        total = 0.0
        for part, scale, weight in zip(parts, self.scales, self.local.weights, strict=True):
            total = total + weight * part / (scale[rows].sqrt()[:, None] * scale[targets].sqrt())
        above = [
            torch.maximum(total - noise, SMALLEST * total)
            for noise in (self.noise[rows][:, None], self.noise[targets])
        ]
        spreads = self.spread[rows][:, None] * self.spread[targets]
        relative = (above[0] * above[1] / spreads) ** (SHARPNESS / 2)
        return relative.clamp_(max=self.local.farthest)

    def _raised(self, distances: Any, rows: Any, targets: Any) -> Any:
        """Distances raised to at least ``smallest``, but zero between equal histograms."""
        same = self._labels[rows][:, None] == self._labels[targets]
        return distances.clamp_(min=self.smallest).masked_fill_(same, 0.0)


def _euclidean(rows: Any, others: Any, targets: Any) -> Any:
    """Euclidean distances of dense vectors."""
    import torch

    squares = (rows * rows).sum(1)[:, None]
    if targets.ndim == 1:
        other = others[targets]
        squares = squares + (other * other).sum(1) - 2.0 * (rows @ other.T)
        return squares.clamp_(min=0.0).sqrt_()
    distances = torch.empty(targets.shape, dtype=rows.dtype, device=rows.device)
    step = max(1, 50_000_000 // (targets.shape[1] * rows.shape[1]))
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        other = others[targets[some].long()]
        products = torch.einsum("ij,icj->ic", rows[some], other)
        part = squares[some] + (other * other).sum(2) - 2.0 * products
        distances[some] = part.clamp_(min=0.0).sqrt_()
    return distances


def _nearest(distances: Any, same: Any, count: int) -> Any:
    """The ``count`` smallest distances of each row, without ``same`` items; all if fewer."""
    others = distances.shape[1] - int(same.sum(1).max())
    masked = distances.masked_fill(same, float("inf"))
    return masked.topk(min(count, others), largest=False, sorted=False).values
