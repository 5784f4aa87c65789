"""Preprocessing: scanpy's graph of neighbors, from the learned distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.core.nearest import check_neighborhood, neighbor_matrix
from cometric.scverse import get, slots

if TYPE_CHECKING:
    from anndata import AnnData

__all__ = ["neighbors"]


def __dir__() -> list[str]:
    return __all__


def neighbors(
    adata: AnnData,
    n_neighbors: int = 15,
    *,
    key: str = "cometric",
    key_added: str | None = None,
    method: str = "umap",
    random_state: int = 0,
    copy: bool = False,
) -> AnnData | None:
    """The graph that ``sc.pp.neighbors`` makes, from learned distances between cells.

    Parameters
    ----------
    adata
        Data with metrics from :func:`cometric.scverse.tl.learn`.
    n_neighbors
        Size of a neighborhood, the cell itself included, as scanpy counts.
    key
        The ``key_added`` of ``tl.learn``.
    key_added, method, random_state, copy
        As in ``sc.pp.neighbors``, which computes the connectivities.

    Returns
    -------
    None, or a copy. Written are ``uns["neighbors"]``, ``obsp["distances"]`` and
    ``obsp["connectivities"]`` (with ``key_added``: ``uns[key_added]`` and so on), so that
    ``sc.tl.umap``, ``sc.tl.leiden`` and the rest of scanpy can be used directly.
    """
    if key_added is not None and slots.distances_key(key_added) == slots.distances_key(key):
        raise ValueError(
            f"`key_added` is {key_added!r}, as is `key`: the graph would replace the learned "
            "distances. Pass another name."
        )
    distances = get.distances(adata, key=key)
    slots.check_copy(adata, copy)
    check_neighborhood(n_neighbors, adata.n_obs, "cell")
    index, near = slots.nearest_cells(distances, n_neighbors - 1, key)
    import scanpy as sc

    adata = adata.copy() if copy else adata
    # scanpy reads `use_rep` for the size of the data only: the transformer has the neighbors.
    sc.pp.neighbors(
        adata,
        use_rep="X",
        transformer=_Precomputed(index, near),
        method=method,
        random_state=random_state,
        key_added=key_added,
    )
    adata.uns[key_added or "neighbors"]["params"]["distances"] = slots.distances_key(key)
    return adata if copy else None


class _Precomputed:
    """A transformer in the sense of scanpy that returns precomputed neighbors."""

    def __init__(self, index: np.ndarray, distances: np.ndarray) -> None:
        self._graph = neighbor_matrix(index, distances, len(index))
        self._n_neighbors = index.shape[1] + 1

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"n_neighbors": self._n_neighbors}

    def fit_transform(self, X: Any) -> sparse.csr_matrix:
        return self._graph
