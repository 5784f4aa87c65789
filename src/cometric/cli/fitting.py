"""Commands that learn, or estimate what learning takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cometric
from cometric.cli.console import Console, Exit
from cometric.cli.loading import TABLES, Data, Output
from cometric.cli.options import borrowed, command, learning
from cometric.core.nearest import check_neighborhood
from cometric.files import reading, writing
from cometric.files.tables import kind_of
from cometric.landmarks.landmarks import learn_landmarks
from cometric.learning.settings import Settings
from cometric.results.result import Result

WHOLE = 5e8
"""Size in bytes up to which `plan` reads an .h5ad file whole."""


@command(
    *learning(),
    output="Output file. .h5ad: the data with the metrics; .npz: the complete result; .csv or "
    ".tsv (also .gz): two tables, as in x.samples.csv and x.features.csv.",
)
def learn(
    console: Console, source: Data, target: Output, key_added: str = "cometric", **options: Any
) -> Exit:
    """Learn a distance between the samples of DATA and one between its features.

    With --checkpoint, the same command continues after an interruption.
    """
    from cometric.scverse import slots

    output = target.output
    files = writing.targets(output)
    writing.check(output, (".h5ad", ".npz", *TABLES), files, force=target.force)
    slots.check_key(key_added)
    options = _checked(options)
    data, matrix = source.read(console)
    console.say(f"{data.n_obs} samples, {matrix.n_vars} features from {source.data}")
    with _interruptible(options["checkpoint"], output):
        result = cometric.learn(matrix, progress=console.progress, **options)
    if kind_of(output) == ".h5ad":
        used = {name: options[name] for name in slots.HISTOGRAMS}
        slots.store(data, result, key_added, source=source.source, options=used)
        writing.save_anndata(data, output)
    elif kind_of(output) == ".npz":
        with writing.failures(output):
            result.save(output)
    else:
        for path, side in zip(files, ("samples", "features"), strict=True):
            names = getattr(result.problem, side).item_names
            writing.save_table(path, getattr(result, side), names, names)
    last = result.history[-1] if result.history else None
    facts = {
        "samples": len(result.samples),
        "change": result.change,
        "values": None if result.problem.fixed else result.values,
        "bracket": None if result.problem.fixed else result.bracket,
        "iterations": result.iterations,
        "sweeps": last.sweeps if last else 0,
        "seconds": last.seconds if last else 0.0,
    }
    return _answer(console, "learn", source.data, files, result, str(result), facts)


@command(*learning("start", "random_state", "checkpoint", "checkpoint_every"))
def plan(console: Console, source: Data, **options: Any) -> Exit:
    """Estimate what `learn` with the same options takes: memory, iterations, time.

    The exit code is 5 if the run does not fit into memory. Large .h5ad and .zarr files are not
    read if the distances between their samples cannot fit.
    """
    options = _checked(options)
    with source.opened(console, WHOLE) as (matrix, _):
        planned = cometric.plan(matrix, progress=console.progress, **options)
    code = Exit.CONVERGED if planned.fits else Exit.DOES_NOT_FIT
    return console.answer("plan", str(planned), [source.data], [], asdict(planned), code)


@command(
    *borrowed(learn_landmarks, "n_landmarks method search max_candidates check random_state"),
    *learning("samples", "features", "start", "random_state", "checkpoint", "checkpoint_every"),
    *borrowed(learn_landmarks, "folder"),
    output="Output file, .h5ad: the metric of the features, and neighbors of all samples for "
    "scanpy; with the data, unless DATA is .zarr.",
)
def landmarks(
    console: Console,
    source: Data,
    target: Output,
    n_neighbors: int = 15,
    without_data: bool = False,
    key_added: str = "cometric",
    neighbors_key: str = "neighbors",
    **options: Any,
) -> Exit:
    """Learn from some samples of DATA, and find the neighbors of all, for large files.

    Files .h5ad and .zarr are read in parts. With --checkpoint, the same command continues after an
    interruption, and writes the same file.
    """
    from cometric.scverse import sketches, slots

    target.check(".h5ad")
    slots.check_key(key_added)
    slots.check_key(neighbors_key)
    path, output = source.data, target.output
    with source.opened(console, whole=0.0) as (matrix, file):
        console.say(f"{matrix.shape[0]} samples, {matrix.shape[1]} features from {path}")
        check_neighborhood(n_neighbors, matrix.shape[0], "sample")
        with _interruptible(options["folder"]):
            sketch = learn_landmarks(
                matrix, n_neighbors=n_neighbors - 1, progress=console.progress, **options
            )
        used = {name: options[name] for name in slots.HISTOGRAMS}
        own_genes = bool(getattr(matrix, "own_genes", False))
        seed = options["random_state"]
        origin = sketches.Origin(matrix, source.source, used, n_neighbors, seed, own_genes)
        added = sketches.to_slots(sketch, origin, key_added, neighbors_key)
        if hasattr(file, "obs_names"):  # in memory
            if without_data:
                from anndata import AnnData

                file = AnnData(obs=file.obs, var=file.var)
            slots.write(file, added)
            writing.save_anndata(file, output)
        elif without_data or kind_of(path) == ".zarr":
            writing.save_slots(file, output, added)
        else:
            writing.save_copy(path, output, added)
    near = sketch.neighbors
    facts = {
        "samples": near.graph.shape[0],
        "landmarks": len(sketch.result.samples),
        "n_neighbors": n_neighbors,
        "proved": float(near.proved.mean()),
        "recall": near.recall,
        "checked": near.checked,
        "compared": near.compared,
    }
    return _answer(console, "landmarks", path, [output], sketch.result, str(sketch), facts)


@contextmanager
def _interruptible(folder: Path | None, output: Path | None = None) -> Iterator[None]:
    """Add to an interruption how to continue from the folder, or where the partial result is.

    The partial result is saved beside the output, under another name.
    """
    try:
        yield
    except cometric.Interrupted as interruption:
        if folder is not None:
            interruption.args = (f"Run the same command again to continue from {folder}.",)
        elif output is not None:
            stem = output.name[: output.name.lower().rindex(kind_of(output))]
            partial = output.with_name(f"{stem}.partial.npz")
            with writing.failures(partial):
                interruption.result.save(partial)
            interruption.args = (f"The partial result is in {partial}.",)
        raise


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with given metrics read from their files; raises before the data are read."""
    for side in ("samples", "features"):
        if options.get(side) is not None:
            options[side] = reading.read(options[side])
    Settings(**options)
    return options


def _answer(
    console: Console,
    name: str,
    path: Path,
    files: list[Path],
    result: Result,
    text: str,
    facts: dict[str, Any],
) -> Exit:
    """Show what was learned; the exit code tells whether it converged."""
    facts |= {
        "features": len(result.features),
        "status": result.status.name,
        "message": result.status.value,
        "converged": result.converged,
        "residual": result.residual,
        "parameters": result.parameters.to_json(),
    }
    text += f"\n  written to       {', '.join(map(str, files))}"
    code = Exit.CONVERGED if result.converged else Exit.NOT_CONVERGED
    return console.answer(name, text, [path], files, facts, code)
