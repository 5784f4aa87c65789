"""Blocks of pairs of histograms, for Sinkhorn sweeps on tensors.

Histograms are sorted by the size of their supports, smallest first; the source of a pair is the
smaller one. A block is a range of sources with all partners from its first source on; only pairs
above the diagonal count. A share is the blocks of a range of sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cometric.core.arrays import to_numpy
from cometric.core.cached import cached_property
from cometric.core.types import Index, Vector

LANES = 16
"""Tensor sizes are padded to multiples of this: products are 3.3 times faster, loads are wide."""

NEAR = 0.125
"""A device's work may differ by this share so that blocks stay whole."""

# Modeled times of the two GPU engines for blocks of pairs, to choose the faster one. Rates were
# measured on one NVIDIA H200, block by block on three data sets (docs/notes/gpu-kernel.md); only
# their ratios matter.

ENTRIES = {4: 1.1e12, 8: 0.5e12}
"""Kernel entries per second read by sweeps on supports, by item size in bytes."""

ENTRIES_OF_WARP = {4: 1.4e9, 8: 0.52e9}
"""The same for a single warp, which sweeps one pair: the largest pair bounds a block's time."""

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
    dense: bool  # whether its sweeps are matrix products

    def at(self, sources: Any) -> Part:
        """A copy with some sources only, given by position in the block."""
        return self._replace(
            bins=self.bins[sources], masses=self.masses[sources], scalings=self.scalings[sources]
        )


@dataclass
class Task:
    """Pairs of consecutive blocks; matrices are computed above the diagonal only."""

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
        """The blocks that have pairs in a mask, with the counts per row and in total."""
        rows = mask.sum(1)
        places = [part.block.first - self.first for part in self.parts]
        counts = np.add.reduceat(to_numpy(rows), places)
        blocks = zip(self.parts, places, counts, strict=True)
        return [(part, rows[place:], int(count)) for part, place, count in blocks if count]


@dataclass
class Share:
    """Consecutive blocks, and what is stored for them."""

    blocks: list[Block]
    scalings: dict[int, Any] = field(default_factory=dict)  # of pairs, by the number of the block
    supports: list[tuple[Any, Any]] = field(default_factory=list)  # bins and masses, by block
    dtype: Any = None  # of these masses

    @property
    def first(self) -> int:
        return self.blocks[0].first

    @property
    def last(self) -> int:
        return self.blocks[-1].last

    def shapes(self, n: int) -> list[tuple[int, int, int]]:
        """Shapes of the scalings of each block, for ``n`` histograms."""
        return [(last - first, n - first, width) for first, last, width in self.blocks]


@dataclass(frozen=True)
class Layout:
    """How sources are divided into blocks.

    ``sizes`` are those of the supports, increasing, ``bins`` the padded number of bins, ``scratch``
    the bytes for the intermediate tensors of a block.
    """

    sizes: Index
    bins: int
    engine: str
    scratch: float

    @cached_property
    def widths(self) -> Index:
        """The bins to which the support of each source is padded."""
        widths: Index = self.sizes + -self.sizes % LANES
        return widths

    def share(self, first: int = 0, last: int | None = None) -> Share:
        """The blocks of a range of sources, cut at its ends.

        Cut blocks keep their padding, so that sweeps on supports give the same bits for any range.
        """
        last = len(self.sizes) if last is None else last
        return Share(
            [
                Block(max(first, block.first), min(last, block.last), block.width)
                for block in self._blocks
                if block.first < last and first < block.last
            ]
        )

    @cached_property
    def _blocks(self) -> list[Block]:
        return list(self._cut())

    def _cut(self) -> Iterator[Block]:
        """Blocks of sources of similar size, as large as the scratch allows in any precision."""
        n, widths = len(self.sizes), self.widths
        exponents = np.frexp(widths - 1.0)[1]  # of the next powers of two
        most = n if self.engine == "cropped" else max(16, n // 3)  # half its square is wasted
        first, last = 0, 1
        while last <= n:
            fits = last < n and (
                exponents[last] == exponents[first]
                and (last - first < 64 or widths[last] <= 1.25 * widths[first])
                and (last + 1 - first) * self.scratch_of(first, widths[last]) <= self.scratch
                and last - first < most
            )
            if not fits:
                yield Block(first, last, int(widths[last - 1]))
                first = last
            last += 1

    def scratch_of(self, first: int, width: int) -> float:
        """Bytes of intermediate tensors that one source of a block needs."""
        partners = len(self.sizes) - first
        numbers = partners * (self.bins + 4.0 * width)
        if self.engine == "cropped":
            numbers = float(self.sizes[first:].sum()) + 4.0 * partners
        return 8.0 * (self.bins * float(width) + float(numbers))

    def shares(self, count: int) -> Index:
        """The ends of at most ``count`` ranges of sources of about the same work.

        Matrix products sweep all pairs of a block equally often. So with the dense engine a range
        ends where a nearby block ends: distances are then bitwise those of a single range.
        """
        work = self.row_work()
        cuts = even_cuts(work, count)
        if self.engine == "dense":
            done = np.cumsum(work) / work.sum()
            ends = np.array([block.last for block in self._blocks])
            for k, cut in enumerate(cuts[1:-1], start=1):
                gaps = np.abs(done[ends - 1] - done[cut - 1])
                if gaps.min() <= NEAR / count:
                    cuts[k] = ends[gaps.argmin()]
        return np.unique(cuts)

    def row_work(self) -> Vector:
        """Modeled seconds per sweep over the pairs of each source.

        Per pair, cropping reads s_i s_j kernel entries; for products see
        :func:`product_seconds`.
        """
        size = self.sizes.astype(float)
        work: Vector
        if self.engine == "cropped":
            work = size * (np.cumsum(size[::-1])[::-1] - size) / ENTRIES[8]
        else:
            partners = np.arange(len(size), 0, -1)
            work = partners * product_seconds(size, self.bins, 8)
        return work


def even_cuts(work: Vector, count: int) -> Index:
    """The ends of at most ``count`` ranges of rows of about the same work: 0, ..., n."""
    done, n = np.cumsum(work), len(work)
    inner = np.searchsorted(done, done[-1] * np.arange(1, count) / count) + 1
    cuts: Index = np.unique(np.concatenate([[0], np.minimum(inner, n - 1), [n]]))
    return cuts


def choose_engine(engine: str, can_crop: bool, sizes: Index, d: int) -> tuple[str, float]:
    """The engine (the faster one for "auto"), and the estimated time ratio, cropped to dense.

    The engine is "dense" where the other cannot run. Uses the model of :meth:`Layout.row_work` for
    supports of mean size.
    """
    if engine not in ("auto", "cropped", "dense"):
        raise ValueError(f"`engine` is {engine!r}; choose 'auto', 'cropped' or 'dense'.")
    ratio = pair_ratio(float(sizes.mean()), d)
    if not can_crop or (engine == "auto" and ratio >= 1.0):
        engine = "dense"
    return engine.replace("auto", "cropped"), ratio


def pair_ratio(size: float, d: int) -> float:
    """Time of a pair on supports of ``size`` bins out of ``d``, relative to matrix products.

    Both in float64. A sweep on supports loads size^2 kernel entries.
    """
    return float((size**2 / ENTRIES[8]) / product_seconds(size, d, 8))


def prefers_products(block: tuple[int, int, int], sizes: Index, d: int, itemsize: int) -> bool:
    """Whether products are expected to sweep a block faster than the kernel on supports.

    ``block`` is its first source, last source and padded number of bins; ``sizes`` are the support
    sizes of all histograms, in increasing order.
    """
    first, last, width = block
    partners = sizes[first:].sum() - np.cumsum(sizes[first:last])
    entries = float(sizes[first:last] @ partners)
    largest = float(width * sizes[-1])
    supports = max(entries / ENTRIES[itemsize], largest / ENTRIES_OF_WARP[itemsize])
    pairs = (last - first) * (len(sizes) - first)
    return bool(supports > LAUNCHES + pairs * product_seconds(width, d, itemsize))


def product_seconds(size: Any, d: int, itemsize: int) -> Any:
    """Seconds per sweep of a pair by products; ``size`` may be a vector, one entry per pair.

    4 size d operations at the rate of matrix units, and 4 passes over d numbers.
    """
    return 4.0 * size * d / PRODUCTS + 4.0 * itemsize * d / TRAFFIC
