"""Distances under a learned metric on a torch device: the twin of :class:`HeldDistances`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.core.arrays import to_numpy
from cometric.core.types import Matrix
from cometric.maps import pairs_torch
from cometric.maps.norms import name_for
from cometric.maps.norms_torch import TensorNorm
from cometric.maps.sinkhorn_map import inner_tolerance
from cometric.results.extension import clip_at_zero, warn_if_above
from cometric.results.held import check_norm, held_cost, norm_weight
from cometric.runtime.devices import torch_device
from cometric.transports.entropic import Entropic

if TYPE_CHECKING:
    from cometric.results.result import Result

PAIRS = 4_000_000
"""Most pairs per call."""

WIDEST = 16384
"""The largest support that the kernels can handle."""


class TensorDistances:
    """Phi_A(C) / mu between any histograms, for the learned C, on a torch device."""

    def __init__(
        self,
        result: Result,
        of: str,
        hist: sparse.csr_array,
        full: sparse.csr_array,
        device: Any,
    ) -> None:
        options, formula = result.parameters, result.problem.formula
        transport = options.transport
        check_norm(result, of)
        if not isinstance(transport, Entropic):
            raise ValueError(
                f"`device` is {str(device)!r}, but {transport.name} runs on the CPU: pass "
                "device='cpu'."
            )
        self.device = torch_device(device)
        longest = int(np.diff(hist.indptr).max())
        if longest > WIDEST:
            raise ValueError(
                f"`device` is {str(device)!r}, but a histogram has {longest:,} nonzero entries; "
                f"distances with more than {WIDEST:,} run on the CPU: pass device='cpu'."
            )
        self.kernels = pairs_torch.kernels_for(self.device)
        cost, value = held_cost(result, of)
        self.scale = formula.transport_weight / value
        self.weight = 0.0
        self.norm: TensorNorm | None = None
        if formula.has_norm:
            known = getattr(result.problem, of).full_histograms
            name = name_for(options.norm, of)
            self.norm = TensorNorm(name, known, full, of, self.device, self.kernels)
            self.weight = norm_weight(result, of, value, self.norm.known) / value
        self._largest = float(np.max(to_numpy(getattr(result, of))))
        tol = inner_tolerance(options.tol, value * self._largest / float(cost.max()))
        rho = getattr(transport, "rho", None)
        self.transport = pairs_torch.TensorPairs(
            hist, cost, transport.eps, rho, tol, self.device, self.kernels
        )

    def pairs(self, rows: Any, slots: Any, targets: Any, norms: Any = None) -> Any:
        """Distances of the pairs ``rows[slots[p]]``, ``targets[p]``, given their norms R."""
        values = self.scale * self.transport(rows, slots, targets)
        if norms is not None:
            values += self.weight * norms
        return values.clamp_(min=0.0)

    def from_rows(self, rows: Any, targets: Any) -> Any:
        """Distances from the histograms ``rows`` to all ``targets``, negative ones included."""
        import torch

        found = torch.empty((len(rows), len(targets)), dtype=torch.float64, device=self.device)
        step = max(1, PAIRS // len(rows))
        for start in range(0, len(targets), step):
            some = targets[start : start + step]
            slots = torch.arange(len(rows), device=self.device).repeat_interleave(len(some))
            part = self.transport(rows, slots, some.repeat(len(rows)))
            part = self.scale * part.reshape(len(rows), len(some))
            if self.norm is not None:
                part += self.weight * self.norm(rows, some)
            found[:, start : start + step] = part
        return found

    def between(self, rows: slice, columns: slice, report: Callable[[int, int], None]) -> Matrix:
        """Distances from the histograms ``rows`` to the histograms ``columns``, at least 0."""
        import torch

        mine, theirs = (
            torch.arange(part.start, part.stop, device=self.device) for part in (rows, columns)
        )
        step = max(1, PAIRS // len(theirs))
        blocks = []
        for start in range(0, len(mine), step):
            some = mine[start : start + step]
            blocks.append(to_numpy(self.from_rows(some, theirs)))
            report(len(some) * len(theirs), len(some) * len(theirs))
        distances: Matrix = np.concatenate(blocks)
        return clip_at_zero(distances, self._largest)

    def warn_if_unsolved(self) -> None:
        """Warn if a Sinkhorn problem stopped before its tolerance."""
        warn_if_above(self.transport.error, self.transport.tol)
