"""Read from an AnnData what ``tl.learn`` stored in it."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.core.arguments import check_side
from cometric.core.digest import fingerprint
from cometric.core.histograms import Side
from cometric.core.inputs import BadData
from cometric.core.problem import Problem
from cometric.core.types import Matrix, Record, Status
from cometric.results.modules import BACKGROUND, Modules, assemble
from cometric.results.parameters import Parameters
from cometric.results.restoring import check_result
from cometric.results.result import Result
from cometric.scverse import sketches, slots

if TYPE_CHECKING:
    from anndata import AnnData

__all__ = ["distances", "history", "modules", "names", "result"]


def __dir__() -> list[str]:
    return __all__


def distances(
    adata: AnnData, of: str = "samples", *, key: str = "cometric"
) -> Matrix | sparse.csr_matrix:
    """The learned distances between cells, or between genes with ``of="features"``.

    After :func:`cometric.scverse.tl.landmarks`, those of each cell to its nearest neighbors.
    """
    check_side(of)
    stored = slots.read(adata, key)
    if of == "features" and "features" in stored:
        return stored["features"]["distances"]
    if of == "samples" and "landmarks" in stored:
        return sketches.graph(adata, stored, key)
    place, where = (adata.obsp, "obsp") if of == "samples" else (adata.varp, "varp")
    slot = stored["distances_key"]
    if slot not in place:
        raise slots.NotStored(f"`.{where}` no longer has {slot!r}. Learn again.")
    return place[slot]


def names(adata: AnnData, of: str = "samples", *, key: str = "cometric") -> list[str]:
    """The names of the rows of :func:`distances`."""
    if of == "samples":
        return [str(name) for name in adata.obs_names]
    stored = slots.read(adata, key)
    genes = stored["features"]["names"] if "features" in stored else adata.var_names
    return [str(name) for name in genes]


def history(adata: AnnData, *, key: str = "cometric") -> list[Record]:
    """The history of the solve, one record per iteration."""
    table = slots.read(adata, key)["history"]
    rows = zip(*(table[field] for field in Record._fields), strict=True)
    return [Record.from_row(row) for row in rows]


def modules(
    adata: AnnData, *, key: str = "cometric", modules_key: str = "cometric_modules"
) -> Modules:
    """The modules that ``tl.modules`` returned, rebuilt from ``adata``.

    ``key`` and ``modules_key`` are the ``key_added`` of ``tl.learn`` and of ``tl.modules``. Raises
    if the data or the metrics have changed since.
    """
    if modules_key not in adata.uns or "genes" not in adata.uns[modules_key]:
        raise KeyError(f"`adata` has no modules under {modules_key!r}. Run `tl.modules` first.")
    learned = result(adata, key=key)
    genes = adata.uns[modules_key]["genes"]
    kept = learned.problem.features.kept
    if len(genes) != len(kept):
        raise ValueError(
            f"`adata` has modules of {len(genes)} genes under {modules_key!r}, but metrics of "
            f"{len(kept)} under {key!r}. Run `tl.modules` again."
        )
    stored = adata.uns[modules_key].get("checksum")  # not in older files
    if stored is not None and stored != slots.checksum(learned):
        raise ValueError(
            f"`adata` has modules under {modules_key!r} of other metrics than those under {key!r}. "
            "Run `tl.modules` again."
        )
    texts = genes["module"].astype(str).to_numpy()[kept]
    labels = np.array([BACKGROUND if text == "background" else int(text) for text in texts])
    coherence = genes["coherence"].to_numpy(dtype=np.float64)[kept]
    return assemble(learned, "features", labels.astype(np.int64), coherence)


def result(adata: AnnData, *, key: str = "cometric") -> Result:
    """The result that :func:`cometric.learn` returned, rebuilt from ``adata``.

    After :func:`cometric.scverse.tl.landmarks`, the result of the landmarks. Raises if the data
    have changed since.
    """
    stored = slots.read(adata, key)
    try:
        return _rebuild(adata, stored, key)
    except (ValueError, slots.NotStored, MemoryError):
        raise
    except Exception as error:  # damaged: parts are missing, or have other types
        raise ValueError(f"The AnnData has damaged metrics under {key!r}: {error!r}.") from error


def _rebuild(adata: AnnData, stored: dict[str, Any], key: str) -> Result:
    params, landmarks = stored["params"], stored.get("landmarks")
    features = distances(adata, "features", key=key)
    samples = landmarks["distances"] if landmarks is not None else distances(adata, key=key)
    if sparse.issparse(samples) or sparse.issparse(features):
        raise ValueError(
            f"The AnnData stores only nearest neighbors under {key!r}, and a result needs all "
            "distances. Learn with a larger `max_dense`, or save the result as .npz."
        )
    if "matrix" in params["norm"]:
        raise ValueError(
            f"The norm under {key!r} was given as matrices, which an AnnData does not store. "
            "Save the result as .npz."
        )
    if landmarks is None:
        data = slots.learned_from(adata, key)
    else:
        data = sketches.read_landmarks(stored, names(adata, "features", key=key))
    changed = (
        f"The AnnData has other data than the metrics under {key!r} were learned from: samples, "
        "features or entries have changed since{}. Learn again; if later steps change `.X`, keep a "
        "copy of it in a layer and learn with `layer`."
    )
    used = {name: params[name] for name in slots.HISTOGRAMS if name in params}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # issued when learning
        try:
            problem = Problem.from_data(data, **used, fixed=str(params.get("fixed", "")))
        except BadData as error:
            faults = error.describe()
            raise ValueError(changed.format(f" (there are {faults} now)")) from error
    if fingerprint(problem) != stored["fingerprint"]:
        raise ValueError(changed.format(""))
    known = {part.name: params[part.name] for part in fields(Parameters) if part.name in params}
    parameters = Parameters.from_json(known)
    (lam, mu), (low, high) = stored["values"], stored["bracket"]
    found = Result(
        samples=_kept(samples, problem.samples),
        features=_kept(features, problem.features),
        values=(float(lam), float(mu)),
        status=Status[stored["status"]],
        history=history(adata, key=key),
        bracket=(float(low), float(high)),
        parameters=parameters,
        problem=replace(problem, formula=parameters.formula),
        change=None if "change" not in stored else float(stored["change"]),
    )
    try:
        check_result(found)
    except ValueError as error:
        raise ValueError(f"The AnnData has damaged metrics under {key!r}: {error}.") from error
    return found


def _kept(metric: Any, side: Side) -> Matrix:
    """The distances between the items that were not dropped."""
    return np.asarray(metric)[np.ix_(side.kept, side.kept)]
