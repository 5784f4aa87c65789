"""The calls that the memory of a map in strips depends on."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from typing import Any, NamedTuple

import numpy as np

from cometric.maps.ground import Ground
from cometric.maps.strips import START

Since = tuple[list[int], list[Any], list[dict[str, Any]]]
"""Numbers of calls, the first of which is the one to start after; costs; settings."""


class Call(NamedTuple):
    """A call of a map: its number, the cost or the path of a file with it, the settings."""

    number: int
    cost: Any
    settings: dict[str, Any]


class Lineage:
    """The calls since the start, or since a checkpoint, in order; immutable.

    Costs of all but the last call are in files of a temporary folder: they are read only if two
    copies of a strip are lost, and would fill the memory.
    """

    def __init__(self, base: int = START, calls: tuple[Call, ...] = (), folder: Any = None) -> None:
        self.base, self.calls, self._folder = base, calls, folder

    @property
    def number(self) -> int:
        """The number of the last call."""
        return self.calls[-1].number if self.calls else self.base

    def followed_by(self, call: Call, keep: bool) -> Lineage:
        """With one more call; without ``keep``, only the last call is known."""
        if not keep:
            return Lineage(self.number, (call,))
        folder = self._folder or _Folder()
        calls = self.calls
        if calls:
            calls = (*calls[:-1], folder.save(calls[-1]))
        return Lineage(self.base, (*calls, call), folder)

    def since(self, number: int) -> int:
        """How many calls came after this one; all if it is not one of them."""
        for count, call in enumerate(reversed(self.calls)):
            if call.number == number:
                return count
        return len(self.calls)

    def last(self, count: int) -> Since:
        """The last ``count`` calls."""
        chosen = self.calls[len(self.calls) - count :]
        before = self.calls[: len(self.calls) - count]
        start = before[-1].number if before else self.base
        return (
            [start, *(call.number for call in chosen)],
            [_read(call.cost) for call in chosen],
            [call.settings for call in chosen],
        )

    def close(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.remove()


class _Folder:
    """A temporary folder for costs, made when it is first needed."""

    def __init__(self) -> None:
        self._path = tempfile.mkdtemp(prefix="cometric-")
        self.remove = weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)

    def save(self, call: Call) -> Call:
        """The call with its cost in a file."""
        if isinstance(call.cost, _Stored):
            return call
        path = os.path.join(self._path, f"{call.number}.npy")
        np.save(path, call.cost.packed)
        return call._replace(cost=_Stored(path, call.cost.bins))


class _Stored(NamedTuple):
    """A cost in a file."""

    path: str
    bins: int


def _read(cost: Ground | _Stored) -> Ground:
    return Ground(np.load(cost.path), cost.bins) if isinstance(cost, _Stored) else cost
