"""The plots of :mod:`cometric.plot`, of metrics stored in an AnnData.

Each draws on ``ax``, or on a new figure, and returns the Axes; none shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric import plot
from cometric.core.arguments import suggestion
from cometric.results.modules import tabulate
from cometric.scverse import get, sketches, slots

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes
    from pandas import Series

    from cometric.core.types import Index
    from cometric.results.result import Result

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
    slots.check_name("groupby", groupby)
    result = get.result(adata, key=key)
    labels = _column(adata, result, of, groupby, key)
    return plot.distances(result, of, labels, ax=ax, vmax=vmax)


def embedding(
    adata: AnnData,
    of: str = "samples",
    method: str = "umap",
    color: str | None = None,
    *,
    mark: int | str | Sequence[int | str] = (),
    n_names: int | None = None,
    random_state: int | None = 0,
    key: str = "cometric",
    modules_key: str = "cometric_modules",
    ax: Axes | None = None,
) -> Axes:
    """A map of the cells, or of the genes, made from their learned distances alone.

    After ``tl.landmarks`` the cells are the landmarks; ``sc.pl.umap`` shows all.

    Parameters
    ----------
    color
        A column of ``obs`` (or of ``var`` for genes); for cells also the name of a gene, in the
        learned data or else in ``adata.raw``, or of a module, such as "module_0".
        ``modules_key``, the ``key_added`` of ``tl.modules``, colors each gene by its module, and
        each cell by the module with the largest score.
    mark, n_names, method, random_state
        See :func:`cometric.plot.embedding`.
    """
    slots.check_name("color", color)
    result = get.result(adata, key=key)
    colors: Any = None
    if color is not None and color == modules_key and color in adata.uns:
        colors = get.modules(adata, key=key, modules_key=modules_key)
    elif color is not None:
        colors = _color(adata, result, of, color, key, modules_key)
    return plot.embedding(
        result,
        of,
        method,
        random_state=random_state,
        ax=ax,
        mark=mark,
        n_names=n_names,
        color=colors,
    )


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
    slots.check_name("groupby", groupby)
    if key not in adata.obsm or key not in adata.uns:
        raise KeyError(f"`adata` has no modules under {key!r}. Run `tl.modules` first.")
    column = slots.column("groupby", groupby, adata.obs, "adata.obs")
    scores = np.asarray(adata.obsm[key])
    scored = ~np.isnan(scores).any(axis=1)
    labels = column.array[scored]
    return plot.modules(tabulate(scores[scored], adata.uns[key]["names"], labels), ax=ax)


def _column(adata: AnnData, result: Result, of: str, name: str | None, key: str) -> Any:
    """A column of ``obs`` (or ``var``), without cells (or genes) that were dropped."""
    if name is None:
        return None
    table, where = slots.table(adata, of, key)
    column = slots.column("groupby", name, table, f"adata.{where}")
    return column.iloc[_places(adata, result, of, key)]


def _places(adata: AnnData, result: Result, of: str, key: str) -> Index:
    """The rows of ``obs`` (or ``var``) in the result: those not dropped, or the landmarks."""
    kept = np.flatnonzero(getattr(result.problem, of).kept)
    if of == "samples" and sketches.has_landmarks(adata, key):
        rows: Index = np.asarray(sketches.landmark_rows(adata, key, "coloring"))[kept]
        return rows
    return kept


def _color(
    adata: AnnData, result: Result, of: str, name: str, key: str, modules_key: str
) -> Series:
    """A column of ``obs`` or ``var``; for cells also the values of a gene or of a module."""
    import pandas as pd

    table, where = slots.table(adata, of, key)
    rows = _places(adata, result, of, key)
    if of == "samples" and name not in table:
        data = slots.learned_from(adata, key)
        for place in (data, adata.raw):
            genes = [] if place is None else [str(gene) for gene in place.var_names]
            if name in genes:
                column = place.X[:, [genes.index(name)]]
                dense = column.toarray() if sparse.issparse(column) else np.asarray(column)
                return pd.Series(dense[rows, 0].astype(np.float64), name=name)
        scores = adata.obsm.get(modules_key)
        if isinstance(scores, pd.DataFrame) and name in scores:
            return scores[name].iloc[rows]
        raise ValueError(
            f"`color` is {name!r}, which is not a column of `adata.obs` ({list(table)}), nor among "
            f"the {data.n_vars} genes learned from, nor a gene of `adata.raw`, nor a module under "
            f"{modules_key!r}.{suggestion(name, [*table, *data.var_names])}"
        )
    return slots.column("color", name, table, f"adata.{where}", groups=False).iloc[rows]
