"""A tree of points in time n log n: bisected by 2-means from the top, joined by linkage below."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import pdist

from cometric.core.trees import MetricTree
from cometric.core.types import Index, Matrix, Vector

SMALL = 64
"""Groups of at most this many points are joined by average linkage."""

STEPS = 5
"""Steps of the power method for the first axis of a group, and of 2-means."""


def bisection_tree(points: Matrix) -> MetricTree:
    """A binary tree of the rows of ``points``; the same for the same points.

    The length of an edge is the Euclidean distance between the means of the points below its ends.
    """
    groups, halves = _bisect_all(points)
    n = len(points)
    merges: list[tuple[int, int]] = []  # the children of the nodes n, n + 1, ...
    node_of: dict[int, int] = {}  # by group
    for number in reversed(range(len(groups))):  # halves come after the group that they are from
        if number in halves:
            first, second = halves[number]
            merges.append((node_of[first], node_of[second]))
            node_of[number] = n + len(merges) - 1
        else:
            node_of[number] = _join(points, groups[number], merges)
    parents = np.full(n + len(merges), -1, np.int64)
    for k, children in enumerate(merges):
        parents[list(children)] = n + k
    return MetricTree(parents, _lengths(points, parents), n)


def _bisect_all(points: Matrix) -> tuple[list[Index], dict[int, tuple[int, int]]]:
    """Groups of points, all of them first, and for each large group the numbers of its halves."""
    groups: list[Index] = [np.arange(len(points))]
    halves: dict[int, tuple[int, int]] = {}
    number = 0
    while number < len(groups):
        group = groups[number]
        if len(group) > SMALL:
            first = _bisect(points[group])
            halves[number] = len(groups), len(groups) + 1
            groups += [group[first], group[~first]]
        number += 1
    return groups, halves


def _bisect(points: Matrix) -> NDArray[np.bool_]:
    """Which points are in the first of two groups: 2-means, from both sides of the first axis."""
    centered = points - points.mean(axis=0)
    axis: Vector = centered[np.argmax((centered**2).sum(axis=1))]
    for _ in range(STEPS):
        axis = centered.T @ (centered @ axis)
        length = np.linalg.norm(axis)
        if not length > 0.0:
            break
        axis = axis / length
    first = np.asarray(centered @ axis > 0.0)
    for _ in range(STEPS):
        if not 0 < first.sum() < len(points):
            break
        one, other = centered[first].mean(axis=0), centered[~first].mean(axis=0)
        first = np.asarray(centered @ (one - other) > 0.5 * (one @ one - other @ other))
    if not 0 < first.sum() < len(points):  # all points are nearly equal
        first = np.arange(len(points)) < len(points) // 2
    return first


def _join(points: Matrix, group: Index, merges: list[tuple[int, int]]) -> int:
    """The node of a small group, after those below it were added to ``merges``."""
    nodes = group.tolist()
    if len(group) > 1:
        for first, second, *_ in hierarchy.linkage(pdist(points[group]), "average"):
            merges.append((nodes[int(first)], nodes[int(second)]))
            nodes.append(len(points) + len(merges) - 1)
    return int(nodes[-1])


def _lengths(points: Matrix, parents: Index) -> Vector:
    """Distances between the means of the points below each node and below its parent."""
    n = len(points)
    sums = np.zeros((len(parents), points.shape[1]))
    counts = np.ones(len(parents))
    sums[:n], counts[n:] = points, 0.0
    for node, parent in enumerate(parents[:-1]):
        sums[parent] += sums[node]
        counts[parent] += counts[node]
    means = sums / counts[:, None]
    lengths = np.zeros(len(parents))
    lengths[:-1] = np.linalg.norm(means[:-1] - means[parents[:-1]], axis=1)
    return lengths
