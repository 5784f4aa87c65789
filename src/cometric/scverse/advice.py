"""Advice on invalid data in an AnnData, added to the error messages of the core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cometric.core.inputs import BadData, Fault
from cometric.running.run import MANY

SCALED = " Learn before scaling, or keep a copy of the data in a layer."


@contextmanager
def advising(adata: Any, data: Any) -> Iterator[None]:
    """Add advice to errors about ``data``, which is a part of ``adata``."""
    try:
        yield
    except BadData as error:
        advice = first(error, data)
        if error.fault is Fault.NEGATIVE and data is adata:
            advice += unscaled(adata) or SCALED
        elif error.fault is Fault.EMPTY and error.row is not None:
            advice += " In scanpy: `sc.pp.filter_cells(adata, min_genes=1)`."
        elif error.fault is Fault.EMPTY:
            advice += " In scanpy: `sc.pp.filter_genes(adata, min_cells=1)`."
            if data.shape[1] >= MANY:
                advice += (
                    f" All {data.shape[1]:,} genes take {8e-9 * data.shape[1] ** 2:.1f} GB a "
                    "matrix: select the variable ones, by `sc.pp.highly_variable_genes(adata)` "
                    "after `sc.pp.log1p`, and pass `adata[:, adata.var.highly_variable]`."
                )
        raise ValueError(f"{error}{advice}") from error


def first(error: BadData, data: Any) -> str:
    """The names of the first faulty row and column, unless the message has them."""
    if error.label is not None:
        return ""
    rows = [] if error.row is None else [data.obs_names[error.row]]
    columns = [] if error.column is None else [data.var_names[error.column]]
    return f" The first is {', '.join(map(repr, rows + columns))}."


def unscaled(adata: Any) -> str:
    """A hint at other data in an AnnData, which may not be scaled; "" if there are none."""
    places = [f"`layer={name!r}`" for name in getattr(adata, "layers", ()) if name is not None]
    places += ["`use_raw=True`"] if getattr(adata, "raw", None) is not None else []
    return f" Other data are there: pass {' or '.join(places)}." if places else ""
