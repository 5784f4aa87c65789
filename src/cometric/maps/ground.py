"""A cost as it travels between processes, and what the maps of a process derive from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cometric.core.arrays import symmetric, upper
from cometric.core.cached import cached_property
from cometric.core.types import Matrix, Vector


class Ground:
    """A checked cost between bins: the entries above its diagonal, and the matrix when needed.

    One process has one object of each cost. What depends on the cost alone, such as the kernel of
    Sinkhorn sweeps, is computed once and shared by all calls; it does not travel.
    """

    def __init__(self, packed: Vector | Matrix, bins: int) -> None:
        self.packed, self.bins = packed, bins
        self._derived: dict[str, Any] = {}

    @classmethod
    def pack(cls, cost: Matrix, dtype: Any = np.float64) -> Ground:
        """A checked cost, rounded to ``dtype``; whole if it is symmetric up to rounding only."""
        exact = np.array_equal(cost, cost.T)
        packed = upper(cost) if exact else cost
        return cls(packed.astype(dtype, copy=not exact), len(cost))

    @cached_property
    def matrix(self) -> Matrix:
        """The cost as a matrix in float64."""
        packed = self.packed.astype(np.float64, copy=False)
        return symmetric(packed, self.bins) if packed.ndim == 1 else packed

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return int(self.packed.nbytes)

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """The result of ``compute``, which is called for the first request of this name."""
        if name not in self._derived:
            self._derived[name] = compute()
        return self._derived[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return Ground, (self.packed, self.bins)
