"""Storing and reading metrics that were learned from landmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.inputs import counted, read_matrix
from cometric.core.labels import groups_of, indicators, is_missing
from cometric.core.types import Index
from cometric.core.warn import warn
from cometric.files.rows import as_rows
from cometric.scverse import slots
from cometric.scverse.connectivities import fuzzy_connectivities

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas.api.extensions import ExtensionArray

    from cometric.large.landmarks import Sketch

CHUNK = 20_000
"""Cells that are read at a time."""


class Landmarks(NamedTuple):
    """The landmarks of stored metrics, in the form of an AnnData."""

    X: sparse.csr_array
    obs_names: list[str]
    var_names: list[str]


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


def proved_key(key: str) -> str:
    """The name of the column of ``obs`` that marks cells with proved neighbors."""
    return f"{key}_proved"


def to_slots(
    sketch: Sketch, origin: Origin, metacells: Any, key: str, neighbors_key: str
) -> dict[str, dict[str, Any]]:
    """Everything to write, by slot: ``obs``, ``obsp``, ``varp`` and ``uns``.

    ``metacells`` are the matrix and the names that were learned from, None for landmarks.
    """
    result, near = sketch.result, sketch.neighbors
    slot = slots.distances_key(key)
    stored = slots.describe(result, key, source=origin.source, options=origin.options)
    rows = sketch.landmarks
    if metacells is None and rows is not None:
        cells: Any = read_rows(origin.data, rows)
        names = np.array([str(origin.data.obs_names[i]) for i in rows], dtype=object)
    else:
        cells, names = metacells
    stored["landmarks"] = {
        "names": np.asarray(names, dtype=object),
        "data": sparse.csr_matrix(cells),
        "distances": np.asarray(result.samples),
        "recall": near.recall,
        "checked": near.checked,
        "compared": near.compared,
        "proved": float(near.proved.mean()),
    }
    if rows is not None:
        stored["landmarks"]["rows"] = np.asarray(rows)
    features = slots.stored_distances(
        "genes", result.problem.features, result.features, slots.MAX_DENSE, slots.NEIGHBORS_STORED
    )
    if origin.own_genes:
        genes = np.array(list(origin.data.var_names), dtype=object)
        stored["features"] = {"names": genes, "distances": features}
    k = origin.n_neighbors - 1
    index = near.graph.indices.reshape(-1, k)
    weights = fuzzy_connectivities(index, near.graph.data.reshape(-1, k))
    distances_key, connectivities_key = graph_keys(neighbors_key)
    stored["neighbors_key"] = neighbors_key
    described = {
        "connectivities_key": connectivities_key,
        "distances_key": distances_key,
        "params": {
            "n_neighbors": origin.n_neighbors,
            "method": "umap",
            "random_state": 0 if origin.random_state is None else origin.random_state,
            "metric": "euclidean",  # scanpy needs a known one, and uses it only to lay out groups
            "use_rep": "X",
            "distances": slot,
        },
    }
    return {
        "obs": {proved_key(key): near.proved},
        "obsp": {distances_key: near.graph, connectivities_key: weights},
        "varp": {} if origin.own_genes else {slot: features},
        "uns": {key: stored, neighbors_key: described},
    }


def write(adata: AnnData, written: dict[str, dict[str, Any]]) -> None:
    """Assign what :func:`to_slots` returned."""
    for where, items in written.items():
        for name, value in items.items():
            getattr(adata, where)[name] = value


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


def read_landmarks(stored: dict[str, Any], genes: list[str]) -> Landmarks:
    """The data that were learned from, as :func:`to_slots` stored them."""
    cells = sparse.csr_array(stored["landmarks"]["data"])
    names = [str(name) for name in stored["landmarks"]["names"]]
    if cells.shape != (len(names), len(genes)):
        raise ValueError(
            f"The AnnData has {len(genes)} genes, but its landmarks have {cells.shape[1]}: genes "
            "have changed since. Learn again."
        )
    return Landmarks(cells, names, genes)


def read_rows(data: Any, rows: Index) -> sparse.csr_array:
    """Some rows of the matrix of an AnnData, which may be on the disk."""
    source = as_rows(data)
    matrix = read_matrix(data, "X") if source is None else source
    return sparse.csr_array(matrix[np.asarray(rows)])


def chunks(data: Any) -> Iterator[tuple[slice, Any]]:
    """The matrix of an AnnData in parts, each with the slice of its rows."""
    source = as_rows(data)
    matrix = read_matrix(data, "X") if source is None else source
    for start in range(0, matrix.shape[0], CHUNK):
        rows = slice(start, min(start + CHUNK, matrix.shape[0]))
        yield rows, matrix[rows]


def sum_groups(data: Any, labels: Any) -> tuple[sparse.csr_array, list[str]]:
    """The sums of cells with the same label, and these labels; cells without one are left out."""
    names, groups = groups_of(labels)
    total: Any = sparse.csr_array((len(names), len(data.var_names)))
    for rows, part in chunks(data):
        members = indicators(groups[rows], len(names))
        total = total + members @ sparse.csr_array(part, dtype=np.float64)
    return sparse.csr_array(total), list(names)
