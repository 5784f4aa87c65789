"""A cost that is sent between processes, with a cache of quantities derived from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cometric.core.arrays import symmetric, upper
from cometric.core.cached import cached_property
from cometric.core.types import Matrix, Vector


class PackedCost:
    """A checked cost between bins, stored as the entries above its diagonal.

    Each process has one instance per cost. Quantities that depend on the cost alone, such as the
    Sinkhorn kernel, are computed once and shared by all calls; they are not sent.
    """

    def __init__(self, entries: Vector | Matrix, bins: int) -> None:
        self.entries, self.bins = entries, bins
        self._derived: dict[str, Any] = {}

    @classmethod
    def pack(cls, cost: Matrix, dtype: Any = np.float64) -> PackedCost:
        """A checked cost, rounded to ``dtype``; as a full matrix unless exactly symmetric."""
        exact = np.array_equal(cost, cost.T)
        entries = upper(cost) if exact else cost
        return cls(entries.astype(dtype, copy=not exact), len(cost))

    @cached_property
    def matrix(self) -> Matrix:
        """The cost as a matrix in float64."""
        entries = self.entries.astype(np.float64, copy=False)
        return symmetric(entries, self.bins) if entries.ndim == 1 else entries

    @property
    def nbytes(self) -> int:
        """Serialized size in bytes."""
        return int(self.entries.nbytes)

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """The cached result of ``compute`` under this name."""
        if name not in self._derived:
            self._derived[name] = compute()
        return self._derived[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedCost, (self.entries, self.bins)
