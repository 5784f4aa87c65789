"""Input and output files of commands: the options for them, reading and checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import cometric
from cometric.answers.result import Result
from cometric.cli.console import Console
from cometric.core.arguments import quoted, suggestion
from cometric.core.inputs import counted, read_matrix, read_names
from cometric.core.matching import find_bins, select
from cometric.core.warn import warn
from cometric.files import reading, rows, writing
from cometric.files.tables import kind_of

if TYPE_CHECKING:
    from anndata import AnnData

TABLES = (".csv", ".tsv")
"""File extensions of tables."""


@dataclass(frozen=True)
class Data:
    """Data to learn from."""

    data: Path
    layer: str | None = None
    use_raw: bool = False
    transpose: bool = False

    @property
    def source(self) -> dict[str, Any]:
        """Which matrix of an AnnData is used."""
        return {"layer": self.layer, "use_raw": self.use_raw}

    def read(self, console: Console) -> tuple[AnnData, Any]:
        """The data, and the matrix to learn from."""
        from cometric.scverse import slots

        data = reading.read(self.data, transpose=self.transpose)
        matrix = slots.matrix(data, **self.source)
        console.source = self.data, matrix, self.transpose
        return data, matrix

    @contextmanager
    def opened(self, console: Console, whole: float) -> Iterator[tuple[Any, Any]]:
        """The matrix, and the AnnData (or its group in a file) that has its tables.

        .zarr files, and .h5ad files of more than ``whole`` bytes, are not read whole.
        """
        kind = kind_of(self.data)
        large = self.data.is_file() and self.data.stat().st_size > whole
        if kind != ".zarr" and (kind != ".h5ad" or self.transpose or not large):
            data, matrix = self.read(console)
            yield matrix, data
            return
        if self.transpose:
            raise ValueError("`transpose` is not for .zarr files, which are read by rows.")
        with rows.open_store(self.data, **self.source) as store:
            console.source = self.data, store, False
            yield store, store.file


@dataclass(frozen=True)
class Output:
    """The file to write."""

    output: Path
    force: bool = False

    def check(self, *endings: str) -> list[Path]:
        """The files to write, if any; raises, before any work, if they cannot be written."""
        files = [] if self.output is None else [self.output]
        for path in files:
            writing.check(path, endings, files, force=self.force)
        return files


@dataclass(frozen=True)
class MaybeOutput(Output):
    """The file to write, if there is one: the command also prints its result."""

    output: Path = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Learned:
    """The file of a result."""

    result: Path
    key: str = "cometric"

    def load(self) -> Loaded:
        """The result in a file that ``learn`` wrote, and its data, if the file has them."""
        path = self.result
        if kind_of(path) == ".h5ad":
            from cometric.scverse import get

            data = reading.read(path)
            try:
                return Loaded(get.result(data, key=self.key), data, path, self.key)
            except (KeyError, ValueError) as error:
                raise ValueError(f"`{path}`: {error.args[0]}") from error
        if kind_of(path) != ".npz":
            raise ValueError(f"`{path}` is not a result. Pass a .npz or .h5ad file of `learn`.")
        if not path.exists():
            raise reading.missing(path)
        return Loaded(cometric.load(path), None, path, self.key)


class Loaded(NamedTuple):
    """A result, and its data, if its file has them."""

    result: Result
    data: AnnData | None
    path: Path
    key: str

    def labels(
        self, name: str, table: Path | None, option: str = "labels", groups: bool = False
    ) -> Any:
        """The labels of the learned samples (or landmarks), from ``.obs`` or a table.

        For ``groups``, real numbers, and columns without any label, are refused.
        """
        import pandas as pd

        from cometric.scverse import sketches

        if table is not None:
            names = self.result.problem.samples.item_names
            values: Any = np.array(reading.read_labels(table, name, names, option), dtype=object)
        elif self.data is None or not len(self.data.obs.columns):
            raise ValueError(
                f"`{option}` is {name!r}; `{self.path}` has no columns of labels; pass a table by "
                "`labels_from`, or learn from, and write, .h5ad."
            )
        elif name not in self.data.obs:
            columns = ", ".join(map(repr, self.data.obs))
            meant = suggestion(name, self.data.obs)
            raise ValueError(f"`{option}` is {name!r}; `{self.path}` has {columns}.{meant}")
        else:
            values = self.data.obs[name].array  # keeps the order of categories
        if groups and pd.isna(values).all():
            raise ValueError(f"`{option}` is {name!r}, which has no labels: all are missing.")
        if groups and pd.api.types.is_float_dtype(values):
            raise ValueError(
                f"`{option}` is {name!r}, a column of real numbers; pass one of labels."
            )
        if table is not None or self.data is None:
            return values
        if sketches.has_landmarks(self.data, self.key):
            if groups:
                sketches.labels_of_landmarks(self.data, values, self.key)  # warns
            values = values[sketches.landmark_rows(self.data, self.key, "comparing labels")]
        return values[self.result.problem.samples.kept]


@dataclass(frozen=True)
class New(Data):
    """The file of new samples for a result."""

    drop_empty: bool = False

    def read_for(self, known: Loaded, console: Console) -> tuple[AnnData, Any]:
        """The data, and the matrix to use: by default that of the result, if present."""
        from cometric.scverse import slots

        data = reading.read(self.data, transpose=self.transpose)
        layer, use_raw = self.layer, self.use_raw
        if known.data is not None and kind_of(self.data) == ".h5ad":
            params = slots.read(known.data, known.key)["params"]
            there = params.get("layer"), bool(params["use_raw"])
            has_it = there[0] in data.layers if there[0] else there[1] and data.raw is not None
            if layer is None and not use_raw and has_it:
                layer, use_raw = there
            if (layer, use_raw) != there:
                warn(
                    f"The result was learned from {_place(*there)}; `{self.data}` is read from "
                    f"{_place(layer, use_raw)}."
                )
        matrix = slots.matrix(data, layer=layer, use_raw=use_raw)
        if self.drop_empty:
            data, matrix = self._without_unknown(known.result, data, matrix)
        console.source = self.data, matrix, self.transpose
        return data, matrix

    def _without_unknown(self, result: Result, data: AnnData, matrix: Any) -> tuple[AnnData, Any]:
        """New samples without those that have no mass on learned features; warns of these."""
        rows, columns = read_names(matrix)
        counts, features = read_matrix(matrix, "X", least=(1, 1)), result.problem.features
        places = find_bins(
            counts.shape[1], columns, features.kept, features.names, "samples", across=rows
        )
        known = np.diff(select(counts, places).indptr) > 0
        if known.all() or not known.any():
            return data, matrix
        names = quoted([str(name) for name in data.obs_names[~known]])
        left = counted(int((~known).sum()), "sample")
        warn(f"`{self.data}` has {left} without mass on anything learned, left out: {names}.")
        whole = matrix is data
        data = data[known].copy()
        return data, data if whole else matrix[known]


def _place(layer: str | None, use_raw: bool) -> str:
    if use_raw:
        return ".raw"
    return ".X" if layer is None else f"the layer {layer!r}"


GROUPS = {group.__name__: group for group in (Data, Output, MaybeOutput, Learned, New)}
"""Groups of options: a command with a parameter of this class gets its fields as options."""
