"""The function ``modules``: groups of features (or of samples) that are near one another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cometric.core.arguments import (
    check_count,
    check_number,
    check_side,
    checks_options,
    distinct_prefixes,
    other_side,
    quoted,
)
from cometric.core.arrays import to_numpy
from cometric.core.histograms import Side
from cometric.core.inputs import counted
from cometric.core.labels import check_order
from cometric.core.nearest import nearest
from cometric.core.types import Index, Matrix, Vector
from cometric.files.sets import Sets, read_sets
from cometric.results.coherence import FEWEST as FEWEST_JUDGES
from cometric.results.coherence import Standard, split_coherence, standardization
from cometric.results.groups import read_groups, without_dropped
from cometric.results.result import Result, check_is_result
from cometric.results.smoothing import neighbor_weights

BACKGROUND = -1
"""The label of items in no module."""

COHERENT = 0.05
"""Features below this coherence are background by default."""

DEVIATIONS = 3.0
"""A coherence counts if this many standard deviations above its mean for shuffled samples."""

NARROWEST, WIDEST = 8, 20
"""Least and largest column width of a table; longer names are cut if they stay distinct."""

NAMED = 3
"""Number of members that name a module."""

N_COMPARED = 16
"""Nearest distances by which items are ordered."""

FEWEST = 3
"""Fewest foreground items to cluster."""


@checks_options
def modules(
    result: Result,
    of: str = "features",
    *,
    n_neighbors: int = 15,
    resolution: float = 1.0,
    coherence: float | None = None,
    min_size: int = 5,
    random_state: int = 0,
) -> Modules:
    """Modules of features that are near one another: gene programs, word topics.

    First the background is removed: features whose values are no more alike in neighboring samples
    than elsewhere, by Moran's I. The features are split at random into two halves, each tested on
    the graph of the 15 nearest neighbors in 20 principal components of the other. A feature is
    background if its I is below ``coherence``, or less than 3 standard deviations above its mean
    for shuffled samples: typically features with the same share in all samples, and rare, scattered
    ones. The others are joined to their nearest features, by the learned distances, with the
    weights of :func:`smooth`, and this graph is clustered by the Leiden algorithm.

    Parameters
    ----------
    result
        What :func:`learn` returned; for many samples the ``result`` of :func:`learn_landmarks`.
    of
        "features"; "samples" gives clusters of samples, with the roles of features and samples
        exchanged throughout.
    n_neighbors
        Number of nearest features that each feature is joined to.
    resolution
        Larger values give more and smaller modules (modularity).
    coherence
        Minimum Moran's I of a feature in a module: 0.05 by default; with 0, only the comparison
        with shuffled samples counts. For ``of="samples"`` the default is to cluster all samples.
    min_size
        Smaller modules become background.
    random_state
        Seed of the halves and of the Leiden algorithm: the same seed gives the same modules.

    Returns
    -------
    Modules
        With the ``labels`` of all features, and the ``members`` and ``names`` of the modules.

    Examples
    --------
    >>> import cometric as cm
    >>> data = cm.datasets.simulate_counts(150, 100, types=3, density=0.4)
    >>> found = cm.modules(cm.learn(data.X))
    >>> len(found)
    3
    """
    check_is_result(result)
    check_side(of)
    for name, value in (("n_neighbors", n_neighbors), ("min_size", min_size)):
        check_count(name, value)
    check_number("resolution", resolution)
    check_count("random_state", random_state, least=0)
    judges = other_side(of)
    n_judges = len(getattr(result, judges))
    if n_judges < FEWEST_JUDGES:
        raise ValueError(
            f"`result` has {counted(n_judges, judges[:-1])}; modules of {of} need at least "
            f"{FEWEST_JUDGES}."
        )
    # The halves, ties and the search depend on the order of items. Order them by content, so that
    # the order in the data does not matter; repeats count as one item.
    side: Side = getattr(result.problem, of)
    order = _order_of_content(result, of)
    items = order[np.sort(np.unique(side.labels[order], return_index=True)[1])]
    profiles = _profiles(getattr(result.problem, judges))
    profiles = profiles[_order_of_content(result, judges)][:, items]
    values, deviations = split_coherence(profiles, standardization(profiles), random_state)
    foreground = np.arange(len(values))
    if coherence is not None or of == "features":
        least = COHERENT if coherence is None else coherence
        check_number("coherence", least)
        foreground = np.flatnonzero((values >= least) & (deviations >= DEVIATIONS))
    labels = np.full(len(values), BACKGROUND, dtype=np.int64)
    if len(foreground) >= FEWEST:
        chosen = items[foreground]
        metric = to_numpy(getattr(result, of))[np.ix_(chosen, chosen)]
        graph = neighbor_weights(metric, min(n_neighbors, len(foreground) - 1))
        labels[foreground] = leiden(sparse.csr_array(graph + graph.T), resolution, random_state)
    back = np.argsort(side.labels[items])[side.labels]
    return assemble(result, of, by_size(labels[back], min_size), values[back])


class Enriched(NamedTuple):
    """A module and a set of features with common members."""

    module: int
    name: str  # of the module
    set: str
    shared: tuple[str, ...]  # members of both, the most central first
    size: int  # members of the set among the learned features, which are tested
    p: float  # hypergeometric
    q: float  # adjusted by Benjamini and Hochberg, over all modules and sets
    given: int  # all members of the set, learned or not

    def __str__(self) -> str:
        return f"module {self.module} ({self.name}): {self.set}, {self.summary}"

    @property
    def summary(self) -> str:
        """Numbers of shared, tested and all members of the set, and the q-value."""
        counts = f"{len(self.shared)} of {self.size} tested ({self.given} in the set)"
        return f"{counts}, q = {self.q:.1g}"


class ModuleTable(NamedTuple):
    """The mean score of each module in each group; ``values`` is (modules, groups)."""

    modules: tuple[str, ...]
    groups: tuple[str, ...]
    values: Matrix

    def __str__(self) -> str:
        width = max(map(len, self.modules), default=0)
        heads = distinct_prefixes(self.groups, WIDEST)
        widths = [max(NARROWEST, len(head)) for head in heads]
        titles = (f"{head:>{size}}" for head, size in zip(heads, widths, strict=True))
        lines = ["  ".join([" " * width, *titles])]
        for name, row in zip(self.modules, self.values, strict=True):
            cells = (f"{value:{size}.2f}" for value, size in zip(row, widths, strict=True))
            lines.append("  ".join([f"{name:{width}}", *cells]))
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, repr=False)
class Modules:
    """Modules of features, the largest first; made by :func:`modules`.

    Attributes
    ----------
    labels
        The module of each feature, in the order of the result; -1 for background.
    members
        For each module the numbers of its features, the most central first: those that correlate
        most with the score of the module.
    names
        For each module the names of its three most central features.
    coherence
        Moran's I of each feature: 1 at most, about 0 by chance.
    tree
        Ward linkage of the modules, by one minus the correlations of their scores, in the form of
        :func:`scipy.cluster.hierarchy.linkage`; :meth:`merge` cuts it.
    of
        "features" or "samples".
    result
        The result in which they were found.
    """

    labels: Index
    members: tuple[Index, ...]
    names: tuple[str, ...]
    coherence: Vector
    tree: Matrix
    of: str
    result: Result
    _standard: Standard = field(repr=False)

    def __len__(self) -> int:
        return len(self.members)

    def __str__(self) -> str:
        background = int((self.labels == BACKGROUND).sum())
        lines = [f"{len(self)} modules of {self.of}, {background} {self.of} are background"]
        items = self._items.item_names
        if self._items.names is None:
            lines.append(f"  ({self.of} have no names in the data: these are their numbers)")
        for g, own in enumerate(self.members):
            shown = ", ".join(items[k] for k in own[:8])
            lines.append(f"  {g:3d}  {len(own):5d}  {shown}{', ...' * (len(own) > 8)}")
        return "\n".join(lines)

    __repr__ = __str__

    def scores(self, X: Any = None) -> Matrix:
        """The score of each sample for each module, (n, number of modules).

        A score is the mean over the module's features of the square root of their share of the
        sample, standardized by mean and standard deviation in the learned data. So 0 is average,
        and all features have the same weight.

        Parameters
        ----------
        X
            New samples, read as by :meth:`Result.transform`; by default those learned from.
        """
        other = other_side(self.of)
        problem = self.result.problem
        side = getattr(problem, other) if X is None else problem.read_new(X, other)
        return _scores(_profiles(side), self.members, self._standard)

    def table(self, labels: Any, X: Any = None) -> ModuleTable:
        """The mean score of each module over the samples of each label, without unlabeled ones."""
        other, remedy = other_side(self.of), ""
        if X is None:
            check_order(labels, "labels", getattr(self.result.problem, other), other)
            remedy = without_dropped("labels", other)
        return tabulate(self.scores(X), self.names, labels, other, remedy)

    def enrichment(self, sets: Sets, *, min_size: int = 3) -> tuple[Enriched, ...]:
        """Which sets of features are enriched in which modules, the smallest p-value first.

        The p-value is that of the hypergeometric test: the probability that a module of this
        size, drawn from all learned features, shares so many with the set. All pairs are tested;
        those that share nothing are not listed.

        Parameters
        ----------
        sets
            Names of features by name of the set: a dictionary, or the path of a GMT or JSON file.
            Features that were not learned are left out.
        min_size
            Sets with fewer learned features are left out.
        """
        check_count("min_size", min_size)
        return enriched(self.members, self.names, self._items.item_names, read_sets(sets), min_size)

    def merge(self, n_modules: int) -> Modules:
        """``n_modules`` modules at most: the most correlated are merged, as in ``tree``."""
        check_count("n_modules", n_modules)
        if n_modules >= len(self):
            return self
        joined = hierarchy.cut_tree(self.tree, n_modules).ravel()
        labels = np.where(self.labels >= 0, joined[self.labels], BACKGROUND)
        return assemble(self.result, self.of, by_size(labels, 1), self.coherence)

    @property
    def _items(self) -> Side:
        side: Side = getattr(self.result.problem, self.of)
        return side


def tabulate(
    scores: Matrix, names: Sequence[str], labels: Any, of: str = "samples", remedy: str = ""
) -> ModuleTable:
    """The mean of each column of ``scores`` over the rows of each label.

    ``of`` names the rows; ``remedy`` ends the message about a wrong number of labels.
    """
    groups, number = read_groups(labels, len(scores), of, remedy)
    means = np.array([scores[number == g].mean(axis=0) for g in range(len(groups))])
    return ModuleTable(tuple(names), groups, means.T)


def enriched(
    members: Sequence[Index],
    names: Sequence[str],
    items: Sequence[str],
    sets: dict[str, list[str]],
    min_size: int,
) -> tuple[Enriched, ...]:
    """Hypergeometric tests of all modules and sets; see :meth:`Modules.enrichment`.

    ``members`` are the item numbers of each module, ``names`` the module names, and ``items`` the
    names of all items, the universe of the test.
    """
    from scipy.stats import false_discovery_control, hypergeom

    inside = {name: np.isin(items, own) for name, own in sets.items()}
    inside = {name: mask for name, mask in inside.items() if mask.sum() >= min_size}
    if not inside:
        raise ValueError(
            f"`sets` has {counted(len(sets), 'set')}, none with {min_size} of the learned items, "
            f"whose names begin with {quoted(items)}. Use the same names, or a smaller `min_size`."
        )
    if not members:
        return ()
    in_module = np.array([np.isin(np.arange(len(items)), own) for own in members], np.int64)
    in_set = np.array(list(inside.values()), np.int64)
    shared, sizes = in_module @ in_set.T, in_set.sum(axis=1)
    p = hypergeom.sf(shared - 1, len(items), sizes, in_module.sum(axis=1)[:, None])
    p = np.clip(p, 0.0, 1.0)  # rounding
    q = false_discovery_control(p.ravel()).reshape(p.shape)
    rows = []
    for s, (name, mask) in enumerate(inside.items()):
        for g in np.flatnonzero(shared[:, s]).tolist():
            both = tuple(items[k] for k in members[g] if mask[k])
            numbers = int(sizes[s]), float(p[g, s]), float(q[g, s]), len(set(sets[name]))
            rows.append(Enriched(g, names[g], name, both, *numbers))
    return tuple(sorted(rows, key=lambda row: row.p))


def assemble(result: Result, of: str, labels: Index, values: Vector) -> Modules:
    """Modules with these labels, their members ordered by correlation with the score."""
    profiles = _profiles(getattr(result.problem, other_side(of)))
    standard = standardization(profiles)
    groups = [np.flatnonzero(labels == g) for g in range(int(labels.max(initial=-1)) + 1)]
    scores = _scores(profiles, groups, standard)
    centered = scores - scores.mean(axis=0)
    centered = centered / np.maximum(np.sqrt((centered**2).mean(axis=0)), 1e-300)
    products = profiles.T @ centered / profiles.shape[0]
    members = tuple(
        own[np.argsort(-products[own, g] / standard.deviation[own], kind="stable")]
        for g, own in enumerate(groups)
    )
    items = getattr(result.problem, of).item_names
    names = tuple(", ".join(items[k] for k in own[:NAMED]) for own in members)
    return Modules(labels, members, names, values, _tree(scores), of, result, standard)


def _profiles(side: Side) -> sparse.csr_array:
    """Square roots of the masses of all items of a side, repeats included."""
    return sparse.csr_array(side.item_histograms).sqrt()


def _order_of_content(result: Result, of: str) -> Index:
    """The items of a side in an order that does not depend on their positions in the data.

    Sorted by distances to the nearest items, rounded so that the last bits do not matter; then by
    the sum of squares of their shares, then by name.
    """
    metric = to_numpy(getattr(result, of))
    near = nearest(metric, min(N_COMPARED, len(metric) - 1), skip_self=True)[1]
    near = np.rint(near * (2.0**30 / metric.max()))
    shares = sparse.csr_array(getattr(result.problem, other_side(of)).item_histograms.T)
    parts = np.split(shares.data**2, shares.indptr[1:-1])
    sums = [fsum(part) for part in parts]  # correctly rounded, so independent of the order
    names = np.unique(getattr(result.problem, of).item_names, return_inverse=True)[1]
    order: Index = np.lexsort([names, sums, *near.T[::-1]])
    return order


def _scores(profiles: sparse.csr_array, members: Sequence[Index], standard: Standard) -> Matrix:
    """The mean of the standardized columns of each module, for each row."""
    weights = np.zeros((profiles.shape[1], len(members)))
    for g, own in enumerate(members):
        weights[own, g] = 1.0 / (len(own) * standard.deviation[own])
    scores: Matrix = profiles @ weights - standard.mean @ weights
    return scores


def leiden(graph: sparse.csr_array, resolution: float, seed: int) -> Index:
    """The communities of a weighted graph, by modularity."""
    try:
        import igraph
    except ImportError:
        raise ImportError("modules need igraph: pip install 'cometric[modules]'.") from None
    if igraph.__version_info__ < (1, 0):
        raise ImportError(
            f"modules need igraph 1.0; with {igraph.__version__} the search may never end: "
            "pip install --upgrade 'cometric[modules]'."
        )
    edges = sparse.triu(graph, 1).tocoo()
    network = igraph.Graph(n=graph.shape[0], edges=np.column_stack([edges.row, edges.col]).tolist())
    igraph.set_random_number_generator(random.Random(seed))
    try:
        found = network.community_leiden(
            objective_function="modularity",
            weights=edges.data.tolist(),
            resolution=resolution,
            n_iterations=-1,
        )
    finally:
        igraph.set_random_number_generator(random)
    return np.array(found.membership, dtype=np.int64)


def by_size(labels: Index, min_size: int) -> Index:
    """Labels renumbered, the largest group first; those below ``min_size`` become background."""
    kinds, counts = np.unique(labels[labels != BACKGROUND], return_counts=True)
    renumbered = np.full(len(labels), BACKGROUND, dtype=np.int64)
    for number, g in enumerate(np.argsort(-counts, kind="stable")):
        if counts[g] >= min_size:
            renumbered[labels == kinds[g]] = number
    return renumbered


def _tree(scores: Matrix) -> Matrix:
    """Ward linkage of the modules by one minus the correlations of their scores."""
    if scores.shape[1] < 2:
        return np.empty((0, 4))
    away: Matrix = np.asarray(1.0 - np.corrcoef(scores.T))
    np.fill_diagonal(away, 0.0)
    tree: Matrix = hierarchy.linkage(squareform(away, checks=False), "ward")
    return tree
