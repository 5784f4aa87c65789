"""The commands: each reads, calls one function of the library, and writes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import cometric
from cometric import reading, writing
from cometric.cli import files
from cometric.cli import options as o
from cometric.cli.voice import EXIT_CODES, Exit, Voice
from cometric.options import check_side
from cometric.progress import duration
from cometric.result import Result

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
        from cometric.kernels.compiling import compiling_told  # Numba: not for --help

        with voice.listening(), compiling_told(voice.say):
            return super().invoke(ctx)


app = typer.Typer(
    name="cometric",
    cls=Commands,
    help="Learn, from one nonnegative matrix, a distance between its samples and one between its "
    "features.",
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Set up nothing: every command stands for itself."""


def _number(text: str) -> str | float:
    """A norm by name, or a power."""
    try:
        return float(text)
    except ValueError:
        return text


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
        "parameters": asdict(result.parameters),
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
            ".h5ad (with the data), .npz (all of the result), or .csv or .tsv (.gz): two tables,",
            "x.samples.csv and x.features.csv.",
        ),
    ],
    eps: o.Eps = 0.1,
    tau: o.Tau = 1e-3,
    restart: o.Restart = 0.0,
    norm: o.Norm = "l1",
    solver: o.SolverName = "auto",
    tol: o.Tol = 1e-6,
    max_iter: o.MaxIter = 1000,
    sweeps: o.Sweeps = 1,
    device: o.Device = "cpu",
    dtype: o.Dtype = "float64",
    start: o.Start = None,
    seed: o.Seed = None,
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = None,
    checkpoint: o.Checkpoint = None,
    checkpoint_every: o.CheckpointEvery = 300.0,
    layer: o.Layer = None,
    use_raw: o.UseRaw = False,
    transpose: o.Transpose = False,
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    normalization_steps: o.NormalizationSteps = 1,
    smoothing: o.Smoothing = 0.0,
    drop_empty: o.DropEmpty = False,
    key: o.Key = "cometric",
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Learn both metrics of DATA and write them."""
    from cometric.scverse import slots

    voice = context.ensure_object(Voice)
    writing.check(output, RESULTS, writing.targets(output), force=force)
    slots.check_key(key)
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
    try:
        result = cometric.learn(
            matrix,
            eps,
            tau,
            restart=restart,
            norm=_number(norm),
            solver=solver,
            tol=tol,
            max_iter=max_iter,
            sweeps=sweeps,
            device=device,
            dtype=dtype,
            start=start,
            random_state=seed,
            n_threads=threads,
            memory_limit=_bytes(memory_limit),
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            **used,
            **voice.progress(tol),
        )
    except cometric.Interrupted as interruption:
        if checkpoint is None:
            files.keep(interruption, output)
        else:
            interruption.args = (f"The same command goes on from {checkpoint}.",)
        raise
    written = files.write(result, output, data, key, source, used)
    _answer(voice, "learn", path, result, written)


@app.command(epilog=EXIT_CODES)
def resume(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="What `learn --checkpoint` wrote.")],
    output: Annotated[
        Path,
        o.output(".npz, or .csv or .tsv (.gz); for .h5ad repeat the command that was stopped."),
    ],
    max_iter: Annotated[
        int | None, typer.Option("--max-iter", help="Another limit than before.")
    ] = None,
    threads: o.Threads = None,
    checkpoint_every: o.CheckpointEvery = 300.0,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Go on from a checkpoint to the end."""
    voice = context.ensure_object(Voice)
    endings = tuple(kind for kind in RESULTS if kind != ".h5ad")
    writing.check(output, endings, writing.targets(output), force=force)
    try:
        result = cometric.resume(
            folder,
            max_iter=max_iter,
            n_threads=threads,
            checkpoint_every=checkpoint_every,
            progress=voice.bar()["progress"],
        )
    except cometric.Interrupted as interruption:
        interruption.args = (f"The same command goes on from {folder}.",)
        raise
    _answer(voice, "resume", folder, result, files.write_alone(result, output))


@app.command(epilog=EXIT_CODES)
def plan(
    context: typer.Context,
    path: o.Data,
    eps: o.Eps = 0.1,
    tau: o.Tau = "auto",
    restart: o.Restart = 0.0,
    norm: o.Norm = "l1",
    solver: o.SolverName = "auto",
    tol: o.Tol = 1e-3,
    max_iter: o.MaxIter = 1000,
    sweeps: o.Sweeps = 1,
    device: o.Device = "cpu",
    dtype: o.Dtype = "float64",
    threads: o.Threads = None,
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
        norm=_number(norm),
        solver=solver,
        tol=tol,
        max_iter=max_iter,
        sweeps=sweeps,
        device=device,
        dtype=dtype,
        n_threads=threads,
        memory_limit=_bytes(memory_limit),
        normalization_steps=normalization_steps,
        smoothing=smoothing,
        drop_empty=drop_empty,
        **voice.bar(),
    )
    facts = {"command": "plan", "input": str(path), **asdict(found)}
    voice.answer(str(found), facts, Exit.CONVERGED if found.fits else Exit.DOES_NOT_FIT)


@app.command(epilog=EXIT_CODES)
def neighbors(
    context: typer.Context,
    path: o.Learned,
    output: Annotated[
        Path,
        o.output(
            ".h5ad, as `sc.pp.neighbors` writes it (from .h5ad), or .csv or .tsv (.gz): a table",
            "of item, neighbor, distance.",
        ),
    ],
    n_neighbors: Annotated[
        int, typer.Option("--n-neighbors", "-n", help="Of each item, itself included.")
    ] = 15,
    of: Annotated[str, typer.Option("--of", help="samples or features (tables only).")] = "samples",
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    key: o.Key = "cometric",
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Find the nearest neighbors of each sample, or feature, in the learned metric."""
    from cometric.scverse import slots

    writing.check(output, (".h5ad", *TABLES), [output], force=force)
    check_side(of)
    if reading.kind_of(output) == ".h5ad":
        if reading.kind_of(path) != ".h5ad" or of != "samples":
            raise ValueError("A graph goes into .h5ad for samples, from .h5ad; write a table.")
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
        index, near = slots.nearest(distances, n_neighbors - 1)
        writing.save_neighbors(output, of[:-1], names, names, slots.graph(index, near))
    context.ensure_object(Voice).answer(
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
            metavar="DATA", help="New samples over the same features, in any format `learn` reads."
        ),
    ],
    output: Annotated[
        Path,
        o.output(
            ".csv or .tsv (.gz): a row per new sample; .h5ad: the new data, distances in obsm.",
            "With --n-neighbors a table of item, neighbor, distance.",
        ),
    ],
    of: Annotated[
        str, typer.Option("--of", help="samples, or features: new columns over old rows.")
    ] = "samples",
    n_neighbors: Annotated[
        int | None, typer.Option("--n-neighbors", "-n", help="Keep the nearest only.")
    ] = None,
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
    """Measure new samples: their distances to those of RESULT, whose metrics stay as they are."""
    from cometric.scverse import slots

    voice = context.ensure_object(Voice)
    check_side(of)
    kinds = TABLES if of == "features" or n_neighbors is not None else (*TABLES, ".h5ad")
    writing.check(output, kinds, [output], force=force)
    result, _ = files.load(path, key, read_limit)
    data = files.read(new, transpose, read_limit)
    matrix = slots.matrix(data, layer=layer, use_raw=use_raw)
    voice.reads(new, matrix, transpose)
    distances = result.transform(
        matrix, of=of, n_neighbors=n_neighbors, n_threads=threads, **voice.bar()
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
    """Say what is proved of a RESULT, from its data and nothing else."""
    found = files.load(path, key, read_limit)[0].certify(n_threads=threads)
    facts = {"command": "certify", "input": str(path), "kind": type(found).__name__}
    context.ensure_object(Voice).answer(str(found), {**facts, **_fields(found)})


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
    output: Annotated[Path, o.output(".html: one page that needs nothing else.")],
    labels: Annotated[
        str | None, typer.Option("--labels", help="Column of obs in the .h5ad file, for colors.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Of the page.")] = None,
    certificate: Annotated[
        bool, typer.Option("--certify", help="Also say what is proved; takes longer.")
    ] = False,
    method: Annotated[str, typer.Option("--method", help="Of the maps: tsne or umap.")] = "tsne",
    read_limit: o.ReadLimit = o.DEFAULT_READ_LIMIT,
    key: o.Key = "cometric",
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Write a page about RESULT: two linked maps, convergence, what is proved."""
    writing.check(output, (".html",), [output], force=force)
    result, data = files.load(path, key, read_limit)
    chosen = None
    if labels is not None:
        if data is None or labels not in data.obs:
            found = "no" if data is None else ", ".join(map(repr, data.obs)) or "no"
            raise ValueError(f"`labels` is {labels!r}; `{path}` has {found} columns for it.")
        chosen = data.obs[labels].to_numpy()[result.problem.samples.kept]
    from cometric.report import write

    proved = result.certify() if certificate else None
    with writing.failures(output):
        write(
            result,
            output,
            labels=chosen,
            title=title,
            force=force,
            certificate=proved,
            method=method,
        )
    context.ensure_object(Voice).answer(
        f"The report is in {output}.",
        {"command": "report", "input": str(path), "output": [str(output)]},
    )


@app.command(epilog=EXIT_CODES)
def demo(
    context: typer.Context,
    output: Annotated[
        Path | None, o.output("Where to keep the result, as in `learn`; nowhere by default.")
    ] = None,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Learn the metrics of 700 blood cells and their genes, in a minute or two."""
    voice = context.ensure_object(Voice)
    if output is not None:
        writing.check(output, RESULTS, writing.targets(output), force=force)
    cells = cometric.datasets.pbmc68k_reduced()
    voice.say(f"{cells.n_obs} blood cells, {cells.n_vars} genes, no labels.")
    cometric.warmup(["entropic"])
    # Single precision on the way and a residual of 0.001 will do for neighbors.
    settings: dict[str, Any] = {"eps": 0.1, "tau": 1e-2, "tol": 1e-3}
    result = cometric.learn(cells, **settings, dtype="float32", **voice.progress(1e-3))
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
    row = result.features[names.index(gene)]
    order = sorted(range(len(names)), key=lambda k: (names[k] != gene, row[k]))
    return [names[k] for k in order[1 : count + 1]]


@app.command(epilog=EXIT_CODES)
def warmup(
    context: typer.Context,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Compile the kernels now, so that later runs only load them."""
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
    """Show versions, cores, threads, memory, GPU and cache: what a bug report needs."""
    from cometric.cli.machine import describe

    found = describe()
    width = max(map(len, found))
    lines = [f"{name:{width}}  {value}" for name, value in found.items()]
    context.ensure_object(Voice).answer("\n".join(lines), {"command": "info", **found})
