"""Writing results and tables: atomically, and never over an existing file by accident."""

from __future__ import annotations

import csv
import gzip
import io
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scipy import sparse

from cometric.core.text import storable
from cometric.files.storage import replacing
from cometric.files.tables import is_formula, kind_of

if TYPE_CHECKING:
    from anndata import AnnData

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""The separator of each kind of table that is written; ``.gz`` may follow."""

COPIED = 2**24
"""Bytes to copy at a time."""


class WriteError(OSError):
    """A file could not be written; a previous one of that name is intact."""


def targets(output: Path) -> list[Path]:
    """The files a result goes to: two for tables, ``x.samples.csv`` and ``x.features.csv``."""
    kind = kind_of(output)
    if kind not in SEPARATORS:
        return [output]
    size = len(kind) + len(".gz") * (output.suffix.lower() == ".gz")
    stem, ending = output.name[:-size], output.name[-size:]
    return [output.with_name(f"{stem}.{side}{ending}") for side in ("samples", "features")]


def check(output: Path, known: Iterable[str], paths: Iterable[Path], *, force: bool) -> None:
    """Raise, before any work, if the output could not be written.

    The extension of ``output`` must be a ``known`` one, and none of ``paths``, the files to be
    written, may exist unless ``force``.
    """
    zipped = output.suffix.lower() == ".gz"
    if kind_of(output) not in known or (zipped and kind_of(output) not in SEPARATORS):
        raise ValueError(f"`{output}` should end in {' or '.join(known)}.")
    for path in paths:
        if path.is_dir():
            raise ValueError(f"`{path}` is a folder; pass the name of a file.")
        if path.exists() and not force:
            raise ValueError(f"`{path}` exists; pass another name, or --force to replace it.")
        if not path.parent.is_dir():
            raise ValueError(f"`{path.parent}` is not a folder; make it first.")
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"`{path.parent}` is not writable; choose another folder.")


@contextmanager
def aside(path: Path) -> Iterator[IO[bytes]]:
    """A file that is renamed to ``path`` when complete; failures are a :class:`WriteError`."""
    with failures(path), replacing(path) as file:
        yield file


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a :class:`WriteError` that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise WriteError(f"`{path}` could not be written: {reason}.") from error


def save_anndata(data: AnnData, path: Path) -> None:
    """Write an ``.h5ad`` file.

    It is built in memory: HDF5 does not recover from a full disk.
    """
    import h5py
    from anndata.io import write_elem

    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        try:
            write_elem(file, "/", data)
        except ValueError as error:  # strings or types that HDF5 cannot hold
            raise WriteError(f"`{path}` could not be written: {error}.") from error
    with aside(path) as file:
        file.write(image.getbuffer())


def save_copy(source: Path, path: Path, added: dict[str, dict[str, Any]]) -> None:
    """Copy an ``.h5ad`` file and write ``added`` to the copy, by slot (``obs``, ``uns``) and name.

    The file is copied as bytes, without reading its data into memory.
    """
    import h5py

    needed = source.stat().st_size + _size(added)
    with failures(path):
        free = shutil.disk_usage(path.parent).free
    if needed > free:  # HDF5 does not recover from a full disk
        raise WriteError(
            f"`{path}` could not be written: it takes {needed / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB are free."
        )
    with aside(path) as file:
        with open(source, "rb") as data:
            shutil.copyfileobj(data, file, COPIED)
        file.flush()
        with h5py.File(file.name, "r+") as copy:
            _add(copy, added, path)


def save_slots(tables: Any, path: Path, added: dict[str, dict[str, Any]]) -> None:
    """Write an ``.h5ad`` file with the tables ``obs`` and ``var`` and ``added``, without data."""
    from anndata import AnnData
    from anndata.io import read_elem

    data = AnnData(obs=read_elem(tables["obs"]), var=read_elem(tables["var"]))
    for where, items in added.items():
        for name, value in items.items():
            getattr(data, where)[name] = value
    save_anndata(data, path)


def _add(copy: Any, added: dict[str, dict[str, Any]], path: Path) -> None:
    """Write items to groups of an open file of anndata."""
    from anndata.io import write_elem

    for where, items in added.items():
        if where not in copy:
            write_elem(copy, where, {})
        for name, value in items.items():
            try:
                write_elem(copy[where], name, value)
            except ValueError as error:  # strings or types that HDF5 cannot hold
                raise WriteError(f"`{path}` could not be written: {error}.") from error
            if where == "obs":
                columns = [str(column) for column in copy["obs"].attrs.get("column-order", [])]
                columns = [*(column for column in columns if column != name), name]
                copy["obs"].attrs["column-order"] = columns


def _size(value: Any) -> float:
    """Approximate bytes of all arrays in nested dictionaries."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if sparse.issparse(value):
        return float(value.data.nbytes + value.indices.nbytes + value.indptr.nbytes)
    return float(getattr(value, "nbytes", 100))


def save_table(path: Path, table: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Write a matrix with names of rows and columns."""
    lines = ([name, *values.tolist()] for name, values in zip(rows, table, strict=True))
    save_lines(path, ["", *columns], lines)


def save_neighbors(
    path: Path, item: str, rows: Sequence[str], columns: Sequence[str], graph: sparse.csr_matrix
) -> None:
    """Write a line per entry of ``graph``: the item, its neighbor, the distance."""
    starts = graph.indptr
    lines = (
        [name, columns[j], away]
        for i, name in enumerate(rows)
        for j, away in zip(
            graph.indices[starts[i] : starts[i + 1]].tolist(),
            graph.data[starts[i] : starts[i + 1]].tolist(),
            strict=True,
        )
    )
    save_lines(path, [item, "neighbor", "distance"], lines)


def save_lines(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a table as text that spreadsheets, R and pandas read; numbers with all digits."""
    separator = SEPARATORS[kind_of(path)]
    with aside(path) as raw, ExitStack() as stack:
        file: Any = raw
        if path.suffix.lower() == ".gz":  # without name and time: same table, same bytes
            file = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
        text = io.TextIOWrapper(file, "utf-8", newline="")
        stack.callback(text.detach)  # closing it would close the file, too
        writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        for line in chain([header], lines):
            writer.writerow([_quoted(cell) if isinstance(cell, str) else cell for cell in line])


def _quoted(name: str) -> str:
    """The name, with a ' before a formula so that no spreadsheet runs it."""
    return storable(f"'{name}" if is_formula(name) else name)
