"""Word Mover's distances of BBC news: ``learn(X, features=C, eps=0)`` and loops over POT.

    python benchmarks/fixed.py --data ../shared/data [--documents 1000] [--pairs 1000]

The ground distances are Euclidean between word vectors of latent semantic analysis (TF-IDF, 50
singular vectors, unit length). cometric computes all pairs; POT solves a random sample of them, and
its time for all is that of the sample, scaled. Two loops over POT are timed: on the words that the
two documents use, and as its users write it, ``ot.emd2(A[i], A[j], C)`` on all words (on fewer
pairs, since each takes long). Both run on one core, as POT does; cometric uses all cores, so
compare the CPU times.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import labeled
import machine
import numpy as np
import ot
from scipy import sparse
from scipy.spatial.distance import pdist, squareform

import cometric as cm

VECTORS = 50


def documents(folder: Path, count: int) -> sparse.csr_array:
    """The first documents, over the words that they use."""
    data = labeled.SETS["bbc_news"](folder)
    data = replace(data, X=data.X[:count], labels=data.labels[:count], counts=None)
    return labeled.used(data).X


def word_distances(X: sparse.csr_array) -> np.ndarray:
    """Euclidean distances between the words, by latent semantic analysis."""
    from sklearn.decomposition import TruncatedSVD

    weighted = X.copy()
    weighted.data *= np.log(X.shape[0] / labeled.detected(X))[X.indices]
    vectors = TruncatedSVD(VECTORS, random_state=0).fit(weighted).components_.T
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return squareform(pdist(vectors / np.maximum(lengths, 1e-12)))


def on_supports(hist: sparse.csr_array, cost: np.ndarray, i: int, j: int) -> float:
    one, other = (slice(*hist.indptr[[k, k + 1]]) for k in (i, j))
    part = np.ascontiguousarray(cost[np.ix_(hist.indices[one], hist.indices[other])])
    return ot.emd2(hist.data[one], hist.data[other], part)


def timed(function, *args) -> tuple[object, float, float]:
    """The result, wall time and CPU time."""
    clock, cpu = time.perf_counter(), time.process_time()
    answer = function(*args)
    return answer, time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=1000, help="sample that POT solves")
    options = parser.parse_args()
    print(machine.describe("cometric", "numpy", "numba", "pot"))
    X = documents(options.data, options.documents)
    C = word_distances(X)
    n, m = X.shape
    total = n * (n - 1) // 2
    print(f"{n} documents, {m} words, {X.nnz / n:.1f} in each, {total} pairs")
    cm.warmup(["exact"])
    result, seconds, cpu = timed(lambda: cm.learn(X, features=C, eps=0))
    print(f"cometric, all pairs: {seconds:.1f} s, CPU {cpu:.1f} s, load {machine.load()}")

    hist = sparse.csr_array(X / X.sum(axis=1)[:, None])
    rng = np.random.default_rng(0)
    pairs = np.array([rng.choice(n, 2, replace=False) for _ in range(options.pairs)])
    report("POT on the words of a pair", hist, C, pairs, result, (seconds, cpu))
    dense = hist.toarray()
    few = pairs[: max(3, options.pairs // 50)]
    report("POT on all words", dense, C, few, result, (seconds, cpu))
    check, seconds, _ = timed(result.certify)
    print(f"certify, {seconds:.1f} s\n{check}")


def report(title: str, hist, cost, pairs, result, ours: tuple[float, float]) -> None:
    """Time a loop over POT on some pairs, compare its distances, and scale its time to all."""
    n = len(result.samples)
    total = n * (n - 1) / 2

    def loop() -> np.ndarray:
        if sparse.issparse(hist):
            return np.array([on_supports(hist, cost, i, j) for i, j in pairs])
        return np.array([ot.emd2(hist[i], hist[j], cost) for i, j in pairs])

    values, seconds, cpu = timed(loop)
    found = result.samples[pairs[:, 0], pairs[:, 1]]
    apart = values > 1e-12
    error = np.abs(found[apart] / values[apart] - 1.0).max()
    scale = total / len(pairs)
    print(
        f"{title}: {1e3 * seconds / len(pairs):.3f} ms per pair ({len(pairs)} pairs), "
        f"{scale * seconds:.0f} s for all, estimated; cometric is {scale * seconds / ours[0]:.1f} "
        f"times faster ({scale * cpu / ours[1]:.1f} times less CPU time); relative difference "
        f"{error:.1e}; load {machine.load()}"
    )


if __name__ == "__main__":
    main()
