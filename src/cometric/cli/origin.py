"""The data of a run, read again by `resume` for an .h5ad output.

A checkpoint holds histograms, but an .h5ad file has the data they were made of. So `learn` stores
in its checkpoints which file it read and how, and `resume` reads it again if the output needs it.
The histograms of the file must be those of the checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cometric.cli.console import Console
from cometric.core.digest import fingerprint
from cometric.core.problem import Problem
from cometric.files import reading
from cometric.saving.folder import CheckpointError
from cometric.saving.saved import read_origin

if TYPE_CHECKING:
    from anndata import AnnData


class Original(NamedTuple):
    """The data of a run, how they were read, options of the histograms, key of the metrics."""

    data: AnnData
    source: dict[str, Any]  # layer, use_raw
    options: dict[str, Any]  # normalization_steps, smoothing, drop_empty
    key: str


def note(
    path: Path, transpose: bool, source: dict[str, Any], options: dict[str, Any], key: str
) -> dict[str, Any]:
    """The entry for checkpoints that :func:`read_again` needs."""
    absolute = os.fspath(path.absolute())
    return {"path": absolute, "transpose": transpose, **source, **options, "key": key}


def read_again(
    folder: Path, path: Path | None, changes: dict[str, Any], console: Console
) -> Original:
    """The data that the run in ``folder`` was started with.

    ``path`` and ``changes`` (unless None or False) replace the stored values.
    """
    stored, arrays = read_origin(folder)
    if not arrays:
        raise CheckpointError(
            f"`{folder}` holds no checkpoint. Start with learn(X, ..., checkpoint=...)."
        )
    given = {name: value for name, value in changes.items() if value not in (None, False)}
    settings = {**stored, **given}
    path = path or _stored_path(folder, stored)
    from cometric.scverse import slots

    console.use_source(path)
    data = reading.read(path, transpose=bool(settings.get("transpose")))
    source: dict[str, Any] = {
        "layer": settings.get("layer"),
        "use_raw": bool(settings.get("use_raw")),
    }
    matrix = slots.matrix(data, **source)
    console.use_source(path, matrix, bool(settings.get("transpose")))
    known = Problem.from_arrays(arrays)
    options: dict[str, Any] = {
        "normalization_steps": int(settings.get("normalization_steps", 1)),
        "smoothing": known.smoothing,
        "drop_empty": not (known.samples.kept.all() and known.features.kept.all()),
    }
    # Empty items that the run did not have get the message below, not one about empty items.
    problem = Problem.from_data(matrix, **{**options, "drop_empty": True})
    if not _same(problem, known):
        raise ValueError(
            f"`{path}` does not hold the data that `{folder}` was started with: samples, features "
            "or entries differ. Pass the original file as --data, read in the same way (--layer, "
            "--use-raw, --transpose, --normalization-steps), or write .npz, .csv or .tsv."
        )
    return Original(data, source, options, str(settings.get("key", "cometric")))


def _stored_path(folder: Path, stored: dict[str, Any]) -> Path:
    remedy = "Pass the file as --data, or write .npz, .csv or .tsv, which need no data."
    if "path" not in stored:
        raise ValueError(f"`{folder}` does not say which file its data came from. {remedy}")
    path = Path(stored["path"])
    if not path.exists():
        raise ValueError(f"`{path}`, which `{folder}` was started with, does not exist. {remedy}")
    return path


def _same(one: Problem, other: Problem) -> bool:
    return fingerprint(one) == fingerprint(other) and all(
        np.array_equal(getattr(one, side).kept, getattr(other, side).kept)
        for side in ("samples", "features")
    )
