"""The learned items nearest to new ones, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cometric.core.inputs import counted, read_names
from cometric.core.types import Index, Matrix
from cometric.results.extension import extend

if TYPE_CHECKING:
    from cometric.results.result import Result

LISTED = 10
"""Number of new items that are printed."""


@dataclass(frozen=True, eq=False)
class Matches:
    """The learned items nearest to each new one, the nearest first; print them for a table.

    ``items`` are the new ones, by name or number. ``names``, ``index`` and ``distances`` have one
    row for each: the names of the nearest learned items, their numbers, and how far they are.
    """

    items: tuple[str, ...]
    names: NDArray[np.str_]
    index: Index
    distances: Matrix

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> list[tuple[str, float]]:
        """Names and distances of the items nearest to one of the new ones."""
        return list(zip(self.names[number].tolist(), self.distances[number].tolist(), strict=True))

    def __str__(self) -> str:
        lines = []
        for item, number in zip(self.items[:LISTED], range(LISTED), strict=False):
            lines += [
                f"Nearest to {item}",
                *(f"  {far:<11.5g} {name}" for name, far in self[number]),
            ]
        if len(self) > LISTED:
            lines.append(f"... and to {counted(len(self) - LISTED, 'other')}")
        return "\n".join(lines)

    __repr__ = __str__


def search(result: Result, X: Any, n_neighbors: int, of: str, n_threads: int | None) -> Matches:
    """The learned items nearest to each new one; see :meth:`Result.search`."""
    known = np.array(getattr(result.problem, of).item_names)
    k = min(n_neighbors, len(known))
    graph: Any = extend(result, X, of, k, n_threads=n_threads)
    index = graph.indices.reshape(-1, k).astype(np.int64)
    names = read_names(X)[0 if of == "samples" else 1]
    items = range(len(index)) if names is None else names
    return Matches(tuple(map(str, items)), known[index], index, graph.data.reshape(-1, k))
