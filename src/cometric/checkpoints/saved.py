"""Reading checkpoints: finds the latest intact one, and compares it with the current run."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cometric.checkpoints.folder import (
    DATA,
    MANIFEST,
    CheckpointError,
    CheckpointWarning,
    numbered,
    read_arrays,
    read_manifest,
    state_name,
)
from cometric.checkpoints.state import Arrays
from cometric.core.types import Record
from cometric.core.warn import warn
from cometric.runtime.progress import amount

SCHEMA = (3, 0)
"""Major and minor version. Readers reject another major version, and ignore fields that a later
minor version adds."""

REASONS = ("overlap", "chosen")
"""Options that only record why others have their values: not compared."""


class UnknownSchema(CheckpointError):
    """A checkpoint was written by a version whose files cannot be read."""


@dataclass(frozen=True)
class Saved:
    """The content of one checkpoint."""

    number: int
    options: dict[str, Any]  # options that change the answer
    used: dict[str, Any]  # values chosen for options that were not given
    stage: int
    iterate: dict[str, Any]  # its fields; arrays are replaced by their names
    arrays: Arrays
    data: dict[str, Any]  # size and checksum of data.npz

    def history(self, stage: int) -> list[Record]:
        """The records of one stage."""
        return [
            Record.from_row(row)
            for number, *row in self.arrays["history"].tolist()
            if number == stage
        ]


def latest(folder: Path) -> Saved | None:
    """The newest intact checkpoint, or None if there is none at all.

    Damaged ones are skipped with a warning that names the file. It is an error if all are
    damaged, or if the newest was written by another major version.
    """
    damages: list[str] = []
    for number, path in sorted(numbered(folder, MANIFEST), reverse=True):
        try:
            saved = _read(folder, number, path)
        except UnknownSchema:
            raise
        except (CheckpointError, OSError) as error:
            damages.append(str(error))
            continue
        for damage in damages:
            warn(
                f"{damage} Continuing from the previous checkpoint, number {number}.",
                CheckpointWarning,
            )
        return saved
    if damages:
        raise CheckpointError(
            f"{' '.join(damages)} No intact checkpoint is left in `{folder}`: "
            "remove the folder and start again."
        )
    return None


def read_data(folder: Path, saved: Saved) -> Arrays:
    """The arrays of data.npz."""
    return read_arrays(folder / DATA, saved.data)


def compare(folder: Path, saved: Saved, options: dict[str, Any]) -> None:
    """Raise if the checkpoint was made with other data or options."""
    here = json.loads(json.dumps(options))
    differences = list(_differences(here, saved.options))
    if differences:
        raise CheckpointError(
            f"`{folder}` holds a checkpoint of another run: {'; '.join(differences)}. "
            "Pass the same options and data, or another folder."
        )


def _differences(here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    """A description of each option that differs; objects of one class are compared by field."""
    for key in dict.fromkeys([*here, *there]):
        one, other = here.get(key), there.get(key)
        if one == other or key in REASONS:
            continue
        if key == "data":  # only checksums are stored
            yield "the data differ"
        elif isinstance(one, dict) and isinstance(other, dict) and _kind(one) == _kind(other):
            yield from _differences(one, other)
        else:
            yield f"`{key}` is {_show(key, one)} here and {_show(key, other)} there"


def _kind(value: dict[str, Any]) -> str:
    """The class of a stored object, without its module."""
    return str(value.get("kind")).rpartition(".")[2]


def _show(key: str, value: Any) -> str:
    if value is None:
        return "not given"
    if key == "memory_limit":
        return amount(value)
    if isinstance(value, dict):
        parts = ", ".join(f"{name}={part}" for name, part in value.items() if name != "kind")
        return f"{_kind(value)}({parts})"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:20]}...{text[-10:]}"


def _read(folder: Path, number: int, path: Path) -> Saved:
    content = read_manifest(path)
    schema = content.get("schema")
    if not isinstance(schema, list) or schema[:1] != [SCHEMA[0]]:
        raise UnknownSchema(
            f"`{path}` has schema {schema}; this version reads {SCHEMA[0]}. "
            "Resume with the version of cometric that wrote it."
        )
    if content["number"] != number:
        raise CheckpointError(f"`{path}` is damaged: its number is {content['number']}.")
    _warn_of_other_versions(content["versions"])
    files, state = content["files"], state_name(number)
    return Saved(
        number,
        content["asked"],
        content["used"],
        content["stage"],
        content["iterate"],
        read_arrays(folder / state, files[state]),
        files[DATA],
    )


def _warn_of_other_versions(written_with: dict[str, str]) -> None:
    now = versions()
    others = [
        f"{name} {then} (now {now.get(name)})"
        for name, then in written_with.items()
        if now.get(name) != then
    ]
    if others:
        warn(
            f"The checkpoint was written with {', '.join(others)}: the answer will agree to "
            "tolerance, perhaps not to the last bit.",
            CheckpointWarning,
        )


def versions() -> dict[str, str]:
    """Versions of the software and the type of machine, which determine the last bits."""
    known = {"machine": platform.machine()}
    for name in ("cometric", "numpy", "numba"):
        try:
            known[name] = version(name)
        except PackageNotFoundError:  # run from a source tree
            known[name] = "unknown"
    return known
