"""The entropic map on tensors as workers of a cluster compute it, strip by strip."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cometric.core.arrays import is_tensor, symmetric, to_numpy
from cometric.core.types import Matrix, Vector
from cometric.maps.blocks import Strip
from cometric.maps.entropic_torch import BEYOND_FLOAT64, TensorEntropicMap
from cometric.maps.ground import Ground
from cometric.maps.sinkhorn import SelfTerms

SCRATCH = 1 << 30
"""Bytes for the intermediate tensors of a block, on every device: a strip that moves to another
one must find the same blocks there."""


class TensorStrips(TensorEntropicMap):
    """A :class:`TensorEntropicMap` that computes ranges of sources as functions of their memory.

    The memory of a strip is on the device, unless it came from elsewhere. A device without enough
    memory is an error here: other blocks would not match what is stored.

    Parameters
    ----------
    hist, eps, options
        As for :class:`TensorEntropicMap`.
    n_threads
        Not used; workers pass it to every map.
    """

    mixes = False  # products of other strips would give other last bits

    def __init__(
        self, hist: Any, eps: float, *, n_threads: int | None = None, **options: Any
    ) -> None:
        self._ground: Ground | None = None
        self._strips: dict[tuple[int, int], Strip] = {}
        super().__init__(hist, eps, **options)

    def _find_scratch(self) -> float:
        return float(SCRATCH)

    def row_work(self) -> Vector:
        """A model of the time for the pairs of each source."""
        return self._layout.row_work()

    def row_memory(self) -> Vector:
        """Bytes of the scalings of the pairs of each source."""
        memory = self._layout.row_memory()
        return memory if self.stored is not None else np.zeros_like(memory)

    def advance(
        self, ground: Ground, first: int, last: int, memory: dict[str, Any] | None
    ) -> tuple[Vector, dict[str, Any]]:
        """Divergences of the pairs of the sources from ``first`` to before ``last``, and a memory.

        A pure function of the cost and ``memory``, as in :meth:`EntropicMap.advance`.
        """
        import torch

        if (first, last) not in self._strips:
            self._strips[first, last] = self._layout.strip(first, last)
        strip = self._strips[first, last]
        self._ground, precision = ground, self.precision
        try:
            with self._guard():
                matrix, after = self._advance(strip, ground, memory or {})
                above = torch.ones_like(matrix, dtype=torch.bool).triu_(1)
                values: Vector = to_numpy(matrix[above])
        except torch.OutOfMemoryError as full:
            raise MemoryError(
                f"{self!r} ran out of memory in sources {first} to {last - 1}. Add workers, each "
                "with a device of its own, or take fewer samples or features."
            ) from full
        finally:
            self._ground, strip.scalings, self.precision = None, {}, precision
        return values, after

    def assemble(self, values: Vector) -> Matrix:
        """The matrix of the divergences that :meth:`advance` returned, range by range."""
        rank = to_numpy(self._rank)
        return symmetric(values, self.shape[0])[np.ix_(rank, rank)]

    def _advance(
        self, strip: Strip, ground: Ground, memory: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        import torch

        cost = self._once("cost", lambda: self._received(ground.matrix))
        terms = self._once("own", lambda: self._own_terms(cost, memory.get("own")))
        own, self._self_scalings, entries = terms
        packed = None
        if self.stored is not None and "scalings" in memory:
            packed = self._received(memory["scalings"]).to(self.stored, copy=True)
            strip.unpack(packed, self.shape[0])
        matrix = self._divergences(strip, cost, own)
        if not np.isfinite(self.error) and self.precision != "float64":
            strip.scalings, packed, self.precision = {}, None, "float64"
            matrix = self._divergences(strip, cost, own)
        if not np.isfinite(self.error):
            raise FloatingPointError(BEYOND_FLOAT64)
        after = {"own": entries}
        if packed is None and strip.scalings:
            packed = torch.cat([part.reshape(-1) for part in strip.scalings.values()])
        if packed is not None:
            after["scalings"] = packed
        return matrix, after

    def _own_terms(self, cost: Any, before: Any) -> tuple[SelfTerms | None, Any, Any]:
        """Self terms, their scalings as a matrix, and the entries of these on the supports."""
        self._self_scalings = (self._hist > 0).double()
        if before is not None:
            entries = self._received(before)
            if entries.shape != self._weight.shape:
                raise ValueError(
                    f"the stored scalings of histograms to themselves have shape "
                    f"{tuple(entries.shape)}; these histograms need {tuple(self._weight.shape)}."
                )
            self._self_scalings = self._spread(entries)
        unit, own = self.eps * float(cost.max()), None
        if unit > 0.0:
            own = self._self_terms(self._kernel(cost, unit), self.sweeps is None)
        entries = self._self_scalings[self._lines, self._columns.long()]
        return own, self._self_scalings, entries

    def _received(self, array: Any) -> Any:
        """An array as a tensor; a copy of arrays that are read-only, as from other processes."""
        return array if is_tensor(array) else self._tensor(np.require(array, requirements="W"))

    def _kernel(self, cost: Any, unit: float) -> Any:
        return self._once("kernel", partial(super()._kernel, cost, unit))

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What all strips derive from one cost on this device, computed once."""
        if self._ground is None:
            return compute()
        return self._ground.once(f"{name} on {self.device}", compute)
