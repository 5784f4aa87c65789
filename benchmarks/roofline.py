"""The Sinkhorn kernels compared with the peak rates of one core: operations and bytes.

    python benchmarks/roofline.py

First the peak rates of the machine: matrix products (BLAS), and reading numbers from its caches
with a multiply-add per number. Then the four loops of a sweep for one pair, and whole maps.
One thread, medians of 5, without compilation. A multiply-add counts as two operations.
"""

import statistics
import time
from functools import partial

import machine
import numba
import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

import cometric as cm
from cometric.kernels.scaling import combine_rows, divide_lanes, project_rows, update
from cometric.kernels.simd import BYTES, add, load, multiply_add, total, zeros_like

TARGETS = 2000


def main() -> None:
    print(machine.describe("numpy", "numba"))
    with threadpool_limits(1):
        products()
        caches()
        for dtype in ("float64", "float32"):
            for size, bins in ((46, 64), (46, 1034), (90, 1034), (90, 2043)):
                loops(dtype, size, bins)
        for dtype in ("float64", "float32"):
            maps(dtype)


def seconds_of(action, repeats=5):
    """Median seconds."""
    action()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def products():
    for dtype in ("float64", "float32"):
        x = np.random.default_rng(0).random((1500, 1500)).astype(dtype)
        rate = 2 * 1500**3 / seconds_of(lambda x=x: x @ x) / 1e9
        print(f"product of matrices, {dtype}: {rate:.0f} GFLOP/s")


@numba.njit(error_model="numpy")
def read(numbers, repeats):
    """Multiply and add all numbers, six sums of lanes at once."""
    zero, y = zeros_like(numbers), load(numbers, 0)
    a, b, c, d, e, f = zero, zero, zero, zero, zero, zero
    for _ in range(repeats):
        for k in range(0, len(numbers), 48):
            a = multiply_add(y, load(numbers, k), a)
            b = multiply_add(y, load(numbers, k + 8), b)
            c = multiply_add(y, load(numbers, k + 16), c)
            d = multiply_add(y, load(numbers, k + 24), d)
            e = multiply_add(y, load(numbers, k + 32), e)
            f = multiply_add(y, load(numbers, k + 40), f)
    return total(add(add(add(a, b), add(c, d)), add(e, f)))


def caches():
    for kilobytes in (15, 180, 380, 1500, 7500):
        count = kilobytes * 125 // 48 * 48
        numbers = aligned(count, "float64")
        repeats = 100_000_000 // count
        taken = seconds_of(partial(read, numbers, repeats)) / repeats
        rates = 8 * count / taken / 1e9, 2 * count / taken / 1e9
        print(f"reading {kilobytes} KB: {rates[0]:.0f} GB/s, {rates[1]:.0f} GFLOP/s in float64")


def aligned(count, dtype):
    """Ones whose address is a multiple of the size of a vector."""
    raw = np.ones(count + BYTES, dtype)
    shift = (-raw.ctypes.data % BYTES) // raw.itemsize
    return raw[shift : shift + count]


@numba.njit
def run(part, chunk, rows, starts, size, v, u, ku, mass, tail, width):
    """One of the loops of a sweep, for every target; the sum keeps it from being optimized away."""
    value = 0.0
    for begin in starts:
        if part == 0:
            combine_rows(chunk, rows, begin, begin + size, v, 0, u, width)
        elif part == 1:
            project_rows(chunk, rows, begin, begin + size, u, ku, 0, width)
        elif part == 2:
            value += divide_lanes(mass, 0, u, width)
        else:
            value += update(mass, 0, size, v, 0, ku, 0, tail)[0]
    return value


def loops(dtype, size, bins):
    """Nanoseconds of each loop of a sweep: histograms of ``size`` bins out of ``bins``."""
    rng = np.random.default_rng(0)
    lanes = BYTES // np.dtype(dtype).itemsize
    width = -(-size // lanes) * lanes
    rows = np.empty((TARGETS, width), np.int32)
    for row in rows:
        row[:size] = np.sort(rng.choice(bins, size, replace=False))
        row[size:] = row[size - 1]
    arrays = [aligned(count, dtype) for count in (width, width, width + BYTES, width, lanes)]
    chunk = aligned(bins * width, dtype)
    chunk[:] = rng.random(len(chunk)) + 0.1
    starts = np.arange(TARGETS) * width
    taken = []
    for part in range(4):
        for array in arrays:
            array[:] = 1
        v, u, ku, mass, tail = arrays

        def all_targets(part=part, v=v, u=u, ku=ku, mass=mass, tail=tail):
            run(part, chunk, rows.ravel(), starts, size, v, u, ku, mass, tail, width)

        taken.append(seconds_of(all_targets) / TARGETS * 1e9)
    useful = 2 * size * size
    print(
        f"sweep of {size} x {size} of {bins} bins, {dtype}, "
        f"columns of K {chunk.nbytes / 1e3:.0f} KB: "
        f"K v {taken[0]:.0f} ns ({useful / taken[0]:.1f} GFLOP/s), "
        f"K u {taken[1]:.0f} ns ({useful / taken[1]:.1f}), "
        f"u and its logarithms {taken[2]:.0f} ns, v {taken[3]:.0f} ns; "
        f"all {2 * useful / sum(taken):.1f} GFLOP/s"
    )


def maps(dtype):
    """One sweep of all pairs of simulated counts, sparse and dense."""
    for n, m, density in ((800, 1000, 0.05), (300, 300, 0.7)):
        counts = cm.datasets.simulate_counts(n, m, density=density).X
        problem = cm.Problem.from_data(sparse.csr_array(counts), drop_empty=True)
        hist = problem.samples.hist
        phi = cm.EntropicMap(hist, 0.1, sweeps=1, dtype=dtype, n_threads=1)
        points = np.random.default_rng(0).random((hist.shape[1], 8))
        cost = np.sqrt(((points[:, None] - points) ** 2).sum(axis=-1))
        taken = seconds_of(lambda phi=phi, cost=cost: phi(cost))
        work = 4.0 * (hist.nnz**2 - np.sum(np.diff(hist.indptr).astype(float) ** 2)) / 2
        print(
            f"map of {hist.shape[0]} histograms, {hist.nnz / hist.shape[0]:.0f} of {hist.shape[1]} "
            f"bins, {dtype}: {taken:.2f} s, {work / taken / 1e9:.1f} GFLOP/s"
        )


if __name__ == "__main__":
    main()
