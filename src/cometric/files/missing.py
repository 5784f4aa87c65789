"""The error about a file that does not exist."""

from __future__ import annotations

from pathlib import Path

from cometric.core.names import similar

ALIKE = 0.75
"""Least similarity of a file name that the message suggests, without extensions."""


def missing(path: Path) -> FileNotFoundError:
    """The error about a missing file, with the most similar name in its folder, if there is one."""
    stems = {_stem(other): other.name for other in sorted(_siblings(path))}
    close = similar(_stem(path), stems, 1, ALIKE)
    hint = f" Did you mean '{path.with_name(stems[close[0]])}'?" if close else ""
    return FileNotFoundError(f"`{path}` does not exist.{hint}")


def _stem(path: Path) -> str:
    return path.name.split(".")[0] or path.name


def _siblings(path: Path) -> list[Path]:
    try:
        return list(path.parent.iterdir())
    except OSError:
        return []
