"""Commands for groups: modules of features, and the features of groups of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cometric.answers.enrichment import Enriched
from cometric.answers.groups import Ranked, rank_features
from cometric.answers.modules import modules as find_modules
from cometric.cli import files
from cometric.cli import options as o
from cometric.cli.command import command
from cometric.cli.console import Console
from cometric.core.kinds import Count, Number
from cometric.files import writing
from cometric.files.sets import read_sets

SIGNIFICANT = 0.05
"""Largest q-value of a set that is written for a module."""


@command()
def modules(
    console: Console,
    path: o.Learned,
    output: Annotated[
        Path,
        o.output(
            "Output file, .csv or .tsv (also .gz): the module of each item, -1 for background,",
            "its rank in the module, its coherence and the name of the module; with --sets also",
            "the set that is most enriched in the module.",
        ),
    ],
    key: o.Key = "cometric",
    of: Annotated[
        str, o.of_kind("--of", o.SIDES, help="Modules of features, or groups of samples.")
    ] = "features",
    n_neighbors: Annotated[
        int,
        o.of_kind(
            "--n-neighbors", Count(), "-n", help="Number of neighbors of each item in the graph."
        ),
    ] = 15,
    resolution: Annotated[
        float,
        o.of_kind(
            "--resolution",
            Number("a number, at least 0"),
            help="Larger values give more and smaller modules.",
        ),
    ] = 1.0,
    coherence: Annotated[
        float | None,
        o.of_kind(
            "--coherence",
            Number("a number, at least 0"),
            help="Items below this coherence are background. Default: 0.05 for features; samples "
            "have no background.",
        ),
    ] = None,
    min_size: Annotated[
        int, o.of_kind("--min-size", Count(), help="Smaller modules become background.")
    ] = 5,
    random_state: Annotated[int, o.of_kind("--seed", Count(0), help="Seed of the modules.")] = 0,
    sets: Annotated[
        Path | None,
        typer.Option(
            "--sets",
            metavar="FILE",
            help="Sets of features, such as gene sets, .gmt or .json: those enriched in modules.",
        ),
    ] = None,
    force: o.Force = False,
) -> None:
    """Find modules of features of RESULT that are near one another, such as gene programs."""
    writing.check(output, files.TABLES, [output], force=force)
    if sets is not None and of == "samples":
        raise ValueError("`sets` are sets of features; leave out `of`.")
    known = None if sets is None else read_sets(sets)
    result, _ = files.load(path, key)
    found = find_modules(
        result,
        of,
        n_neighbors=n_neighbors,
        resolution=resolution,
        coherence=coherence,
        min_size=min_size,
        random_state=random_state,
    )
    names = getattr(result.problem, of).item_names
    rank = {int(k): place for own in found.members for place, k in enumerate(own, 1)}
    enriched = () if known is None else found.enrichment(known)
    best = {row.module: row for row in reversed(enriched) if row.q <= SIGNIFICANT}
    header = [of[:-1], "module", "rank", "coherence", "name"]
    header += [] if known is None else ["set", "q"]

    def line(k: int, label: int) -> list[Any]:
        name = found.names[label] if label >= 0 else ""
        values = [names[k], label, rank.get(k, ""), float(found.coherence[k]), name]
        if known is not None:
            values += [best[label].set, best[label].q] if label in best else ["", ""]
        return values

    lines = (line(k, int(label)) for k, label in enumerate(found.labels))
    writing.save_lines(output, header, lines)
    facts = {
        "command": "modules",
        "input": str(path),
        "output": [str(output)],
        "of": of,
        "modules": list(found.names),
        "sizes": [len(own) for own in found.members],
        "background": int((found.labels < 0).sum()),
    }
    if known is not None:
        facts["enrichment"] = [row._asdict() for row in enriched]
    text = [str(found), *(_sets_of(best, len(found)) if known is not None else ())]
    console.answer("\n".join([*text, f"The module of each {of[:-1]} is in {output}."]), facts)


def _sets_of(best: dict[int, Enriched], count: int) -> list[str]:
    """A line for each module: the set that is most enriched in it."""
    return ["The most enriched set of each module:"] + [
        f"  {g:3d}  {best[g].set}, {best[g].summary}" if g in best else f"  {g:3d}  none"
        for g in range(count)
    ]


@command()
def rank(
    console: Console,
    path: o.Learned,
    labels: o.Labels,
    output: Annotated[
        Path,
        o.output(
            "Output file, .csv or .tsv (also .gz): group, feature, distance, times, mean share",
            "inside and outside of the group.",
        ),
    ],
    key: o.Key = "cometric",
    n_features: Annotated[
        int, o.of_kind("--n-features", Count(), help="Number of features of each group.")
    ] = 20,
    labels_from: o.LabelsFrom = None,
    n_threads: o.Threads = None,
    force: o.Force = False,
) -> None:
    """Rank the features of each group of samples in RESULT, the nearest to the group first."""
    writing.check(output, files.TABLES, [output], force=force)
    result, data = files.load(path, key)
    column = files.labels_of(result, data, labels, path, key, labels_from)
    if data is not None and labels_from is None:
        files.check_groups(data, labels, key)
    rows = rank_features(
        result, column, n_features=n_features, n_threads=n_threads, progress=console.progress
    )
    writing.save_lines(output, Ranked._fields, rows)
    groups = list(dict.fromkeys(row.group for row in rows))
    best = {group: [row.feature for row in rows if row.group == group][:8] for group in groups}
    width = max(map(len, groups))
    lines = [f"  {group:{width}}  {', '.join(names)}" for group, names in best.items()]
    console.answer(
        "\n".join([*lines, f"The features of {len(groups)} groups are in {output}."]),
        {"command": "rank", "input": str(path), "output": [str(output)], "features": best},
    )
