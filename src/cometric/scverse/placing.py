"""Storing and reading distances of new cells (or genes) to a reference, and their labels."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.answers.result import Result
from cometric.answers.transfer import Transfer
from cometric.core.arguments import suggestion
from cometric.core.digest import digest
from cometric.core.inputs import BadData, Fault, read_matrix, read_names
from cometric.core.types import Matrix
from cometric.scverse import sketches, slots
from cometric.scverse.advice import first

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import Categorical, DataFrame


def transform_key(key: str) -> str:
    """The name under which ``uns`` describes the distances to a reference."""
    return f"{key}_transform"


def default_source(new: AnnData, params: dict[str, Any]) -> tuple[str | None, bool]:
    """The ``layer`` and ``use_raw`` of the reference; raises if ``new`` does not have them."""
    layer, use_raw = params.get("layer"), bool(params["use_raw"])
    try:
        slots.matrix(new, layer=layer, use_raw=use_raw)
    except ValueError as error:
        raise ValueError(
            f"The reference was learned from {_place(layer, use_raw)}, which `new` does not "
            "have. Pass `layer`, or `use_raw=False` for `new.X`."
        ) from error
    return layer, use_raw


def source(new: AnnData, layer: str | None, use_raw: bool, of: str) -> Any:
    """The data of ``new`` in a layer, in raw, or in ``X``."""
    data = slots.matrix(new, layer=layer, use_raw=use_raw)
    if of == "features" and len(data.var_names) != new.n_vars:
        raise ValueError(
            "`new.raw` has other genes than `new`, so `new.varm` cannot hold their distances. Pass "
            "`new.raw.to_adata()` and `use_raw=False`."
        )
    return data


def _place(layer: str | None, use_raw: bool) -> str:
    if use_raw:
        return "`raw`"
    return "`X`" if layer is None else f"the layer {layer!r}"


def checksum(data: Any, result: Result, of: str) -> str:
    """A checksum of all that distances to a reference depend on.

    These are the new data, the names by which they are matched, and the learned result.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # issued when distances are computed
        matrix = read_matrix(data, "X", least=(1, 1))
    names = read_names(data)[1 if of == "samples" else 0]
    return digest({"result": result.identity, "data": matrix, "names": names})


def advice(error: BadData, data: Any, of: str) -> str:
    """Advice on new cells without learned genes, to add to a message."""
    if of == "features" or error.fault not in (Fault.EMPTY, Fault.UNKNOWN):
        return first(error, data)
    return (
        f"{first(error, data)} In scanpy: `new = new[:, new.var_names.isin(reference.var_names)]"
        ".copy()`, then `sc.pp.filter_cells(new, min_genes=1)`."
    )


def other_names(new: AnnData, reference: AnnData, result: Result, of: str) -> str:
    """A hint at a column by which new data can be matched, if their names do not match."""
    where, bins = ("var", "features") if of == "samples" else ("obs", "samples")
    learned = set(getattr(result.problem, bins).names or ())
    table, known = getattr(new, where), getattr(reference, where)
    for column in _columns_of_names(table):
        if not learned.isdisjoint(map(str, table[column])):
            there = f"new.{where}[{column!r}]"
            return f" `{there}` has the learned names: `new.{where}_names = {there}.astype(str)`."
    for column in _columns_of_names(known):
        if not set(map(str, known[column])).isdisjoint(map(str, table.index)):
            return (
                f" `reference.{where}[{column!r}]` has the names that `new` uses: rename those of "
                "`new` by this column."
            )
    return ""


def _columns_of_names(table: DataFrame) -> list[str]:
    """The columns whose values mostly differ, as names do, and numbers of clusters do not."""
    return [column for column in table if 2 * table[column].nunique() > len(table)]


def store(
    new: AnnData,
    distances: Any,
    reference: AnnData,
    key: str,
    of: str,
    n_neighbors: int | None,
    origin: dict[str, Any],
) -> None:
    """Write distances to all items of the reference to ``obsm`` (or ``varm``), and their origin.

    ``origin`` are the ``layer`` and ``use_raw`` they were computed from, and the ``checksum``.
    """
    slot = new.obsm if of == "samples" else new.varm
    slot[slots.distances_key(key)] = distances
    known = slots.read(reference, key)
    names = slots.table(reference, of, key)[0].index
    if of == "samples" and "landmarks" in known:
        names = known["landmarks"]["names"]
    described = dict(new.uns.get(transform_key(key), {}))
    described[of] = {
        "fingerprint": known["fingerprint"],
        "names": np.array(names, dtype=object),
        "n_neighbors": len(names) if n_neighbors is None else int(n_neighbors),
        **{name: value for name, value in origin.items() if value is not None},
    }
    new.uns[transform_key(key)] = described


def stored(new: AnnData, result: Result, key: str, of: str, n_neighbors: int) -> Any:
    """The distances that :func:`store` wrote, if valid and of enough neighbors; else None.

    They are not valid if ``new``, the names of its genes or the learned metric have changed since.
    """
    described = new.uns.get(transform_key(key), {}).get(of)
    slot = new.obsm if of == "samples" else new.varm
    if described is None or slots.distances_key(key) not in slot:
        return None
    if "checksum" not in described or described["n_neighbors"] < n_neighbors:
        return None
    try:
        data = source(new, described.get("layer"), bool(described["use_raw"]), of)
        same = checksum(data, result, of) == described["checksum"]
    except ValueError:  # the layer is gone, or the data are not valid any more
        return None
    return slot[slots.distances_key(key)] if same else None


def widen(distances: Any, result: Result, of: str) -> Any:
    """Columns for all items of the reference, from those of the learned ones; NaN if dropped."""
    kept = getattr(result.problem, of).kept
    if kept.all():
        return distances
    if sparse.issparse(distances):
        columns = np.flatnonzero(kept)[distances.indices]
        parts = distances.data, columns, distances.indptr
        return sparse.csr_matrix(parts, shape=(distances.shape[0], len(kept)))
    whole: Matrix = np.full((len(distances), len(kept)), np.nan)
    whole[:, kept] = distances
    return whole


def labels(reference: AnnData, column: str, key: str, of: str) -> Categorical:
    """The labels of all cells (or genes) of the reference, or of its landmarks."""
    import pandas as pd

    table, where = slots.table(reference, of, key)
    if column not in table:
        raise ValueError(
            f"`label` is {column!r}; `reference.{where}` has {list(table)}."
            f"{suggestion(column, table)}"
        )
    slots.check_groups(where, table, column)
    values = pd.Categorical(table[column])
    if of == "samples" and sketches.has_landmarks(reference, key):
        values = values[sketches.landmark_rows(reference, key, "voting")]
    if values.isna().all():
        raise ValueError(f"`reference.{where}[{column!r}]` has no labels: all are missing.")
    return values


def store_labels(new: AnnData, answer: Transfer, known: Categorical, name: str, of: str) -> None:
    """Write labels, confidence and novelty to ``obs`` (or ``var``), with the known categories."""
    import pandas as pd

    table = new.obs if of == "samples" else new.var
    table[name] = pd.Categorical(answer.labels, known.categories, ordered=known.ordered)
    table[f"{name}_confidence"] = answer.confidence
    table[f"{name}_novelty"] = answer.novelty
