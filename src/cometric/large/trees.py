"""Edge lengths of two fixed trees, each determined by the other, without matrices of distances.

The length of the edge above a node of one tree is the transport cost, along the other tree, from
the mean histogram of the items below the node to that of the items below its parent. It is linear
in the lengths of the other tree, with nonnegative coefficients. So the lengths are the singular
vectors of a pair of nonnegative matrices, which power iteration finds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from cometric.core.bisection import bisection_tree
from cometric.core.cones import log_width
from cometric.core.errors import ConvergenceWarning, shortfall
from cometric.core.histograms import Histograms
from cometric.core.kinds import Flag, check_count, check_number, check_side, shown
from cometric.core.names import checks_options
from cometric.core.problem import Problem
from cometric.core.trees import MetricTree
from cometric.core.types import Record, Status, Vector
from cometric.core.warn import warn
from cometric.machine.devices import free_memory
from cometric.maps.references import lsa_vectors

CELLS = 4_000_000
"""Coefficients that are computed at a time, zeros included."""

LARGEST = 1e150
"""Factors of lengths must be below this, so that products of two of them do not overflow."""

VANISHED = 1e-13
"""Edges shorter than this fraction of the longest tend to zero."""


@dataclass(frozen=True, eq=False)
class Trees:
    """A tree of the samples and one of the features; each determines the lengths of the other.

    Attributes
    ----------
    samples, features
        The trees; their farthest leaves are at most 1 apart.
    values
        The singular values (lam, mu) of the two maps between lengths.
    status, history
        How the iteration ended, and a :class:`Record` for each step.
    problem
        The histograms.
    """

    samples: MetricTree
    features: MetricTree
    values: tuple[float, float]
    status: Status
    history: list[Record]
    problem: Problem

    def vectors(self, of: str = "samples", X: Any = None) -> sparse.csr_array:
        """A sparse vector for each sample: l1 distances are transport along the features' tree.

        Any library that searches neighbors by l1 distances takes them.

        Parameters
        ----------
        of
            "samples"; with "features", vectors of features, along the tree of the samples.
        X
            New items, as for :meth:`Result.transform`, to get their vectors instead.
        """
        check_side(of)
        side = getattr(self.problem, of) if X is None else self.problem.read_new(X, of)
        tree = self.features if of == "samples" else self.samples
        return tree.vectors(side.full)[side.labels]

    def __repr__(self) -> str:
        return f"Trees({self.samples.n_leaves} samples, {self.features.n_leaves} features)"

    def __str__(self) -> str:
        lam, mu = self.values
        last = self.history[-1]
        return "\n".join(
            [
                f"Learned the lengths of a tree of {self.samples.n_leaves} samples and of one of "
                f"{self.features.n_leaves} features",
                f"  {self.status.value}",
                f"  residual         {last.residual:.2e} (Hilbert metric)",
                f"  singular values  lam = {lam:.6f}, mu = {mu:.6f}",
                f"  work             {last.iteration} iterations, {last.seconds:.2f} s",
            ]
        )


@checks_options
def learn_trees(
    X: Any,
    *,
    samples: Any = None,
    features: Any = None,
    group_power: float = 0.0,
    tol: float = 1e-3,
    max_iter: int = 1000,
    drop_empty: bool = False,
) -> Trees:
    """Two trees whose edge lengths determine each other, for large data: no n x n matrix.

    With fixed trees, the length of the edge above each node v with parent p is ::

        length_v = W(mean of the items below v, mean of the items below p)

    where W is transport along the other tree. The trees are those of Tree-WSV (Duesterwald,
    Hromadka, Yamada 2025), the lengths are not: see docs/theory.md. Time and memory grow with the
    size of the data, up to logarithms.

    Parameters
    ----------
    X
        Nonnegative matrix, samples by features, as for :func:`cometric.learn`.
    samples, features
        The trees: a :class:`MetricTree` or a SciPy linkage, whose lengths are ignored. By default
        items are bisected by 2-means of their LSA vectors (TF-IDF and 30 singular vectors), and
        groups of at most 64 joined by average linkage.
    group_power
        Lengths are multiplied by the number of items below the edge to this power. Positive values,
        such as 0.5, emphasize large groups: higher silhouettes, but poorer nearest neighbors.
    tol, max_iter
        Stop when the Hilbert distance between the lengths and their image is at most ``tol``.
    drop_empty
        Leave out empty rows and columns.

    Returns
    -------
    Trees
        With a :class:`ConvergenceWarning` if it has not converged.

    Examples
    --------
    >>> import cometric as cm
    >>> trees = cm.learn_trees(cm.datasets.torus("unimodal", 12, 10))
    >>> trees, trees.vectors("samples").shape
    (Trees(12 samples, 10 features), (12, 18))
    """
    for name, value in (("group_power", group_power), ("tol", tol)):
        check_number(name, value)
    check_count("max_iter", max_iter)
    Flag().check("drop_empty", drop_empty)
    problem = Problem.from_data(X, drop_empty=drop_empty)
    sides = problem.samples, problem.features
    hists = [side.item_histograms for side in sides]
    given = (("samples", samples), ("features", features))
    trees = [_read_tree(tree, hist, name) for (name, tree), hist in zip(given, hists, strict=True)]
    to_samples = LengthMap(hists[0], trees[0], trees[1], group_power)
    to_features = LengthMap(hists[1], trees[1], trees[0], group_power)
    lengths, values, status, history = _iterate(to_samples, to_features, tol, max_iter)
    scaled = [_scaled(tree, length) for tree, length in zip(trees, lengths, strict=True)]
    if not status.ok:
        warn(shortfall(status, history, tol), ConvergenceWarning)
    return Trees(scaled[0], scaled[1], values, status, history, problem)


class LengthMap:
    """The linear map from the lengths of a tree of the bins to those of a tree of histograms.

    Its coefficients are stored if they take at most a quarter of the free memory, otherwise
    computed again in each call.

    Parameters
    ----------
    hist
        Histograms as rows.
    tree
        The tree of the histograms.
    bins
        The tree of their bins.
    power
        Exponent of the number of histograms below an edge, by which its length is multiplied.
    """

    def __init__(
        self, hist: sparse.csr_array, tree: MetricTree, bins: MetricTree, power: float = 0.0
    ) -> None:
        below = tree.paths.T.tocsr()  # nodes other than the root, by histograms
        counts = np.asarray(below.sum(axis=1)).ravel()
        with np.errstate(over="ignore"):
            self.factors = counts.astype(np.float64) ** power
        if not self.factors.max() < LARGEST:
            raise ValueError(
                f"`group_power` is {power:g}, for which lengths overflow. Pass a smaller number."
            )
        root = sparse.csr_array(np.asarray(hist.mean(axis=0)).reshape(1, -1))
        means = sparse.csr_array(below @ hist)
        means.data /= np.repeat(counts, np.diff(means.indptr))
        self.means = sparse.vstack([means, root], format="csr")
        self.tree, self.bins = tree, bins
        self.stored: list[sparse.csr_array] | None = []
        memory = 0.0
        for part in self.coefficients():
            memory += part.data.nbytes + part.indices.nbytes
            if memory > free_memory() / 4:
                self.stored = None
                break
            self.stored.append(part)

    def coefficients(self) -> Iterator[sparse.csr_array]:
        """Mass that moves over each edge of the bins (columns), for some nodes (rows) at a time."""
        edges = len(self.tree) - 1
        rows = max(1, CELLS // len(self.bins))
        for start in range(0, edges, rows):
            part = slice(start, min(start + rows, edges))
            moved = self.bins.masses(self.means[part] - self.means[self.tree.parents[part]])
            np.abs(moved.data, out=moved.data)
            yield moved

    def __call__(self, lengths: Vector) -> Vector:
        parts = self.coefficients() if self.stored is None else self.stored
        image: Vector = self.factors * np.concatenate([part @ lengths for part in parts])
        return image


def _iterate(
    to_samples: LengthMap, to_features: LengthMap, tol: float, max_iter: int
) -> tuple[list[Vector], tuple[float, float], Status, list[Record]]:
    """The lengths of both trees by power iteration, from equal ones."""
    began = time.perf_counter()
    features = np.ones(len(to_features.factors))
    history: list[Record] = []
    while True:
        image = to_samples(features)
        mu = float(image.max())
        samples = image / mu
        image = to_features(samples)
        lam = float(image.max())
        image /= lam
        residual = log_width(_bounds(image, features))
        features = image
        seconds = time.perf_counter() - began
        count = len(history) + 1
        history.append(Record(count, residual, lam, mu, count, seconds))
        if residual <= tol or count >= max_iter:
            break
    status = Status.CONVERGED if residual <= tol else Status.MAX_ITER
    if not status.ok and features[features > 0.0].min() < VANISHED:
        status = Status.BOUNDARY
    return [samples, features], (lam, mu), status, history


def _bounds(image: Vector, origin: Vector) -> tuple[float, float]:
    """Bounds of the ratios of lengths; edges that both have length 0 are ignored."""
    both = (image > 0.0) | (origin > 0.0)
    ratios = image[both] / np.maximum(origin[both], np.finfo(float).tiny)
    return float(ratios.min()), float(ratios.max())


def _read_tree(tree: Any, hist: sparse.csr_array, name: str) -> MetricTree:
    """The tree of the items of one side: that of the user, or one built by bisection."""
    if tree is None:
        return bisection_tree(lsa_vectors(Histograms(hist)))
    if not isinstance(tree, MetricTree):
        matrix = np.asarray(tree)
        if matrix.ndim != 2 or matrix.shape[1] != 4:
            found = f"an array of shape {matrix.shape}" if matrix.ndim else shown(tree)
            raise ValueError(
                f"`{name}` is {found}; pass a MetricTree or a SciPy linkage, which has 4 columns."
            )
        tree = MetricTree.from_linkage(matrix)
    checked: MetricTree = tree
    if tree.n_leaves != hist.shape[0]:
        raise ValueError(
            f"`{name}` has {tree.n_leaves} leaves; the data have {hist.shape[0]} {name}."
        )
    return checked


def _scaled(tree: MetricTree, lengths: Vector) -> MetricTree:
    """The tree with other lengths, scaled so that no two leaves are more than 1 apart."""
    found = replace(tree, lengths=np.append(lengths, 0.0))
    return replace(found, lengths=found.lengths / (2.0 * found.depths[: tree.n_leaves].max()))
