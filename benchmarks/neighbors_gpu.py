"""Neighbors of many samples on a GPU: time, share proved, recall and memory, by size.

    python benchmarks/neighbors_gpu.py [--sizes 10000 100000 1000000] [--features 2000]

Counts as of ``cm.datasets.simulate_counts`` (10 types, 5 % nonzero), drawn on the device. The
feature metric is learned from 1,000 landmarks, R as in 0.2; 15 neighbors, 600 distances
allowed per sample, 20 samples compared with all others. Seconds are those of one call of
``neighbor_graph``, from a matrix in memory to the graph, without the check. A first call, with
2,000 samples, compiles the kernels and is not counted.
"""

import argparse
import math
import time
import warnings

import numpy as np
import torch
from machine import describe
from scipy import sparse

import cometric as cm
from cometric.landmarks import search_torch


def simulate(n, m, types=10, density=0.05, seed=0, step=16_384):
    """Counts like those of ``simulate_counts``, drawn on the device in blocks of rows."""
    draw = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=draw, device="cuda", dtype=torch.float64)

    marks = torch.arange(m, device="cuda")
    marks = torch.where(marks < m // 4, marks % types, -1)
    marks = marks[torch.randperm(m, generator=draw, device="cuda")]
    labels = torch.arange(n, device="cuda") % types
    labels = labels[torch.randperm(n, generator=draw, device="cuda")]
    depth, level = (0.4 * normal(n)).exp(), normal(m).exp()

    def means(rows):
        fold = torch.where(labels[rows, None] == marks, 10.0, 1.0)
        return depth[rows, None] * level * fold

    some = means(slice(0, min(n, 4096)))
    low, high = -40.0, 40.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if float(-torch.expm1(-math.exp(middle) * some).mean()) < density:
            low = middle
        else:
            high = middle
    parts = []
    for start in range(0, n, step):
        rate = math.exp(low) * means(slice(start, min(start + step, n)))
        counts = torch.poisson(rate, generator=draw)
        empty = (counts.sum(1) == 0).nonzero()[:, 0]
        counts[empty, rate[empty].argmax(1)] = 1.0
        i, k = counts.nonzero(as_tuple=True)
        sizes = (counts > 0).sum(1)
        parts.append([x.cpu().numpy() for x in (sizes, k.int(), counts[i, k])])
    sizes, indices, data = (np.concatenate(part) for part in zip(*parts, strict=True))
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    return sparse.csr_array((data, indices, indptr), shape=(n, m))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--features", type=int, default=2_000)
    parser.add_argument("--landmarks", type=int, default=1_000)
    parser.add_argument("--tau", type=float, help="with the l1 norm, instead of the defaults")
    parser.add_argument("--slots", type=int, default=search_torch.SLOTS)
    asked = parser.parse_args()
    search_torch.SLOTS = asked.slots
    warnings.simplefilter("ignore")
    print(describe("numpy", "torch", "triton"), torch.cuda.get_device_name(), flush=True)
    # The default reference runs on the CPU only.
    options = {"norm": "local-0.2"} | ({} if asked.tau is None else {"tau": asked.tau})
    for count, n in enumerate([2_000, *asked.sizes]):
        began = time.perf_counter()
        X = simulate(n, asked.features, seed=count)
        drawn = time.perf_counter() - began
        result = cm.learn(X[: asked.landmarks], device="cuda", drop_empty=True, **options)
        learned = time.perf_counter() - began - drawn
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        found = cm.neighbor_graph(result, X, 15, check=0, device="cuda")
        seconds = time.perf_counter() - began
        memory = torch.cuda.max_memory_allocated() / 1e9
        print(
            f"{n} x {X.shape[1]}, {X.nnz / X.shape[0]:.0f} features per sample, drawn in "
            f"{drawn:.1f} s, landmarks {learned:.1f} s: {seconds:.1f} s, "
            f"{100 * found.proved.mean():.2f} % proved, "
            f"{found.compared:.1f} distances per sample, {memory:.1f} GB on the device",
            flush=True,
        )
        check(result, X, found)


def check(result, X, found, count=20):
    """The recall of some samples, compared with all others, and the seconds it takes."""
    from cometric.files.rows import rows_of
    from cometric.landmarks.neighbors import read_histograms

    began = time.perf_counter()
    search = search_torch.TensorSearch(
        result, *read_histograms(result, rows_of(X)), 15, 600, "cuda"
    )
    queries = np.random.default_rng(0).choice(X.shape[0], count, replace=False)
    near = found.graph.data.reshape(X.shape[0], -1)[queries]
    recall = search.recall(queries, near)
    print(f"   recall {recall:.4f} on {count}, {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
