"""Errors about invalid data in terms of an AnnData: cells, genes and where they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cometric.core.inputs import BadData, Fault
from cometric.running.memory import MANY

if TYPE_CHECKING:
    from anndata import AnnData


@contextmanager
def in_terms_of_adata(
    adata: AnnData, data: Any, *, can_drop: tuple[str, ...] = ("cell", "gene")
) -> Iterator[None]:
    """Within it, errors about ``data``, which is a part of ``adata``, name cells and genes.

    ``can_drop`` are the items that ``drop_empty=True`` leaves out.
    """
    try:
        yield
    except BadData as error:
        if data is adata and error.fault is Fault.NEGATIVE:
            raise ValueError(
                f"`adata.X` has {error.describe()}, as after scaling. Pass counts or their "
                f"logarithms: {_unscaled(adata)}."
            ) from error
        if error.fault is Fault.EMPTY:
            raise ValueError(_empty_message(data, error, can_drop)) from error
        if error.name != "X" or error.row is None or error.column is None:
            raise
        cell, gene = data.obs_names[error.row], data.var_names[error.column]
        raise ValueError(error.message("adata", f"cell {cell!r}, gene {gene!r}")) from error


def _unscaled(adata: AnnData) -> str:
    """Where data that were not scaled may be."""
    places = [f"`layer={name!r}`" for name in adata.layers if name is not None]
    places += ["`use_raw=True`"] if adata.raw is not None else []
    return " or ".join(places) or (
        "learn before scaling, or keep a copy, `adata.layers['log'] = adata.X.copy()`, and pass "
        "`layer='log'`"
    )


def _empty_message(data: Any, error: BadData, can_drop: tuple[str, ...]) -> str:
    """The message about cells or genes without counts."""
    item, names, k = "cell", data.obs_names, error.row
    if k is None:
        item, names, k = "gene", data.var_names, error.column
    drop = (
        "Pass `drop_empty=True` to leave them out, their distances are then NaN; or drop them "
        "yourself, with"
    )
    many = ""
    if item == "gene" and data.shape[1] >= MANY:
        many = (
            f" All {data.shape[1]:,} genes take {8e-9 * data.shape[1] ** 2:.1f} GB a matrix: "
            "select the variable ones, by `sc.pp.highly_variable_genes(adata)` after "
            "`sc.pp.log1p`, and pass `adata[:, adata.var.highly_variable]`."
        )
    return (
        f"`adata` has {error.describe('cell', 'gene')} (first: {names[k]!r}), without counts. "
        f"{drop if item in can_drop else 'Drop them with'} "
        f"`sc.pp.filter_{item}s(adata, {'min_genes' if item == 'cell' else 'min_cells'}=1)`.{many}"
    )
