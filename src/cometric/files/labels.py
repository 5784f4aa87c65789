"""Labels of samples, from a table of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from cometric.core.names import quoted, suggestion
from cometric.core.warn import warn
from cometric.files.missing import missing
from cometric.files.reading import MISSING, TEXT, errors_naming, kind_of, table_rows, unquoted


def read_labels(
    path: Path, column: str, names: Sequence[str], limit: float, option: str = "labels"
) -> list[str | float]:
    """The label of each name, from a table whose first column has the names; NaN without one.

    ``option`` is what messages call the ``column``.
    """
    if kind_of(path) not in TEXT:
        raise ValueError(f"`{path}` should be a table of labels, .csv or .tsv.")
    if not path.exists():
        raise missing(path)
    with errors_naming(path):
        labels = _read(path, column, limit, option)
    without = [name for name in names if name not in labels]
    if len(without) == len(names):
        raise ValueError(
            f"`{path}` has none of the {len(names)} samples in its first column (the first sample "
            f"is {names[0]!r}). Pass a table with the names of the samples in its first column."
        )
    if without:
        warn(f"`{path}` has no line for {len(without)} of the samples ({quoted(without)}).")
    chosen = (labels.get(name) for name in names)
    return [float("nan") if label is None else label for label in chosen]


def _read(path: Path, column: str, limit: float, option: str) -> dict[str, str | None]:
    """The labels in a column of a table, by the name in its first column."""
    labels: dict[str, str | None] = {}
    with table_rows(path, limit) as rows:
        header: list[str] = next(rows, [])
        first: list[str] = next(rows, [])
        if len(header) == len(first) - 1:  # as R writes it: no cell above the names
            header = ["", *header]
        if column not in header[1:]:
            columns = ", ".join(map(repr, header[1:])) or "one column only"
            raise ValueError(
                f"`{option}` is {column!r}; `{path}` has {columns}.{suggestion(column, header[1:])}"
            )
        place = header.index(column, 1)
        for line in filter(None, chain([first], rows)):
            name, text = unquoted(line[0]), line[place] if place < len(line) else ""
            label = None if text in MISSING else unquoted(text)
            known = labels.setdefault(name, label)
            if label is not None and known not in (None, label):
                raise ValueError(f"`{path}` has two labels for {name!r}: {known!r}, {label!r}.")
            labels[name] = known if label is None else label
    return labels
