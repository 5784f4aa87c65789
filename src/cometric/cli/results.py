"""Commands for results: neighbors, new samples, certificates, explanations, reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cometric.answers.result import Result
from cometric.cli import files
from cometric.cli import options as o
from cometric.cli.command import command
from cometric.cli.console import Console
from cometric.core.nearest import check_neighborhood, nearest, neighbor_matrix
from cometric.core.types import Index, Matrix
from cometric.files import reading, writing
from cometric.files.tables import kind_of

if TYPE_CHECKING:
    from anndata import AnnData


@command()
def neighbors(
    console: Console,
    path: o.Learned,
    output: Annotated[
        Path,
        o.output(
            "Output file. .csv or .tsv (also .gz): a table of item, neighbor, distance; .h5ad,",
            "from an .h5ad RESULT: the graph of `sc.pp.neighbors`.",
        ),
    ],
    key: o.Key = "cometric",
    n_neighbors: o.Neighbors = 15,
    of: o.Of = "samples",
    force: o.Force = False,
) -> None:
    """Find the nearest neighbors of each sample, or feature, in the learned metric."""
    writing.check(output, (".h5ad", *files.TABLES), [output], force=force)
    if kind_of(output) == ".h5ad":
        if kind_of(path) != ".h5ad" or of != "samples":
            raise ValueError(
                "An .h5ad output takes neighbors of samples, from an .h5ad RESULT. "
                "Write .csv or .tsv."
            )
        from cometric.scverse import pp

        data = reading.read(path)
        pp.neighbors(data, n_neighbors, key=key)
        count = data.n_obs
        writing.save_anndata(data, output)
    else:
        result, data = files.load(path, key)
        near, names = _nearest(result, data, of, n_neighbors, key)
        count = len(names)
        writing.save_neighbors(output, of[:-1], names, names, neighbor_matrix(*near, count))
    console.answer(
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


def _nearest(
    result: Result, data: AnnData | None, of: str, n_neighbors: int, key: str
) -> tuple[tuple[Index, Matrix], list[str]]:
    """Numbers and distances of the nearest items, and the names of all.

    After `landmarks` the samples are all of the ``data``, of which neighbors are stored.
    """
    if data is not None and of == "samples":
        from cometric.scverse import get, sketches, slots

        if sketches.has_landmarks(data, key):
            check_neighborhood(n_neighbors, data.n_obs, "sample")
            graph = get.distances(data, key=key)
            return slots.nearest_cells(data, graph, n_neighbors - 1, key), get.names(data, key=key)
    names = list(getattr(result.problem, of).item_names)
    check_neighborhood(n_neighbors, len(names), of[:-1])
    return nearest(getattr(result, of), n_neighbors - 1, skip_self=True), names


@command()
def transform(
    console: Console,
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
    source: o.Source,
    key: o.Key = "cometric",
    of: o.Of = "samples",
    n_neighbors: o.Nearest = None,
    drop_empty: o.DropUnknown = False,
    n_threads: o.Threads = None,
    force: o.Force = False,
) -> None:
    """Compute distances of the new samples in DATA to the samples of RESULT.

    Of an .h5ad DATA that layer, or .raw, is used which an .h5ad RESULT was learned from.
    """
    from cometric.scverse import slots

    if drop_empty and of == "features":
        raise ValueError("`drop_empty` is for new samples; leave out such features yourself.")
    kinds = (
        files.TABLES if of == "features" or n_neighbors is not None else (*files.TABLES, ".h5ad")
    )
    writing.check(output, kinds, [output], force=force)
    result, reference = files.load(path, key)
    console.use_source(new)
    data, matrix = files.read_new(result, new, source, drop_empty, reference, key)
    console.use_source(new, matrix, source.transpose)
    distances = result.transform(
        matrix, of=of, n_neighbors=n_neighbors, n_threads=n_threads, progress=console.progress
    )
    rows = list(map(str, matrix.obs_names if of == "samples" else matrix.var_names))
    columns = list(getattr(result.problem, of).item_names)
    if n_neighbors is not None:
        writing.save_neighbors(output, of[:-1], rows, columns, distances)
    elif kind_of(output) == ".h5ad":
        import pandas as pd

        data.obsm[slots.distances_key(key)] = pd.DataFrame(distances, data.obs_names, columns)
        writing.save_anndata(data, output)
    else:
        writing.save_table(output, distances, rows, columns)
    nearest_of = "" if n_neighbors is None else f"the {n_neighbors} nearest of "
    console.answer(
        f"The distances of {len(rows)} new {of} to {nearest_of}{len(columns)} learned ones are in "
        f"{output}.",
        {
            "command": "transform",
            "input": [str(path), str(new)],
            "output": [str(output)],
            "of": of,
            "new": len(rows),
            "learned": len(columns),
        },
    )


@command()
def certify(
    console: Console, path: o.Learned, key: o.Key = "cometric", n_threads: o.Threads = None
) -> None:
    """Check RESULT against its data: proved error bounds for --eps 0, otherwise a diagnosis."""
    result, _ = files.load(path, key)
    certificate = result.certify(n_threads, progress=console.progress)
    facts = {"command": "certify", "input": str(path), "kind": type(certificate).__name__}
    console.answer(str(certificate), {**facts, **_fields(certificate)})


@command()
def explain(
    console: Console,
    path: o.Learned,
    i: Annotated[
        str,
        typer.Argument(
            metavar="FIRST",
            help="A sample, with --of features a feature: its name, or its number from 0.",
        ),
    ],
    j: Annotated[str, typer.Argument(metavar="SECOND", help="Another one.")],
    key: o.Key = "cometric",
    of: o.Of = "samples",
) -> None:
    """Explain the distance between two samples of RESULT: which features differ, and how far."""
    result, _ = files.load(path, key)
    names = getattr(result.problem, of).item_names
    explanation = result.explain(_item(i, names), _item(j, names), of=of)
    facts = {
        "command": "explain",
        "input": str(path),
        "of": of,
        "items": explanation.items,
        "distance": explanation.distance,
        "learned": explanation.learned,
        "stays": explanation.stays,
        "unmatched": explanation.unmatched,
        "changes": [change._asdict() for change in explanation.changes],
        "flows": len(explanation.flows),
        "heaviest": [flow._asdict() for flow in explanation.heaviest()],
    }
    console.answer(str(explanation), facts)


def _item(text: str, names: Sequence[str]) -> int | str:
    """An item given on the command line: a name if there is one like it, else a number."""
    number = text.isascii() and text.isdecimal() and int(text) < len(names)
    return int(text) if number and text not in names else text


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, named tuples as dictionaries."""
    return {
        name: field._asdict() if hasattr(field, "_asdict") else field
        for name, field in ((name, getattr(value, name)) for name in value.__dataclass_fields__)
    }


@command()
def report(
    console: Console,
    path: o.Learned,
    output: Annotated[Path, o.output("Output file, .html: one page that loads nothing else.")],
    key: o.Key = "cometric",
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--labels",
            metavar="COLUMN",
            help="Column of `.obs` in an .h5ad RESULT, or of the table --labels-from, for colors; "
            "several times for several.",
        ),
    ] = None,
    clusters: Annotated[
        list[str] | None,
        typer.Option(
            "--clusters",
            metavar="COLUMN",
            help="The same for clusters computed from RESULT: for colors, but not for scores.",
        ),
    ] = None,
    labels_from: o.LabelsFrom = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="Title of the page.")
    ] = None,
    certificate: Annotated[
        bool,
        typer.Option("--certify", metavar="", help="Add the output of `cometric certify`."),
    ] = False,
    method: o.Method = "tsne",
    force: o.Force = False,
) -> None:
    """Write an HTML page about RESULT: a summary, two linked maps, modules, error bounds."""
    writing.check(output, (".html",), [output], force=force)
    if labels_from is not None and not labels and not clusters:
        raise ValueError("`labels_from` needs `labels` or `clusters`, the name of a column.")
    result, data = files.load(path, key)
    labeled, clustered = (
        {
            name: files.labels_of(result, data, name, path, key, labels_from, option)
            for name in names or ()
        }
        for option, names in (("labels", labels), ("clusters", clusters))
    )
    from cometric.report import write

    proved = result.certify(progress=console.progress) if certificate else None
    with writing.failures(output):
        write(
            result,
            output,
            labels=labeled or None,
            clusters=clustered or None,
            title=title,
            force=force,
            certificate=proved,
            method=method,
            progress=console.progress,
        )
    console.answer(
        f"The report is in {output}.",
        {"command": "report", "input": str(path), "output": [str(output)]},
    )
