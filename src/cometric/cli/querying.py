"""Commands for results: neighbors, new samples and their labels, modules, ranks, a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import cometric
from cometric.cli.console import Console, Exit
from cometric.cli.loading import TABLES, Data, Learned, MaybeOutput, Output
from cometric.cli.options import borrowed, command
from cometric.core.arguments import check_side
from cometric.core.nearest import (
    check_neighborhood,
    check_neighbors,
    default_neighbors,
    nearest,
    neighbor_matrix,
)
from cometric.files import reading, writing
from cometric.files.sets import read_sets
from cometric.files.tables import kind_of
from cometric.results.groups import Ranked

SIGNIFICANT = 0.05
"""Largest q-value of a set that is written for a module."""


@command(
    output="Output file. .csv or .tsv (also .gz): a table of item, neighbor, distance; .h5ad, from "
    "an .h5ad RESULT: the graph of `sc.pp.neighbors`."
)
def neighbors(
    console: Console, learned: Learned, target: Output, n_neighbors: int = 15, of: str = "samples"
) -> Exit:
    """Find the nearest neighbors of each sample, or feature, in the learned metric."""
    from cometric.scverse import get, pp, sketches, slots

    check_side(of)
    path, output, key = learned.result, target.output, learned.key
    with_data = kind_of(path) == ".h5ad" and of == "samples"
    target.check(*TABLES, *((".h5ad",) if with_data else ()))
    if kind_of(output) == ".h5ad":
        data = reading.read(path)
        pp.neighbors(data, n_neighbors, key=key)
        count = data.n_obs
        writing.save_anndata(data, output)
    else:
        result, data = learned.load()
        if data is not None and of == "samples" and sketches.has_landmarks(data, key):
            # All samples of the data, not only landmarks: their neighbors are stored.
            names = get.names(data, key=key)
            check_neighborhood(n_neighbors, len(names), "sample")
            near = slots.nearest_cells(get.distances(data, key=key), n_neighbors - 1, key)
        else:
            names = list(getattr(result.problem, of).item_names)
            check_neighborhood(n_neighbors, len(names), of[:-1])
            near = nearest(getattr(result, of), n_neighbors - 1, skip_self=True)
        count = len(names)
        writing.save_neighbors(output, of[:-1], names, names, neighbor_matrix(*near, count))
    text = f"The {n_neighbors - 1} nearest of each of {count} {of} are in {output}."
    facts = {"of": of, "items": count, "n_neighbors": n_neighbors}
    return console.answer("neighbors", text, [path], [output], facts)


@command(
    data="New samples (with --of features: new features), in any format of `learn`, matched by the "
    "names of their features (or samples).",
    n_neighbors="Write only this many nearest learned items of each new one. A new item is not one "
    "of them; `neighbors` and `landmarks` count each item as its own neighbor.",
    output="Output file. .csv or .tsv (also .gz): a row per new sample, or with --n-neighbors a "
    "table of item, neighbor, distance; .h5ad: the new data with the distances in obsm.",
)
def transform(
    console: Console,
    learned: Learned,
    new: Data,
    target: Output,
    of: str = "samples",
    n_neighbors: int | None = None,
    n_threads: int | None = None,
) -> Exit:
    """Compute distances of the new samples in DATA to the samples of RESULT.

    If both files are .h5ad, uses the layer, or .raw, that the result was learned from.
    """
    from cometric.scverse import slots

    check_side(of)
    alone = of == "features" or n_neighbors is not None
    target.check(*TABLES, *(() if alone else (".h5ad",)))
    known, output = learned.load(), target.output
    data, matrix = new.read_for(learned, known, console)
    distances = known[0].transform(
        matrix, of=of, n_neighbors=n_neighbors, n_threads=n_threads, progress=console.progress
    )
    rows = list(map(str, matrix.obs_names if of == "samples" else matrix.var_names))
    columns = list(getattr(known[0].problem, of).item_names)
    if n_neighbors is not None:
        writing.save_neighbors(output, of[:-1], rows, columns, distances)
    elif kind_of(output) == ".h5ad":
        import pandas as pd

        slot = slots.distances_key(learned.key)
        data.obsm[slot] = pd.DataFrame(distances, data.obs_names, columns)
        writing.save_anndata(data, output)
    else:
        writing.save_table(output, distances, rows, columns)
    near = "" if n_neighbors is None else f"the {n_neighbors} nearest of "
    text = f"The distances of {len(rows)} new {of} to {near}{len(columns)} learned ones are in"
    facts = {"of": of, "new": len(rows), "learned": len(columns)}
    files = [learned.result, new.data]
    return console.answer("transform", f"{text} {output}.", files, [output], facts)


@command(
    data="New samples, in any format of `learn`, matched by the names of their features.",
    n_neighbors="Number of nearest samples that vote. Default: 15, or all others if fewer.",
    output="Output file. .csv or .tsv (also .gz): a table of sample, label, confidence, novelty; "
    ".h5ad: the new data with these as columns of obs.",
)
def transfer(
    console: Console,
    learned: Learned,
    new: Data,
    target: Output,
    labels: str,
    labels_from: Path | None = None,
    n_neighbors: int | None = None,
    n_threads: int | None = None,
) -> Exit:
    """Label the new samples in DATA by a vote of the nearest labeled samples of RESULT.

    Confidence is the probability that a label is right, estimated from the labeled samples. Samples
    of a kind that RESULT does not have are given a label, too; their novelty is near 1. If both
    files are .h5ad, uses the layer, or .raw, that the result was learned from.
    """
    import pandas as pd

    from cometric.scverse import slots, tl_mapping

    target.check(*TABLES, ".h5ad")
    known, output = learned.load(), target.output
    given = pd.Categorical(learned.labels(known, labels, labels_from, groups=True))
    n_neighbors = default_neighbors(n_neighbors, len(given) - 1)
    check_neighbors(n_neighbors, len(given) - 1)
    data, matrix = new.read_for(learned, known, console)
    distances = known[0].transform(
        matrix, n_neighbors=n_neighbors, n_threads=n_threads, progress=console.progress
    )
    answer = cometric.transfer_labels(
        distances, given.astype(object), n_neighbors, within=np.asarray(known[0].samples)
    )
    if kind_of(output) == ".h5ad":
        name = f"{learned.key}_{labels}"
        slots.check_key(name)
        tl_mapping.store_labels(data, answer, given, name, "samples")
        writing.save_anndata(data, output)
    else:
        names = ["" if pd.isna(label) else str(label) for label in answer.labels]
        columns = answer.confidence.tolist(), np.asarray(answer.novelty).tolist()
        lines = zip(map(str, matrix.obs_names), names, *columns, strict=True)
        writing.save_lines(output, ["sample", "label", "confidence", "novelty"], lines)
    counts = pd.Series(answer.labels).value_counts()
    facts = {
        "new": len(answer.labels),
        "learned": len(given),
        "n_neighbors": n_neighbors,
        "labels": {str(label): int(count) for label, count in counts.items()},
    }
    text = f"{answer}\nThe labels of {len(answer.labels)} new samples are in {output}."
    return console.answer("transfer", text, [learned.result, new.data], [output], facts)


@command(
    *borrowed(
        cometric.modules,
        "n_neighbors resolution coherence min_size random_state",
        n_neighbors="Number of neighbors of each item in the graph.",
    ),
    of="Modules of features, or groups of samples.",
    output="Output file, .csv or .tsv (also .gz): the module of each item, -1 for background, its "
    "rank in the module, its coherence and the name of the module; with --sets also the set that "
    "is most enriched in the module. Default: only the list of modules is printed.",
)
def modules(
    console: Console,
    learned: Learned,
    target: MaybeOutput,
    of: str = "features",
    sets: Path | None = None,
    **options: Any,
) -> Exit:
    """Find modules of features of RESULT that are near one another, such as gene programs."""
    written = target.check(*TABLES)
    if sets is not None and of == "samples":
        raise ValueError("`sets` are sets of features; leave out `of`.")
    given = None if sets is None else read_sets(sets)
    result, _ = learned.load()
    found = cometric.modules(result, of, **options)
    enriched = () if given is None else found.enrichment(given)
    best = {row.module: row for row in reversed(enriched) if row.q <= SIGNIFICANT}
    text, header = str(found), [of[:-1], "module", "rank", "coherence", "name"]
    facts = {
        "of": of,
        "modules": list(found.names),
        "sizes": [len(own) for own in found.members],
        "background": int((found.labels < 0).sum()),
    }
    if given is not None:
        header += ["set", "q"]
        facts["enrichment"] = [row._asdict() for row in enriched]
        text += "\nThe most enriched set of each module:"
        for g in range(len(found)):
            text += f"\n  {g:3d}  {f'{best[g].set}, {best[g].summary}' if g in best else 'none'}"
    places = {int(k): place for own in found.members for place, k in enumerate(own, 1)}
    lines = []
    for k, item in enumerate(getattr(result.problem, of).item_names):
        label = int(found.labels[k])
        name = found.names[label] if label >= 0 else ""
        lines.append([item, label, places.get(k, ""), float(found.coherence[k]), name])
        if given is not None:
            lines[-1] += [best[label].set, best[label].q] if label in best else ["", ""]
    for path in written:
        writing.save_lines(path, header, lines)
        text += f"\nThe module of each {of[:-1]} is in {path}."
    return console.answer("modules", text, [learned.result], written, facts)


@command(
    *borrowed(
        cometric.rank_features,
        "n_features n_threads",
        n_features="Number of features of each group.",
    ),
    output="Output file, .csv or .tsv (also .gz): group, feature, distance, times, mean share "
    "inside and outside of the group. Default: the first eight of each group are printed.",
)
def rank(
    console: Console,
    learned: Learned,
    target: MaybeOutput,
    labels: str,
    labels_from: Path | None = None,
    **options: Any,
) -> Exit:
    """Rank the features of each group of samples in RESULT, the nearest to the group first."""
    written = target.check(*TABLES)
    known = learned.load()
    groups = learned.labels(known, labels, labels_from, groups=True)
    rows = cometric.rank_features(known[0], groups, progress=console.progress, **options)
    best: dict[str, list[str]] = {}
    for row in rows:
        best.setdefault(row.group, []).append(row.feature)
    lines = [f"  {group}: {', '.join(names[:8])}" for group, names in best.items()]
    for path in written:
        writing.save_lines(path, Ranked._fields, rows)
        lines += [f"The features of {len(best)} groups are in {path}."]
    facts = {"features": best}
    return console.answer("rank", "\n".join(lines), [learned.result], written, facts)


@command(
    labels="Column of `.obs` in an .h5ad RESULT, or of the table --labels-from, for colors; "
    "several times for several.",
    method="How the two maps are drawn: tsne or umap.",
    output="Output file, .html: one page that loads nothing else.",
)
def report(
    console: Console,
    learned: Learned,
    target: Output,
    labels: list[str] | None = None,
    clusters: list[str] | None = None,
    labels_from: Path | None = None,
    title: str | None = None,
    method: str = "tsne",
    certify: bool = False,
) -> Exit:
    """Write an HTML page about RESULT: a summary, two linked maps, modules, error bounds."""
    target.check(".html")
    if labels_from is not None and not labels and not clusters:
        raise ValueError("`labels_from` needs `labels` or `clusters`, the name of a column.")
    known, output = learned.load(), target.output
    colors = {
        option: {name: learned.labels(known, name, labels_from, option) for name in names}
        for option, names in (("labels", labels), ("clusters", clusters))
        if names
    }
    from cometric.report import write

    proved = known[0].certify(progress=console.progress) if certify else None
    shown: dict[str, Any] = {"title": title, "method": method, "certificate": proved, **colors}
    with writing.failures(output):
        write(known[0], output, force=target.force, progress=console.progress, **shown)
    return console.answer("report", f"The report is in {output}.", [learned.result], [output], {})
