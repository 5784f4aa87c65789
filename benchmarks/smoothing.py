"""The effect of `smooth`: learned once, and again from data averaged over neighbors.

    python benchmarks/smoothing.py [--data FOLDER] [--sets NAME ...] [--device cuda]

For every set, on random samples and the most variable features: silhouette and
leave-one-out 10-NN accuracy by the labels, nonzero entries (relative to those of the data
as given), and seconds of learning, with restart = 0.1 and l1. Neighbors are those of the first
learned metrics, or of LSA.
Ten minutes on two cores.
"""

import argparse
import time
import warnings
from pathlib import Path

import labeled
import machine
import numpy as np

import cometric as cm
from cometric import baselines, scores
from cometric.selection.comparison import subsample

SETS = ["pbmc3k_cellranger", "pbmc68k_reduced", "citeseq_cbmc", "bbc_news", "cstr", "digits"]
OPTIONS = {"restart": 0.1, "norm": "l1", "tol": 0.05, "dtype": "float32", "drop_empty": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default="../shared/data")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=list(labeled.SETS))
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--features", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(machine.describe("numpy", "numba"))
    print("| set | data | silhouette | 10-NN | entries | seconds |\n|---|---|---|---|---|---|")
    for name in asked.sets:
        data = labeled.SETS[name](asked.data)
        rows, columns = subsample(data.X, asked.samples, asked.features, np.random.default_rng(0))
        table(name, data.X[rows][:, columns], data.labels[rows], asked.device)


def table(name: str, X, labels, device: str) -> None:
    """Print the rows of a set."""
    first, seconds = timed(X, device)
    log = baselines.log_normalized(X)
    lsa = tuple(baselines.lsa(side, 30) for side in (log, log.T))
    show(name, "LSA-30, not learned", lsa[0], labels, 1.0, 0.0)
    show(name, "as they are", first.samples, labels, 1.0, seconds)
    for words, distances, options in (
        ("samples", first, {}),
        ("samples, keep 0.95", first, {"keep": 0.95}),
        ("samples, keep 0.8", first, {"keep": 0.8}),
        ("both", first, {"of": "both"}),
        ("both, keep 0.8", first, {"of": "both", "keep": 0.8}),
        ("samples by LSA, keep 0.8", lsa[0], {"keep": 0.8}),
        ("both by LSA, keep 0.8", lsa, {"of": "both", "keep": 0.8}),
    ):
        smoothed = cm.smooth(X, distances, **options)
        again, seconds = timed(smoothed, device)
        show(name, words, again.samples, labels, smoothed.nnz / X.nnz, seconds)


def timed(X, device: str) -> tuple[cm.Result, float]:
    began = time.perf_counter()
    return cm.learn(X, **OPTIONS, device=device), time.perf_counter() - began


def show(name: str, words: str, distances, labels, entries: float, seconds: float) -> None:
    scored = scores.silhouette(distances, labels), scores.knn_accuracy(distances, labels)
    cells = (name, words, *(f"{score:.3f}" for score in scored), f"{entries:.1f}", f"{seconds:.1f}")
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
