"""Trees with edge lengths whose leaves are items: the metric between leaves, and subtree masses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cometric.core.cached import cached_property
from cometric.core.types import Index, Matrix, Vector

LINKAGES = ("average", "complete", "ward", "single")
"""Ways of building a tree from distances, as SciPy names them."""

UNITS = 2.0**44
"""Distances are rounded to multiples of their maximum divided by this before they are compared,
so that rounding errors do not decide between equal distances."""


@dataclass(frozen=True, eq=False)
class MetricTree:
    """A rooted tree with edge lengths; its leaves are items.

    The transport cost between two histograms on the leaves, under the distances along the tree, is
    the l1 distance between their masses below each node, times the length of the edge above it::

        W(a, b) = sum over nodes v of length_v |a(below v) - b(below v)|.

    Attributes
    ----------
    parents
        The parent of each node, -1 for the root. Leaves come first, in the order of the items, and
        every node comes before its parent, so that the root is last.
    lengths
        The length of the edge from each node to its parent, 0 for the root.
    n_leaves
        The number of leaves.
    """

    parents: Index
    lengths: Vector
    n_leaves: int

    @classmethod
    def from_linkage(cls, linkage: Any) -> MetricTree:
        """The tree of a SciPy linkage: leaves merged at height h are at distance h."""
        merges = np.asarray(linkage, np.float64)
        n = len(merges) + 1
        parents = np.full(2 * n - 1, -1, np.int64)
        heights = np.zeros(2 * n - 1)
        heights[n:] = merges[:, 2] / 2.0
        for side in (0, 1):
            parents[merges[:, side].astype(np.int64)] = np.arange(n, 2 * n - 1)
        lengths = np.zeros(2 * n - 1)
        # Merged heights are not below those of the parts, up to rounding.
        lengths[:-1] = np.maximum(heights[parents[:-1]] - heights[:-1], 0.0)
        return cls(parents, lengths, n)

    @classmethod
    def from_distances(cls, distances: Matrix, linkage: str = "average") -> MetricTree:
        """The tree by hierarchical clustering; its lengths scale with the distances."""
        top, values = float(distances.max()), squareform(distances, checks=False)
        if linkage == "single" or not top > 0.0:  # ties do not change its distances
            return cls.from_linkage(hierarchy.linkage(values, "single"))
        merges = hierarchy.linkage(np.rint(values * (UNITS / top)), linkage)
        merges[:, 2] *= top / UNITS
        return cls.from_linkage(merges)

    def __len__(self) -> int:
        return len(self.parents)

    def __repr__(self) -> str:
        return f"MetricTree({self.n_leaves} leaves, {len(self)} nodes)"

    @cached_property
    def depths(self) -> Vector:
        """The distance of each node from the root."""
        return self._sums_from_root(self.lengths)

    @property
    def levels(self) -> Index:
        """The number of edges between each node and the root."""
        return self._sums_from_root(np.append(np.ones(len(self) - 1), 0.0)).astype(np.int64)

    def _sums_from_root(self, values: Vector) -> Vector:
        sums = values.copy()
        for node in range(len(self) - 2, -1, -1):
            sums[node] += sums[self.parents[node]]
        return sums

    @cached_property
    def heights(self) -> Vector:
        """The longest path from each node down to a leaf."""
        heights = np.zeros(len(self))
        for node, parent in enumerate(self.parents[:-1]):
            heights[parent] = max(heights[parent], heights[node] + self.lengths[node])
        return heights

    @cached_property
    def paths(self) -> sparse.csr_array:
        """1 for each node (column) between a leaf (row), included, and the root, excluded."""
        rows, columns = [], []
        leaves = nodes = np.arange(self.n_leaves)
        root = len(self) - 1
        while len(nodes):
            below = nodes != root
            leaves, nodes = leaves[below], nodes[below]
            rows.append(leaves)
            columns.append(nodes)
            nodes = self.parents[nodes]
        # 32-bit indices, as long as they suffice: products would inherit longer ones.
        index = tuple(np.concatenate(part).astype(np.int32) for part in (rows, columns))
        ones = np.ones(len(index[0]), np.int64)
        return sparse.csr_array((ones, index), shape=(self.n_leaves, root))

    def masses(self, hist: Any) -> sparse.csr_array:
        """The mass of each histogram (row) below each node (column) other than the root."""
        return sparse.csr_array(hist @ self.paths)

    def vectors(self, hist: Any) -> sparse.csr_array:
        """A sparse vector for each histogram: their l1 distances are the transport costs."""
        masses = self.masses(hist)
        data = masses.data * self.lengths[masses.indices]
        vectors = sparse.csr_array((data, masses.indices, masses.indptr), shape=masses.shape)
        vectors.sort_indices()
        return vectors

    def distances(self) -> Matrix:
        """Distances along the tree between all leaves."""
        n = self.n_leaves
        depth = self.depths
        distances = depth[:n, None] + depth[:n]
        below: list[Index] = [np.array([leaf]) for leaf in range(n)]
        below += [np.empty(0, np.int64)] * (len(self) - n)
        for node, parent in enumerate(self.parents[:-1]):
            others = below[parent]
            distances[np.ix_(below[node], others)] -= 2.0 * depth[parent]
            distances[np.ix_(others, below[node])] -= 2.0 * depth[parent]
            below[parent] = np.concatenate([others, below[node]])
            below[node] = np.empty(0, np.int64)
        np.fill_diagonal(distances, 0.0)
        return np.maximum(distances, 0.0, out=distances)

    def linkage(self) -> Matrix:
        """The tree as a SciPy linkage, for dendrograms and flat clusters.

        A node is merged at twice its height, the longest path down to a leaf; if all leaves are as
        far from the root, this is the distance between leaves of different children. A node with
        more than two children is merged in several steps of the same height.
        """
        n, rows = self.n_leaves, []
        cluster: list[int] = list(range(n)) + [-1] * (len(self) - n)
        sizes = [1] * n
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parents[:-1]):
            children[parent].append(node)
        order = np.argsort(self.heights[n:], kind="stable") + n
        for node in order:
            parts = [cluster[child] for child in children[node]]
            while len(parts) > 1:
                first, second, *others = sorted(parts)
                size = sizes[first] + sizes[second]
                rows.append([first, second, 2.0 * self.heights[node], size])
                sizes.append(size)
                parts = [*others, len(sizes) - 1]
            cluster[node] = parts[0]
        return np.array(rows)

    def newick(self, names: Sequence[str] | None = None) -> str:
        """The tree in the Newick format, which programs for phylogenetic trees read.

        Parameters
        ----------
        names
            Names of the leaves; their numbers by default.
        """
        n = self.n_leaves
        if names is not None and len(names) != n:
            raise ValueError(f"`names` has {len(names)} names; the tree has {n} leaves.")
        labels = [_quoted(str(k if names is None else names[k])) for k in range(n)]
        parts: list[list[str]] = [[] for _ in range(len(self))]
        for node in range(len(self)):
            text = labels[node] if node < n else f"({','.join(parts[node])})"
            parts[node] = []
            if self.parents[node] < 0:
                return f"{text};"
            parts[self.parents[node]].append(f"{text}:{self.lengths[node]:.9g}")
        raise AssertionError("the last node is the root")

    def expand(self, labels: Index) -> MetricTree:
        """The tree with a leaf for each item, given the leaf of this tree that it belongs to.

        Items that share a leaf become its children, at distance 0.
        """
        n, count = len(labels), np.bincount(labels, minlength=self.n_leaves)
        if n == self.n_leaves:
            return self
        shared = np.flatnonzero(count > 1)
        number = np.empty(len(self), np.int64)  # the new number of each old node
        number[labels] = np.arange(n)
        number[shared] = n + np.arange(len(shared))
        number[self.n_leaves :] = n + len(shared) + np.arange(len(self) - self.n_leaves)
        size = n + len(shared) + len(self) - self.n_leaves
        parents, lengths = np.full(size, -1, np.int64), np.zeros(size)
        parents[:n] = number[labels]
        parents[number[:-1]] = number[self.parents[:-1]]
        lengths[number] = self.lengths
        return MetricTree(parents, lengths, n)


def _quoted(name: str) -> str:
    """A name as a Newick label, quoted if it has special characters."""
    if name and not set(name) & set(" \t\n\r()[]{},:;'\"_/\\"):
        return name
    return "'" + name.replace("'", "''") + "'"
