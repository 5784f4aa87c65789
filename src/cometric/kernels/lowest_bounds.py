"""The lowest of the lower bounds of all distances: the data, and the search panel by panel.

The bounds themselves are computed by ``nearest_triton``.

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

PLACES = 32
"""Entries of y, padded with zeros."""


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

    ``append`` stores bounds below the thresholds, as ``nearest_triton.append``. As the columns are
    in random order, a panel twice as wide as all earlier ones together has about 2 ``slots`` bounds
    below the threshold; a panel with more than fit is halved.
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


def round_up(values, error=0.0):
    """Positive numbers times 1 + ``error``, rounded up to float16; zeros stay zero."""
    raised = (values * ((1.0 + 2.0**-10) * (1.0 + error)) + 2.0**-24).to(torch.float16)
    return torch.where(values > 0.0, raised, torch.zeros_like(raised))
