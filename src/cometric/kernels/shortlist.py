"""For each row, the best of many candidates, by sums over common features, Numba.

Two sums of a pair are over the features that both have: sum min(low_i, low_j) and <z_i, z_j>. They
are computed for 32 rows at once, from 16-bit integers: the rows form a table with 32 values per
feature, of which a candidate reads its own features. Values are rounded down to multiples of about
2^-16, so that sums of at most 1 fit 16 bits; the error is at most 2^-16 per common feature. Scores
also need a number per pair, from matrix products, and a few numbers per row and candidate.
"""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from cometric.kernels.candidates import replace_top
from cometric.kernels.jit import njit
from cometric.kernels.lanes import (
    BYTES,
    Lanes,
    add,
    any_below,
    item,
    load,
    maximum,
    minimum,
    multiply_add,
    root,
    spread,
    store,
    zeros_like,
)
from cometric.kernels.launching import threaded
from cometric.kernels.scaling import FAST, aligned_zeros

SCALE = 65500.0
"""The integer for 1.0; the product of two such integers, shifted by 16 bits, is below 2^16."""

MINUS_TWO_COMMON, MINUS_TWO_COSINE = np.float32(-2.0 / SCALE), np.float32(-2.0 * 2.0**16 / SCALE**2)
"""The factors that turn the integers of both sums into -2 times the sums."""

ROWS = BYTES // 2
"""Rows that are compared at once."""

HALF = BYTES // 4
"""Floats in a vector: scores are computed for half of the rows at a time."""

SMALL = np.float32(1e-6)


@intrinsic
def _smaller(typing, x, y):
    """The smaller of unsigned integers, lane by lane."""

    def generate(context, builder, signature, args):
        return builder.select(builder.icmp_unsigned("<", *args), *args)

    return x(x, x), generate


@intrinsic
def _plus(typing, x, y):
    """The sum of integers, lane by lane."""

    def generate(context, builder, signature, args):
        return builder.add(*args)

    return x(x, x), generate


@intrinsic
def _high_product(typing, x, y):
    """The upper 16 bits of the products of unsigned integers, lane by lane."""

    def generate(context, builder, signature, args):
        wide = ir.VectorType(ir.IntType(32), args[0].type.count)
        product = builder.mul(*(builder.zext(arg, wide) for arg in args))
        shift = ir.Constant(wide, [16] * wide.count)
        return builder.trunc(builder.lshr(product, shift), args[0].type)

    return x(x, x), generate


@intrinsic
def _as_floats(typing, array, begin):
    """The integers of an array from ``begin`` on, as a vector of floats."""

    def generate(context, builder, signature, args):
        kind = context.get_value_type(signature.return_type)
        data = make_array(signature.args[0])(context, builder, args[0]).data
        short = ir.VectorType(ir.IntType(16), kind.count)
        address = builder.bitcast(builder.gep(data, [args[1]]), short.as_pointer())
        wide = ir.VectorType(ir.IntType(32), kind.count)
        return builder.sitofp(builder.zext(builder.load(address, align=2), wide), kind)

    return Lanes(types.float32)(array, types.int64), generate


@njit
def pack(indptr, bins, low, z, members):
    """Rows ``members`` of a CSR matrix, side by side: pointers, bins, both values as integers."""
    pointers = np.zeros(len(members) + 1, np.int64)
    for number in range(len(members)):
        j = members[number]
        pointers[number + 1] = pointers[number] + indptr[j + 1] - indptr[j]
    size = pointers[-1]
    columns = np.empty(size, np.int32)
    lows, zs = np.empty(size, np.uint16), np.empty(size, np.uint16)
    for number in range(len(members)):
        first, begin = indptr[members[number]], pointers[number]
        for e in range(pointers[number + 1] - begin):
            columns[begin + e] = bins[first + e]
            lows[begin + e] = np.uint16(np.float32(SCALE) * low[first + e])
            zs[begin + e] = np.uint16(np.float32(SCALE) * z[first + e])
    return pointers, columns, lows, zs


@njit
def _add_common(bins, low, z, begin, end, table, sums):
    """Write both sums of a candidate, entries ``begin`` to ``end``, with all rows to ``sums``."""
    zero = zeros_like(table)
    common, common_2, cosine, cosine_2 = zero, zero, zero, zero
    e = begin
    while e + 2 <= end:  # two accumulators each, to hide the latency of additions
        k, k_2 = 2 * ROWS * np.int64(item(bins, e)), 2 * ROWS * np.int64(item(bins, e + 1))
        common = _plus(common, _smaller(spread(item(low, e)), load(table, k)))
        common_2 = _plus(common_2, _smaller(spread(item(low, e + 1)), load(table, k_2)))
        cosine = _plus(cosine, _high_product(spread(item(z, e)), load(table, k + ROWS)))
        cosine_2 = _plus(cosine_2, _high_product(spread(item(z, e + 1)), load(table, k_2 + ROWS)))
        e += 2
    if e < end:
        k = 2 * ROWS * np.int64(item(bins, e))
        common = _plus(common, _smaller(spread(item(low, e)), load(table, k)))
        cosine = _plus(cosine, _high_product(spread(item(z, e)), load(table, k + ROWS)))
    store(sums, 0, _plus(common, common_2))
    store(sums, ROWS, _plus(cosine, cosine_2))


@njit
def _multiply(x, y):
    return multiply_add(x, y, spread(np.float32(0)))


@njit
def _norm(common):
    """l1 distances, 2 - 2 sum min."""
    two = spread(np.float32(2))
    return maximum(multiply_add(common, spread(MINUS_TWO_COMMON), two), spread(np.float32(0)))


@njit
def _distance(dot, factor, squares):
    """Distances of vectors: the root of ``squares + factor dot``."""
    return root(maximum(multiply_add(dot, spread(factor), squares), spread(np.float32(0))))


@njit
def _relative(total, noise, other_noise, spreads, farthest):
    """The combined distances relative to the neighborhoods, to the power 3/2."""
    least = _multiply(total, spread(SMALL))
    above = maximum(multiply_add(noise, spread(np.float32(-1)), total), least)
    above = _multiply(above, maximum(add(total, spread(-other_noise)), least))
    power = root(_multiply(above, spreads))
    return minimum(_multiply(power, root(power)), spread(farthest))


@njit
def _scale(parts, at, others, begin, part):
    """The product of a part of half of the rows with the same part of a candidate."""
    return _multiply(load(parts, part * ROWS + at), spread(item(others, begin + part)))


@njit(**FAST)
def _keep(scores, width, own, number, best, index, first, top):
    """Insert a candidate into the heap of each row for which it is among the best."""
    for t in range(width):
        if scores[t] < top[t] and own[first + t] != number:
            replace_top(best[first + t], index[first + t], scores[t], number)
            top[t] = best[first + t, 0]


@threaded
def shortlist(
    pointers, columns, lows, zs, indptr, bins, low, z, features, own, p, q, products, dots, parts,
    of_candidates, weight, farthest, offset, best, index, task, tasks,
):  # fmt: skip
    """Keep the candidates with the lowest scores in heaps ``best`` and ``index``, one per row.

    Candidates and rows are outputs of :func:`pack`, on bins below ``features``; candidates are
    numbered from ``offset`` on. ``products`` is (candidates, rows), padded to a multiple of 32
    columns. Transport is approximated by ``p_i + q_c - products_ci``. ``own`` is the number of each
    row among the candidates; it is skipped.

    ``parts`` (n, d) and ``of_candidates`` (candidates, d) belong to a local reference: for each of
    its distances the root of its weight over its scale, the noise, one over the spread, and the
    squared lengths of the vectors of all distances but the first two. ``dots`` (distances,
    candidates, rows) are the inner products of these. Without parts, ``weight`` is that of
    the l1 norm, 0 for other references.
    """
    n, stride = len(best), products.shape[1]
    flat_products, flat_dots = products.reshape(products.size), dots.reshape(dots.size)
    others, local = of_candidates.reshape(of_candidates.size), of_candidates.size > 0
    depth, dense = parts.shape[1], len(dots)
    noise, squares = 2 + dense, 4 + dense  # numbers of the parts
    two = spread(np.float32(2))
    table = aligned_zeros(2 * ROWS * features, np.uint16)
    sums = aligned_zeros(2 * ROWS, np.uint16)
    scores, top = aligned_zeros(ROWS, np.float32), aligned_zeros(ROWS, np.float32)
    own_p, own_parts = aligned_zeros(ROWS, np.float32), aligned_zeros(depth * ROWS, np.float32)
    for first in range(task * ROWS, n, tasks * ROWS):
        width = min(ROWS, n - first)
        top[:] = -np.inf
        for t in range(width):
            for e in range(indptr[first + t], indptr[first + t + 1]):
                at = 2 * ROWS * bins[e] + t
                table[at], table[at + ROWS] = low[e], z[e]
            top[t], own_p[t] = best[first + t, 0], p[first + t]
            for part in range(depth):
                own_parts[part * ROWS + t] = parts[first + t, part]
        for c in range(len(q)):
            _add_common(columns, lows, zs, pointers[c], pointers[c + 1], table, sums)
            hit = False
            for at in range(0, ROWS, HALF):
                place = c * stride + first + at
                norm = _norm(_as_floats(sums, at))
                if local:
                    begin = depth * c
                    norm = _multiply(_scale(own_parts, at, others, begin, 0), norm)
                    gap = _distance(_as_floats(sums, ROWS + at), MINUS_TWO_COSINE, two)
                    norm = multiply_add(_scale(own_parts, at, others, begin, 1), gap, norm)
                    for v in range(dense):
                        dot = load(flat_dots, v * products.size + place)
                        lengths = add(
                            load(own_parts, (squares + v) * ROWS + at),
                            spread(item(others, begin + squares + v)),
                        )
                        gap = _distance(dot, np.float32(-2), lengths)
                        norm = multiply_add(_scale(own_parts, at, others, begin, 2 + v), gap, norm)
                    norm = _relative(
                        norm, load(own_parts, noise * ROWS + at), item(others, begin + noise),
                        _scale(own_parts, at, others, begin, noise + 1), farthest,
                    )  # fmt: skip
                moved = multiply_add(
                    load(flat_products, place), spread(np.float32(-1)), load(own_p, at)
                )
                score = multiply_add(norm, spread(weight), add(moved, spread(item(q, c))))
                store(scores, at, score)
                hit |= any_below(score, load(top, at))
            if hit:
                _keep(scores, width, own, offset + c, best, index, first, top)
        for t in range(width):
            for e in range(indptr[first + t], indptr[first + t + 1]):
                at = 2 * ROWS * bins[e] + t
                table[at], table[at + ROWS] = 0, 0
