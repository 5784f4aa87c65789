"""Tools: modules of genes, and the genes of a group of cells, from stored metrics."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from cometric.answers.groups import Ranked
from cometric.answers.groups import rank_features as ranked_features
from cometric.answers.modules import BACKGROUND, Modules
from cometric.answers.modules import modules as find_modules
from cometric.core.arguments import suggestion
from cometric.scverse import get, sketches, slots

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

log = logging.getLogger(__name__)


def modules(
    adata: AnnData, *, key: str = "cometric", key_added: str = "cometric_modules", **options: Any
) -> Modules:
    """Modules of genes near one another, and the score of each cell for each module.

    Parameters
    ----------
    adata
        Data with metrics that :func:`learn` or :func:`landmarks` stored.
    key
        The ``key_added`` of :func:`learn`.
    key_added
        The name under which modules are stored.
    options
        All options of :func:`cometric.modules` but ``of``.

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
        scores = _scores_of_all(adata, found, key)
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
    log.info("added obsm[%r], var[%r], uns[%r]", key_added, key_added, key_added)
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
    adata
        Data with metrics that :func:`learn` or :func:`landmarks` stored.
    groupby
        Column of ``obs``, such as clusters or cell types. After :func:`landmarks`, groups consist
        of landmarks only, with a warning about groups without any. Cells without a label (NaN) are
        left out.
    n_features
        Genes of each group to list; None: all.
    key
        The ``key_added`` of :func:`learn`.
    key_added
        The name under which the table is stored.
    options
        All other options of :func:`cometric.rank_features`.

    Returns
    -------
    A table, also written to ``uns["cometric_ranks"]``: ``group``, ``feature``, ``distance``,
    ``times`` (mean share in the group over that in the rest, shrunk toward 1), ``inside`` and
    ``outside`` (both shares).
    """
    import pandas as pd

    slots.check_key(key_added)
    slots.check_is_anndata(adata)
    if not isinstance(groupby, Hashable) or groupby not in adata.obs:
        raise ValueError(
            f"`adata.obs` has no column {groupby!r}; it has {list(adata.obs)}."
            f"{suggestion(groupby, adata.obs)}"
        )
    slots.check_groups("obs", adata.obs, groupby)
    result = get.result(adata, key=key)
    labels = adata.obs[groupby].array  # keeps the order of categories
    if sketches.has_landmarks(adata, key):
        labels = sketches.labels_of_landmarks(adata, labels, key)
    labels = labels[result.problem.samples.kept]
    rows = ranked_features(result, labels, n_features=n_features, **options)
    table = pd.DataFrame(rows, columns=list(Ranked._fields))
    adata.uns[key_added] = table
    log.info("added uns[%r]", key_added)
    return table


def _scores_of_all(adata: AnnData, found: Modules, key: str) -> np.ndarray:
    """The scores of all cells, for modules learned from landmarks only."""
    params = slots.read(adata, key)["params"]
    data = slots.matrix(adata, layer=params.get("layer"), use_raw=bool(params["use_raw"]))
    scores = np.empty((adata.n_obs, len(found)))
    for rows, part in sketches.chunks(data):
        scores[rows] = found.scores(part)
    return scores
