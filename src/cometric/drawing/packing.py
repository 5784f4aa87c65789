"""Numbers and trees as text in the page of the report: compressed, with as few bits as needed."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.trees import MetricTree
from cometric.core.types import Index, Vector

SMALLEST = 1e-6
"""Masses below this share of the largest count as zero in the page."""

LEVELS = 255
"""Largest code of a number in one byte; 0 stands for zero, or for a missing value."""


def pack(values: Any, dtype: Any) -> str:
    """Little-endian numbers, compressed (zlib), in base64."""
    little = np.asarray(values).astype(np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes(), 9)).decode()


def pack_numbers(values: Any) -> dict[str, Any]:
    """Numbers in one byte each between their extremes; missing and infinite ones are code 0."""
    array = np.asarray(values, np.float64)
    finite = np.isfinite(array)
    low, high = (float(f(array[finite])) if finite.any() else 0.0 for f in (np.min, np.max))
    step = (high - low) / (LEVELS - 1)
    shifted = np.where(finite, array - low, 0.0)
    codes = np.rint(shifted / step) if step > 0 else np.zeros(len(array))
    return {
        "codes": pack(np.where(finite, codes + 1, 0), np.uint8),
        "low": significant(low, 6),
        "step": significant(step, 6),
    }


def log_codes(values: Vector) -> tuple[Index, float, float]:
    """Positive numbers in one byte each, on a logarithmic scale.

    Returns the codes (0 below ``SMALLEST`` of the largest), and the values of codes 1 and 255. The
    relative error is at most 2.8 %, less if the values span fewer decades.
    """
    top = float(values.max(initial=0.0))
    if not top > 0.0:
        return np.zeros(len(values), np.int64), 1.0, 1.0
    large = values >= SMALLEST * top
    least = float(values[large].min())
    span = np.log(top / least)
    codes = np.zeros(len(values), np.int64)
    steps = np.log(values[large] / least) * ((LEVELS - 1) / span) if span > 0 else LEVELS - 1.0
    codes[large] = 1 + np.rint(steps).astype(np.int64)
    return codes, least, top


def pack_masses(A: sparse.csr_array, B: sparse.csr_array, columns: Index) -> dict[str, Any]:
    """Both families of histograms on the union of their supports, sample by sample.

    Only the features ``columns`` are packed. ``start`` and ``index`` are the row pointers and
    column indices of a CSR matrix over all samples and features; ``samples`` and ``features`` are
    the masses in the histograms of either side, as :func:`log_codes`.
    """
    used = np.zeros(A.shape[1], bool)
    used[columns] = True
    both = sparse.csr_array(((A != 0) + (B.T != 0)).multiply(used))
    both.eliminate_zeros()
    both.sort_indices()
    row, index = np.repeat(np.arange(A.shape[0]), np.diff(both.indptr)), both.indices
    packed: dict[str, Any] = {
        "start": pack(both.indptr, np.uint32),
        "index": pack(index, np.uint16),
        "known": pack(used, np.uint8),
    }
    for name, hist in (("samples", A), ("features", B.T.tocsr())):
        values = np.asarray(hist[row, index]).ravel() if len(row) else np.empty(0)
        codes, least, top = log_codes(values)
        packed[name] = {"codes": pack(codes, np.uint8), "least": least, "top": top}
    return packed


def pack_values(X: sparse.csc_array) -> dict[str, Any]:
    """Values of each feature (column) in each sample: one byte each, 0 for zero.

    Each column has its own scale: code 255 is its largest value.
    """
    X.sort_indices()
    tops = X.max(axis=0).toarray().ravel()
    scale = np.repeat(np.where(tops > 0, tops, 1.0), np.diff(X.indptr))
    # A value above zero stays above zero.
    codes = np.where(X.data > 0, np.maximum(1, np.rint(LEVELS * X.data / scale)), 0)
    return {
        "start": pack(X.indptr, np.uint32),
        "index": pack(X.indices, np.uint16),
        "codes": pack(codes, np.uint8),
        "top": [significant(float(top)) for top in tops],
    }


def significant(number: float, digits: int = 4) -> float:
    """The number rounded to this many digits."""
    return float(f"{number:.{digits}g}")


# --------------------------------------------------------------------------- trees


def prune(tree: MetricTree, leaves: Index) -> MetricTree:
    """The tree of some of the leaves, in this order: nodes with a single child are left out."""
    count = len(tree)
    below = np.zeros(count, np.int64)
    below[leaves] = 1
    branches = np.zeros(count, np.int64)  # children with chosen leaves
    for node, parent in enumerate(tree.parents[:-1]):
        below[parent] += below[node]
        branches[parent] += below[node] > 0
    stays = (branches > 1) & (below > 0)
    stays[: tree.n_leaves] = False
    inner = np.flatnonzero(stays)
    number = np.full(count, -1, np.int64)
    number[leaves] = np.arange(len(leaves))
    number[inner] = len(leaves) + np.arange(len(inner))
    old = np.concatenate([leaves, inner])
    depths = tree.depths
    parents, lengths = np.full(len(old), -1, np.int64), np.zeros(len(old))
    for new, node in enumerate(old[:-1]):
        above = int(tree.parents[node])
        while number[above] < 0:
            above = int(tree.parents[above])
        parents[new] = number[above]
        lengths[new] = depths[node] - depths[above]
    return MetricTree(parents, lengths, len(leaves))


def leaf_ranks(tree: MetricTree) -> Index:
    """The place of each leaf, from 0, so that branches do not cross; larger subtrees last."""
    sizes = np.zeros(len(tree), np.int64)
    sizes[: tree.n_leaves] = 1
    for node, parent in enumerate(tree.parents[:-1]):
        sizes[parent] += sizes[node]
    first = np.zeros(len(tree), np.int64)
    taken = np.zeros(len(tree), np.int64)  # leaves of the children that are placed
    for node in np.lexsort((sizes, tree.levels)):  # from the root down
        parent = tree.parents[node]
        if parent >= 0:
            first[node] = first[parent] + taken[parent]
            taken[parent] += sizes[node]
    return first[: tree.n_leaves]


def pack_tree(tree: MetricTree) -> dict[str, Any]:
    """The tree in the format of the page, with depths relative to the largest."""
    depths = tree.depths
    top = float(depths.max())
    return {
        "parents": pack(np.where(tree.parents < 0, 0, tree.parents), np.uint16),
        "depths": pack(np.rint(65535 * depths / top) if top > 0 else depths, np.uint16),
        "ranks": pack(leaf_ranks(tree), np.uint16),
    }
