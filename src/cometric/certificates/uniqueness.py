"""Whether optimal couplings connect all distances, so that the solution is unique (C6)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.types import Index, Matrix, Metrics
from cometric.maps.checking import all_pairs
from cometric.maps.exact_map import ExactMap
from cometric.maps.exact_pairs import Plans


class Uniqueness(NamedTuple):
    """Properties of the graph of unordered pairs connected by optimal couplings (C6)."""

    unique: bool | None  # None if the graph does not decide it
    components: int  # strong components
    sources: int  # strong components without incoming edges
    reason: str


def uniqueness(metrics: Metrics, to_samples: ExactMap, to_features: ExactMap) -> Uniqueness:
    """Whether optimal couplings connect all distances (tau = 0).

    Nodes are the unordered pairs of different items, on both sides. A pair of features points
    to a pair of samples when some optimal plan between the samples carries mass between the
    features, and likewise for pairs of features. The solution is unique if the graph is strongly
    connected, or if it has only one component without incoming edges and all optimal plans are
    unique.
    """
    for collect in (_vertex_plans, _union_of_plans):
        into_samples, ties_a = collect(to_samples, metrics.features)
        into_features, ties_b = collect(to_features, metrics.samples)
        count, sources = _components(into_samples, into_features)
        if count == 1:
            return Uniqueness(True, 1, 1, "optimal couplings connect all distances")
    if sources > 1:
        reason = f"{sources} groups of distances do not depend on one another"
        return Uniqueness(False, count, sources, reason)
    if not (ties_a or ties_b):
        return Uniqueness(True, count, 1, "one group of distances determines all others")
    reason = (
        f"one group of distances determines {count - 1} others, but optimal couplings are not "
        "unique"
    )
    return Uniqueness(None, count, 1, reason)


def _components(into_samples: sparse.csr_array, into_features: sparse.csr_array) -> tuple[int, int]:
    """The numbers of strong components of the graph: all, and those without incoming edges."""
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
    """Positions of the cells k * d + l with k != l, and the unordered-pair number of every cell."""
    first, second = np.divmod(cells.astype(np.int64), d)
    k, l = np.minimum(first, second), np.maximum(first, second)
    return np.flatnonzero(k != l), k * (2 * d - k - 1) // 2 + l - k - 1


def _vertex_plans(phi: ExactMap, cost: Matrix) -> tuple[sparse.csr_array, bool]:
    """For each pair of histograms, the pairs of bins that one optimal plan moves mass between."""
    n, d = phi.shape
    plans = phi.plans(cost, all_pairs(n))
    row = np.repeat(np.arange(len(plans.values)), np.diff(plans.start))
    off, column = _condense(plans.source * d + plans.target, d)
    shape = (len(plans.values), d * (d - 1) // 2)
    return sparse.csr_array((np.ones(len(off)), (row[off], column[off])), shape=shape), True


def _union_of_plans(phi: ExactMap, cost: Matrix) -> tuple[sparse.csr_array, bool]:
    """For each pair of histograms, the pairs of bins used by any optimal plan; whether plans tie.

    A cell without mass is used by another optimal plan if and only if it is tight and lies on a
    cycle of the residual graph: rows to columns along tight cells, columns to rows along used ones.
    """
    n, d = phi.shape
    index = all_pairs(n)
    plans = phi.plans(cost, index)
    hist = phi.histograms
    rows, columns = [], []
    ties = False
    for p, (i, j) in enumerate(index):
        first = hist.indices[hist.indptr[i] : hist.indptr[i + 1]]
        second = hist.indices[hist.indptr[j] : hist.indptr[j + 1]]
        source, target, several = _plan_cells(plans, p, first, second, cost)
        ties |= several
        off, column = _condense(source * np.int64(d) + target, d)
        rows.append(np.full(len(off), p))
        columns.append(column[off])
    cells = (np.concatenate(rows), np.concatenate(columns))
    shape = (len(index), d * (d - 1) // 2)
    return sparse.csr_array((np.ones(len(cells[0])), cells), shape=shape), ties


def _plan_cells(
    plans: Plans, p: int, first: Index, second: Index, cost: Matrix
) -> tuple[Index, Index, bool]:
    """Source and target bins of all optimal plans of pair p, and whether there are several."""
    flows = slice(plans.start[p], plans.start[p + 1])
    source = np.searchsorted(first, plans.source[flows])
    target = np.searchsorted(second, plans.target[flows])
    local = cost[np.ix_(first, second)]
    slack = local - plans.f[p][:, None] - plans.g[p][None]
    tight = slack <= 1e-9 * local.max()
    s, t = local.shape
    tight[source, target] = True
    if tight.sum() > len(source):
        rows, columns = np.nonzero(tight)
        edges = (np.concatenate([rows, s + target]), np.concatenate([s + columns, source]))
        graph = sparse.csr_array((np.ones(len(edges[0]), bool), edges), shape=(s + t, s + t))
        _, label = sparse.csgraph.connected_components(graph, directed=True, connection="strong")
        same = label[rows] == label[s + columns]
        used = np.zeros((s, t), bool)
        used[rows[same], columns[same]] = True
        several = int(used.sum()) > len(source)
        source, target = np.nonzero(used)
        return first[source], second[target], several
    return first[source], second[target], False
