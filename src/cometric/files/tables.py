"""Tables of numbers or labels as text, as R, pandas and spreadsheets write them."""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from cometric.core.arguments import suggestion
from cometric.core.inputs import counted

FORMULA = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]*"
    r"[=+\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b]|[\t\r\n]"
)
"""The start of a cell that a spreadsheet takes for a formula: = + - @, also full-width or small,
after any invisible characters, or a tab or newline."""

MISSING = ["", "NA", "NaN", "nan"]

TEXT = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
"""The separator of the cells of a table, by file extension."""


def kind_of(path: Path) -> str:
    """The extension of a file, in lower case, without ``.gz``."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def unquoted(name: str) -> str:
    """A name without the quote that :mod:`cometric.files.writing` puts before a formula."""
    return name[1:] if name.startswith("'") and is_formula(name) else name


def is_formula(name: str) -> bool:
    """Whether a spreadsheet could run this as a formula, without quotes before it."""
    return FORMULA.match(name.lstrip("'")) is not None


def open_text(path: Path) -> IO[str]:
    """A file open as text in UTF-8, decompressed if it ends in ``.gz``; newlines of any kind."""
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    file: IO[str] = opener(path, "rt", encoding="utf-8-sig")
    return file


@contextmanager
def table_rows(path: Path) -> Iterator[Any]:
    """A reader of the lines of a table, each a list of cells."""
    with open_text(path) as text:
        yield csv.reader(text, delimiter=TEXT[kind_of(path)])


class Table(NamedTuple):
    """Numbers, with the names of rows and columns if the file has them."""

    values: np.ndarray[Any, Any]
    samples: list[str] | None
    features: list[str] | None


class Layout(NamedTuple):
    """How a table is written, from its first two lines."""

    width: int
    features: list[str] | None  # names in the header, if there is one
    named: bool  # whether lines begin with a name
    lines: int  # of the header, 0 without one


def read_table(path: Path) -> Table:
    """The numbers in a table, and their names."""
    import pandas as pd

    layout = layout_of(path)
    columns = range(layout.width)
    text_columns = {0: str} if layout.named else {}
    # Opened as text, with newlines "\n": the parser of pandas may loop forever at a lone "\r".
    with open_text(path) as text:
        try:
            table = pd.read_csv(
                text,
                sep=TEXT[kind_of(path)],
                header=None,
                skiprows=layout.lines,
                names=columns,
                dtype={k: text_columns.get(k, np.float64) for k in columns},
                keep_default_na=False,
                na_values={k: MISSING for k in columns if k not in text_columns},
                low_memory=False,
                **precision(pd.__version__),
            )
        except ValueError:
            _find_text_cell(path, layout)
            raise
    samples = [unquoted(name) for name in table.pop(0)] if layout.named else None
    values = table.to_numpy()
    if np.isinf(values).any():  # pandas 3.1 reads 1e400 as infinite
        _find_text_cell(path, layout)
    return Table(values, samples, layout.features)


def precision(version: str) -> dict[str, Any]:
    """Options for pandas to read every digit; since 3.1 it always does, and the option warns."""
    new = tuple(map(int, version.split(".")[:2])) >= (3, 1)
    return {} if new else {"float_precision": "round_trip"}


def layout_of(path: Path) -> Layout:
    """How a table is written; raises if its first two lines do not fit together."""
    with table_rows(path) as rows:
        filled = filter(_filled, rows)
        header: list[str] = next(filled, [])
        lines = rows.line_num
        first: list[str] = next(filled, [])
    if not first:
        raise ValueError(f"`{path}` has fewer than two lines; pass a table.")
    if len(header) == len(first) == 1:
        raise ValueError(
            f"`{path}` has one cell in a line; in {kind_of(path)} files cells are separated by "
            f"{TEXT[kind_of(path)]!r}. Use this separator, or another file extension."
        )
    short = len(header) == len(first) - 1  # as R writes it: no cell above the names
    named = short or not _is_number(first[0]) or header[0] == ""
    has_header = short or header[0] == "" or not all(map(_is_number, header[int(named) :]))
    if len(header) not in (len(first), len(first) - 1):
        top = "header" if has_header else "first line"
        raise ValueError(
            f"`{path}` has a {top} of {counted(len(header), 'cell')} above lines of {len(first)}; "
            f"in {kind_of(path)} files {TEXT[kind_of(path)]!r} separates cells. Mend the file."
        )
    numbers = len(first) - named
    features = [unquoted(name) for name in header[-numbers:]] if has_header else None
    return Layout(len(first), features, named, lines if has_header else 0)


def line_of(path: Path, layout: Layout, row: int) -> int:
    """The line of the file where a row of numbers ends; there may be empty lines before it."""
    with table_rows(path) as rows:
        ends = (rows.line_num for cells in rows if rows.line_num > layout.lines and _filled(cells))
        end: int = next(islice(ends, row, None))
    return end


def numbered(word: str, number: int, name: str | None) -> str:
    """A line or column by its number, and by its name if it has one."""
    return f"{word} {number}" if name is None else f"{word} {number} ({name!r})"


def _filled(cells: list[str]) -> bool:
    """Whether the cells are a row: like pandas, skip lines of white space."""
    return len(cells) > 1 or bool("".join(cells).strip())


def _find_text_cell(path: Path, layout: Layout) -> None:
    """Raise at the first cell that is not a number; pandas does not say where it is."""
    with table_rows(path) as rows:
        for row in rows:
            if rows.line_num <= layout.lines or not _filled(row):
                continue
            for k, cell in enumerate(row[: layout.width]):
                if (k == 0 and layout.named) or cell in MISSING or _is_number(cell):
                    continue
                line = numbered("line", rows.line_num, row[0] if layout.named else None)
                feature = None if layout.features is None else layout.features[k - layout.named]
                raise ValueError(
                    f"`{path}` has {cell!r} where a number belongs ({line}, "
                    f"{numbered('column', k + 1, feature)}). Mend it, or leave out its row or "
                    "column."
                )


def _is_number(cell: str) -> bool:
    try:
        value = float(cell)
    except ValueError:
        return cell in MISSING[1:]
    # Python alone accepts 1_000, and reads 1e999 as infinite.
    return "_" not in cell and (math.isfinite(value) or "n" in cell.lower())


def read_column(path: Path, column: str, option: str) -> dict[str, str | None]:
    """The labels in a column of a table, by the name in its first column."""
    labels: dict[str, str | None] = {}
    with table_rows(path) as rows:
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
