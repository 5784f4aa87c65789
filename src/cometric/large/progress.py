"""A folder in which a long run stores its parts, so that it can be continued after a crash."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from cometric.core.digest import digest
from cometric.core.kinds import Folder, check_path
from cometric.files.archive import MAX_BYTES, read_arrays
from cometric.files.atomic import replacing

MANIFEST = "run.json"

CHECKSUM = "checksum"
"""The name of the array that holds the checksum of the others in a part."""


class Progress:
    """Named parts of a run, each stored when it is complete; without a folder, none.

    Parameters
    ----------
    folder
        Created if it does not exist.
    origin
        Checksum of the data and the settings. A folder with another one is refused.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, origin: str) -> None:
        self.folder = None if folder is None else check_path(folder)
        self._origin = origin
        if self.folder is None:
            return
        Folder().check("folder", folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = self.folder / MANIFEST
        if manifest.exists():
            if _read(manifest) != origin:
                raise ValueError(
                    f"`folder` {str(self.folder)!r} holds a run with other data or other settings. "
                    "Call with the same ones to continue it, choose another folder, or delete it."
                )
        elif any(not _is_leftover(path) for path in self.folder.iterdir()):
            raise ValueError(
                f"`folder` {str(self.folder)!r} is not empty, and not from an earlier run. "
                "Choose another one."
            )
        else:
            with replacing(manifest) as file:
                file.write(json.dumps({"cometric": origin}).encode())

    def part(self, name: str) -> Path | None:
        """The path of a part; None without a folder."""
        return None if self.folder is None else self.folder / name

    def seed(self, random_state: int | None) -> int | None:
        """The seed; for None with a folder a random one, the same whenever the run continues."""
        if random_state is not None or self.folder is None:
            return random_state
        stored = self.load("seed")
        if stored is None:
            stored = {"seed": np.random.default_rng().integers(2**31)}
            self.save("seed", stored)
        return int(stored["seed"])

    def load(self, name: str) -> dict[str, Any] | None:
        """The arrays of a part; None if it is not stored, or is not as it was stored."""
        path = self.part(f"{name}.npz")
        if path is None or not path.exists():
            return None
        try:
            with open(path, "rb") as file:
                arrays = read_arrays(file, path, MAX_BYTES)
            checksum = str(arrays.pop(CHECKSUM))
        except MemoryError:
            raise
        except Exception:  # whatever a damaged archive raises: the part is computed again
            return None
        return arrays if checksum == self._checksum(name, arrays) else None

    def save(self, name: str, arrays: dict[str, Any]) -> None:
        path = self.part(f"{name}.npz")
        if path is not None:
            stored: dict[str, Any] = {**arrays, CHECKSUM: self._checksum(name, arrays)}
            with replacing(path) as file:
                np.savez(file, **stored)

    def _checksum(self, name: str, arrays: dict[str, Any]) -> str:
        """Of a part of this run: neither damaged parts nor those of other runs have it."""
        return digest({**arrays, CHECKSUM: np.array(f"{self._origin} {name}")})


def _is_leftover(path: Path) -> bool:
    """Whether this is a manifest that was being written when its process was killed."""
    return path.name.startswith(f".{MANIFEST}.") and path.suffix == ".part"


def _read(manifest: Path) -> Any:
    try:
        return json.loads(manifest.read_text("utf-8")).get("cometric")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def remove_run(folder: str | os.PathLike[str]) -> None:
    """Delete what a run stored in a folder, and the folder unless it has other files."""
    path = check_path(folder)
    if not (path / MANIFEST).is_file():
        raise ValueError(f"`folder` {str(path)!r} is not from a run; nothing was deleted.")
    shutil.rmtree(path / "neighbors", ignore_errors=True)
    for part in (*path.glob("*.npz"), *path.glob(".*.part"), path / MANIFEST):
        part.unlink()
    if not any(path.iterdir()):
        path.rmdir()
