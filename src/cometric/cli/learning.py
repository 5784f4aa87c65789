"""Commands that learn: ``learn``, ``resume``, ``plan`` and a demonstration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import cometric
from cometric.answers.result import Result
from cometric.cli import files, origin
from cometric.cli import options as o
from cometric.cli.command import command, in_bytes
from cometric.cli.console import Console, Exit
from cometric.core.nearest import nearest_to
from cometric.files import reading, rows, writing
from cometric.files.tables import kind_of
from cometric.saving.checkpoint import noting

if TYPE_CHECKING:
    from anndata import AnnData

WHOLE = 5e8
"""Size in bytes up to which `plan` reads an .h5ad file whole."""

RESULTS = (".h5ad", ".npz", *files.TABLES)

MARKERS = {
    "CD3D": "T cells",
    "CD79A": "B cells",
    "LYZ": "monocytes",
    "S100A8": "CD14+ monocytes",
}
"""Marker genes of the demonstration, and the cells they mark."""

GENES = 6
"""Genes shown near each of them."""


@command()
def learn(
    console: Console,
    path: o.Data,
    output: Annotated[
        Path,
        o.output(
            "Output file. .h5ad: the data with the metrics; .npz: the complete result; .csv or",
            ".tsv (also .gz): two tables, as in x.samples.csv and x.features.csv.",
        ),
    ],
    source: o.Source,
    remove_checkpoint: o.RemoveCheckpoint = False,
    key_added: o.Key = "cometric",
    force: o.Force = False,
    **options: Any,
) -> None:
    """Learn a distance between the samples of DATA and one between its features."""
    from cometric.scverse import slots

    writing.check(output, RESULTS, writing.targets(output), force=force)
    slots.check_key(key_added)
    checkpoint = options["checkpoint"]
    check_removal(remove_checkpoint, checkpoint)
    data, matrix = read_source(console, path, source)
    console.say(f"{data.n_obs} samples, {matrix.n_vars} features from {path}")
    given = files.read_given(options)
    histogram_options = {name: options[name] for name in slots.HISTOGRAMS}
    note = origin.note(path, source.transpose, source.matrix, histogram_options, key_added)
    try:
        with noting(note):
            result = cometric.learn(matrix, progress=console.progress, **in_bytes(options) | given)
    except cometric.Interrupted as interruption:
        if checkpoint is None:
            files.save_partial(interruption, output)
        else:
            interruption.args = (continue_from(checkpoint),)
        raise
    written = files.write(result, output, data, key_added, source.matrix, histogram_options)
    if checkpoint is not None and remove_checkpoint:
        remove_if_converged(console, checkpoint, result, cometric.remove_checkpoint)
    _answer(console, "learn", path, result, written)


def read_source(console: Console, path: Path, source: o.Source) -> tuple[AnnData, Any]:
    """The data in a file, and the matrix to learn from."""
    from cometric.scverse import slots

    data = reading.read(path, transpose=source.transpose)
    matrix = slots.matrix(data, **source.matrix)
    console.use_source(path, matrix, source.transpose)
    return data, matrix


def check_by_rows(path: Path, source: o.Source) -> None:
    """Raise if the data should be transposed, and are in a format that is read by rows."""
    if kind_of(path) == ".zarr" and source.transpose:
        raise ValueError("`transpose` is not for .zarr files, which are read by rows.")


def check_removal(remove_checkpoint: bool, folder: Path | None) -> None:
    """Raise if checkpoints should be removed, and there are none."""
    if remove_checkpoint and folder is None:
        raise ValueError("`remove_checkpoint` needs a folder. Pass `checkpoint` as well.")


def continue_from(folder: Path) -> str:
    """What to do after an interruption."""
    return f"Run the same command again to continue from {folder}."


def remove_if_converged(
    console: Console, folder: Path, result: Result, remove: Callable[[Path], None]
) -> None:
    """Delete the checkpoints of a converged run; failures are warnings, the result is written."""
    if not result.converged:
        console.say(f"The checkpoints in {folder} are not removed: the run has not converged.")
        return
    try:
        remove(folder)
    except (OSError, ValueError) as problem:
        console.warn(f"The checkpoints in {folder} are not removed: {problem}")


class OriginalData(NamedTuple):
    """Options for reading the data of a run again, where they differ from those of the run."""

    data: o.OriginalData = None
    layer: o.Layer = None
    use_raw: o.UseRaw = False
    transpose: o.Transpose = False
    normalization_steps: o.OtherNormalizationSteps = None
    key: o.OtherKey = None


@command()
def resume(
    console: Console,
    checkpoint: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of `cometric learn --checkpoint`.")
    ],
    output: Annotated[
        Path,
        o.output(
            "Output file, in any format of `cometric learn`. For .h5ad, the data are read again",
            "from the file that the run began with, or from --data.",
        ),
    ],
    original: OriginalData,
    max_iter: o.OtherMaxIter = None,
    n_threads: o.Threads = None,
    checkpoint_every: o.CheckpointEvery = 300.0,
    remove_checkpoint: o.RemoveCheckpoint = False,
    force: o.Force = False,
) -> None:
    """Continue a run from its checkpoints, to the end."""
    from cometric.scverse import slots

    writing.check(output, RESULTS, writing.targets(output), force=force)
    data = None
    if kind_of(output) == ".h5ad":
        changes = original._asdict()
        data = origin.read_again(checkpoint, changes.pop("data"), changes, console)
        slots.check_key(data.key)
    elif original.data is not None:
        raise ValueError(f"`data` is only for .h5ad output; `{output}` does not contain the data.")
    try:
        result = cometric.resume(
            checkpoint,
            max_iter=max_iter,
            n_threads=n_threads,
            checkpoint_every=checkpoint_every,
            progress=console.progress,
        )
    except cometric.Interrupted as interruption:
        interruption.args = (continue_from(checkpoint),)
        raise
    if data is None:
        written = files.write_alone(result, output)
    else:
        written = files.write(result, output, data.data, data.key, data.source, data.options)
    if remove_checkpoint:
        remove_if_converged(console, checkpoint, result, cometric.remove_checkpoint)
    _answer(console, "resume", checkpoint, result, written)


@command(without=("start", "random_state", "checkpoint", "checkpoint_every"))
def plan(console: Console, path: o.Data, source: o.Source, **options: Any) -> None:
    """Estimate what `learn` with the same options takes: memory and a range of times.

    Measures two calls for parts of the data, which takes a few seconds. The exit code is 5 if the
    run does not fit into memory. If it takes hours, the exit code is 0, and the output includes
    advice. Large .h5ad and .zarr files are not read if the distances between their samples cannot
    fit.
    """
    given = files.read_given(options)
    settings = {"progress": console.progress, **in_bytes(options), **given}
    planned = _plan_in_parts(console, path, source, settings)
    if planned is None:
        _, matrix = read_source(console, path, source)
        planned = cometric.plan(matrix, **settings)
    facts = {"command": "plan", "input": str(path), **asdict(planned)}
    code = Exit.CONVERGED if planned.fits else Exit.DOES_NOT_FIT
    console.answer(console.translate(str(planned)), facts, code)


def _plan_in_parts(
    console: Console, path: Path, source: o.Source, settings: dict[str, Any]
) -> cometric.Plan | None:
    """The plan of a large file, of which a few rows are read; None if it can be read whole."""
    kind = kind_of(path)
    check_by_rows(path, source)
    if kind == ".h5ad":
        large = path.is_file() and path.stat().st_size > WHOLE and not source.transpose
    else:
        large = kind == ".zarr"
    if not large:
        return None
    with rows.open_store(path, **source.matrix) as store:
        console.use_source(path, store)
        console.say(f"{store.n_obs} samples, {store.n_vars} features in {path}")
        return cometric.plan(store, **settings)


@command()
def demo(
    console: Console,
    output: Annotated[
        Path | None, o.output("Output file, as in `cometric learn`. Default: none.")
    ] = None,
    force: o.Force = False,
) -> None:
    """Learn distances between 700 blood cells and between their genes, as a demonstration."""
    if output is not None:
        writing.check(output, RESULTS, writing.targets(output), force=force)
    cells = cometric.datasets.pbmc68k_reduced()
    console.say(f"{cells.n_obs} blood cells, {cells.n_vars} genes, no labels.")
    cometric.warmup(["entropic"])
    # Single precision and a residual of 0.001 are accurate enough for neighbors.
    settings: dict[str, Any] = {"eps": 0.1, "tau": 1e-2, "tol": 1e-3}
    result = cometric.learn(cells, **settings, dtype="float32", progress=console.progress)
    near = {marker: _nearest_genes(result, marker) for marker in MARKERS}
    lines = [f"{result}", "", "The genes nearest to known markers:"]
    lines += [
        f"  {marker:7}{MARKERS[marker]:17}{'  '.join(genes)}" for marker, genes in near.items()
    ]
    written = []
    if output is not None:
        source = {"layer": None, "use_raw": False}
        written = [str(path) for path in files.write(result, output, cells, "cometric", source, {})]
        lines.append(f"Written to {', '.join(written)}.")
    console.answer(
        "\n".join(lines),
        {"command": "demo", "output": written, **_facts(result), "nearest": near},
        Exit.CONVERGED if result.converged else Exit.NOT_CONVERGED,
    )


def _facts(result: Result) -> dict[str, Any]:
    """The facts about a result for --json."""
    last = result.history[-1] if result.history else None
    return {
        "samples": len(result.samples),
        "features": len(result.features),
        "status": result.status.name,
        "message": result.status.value,
        "converged": result.converged,
        "residual": result.residual,
        "change": result.change,
        "values": None if result.problem.fixed else result.values,
        "bracket": None if result.problem.fixed else result.bracket,
        "iterations": result.iterations,
        "sweeps": last.sweeps if last else 0,
        "seconds": last.seconds if last else 0.0,
        "parameters": result.parameters.to_json(),
    }


def _answer(console: Console, name: str, source: Path, result: Result, paths: list[Path]) -> None:
    """Show the result of a command and its files; the exit code tells whether it converged."""
    written = [str(path) for path in paths]
    console.answer(
        f"{result}\n  written to       {', '.join(written)}",
        {"command": name, "input": str(source), "output": written, **_facts(result)},
        Exit.CONVERGED if result.converged else Exit.NOT_CONVERGED,
    )


def _nearest_genes(result: Result, gene: str) -> list[str]:
    names = result.problem.features.item_names
    item = names.index(gene)
    return [names[k] for k in nearest_to(result.features[item], GENES, item)]
