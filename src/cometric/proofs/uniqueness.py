"""Whether optimal couplings tie all distances together, so that the answer is unique (C6)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.types import Index, Matrix, Metrics
from cometric.maps.exact import ExactMap, Plans


class Uniqueness(NamedTuple):
    """The graph of unordered pairs tied by optimal couplings, and what follows from it (C6)."""

    unique: bool | None  # None: the graph does not decide
    components: int  # strong components
    sources: int  # strong components that no edge enters
    reason: str


def uniqueness(metrics: Metrics, to_samples: ExactMap, to_features: ExactMap) -> Uniqueness:
    """Whether optimal couplings tie all distances together (tau = 0).

    Nodes are the unordered pairs of different items, on both sides. A pair of features points
    to a pair of samples when some optimal plan between the samples carries mass between the
    features, and likewise the other way. Strongly connected: unique. One component that no
    edge enters, and no ties between plans: unique too.
    """
    for collect in (_vertex_plans, _union_of_plans):
        into_samples, ties_a = collect(to_samples, metrics.features)
        into_features, ties_b = collect(to_features, metrics.samples)
        count, sources = _components(into_samples, into_features)
        if count == 1:
            return Uniqueness(True, 1, 1, "optimal couplings tie all distances together")
    if sources > 1:
        reason = f"{sources} groups of distances do not depend on one another"
        return Uniqueness(False, count, sources, reason)
    if not (ties_a or ties_b):
        return Uniqueness(True, count, 1, "one group of distances determines all others")
    reason = f"one group of distances leads {count - 1} others, but optimal couplings are tied"
    return Uniqueness(None, count, 1, reason)


def _components(into_samples: sparse.csr_array, into_features: sparse.csr_array) -> tuple[int, int]:
    """Strong components of the graph, and how many of them no edge enters."""
    graph = sparse.block_array([[None, into_features], [into_samples, None]]).tocoo()
    rows, columns = graph.coords  # an edge runs from the column to the row
    count, label = sparse.csgraph.connected_components(
        graph.tocsr(), directed=True, connection="strong"
    )
    entered = np.zeros(count, bool)
    crossing = label[rows] != label[columns]
    entered[label[rows[crossing]]] = True
    return int(count), int((~entered).sum())


def _condense(cells: Index, d: int) -> tuple[Index, Index]:
    """Which cells k * d + l are off the diagonal, and their numbers as unordered pairs."""
    first, second = np.divmod(cells.astype(np.int64), d)
    k, l = np.minimum(first, second), np.maximum(first, second)
    return np.flatnonzero(k != l), k * (2 * d - k - 1) // 2 + l - k - 1


def _vertex_plans(phi: ExactMap, cost: Matrix) -> tuple[sparse.csr_array, bool]:
    """For each pair of histograms the pairs of bins that the plan found moves mass between."""
    n, d = phi.shape
    plans = phi.plans(cost, np.stack(np.triu_indices(n, 1), axis=1))
    row = np.repeat(np.arange(len(plans.values)), np.diff(plans.start))
    off, column = _condense(plans.source * d + plans.target, d)
    shape = (len(plans.values), d * (d - 1) // 2)
    return sparse.csr_array((np.ones(len(off)), (row[off], column[off])), shape=shape), True


def _union_of_plans(phi: ExactMap, cost: Matrix) -> tuple[sparse.csr_array, bool]:
    """For each pair of histograms the pairs of bins that some optimal plan uses, and if any tie.

    A cell without mass is used by another optimal plan iff it is tight and lies on a cycle of
    the residual graph: rows to columns along tight cells, columns to rows along used ones.
    """
    n, d = phi.shape
    index = np.stack(np.triu_indices(n, 1), axis=1)
    plans = phi.plans(cost, index)
    hist = phi.histograms
    rows, columns = [], []
    ties = False
    for p, (i, j) in enumerate(index):
        first = hist.indices[hist.indptr[i] : hist.indptr[i + 1]]
        second = hist.indices[hist.indptr[j] : hist.indptr[j + 1]]
        source, target, extra = _plan_cells(plans, p, first, second, cost)
        ties |= extra
        off, column = _condense(source * np.int64(d) + target, d)
        rows.append(np.full(len(off), p))
        columns.append(column[off])
    where = (np.concatenate(rows), np.concatenate(columns))
    shape = (len(index), d * (d - 1) // 2)
    return sparse.csr_array((np.ones(len(where[0])), where), shape=shape), ties


def _plan_cells(
    plans: Plans, p: int, first: Index, second: Index, cost: Matrix
) -> tuple[Index, Index, bool]:
    """Bins from which and to which some optimal plan of pair p moves mass."""
    own = slice(plans.start[p], plans.start[p + 1])
    source = np.searchsorted(first, plans.source[own])
    target = np.searchsorted(second, plans.target[own])
    local = cost[np.ix_(first, second)]
    slack = local - plans.f[p][:, None] - plans.g[p][None]
    tight = slack <= 1e-9 * local.max()
    s, t = local.shape
    tight[source, target] = True
    if tight.sum() > len(source):
        there, back = np.nonzero(tight)
        edges = (np.concatenate([there, s + target]), np.concatenate([s + back, source]))
        graph = sparse.csr_array((np.ones(len(edges[0]), bool), edges), shape=(s + t, s + t))
        _, label = sparse.csgraph.connected_components(graph, directed=True, connection="strong")
        same = label[there] == label[s + back]
        used = np.zeros((s, t), bool)
        used[there[same], back[same]] = True
        more = int(used.sum()) > len(source)
        source, target = np.nonzero(used)
        return first[source], second[target], more
    return first[source], second[target], False
