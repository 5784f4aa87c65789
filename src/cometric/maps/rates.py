"""Modeled times of the two GPU engines for blocks of pairs, to choose the faster one.

Rates were measured on one NVIDIA H200, block by block on three data sets
(docs/notes/gpu-kernel.md); only their ratios matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cometric.core.types import Index

ENTRIES = {4: 1.1e12, 8: 0.5e12}
"""Kernel entries per second read by sweeps on supports, by item size in bytes."""

ENTRIES_OF_WARP = {4: 1.4e9, 8: 0.52e9}
"""The same for a single warp, which sweeps one pair: the largest pair bounds a block's time."""

PRODUCTS, TRAFFIC = 45e12, 3.5e12
"""Operations of matrix products, and bytes of memory, per second."""

LAUNCHES = 2e-4
"""Seconds for the launches of a sweep by products."""


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
