"""Entropic transport costs on supports only, many pairs at once, Triton.

The block, its ``state`` and the values are those of ``sinkhorn_torch``; the partners are CSR
rows ``indptr``, ``columns``, ``weight`` instead of a dense matrix, and source i of the block
meets the partners i + 1, i + 2, ... of it only.

One sweep reads every entry of K that a pair's supports select once. With v on the source in
registers, a few rows l of the partner at a time,

    (K v)_l = sum_k K_lk v_k,   u_l = b_l / (K v)_l,   (K u)_k += K_lk u_l

so that the rows that gave u also spend it. The columns of K that a source selects are copied
side by side first: all its pairs then read contiguous rows of that copy.

Logarithms want one thread per number, where u is known to all threads that share its row:
u goes through a small piece of memory, ``scratch``, on the way to them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

LARGEST = 16384
"""Bins a source may use: its scalings live in registers."""

LOGS = 128
"""Logarithms at a time."""


class Shape(NamedTuple):
    """How one width of source is worked on."""

    partners: int  # per program
    rows: int  # of a partner, at a time
    warps: int


SHAPES = {
    4: {
        16: Shape(16, 32, 1),
        32: Shape(16, 32, 1),
        64: Shape(16, 16, 1),
        128: Shape(16, 16, 1),
        256: Shape(8, 16, 2),
        512: Shape(4, 16, 4),
        1024: Shape(2, 8, 4),
        2048: Shape(1, 8, 8),
        4096: Shape(1, 4, 8),
        8192: Shape(1, 4, 16),
        16384: Shape(1, 2, 16),
    },
    8: {
        16: Shape(16, 32, 1),
        32: Shape(16, 16, 1),
        64: Shape(16, 16, 1),
        128: Shape(16, 8, 1),
        256: Shape(8, 8, 2),
        512: Shape(4, 8, 4),
        1024: Shape(2, 8, 8),
        2048: Shape(1, 4, 8),
        4096: Shape(1, 4, 16),
        8192: Shape(1, 2, 16),
        16384: Shape(1, 1, 16),
    },
}
"""By bytes per number and by the source's bins, rounded up; measured on an H200."""


@triton.jit
def _gather(kernel, bins, out, d, width, ROWS: tl.constexpr, W: tl.constexpr):
    """out[i, l, k] = kernel[l, bins[i, k]]."""
    i = tl.program_id(1).to(tl.int64)
    l = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, W)
    chosen = tl.load(bins + i * width + k, k < width, 0)
    inside = (l < d)[:, None] & (k < width)[None, :]
    tile = tl.load(kernel + l[:, None] * d + chosen[None, :], inside, 0)
    tl.store(out + (i * d + l[:, None]) * width + k[None, :], tile, inside)


@triton.jit(do_not_specialize=["indptr", "partners", "room", "sweeps"])
def _sweep(
    compact,
    a_masses,
    indptr,
    columns,
    weight,
    state,
    values,
    errors,
    scratch,
    partners,
    d,
    width,
    room,
    sweeps,
    tol,
    EACH: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    LOGS: tl.constexpr,
):
    i = tl.program_id(1)
    k = tl.arange(0, W)
    own = k < width
    a = tl.load(a_masses + i * width + k, own, 0)
    rows = compact + i.to(tl.int64) * d * width
    mine = scratch + (i.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * room
    first = tl.program_id(0) * EACH
    for p in range(tl.maximum(first, i + 1), tl.minimum(first + EACH, partners)):
        begin = tl.load(indptr + p)
        end = tl.load(indptr + p + 1)
        pair = i.to(tl.int64) * partners + p
        v = tl.load(state + pair * width + k, own, 0).to(a.dtype)
        error = tl.sum(a) + float("inf")
        done = 0
        while (done < sweeps) & (error > tol):
            ku = tl.zeros([T, W], a.dtype)
            for t in range(begin, end, T):
                e = t + tl.arange(0, T)
                there = e < end
                l = tl.load(columns + e, there, 0)
                b = tl.load(weight + e, there, 0)
                tile = tl.load(
                    rows + l[:, None] * width + k[None, :],
                    there[:, None] & own[None, :],
                    0,
                )
                kv = tl.sum(tile * v[None, :], 1)
                u = tl.where(there, b / kv, 0)
                ku += tile * u[:, None]
                tl.store(mine + e - begin, u, there)
            sums = tl.sum(ku, 0)
            error = tl.sum(tl.where(a > 0, tl.abs(v * sums - a), 0))
            v = tl.where(a > 0, a / sums, 0)
            done += 1
        tl.debug_barrier()  # u is in the scratch
        total = tl.zeros([LOGS], tl.float64)
        for t in range(begin, end, LOGS):
            e = t + tl.arange(0, LOGS)
            u = tl.load(mine + e - begin, e < end, 1)
            b = tl.load(weight + e, e < end, 0)
            total += (b * tl.log(u)).to(tl.float64)
        value = tl.sum(total) + tl.sum(
            tl.where(a > 0, a * tl.log(tl.where(a > 0, v, 1)), 0).to(tl.float64)
        )
        tl.debug_barrier()  # and may now be overwritten
        tl.store(state + pair * width + k, v.to(state.dtype.element_ty), own)
        tl.store(values + pair, value)
        tl.store(errors + pair, error.to(tl.float64))


def scratch_bytes(partners, room, width, itemsize):
    """What a block needs per source for the way of u to the logarithms."""
    shape = SHAPES[itemsize][max(16, triton.next_power_of_2(width))]
    return triton.cdiv(partners, shape.partners) * room * itemsize


def sweep(kernel, bins, a, indptr, columns, weight, room, state, sweeps, tol):
    """Sweeps of the pairs of a block: dual value over eps, and marginal error, both (B, P).

    ``room`` is the largest support of a partner. What lies below the diagonal of a block is not
    computed: its value and its error are 0.
    """
    sources, width = bins.shape
    partners, d = len(indptr) - 1, len(kernel)
    W = triton.next_power_of_2(width)
    shape = SHAPES[kernel.element_size()][W]
    compact = kernel.new_empty((sources, d, width))
    rows = max(1, 2048 // W)
    _gather[(triton.cdiv(d, rows), sources)](
        kernel, bins, compact, d, width, ROWS=rows, W=W, num_warps=4 if W <= 4096 else 16
    )
    chunks = triton.cdiv(partners, shape.partners)
    values = torch.zeros((sources, partners), dtype=torch.float64, device=kernel.device)
    errors = torch.zeros_like(values)
    scratch = kernel.new_empty((sources * chunks, room))
    _sweep[(chunks, sources)](
        compact,
        a,
        indptr,
        columns,
        weight,
        state,
        values,
        errors,
        scratch,
        partners,
        d,
        width,
        room,
        sweeps,
        tol,
        EACH=shape.partners,
        T=shape.rows,
        W=W,
        LOGS=LOGS,
        num_warps=shape.warps,
    )
    return values, errors
