"""Tools: learn both metrics of an AnnData and store them in it; choose settings; modules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import cometric.choosing.comparison
import cometric.running.learning
from cometric.core.inputs import BadData, Fault
from cometric.core.kinds import check_count, check_number
from cometric.running.settings import DEFAULT_TAU
from cometric.scverse import slots
from cometric.scverse.tl_modules import modules, rank_features

if TYPE_CHECKING:
    from anndata import AnnData

    from cometric.choosing.choice import Choice

__all__ = ["choose", "learn", "modules", "rank_features"]


def __dir__() -> list[str]:
    return __all__


log = logging.getLogger(__name__)


def learn(
    adata: AnnData,
    eps: float = 0.1,
    tau: float | str = DEFAULT_TAU,
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
        Learn from ``adata.layers[layer]`` or ``adata.raw`` rather than ``adata.X``.
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
        subsampling, are an error unless ``drop_empty=True``; their distances are then NaN.

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
        ``bracket``, ``history`` (a table) and, with ``certify``, ``certificate``.
    """
    slots.check_key(key_added)
    check_number("max_dense", max_dense)
    check_count("n_neighbors", n_neighbors)
    data = slots.matrix(adata, layer=layer, use_raw=use_raw)
    try:
        result = cometric.running.learning.learn(data, eps, tau, **options)
    except BadData as error:
        if data is adata and error.fault is Fault.NEGATIVE:
            raise ValueError(
                f"`adata.X` has {error.describe()}, as after scaling. Pass counts or their "
                "logarithms: `layer=...`, or `use_raw=True`."
            ) from error
        if error.fault is Fault.EMPTY:
            raise ValueError(_empty_message(data, error)) from error
        raise
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
        Use ``adata.layers[layer]`` or ``adata.raw`` rather than ``adata.X``.
    key_added
        The comparison is stored under this name with ``_choice`` added.
    options
        All other options of :func:`cometric.choose`.

    Returns
    -------
    The :class:`cometric.Choice`; use it as ``cms.tl.learn(adata, **choice.settings)``. Written is,
    with the default ``key_added``:

    ``uns["cometric_choice"]``
        ``table``, ``best``, ``settings``, ``gains``, ``advice`` and ``params``.
    """
    slots.check_key(key_added)
    data = slots.matrix(adata, layer=layer, use_raw=use_raw)
    choice = cometric.choosing.comparison.choose(data, candidates, **options)
    slots.store_choice(adata, choice, key_added, {"layer": layer, "use_raw": use_raw})
    log.info("added uns[%r]", slots.choice_key(key_added))
    return choice


def _empty_message(data: Any, error: BadData) -> str:
    """The message about cells or genes without counts."""
    item, names, k = "cell", data.obs_names, error.row
    if k is None:
        item, names, k = "gene", data.var_names, error.column
    return (
        f"`adata` has {error.describe('cell', 'gene')} (first: {names[k]!r}), without counts. Pass "
        "`drop_empty=True` to leave them out, their distances are then NaN; or drop them yourself, "
        f"with `sc.pp.filter_{item}s(adata, min_counts=1)`."
    )
