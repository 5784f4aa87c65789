"""Sinkhorn sweeps of one pair on its supports, for ``nearest_triton``.

Scalings and values are as in ``sinkhorn_torch``; partners are CSR rows ``indptr``, ``columns``,
``weight``. One sweep reads each entry of K on a pair's supports once. With v on the source in
registers, and a few rows l of the partner at a time,

    (K v)_l = sum_k K_lk v_k,   u_l = b_l / (K v)_l,   (K u)_k += K_lk u_l

so that a row is read once for both products. The columns of K that a source selects are first
copied side by side: all its pairs then read contiguous rows of that copy.

In the sweep all threads that share a row have its u. Logarithms are faster with one number per
thread, so u is redistributed through memory, ``scratch``.

For unbalanced transport the updates are damped as in ``sinkhorn_torch``; ``damping`` points to
rho / eps and 1 / (rho / eps + 1), since Triton would round numbers to float32.
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
}
"""Fastest shapes in float64 on an H200, by number of bins of the source, rounded up."""


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
    """Return b / x, by two Newton steps: every thread of a row repeats the division."""
    if FAST:
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


def _damping(ratio, like):
    """The two numbers that ``damping`` points to; any tensor if transport is balanced."""
    if math.isinf(ratio):
        return like
    return torch.tensor([ratio, 1.0 / (ratio + 1.0)], dtype=torch.float64, device=like.device)
