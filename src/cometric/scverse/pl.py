"""The plots of :mod:`cometric.plot`, of metrics stored in an AnnData.

Each draws on ``ax``, or on a new figure, and returns the Axes; none shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cometric import plot
from cometric.answers.modules import tabulate
from cometric.scverse import get, slots

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

    from cometric.answers.result import Result

__all__ = ["changes", "convergence", "distances", "embedding", "flows", "modules", "nearest"]


def __dir__() -> list[str]:
    return __all__


def convergence(
    adata: AnnData, against: str = "iteration", *, key: str = "cometric", ax: Axes | None = None
) -> Axes:
    """The residual against "iteration", "sweeps" or "seconds", and the tolerance."""
    return plot.convergence(get.result(adata, key=key), against=against, ax=ax)


def distances(
    adata: AnnData,
    of: str = "samples",
    groupby: str | None = None,
    *,
    vmax: float | None = None,
    key: str = "cometric",
    ax: Axes | None = None,
) -> Axes:
    """The learned distances in the order of a clustering, grouped by the column ``groupby``.

    Colors end at ``vmax``; by default outliers are clipped, 1 shows all distances.
    """
    result = get.result(adata, key=key)
    labels = _column(adata, result, of, groupby, key)
    return plot.distances(result, of, labels, ax=ax, vmax=vmax)


def embedding(
    adata: AnnData,
    of: str = "samples",
    method: str = "umap",
    color: str | None = None,
    *,
    mark: Sequence[int | str] = (),
    random_state: int | None = 0,
    key: str = "cometric",
    ax: Axes | None = None,
) -> Axes:
    """A map of the cells, or of the genes, made from their learned distances alone."""
    result = get.result(adata, key=key)
    labels = _column(adata, result, of, color, key)
    return plot.embedding(result, of, method, labels, random_state, ax, mark=mark)


def nearest(
    adata: AnnData,
    gene: int | str,
    k: int = 10,
    *,
    key: str = "cometric",
    ax: Axes | None = None,
) -> Axes:
    """The k genes nearest to one, and their distances to it."""
    return plot.nearest(get.result(adata, key=key), gene, k, ax=ax)


def flows(
    adata: AnnData,
    i: int | str,
    j: int | str,
    top: int = 20,
    *,
    key: str = "cometric",
    ax: Axes | None = None,
) -> Axes:
    """The transport plan from cell i to cell j: net changes, and the costliest flows."""
    return plot.flows(get.result(adata, key=key), i, j, top, ax=ax)


def changes(
    adata: AnnData,
    i: int | str,
    j: int | str,
    top: int = 10,
    *,
    of: str = "samples",
    key: str = "cometric",
    ax: Axes | None = None,
) -> Axes:
    """The genes that lose or gain the most mass from cell i to cell j, and how far it moves.

    With ``of="features"``: the cells that do so from gene i to gene j.
    """
    return plot.changes(get.result(adata, key=key), i, j, top, of=of, ax=ax)


def modules(
    adata: AnnData, groupby: str, *, key: str = "cometric_modules", ax: Axes | None = None
) -> Axes:
    """The mean score of each module of genes in each group of cells, a heat map.

    ``groupby`` is a column of ``obs``, ``key`` the ``key_added`` of ``tl.modules``.
    """
    if key not in adata.obsm or key not in adata.uns:
        raise KeyError(f"`adata` has no modules under {key!r}. Run `tl.modules` first.")
    if groupby not in adata.obs:
        raise ValueError(f"`adata.obs` has no column {groupby!r}; it has {list(adata.obs)}.")
    scores = np.asarray(adata.obsm[key])
    scored = ~np.isnan(scores).any(axis=1)
    labels = adata.obs[groupby].to_numpy()[scored]
    return plot.modules(tabulate(scores[scored], adata.uns[key]["names"], labels), ax=ax)


def _column(adata: AnnData, result: Result, of: str, name: str | None, key: str) -> Any:
    """A column of ``obs`` (or ``var``), without cells (or genes) that were dropped."""
    if name is None:
        return None
    params = slots.read(adata, key)["params"]
    genes, where = (adata.raw.var, "raw.var") if params["use_raw"] else (adata.var, "var")
    table, where = (adata.obs, "obs") if of == "samples" else (genes, where)
    if name not in table:
        raise ValueError(f"`adata.{where}` has no column {name!r}; it has {list(table)}.")
    return table[name].to_numpy()[getattr(result.problem, of).kept]
