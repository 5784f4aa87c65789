"""The data of a run that is resumed, read again for a result that holds them.

A checkpoint holds histograms, and an .h5ad file the data they were made of. So `learn` notes in
its checkpoints which file it read and how, and `resume` reads it again, if the output needs it.
What is read must give the histograms of the checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cometric.cli import files
from cometric.cli.console import Console
from cometric.core.digest import fingerprint
from cometric.core.problem import Problem
from cometric.saving.folder import CheckpointError
from cometric.saving.saved import source as stored_source

if TYPE_CHECKING:
    from anndata import AnnData


class Original(NamedTuple):
    """Data, how they were read, how histograms were made of them, and the name of the metrics."""

    data: AnnData
    source: dict[str, Any]  # layer, use_raw
    used: dict[str, Any]  # normalization_steps, smoothing, drop_empty
    key: str


def note(
    path: Path, transpose: bool, source: dict[str, Any], used: dict[str, Any], key: str
) -> dict[str, Any]:
    """What to keep in checkpoints, so that :func:`read_again` can."""
    place = os.fspath(path.absolute())
    return {"path": place, "transpose": transpose, **source, **used, "key": key}


def read_again(
    folder: Path, path: Path | None, given: dict[str, Any], read_limit: float, console: Console
) -> Original:
    """The data that the run in ``folder`` learns from.

    ``path`` and what is ``given`` (and not None or False) count more than what was noted.
    """
    noted, arrays = stored_source(folder)
    if not arrays:
        raise CheckpointError(
            f"`{folder}` holds no checkpoint. Start with learn(X, ..., checkpoint=...)."
        )
    how = {**noted, **{name: value for name, value in given.items() if value not in (None, False)}}
    path = path or _noted_path(folder, noted)
    from cometric.scverse import slots

    console.use_source(path)
    data = files.read(path, bool(how.get("transpose")), read_limit)
    source: dict[str, Any] = {"layer": how.get("layer"), "use_raw": bool(how.get("use_raw"))}
    matrix = slots.matrix(data, **source)
    console.use_source(path, matrix, bool(how.get("transpose")))
    known = Problem.from_arrays(arrays)
    used: dict[str, Any] = {
        "normalization_steps": int(how.get("normalization_steps", 1)),
        "smoothing": known.smoothing,
        "drop_empty": not (known.samples.kept.all() and known.features.kept.all()),
    }
    # Empty items that the run did not have are no reason for another message.
    found = Problem.from_data(matrix, **{**used, "drop_empty": True})
    if not _same(found, known):
        raise ValueError(
            f"`{path}` does not hold the data that `{folder}` was begun with: samples, features or "
            "entries differ. Pass the original file as --data, read as it was then (--layer, "
            "--use-raw, --transpose, --normalization-steps), or write .npz, .csv or .tsv."
        )
    return Original(data, source, used, str(how.get("key", "cometric")))


def _noted_path(folder: Path, noted: dict[str, Any]) -> Path:
    cure = "Pass the file as --data, or write .npz, .csv or .tsv, which need no data."
    if "path" not in noted:
        raise ValueError(f"`{folder}` does not say which file its data came from. {cure}")
    path = Path(noted["path"])
    if not path.exists():
        raise ValueError(f"`{path}`, which `{folder}` was begun with, does not exist. {cure}")
    return path


def _same(one: Problem, other: Problem) -> bool:
    return fingerprint(one) == fingerprint(other) and all(
        np.array_equal(getattr(one, side).kept, getattr(other, side).kept)
        for side in ("samples", "features")
    )
