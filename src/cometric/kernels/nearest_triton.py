"""Lower bounds of all distances, and divergences of pairs, Triton.

``lowest_bounds`` has the formula of the bounds. Tests have a slow twin in torch.

:func:`append` computes the bounds of a tile of pairs from its products, one after the other in
the same accumulator, and stores only bounds below the threshold of their row. Tiles at the edge
repeat the last row or column instead of reading beyond it, and do not store these results.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from cometric.kernels.sinkhorn_triton import SHAPES, _damping, _gather, _solve

TILE = {"M": 128, "N": 128, "K": 64, "GROUP": 16}


@triton.jit
def _product(left, right, rows, columns, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Inner products of some rows of ``left`` with some rows of ``right``, in float32.

    Float32 products are sums of three TF32 products, accurate to 2^-21.
    """
    k = tl.arange(0, K)
    lefts = left + rows.to(tl.int64)[:, None] * depth + k[None, :]
    rights = right + columns.to(tl.int64)[None, :] * depth + k[:, None]
    total = tl.zeros([M, N], tl.float32)
    for _ in range(0, depth, K):
        total = tl.dot(tl.load(lefts), tl.load(rights), total, input_precision="tf32x3")
        lefts += K
        rights += K
    return total


@triton.jit
def _append(
    x,
    a,
    overlap_rows,
    overlap_columns,
    angle_rows,
    angle_columns,
    place_rows,
    place_columns,
    of_rows,
    of_columns,
    threshold,
    own,
    count,
    found,
    bounds,
    n_rows,
    first,
    last,
    depth,
    full_depth,
    room,
    unit,
    weight,
    farthest,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    SMALL: tl.constexpr,
    GROUP: tl.constexpr,
    OVERLAP: tl.constexpr,
    ANGLE: tl.constexpr,
    PLACE: tl.constexpr,
    LOCAL: tl.constexpr,
):
    """One tile of :func:`append`."""
    pid = tl.program_id(0)
    tall = tl.cdiv(n_rows, M)
    wide = tl.cdiv(last - first, N)
    group = pid // (GROUP * wide)
    height = tl.minimum(tall - group * GROUP, GROUP)
    inside = pid % (GROUP * wide)
    i = (group * GROUP + inside % height) * M + tl.arange(0, M)
    j = first + (inside // height) * N + tl.arange(0, N)
    row = tl.minimum(i, n_rows - 1)
    column = tl.minimum(j, last - 1)
    mine = of_rows + row * 8
    theirs = of_columns + column.to(tl.int64) * 8
    norm = tl.zeros([M, N], tl.float32)
    if OVERLAP:
        part = _product(overlap_rows, overlap_columns, row, column, full_depth, M, N, K)
        scale = tl.load(mine + 1)[:, None] * tl.load(theirs + 1)[None, :]
        norm += scale * tl.maximum(2.0 - 2.0 * part, 0.0)
    if ANGLE:
        part = _product(angle_rows, angle_columns, row, column, full_depth, M, N, K)
        scale = tl.load(mine + 2)[:, None] * tl.load(theirs + 2)[None, :]
        norm += scale * tl.sqrt(tl.maximum(2.0 - 2.0 * part, 0.0))
    if PLACE:
        part = _product(place_rows, place_columns, row, column, SMALL, M, N, SMALL)
        squares = tl.load(mine + 4)[:, None] + tl.load(theirs + 4)[None, :]
        scale = tl.load(mine + 3)[:, None] * tl.load(theirs + 3)[None, :]
        norm += scale * tl.sqrt(tl.maximum(squares - 2.0 * part, 0.0))
    if LOCAL:
        norm = norm * (1.0 - 4e-6)
        above = tl.maximum(norm - tl.load(mine + 5)[:, None], 1e-6 * norm)
        above *= tl.maximum(norm - tl.load(theirs + 5)[None, :], 1e-6 * norm)
        above *= tl.load(mine + 6)[:, None] * tl.load(theirs + 6)[None, :]
        norm = tl.exp2(0.75 * tl.log2(tl.maximum(above, 1e-30)))
        norm = tl.minimum(norm, farthest)
    norm *= weight
    part = _product(x, a, row, column, depth, M, N, K)
    bound = tl.load(mine)[:, None] + tl.load(theirs)[None, :] - unit * part + norm
    hit = bound < tl.load(threshold + row)[:, None]
    hit &= (i < n_rows)[:, None] & (j < last)[None, :] & (j[None, :] != tl.load(own + row)[:, None])
    zero = tl.zeros([M, N], tl.int32)
    place = tl.atomic_add(count + row[:, None] + zero, zero + 1, hit)
    hit &= place < room
    at = row.to(tl.int64)[:, None] * room + place
    tl.store(found + at, zero + j[None, :], hit)
    tl.store(bounds + at, bound, hit)


def append(rows, columns, state, first, last, tile=TILE):
    """Store the bounds of columns ``first`` to ``last`` that are below the thresholds.

    ``count`` grows by their number, even if they do not fit.
    """
    n_rows, depth = rows.x.shape
    grid = (triton.cdiv(n_rows, tile["M"]) * triton.cdiv(last - first, tile["N"]),)

    def some(matrix):
        return rows.x if matrix is None else matrix

    _append[grid](
        rows.x,
        columns.x,
        some(rows.overlap),
        some(columns.overlap),
        some(rows.angle),
        some(columns.angle),
        some(rows.place),
        some(columns.place),
        rows.numbers,
        columns.numbers,
        state.threshold,
        rows.own,
        state.count,
        state.found,
        state.bounds,
        n_rows,
        first,
        last,
        depth,
        0 if rows.overlap is None and rows.angle is None else columns.full_depth,
        state.found.shape[1],
        rows.unit,
        rows.weight,
        rows.farthest,
        **tile,
        SMALL=32,
        OVERLAP=rows.overlap is not None,
        ANGLE=rows.angle is not None,
        PLACE=rows.place is not None,
        LOCAL=rows.local,
        num_warps=8,
        num_stages=3,
    )


@triton.jit
def _sums(
    rows,
    indptr,
    indices,
    data,
    targets,
    out,
    count,
    shared,
    depth,
    E: tl.constexpr,
    LEAST: tl.constexpr,
):
    """One number of :func:`sums` per program row: target ``program_id(1)`` of a row."""
    i = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1)
    j = tl.load(targets + i * shared + t)
    begin = tl.load(indptr + j)
    end = tl.load(indptr + j + 1)
    total = tl.zeros([E], tl.float64)
    for start in range(begin, end, E):
        e = start + tl.arange(0, E)
        k = tl.load(indices + e, e < end, 0)
        mass = tl.load(data + e, e < end, 0.0)
        other = tl.load(rows + i * depth + k, e < end, 0.0)
        total += tl.minimum(mass, other) if LEAST else mass * other
    tl.store(out + i * count + t, tl.sum(total))


def sums(rows, indptr, indices, data, targets, least):
    """Inner products of dense rows with rows ``targets`` of a sparse matrix, in float64.

    ``targets`` are (n, c), or (c,), the same for all rows. With ``least``, sums of the smaller of
    two entries instead of their products.
    """
    n, count = len(rows), targets.shape[-1]
    out = torch.empty((n, count), dtype=torch.float64, device=rows.device)
    shared = 0 if targets.ndim == 1 else count
    for start in range(0, count, 65535):  # the limit of programs in the second dimension
        some = targets[..., start : start + 65535].contiguous()
        part = torch.empty((n, some.shape[-1]), dtype=torch.float64, device=rows.device)
        _sums[(n, some.shape[-1])](
            rows,
            indptr,
            indices,
            data,
            some,
            part,
            some.shape[-1],
            min(shared, some.shape[-1]),
            rows.shape[1],
            E=128,
            LEAST=least,
            num_warps=1,
        )
        out[:, start : start + 65535] = part
    return out


@triton.jit(do_not_specialize=["sweeps", "longest"])
def _pairs(
    compact,
    a_masses,
    start,
    slots,
    targets,
    indptr,
    columns,
    weight,
    values,
    errors,
    scratch,
    damping,
    longest,
    d,
    width,
    sweeps,
    tol,
    T: tl.constexpr,
    W: tl.constexpr,
    LOGS: tl.constexpr,
    ONE: tl.constexpr,
    FAST: tl.constexpr,
    DAMPED: tl.constexpr,
):
    """One pair of :func:`pairs`."""
    pair = tl.program_id(0).to(tl.int64)
    i = tl.load(slots + pair).to(tl.int64)
    j = tl.load(targets + pair)
    k = tl.arange(0, W)
    a = tl.load(a_masses + i * width + k, k < width, 0)
    v = tl.load(start + i * width + k, k < width, 0)
    begin = tl.load(indptr + j)
    end = tl.load(indptr + j + 1)
    v, value, error = _solve(
        compact + i * d * width,
        columns,
        weight,
        scratch + pair * longest,
        damping,
        a,
        v,
        begin,
        end,
        width,
        sweeps,
        tol,
        T,
        W,
        LOGS,
        ONE,
        FAST,
        DAMPED,
    )
    tl.store(values + pair, value)
    tl.store(errors + pair, error.to(tl.float64))


def pairs(
    kernel, bins, a, start, slots, targets, indptr, columns, weight, longest, sweeps, tol,
    ratio=math.inf,
):  # fmt: skip
    """Transport costs over eps of pairs, and marginal errors, starting from ``start`` scalings.

    ``bins``, ``a`` and ``start`` (B, w) are padded sources as in ``sinkhorn_torch``; pair p is
    source ``slots[p]`` with the histogram ``targets[p]`` of the sparse rows, of at most ``longest``
    entries. Each pair is swept on its supports.
    """
    sources, width = bins.shape
    d = len(kernel)
    W = triton.next_power_of_2(width)
    shape = SHAPES[W]
    compact = kernel.new_empty((sources, d, width))
    rows = max(1, 2048 // W)
    _gather[(triton.cdiv(d, rows), sources)](
        kernel, bins, compact, d, width, ROWS=rows, W=W, num_warps=4 if W <= 4096 else 16
    )
    values = torch.empty(len(slots), dtype=torch.float64, device=kernel.device)
    errors = torch.empty_like(values)
    _pairs[(len(slots),)](
        compact,
        a,
        start,
        slots,
        targets,
        indptr,
        columns,
        weight,
        values,
        errors,
        kernel.new_empty((len(slots), longest)),
        _damping(ratio, values),
        longest,
        d,
        width,
        sweeps,
        (1.0 - 1e-6) * tol,
        T=shape.rows,
        W=W,
        LOGS=32 * shape.warps,
        ONE=shape.one,
        FAST=kernel.is_cuda,
        DAMPED=math.isfinite(ratio),
        num_warps=shape.warps,
    )
    return values, errors
