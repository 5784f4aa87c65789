"""Tools: distances of new cells (or genes) to a reference, and labels carried over to them."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.core.arguments import check_options, check_side
from cometric.core.inputs import BadData, Fault, Mask
from cometric.core.matching import NothingInCommon
from cometric.core.nearest import check_neighbors, default_neighbors
from cometric.core.types import Matrix
from cometric.landmarks.neighbors import has_bounds, nearest_known
from cometric.results.result import Result
from cometric.results.transfer import Transfer
from cometric.results.transfer import transfer_labels as vote
from cometric.scverse import get, sketches, slots

if TYPE_CHECKING:
    from anndata import AnnData
    from pandas import Categorical, DataFrame


def transform(
    new: AnnData,
    reference: AnnData,
    of: str = "samples",
    *,
    n_neighbors: int | None = 15,
    layer: str | None = None,
    use_raw: bool | None = None,
    key: str = "cometric",
    copy: bool = False,
    **options: Any,
) -> AnnData | None:
    """Distances of the cells of ``new`` to those of ``reference``, under its learned metrics.

    Parameters
    ----------
    new
        New cells. Genes are matched by name, in any order: learned genes that ``new``
        lacks count as zero, genes that were not learned are ignored, with a warning.
    reference
        Data with metrics from :func:`learn` or :func:`landmarks`; they do not change.
    of
        "samples" for new cells; "features" for new genes, measured in the cells of ``reference``,
        which are then matched by name.
    n_neighbors
        Number of nearest cells of the reference whose distances are stored; None for all, as a
        dense matrix.
    layer, use_raw
        Use ``new.layers[layer]`` or ``new.raw``; ``use_raw=False`` alone means ``new.X``. By
        default those that the reference was learned from.
    key
        The ``key_added`` of :func:`learn`; also the prefix of what is written.
    copy
        Return a copy rather than writing to ``new``.
    options
        ``device``, ``n_threads`` and ``progress``, see :meth:`cometric.Result.transform`.

    Returns
    -------
    None, or the copy. Written are, with the default ``key``:

    ``obsm["cometric_distances"]``
        Cells of ``new`` by cells of ``reference`` (after :func:`landmarks`, by landmarks), sparse,
        the nearest only; ``varm`` for ``of="features"``.
    ``uns["cometric_transform"]``
        For "samples" and "features": ``names`` of the reference, ``n_neighbors``, the
        ``fingerprint`` of the learned data, ``layer`` and ``use_raw`` of ``new``.
    """
    result = _check(new, reference, of, key, copy)
    new = new.copy() if copy else new
    _store_distances(new, reference, result, of, key, n_neighbors, layer, use_raw, options)
    return new if copy else None


def transfer_labels(
    new: AnnData,
    reference: AnnData,
    label: str,
    of: str = "samples",
    *,
    n_neighbors: int | None = None,
    key: str = "cometric",
    key_added: str | None = None,
    copy: bool = False,
    **options: Any,
) -> AnnData | None:
    """Labels for the cells of ``new``, by a vote of their nearest cells of ``reference``.

    Parameters
    ----------
    new, reference, of, key, copy
        As for :func:`transform`, which is called first.
    label
        A column of ``reference.obs`` (of ``reference.var`` for ``of="features"``). Cells without a
        label there vote for none, which lowers the confidence near them.
    n_neighbors
        Number of cells that vote, see :func:`cometric.transfer_labels`: by default 15, or all
        others of a small reference.
    key_added
        Name of the column to write; by default ``key`` and ``label``, "cometric_cell_type".
    options
        ``layer``, ``use_raw``, ``device``, ``n_threads`` and ``progress`` of :func:`transform`.

    Returns
    -------
    None, or the copy. Written are, with the label "cell_type", what :func:`transform` writes and:

    ``obs["cometric_cell_type"]``
        The labels, with the categories of the reference.
    ``obs["cometric_cell_type_confidence"]``
        Probability that the label is right, estimated by leaving out each cell of the reference.
    ``obs["cometric_cell_type_novelty"]``
        Near 1 for cells unlike all those of the reference, whatever their confidence; see
        :class:`cometric.Transfer`.
    ``uns["cometric_cell_type_colors"]``
        The colors of the reference, if it has some.
    """
    slots.check_name("label", label)
    name = f"{key}_{label}" if key_added is None else key_added
    slots.check_key(name)
    result = _check(new, reference, of, key, copy)
    labels = _labels(reference, label, key, of)
    kept = getattr(result.problem, of).kept
    n_neighbors = default_neighbors(n_neighbors, int(kept.sum()) - 1)
    check_neighbors(n_neighbors, int(kept.sum()) - 1)
    new = new.copy() if copy else new
    source = options.pop("layer", None), options.pop("use_raw", None)
    _store_distances(new, reference, result, of, key, n_neighbors, *source, options)
    distances = (new.obsm if of == "samples" else new.varm)[slots.distances_key(key)]
    answer = vote(
        distances[:, kept],
        labels[kept].astype(object),
        n_neighbors,
        within=getattr(result, of),
    )
    store_labels(new, answer, labels, name, of)
    if of == "samples" and f"{label}_colors" in reference.uns:
        new.uns[f"{name}_colors"] = reference.uns[f"{label}_colors"].copy()
    return new if copy else None


def _check(new: AnnData, reference: AnnData, of: str, key: str, copy: bool) -> Result:
    """The result stored in the reference, after checks of both."""
    check_side(of)
    slots.check_copy(new, copy, "new")
    slots.check_is_anndata(reference, "reference")
    return get.result(reference, key=key)


def _store_distances(
    new: AnnData,
    reference: AnnData,
    result: Result,
    of: str,
    key: str,
    n_neighbors: int | None,
    layer: str | None,
    use_raw: bool | None,
    options: dict[str, Any],
) -> None:
    """Compute the distances of ``new`` to the reference, and write them, as :func:`transform`."""
    check_options(options, signature(result.transform).parameters, "transform")
    device = options.pop("device", "cpu")
    layer, use_raw = _source(new, reference, of, key, layer, use_raw)
    data = slots.matrix(new, layer=layer, use_raw=use_raw)
    try:
        on_cpu = str(device) == "cpu"
        if n_neighbors is not None and of == "samples" and has_bounds(result) and on_cpu:
            distances = nearest_known(result, data, n_neighbors, **options)
        else:
            options |= {"of": of, "n_neighbors": n_neighbors, "device": device}
            distances = result.transform(data, **options)
    except NothingInCommon as error:
        raise ValueError(f"{error}{_other_names(new, reference, result, of)}") from error
    except BadData as error:
        raise ValueError(f"{error}{_advice(error, data, of)}") from error
    (new.obsm if of == "samples" else new.varm)[slots.distances_key(key)] = _widen(
        distances, getattr(result.problem, of).kept
    )
    known = slots.read(reference, key)
    names = slots.table(reference, of, key)[0].index
    if of == "samples" and "landmarks" in known:
        names = known["landmarks"]["names"]
    described = {
        "fingerprint": known["fingerprint"],
        "names": np.array(names, dtype=object),
        "n_neighbors": len(names) if n_neighbors is None else int(n_neighbors),
        "use_raw": use_raw,
        **({} if layer is None else {"layer": layer}),
    }
    name = f"{key}_transform"
    new.uns[name] = {**new.uns.get(name, {}), of: described}


def _source(
    new: AnnData, reference: AnnData, of: str, key: str, layer: str | None, use_raw: bool | None
) -> tuple[str | None, bool]:
    """The layer and ``use_raw`` of ``new``; by default those of the reference, if it has them."""
    if layer is None and use_raw is None:
        params = slots.read(reference, key)["params"]
        layer, use_raw = params.get("layer"), bool(params["use_raw"])
        try:
            slots.matrix(new, layer=layer, use_raw=use_raw)
        except ValueError as error:
            place = "`raw`" if use_raw else "`X`" if layer is None else f"the layer {layer!r}"
            raise ValueError(
                f"The reference was learned from {place}, which `new` does not have. Pass `layer`, "
                "or `use_raw=False` for `new.X`."
            ) from error
    if of == "features" and use_raw and new.raw is not None and new.raw.n_vars != new.n_vars:
        raise ValueError(
            "`new.raw` has other genes than `new`, so `new.varm` cannot hold their distances. Pass "
            "`new.raw.to_adata()` and `use_raw=False`."
        )
    return layer, bool(use_raw)


def _advice(error: BadData, data: Any, of: str) -> str:
    """Advice on new cells without learned genes, to add to a message."""
    if of == "features" or error.fault not in (Fault.EMPTY, Fault.UNKNOWN):
        return slots.first_names(error, data)
    return (
        f"{slots.first_names(error, data)} In scanpy: `new = new[:, new.var_names.isin("
        "reference.var_names)].copy()`, then `sc.pp.filter_cells(new, min_genes=1)`."
    )


def _other_names(new: AnnData, reference: AnnData, result: Result, of: str) -> str:
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


def _widen(distances: Any, kept: Mask) -> Any:
    """Columns for all items of the reference, from those of the ones ``kept``; NaN for others."""
    if kept.all():
        return distances
    if sparse.issparse(distances):
        columns = np.flatnonzero(kept)[distances.indices]
        parts = distances.data, columns, distances.indptr
        return sparse.csr_matrix(parts, shape=(distances.shape[0], len(kept)))
    whole: Matrix = np.full((len(distances), len(kept)), np.nan)
    whole[:, kept] = distances
    return whole


def _labels(reference: AnnData, column: str, key: str, of: str) -> Categorical:
    """The labels of all cells (or genes) of the reference, or of its landmarks."""
    import pandas as pd

    table, where = slots.table(reference, of, key)
    values = pd.Categorical(slots.column("label", column, table, f"reference.{where}"))
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
