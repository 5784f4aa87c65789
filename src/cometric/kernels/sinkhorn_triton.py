"""Entropic transport costs on supports only, many pairs at once, Triton.

The block, its ``state`` and the values are as in ``sinkhorn_torch``; the partners are CSR rows
``indptr``, ``columns``, ``weight`` instead of a dense matrix, and source i of the block is paired
only with the partners i + 1, i + 2, ... of the block.

One sweep reads each entry of K on a pair's supports once. With v on the source in registers, and
a few rows l of the partner at a time,

    (K v)_l = sum_k K_lk v_k,   u_l = b_l / (K v)_l,   (K u)_k += K_lk u_l

so that a row is read once for both products. The columns of K that a source selects are first
copied side by side: all its pairs then read contiguous rows of that copy.

In the sweep all threads that share a row have its u. Logarithms are faster with one number per
thread, so u is redistributed through memory, ``scratch``.

For unbalanced transport the updates are damped as in ``sinkhorn_torch``; ``damping`` points to
rho / eps and 1 / (rho / eps + 1), since Triton would round numbers to float32.

Triton takes pointers and numbers, not records, hence the long argument lists.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Shape(NamedTuple):
    """How sources of one width are processed."""

    rows: int  # rows of a partner at a time
    warps: int
    one: bool = False  # sum K u over the rows at every step, rather than once at the end


SHAPES = {
    4: {
        16: Shape(16, 1),
        32: Shape(16, 1, one=True),
        64: Shape(8, 1, one=True),
        128: Shape(8, 1, one=True),
        256: Shape(4, 2, one=True),
        512: Shape(8, 4),
        1024: Shape(4, 2),
        2048: Shape(8, 8),
        4096: Shape(4, 8),
        8192: Shape(4, 16),
        16384: Shape(2, 16),
    },
    8: {
        16: Shape(16, 1),
        32: Shape(8, 1),
        64: Shape(2, 1, one=True),
        128: Shape(4, 1, one=True),
        256: Shape(4, 2, one=True),
        512: Shape(8, 4),
        1024: Shape(2, 2),
        2048: Shape(4, 8),
        4096: Shape(4, 16),
        8192: Shape(2, 16),
        16384: Shape(1, 16),
    },
}
"""Fastest shapes on an H200, by item size in bytes and number of bins of the source, rounded up."""


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


@triton.jit
def _quotient(b, x, FAST: tl.constexpr):
    """Return b / x; for float64 by two Newton steps: every thread of a row repeats the division."""
    if FAST and x.dtype == tl.float64:
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f64 $0, $1;", "=d,d", [x], dtype=tl.float64, is_pure=True, pack=1
        )
        y = y * (2.0 - x * y)
        y = y * (2.0 - x * y)
        return b * y
    else:
        return b / x


@triton.jit
def _expm1(x):
    """Return exp(x) - 1, by its series near 0."""
    series = x
    for k in tl.static_range(14, 1, -1):
        series = x * (1.0 + series / k)
    return tl.where(tl.abs(x) < 0.3, series, tl.exp(x) - 1.0)


@triton.jit
def _mass(weight, begin, end, LOGS: tl.constexpr):
    """The mass of a partner."""
    total = tl.zeros([LOGS], tl.float64)
    for t in range(begin, end, LOGS):
        e = t + tl.arange(0, LOGS)
        total += tl.load(weight + e, e < end, 0).to(tl.float64)
    return tl.sum(total)


@triton.jit
def _multiply(
    rows,
    columns,
    weight,
    scratch,
    damping,
    v,
    begin,
    end,
    width,
    T: tl.constexpr,
    W: tl.constexpr,
    ONE: tl.constexpr,
    FAST: tl.constexpr,
    DAMPED: tl.constexpr,
):
    """Return K u on the bins of the source, and leave u = b / (K v) in ``scratch``.

    Damped, u = b (K v)^s / (K v), and <b, (K v)^s - 1> is returned as well.
    """
    k = tl.arange(0, W)
    own = k < width
    lost = tl.zeros([T], tl.float64)
    ku = tl.zeros([W] if ONE else [T, W], v.dtype)
    for t in range(begin, end, T):
        e = t + tl.arange(0, T)
        there = e < end
        l = tl.load(columns + e, there, 0)
        b = tl.load(weight + e, there, 0)
        tile = tl.load(rows + l[:, None] * width + k[None, :], there[:, None] & own[None, :], 0)
        kv = tl.where(there, tl.sum(tile * v[None, :], 1), 1)
        u = _quotient(b, kv, FAST)
        if DAMPED:
            change = _expm1(tl.load(damping + 1).to(kv.dtype) * tl.log(kv))
            lost += (b * change).to(tl.float64)
            u += u * change
        if ONE:
            ku += tl.sum(tile * u[:, None], 0)
        else:
            ku += tile * u[:, None]
        tl.store(scratch + e - begin, u, there)
    return ku if ONE else tl.sum(ku, 0), tl.sum(lost)


@triton.jit
def _log_sum(scratch, weight, begin, end, LOGS: tl.constexpr):
    """<b, log u> for the u in ``scratch``, as one partial sum per thread."""
    total = tl.zeros([LOGS], tl.float64)
    for t in range(begin, end, LOGS):
        e = t + tl.arange(0, LOGS)
        u = tl.load(scratch + e - begin, e < end, 1)
        b = tl.load(weight + e, e < end, 0)
        total += (b * tl.log(u)).to(tl.float64)
    return total


@triton.jit
def _solve(
    rows,
    columns,
    weight,
    scratch,
    damping,
    a,
    v,
    begin,
    end,
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
    """Sweeps of one pair from the scalings v: the new ones, the value over eps and the error."""
    error = tl.sum(a) + float("inf")
    value = tl.sum(a).to(tl.float64)
    if DAMPED:
        ratio = tl.load(damping)
        mass_a = tl.sum(a.to(tl.float64))
        mass_b = _mass(weight, begin, end, LOGS)
    done = 0
    while (done < sweeps) & (error > tol):
        ku, lost = _multiply(
            rows, columns, weight, scratch, damping, v, begin, end, width, T, W, ONE, FAST, DAMPED
        )
        if DAMPED:
            change = _expm1(tl.load(damping + 1).to(a.dtype) * tl.log(tl.where(a > 0, ku, 1)))
            mass = a + a * change
            error = tl.sum(tl.where(a > 0, tl.abs(v * ku - mass), 0))
            kept = tl.sum((a * change).to(tl.float64))
            left_b = mass_b + lost
            left_a = mass_a + kept
            gap = (mass_b - mass_a) + (lost - kept)
            root = gap / (tl.sqrt(left_b) + tl.sqrt(left_a))
            value = ratio * root * root - ratio * (lost + kept) - left_a
            factor = tl.exp(0.5 * ratio * tl.log(1.0 - gap / left_b)).to(a.dtype)
            v = tl.where(a > 0, factor * mass / ku, 0)
        else:
            error = tl.sum(tl.where(a > 0, tl.abs(v * ku - a), 0))
            v = tl.where(a > 0, a / ku, 0)
        done += 1
    if not DAMPED:
        tl.debug_barrier()  # all of u is in the scratch
        total = _log_sum(scratch, weight, begin, end, LOGS)
        logs = tl.where(a > 0, a * tl.log(tl.where(a > 0, v, 1)), 0)
        value = tl.sum(total) + tl.sum(logs.to(tl.float64))
    return v, value, error


@triton.jit(do_not_specialize=["indptr", "values", "errors", "partners", "line", "sweeps"])
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
    damping,
    partners,
    line,
    d,
    width,
    sweeps,
    tol,
    T: tl.constexpr,
    W: tl.constexpr,
    LOGS: tl.constexpr,
    ONE: tl.constexpr,
    FAST: tl.constexpr,
    RESUME: tl.constexpr,
    DAMPED: tl.constexpr,
):
    """Sweeps of one pair: source ``program_id(1)``, partner ``program_id(0)`` from the end."""
    i = tl.program_id(1)
    p = partners - 1 - tl.program_id(0)  # the longest come first
    pair = i.to(tl.int64) * partners + p
    place = i.to(tl.int64) * line + p
    todo = p > i
    if RESUME:
        todo = todo & (tl.load(errors + place) > tol)
    if todo:
        k = tl.arange(0, W)
        own = k < width
        a = tl.load(a_masses + i * width + k, own, 0)
        rows = compact + i.to(tl.int64) * d * width
        begin = tl.load(indptr + p)
        end = tl.load(indptr + p + 1)
        origin = tl.load(indptr)
        mine = scratch + i.to(tl.int64) * (tl.load(indptr + partners) - origin) + (begin - origin)
        v = tl.load(state + pair * width + k, own, 0).to(a.dtype)
        v, value, error = _solve(
            rows,
            columns,
            weight,
            mine,
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
        tl.store(state + pair * width + k, v.to(state.dtype.element_ty), own)
        tl.store(values + place, value)
        tl.store(errors + place, error.to(tl.float64))


def _damping(ratio, like):
    """The two numbers that ``damping`` points to; any tensor if transport is balanced."""
    if math.isinf(ratio):
        return like
    return torch.tensor([ratio, 1.0 / (ratio + 1.0)], dtype=torch.float64, device=like.device)


def sweep(
    kernel, bins, a, indptr, columns, weight, length, state, values, errors, sweeps, tol,
    resume=False, ratio=math.inf,
):  # fmt: skip
    """Sweeps of the pairs of a block: dual values over eps, and marginal errors, both (B, P).

    ``length`` is the total number of bins of all partners. Pairs on or below the diagonal of a
    block are unchanged; with ``resume`` also pairs whose error is at most ``tol``.
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
    _sweep[(partners, sources)](
        compact,
        a,
        indptr,
        columns,
        weight,
        state,
        values,
        errors,
        kernel.new_empty((sources, length)),
        _damping(ratio, values),
        partners,
        values.stride(0),
        d,
        width,
        sweeps,
        (1.0 - 1e-6) * tol,  # Triton rounds it to float32: the result stays below tol
        T=shape.rows,
        W=W,
        LOGS=32 * shape.warps,
        ONE=shape.one,
        FAST=kernel.is_cuda,
        RESUME=resume,
        DAMPED=math.isfinite(ratio),
        num_warps=shape.warps,
    )


@triton.jit(do_not_specialize=["partners"])
def _divide(
    kv, b, logs, damping, partners, d, D: tl.constexpr, FAST: tl.constexpr, DAMPED: tl.constexpr
):
    """One row of :func:`divide`."""
    row = tl.program_id(0).to(tl.int64)
    p = row % partners
    if p > row // partners:
        total = tl.zeros([D], tl.float64)
        for start in range(0, d, D):
            k = start + tl.arange(0, D)
            mass = tl.load(b + p * d + k, k < d, 0)
            image = tl.load(kv + row * d + k, k < d, 1)
            u = _quotient(mass, image, FAST)
            if DAMPED:
                logs_of = tl.log(tl.where(mass > 0, image, 1))
                change = _expm1(tl.load(damping + 1).to(image.dtype) * logs_of)
                u += u * change
                total += (mass * change).to(tl.float64)
            else:
                terms = tl.where(mass > 0, mass * tl.log(tl.where(mass > 0, u, 1)), 0)
                total += terms.to(tl.float64)
            tl.store(kv + row * d + k, u, k < d)
        tl.store(logs + row, tl.sum(total))
    else:
        tl.store(logs + row, 0.0)


def divide(b, kv, ratio=math.inf):
    """Overwrite K v (B, P, d) by u = b / (K v), return it and <b, log u> (B, P), in one pass.

    As in :func:`sweep`, pairs on or below the diagonal are unchanged, with sums of 0.
    """
    sources, partners, d = kv.shape
    logs = torch.empty((sources, partners), dtype=torch.float64, device=kv.device)
    _divide[(sources * partners,)](
        kv,
        b,
        logs,
        _damping(ratio, logs),
        partners,
        d,
        D=min(256, triton.next_power_of_2(d)),
        FAST=kv.is_cuda,
        DAMPED=math.isfinite(ratio),
        num_warps=2,
    )
    return kv, logs


@triton.jit(do_not_specialize=["partners"])
def _update(
    a_masses, ku, state, errors, logs, damping, partners, width, W: tl.constexpr,
    DAMPED: tl.constexpr,
):  # fmt: skip
    """One row of :func:`update`."""
    row = tl.program_id(0).to(tl.int64)
    i = row // partners
    if row % partners > i:
        k = tl.arange(0, W)
        own = k < width
        a = tl.load(a_masses + i * width + k, own, 0)
        image = tl.load(ku + row * width + k, own, 1)
        v = tl.load(state + row * width + k, own, 0)
        mass = a
        if DAMPED:
            logs_of = tl.log(tl.where(a > 0, image, 1))
            change = a * _expm1(tl.load(damping + 1).to(image.dtype) * logs_of)
            mass = a + change
        error = tl.sum(tl.abs(v * image - mass).to(tl.float64))
        v = mass / image
        tl.store(state + row * width + k, v, own)
        tl.store(errors + row, error)
        if DAMPED:
            total = change.to(tl.float64)
        else:
            total = tl.where(a > 0, a * tl.log(tl.where(a > 0, v, 1)), 0).to(tl.float64)
        tl.store(logs + row, tl.sum(total))
    else:
        tl.store(errors + row, 0.0)
        tl.store(logs + row, 0.0)


def update(a, ku, v, ratio=math.inf):
    """Overwrite v by a / (K u), return it, the error before and <a, log v>, in one pass.

    Pairs on or below the diagonal are unchanged, with errors and sums of 0.
    """
    sources, partners, width = v.shape
    errors = torch.empty((sources, partners), dtype=torch.float64, device=v.device)
    logs = torch.empty_like(errors)
    W = triton.next_power_of_2(width)
    _update[(sources * partners,)](
        a,
        ku,
        v,
        errors,
        logs,
        _damping(ratio, logs),
        partners,
        width,
        W=W,
        DAMPED=math.isfinite(ratio),
        num_warps=max(1, min(16, W // 128)),
    )
    return v, errors, logs
