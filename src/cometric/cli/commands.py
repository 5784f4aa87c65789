"""The commands: each reads, calls one function of the library, and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import cometric
from cometric.answers.result import Result
from cometric.cli import files, origin
from cometric.cli import options as o
from cometric.cli.voice import EXIT_CODES, Exit, Voice
from cometric.core.nearest import nearest, nearest_to, neighbor_matrix
from cometric.files import reading, writing
from cometric.machine.progress import duration
from cometric.running.settings import DEFAULT_TAU, DEFAULT_TOL
from cometric.saving.checkpoint import noting

RESULTS = (".h5ad", ".npz", ".csv", ".tsv")
TABLES = (".csv", ".tsv")

MARKERS = {
    "CD3D": "T cells",
    "CD79A": "B cells",
    "LYZ": "monocytes",
    "S100A8": "CD14+ monocytes",
}
"""Genes that the demonstration looks at, and the cells they mark."""


class Commands(TyperGroup):
    """All commands, under one roof for what goes wrong in them."""

    def invoke(self, ctx: Any) -> Any:
        voice = ctx.ensure_object(Voice)
        voice.json = "--json" in ctx.args  # options that are wrong are not read
        from cometric.kernels.compiling import compiling_told  # Numba: not for --help

        with voice.listening(), compiling_told(voice.say):
            return super().invoke(ctx)


app = typer.Typer(
    name="cometric",
    cls=Commands,
    help="Learn a distance between the samples of a nonnegative matrix and one between its "
    "features, by optimal transport.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"cometric {cometric.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Show the version and exit.",
            metavar="",
        ),
    ] = False,
) -> None:
    """Set up nothing: every command stands for itself."""


def _bytes(gigabytes: float | None) -> float | None:
    return None if gigabytes is None else gigabytes * 1e9


def _facts(result: Result) -> dict[str, Any]:
    """What --json tells of a result."""
    last = result.history[-1] if result.history else None
    return {
        "samples": len(result.samples),
        "features": len(result.features),
        "status": result.status.name,
        "message": result.status.value,
        "converged": result.converged,
        "residual": result.residual,
        "values": result.values,
        "bracket": result.bracket,
        "iterations": result.iterations,
        "sweeps": last.sweeps if last else 0,
        "seconds": last.seconds if last else 0.0,
        "parameters": result.parameters.to_json(),
    }


def _answer(voice: Voice, command: str, origin: Path, result: Result, paths: list[Path]) -> None:
    """Say what was learned and where it is; the exit code tells whether it converged."""
    written = [str(path) for path in paths]
    voice.answer(
        f"{result}\n  written to       {', '.join(written)}",
        {"command": command, "input": str(origin), "output": written, **_facts(result)},
        Exit.CONVERGED if result.converged else Exit.NOT_CONVERGED,
    )


@app.command(epilog=EXIT_CODES)
def learn(
    context: typer.Context,
    path: o.Data,
    output: Annotated[
        Path,
        o.output(
            "Output file. .h5ad: the data with the metrics; .npz: the complete result; .csv or",
            ".tsv (also .gz): two tables, as in x.samples.csv and x.features.csv.",
        ),
    ],
    eps: o.Eps = 0.1,
    tau: o.Tau = DEFAULT_TAU,
    restart: o.Restart = 0.0,
    norm: o.Norm = "l1",
    solver: o.SolverName = "auto",
    tol: o.Tol = DEFAULT_TOL,
    max_iter: o.MaxIter = 1000,
    sweeps: o.Sweeps = 1,
    device: o.Device = "cpu",
    dtype: o.Dtype = "float64",
    start: o.Start = None,
    random_state: o.Seed = None,
    n_threads: o.Threads = None,
    memory_limit: o.MemoryLimit = None,
    checkpoint: o.Checkpoint = None,
    checkpoint_every: o.CheckpointEvery = 300.0,
    remove_checkpoint: o.RemoveCheckpoint = False,
    layer: o.Layer = None,
    use_raw: o.UseRaw = False,
    transpose: o.Transpose = False,
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    normalization_steps: o.NormalizationSteps = 1,
    smoothing: o.Smoothing = 0.0,
    drop_empty: o.DropEmpty = False,
    key_added: o.Key = "cometric",
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Learn a distance between the samples of DATA and one between its features."""
    from cometric.scverse import slots

    voice = context.ensure_object(Voice)
    writing.check(output, RESULTS, writing.targets(output), force=force)
    slots.check_key(key_added)
    if remove_checkpoint and checkpoint is None:
        raise ValueError("`remove_checkpoint` needs a folder. Pass `checkpoint`, too.")
    data = files.read(path, transpose, read_limit)
    source = {"layer": layer, "use_raw": use_raw}
    used: dict[str, Any] = {
        "normalization_steps": normalization_steps,
        "smoothing": smoothing,
        "drop_empty": drop_empty,
    }
    matrix = slots.matrix(data, layer=layer, use_raw=use_raw)
    voice.reads(path, matrix, transpose)
    voice.say(f"{data.n_obs} samples, {matrix.n_vars} features from {path}")
    noted = origin.note(path, transpose, source, used, key_added)
    try:
        with noting(noted):
            result = cometric.learn(
                matrix,
                eps,
                tau,
                restart=restart,
                norm=norm,
                solver=solver,
                tol=tol,
                max_iter=max_iter,
                sweeps=sweeps,
                device=device,
                dtype=dtype,
                start=start,
                random_state=random_state,
                n_threads=n_threads,
                memory_limit=_bytes(memory_limit),
                progress=voice.progress,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                **used,
            )
    except cometric.Interrupted as interruption:
        if checkpoint is None:
            files.keep(interruption, output)
        else:
            interruption.args = (_continue_from(checkpoint),)
        raise
    written = files.write(result, output, data, key_added, source, used)
    if checkpoint is not None and remove_checkpoint:
        _remove(voice, checkpoint, result)
    _answer(voice, "learn", path, result, written)


def _continue_from(folder: Path) -> str:
    return f"Run the same command again to continue from {folder}."


def _remove(voice: Voice, folder: Path, result: Result) -> None:
    """Delete checkpoints that nobody needs any more; the result is safe, whatever happens."""
    if not result.converged:
        voice.say(f"The checkpoints in {folder} are kept: the run has not converged.")
        return
    try:
        cometric.remove_checkpoint(folder)
    except (OSError, cometric.CheckpointError) as problem:
        voice.warn(f"The checkpoints in {folder} are not removed: {problem}")


@app.command(epilog=EXIT_CODES)
def resume(
    context: typer.Context,
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
    max_iter: o.OtherMaxIter = None,
    n_threads: o.Threads = None,
    checkpoint_every: o.CheckpointEvery = 300.0,
    remove_checkpoint: o.RemoveCheckpoint = False,
    data: o.OriginalData = None,
    layer: o.Layer = None,
    use_raw: o.UseRaw = False,
    transpose: o.Transpose = False,
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    normalization_steps: o.OtherNormalizationSteps = None,
    key: o.OtherKey = None,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Continue a run from its checkpoints, to the end."""
    from cometric.scverse import slots

    voice = context.ensure_object(Voice)
    writing.check(output, RESULTS, writing.targets(output), force=force)
    original = None
    if reading.kind_of(output) == ".h5ad":
        given = {
            "layer": layer,
            "use_raw": use_raw,
            "transpose": transpose,
            "normalization_steps": normalization_steps,
            "key": key,
        }
        original = origin.read_again(checkpoint, data, given, read_limit, voice)
        slots.check_key(original.key)
    elif data is not None:
        raise ValueError(f"`data` is of use for .h5ad only; `{output}` holds no data.")
    try:
        result = cometric.resume(
            checkpoint,
            max_iter=max_iter,
            n_threads=n_threads,
            checkpoint_every=checkpoint_every,
            progress=voice.progress,
        )
    except cometric.Interrupted as interruption:
        interruption.args = (_continue_from(checkpoint),)
        raise
    if original is None:
        written = files.write_alone(result, output)
    else:
        held, source, used, name = original
        written = files.write(result, output, held, name, source, used)
    if remove_checkpoint:
        _remove(voice, checkpoint, result)
    _answer(voice, "resume", checkpoint, result, written)


@app.command(epilog=EXIT_CODES)
def plan(
    context: typer.Context,
    path: o.Data,
    eps: o.Eps = 0.1,
    tau: o.Tau = DEFAULT_TAU,
    restart: o.Restart = 0.0,
    norm: o.Norm = "l1",
    solver: o.SolverName = "auto",
    tol: o.Tol = DEFAULT_TOL,
    max_iter: o.MaxIter = 1000,
    sweeps: o.Sweeps = 1,
    device: o.Device = "cpu",
    dtype: o.Dtype = "float64",
    n_threads: o.Threads = None,
    memory_limit: o.MemoryLimit = None,
    layer: o.Layer = None,
    use_raw: o.UseRaw = False,
    transpose: o.Transpose = False,
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    normalization_steps: o.NormalizationSteps = 1,
    smoothing: o.Smoothing = 0.0,
    drop_empty: o.DropEmpty = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Estimate what `learn` with the same options takes: memory, iterations, time.

    Parts of the data are solved, in a few seconds for small problems and 30 seconds or so for large
    ones. Exit code 5 means that it does not fit into memory; what takes hours has exit code 0, and
    a line of advice.
    """
    from cometric.scverse import slots

    voice = context.ensure_object(Voice)
    data = files.read(path, transpose, read_limit)
    matrix = slots.matrix(data, layer=layer, use_raw=use_raw)
    voice.reads(path, matrix, transpose)
    found = cometric.plan(
        matrix,
        eps,
        tau,
        restart=restart,
        norm=norm,
        solver=solver,
        tol=tol,
        max_iter=max_iter,
        sweeps=sweeps,
        device=device,
        dtype=dtype,
        n_threads=n_threads,
        memory_limit=_bytes(memory_limit),
        normalization_steps=normalization_steps,
        smoothing=smoothing,
        drop_empty=drop_empty,
        progress=voice.progress,
    )
    facts = {"command": "plan", "input": str(path), **asdict(found)}
    fits = Exit.CONVERGED if found.fits else Exit.DOES_NOT_FIT
    voice.answer(voice.own(str(found)), facts, fits)


@app.command(epilog=EXIT_CODES)
def neighbors(
    context: typer.Context,
    path: o.Learned,
    output: Annotated[
        Path,
        o.output(
            "Output file. .csv or .tsv (also .gz): a table of item, neighbor, distance; .h5ad,",
            "from an .h5ad RESULT: the graph of `sc.pp.neighbors`.",
        ),
    ],
    n_neighbors: o.Neighbors = 15,
    of: o.Of = "samples",
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    key: o.Key = "cometric",
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Find the nearest neighbors of each sample, or feature, in the learned metric."""
    voice = context.ensure_object(Voice)
    writing.check(output, (".h5ad", *TABLES), [output], force=force)
    if reading.kind_of(output) == ".h5ad":
        if reading.kind_of(path) != ".h5ad" or of != "samples":
            raise ValueError(
                "An .h5ad output takes neighbors of samples, from an .h5ad RESULT. "
                "Write .csv or .tsv."
            )
        from cometric.scverse import pp

        data = files.read(path, False, read_limit)
        pp.neighbors(data, n_neighbors, key=key)
        count = data.n_obs
        writing.save_anndata(data, output)
    else:
        result, _ = files.load(path, key, read_limit)
        distances, names = getattr(result, of), list(getattr(result.problem, of).called)
        count = len(names)
        if not 2 <= n_neighbors <= count:
            raise ValueError(
                f"`n_neighbors` is {n_neighbors}; pass 2 to {count}, the item itself included."
            )
        near = nearest(distances, n_neighbors - 1, skip_self=True)
        writing.save_neighbors(output, of[:-1], names, names, neighbor_matrix(*near, count))
    voice.answer(
        f"The {n_neighbors - 1} nearest of each of {count} {of} are in {output}.",
        {
            "command": "neighbors",
            "input": str(path),
            "output": [str(output)],
            "of": of,
            "items": count,
            "n_neighbors": n_neighbors,
        },
    )


@app.command(epilog=EXIT_CODES)
def transform(
    context: typer.Context,
    path: o.Learned,
    new: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="New samples (with --of features: new features), in any format of `learn`, "
            "matched by the names of their features (or samples).",
        ),
    ],
    output: Annotated[
        Path,
        o.output(
            "Output file. .csv or .tsv (also .gz): a row per new sample, or with --n-neighbors a",
            "table of item, neighbor, distance; .h5ad: the new data with the distances in obsm.",
        ),
    ],
    of: o.Of = "samples",
    n_neighbors: o.Nearest = None,
    threads: o.Threads = None,
    layer: o.Layer = None,
    use_raw: o.UseRaw = False,
    transpose: o.Transpose = False,
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    key: o.Key = "cometric",
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Compute distances of the new samples in DATA to the samples of RESULT."""
    from cometric.scverse import slots

    voice = context.ensure_object(Voice)
    kinds = TABLES if of == "features" or n_neighbors is not None else (*TABLES, ".h5ad")
    writing.check(output, kinds, [output], force=force)
    result, _ = files.load(path, key, read_limit)
    voice.reads(new)
    data = files.read(new, transpose, read_limit)
    matrix = slots.matrix(data, layer=layer, use_raw=use_raw)
    voice.reads(new, matrix, transpose)
    distances = result.transform(
        matrix, of=of, n_neighbors=n_neighbors, n_threads=threads, progress=voice.progress
    )
    rows = list(map(str, matrix.obs_names if of == "samples" else matrix.var_names))
    columns = list(getattr(result.problem, of).called)
    if n_neighbors is not None:
        writing.save_neighbors(output, of[:-1], rows, columns, distances)
    elif reading.kind_of(output) == ".h5ad":
        import pandas as pd

        data.obsm[slots.distances_key(key)] = pd.DataFrame(distances, data.obs_names, columns)
        writing.save_anndata(data, output)
    else:
        writing.save_table(output, distances, rows, columns)
    voice.answer(
        f"The distances of {len(rows)} new {of} to {len(columns)} learned ones are in {output}.",
        {
            "command": "transform",
            "input": [str(path), str(new)],
            "output": [str(output)],
            "of": of,
            "new": len(rows),
            "learned": len(columns),
        },
    )


@app.command(epilog=EXIT_CODES)
def certify(
    context: typer.Context,
    path: o.Learned,
    threads: o.Threads = None,
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    key: o.Key = "cometric",
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Check RESULT against its data: proved error bounds for --eps 0, otherwise a diagnosis."""
    voice = context.ensure_object(Voice)
    result, _ = files.load(path, key, read_limit)
    found = result.certify(threads, progress=voice.progress)
    facts = {"command": "certify", "input": str(path), "kind": type(found).__name__}
    voice.answer(str(found), {**facts, **_fields(found)})


@app.command(epilog=EXIT_CODES)
def explain(
    context: typer.Context,
    path: o.Learned,
    first: Annotated[str, typer.Argument(help="A sample: its name, or its number from 0.")],
    second: Annotated[str, typer.Argument(help="Another sample.")],
    of: o.Of = "samples",
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    key: o.Key = "cometric",
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Explain the distance between two samples of RESULT: which features differ, and how far."""
    result, _ = files.load(path, key, read_limit)
    names = getattr(result.problem, of).called
    found = result.explain(_item(first, names), _item(second, names), of=of)
    facts = {
        "command": "explain",
        "input": str(path),
        "of": of,
        "items": found.items,
        "distance": found.distance,
        "stays": found.stays,
        "changes": [change._asdict() for change in found.changes],
        "flows": len(found.flows),
        "heaviest": [flow._asdict() for flow in found.heaviest()],
    }
    context.ensure_object(Voice).answer(str(found), facts)


def _item(text: str, names: Sequence[str]) -> int | str:
    """A name where there is one like it, else a number."""
    number = text.isascii() and text.isdecimal() and int(text) < len(names)
    return int(text) if number and text not in names else text


def _fields(found: Any) -> dict[str, Any]:
    """The fields of a dataclass, tuples with names as dictionaries."""
    return {
        name: value._asdict() if hasattr(value, "_asdict") else value
        for name, value in ((name, getattr(found, name)) for name in found.__dataclass_fields__)
    }


@app.command(epilog=EXIT_CODES)
def report(
    context: typer.Context,
    path: o.Learned,
    output: Annotated[Path, o.output("Output file, .html: one page that loads nothing else.")],
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels", metavar="COLUMN", help="Column of `.obs` in an .h5ad RESULT, for colors."
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="Title of the page.")
    ] = None,
    certificate: Annotated[
        bool,
        typer.Option("--certify", metavar="", help="Add the output of `cometric certify`."),
    ] = False,
    method: o.Method = "tsne",
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    key: o.Key = "cometric",
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Write an HTML page about RESULT: two linked maps, convergence, error bounds."""
    voice = context.ensure_object(Voice)
    writing.check(output, (".html",), [output], force=force)
    result, data = files.load(path, key, read_limit)
    chosen = None
    if labels is not None:
        if data is None or labels not in data.obs:
            found = "" if data is None else ", ".join(map(repr, data.obs))
            there = f"has {found}" if found else "has no columns of labels"
            raise ValueError(f"`labels` is {labels!r}; `{path}` {there}.")
        chosen = data.obs[labels].to_numpy()[result.problem.samples.kept]
    from cometric.report import write

    proved = result.certify(progress=voice.progress) if certificate else None
    with writing.failures(output):
        write(
            result,
            output,
            labels=chosen,
            title=title,
            force=force,
            certificate=proved,
            method=method,
            progress=voice.progress,
        )
    voice.answer(
        f"The report is in {output}.",
        {"command": "report", "input": str(path), "output": [str(output)]},
    )


@app.command(epilog=EXIT_CODES)
def demo(
    context: typer.Context,
    output: Annotated[
        Path | None, o.output("Output file, as in `cometric learn`. Default: none.")
    ] = None,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Learn distances between 700 blood cells and between their genes, as a demonstration."""
    voice = context.ensure_object(Voice)
    if output is not None:
        writing.check(output, RESULTS, writing.targets(output), force=force)
    cells = cometric.datasets.pbmc68k_reduced()
    voice.say(f"{cells.n_obs} blood cells, {cells.n_vars} genes, no labels.")
    cometric.warmup(["entropic"])
    # Single precision on the way and a residual of 0.001 will do for neighbors.
    settings: dict[str, Any] = {"eps": 0.1, "tau": 1e-2, "tol": 1e-3}
    result = cometric.learn(cells, **settings, dtype="float32", progress=voice.progress)
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
    voice.answer(
        "\n".join(lines),
        {"command": "demo", "output": written, **_facts(result), "nearest": near},
        Exit.CONVERGED if result.converged else Exit.NOT_CONVERGED,
    )


def _nearest_genes(result: Result, gene: str, count: int = 6) -> list[str]:
    names = result.problem.features.called
    item = names.index(gene)
    return [names[k] for k in nearest_to(result.features[item], count, item)]


@app.command(epilog=EXIT_CODES)
def warmup(
    context: typer.Context,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Compile all kernels now, so that later runs start at once."""
    voice = context.ensure_object(Voice)
    seconds = cometric.warmup()
    voice.answer(f"Ready after {duration(seconds)}.", {"command": "warmup", "seconds": seconds})


@app.command(epilog=EXIT_CODES)
def info(
    context: typer.Context,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Show versions, cores, threads, memory, GPU and kernel cache, for bug reports."""
    from cometric.cli.machine import describe

    found = describe()
    width = max(map(len, found))
    lines = [f"{name:{width}}  {value}" for name, value in found.items()]
    context.ensure_object(Voice).answer("\n".join(lines), {"command": "info", **found})
