"""A folder in which a long run stores its parts, so that it can be continued after a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cometric.core.arguments import check_folder
from cometric.core.digest import digest
from cometric.files.storage import LOCK, lock, read_arrays, replacing, unlock

FORMAT = 2
"""Version of the stored parts, here and in Zarr; runs of another version cannot be continued."""

MANIFEST = "run.json"

CHECKSUM = "checksum"
"""The name of the array that holds the checksum of the others in a part."""


@contextmanager
def open_run(folder: str | os.PathLike[str] | None) -> Iterator[RunFolder]:
    """The parts of a run in a folder, which is locked; without a folder nothing is stored.

    The folder is created if it does not exist, and refused if another run uses it.
    """
    if folder is None:
        yield RunFolder()
        return
    check_folder("folder", folder)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    names = {part.name for part in path.iterdir()}
    if MANIFEST not in names and not all(map(_is_leftover, names)):
        raise ValueError(
            f"`folder` {str(path)!r} is not empty, and not from an earlier run. Choose another one."
        )
    handle = lock(path)
    try:
        yield RunFolder(path)
    finally:
        unlock(handle)


class RunFolder:
    """Named parts of a run, each stored when it is complete; none without a folder.

    Each part has a checksum of its content and of the run; damaged parts and those of other runs
    are not loaded.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._origin = ""

    def bind(self, origin: Callable[[], str], seed: int | None = 0) -> int | None:
        """The seed, after binding all parts from here on to a checksum of what they depend on.

        The first checksum identifies the run: a folder of another run is refused. With a folder, a
        seed of None becomes a random one, stored for when the run continues. Without a folder,
        nothing is computed.
        """
        if self.folder is None:
            return seed
        first, self._origin = not self._origin, digest({"before": self._origin, "now": origin()})
        if first:
            self._check_manifest(self.folder / MANIFEST)
        if seed is None:
            stored = self.load("seed") or {"seed": np.random.default_rng().integers(2**31)}
            self.save("seed", stored)
            seed = int(stored["seed"])
            self.bind(lambda: str(seed))  # parts made with a lost seed are useless
        return seed

    def _check_manifest(self, path: Path) -> None:
        """Raise if the folder belongs to another run; write the manifest of a new one."""
        if not path.exists():
            with replacing(path) as file:
                file.write(json.dumps({"format": FORMAT, "run": self._origin}).encode())
            return
        known = _read(path)
        if known.get("format") != FORMAT:
            raise ValueError(
                f"`folder` {str(self.folder)!r} is from another version of cometric, whose parts "
                "this one cannot continue. Delete it, or choose another folder."
            )
        if known.get("run") != self._origin:
            raise ValueError(
                f"`folder` {str(self.folder)!r} holds a run with other data or other settings. "
                "Call with the same ones to continue it, choose another folder, or delete it."
            )

    def load(self, name: str) -> dict[str, Any] | None:
        """The arrays of a part; None if it is missing or damaged, or from another run."""
        if self.folder is None:
            return None
        path = self.folder / f"{name}.npz"
        if not path.exists():
            return None
        try:
            with open(path, "rb") as file:
                arrays = read_arrays(file, path, path.stat().st_size)
            checksum = str(arrays.pop(CHECKSUM))
        except MemoryError:
            raise
        except Exception:  # whatever a damaged archive raises: the part is computed again
            return None
        return arrays if checksum == self._checksum(name, arrays) else None

    def save(self, name: str, arrays: dict[str, Any]) -> None:
        if self.folder is not None:
            stored: dict[str, Any] = {key: np.asarray(part) for key, part in arrays.items()}
            stored[CHECKSUM] = self._checksum(name, stored)
            with replacing(self.folder / f"{name}.npz") as file:
                np.savez(file, **stored)

    def _checksum(self, name: str, arrays: dict[str, Any]) -> str:
        """The checksum of a part of this run; damaged parts and other runs have another one."""
        return digest({**arrays, CHECKSUM: np.array(f"{self._origin} {name}")})


def _is_leftover(name: str) -> bool:
    """Whether the file is left from a process that was killed before it wrote a manifest."""
    return name == LOCK or (name.startswith(f".{MANIFEST}.") and name.endswith(".part"))


def _read(manifest: Path) -> dict[str, Any]:
    """The content of a manifest; a damaged one matches no run."""
    try:
        content = json.loads(manifest.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    return content if isinstance(content, dict) else {"format": FORMAT}
