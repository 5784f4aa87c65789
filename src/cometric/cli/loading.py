"""Input and output files of commands: the options for them, reading and checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cometric
from cometric.cli.console import Console
from cometric.core.arguments import suggestion
from cometric.core.warn import warn
from cometric.files import reading, rows, writing
from cometric.files.tables import kind_of
from cometric.results.result import Result

if TYPE_CHECKING:
    from anndata import AnnData

Known = tuple[Result, "AnnData | None"]
"""A result, and its data, if its file has them."""

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

    def read_for(self, learned: Learned, known: Known, console: Console) -> tuple[AnnData, Any]:
        """New data, and the matrix to use: by default that of the result, if present."""
        from cometric.scverse import slots

        data = reading.read(self.data, transpose=self.transpose)
        here = self.layer, self.use_raw
        if known[1] is not None and kind_of(self.data) == ".h5ad":
            params = slots.read(known[1], learned.key)["params"]
            there = params.get("layer"), bool(params["use_raw"])
            has_it = there[0] in data.layers if there[0] else there[1] and data.raw is not None
            if here == (None, False) and has_it:
                here = there
            if here != there:
                warn(
                    f"The result was learned from {_place(*there)}; `{self.data}` is read from "
                    f"{_place(*here)}."
                )
        matrix = slots.matrix(data, layer=here[0], use_raw=here[1])
        console.source = self.data, matrix, self.transpose
        return data, matrix


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

    def load(self) -> Known:
        """The result in a file that ``learn`` wrote, and its data, if the file has them."""
        path = self.result
        if kind_of(path) == ".h5ad":
            from cometric.scverse import get

            data = reading.read(path)
            try:
                return get.result(data, key=self.key), data
            except (KeyError, ValueError) as error:
                raise ValueError(f"`{path}`: {error.args[0]}") from error
        if kind_of(path) != ".npz":
            raise ValueError(f"`{path}` is not a result. Pass a .npz or .h5ad file of `learn`.")
        if not path.exists():
            raise reading.missing(path)
        return cometric.load(path), None

    def labels(
        self,
        known: Known,
        name: str,
        table: Path | None,
        option: str = "labels",
        groups: bool = False,
    ) -> Any:
        """The labels of the learned samples (or landmarks), from ``.obs`` or a table.

        For ``groups``, real numbers, and columns without any label, are refused.
        """
        import pandas as pd

        from cometric.scverse import sketches, slots

        result, data = known
        if table is not None:
            names = result.problem.samples.item_names
            obs = pd.DataFrame({name: reading.read_labels(table, name, names, option)})
        elif data is None or not len(data.obs.columns):
            raise ValueError(
                f"`{option}` is {name!r}; `{self.result}` has no columns of labels; pass a table "
                "by `labels_from`, or learn from, and write, .h5ad."
            )
        else:
            obs = data.obs
        if name not in obs:
            columns = ", ".join(map(repr, obs))
            meant = suggestion(name, obs)
            raise ValueError(f"`{option}` is {name!r}; `{self.result}` has {columns}.{meant}")
        if groups:
            slots.check_groups("obs", obs, name)
        values = obs[name].array  # keeps the order of categories
        if table is not None or data is None:
            return values
        if sketches.has_landmarks(data, self.key):
            if groups:
                sketches.labels_of_landmarks(data, values, self.key)  # warns
            values = values[sketches.landmark_rows(data, self.key, "comparing labels")]
        return values[result.problem.samples.kept]


def _place(layer: str | None, use_raw: bool) -> str:
    if use_raw:
        return ".raw"
    return ".X" if layer is None else f"the layer {layer!r}"


GROUPS = {group.__name__: group for group in (Data, Output, MaybeOutput, Learned)}
"""Groups of options: a command with a parameter of this class gets its fields as options."""
