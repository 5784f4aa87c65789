"""Tools: learn both metrics of an AnnData, choose settings, find modules of genes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import cometric.learning.learn
import cometric.selection.comparison
from cometric.core.arguments import check_number
from cometric.core.nearest import check_neighborhood
from cometric.files.rows import rows_of
from cometric.landmarks.landmarks import learn_landmarks
from cometric.learning.settings import AUTO
from cometric.results.groups import Ranked
from cometric.results.groups import rank_features as ranked_features
from cometric.results.modules import BACKGROUND, Modules
from cometric.results.modules import modules as find_modules
from cometric.scverse import get, sketches, slots
from cometric.scverse.tl_mapping import transfer_labels, transform

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

    from cometric.selection.choice import Choice

__all__ = [
    "choose",
    "landmarks",
    "learn",
    "modules",
    "rank_features",
    "transfer_labels",
    "transform",
]


def __dir__() -> list[str]:
    return __all__


def learn(
    adata: AnnData,
    eps: float | str = AUTO,
    tau: float | str = AUTO,
    *,
    layer: str | None = None,
    use_raw: bool = False,
    key_added: str = "cometric",
    certify: bool = False,
    max_dense: int = slots.MAX_DENSE,
    copy: bool = False,
    **options: Any,
) -> AnnData | None:
    """Learn a distance between the cells of ``adata`` and one between its genes.

    Parameters
    ----------
    adata
        Nonnegative data, cells by genes: counts, or their logarithms ``log1p``.
    layer, use_raw
        Learn from ``adata.layers[layer]`` or ``adata.raw``. By default from ``adata.X``,
        as with ``layer="X"``; but if it holds logarithms of counts, and ``layers["counts"]`` whole
        numbers, from the latter, with a warning.
    key_added
        The name under which results are stored.
    certify
        Also store a certificate; takes a few more transport sweeps.
    max_dense
        Above this number of cells (or genes) only the distances to the 100 nearest are stored, as a
        sparse graph, with a warning.
    copy
        Return a copy rather than writing to ``adata``.
    eps, tau, options
        The options of :func:`cometric.learn`. Cells and genes without counts, common after
        subsampling, are an error unless ``drop_empty=True``; their distances are then NaN. A
        metric that is given, ``features`` or ``samples``, may be the name of an array in ``varp``
        or ``obsp``.

    Returns
    -------
    None, or the copy. Written are, with the default ``key_added``:

    ``obsp["cometric_distances"]``
        Distances between cells, maximum 1.
    ``varp["cometric_distances"]``
        Distances between genes, maximum 1. Where ``adata.raw`` has other genes than ``adata``,
        ``varp`` cannot hold them: they go to ``uns["cometric"]["features"]``, a dictionary of
        ``names`` and ``distances``.
    ``uns["cometric"]``
        ``params``, ``values`` (lam, mu), ``status``, ``message``, ``converged``, ``residual``,
        ``bracket``, ``history`` (a table), ``change`` if trees still change, and, with ``certify``,
        ``certificate``.
    """
    slots.check_key(key_added)
    check_number("max_dense", max_dense)
    data, source = slots.unwrap(adata, layer, use_raw, copy)
    given = {
        side: slots.given_metric(adata, side, options[side], use_raw)
        for side in ("samples", "features")
        if isinstance(options.get(side), str)
    }
    with slots.advising(adata, data):
        result = cometric.learning.learn.learn(data, eps, tau, **options | given)
    adata = adata.copy() if copy else adata
    slots.store(
        adata,
        result,
        key_added,
        source=source,
        options=options,
        certificate=result.certify(options.get("n_threads")) if certify else None,
        max_dense=max_dense,
    )
    return adata if copy else None


def choose(
    adata: AnnData,
    candidates: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    layer: str | None = None,
    use_raw: bool = False,
    key_added: str = "cometric",
    **options: Any,
) -> Choice:
    """Compare settings of ``learn``, and common distances between cells, without labels.

    Parameters
    ----------
    adata, layer, use_raw
        As for :func:`learn`.
    key_added
        The comparison is stored under this name with ``_choice`` added.
    candidates, options
        The options of :func:`cometric.choose`.

    Returns
    -------
    The :class:`cometric.Choice`; use it as ``cms.tl.learn(adata, **choice.settings)``. Written is,
    with the default ``key_added``:

    ``uns["cometric_choice"]``
        ``table``, ``best``, ``picked`` (empty: cannot decide), ``settings``, ``advice`` and
        ``params``.
    """
    slots.check_key(key_added)
    data, source = slots.unwrap(adata, layer, use_raw)
    with slots.advising(adata, data):
        choice = cometric.selection.comparison.choose(data, candidates, **options)
    words = "".join(f", {name}={value!r}" for name, value in source.items() if value)
    choice = replace(choice, call=f"cms.tl.learn(adata{words})")
    slots.store_choice(adata, choice, key_added, source)
    return choice


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
    neighbors_key
        The name in ``uns`` under which scanpy finds the graph, the ``key_added`` of
        ``sc.pp.neighbors``.
    layer, use_raw, key_added, copy
        As for :func:`learn`.
    random_state, options
        The options of :func:`cometric.learn_landmarks`, and so of :func:`cometric.learn`.

    Returns
    -------
    None, or the copy. Written are, with the default ``key_added`` and ``neighbors_key``:

    ``varp["cometric_distances"]``
        Distances between genes, as for :func:`learn`.
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
    slots.check_key(key_added)
    slots.check_key(neighbors_key)
    if neighbors_key == key_added:
        raise ValueError(f"`neighbors_key` is {neighbors_key!r}, as is `key_added`. Change one.")
    data, source = slots.unwrap(adata, layer, use_raw, copy)
    check_neighborhood(n_neighbors, adata.n_obs, "cell")
    labels = None
    if isinstance(n_landmarks, str):
        labels, n_landmarks = slots.column("n_landmarks", n_landmarks, adata.obs, "adata.obs"), None
    with slots.advising(adata, data):
        sketch = learn_landmarks(
            data,
            labels,
            n_neighbors - 1,
            n_landmarks=n_landmarks,
            random_state=random_state,
            **options,
        )
    adata = adata.copy() if copy else adata
    own_genes = use_raw and not adata.raw.var_names.equals(adata.var_names)
    origin = sketches.Origin(data, source, options, n_neighbors, random_state, own_genes)
    slots.write(adata, sketches.to_slots(sketch, origin, key_added, neighbors_key))
    return adata if copy else None


def modules(
    adata: AnnData, *, key: str = "cometric", key_added: str = "cometric_modules", **options: Any
) -> Modules:
    """Modules of genes near one another, and the score of each cell for each module.

    Parameters
    ----------
    adata, key
        Data with metrics of :func:`learn` or :func:`landmarks`, and their ``key_added``.
    key_added
        The name under which modules are stored.
    options
        The options of :func:`cometric.modules` but ``of``.

    Returns
    -------
    The :class:`cometric.Modules`, for ``enrichment``, ``table`` and ``merge``. Written are, with
    the default ``key_added``:

    ``obsm["cometric_modules"]``
        The score of each cell for each module, a table.
    ``var["cometric_modules"]``
        The module of each gene: "0", "1" and so on, or "background". Where the metrics come from
        ``adata.raw`` and that has other genes, the column is in the table ``genes`` in ``uns``.
    ``uns["cometric_modules"]``
        ``names`` of the modules, ``genes``, a table: ``module`` and ``coherence`` of each gene, and
        a ``checksum`` of the metric.
    """
    import pandas as pd

    slots.check_key(key_added)
    if "of" in options:
        raise ValueError("`of` is not an option here: modules are those of the genes.")
    result = get.result(adata, key=key)
    found = find_modules(result, **options)
    columns = [f"module_{g}" for g in range(len(found))]
    if sketches.has_landmarks(adata, key):
        chunks = rows_of(slots.learned_from(adata, key)).chunks()
        scores = np.concatenate([found.scores(chunk) for chunk in chunks])  # of all cells
    else:
        kept = result.problem.samples.kept
        scores = np.full((len(kept), len(found)), np.nan)
        scores[kept] = found.scores()
    kept = result.problem.features.kept
    labels = np.array(["background"] * len(kept), dtype=object)
    labels[kept] = [str(g) if g != BACKGROUND else "background" for g in found.labels]
    coherence = np.full(len(kept), np.nan)
    coherence[kept] = found.coherence
    kinds = [*map(str, range(len(found))), "background"]
    genes = pd.DataFrame(
        {"module": pd.Categorical(labels, kinds), "coherence": coherence},
        index=get.names(adata, "features", key=key),
    )
    adata.obsm[key_added] = pd.DataFrame(scores, adata.obs_names, columns)
    adata.uns[key_added] = {
        "names": np.array(found.names, dtype=object),
        "genes": genes,
        "checksum": slots.checksum(result),
    }
    if "features" not in slots.read(adata, key):
        adata.var[key_added] = genes["module"].array
    return found


def rank_features(
    adata: AnnData,
    groupby: str,
    *,
    n_features: int | None = 20,
    key: str = "cometric",
    key_added: str = "cometric_ranks",
    **options: Any,
) -> DataFrame:
    """The genes nearest to each group of cells, see :func:`cometric.rank_features`.

    Parameters
    ----------
    adata, key
        As for :func:`modules`.
    groupby
        Column of ``obs``, such as clusters or cell types. After :func:`landmarks`, groups consist
        of landmarks only, with a warning about groups without any. Cells without a label (NaN) are
        left out.
    key_added
        The name under which the table is stored.
    n_features, options
        The options of :func:`cometric.rank_features`.

    Returns
    -------
    A table, also written to ``uns["cometric_ranks"]``: ``group``, ``feature``, ``distance``,
    ``times`` (mean share in the group over that in the rest, shrunk toward 1), ``inside`` and
    ``outside`` (both shares).
    """
    import pandas as pd

    slots.check_key(key_added)
    slots.check_is_anndata(adata)
    column = slots.column("groupby", groupby, adata.obs, "adata.obs")
    result = get.result(adata, key=key)
    labels = column.array  # keeps the order of categories
    if sketches.has_landmarks(adata, key):
        labels = sketches.labels_of_landmarks(adata, labels, key)
    labels = labels[result.problem.samples.kept]
    rows = ranked_features(result, labels, n_features=n_features, **options)
    table = pd.DataFrame(rows, columns=list(Ranked._fields))
    adata.uns[key_added] = table
    return table
