"""For each row, the best of many candidates, without storing all pairs, Numba.

:func:`lowest` compares rows with histograms, CSR rows ``indptr``, ``bins``, ``weight``. The bound
of row i and histogram b_j is

    p_i + q_j - <x_i, b_j> + max_l |r_il - s_jl| + share (2 - 2 sum min(a_i, b_j)) + extra_ij,

with x_i dense, so that only the bins of b_j are visited. Rows are compared with all histograms in
groups, one row per vector lane; the lowest bounds of each row are collected in a heap.

:func:`shortlist` ranks candidates by scores with two sums over the features that both have:
sum min(low_i, low_j) and <z_i, z_j>. They are computed for 32 rows at once, from 16-bit integers:
the rows form a table with 32 values per feature, and a candidate reads those of its own features.
Values are rounded down to multiples of about 2^-16, so that sums of at most 1 fit 16 bits; the
error is at most 2^-16 per common feature. Scores also need a number per pair, from matrix products,
and a few numbers per row and candidate.

:func:`pair_sums` returns three sums over the entries of the candidates j of dense rows i,

    <x_i, one_j>,    sum min(low_i, two_j),    <z_i, three_j>,

and :func:`view_squares` distances of dense vectors of several views, side by side.
"""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from cometric.kernels.compiling import njit, threaded
from cometric.kernels.scaling import FAST, aligned_zeros
from cometric.kernels.simd import (
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

LANES = BYTES // 8


@njit
def _bounds(indptr, bins, weight, j, x, a, share, out):
    """Write -<x_i, b_j> - 2 share sum min(a_i, b_j) for all lanes to ``out``."""
    zero = zeros_like(x)
    products, products_2, common, common_2 = zero, zero, zero, zero
    e, end = indptr[j], indptr[j + 1]
    while e + 2 <= end:  # two accumulators each, to hide the latency of additions
        b, b_2 = spread(weight[e]), spread(weight[e + 1])
        k, k_2 = bins[e] * LANES, bins[e + 1] * LANES
        products = multiply_add(b, load(x, k), products)
        products_2 = multiply_add(b_2, load(x, k_2), products_2)
        if share > 0.0:
            common = add(common, minimum(b, load(a, k)))
            common_2 = add(common_2, minimum(b_2, load(a, k_2)))
        e += 2
    if e < end:
        b, k = spread(weight[e]), bins[e] * LANES
        products = multiply_add(b, load(x, k), products)
        common = add(common, minimum(b, load(a, k)))
    both = multiply_add(spread(-2.0 * share), add(common, common_2), zero)
    store(out, 0, multiply_add(spread(-1.0), add(products, products_2), both))


@njit
def _largest_gap(means, j, r, out):
    """Add max_l |r_il - s_jl| to ``out`` for all lanes."""
    gaps = zeros_like(r)
    for l in range(means.shape[1]):
        gap = add(load(r, l * LANES), spread(-means[j, l]))
        gaps = maximum(gaps, maximum(gap, multiply_add(spread(-1.0), gap, zeros_like(r))))
    store(out, 0, add(load(out, 0), gaps))


@njit
def replace_top(values, index, value, j):
    """Replace the largest entry of a heap by (value, j)."""
    size, here = len(values), 0
    while True:
        below = 2 * here + 1
        if below >= size:
            break
        if below + 1 < size and values[below + 1] > values[below]:
            below += 1
        if values[below] <= value:
            break
        values[here], index[here] = values[below], index[below]
        here = below
    values[here], index[here] = value, j


def lowest(indptr, bins, weight, first, p, q, images, means, share, extra, count, tasks):
    """The ``count`` lowest bounds of each row, in increasing order, and their histograms.

    Rows are the histograms from ``first`` on, one for each of the ``images``; a row is not its own
    candidate. Negative bounds are clipped to zero; then ``extra`` is added, unless it is empty.
    """
    bounds = np.full((len(images), count), np.inf)
    index = np.zeros((len(images), count), np.int64)
    _lowest(
        indptr, bins, weight, first, p, q, images, means, share, extra, bounds, index, tasks
    )  # fmt: skip
    return bounds, index


@threaded
def _lowest(
    indptr, bins, weight, first, p, q, images, means, share, extra, bounds, index, task, tasks
):  # fmt: skip
    rows, m = images.shape
    n, references = len(indptr) - 1, means.shape[1]
    x, a = aligned_zeros(m * LANES, np.float64), aligned_zeros(m * LANES, np.float64)
    r, out = aligned_zeros(references * LANES, np.float64), aligned_zeros(LANES, np.float64)
    for begin in range(task * LANES, rows, tasks * LANES):
        width = min(LANES, rows - begin)
        a[:] = 0.0
        for t in range(width):
            i = first + begin + t
            for k in range(m):
                x[k * LANES + t] = images[begin + t, k]
            for e in range(indptr[i], indptr[i + 1]):
                a[bins[e] * LANES + t] = weight[e]
            for l in range(references):
                r[l * LANES + t] = means[i, l]
        for j in range(n):
            _bounds(indptr, bins, weight, j, x, a, share, out)
            if references:
                _largest_gap(means, j, r, out)
            for t in range(width):
                row = begin + t
                value = max(0.0, p[row] + q[j] + 2.0 * share + out[t])
                if extra.size:
                    value += extra[row, j]
                if value < bounds[row, 0] and j != first + row:
                    replace_top(bounds[row], index[row], value, j)
        for t in range(width):
            order = np.argsort(bounds[begin + t])
            bounds[begin + t] = bounds[begin + t][order]
            index[begin + t] = index[begin + t][order]


# --------------------------------------------------------------------------------------- shortlists

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


# ------------------------------------------------------------------------------ sums of given pairs


@njit(**FAST)
def _add(k, e, one, two, three, x, low, z, product, common, cosine):
    """The sums with the terms of entry ``e``, in bin ``k``."""
    least = min(low[k], two[e])
    return product + x[k] * one[e], common + least, cosine + z[k] * three[e]


@njit(**FAST)
def _sums(bins, begin, end, one, two, three, x, low, z):
    """The three sums of one pair; two entries at a time, so that latencies overlap."""
    zero, step = x.dtype.type(0), np.uint64(1)
    p, c, s = zero, zero, zero
    q, d, t = zero, zero, zero
    e = begin
    while e + step < end:
        k, l = np.uint64(bins[e]), np.uint64(bins[e + step])
        p, c, s = _add(k, e, one, two, three, x, low, z, p, c, s)
        q, d, t = _add(l, e + step, one, two, three, x, low, z, q, d, t)
        e += step + step
    if e < end:
        p, c, s = _add(np.uint64(bins[e]), e, one, two, three, x, low, z, p, c, s)
    return p + q, c + d, s + t


def pair_sums(indptr, bins, one, two, three, x, low, z, index, tasks):
    """The three sums of row i with the candidates ``index[i]``, (3, rows, candidates).

    Negative entries of ``index`` mean no candidate, and get zeros.
    """
    sums = np.zeros((3, *index.shape), x.dtype)
    _pair_sums(indptr, bins, one, two, three, x, low, z, index, sums, tasks)
    return sums


@threaded
def _pair_sums(indptr, bins, one, two, three, x, low, z, index, sums, task, tasks):
    rows, count = index.shape
    for i in range(task, rows, tasks):
        x_i, low_i, z_i = x[i], low[i], z[i]
        for c in range(count):
            j = index[i, c]
            if j >= 0:
                begin, end = np.uint64(indptr[j]), np.uint64(indptr[j + 1])
                sums[0, i, c], sums[1, i, c], sums[2, i, c] = _sums(
                    bins, begin, end, one, two, three, x_i, low_i, z_i
                )


def view_squares(vectors, cuts, rows, index, tasks):
    """Squared distances in each view of rows and their candidates, (views, rows, candidates).

    View v has the columns from ``cuts[v]`` to ``cuts[v + 1]``. Differences are squared, which is
    accurate for close vectors, unlike |a|^2 + |b|^2 - 2 <a, b>.
    """
    squares = np.empty((len(cuts) - 1, *index.shape), vectors.dtype)
    _view_squares(vectors, cuts, rows, index, squares, tasks)
    return squares


@threaded
def _view_squares(vectors, cuts, rows, index, squares, task, tasks):
    for i in range(task, len(rows), tasks):
        own = vectors[rows[i]]
        for c in range(index.shape[1]):
            other = vectors[index[i, c]]
            for v in range(len(cuts) - 1):
                squares[v, i, c] = _square(own, other, cuts[v], cuts[v + 1])


@njit(**FAST)
def _square(one, other, start, stop):
    """The squared distance of two vectors in the columns from ``start`` to ``stop``."""
    total = one.dtype.type(0)
    for k in range(start, stop):
        gap = one[k] - other[k]
        total += gap * gap
    return total
