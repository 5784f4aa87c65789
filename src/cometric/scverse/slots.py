"""Where and how a result is stored in an AnnData."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.certificates.certificate import Certificate
from cometric.certificates.diagnosis import Diagnosis
from cometric.certificates.lifting import LiftCheck
from cometric.core.arguments import suggestion
from cometric.core.counts import are_logarithms, is_whole
from cometric.core.digest import digest, fingerprint
from cometric.core.histograms import Side
from cometric.core.inputs import BadData, Fault
from cometric.core.nearest import nearest, nearest_stored, neighbor_matrix
from cometric.core.text import storable
from cometric.core.types import Matrix, Record
from cometric.core.warn import warn
from cometric.files.rows import Named, check_choice
from cometric.learning.run import MANY
from cometric.results.result import Result
from cometric.selection.choice import Choice

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame, Series

MAX_DENSE = 10_000
"""Up to this many cells (or genes) all distances are stored; 10,000 take 0.8 GB."""

NEIGHBORS_STORED = 100
"""Neighbors stored per cell (or gene), if there are more than ``MAX_DENSE``."""

COUNTS, X = "counts", "X"
"""The layer that has counts by convention, and the name that stands for ``.X``."""

SCALED = " Learn before scaling, or keep a copy of the data in a layer."

HISTOGRAMS = ("normalization_steps", "smoothing", "drop_empty")
"""Options of ``learn`` that determine the histograms."""


class NotStored(KeyError):
    """An AnnData lacks the requested entry; the message says what to do."""


def distances_key(key: str) -> str:
    """The name of both distance matrices, in ``obsp`` and in ``varp``."""
    return f"{key}_distances"


def check_key(key: Any) -> None:
    """Raise unless h5ad files can hold this name; a slash would make a nested group."""
    if not isinstance(key, str) or not key or "/" in key or storable(key) != key:
        raise ValueError(
            f"`key_added` is {key!r}; pass a name, without '/', NUL and lone surrogates."
        )


def check_name(argument: str, value: Any) -> None:
    """Raise unless ``value`` can name a column: lists, and columns themselves, cannot."""
    if not isinstance(value, Hashable):
        raise ValueError(
            f"`{argument}` is of class {type(value).__name__}; pass the name of one column."
        )


def check_groups(where: str, table: DataFrame, name: str) -> None:
    """Raise if a column has no labels, or real numbers, which would each be a group."""
    import pandas as pd

    if table[name].isna().all():
        raise ValueError(f"`.{where}[{name!r}]` has no labels: all are missing.")
    if pd.api.types.is_float_dtype(table[name]):
        raise ValueError(
            f"`.{where}[{name!r}]` has real numbers, not groups. Pass a column of labels, or "
            "make it one: `.astype('category')`."
        )


def column(argument: str, name: Any, table: DataFrame, where: str, groups: bool = True) -> Series:
    """A column of a table, which messages call ``where``; of labels if ``groups``."""
    check_name(argument, name)
    if name not in table:
        raise ValueError(
            f"`{argument}` is {name!r}; `{where}` has {list(table)}.{suggestion(name, table)}"
        )
    if groups:
        check_groups(where.partition(".")[2], table, name)
    return table[name]


def check_copy(adata: AnnData, copy: bool, name: str = "adata") -> None:
    """Raise if a copy of a backed AnnData is requested."""
    check_is_anndata(adata, name)
    if copy and adata.isbacked:
        raise ValueError(f"`copy` is True, but `{name}` is backed. Pass `copy=False`.")


def check_is_anndata(adata: Any, name: str = "adata") -> None:
    """Raise unless this has the tables of an AnnData."""
    if hasattr(adata, "obs_names") and hasattr(adata, "uns"):
        return
    if isinstance(adata, str | os.PathLike):
        remedy = "read the file first, with `anndata.read_h5ad`"
    else:
        remedy = "pass an AnnData, or use the functions of `cometric` for other data"
    raise ValueError(f"`{name}` is of class {type(adata).__name__}; {remedy}.")


def table(adata: AnnData, of: str, key: str) -> tuple[DataFrame, str]:
    """The table of the cells, or of the genes that were learned, and its name in ``adata``."""
    if of == "samples":
        return adata.obs, "obs"
    raw = read(adata, key)["params"]["use_raw"]
    return (adata.raw.var, "raw.var") if raw else (adata.var, "var")


def unwrap(
    adata: AnnData, layer: str | None, use_raw: bool, copy: bool = False
) -> tuple[Any, dict[str, Any]]:
    """The data to learn from, as :func:`matrix`, and ``params``: the layer and ``use_raw``.

    If ``X`` has logarithms of the layer "counts", that layer is used: distances learned from counts
    are better than those from their logarithms (docs/choosing.md).
    """
    check_copy(adata, copy)
    if layer is None and not use_raw and COUNTS in adata.layers:
        if is_whole(adata.layers[COUNTS]) and are_logarithms(adata):
            warn(f"Using the counts in `.layers[{COUNTS!r}]`; pass `layer={X!r}` for `.X`.")
            layer = COUNTS
    elif layer == X and X not in adata.layers:
        layer = None
    data = matrix(adata, layer=layer, use_raw=use_raw)
    return data, {"layer": layer, "use_raw": use_raw}


def matrix(adata: AnnData, *, layer: str | None = None, use_raw: bool = False) -> Any:
    """Some data of an AnnData: something with ``X``, ``obs_names`` and ``var_names``."""
    check_is_anndata(adata)
    layers = [name for name in adata.layers if name is not None]  # anndata 0.13 lists X as None
    if use_raw or layer is not None:
        check_choice(layer, use_raw, layers, adata.raw is not None)
        if use_raw:
            return adata.raw
        return Named(adata.layers[layer], adata.obs_names, adata.var_names)
    if adata.X is None:
        way = f"Pass `layer`, one of {layers}." if layers else "Set it, or add a layer."
        raise ValueError(f"`.X` is None. {way}")
    return adata


def learned_from(adata: AnnData, key: str) -> Any:
    """The data that stored metrics were learned from, as :func:`matrix`; landmarks are a part."""
    params = read(adata, key)["params"]
    return matrix(adata, layer=params.get("layer"), use_raw=bool(params["use_raw"]))


@contextmanager
def advising(adata: AnnData, data: Any) -> Iterator[None]:
    """Add advice to errors about ``data``, which is a part of ``adata``."""
    try:
        yield
    except BadData as error:
        advice = first_names(error, data)
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


def first_names(error: BadData, data: Any) -> str:
    """The names of the first faulty row and column, unless the message has them."""
    if error.label is not None:
        return ""
    rows = [] if error.row is None else [data.obs_names[error.row]]
    columns = [] if error.column is None else [data.var_names[error.column]]
    return f" The first is {', '.join(map(repr, rows + columns))}."


def unscaled(data: Any) -> str:
    """A hint at other data, which may not be scaled, if this is an AnnData that has some."""
    if not hasattr(data, "layers"):
        return ""
    places = [f"`layer={name!r}`" for name in data.layers if name is not None]
    places += ["`use_raw=True`"] if data.raw is not None else []
    return f" Other data are there: pass {' or '.join(places)}." if places else ""


def given_metric(adata: AnnData, side: str, key: str, use_raw: bool) -> Any:
    """The distances between cells in ``obsp``, or between genes in ``varp``, under this name."""
    where = "obsp" if side == "samples" else "varp"
    place = getattr(adata, where)
    if key not in place:
        raise ValueError(f"`{side}` is {key!r}; `adata.{where}` has {list(place)}.")
    if side == "features" and use_raw and not adata.raw.var_names.equals(adata.var_names):
        raise ValueError(
            "`features` is the name of an array in `adata.varp`, but `adata.raw` has other genes. "
            "Pass the distances between those as a matrix."
        )
    return place[key]


def store(
    adata: AnnData,
    result: Result,
    key: str,
    *,
    source: dict[str, Any],
    options: dict[str, Any],
    certificate: Certificate | Diagnosis | LiftCheck | None = None,
    max_dense: int = MAX_DENSE,
) -> None:
    """Write ``result`` to ``obsp``, ``varp`` and ``uns``, in types that h5ad files can hold."""
    genes = None
    if source["use_raw"] and not adata.raw.var_names.equals(adata.var_names):
        genes = adata.raw.var_names
        adata.varp.pop(distances_key(key), None)
    written = to_slots(result, key, source, options, genes, max_dense)
    if certificate is not None:
        stored = {**_plain(asdict(certificate)), "text": str(certificate)}
        written["uns"][key]["certificate"] = stored
    samples = _stored_distances("cells", result.problem.samples, result.samples, max_dense)
    written["obsp"] = {distances_key(key): samples}
    write(adata, written)


def to_slots(
    result: Result,
    key: str,
    source: dict[str, Any],
    options: dict[str, Any],
    genes: Iterable[str] | None,
    max_dense: int = MAX_DENSE,
) -> dict[str, dict[str, Any]]:
    """What is written of a result, by slot, but for the distances between cells.

    ``genes`` are the names of those in raw, if ``X`` has others: ``varp`` cannot hold them.
    """
    import pandas as pd

    used = {name: options[name] for name in HISTOGRAMS if name in options}
    used |= {"fixed": result.problem.fixed} if result.problem.fixed else {}
    params = {**result.parameters.to_json(), **source, **used}
    features = _stored_distances("genes", result.problem.features, result.features, max_dense)
    stored = {
        "params": {name: value for name, value in params.items() if value is not None},
        "distances_key": distances_key(key),
        "values": np.array(result.values),
        "bracket": np.array(result.bracket),
        "status": result.status.name,
        "message": result.status.value,
        "converged": result.converged,
        "residual": result.residual,
        **({} if result.change is None else {"change": result.change}),
        "history": pd.DataFrame(result.history, columns=list(Record._fields)),
        "fingerprint": fingerprint(result.problem),
    }
    if genes is None:
        return {"varp": {distances_key(key): features}, "uns": {key: stored}}
    stored["features"] = {"names": np.array(list(genes), dtype=object), "distances": features}
    return {"varp": {}, "uns": {key: stored}}


def write(adata: AnnData, written: dict[str, dict[str, Any]]) -> None:
    """Assign values by slot and name."""
    for where, items in written.items():
        for name, value in items.items():
            getattr(adata, where)[name] = value


def store_choice(adata: AnnData, choice: Choice, key: str, source: dict[str, Any]) -> None:
    """Write ``choice`` to ``uns``, in types that h5ad files can hold."""
    import pandas as pd

    params = {
        "n_samples": choice.n_samples,
        "n_features": choice.n_features,
        "n_splits": choice.n_splits,
        "n_neighbors": choice.n_neighbors,
        **source,
    }
    adata.uns[f"{key}_choice"] = {
        "table": pd.DataFrame(list(choice.table)).set_index("name"),
        "best": choice.best,
        "settings": {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in choice.settings.items()
        },
        "picked": choice.picked or "",
        "advice": choice.advice,
        "params": {name: value for name, value in params.items() if value is not None},
    }


def read(adata: AnnData, key: str) -> dict[str, Any]:
    """``uns[key]`` as :func:`store` wrote it."""
    check_is_anndata(adata)
    stored = adata.uns.get(key)
    if not isinstance(stored, dict) or "fingerprint" not in stored:
        raise NotStored(
            f"`.uns` has no metrics under {key!r}. Run `learn` first, or pass the `key` that it "
            "was given as `key_added`."
        )
    return stored


def checksum(result: Result) -> str:
    """A checksum of the distances between genes, and of the data they were learned from."""
    data = np.array(fingerprint(result.problem))
    return digest({"data": data, "distances": np.asarray(result.features)})


def _stored_distances(
    items: str, side: Side, distances: Matrix, max_dense: int
) -> Matrix | sparse.csr_matrix:
    """The matrix to store: NaN for dropped items, sparse above ``max_dense``."""
    distances = np.asarray(distances)
    if not side.kept.all():
        whole = np.full((len(side.kept), len(side.kept)), np.nan)
        whole[np.ix_(side.kept, side.kept)] = distances
        distances = whole
    n = len(distances)
    if n <= max_dense:
        return distances
    count = min(NEIGHBORS_STORED, n - 1)
    warn(
        f"{n} {items} are more than `max_dense` = {max_dense}: only the distances to the {count} "
        "nearest are stored, as a sparse graph."
    )
    return neighbor_matrix(*nearest(distances, count, skip_self=True), n)


def nearest_cells(distances: Any, count: int, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Indices and distances of the ``count`` nearest cells, from a full matrix or a graph."""
    values = distances.data if sparse.issparse(distances) else distances
    if np.isnan(values).any():
        raise ValueError(
            "Samples without counts have distances NaN. Leave them out: in Python by `adata = "
            f"adata[~np.isnan(adata.obsp[{distances_key(key)!r}]).all(axis=1)]`, in a shell by "
            "a .csv or .tsv table as output."
        )
    if not sparse.issparse(distances):
        return nearest(distances, count, skip_self=True)
    sizes = np.diff(distances.indptr)
    if sizes.min() < count:
        raise ValueError(
            f"`n_neighbors` is {count + 1}, but only the {sizes.min()} nearest of each cell are "
            "stored. Pass fewer, or run `landmarks` with a larger `n_neighbors`."
        )
    return nearest_stored(distances, count)


def _plain(value: Any) -> Any:
    """Nested dictionaries, arrays, numbers and strings, without None."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return np.array(value) if isinstance(value, tuple | list) else value
