"""The command for labels of new samples, by a vote of their nearest learned ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from cometric.answers.transfer import NOVEL, SURE, transfer_labels
from cometric.cli import files
from cometric.cli import options as o
from cometric.cli.command import command
from cometric.cli.console import Console
from cometric.core.nearest import check_neighbors, default_neighbors
from cometric.files import writing
from cometric.files.tables import kind_of


@command()
def transfer(
    console: Console,
    path: o.Learned,
    new: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="New samples, in any format of `learn`, matched by the names of their features.",
        ),
    ],
    labels: o.Labels,
    output: Annotated[
        Path,
        o.output(
            "Output file. .csv or .tsv (also .gz): a table of sample, label, confidence, novelty;",
            ".h5ad: the new data with these as columns of obs.",
        ),
    ],
    source: o.Source,
    key: o.Key = "cometric",
    labels_from: o.LabelsFrom = None,
    n_neighbors: o.Voters = None,
    drop_empty: o.DropUnknown = False,
    n_threads: o.Threads = None,
    force: o.Force = False,
) -> None:
    """Label the new samples in DATA by a vote of the nearest labeled samples of RESULT.

    Confidence is the probability that a label is right, estimated from the labeled samples. Samples
    of a kind that RESULT does not have are given a label, too; their novelty is near 1. Of an .h5ad
    DATA that layer, or .raw, is used which an .h5ad RESULT was learned from.
    """
    import pandas as pd

    from cometric.scverse import placing, slots

    writing.check(output, (*files.TABLES, ".h5ad"), [output], force=force)
    result, reference = files.load(path, key)
    known = _labels(files.labels_of(result, reference, labels, path, key, labels_from), labels)
    others = len(known) - 1
    n_neighbors = default_neighbors(n_neighbors, others)
    check_neighbors(n_neighbors, others)
    console.use_source(new)
    data, matrix = files.read_new(result, new, source, drop_empty, reference, key)
    console.use_source(new, matrix, source.transpose)
    distances = result.transform(
        matrix, n_neighbors=n_neighbors, n_threads=n_threads, progress=console.progress
    )
    answer = transfer_labels(
        distances, known.astype(object), n_neighbors, within=np.asarray(result.samples)
    )
    if kind_of(output) == ".h5ad":
        name = f"{key}_{labels}"
        slots.check_key(name)
        placing.store_labels(data, answer, known, name, "samples")
        writing.save_anndata(data, output)
    else:
        given = ["" if pd.isna(label) else str(label) for label in answer.labels]
        columns = answer.confidence.tolist(), np.asarray(answer.novelty).tolist()
        lines = zip(map(str, matrix.obs_names), given, *columns, strict=True)
        writing.save_lines(output, ["sample", "label", "confidence", "novelty"], lines)
    counts = pd.Series(answer.labels).value_counts()
    console.answer(
        f"{answer}\nThe labels of {len(answer.labels)} new samples are in {output}.",
        {
            "command": "transfer",
            "input": [str(path), str(new)],
            "output": [str(output)],
            "new": len(answer.labels),
            "learned": len(known),
            "n_neighbors": n_neighbors,
            "labels": {str(label): int(count) for label, count in counts.items()},
            "unsure": int((answer.confidence < SURE).sum()),
            "novel": int((np.asarray(answer.novelty) > NOVEL).sum()),
        },
    )


def _labels(values: Any, name: str) -> Any:
    """Labels as categories; raises if they are real numbers, or all missing."""
    import pandas as pd

    known = pd.Categorical(values)
    if known.isna().all():
        raise ValueError(f"`labels` is {name!r}, which has no labels: all are missing.")
    if pd.api.types.is_float_dtype(values):
        raise ValueError(f"`labels` is {name!r}, a column of real numbers; pass one of labels.")
    return known
