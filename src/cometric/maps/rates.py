"""Times of two kernels for blocks of pairs on a device: which one is expected to be faster.

Rates are those of one NVIDIA H200, measured block by block on three data sets
(docs/notes/gpu-kernel.md); only their ratios matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cometric.core.types import Index

ENTRIES = {4: 1.1e12, 8: 0.5e12}
"""Entries of the kernel matrix that sweeps on supports read per second, by bytes of a number."""

ENTRIES_OF_WARP = {4: 1.4e9, 8: 0.52e9}
"""The same for one warp, which sweeps a pair: a block takes at least as long as its largest."""

PRODUCTS, TRAFFIC = 45e12, 3.5e12
"""Operations of matrix products, and bytes of memory, per second."""

LAUNCHES = 2e-4
"""Seconds for the launches of a sweep by products."""


def pair_ratio(size: float, d: int) -> float:
    """Time of a pair on its supports, of ``size`` bins out of ``d``, relative to products.

    Both in float64. Supports take size^2 entries of the kernel, each at the cost of a load.
    """
    return float((size**2 / ENTRIES[8]) / product_seconds(size, d, 8))


def prefers_products(block: tuple[int, int, int], sizes: Index, d: int, itemsize: int) -> bool:
    """Whether products are expected to sweep a block faster than the kernel on supports.

    ``block`` is its first and its last source, and the bins they are padded to; ``sizes`` are those
    of all histograms, in increasing order.
    """
    first, last, width = block
    partners = sizes[first:].sum() - np.cumsum(sizes[first:last])
    entries = float(sizes[first:last] @ partners)
    largest = float(width * sizes[-1])
    supports = max(entries / ENTRIES[itemsize], largest / ENTRIES_OF_WARP[itemsize])
    pairs = (last - first) * (len(sizes) - first)
    return bool(supports > LAUNCHES + pairs * product_seconds(width, d, itemsize))


def product_seconds(size: Any, d: int, itemsize: int) -> Any:
    """Seconds of a sweep of a pair by products; ``size`` may be a vector, one entry per pair.

    4 size d operations at the rate of matrix units, and 4 passes over d numbers.
    """
    return 4.0 * size * d / PRODUCTS + 4.0 * itemsize * d / TRAFFIC
