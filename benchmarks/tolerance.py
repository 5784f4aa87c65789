"""When to stop: scores by labels, iterations and seconds for several tolerances.

    python benchmarks/tolerance.py [digits] [pbmc3k] [liu] [bbc] [citeseq] [--data FOLDER]

The sets of benchmarks/restart.py, eps = 0.1, restart = 0.1 and tau = "paper", float64. The distance
is the Hilbert distance to the sample metric at 1e-8: since both have maximum 1, its exponential
bounds the factor by which any entry is off.
"""

import argparse
import warnings
from pathlib import Path

import machine
from restart import NEIGHBORS, SETS

import cometric as cm
from cometric import scores

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba"), f"\ncompile: {cm.warmup(['entropic']):.1f} s")
    print("| set | weight | tol | silhouette | 10-NN | distance to 1e-8 | iterations | s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in asked.sets or SETS:
        X, labels = SETS[name](asked.data)
        words = f"{name}, {X.shape[0]} x {X.shape[1]}"
        for weight in ({"restart": 0.1}, {"tau": "paper"}):
            truth = learn(X, weight, 1e-8)
            for tol in TOLERANCES:
                result = learn(X, weight, tol)
                print(
                    f"| {words} | {weight} | {tol:g} "
                    f"| {scores.silhouette(result.samples, labels):.3f} "
                    f"| {scores.knn_accuracy(result.samples, labels, NEIGHBORS):.3f} "
                    f"| {cm.hilbert_distance(result.samples, truth.samples):.1e} "
                    f"| {result.iterations} | {result.history[-1].seconds:.1f} |",
                    flush=True,
                )


def learn(X, weight, tol):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*repeats? others")
        return cm.learn(X, tol=tol, norm="l1", **weight)


if __name__ == "__main__":
    main()
