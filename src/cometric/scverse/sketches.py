"""Storing and reading metrics that were learned from landmarks, and the graph of all cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.inputs import counted
from cometric.core.labels import is_missing
from cometric.core.types import Index, Matrix, Vector
from cometric.core.warn import warn
from cometric.files.rows import Named
from cometric.scverse import slots

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas.api.extensions import ExtensionArray

    from cometric.landmarks.landmarks import Sketch

BLOCK = 50_000
"""Samples per block."""

STEPS, CLOSE = 64, 1e-5
"""Most bisections of a bandwidth, and the error of the sum of weights below which they end."""

NARROWEST = 1e-3
"""The smallest bandwidth, in units of the mean distance."""


class Origin(NamedTuple):
    """Where the data of a sketch come from."""

    data: Any  # with X, obs_names, var_names
    source: dict[str, Any]  # layer, use_raw
    options: dict[str, Any]  # of `learn`
    n_neighbors: int  # of each cell, itself included, as scanpy counts
    random_state: int | None
    own_genes: bool  # whether `raw` has other genes than `X`


def graph_keys(neighbors_key: str) -> tuple[str, str]:
    """The names of distances and connectivities in ``obsp``, those of ``sc.pp.neighbors``."""
    if neighbors_key == "neighbors":
        return "distances", "connectivities"
    return f"{neighbors_key}_distances", f"{neighbors_key}_connectivities"


def to_slots(
    sketch: Sketch, origin: Origin, key: str, neighbors_key: str
) -> dict[str, dict[str, Any]]:
    """Everything to write, by slot: ``obs``, ``obsp``, ``varp`` and ``uns``."""
    result, near = sketch.result, sketch.neighbors
    genes = origin.data.var_names if origin.own_genes else None
    written = slots.to_slots(result, key, origin.source, origin.options, genes)
    stored = written["uns"][key]
    stored["neighbors_key"] = neighbors_key
    stored["landmarks"] = {
        "names": np.array(result.problem.samples.item_names, dtype=object),
        "data": sparse.csr_matrix(sketch.data),
        "distances": np.asarray(result.samples),
        "recall": near.recall,
        "checked": near.checked,
        "compared": near.compared,
        "proved": float(near.proved.mean()),
    }
    if sketch.landmarks is not None:
        stored["landmarks"]["rows"] = sketch.landmarks
    k = origin.n_neighbors - 1
    index = near.graph.indices.reshape(-1, k)
    weights = fuzzy_connectivities(index, near.graph.data.reshape(-1, k))
    distances_key, connectivities_key = graph_keys(neighbors_key)
    written["obs"] = {f"{key}_proved": near.proved}
    written["obsp"] = {distances_key: near.graph, connectivities_key: weights}
    written["uns"][neighbors_key] = {
        "connectivities_key": connectivities_key,
        "distances_key": distances_key,
        "params": {
            "n_neighbors": origin.n_neighbors,
            "method": "umap",
            "random_state": 0 if origin.random_state is None else origin.random_state,
            "metric": "euclidean",  # scanpy needs a known one, and uses it only to lay out groups
            "use_rep": "X",
            "distances": slots.distances_key(key),
        },
    }
    return written


def graph(adata: AnnData, stored: dict[str, Any], key: str) -> sparse.csr_matrix:
    """The distances between neighbors; raises if other ones have replaced them."""
    neighbors_key = stored["neighbors_key"]
    place = graph_keys(neighbors_key)[0]
    params = adata.uns.get(neighbors_key, {}).get("params", {})
    if params.get("distances") != slots.distances_key(key) or place not in adata.obsp:
        raise slots.NotStored(
            f"`.uns[{neighbors_key!r}]` no longer describes the neighbors under {key!r}. Run "
            "`landmarks` again, or give it another `neighbors_key`."
        )
    return adata.obsp[place]


def has_landmarks(adata: AnnData, key: str) -> bool:
    """Whether the metrics were learned from landmarks."""
    return "landmarks" in slots.read(adata, key)


def landmark_rows(adata: AnnData, key: str, doing: str) -> Index:
    """The numbers of the cells that are landmarks; raises for metacells."""
    stored = slots.read(adata, key)["landmarks"]
    if "rows" not in stored:
        raise ValueError(
            f"The metrics under {key!r} were learned from metacells, which have no labels: "
            f"{doing} needs landmarks that are cells. Pass a number of landmarks."
        )
    rows: Index = np.asarray(stored["rows"])
    names = np.asarray(adata.obs_names)
    if rows.max() >= len(names) or list(names[rows]) != list(stored["names"]):
        raise ValueError(
            f"The AnnData has other cells, or in another order, than the metrics under {key!r} "
            "were learned from. Learn again."
        )
    return rows


def labels_of_landmarks(adata: AnnData, labels: ExtensionArray, key: str) -> ExtensionArray:
    """The labels of the landmarks, with a warning about groups that have none."""
    rows = landmark_rows(adata, key, "ranking genes")
    groups = {str(label) for label in labels if not is_missing(label)}
    absent = sorted(groups - {str(label) for label in labels[rows]})
    if absent:
        warn(
            f"{counted(len(absent), 'group')} of {len(groups)} have no landmark, so that they are "
            f"not ranked (first: {absent[0]!r}). Pass more landmarks."
        )
    return labels[rows]


def read_landmarks(stored: dict[str, Any], genes: list[str]) -> Named:
    """The data that were learned from, as :func:`to_slots` stored them."""
    cells = sparse.csr_array(stored["landmarks"]["data"])
    names = [str(name) for name in stored["landmarks"]["names"]]
    if cells.shape != (len(names), len(genes)):
        raise ValueError(
            f"The AnnData has {len(genes)} genes, but its landmarks have {cells.shape[1]}: genes "
            "have changed since. Learn again."
        )
    return Named(cells, names, genes)


def fuzzy_connectivities(index: Index, near: Matrix) -> sparse.csr_matrix:
    """Symmetric weights in (0, 1] of all pairs of neighbors, single precision, (n, n).

    ``index`` and ``near`` are the k neighbors of each sample and their distances, the nearest
    first, without the sample itself. A neighbor at distance d has the weight
    exp(-max(0, d - r) / s), where r is the smallest positive distance of the sample, and s is such
    that the weights of its neighbors sum to log2(k + 1). Weights p and q of the two directions of
    an edge become p + q - p q. These are the connectivities of ``sc.pp.neighbors``.
    """
    n, k = index.shape
    near = near.astype(np.float32)
    mean = float(near.sum(dtype=np.float64)) / (n * (k + 1))  # UMAP counts the sample itself
    weights = np.empty((n, k), np.float32)
    for start in range(0, n, BLOCK):
        part = near[start : start + BLOCK].astype(np.float64)
        positive = np.where(part > 0.0, part, np.inf)
        nearest = positive.min(axis=1)
        nearest = np.where(np.isfinite(nearest), nearest, 0.0)
        beyond = np.maximum(part - nearest[:, None], 0.0)
        widths = _bandwidths(beyond, np.log2(k + 1))
        own = part.sum(axis=1) / (k + 1)
        widths = np.maximum(widths, NARROWEST * np.where(nearest > 0.0, own, mean))
        share = np.divide(
            beyond, widths[:, None], out=np.zeros_like(beyond), where=widths[:, None] > 0.0
        )
        weights[start : start + BLOCK] = np.exp(-share)
    starts = np.arange(0, n * k + 1, k)
    graph = sparse.csr_matrix((weights.ravel(), index.ravel(), starts), shape=(n, n))
    back = graph.T.tocsr()
    joined = (graph + back - graph.multiply(back)).tocsr()
    joined.eliminate_zeros()
    joined.sort_indices()
    return joined


def _bandwidths(beyond: Matrix, target: float) -> Vector:
    """For each row, the s for which the sum of exp(-beyond / s) is ``target``, by bisection."""
    low, high = np.zeros(len(beyond)), np.full(len(beyond), np.inf)
    widths, open_rows = np.ones(len(beyond)), np.arange(len(beyond))
    for _ in range(STEPS):
        sums = np.exp(-beyond[open_rows] / widths[open_rows, None]).sum(axis=1)
        left = np.abs(sums - target) >= CLOSE
        open_rows, wide = open_rows[left], (sums > target)[left]
        if not len(open_rows):
            break
        high[open_rows[wide]] = widths[open_rows[wide]]
        low[open_rows[~wide]] = widths[open_rows[~wide]]
        bounded = np.isfinite(high[open_rows])
        widths[open_rows] = np.where(
            bounded, (low[open_rows] + high[open_rows]) / 2.0, 2.0 * widths[open_rows]
        )
    return widths
