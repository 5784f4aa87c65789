"""The lowest of the lower bounds of all distances, and divergences of pairs, torch.

Works on tensors of any device; ``nearest_triton`` does the same faster, on a GPU.

Conventions
-----------
The bound of the pair (i, j) is, with products of float16 numbers accumulated in float32, ::

    p_i + q_j - unit <x_i, a_j> + weight F(N_ij),

    N_ij = g_i g_j (2 - 2 <s_i, s_j>)                 "overlap"
         + h_i h_j sqrt(2 - 2 <t_i, t_j>)             "angle"
         + l_i l_j sqrt(|y_i|^2 + |y_j|^2 - 2 <y_i, y_j>)   "place", y in float32 with 32 entries

with F(N) = N, or for a local reference ::

    F(N) = min(((N - n_i)(N - n_j) / (t_i t_j))^(3/4), farthest),   each factor at least 1e-6 N.

``numbers`` are the columns p or q, g, h, l, |y|^2, n, 1 / t of rows or columns, in float32. Parts
that are None are left out. The caller lowers p, |y|^2, weight and so on by the possible rounding
errors. s and t are rounded up by :func:`round_up`, so that their products are not below the true
ones.

Validation belongs to the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from cometric.kernels.sinkhorn_torch import fast_products, sweep

PLACES = 32
"""Entries of y, padded with zeros."""

ENTRIES = 20_000_000
"""Maximum size of a temporary tensor."""

CELLS = 80_000_000
"""Maximum size of the kernels of all pairs that are swept at once."""

LANES = 16
"""Supports are padded to multiples of this."""

ROUND = 20
"""Sweeps of a batch of pairs between two removals of solved ones."""


class Rows(NamedTuple):
    """The samples to find neighbors for; ``own`` are their numbers among the columns."""

    x: Any
    overlap: Any
    angle: Any
    place: Any
    numbers: Any
    own: Any
    unit: float
    weight: float
    farthest: float
    local: bool


class Columns(NamedTuple):
    """All samples."""

    x: Any
    overlap: Any
    angle: Any
    place: Any
    numbers: Any
    full_depth: int


@dataclass
class Lowest:
    """For each row, the ``slots`` lowest bounds so far, and room for new ones."""

    slots: int
    threshold: Any
    count: Any
    found: Any
    bounds: Any

    @classmethod
    def empty(cls, rows: int, slots: int, room: int, device: Any) -> Lowest:
        return cls(
            slots,
            torch.full((rows,), math.inf, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros((rows, room), dtype=torch.int32, device=device),
            torch.full((rows, room), math.inf, device=device),
        )

    def compress(self) -> None:
        """Keep only the ``slots`` lowest bounds; the highest of these is the new threshold."""
        slots = min(self.slots, self.bounds.shape[1])
        lowest, place = torch.topk(self.bounds, slots, largest=False, sorted=False)
        found = self.found.gather(1, place)
        self.found[:, :slots], self.bounds[:, :slots] = found, lowest
        self.threshold = lowest.amax(1)
        self.discard()

    def discard(self) -> None:
        """Discard all bounds after the first ``slots``."""
        self.bounds[:, self.slots :] = math.inf
        self.count.fill_(min(self.slots, self.bounds.shape[1]))


def select(rows, columns, slots, room, append):
    """The ``slots`` lowest bounds of each row; all others are at least ``threshold``.

    ``append`` is the function of this module or of ``nearest_triton``. As the columns are in random
    order, a panel twice as wide as all earlier ones together has about 2 ``slots`` bounds below the
    threshold; a panel with more than fit is halved.
    """
    n = len(columns.x)
    state = Lowest.empty(len(rows.x), slots, room, rows.x.device)
    first, last = 0, min(n, room)
    while first < n:
        append(rows, columns, state, first, last)
        if first > 0 and int(state.count.max()) > room:
            state.discard()
            last = first + (last - first + 1) // 2
            continue
        state.compress()
        first, last = last, min(n, 3 * last)
    return state


def append(rows, columns, state, first, last):
    """Store the bounds of columns ``first`` to ``last`` that are below the thresholds.

    ``count`` grows by their number, even if they do not fit.
    """
    step = max(1, ENTRIES // len(rows.x))
    for start in range(first, last, step):
        part = slice(start, min(start + step, last))
        bounds = _bounds(rows, columns, part)
        j = torch.arange(part.start, part.stop, dtype=torch.int32, device=bounds.device)
        hit = (bounds < state.threshold[:, None]) & (j != rows.own[:, None])
        i, k = hit.nonzero(as_tuple=True)  # row by row
        hits = hit.sum(1)
        place = (state.count + hits - hits.cumsum(0))[i] + torch.arange(len(i), device=i.device)
        state.count += hits.to(torch.int32)
        fits = place < state.found.shape[1]
        i, k, place = i[fits], k[fits], place[fits]
        state.found[i, place], state.bounds[i, place] = j[k], bounds[i, k]


def _bounds(rows, columns, part):
    """Bounds of all rows with some of the columns."""

    def product(name):
        mine, theirs = getattr(rows, name), getattr(columns, name)[part]
        with fast_products(mine.dtype == torch.float16):  # TF32 has all digits of float16
            return mine.float() @ theirs.float().T

    mine, theirs = rows.numbers.T[:, :, None], columns.numbers[part].T[:, None, :]
    norm = torch.zeros((), device=rows.x.device)
    if rows.overlap is not None:
        norm = norm + mine[1] * theirs[1] * (2.0 - 2.0 * product("overlap")).clamp_(min=0.0)
    if rows.angle is not None:
        norm = norm + mine[2] * theirs[2] * (2.0 - 2.0 * product("angle")).clamp_(min=0.0).sqrt_()
    if rows.place is not None:
        squares = mine[4] + theirs[4] - 2.0 * product("place")
        norm = norm + mine[3] * theirs[3] * squares.clamp_(min=0.0).sqrt_()
    if rows.local:
        norm = norm * (1.0 - 4e-6)
        above = torch.maximum(norm - mine[5], 1e-6 * norm)
        above = above * torch.maximum(norm - theirs[5], 1e-6 * norm)
        norm = (above * (mine[6] * theirs[6])).pow(0.75).clamp_(max=rows.farthest)
    return mine[0] + theirs[0] - rows.unit * product("x") + rows.weight * norm


def round_up(values, error=0.0):
    """Positive numbers times 1 + ``error``, rounded up to float16; zeros stay zero."""
    raised = (values * ((1.0 + 2.0**-10) * (1.0 + error)) + 2.0**-24).to(torch.float16)
    return torch.where(values > 0.0, raised, torch.zeros_like(raised))


def spread(indptr, indices, data, rows, depth):
    """Rows of a sparse matrix as a dense one with ``depth`` columns."""
    at, line = _entries(indptr, rows)
    dense = data.new_zeros((len(rows), depth))
    dense[line, indices[at].long()] = data[at]
    return dense


def _entries(indptr, rows):
    """The positions of all entries of some rows, and the row number of each entry."""
    begin, sizes = indptr[rows], indptr[rows + 1] - indptr[rows]
    line = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), sizes)
    starts = sizes.cumsum(0) - sizes
    at = torch.arange(len(line), device=rows.device) - starts[line] + begin[line]
    return at, line


def sums(rows, indptr, indices, data, targets, least):
    """Inner products of dense rows with rows ``targets`` of a sparse matrix, in float64.

    ``targets`` are (n, c), or (c,), the same for all rows. With ``least``, sums of the smaller of
    two entries instead of their products.
    """
    n, count = len(rows), targets.shape[-1]
    flat = targets.expand(n, count).reshape(-1).long()
    sizes = indptr[flat + 1] - indptr[flat]
    out = torch.empty(n * count, dtype=torch.float64, device=rows.device)
    step = ENTRIES // max(1, int(sizes.max())) + 1
    for start in range(0, n * count, step):
        part = slice(start, start + step)
        at, line = _entries(indptr, flat[part])
        mine = rows[torch.div(start + line, count, rounding_mode="floor"), indices[at].long()]
        terms = torch.minimum(mine, data[at]) if least else mine * data[at]
        # In a fixed order, unlike the atomic additions of ``index_add_`` on a GPU
        out[part] = torch.segment_reduce(terms, "sum", lengths=sizes[part], unsafe=True)
    return out.reshape(n, count)


def pairs(
    kernel, bins, a, start, slots, targets, indptr, columns, weight, longest, sweeps, tol,
    ratio=math.inf,
):  # fmt: skip
    """Transport costs over eps of pairs, and marginal errors, starting from ``start`` scalings.

    ``bins``, ``a`` and ``start`` (B, w) are padded sources as in ``sinkhorn_torch``; pair p is
    source ``slots[p]`` with the histogram ``targets[p]`` of the sparse rows.

    Each pair is swept on its supports. Those of a batch are padded to the largest target, so pairs
    are sorted by it; after ``ROUND`` sweeps, solved pairs leave.
    """
    values = torch.empty(len(slots), dtype=torch.float64, device=kernel.device)
    errors = torch.empty_like(values)
    slots, targets, bins = slots.long(), targets.long(), bins.long()
    sizes = indptr[targets + 1] - indptr[targets]
    todo = sizes.argsort(descending=True)
    scalings = start[slots]
    while len(todo):
        widths, done = sizes[todo].tolist(), 0
        while done < len(todo):
            width = -(-widths[done] // LANES) * LANES
            some = todo[done : done + max(1, CELLS // (bins.shape[1] * width))]
            done += len(some)
            partner_bins, masses = _padded(indptr, columns, weight, targets[some], width)
            source, state = slots[some], scalings[some][:, None, :]
            value, error = sweep(
                kernel, bins[source], a[source], masses[:, None, :], state, min(sweeps, ROUND),
                tol, ratio=ratio, partner_bins=partner_bins,
            )  # fmt: skip
            values[some], errors[some], scalings[some] = value[:, 0], error[:, 0], state[:, 0]
        sweeps -= ROUND
        todo = todo[errors[todo] > tol] if sweeps > 0 else todo[:0]
    return values, errors


def _padded(indptr, columns, weight, rows, width):
    """Bins and masses of sparse rows, padded to ``width`` entries with bin 0 and mass 0."""
    begin, end = indptr[rows][:, None], indptr[rows + 1][:, None]
    place = begin + torch.arange(width, device=begin.device)
    real = place < end
    place = torch.where(real, place, begin)
    return torch.where(real, columns[place].long(), 0), torch.where(real, weight[place], 0.0)
