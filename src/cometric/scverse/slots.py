"""Where and how a result is stored in an AnnData."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.answers.result import Result
from cometric.certificates.certificate import Certificate
from cometric.certificates.diagnosis import Diagnosis
from cometric.certificates.lifting import LiftCheck
from cometric.choosing.choice import Choice
from cometric.core.counts import are_logarithms, is_whole
from cometric.core.digest import digest, fingerprint
from cometric.core.histograms import Side
from cometric.core.nearest import nearest, nearest_stored, neighbor_matrix
from cometric.core.text import storable
from cometric.core.types import Matrix, Record
from cometric.core.warn import warn

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import DataFrame

MAX_DENSE = 10_000
"""Up to this many cells (or genes) all distances are stored; 10,000 take 0.8 GB."""

NEIGHBORS_STORED = 100
"""Neighbors stored per cell (or gene), if there are more than ``MAX_DENSE``."""

COUNTS, X = "counts", "X"
"""The layer that has counts by convention, and the name that stands for ``.X``."""

HISTOGRAMS = ("normalization_steps", "smoothing", "drop_empty")
"""Options of ``learn`` that determine the histograms."""


class NotStored(KeyError):
    """An AnnData lacks the requested entry; the message says what to do."""


def distances_key(key: str) -> str:
    """The name of both distance matrices, in ``obsp`` and in ``varp``."""
    return f"{key}_distances"


def choice_key(key: str) -> str:
    """The name of a comparison of settings, in ``uns``."""
    return f"{key}_choice"


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


def check_copy(adata: AnnData, copy: bool, name: str = "adata") -> None:
    """Raise if a copy of a backed AnnData is requested."""
    if copy and getattr(adata, "isbacked", False):
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


def source_of(adata: AnnData, layer: str | None, use_raw: bool) -> str | None:
    """The layer to learn from: as passed, or "counts" if ``X`` has their logarithms.

    Distances learned from counts are better than those from their logarithms (docs/choosing.md).
    """
    check_is_anndata(adata)
    if layer is not None or use_raw or COUNTS not in adata.layers:
        return None if layer == X and X not in adata.layers else layer
    if not is_whole(adata.layers[COUNTS]) or not are_logarithms(adata):
        return None
    warn(f"Using the counts in `.layers[{COUNTS!r}]`; pass `layer={X!r}` for `.X`.")
    return COUNTS


def matrix(adata: AnnData, *, layer: str | None = None, use_raw: bool = False) -> Any:
    """The data to learn from: something with ``X``, ``obs_names`` and ``var_names``."""
    check_is_anndata(adata)
    if layer is not None and use_raw:
        raise ValueError("`layer` and `use_raw` exclude one another; pass one of them.")
    if use_raw:
        if adata.raw is None:
            raise ValueError("`use_raw` is True, but `.raw` is None. Leave out `use_raw`.")
        return adata.raw
    if layer is None:
        if adata.X is None:
            layers = list(adata.layers)
            way = f"Pass `layer`, one of {layers}." if layers else "Set it, or add a layer."
            raise ValueError(f"`.X` is None. {way}")
        return adata
    layers = [name for name in adata.layers if name is not None]  # anndata 0.13 lists X as None
    if not layers:
        raise ValueError(f"`layer` is {layer!r}, but there are no layers. Leave out `layer`.")
    if layer not in layers:
        raise ValueError(f"`layer` is {layer!r}; `.layers` has {layers}.")
    from anndata import AnnData

    return AnnData(adata.layers[layer], obs=adata.obs[[]], var=adata.var[[]])


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
    n_neighbors: int = NEIGHBORS_STORED,
) -> None:
    """Write ``result`` to ``obsp``, ``varp`` and ``uns``, in types that h5ad files can hold."""
    limits = max_dense, n_neighbors
    stored = describe(result, key, source=source, options=options)
    if certificate is not None:
        stored["certificate"] = {**_plain(asdict(certificate)), "text": str(certificate)}
    samples = stored_distances("cells", result.problem.samples, result.samples, *limits)
    adata.obsp[distances_key(key)] = samples
    features = stored_distances("genes", result.problem.features, result.features, *limits)
    store_features(adata, features, key, stored, bool(source.get("use_raw")))
    adata.uns[key] = stored


def describe(
    result: Result, key: str, *, source: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The entries of ``uns[key]`` for a result, except distances."""
    import pandas as pd

    used = {name: options[name] for name in HISTOGRAMS if name in options}
    used |= {"fixed": result.problem.fixed} if result.problem.fixed else {}
    params = {**result.parameters.to_json(), **source, **used}
    return {
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


def store_features(
    adata: AnnData, features: Any, key: str, stored: dict[str, Any], use_raw: bool
) -> None:
    """Write the distances between genes to ``varp``, or to ``stored`` if raw has other genes."""
    slot = distances_key(key)
    if use_raw and not adata.raw.var_names.equals(adata.var_names):
        stored["features"] = {
            "names": adata.raw.var_names.to_numpy(dtype=object),
            "distances": features,
        }
        adata.varp.pop(slot, None)
    else:
        adata.varp[slot] = features


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
    adata.uns[choice_key(key)] = {
        "table": pd.DataFrame(list(choice.table)).set_index("name"),
        "best": choice.best,
        "settings": {name: _storable_option(value) for name, value in choice.settings.items()},
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


def places(adata: AnnData, key: str) -> str:
    """The slots that were written, for a log."""
    slot = distances_key(key)
    features = f"uns[{key!r}]['features']" if "features" in adata.uns[key] else f"varp[{slot!r}]"
    return f"obsp[{slot!r}], {features}, uns[{key!r}]"


def checksum(result: Result) -> str:
    """A checksum of the distances between genes, and of the data they were learned from."""
    return digest(
        {
            "data": np.array(fingerprint(result.problem)),
            "distances": np.asarray(result.features),
        }
    )


def stored_distances(
    items: str, side: Side, distances: Matrix, max_dense: int, n_neighbors: int
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
    warn(
        f"{n} {items} are more than `max_dense` = {max_dense}: only the distances to the "
        f"{min(n_neighbors, n - 1)} nearest are stored, as a sparse graph."
    )
    return neighbor_matrix(*nearest(distances, min(n_neighbors, n - 1), skip_self=True), n)


def nearest_cells(
    adata: AnnData, distances: Any, count: int, key: str
) -> tuple[np.ndarray, np.ndarray]:
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
        more = (
            ", or run `landmarks` with a larger `n_neighbors`"
            if "landmarks" in read(adata, key)
            else ", or learn with a larger `n_neighbors` or `max_dense`"
        )
        raise ValueError(
            f"`n_neighbors` is {count + 1}, but only the {sizes.min()} nearest of each cell are "
            f"stored. Pass fewer{more}."
        )
    return nearest_stored(distances, count)


def _storable_option(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _plain(value: Any) -> Any:
    """Nested dictionaries, arrays, numbers and strings, without None."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return np.array(value) if isinstance(value, tuple | list) else value
