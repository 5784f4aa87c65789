"""The slow twin of ``cometric.kernels.nearest_triton``, in torch, on any device.

:func:`use_twin` lets searches on "torch:cpu" run with it; otherwise they need CUDA and Triton.
"""

import math
import sys

import torch

from cometric.answers import distances_torch
from cometric.kernels.sinkhorn_torch import fast_products, sweep

AT_ONCE = 1000
"""Pairs that are swept together."""


def use_twin(monkeypatch):
    """Put the twin in place on devices other than a GPU."""
    kernels_for = distances_torch.kernels_for

    def with_twin(device):
        return kernels_for(device) if device.type == "cuda" else sys.modules[__name__]

    monkeypatch.setattr(distances_torch, "kernels_for", with_twin)


def append(rows, columns, state, first, last):
    """Store the bounds of columns ``first`` to ``last`` that are below the thresholds.

    ``count`` grows by their number, even if they do not fit.
    """
    bounds = _bounds(rows, columns, slice(first, last))
    j = torch.arange(first, last, dtype=torch.int32, device=bounds.device)
    hit = (bounds < state.threshold[:, None]) & (j != rows.own[:, None])
    i, k = hit.nonzero(as_tuple=True)  # row by row
    hits = hit.sum(1)
    place = (state.count + hits - hits.cumsum(0))[i] + torch.arange(len(i), device=i.device)
    state.count += hits.to(torch.int32)
    fits = place < state.found.shape[1]
    i, k, place = i[fits], k[fits], place[fits]
    state.found[i, place], state.bounds[i, place] = j[k], bounds[i, k]


def _bounds(rows, columns, part):
    """Bounds of all rows with some of the columns."""

    def product(name):
        mine, theirs = getattr(rows, name), getattr(columns, name)[part]
        with fast_products(mine.dtype == torch.float16):  # TF32 has all digits of float16
            return mine.float() @ theirs.float().T

    mine, theirs = rows.numbers.T[:, :, None], columns.numbers[part].T[:, None, :]
    norm = torch.zeros((), device=rows.x.device)
    if rows.overlap is not None:
        norm = norm + mine[1] * theirs[1] * (2.0 - 2.0 * product("overlap")).clamp_(min=0.0)
    if rows.angle is not None:
        norm = norm + mine[2] * theirs[2] * (2.0 - 2.0 * product("angle")).clamp_(min=0.0).sqrt_()
    if rows.place is not None:
        squares = mine[4] + theirs[4] - 2.0 * product("place")
        norm = norm + mine[3] * theirs[3] * squares.clamp_(min=0.0).sqrt_()
    if rows.local:
        norm = norm * (1.0 - 4e-6)
        above = torch.maximum(norm - mine[5], 1e-6 * norm)
        above = above * torch.maximum(norm - theirs[5], 1e-6 * norm)
        norm = (above * (mine[6] * theirs[6])).pow(0.75).clamp_(max=rows.farthest)
    return mine[0] + theirs[0] - rows.unit * product("x") + rows.weight * norm


def _dense(indptr, indices, data, depth):
    """A sparse matrix as a dense one with ``depth`` columns."""
    line = torch.repeat_interleave(torch.arange(len(indptr) - 1, device=data.device), indptr.diff())
    dense = data.new_zeros((len(indptr) - 1, depth))
    dense[line, indices.long()] = data
    return dense


def sums(rows, indptr, indices, data, targets, least):
    """Inner products of dense rows with rows ``targets`` of a sparse matrix, entry by entry."""
    others = _dense(indptr, indices, data, rows.shape[1])[targets.long()]
    mine = rows[:, None]
    return (torch.minimum(mine, others) if least else mine * others).sum(-1)


def pairs(
    kernel, bins, a, start, slots, targets, indptr, columns, weight, longest, sweeps, tol,
    ratio=math.inf,
):  # fmt: skip
    """Transport costs over eps of pairs, and marginal errors, with all bins for each target."""
    dense = _dense(indptr, columns, weight, len(kernel))
    solved = [
        sweep(
            kernel, bins[source], a[source], dense[target][:, None], start[source][:, None],
            sweeps, tol, ratio=ratio,
        )
        for source, target in zip(
            slots.long().split(AT_ONCE), targets.long().split(AT_ONCE), strict=True
        )
    ]  # fmt: skip
    values, errors = (torch.cat(part)[:, 0] for part in zip(*solved, strict=True))
    return values, errors
