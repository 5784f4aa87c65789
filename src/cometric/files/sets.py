"""Named sets of features, such as gene sets: a dictionary, a GMT file or a JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cometric.core.arguments import check_path, shown
from cometric.files.reading import missing

Sets = Mapping[str, Iterable[str]] | str | os.PathLike[str]
"""What users pass: sets by name, or the path of a file."""


def read_sets(sets: Any) -> dict[str, list[str]]:
    """The sets by name.

    A line of a GMT file has the name of a set, a description and the members, separated by tabs.
    A JSON file has an object of lists of names. Nested objects are collections; their sets are
    named "collection: set".
    """
    if isinstance(sets, Mapping):
        return _flatten(sets, "`sets`")
    if not isinstance(sets, str | os.PathLike):
        raise ValueError(
            f"`sets` is {shown(sets)}; pass a dictionary, or the path of a .gmt or .json file."
        )
    path = check_path(sets)
    kind = path.suffix.lower()
    if kind not in (".gmt", ".json"):
        raise ValueError(f"`sets` is {os.fspath(sets)!r}; its name should end in .gmt or .json.")
    if not path.exists():
        raise missing(path)
    try:
        text = path.read_text("utf-8-sig")  # some programs begin a file with a mark
    except UnicodeDecodeError:
        raise ValueError(f"`{path}` is not text in UTF-8.") from None
    return _from_json(path, text) if kind == ".json" else _from_gmt(path, text)


def _from_json(path: Path, text: str) -> dict[str, list[str]]:
    try:
        stored = json.loads(text)
    except ValueError as error:
        raise ValueError(f"`{path}` is not valid JSON: {error}.") from None
    if not isinstance(stored, dict):
        raise ValueError(f'`{path}` has no object of sets, such as {{"name": ["CD3D"]}}.')
    return _flatten(stored, f"`{path}`")


def _from_gmt(path: Path, text: str) -> dict[str, list[str]]:
    sets = {}
    for number, line in enumerate(text.split("\n"), 1):  # `splitlines` cuts at U+2028, too
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        if len(rest) < 2:
            raise ValueError(
                f"`{path}`, line {number}: a line has a name, a description and members, "
                "separated by tabs."
            )
        sets[name] = [member.strip() for member in rest[1:] if member.strip()]
    return sets


def _flatten(stored: Mapping[Any, Any], source: str, before: str = "") -> dict[str, list[str]]:
    sets: dict[str, list[str]] = {}
    for name, members in stored.items():
        if isinstance(members, Mapping):
            sets |= _flatten(members, source, f"{before}{name}: ")
            continue
        if isinstance(members, str) or not isinstance(members, Iterable):
            raise ValueError(f"{source}: the set {name!r} is {shown(members)}; pass names.")
        sets[f"{before}{name}"] = [str(member) for member in members]
    return sets
