"""Tools: learn both metrics of an AnnData, choose settings, modules, new cells and their labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import cometric.answers.transfer
import cometric.choosing.comparison
import cometric.running.learning
from cometric.core.arguments import check_count, check_number, check_options, check_side
from cometric.core.inputs import BadData
from cometric.core.matching import NothingInCommon
from cometric.core.nearest import check_neighbors, default_neighbors
from cometric.large.neighbors import has_bounds, nearest_known
from cometric.running.settings import AUTO
from cometric.scverse import get, placing, slots
from cometric.scverse.advice import advising
from cometric.scverse.tl_landmarks import landmarks
from cometric.scverse.tl_modules import modules, rank_features

if TYPE_CHECKING:
    from anndata import AnnData

    from cometric.choosing.choice import Choice

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


log = logging.getLogger(__name__)


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
    n_neighbors: int = slots.NEIGHBORS_STORED,
    copy: bool = False,
    **options: Any,
) -> AnnData | None:
    """Learn a distance between the cells of ``adata`` and one between its genes.

    Parameters
    ----------
    adata
        Nonnegative data, cells by genes: counts, or their logarithms ``log1p``.
    eps, tau
        Entropic regularization and weight of the norm, see :func:`cometric.learn`.
    layer, use_raw
        Learn from ``adata.layers[layer]`` or ``adata.raw``. By default from ``adata.X``,
        as with ``layer="X"``; but if it holds logarithms of counts, and ``layers["counts"]`` whole
        numbers, from the latter, with a warning.
    key_added
        The name under which results are stored.
    certify
        Also store a certificate; takes a few more transport sweeps.
    max_dense, n_neighbors
        Above ``max_dense`` cells (or genes) only the distances to the ``n_neighbors`` nearest are
        stored, as a sparse graph, with a warning.
    copy
        Return a copy rather than writing to ``adata``.
    options
        All other options of :func:`cometric.learn`. Cells and genes without counts, common after
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
    check_count("n_neighbors", n_neighbors)
    check_options(options, signature(cometric.running.learning.learn).parameters, "learn")
    slots.check_copy(adata, copy)
    layer = slots.source_of(adata, layer, use_raw)
    data = slots.matrix(adata, layer=layer, use_raw=use_raw)
    given = {
        side: slots.given_metric(adata, side, options[side], use_raw)
        for side in ("samples", "features")
        if isinstance(options.get(side), str)
    }
    with advising(adata, data):
        result = cometric.running.learning.learn(data, eps, tau, **options | given)
    adata = adata.copy() if copy else adata
    slots.store(
        adata,
        result,
        key_added,
        source={"layer": layer, "use_raw": use_raw},
        options=options,
        certificate=result.certify(options.get("n_threads")) if certify else None,
        max_dense=max_dense,
        n_neighbors=n_neighbors,
    )
    log.info("added %s", slots.places(adata, key_added))
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
    adata
        Nonnegative data, cells by genes: counts, or their logarithms ``log1p``.
    candidates
        Options of :func:`learn` by name, see :func:`cometric.choose`.
    layer, use_raw
        As for :func:`learn`.
    key_added
        The comparison is stored under this name with ``_choice`` added.
    options
        All other options of :func:`cometric.choose`.

    Returns
    -------
    The :class:`cometric.Choice`; use it as ``cms.tl.learn(adata, **choice.settings)``. Written is,
    with the default ``key_added``:

    ``uns["cometric_choice"]``
        ``table``, ``best``, ``picked`` (empty: cannot decide), ``settings``, ``advice`` and
        ``params``.
    """
    slots.check_key(key_added)
    check_options(options, signature(cometric.choosing.comparison.choose).parameters, "choose")
    layer = slots.source_of(adata, layer, use_raw)
    data = slots.matrix(adata, layer=layer, use_raw=use_raw)
    with advising(adata, data):
        choice = cometric.choosing.comparison.choose(data, candidates, **options)
    source = "use_raw=True" if use_raw else f"{layer=}" if layer is not None else ""
    choice = replace(choice, call=f"cms.tl.learn(adata{', ' * bool(source)}{source})")
    slots.store_choice(adata, choice, key_added, {"layer": layer, "use_raw": use_raw})
    log.info("added uns[%r]", slots.choice_key(key_added))
    return choice


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
        "samples" for new cells; "features" for new genes, measured in the cells of ``reference``:
        cells are then matched by name.
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
        ``fingerprint`` of the learned data, ``layer`` and ``use_raw`` of ``new``, and a
        ``checksum`` of the new data and the learned result.
    """
    check_side(of)
    slots.check_is_anndata(new, "new")
    slots.check_is_anndata(reference, "reference")
    slots.check_copy(new, copy, "new")
    result = get.result(reference, key=key)
    check_options(options, signature(result.transform).parameters, "transform")
    device = options.pop("device", "cpu")
    params = slots.read(reference, key)["params"]
    if layer is None and use_raw is None:
        layer, use_raw = placing.default_source(new, params)
    data = placing.source(new, layer, bool(use_raw), of)
    try:
        on_cpu = str(device) == "cpu"
        if n_neighbors is not None and of == "samples" and has_bounds(result) and on_cpu:
            distances = nearest_known(result, data, n_neighbors, **options)
        else:
            options |= {"of": of, "n_neighbors": n_neighbors, "device": device}
            distances = result.transform(data, **options)
    except NothingInCommon as error:
        hint = placing.other_names(new, reference, result, of)
        raise ValueError(f"{error}{hint}") from error
    except BadData as error:
        raise ValueError(f"{error}{placing.advice(error, data, of)}") from error
    origin = {
        "layer": layer,
        "use_raw": bool(use_raw),
        "checksum": placing.checksum(data, result, of),
    }
    new = new.copy() if copy else new
    distances = placing.widen(distances, result, of)
    placing.store(new, distances, reference, key, of, n_neighbors, origin)
    place = "obsm" if of == "samples" else "varm"
    log.info("added %s[%r], uns[%r]", place, slots.distances_key(key), placing.transform_key(key))
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
        As for :func:`transform`, which is called unless ``new`` already has these distances, and
        its data, the names of its genes and the learned metric are unchanged since.
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
    None, or the copy. Beside what :func:`transform` writes, with the label "cell_type":

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
    check_side(of)
    slots.check_name("label", label)
    name = f"{key}_{label}" if key_added is None else key_added
    slots.check_key(name)
    slots.check_is_anndata(new, "new")
    slots.check_is_anndata(reference, "reference")
    slots.check_copy(new, copy, "new")
    result = get.result(reference, key=key)
    labels = placing.labels(reference, label, key, of)
    kept = getattr(result.problem, of).kept
    n_neighbors = default_neighbors(n_neighbors, int(kept.sum()) - 1)
    check_neighbors(n_neighbors, int(kept.sum()) - 1)
    new = new.copy() if copy else new
    chosen = options.get("layer") is not None or options.get("use_raw") is not None
    if chosen or placing.stored(new, result, key, of, n_neighbors) is None:
        transform(new, reference, of, n_neighbors=n_neighbors, key=key, **options)
    distances = (new.obsm if of == "samples" else new.varm)[slots.distances_key(key)]
    answer = cometric.answers.transfer.transfer_labels(
        distances[:, kept],
        labels[kept].astype(object),
        n_neighbors,
        within=getattr(result, of),
    )
    placing.store_labels(new, answer, labels, name, of)
    if of == "samples" and f"{label}_colors" in reference.uns:
        new.uns[f"{name}_colors"] = reference.uns[f"{label}_colors"].copy()
    return new if copy else None
