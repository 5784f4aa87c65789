"""The command ``landmarks``: many samples, read from a file in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import cometric
from cometric.cli import options as o
from cometric.cli.command import command, in_bytes
from cometric.cli.console import Console, Exit
from cometric.cli.learning import (
    check_by_rows,
    check_removal,
    continue_from,
    remove_if_converged,
)
from cometric.core.inputs import BadData, Fault
from cometric.core.nearest import check_neighborhood
from cometric.files import reading, rows, writing
from cometric.files.tables import kind_of
from cometric.large.landmarks import Sketch, check_landmarks, learn_landmarks
from cometric.large.progress import remove_run

IN_PARTS = (".h5ad", ".zarr")
"""Formats that are not read whole."""

EMPTY_SAMPLES = "Remove them from the file; `drop_empty=True` leaves out features only."


@command(without=("samples", "features", "start", "random_state", "checkpoint_every"))
def landmarks(
    console: Console,
    path: o.DataInParts,
    output: Annotated[
        Path,
        o.output(
            "Output file, .h5ad: the metric of the features, and neighbors of all samples for",
            "scanpy; with the data, unless DATA is .zarr.",
        ),
    ],
    source: o.Source,
    sketched: o.Sketched,
    without_data: o.WithoutData = False,
    remove_checkpoint: o.RemoveCheckpoint = False,
    key_added: o.Key = "cometric",
    neighbors_key: o.NeighborsKey = "neighbors",
    force: o.Force = False,
    **options: Any,
) -> None:
    """Learn from some samples of DATA, and find the neighbors of all, for large files.

    Files .h5ad and .zarr are read in parts. With --checkpoint, the same command continues after an
    interruption, and writes the same file.
    """
    from cometric.scverse import sketches, slots

    writing.check(output, (".h5ad",), [output], force=force)
    slots.check_key(key_added)
    slots.check_key(neighbors_key)
    folder = options.pop("checkpoint")
    check_removal(remove_checkpoint, folder)
    with _opened(console, path, source) as (data, file):
        n, m = data.shape
        console.say(f"{n} samples, {m} features from {path}")
        chosen = sketched._asdict()
        count, k = chosen.pop("n_landmarks"), chosen.pop("n_neighbors")
        check_neighborhood(k, n, "sample")
        given = () if count is None else (count,)
        if count is not None:
            check_landmarks(count, n, "n_landmarks")
        settings: dict[str, Any] = {**in_bytes(options), **chosen, "n_neighbors": k - 1}
        try:
            sketch = learn_landmarks(
                data, *given, folder=folder, progress=console.progress, **settings
            )
        except BadData as error:
            if error.fault is Fault.EMPTY and error.row is not None:
                error = BadData("X", error.fault, error.count, EMPTY_SAMPLES, error.row)
            raise error from None
        except cometric.Interrupted as interruption:
            if folder is not None:
                interruption.args = (continue_from(folder),)
            raise
        used = {name: options[name] for name in slots.HISTOGRAMS}
        own_genes = bool(getattr(data, "own_genes", False))
        origin = sketches.Origin(data, source.matrix, used, k, sketched.random_state, own_genes)
        added = sketches.to_slots(sketch, origin, None, key_added, neighbors_key)
        _write(path, output, file, added, without_data)
    if folder is not None and remove_checkpoint:
        remove_if_converged(console, folder, sketch.result, remove_run)
    _answer(console, path, output, sketch, k)


@contextmanager
def _opened(console: Console, path: Path, source: o.Source) -> Iterator[tuple[Any, Any]]:
    """The data to learn from, and the AnnData (or its group in a file) that has their tables."""
    from cometric.scverse import slots

    check_by_rows(path, source)
    if kind_of(path) not in IN_PARTS or source.transpose:
        data = reading.read(path, transpose=source.transpose)
        matrix = slots.matrix(data, **source.matrix)
        console.use_source(path, matrix, source.transpose)
        yield matrix, data
        return
    with rows.open_store(path, **source.matrix) as store:
        console.use_source(path, store)
        yield store, store.file


def _write(
    path: Path, output: Path, file: Any, added: dict[str, dict[str, Any]], without_data: bool
) -> None:
    """Write the slots ``added``, with the data or without."""
    from cometric.scverse import sketches

    if hasattr(file, "obs_names"):  # in memory
        if without_data:
            from anndata import AnnData

            file = AnnData(obs=file.obs, var=file.var)
        sketches.write(file, added)
        writing.save_anndata(file, output)
    elif without_data or kind_of(path) != ".h5ad":
        writing.save_slots(file, output, added)
    else:
        writing.save_copy(path, output, added)


def _answer(console: Console, path: Path, output: Path, sketch: Sketch, k: int) -> None:
    near, result = sketch.neighbors, sketch.result
    facts = {
        "command": "landmarks",
        "input": str(path),
        "output": [str(output)],
        "samples": near.graph.shape[0],
        "features": len(result.features),
        "landmarks": len(result.samples),
        "n_neighbors": k,
        "proved": float(near.proved.mean()),
        "recall": near.recall,
        "checked": near.checked,
        "compared": near.compared,
        "status": result.status.name,
        "message": result.status.value,
        "converged": result.converged,
        "residual": result.residual,
        "parameters": result.parameters.to_json(),
    }
    code = Exit.CONVERGED if result.converged else Exit.NOT_CONVERGED
    console.answer(f"{sketch}\n  written to       {output}", facts, code)
