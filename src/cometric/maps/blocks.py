"""Blocks of pairs on a device, and which of two kernels is expected to be faster for them.

A block is a range of sources, in the order of their sizes, with the same partners: all histograms
from its first source on. Times are those of one NVIDIA H200, measured block by block on three data
sets (docs/notes/gpu-kernel.md); only their ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cometric.core.arrays import to_numpy
from cometric.core.types import Index

ENTRIES = {4: 1.1e12, 8: 0.5e12}
"""Entries of the kernel matrix that sweeps on supports read per second, by bytes of a number."""

ENTRIES_OF_WARP = {4: 1.4e9, 8: 0.52e9}
"""The same for one warp, which sweeps a pair: a block takes at least as long as its largest."""

PRODUCTS, TRAFFIC = 45e12, 3.5e12
"""Operations of matrix products, and bytes of memory, per second."""

LAUNCHES = 2e-4
"""Seconds for the launches of a sweep by products."""


class Block(NamedTuple):
    """Sources ``first`` to ``last``, in order of size, and the bins they are padded to."""

    first: int
    last: int
    width: int


class Part(NamedTuple):
    """A block of a task: supports, masses and scalings of its sources."""

    block: Block
    bins: Any
    masses: Any
    scalings: Any
    dense: bool  # whether it is swept by products

    def at(self, sources: Any) -> Part:
        """Copies of some sources, given by their places in the block."""
        chosen = (each[sources] for each in (self.bins, self.masses, self.scalings))
        return Part(self.block, *chosen, self.dense)


@dataclass
class Task:
    """Pairs of consecutive blocks; of the matrices only what is above the diagonal is computed."""

    parts: list[Part]
    values: Any
    errors: Any

    @property
    def first(self) -> int:
        return self.parts[0].block.first

    @property
    def last(self) -> int:
        return self.parts[-1].block.last

    def of(self, part: Part, matrix: Any) -> Any:
        """The pairs of a block in a matrix of the task."""
        first, last, _ = part.block
        return matrix[first - self.first : last - self.first, first - self.first :]

    def select(self, mask: Any) -> list[tuple[Part, Any, int]]:
        """The blocks with pairs in a mask, how many in each row, and how many."""
        rows = mask.sum(1)
        places = [part.block.first - self.first for part in self.parts]
        counts = np.add.reduceat(to_numpy(rows), places)
        found = zip(self.parts, places, counts, strict=True)
        return [(part, rows[place:], int(count)) for part, place, count in found if count]


def pair_ratio(size: float, d: int, itemsize: int = 8) -> float:
    """Time of a pair on its supports, of ``size`` bins out of ``d``, relative to products.

    Supports take size^2 entries of the kernel, each at the cost of a load. Products take
    4 size d operations at the rate of matrix units, and 4 passes over d numbers.
    """
    return (size**2 / ENTRIES[itemsize]) / _product(size, d, itemsize)


def prefers_products(block: Block, sizes: Index, d: int, itemsize: int) -> bool:
    """Whether products are expected to sweep a block faster than the kernel on supports.

    ``sizes`` are those of all histograms, in increasing order.
    """
    first, last, width = block
    partners = sizes[first:].sum() - np.cumsum(sizes[first:last])
    entries = float(sizes[first:last] @ partners)
    largest = float(width * sizes[-1])
    supports = max(entries / ENTRIES[itemsize], largest / ENTRIES_OF_WARP[itemsize])
    pairs = (last - first) * (len(sizes) - first)
    return supports > LAUNCHES + pairs * _product(width, d, itemsize)


def _product(size: float, d: int, itemsize: int) -> float:
    """Seconds of a sweep of a pair by products."""
    return 4.0 * size * d / PRODUCTS + 4.0 * itemsize * d / TRAFFIC
