"""Saturated costs: silhouette and 10-NN accuracy of the samples over a range of values.

    python benchmarks/saturate.py [SET ...] [--data FOLDER] [--mean]

eps = 0.3, restart = 0.1, residual 3e-3, 350 samples and their 300 most variable features, counts
normalized to their median depth and log1p'd. ``--mean`` measures s in mean distances instead of the
largest one.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import machine
import numpy as np
from labeled import SETS, Labeled

import cometric as cm
from cometric import scores
from cometric.core.formula import Formula

SAMPLES, FEATURES = 350, 300
LARGEST, MEAN = (0.0, 1.0, 0.5, 0.2, 0.1, 0.05), (4.0, 2.0, 1.0, 0.5, 0.25)
DEFAULT = ("pbmc68k_reduced", "liu_scrna", "citeseq_cbmc", "pbmc3k_cellranger", "bbc_news")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    parser.add_argument("--mean", action="store_true", help="s in mean distances")
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba"))
    if asked.mean:
        Formula.saturated = in_mean_distances  # restarts do not depend on the largest cost
    values = MEAN if asked.mean else LARGEST
    print("| |", " | ".join(f"{s:g}" for s in values), "|", flush=True)
    for name in asked.sets or DEFAULT:
        X, labels = prepared(SETS[name](asked.data))
        cells = []
        for s in values:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # repeats
                found = cm.learn(X, 0.3, restart=0.1, norm="l1", saturate=s, tol=3e-3).samples
            nearest = scores.knn_accuracy(found, labels, 10)
            cells.append(f"{scores.silhouette(found, labels):.3f} / {nearest:.3f}")
        print(f"| {name}, {X.shape[0]} x {X.shape[1]} |", " | ".join(cells), "|", flush=True)


def prepared(data: Labeled) -> tuple[np.ndarray, np.ndarray]:
    """Some samples and features, dense, and the labels."""
    data = data.draw(SAMPLES)
    X = data.X.toarray()
    if X.max() > 30.0:
        depth = X.sum(axis=1, keepdims=True)
        X = np.log1p(X * (np.median(depth) / depth))
    X = X[:, np.sort(np.argsort(-X.std(axis=0), kind="stable")[:FEATURES])]
    rows = X.any(axis=1)
    X = X[rows]
    return X[:, X.any(axis=0)], data.labels[rows]


def in_mean_distances(formula: Formula, cost: np.ndarray) -> np.ndarray:
    """The cost q (1 - exp(-C / (q s))), q the mean distance, scaled to the largest entry of C."""
    if formula.saturate == 0.0:
        return cost
    mean = cost.sum() / (len(cost) * (len(cost) - 1))
    values = -np.expm1(cost / (-mean * formula.saturate))
    return values * (cost.max() / values.max())


if __name__ == "__main__":
    main()
