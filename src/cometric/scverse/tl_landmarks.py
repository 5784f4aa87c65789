"""Tools: the metric of the genes from some cells, and the neighbors of all of them."""

from __future__ import annotations

import logging
from inspect import signature
from typing import TYPE_CHECKING, Any

from cometric.core.arguments import check_options
from cometric.core.nearest import check_neighborhood
from cometric.large.landmarks import check_landmarks, learn_landmarks
from cometric.running.learning import learn
from cometric.scverse import sketches, slots
from cometric.scverse.advice import advising

if TYPE_CHECKING:
    from anndata import AnnData

log = logging.getLogger(__name__)


def landmarks(
    adata: AnnData,
    n_landmarks: int | str | None = None,
    *,
    n_neighbors: int = 15,
    layer: str | None = None,
    use_raw: bool = False,
    key_added: str = "cometric",
    neighbors_key: str = "neighbors",
    random_state: int | None = 0,
    copy: bool = False,
    **options: Any,
) -> AnnData | None:
    """Learn from some cells, and find the neighbors of all: for data too large for :func:`learn`.

    Then ``sc.tl.umap``, ``sc.tl.leiden`` and the rest of scanpy can be used directly, and so can
    :func:`modules`, :func:`rank_features`, :func:`transform` and :func:`transfer_labels`, where
    the landmarks are the reference.

    Parameters
    ----------
    adata
        Nonnegative data, cells by genes: counts, or their logarithms ``log1p``. It may be backed
        (``anndata.read_h5ad(path, backed="r")``) or lazy, and is then read in parts.
    n_landmarks
        The number of cells to learn from, by default that of :func:`cometric.learn_landmarks`; or
        a column of ``obs``, to learn from the sums of the cells with the same label (metacells).
        Cells whose label is missing are in none of them, but have neighbors like all others.
    n_neighbors
        Size of a neighborhood, the cell itself included, as scanpy counts.
    layer, use_raw
        As for :func:`learn`.
    key_added
        The name under which results are stored.
    neighbors_key
        The name in ``uns`` under which scanpy finds the graph, the ``key_added`` of
        ``sc.pp.neighbors``.
    random_state
        Seed for the choice of landmarks, and of the cells that are checked.
    copy
        Return a copy rather than writing to ``adata``.
    options
        All other options of :func:`cometric.learn_landmarks` (``method``, ``search``, ``check``,
        ``folder``, ``device``, ``progress``) and of :func:`cometric.learn` (``eps``, ``tau``,
        ``tol``).

    Returns
    -------
    None, or the copy. Written are, with the default ``key_added`` and ``neighbors_key``:

    ``varp["cometric_distances"]``
        Distances between genes, maximum 1; NaN for genes without counts (``drop_empty=True``).
        Where ``adata.raw`` has other genes than ``adata``, in ``uns["cometric"]["features"]``, a
        dictionary of ``names`` and ``distances``.
    ``obsp["distances"]``
        Distances of each cell to its ``n_neighbors`` - 1 nearest others, sparse.
    ``obsp["connectivities"]``
        Weights of the edges between neighbors, those of ``sc.pp.neighbors``.
    ``obs["cometric_proved"]``
        Whether the neighbors of the cell are proved to be the nearest.
    ``uns["neighbors"]``
        ``distances_key``, ``connectivities_key`` and ``params``, where scanpy looks for them. With
        another ``neighbors_key``, say "near", ``uns["near"]``, ``obsp["near_distances"]`` and
        ``obsp["near_connectivities"]``.
    ``uns["cometric"]``
        As for :func:`learn`, of the landmarks; and ``landmarks``, a dictionary: ``names``, ``rows``
        (their numbers, not for metacells), ``data`` (their counts), ``distances`` (between them),
        ``recall`` of the neighbors of ``checked`` cells, ``compared`` (distances computed per
        cell) and the fraction of ``proved`` cells.
    """
    slots.check_is_anndata(adata)
    slots.check_key(key_added)
    slots.check_key(neighbors_key)
    if neighbors_key == key_added:
        raise ValueError(f"`neighbors_key` is {neighbors_key!r}, as is `key_added`. Change one.")
    check_neighborhood(n_neighbors, adata.n_obs, "cell")
    slots.check_copy(adata, copy)
    known = {**signature(learn_landmarks).parameters, **signature(learn).parameters}
    check_options(options, known, "landmarks")
    layer = slots.source_of(adata, layer, use_raw)
    data = slots.matrix(adata, layer=layer, use_raw=use_raw)
    metacells = None
    given: tuple[Any, ...] = () if n_landmarks is None else (n_landmarks,)
    if isinstance(n_landmarks, str):
        if n_landmarks not in adata.obs:
            raise ValueError(
                f"`n_landmarks` is {n_landmarks!r}; `adata.obs` has {list(adata.obs)}. Pass one of "
                "these columns, or a number."
            )
        metacells = sketches.sum_groups(data, adata.obs[n_landmarks])
        given = (metacells[0],)
    elif n_landmarks is not None:
        check_landmarks(n_landmarks, adata.n_obs, "n_landmarks")
    with advising(adata, data):
        options |= {"n_neighbors": n_neighbors - 1, "random_state": random_state}
        sketch = learn_landmarks(data, *given, **options)
    adata = adata.copy() if copy else adata
    origin = sketches.Origin(
        data,
        {"layer": layer, "use_raw": use_raw},
        options,
        n_neighbors,
        random_state,
        own_genes=use_raw and not adata.raw.var_names.equals(adata.var_names),
    )
    sketches.write(adata, sketches.to_slots(sketch, origin, metacells, key_added, neighbors_key))
    log.info("added uns[%r], uns[%r] and what these name", key_added, neighbors_key)
    return adata if copy else None
