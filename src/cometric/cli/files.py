"""Reading and writing of data and results by commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cometric
from cometric.answers.result import Result
from cometric.cli.options import Source
from cometric.core.inputs import counted, read_matrix, read_names
from cometric.core.matching import find_bins, select
from cometric.core.names import quoted, suggestion
from cometric.core.warn import warn
from cometric.files import reading, writing
from cometric.files.tables import kind_of

if TYPE_CHECKING:
    from anndata import AnnData


TABLES = (".csv", ".tsv")
"""Endings of tables."""


def read_given(options: dict[str, Any]) -> dict[str, AnnData]:
    """The metrics that are given as files, by the name of their option."""
    paths = {side: options.get(side) for side in ("samples", "features")}
    return {side: reading.read(path) for side, path in paths.items() if path is not None}


def write(
    result: Result,
    path: Path,
    data: AnnData,
    key: str,
    source: dict[str, Any],
    options: dict[str, Any],
) -> list[Path]:
    """Write a result in the format given by the suffix of ``path``; returns the files written.

    An .h5ad file also has the ``data``, the ``source`` (layer, use_raw) they were read from, and
    the ``options`` of the histograms.
    """
    if kind_of(path) != ".h5ad":
        return write_alone(result, path)
    from cometric.scverse import slots

    slots.store(data, result, key, source=source, options=options)
    writing.save_anndata(data, path)
    return writing.targets(path)


def write_alone(result: Result, path: Path) -> list[Path]:
    """Write a result without the data; returns the files written."""
    if kind_of(path) == ".npz":
        with writing.failures(path):
            result.save(path)
    else:
        _save_tables(result, path)
    return writing.targets(path)


def _save_tables(result: Result, output: Path) -> None:
    """Write two tables, of samples and of features, with names of rows and columns."""
    for path, side in zip(writing.targets(output), ("samples", "features"), strict=True):
        names = getattr(result.problem, side).item_names
        writing.save_table(path, np.asarray(getattr(result, side)), names, names)


def load(path: Path, key: str) -> tuple[Result, AnnData | None]:
    """The result in a file that ``learn`` wrote, and its data, if the file has them."""
    if kind_of(path) == ".h5ad":
        from cometric.scverse import get

        data = reading.read(path)
        return get.result(data, key=key), data
    if kind_of(path) != ".npz":
        raise ValueError(f"`{path}` is not a result. Pass a .npz or .h5ad file of cometric learn.")
    if not path.exists():
        raise reading.missing(path)
    return cometric.load(path), None


def read_new(
    result: Result,
    path: Path,
    source: Source,
    drop_empty: bool,
    reference: AnnData | None,
    key: str,
) -> tuple[AnnData, Any]:
    """New data, and the matrix of them to use: that which the result was learned from, if there.

    ``reference`` are the data of the result, if its file has them; ``drop_empty`` leaves out
    samples without mass on anything learned.
    """
    from cometric.scverse import slots

    data = reading.read(path, transpose=source.transpose)
    chosen = source.matrix
    if reference is not None and kind_of(path) == ".h5ad":
        chosen = _like_learned(slots.read(reference, key)["params"], data, chosen, path)
    if drop_empty:
        data = _without_unknown(result, data, chosen, path)
    return data, slots.matrix(data, **chosen)


def _like_learned(
    params: dict[str, Any], data: AnnData, given: dict[str, Any], path: Path
) -> dict[str, Any]:
    """The matrix learned from, unless another was chosen or the data do not have it: a warning."""
    layer, use_raw = params.get("layer"), bool(params["use_raw"])
    learned: dict[str, Any] = {"layer": layer, "use_raw": use_raw}
    if given == learned:
        return given
    has_it = layer in data.layers if layer is not None else use_raw and data.raw is not None
    if given == {"layer": None, "use_raw": False} and has_it:
        return learned
    places = _place(**learned), _place(**given)
    warn(f"The result was learned from {places[0]}; `{path}` is read from {places[1]}.")
    return given


def _without_unknown(result: Result, data: AnnData, source: dict[str, Any], path: Path) -> AnnData:
    """New samples, except those that have no mass on anything learned; warns of these."""
    from cometric.scverse import slots

    matrix = slots.matrix(data, **source)
    rows, columns = read_names(matrix)
    counts, features = read_matrix(matrix, "X", least=(1, 1)), result.problem.features
    places = find_bins(
        counts.shape[1], columns, features.kept, features.names, "samples", across=rows
    )
    known = np.diff(select(counts, places).indptr) > 0
    if known.all() or not known.any():
        return data
    names = quoted([str(name) for name in data.obs_names[~known]])
    left_out = counted(int((~known).sum()), "sample")
    warn(f"`{path}` has {left_out} without mass on anything learned, left out: {names}.")
    return data[known].copy()


def _place(layer: str | None, use_raw: bool) -> str:
    if use_raw:
        return ".raw"
    return ".X" if layer is None else f"the layer {layer!r}"


def labels_of(
    result: Result,
    data: AnnData | None,
    labels: str,
    path: Path,
    key: str,
    table: Path | None = None,
    option: str = "labels",
) -> Any:
    """A column of ``.obs`` of an .h5ad result, or of a ``table``, without dropped samples.

    Of a result of landmarks, the labels of these. Messages name the ``option``.
    """
    if table is not None:
        names = result.problem.samples.item_names
        return np.array(reading.read_labels(table, labels, names, option), dtype=object)
    if data is None or labels not in data.obs:
        columns = "" if data is None else ", ".join(map(repr, data.obs))
        available = f"has {columns}" if columns else "has no columns of labels"
        available += (
            "; pass a table by --labels-from, or learn from, and write, .h5ad"
            if data is None
            else ""
        )
        meant = suggestion(labels, () if data is None else data.obs)
        raise ValueError(f"`{option}` is {labels!r}; `{path}` {available}.{meant}")
    from cometric.scverse import sketches

    values = data.obs[labels].array  # which has the order of categories
    if sketches.has_landmarks(data, key):
        values = values[sketches.landmark_rows(data, key, "comparing labels")]
    return values[result.problem.samples.kept]


def check_groups(data: AnnData, labels: str, key: str) -> None:
    """Raise if a column has real numbers, each a group; warn about groups without a landmark."""
    import pandas as pd

    from cometric.scverse import sketches

    if data.obs[labels].isna().all():
        raise ValueError(f"`labels` is {labels!r}, which has no labels: all are missing.")
    if pd.api.types.is_float_dtype(data.obs[labels]):
        raise ValueError(f"`labels` is {labels!r}, a column of real numbers; pass one of labels.")
    if sketches.has_landmarks(data, key):
        sketches.labels_of_landmarks(data, data.obs[labels].array, key)


def save_partial(interruption: cometric.Interrupted, output: Path) -> None:
    """Save the partial result beside ``output``, under another name: it is not a final result."""
    stem = output.name[: output.name.lower().rindex(kind_of(output))]
    partial = output.with_name(f"{stem}.partial.npz")
    with writing.failures(partial):
        interruption.result.save(partial)
    interruption.args = (f"The partial result is in {partial}.",)
