"""Trees: accuracy compared with other distances, and trees as a start.

python benchmarks/trees.py accuracy                      k-NN on labeled data, all cheap methods
python benchmarks/trees.py accuracy --sets cstr --only "trees" "trees, ward" "default" "WMD"
python benchmarks/trees.py accuracy --read folder        also the matrices folder/<set>/<method>.npy
python benchmarks/trees.py starts                        iterations from trees and from l1 distances

Accuracy follows Lin et al. (2025), Table 2: five random splits, 70 % to train and 30 % to test; the
mean accuracy of k nearest neighbors at k = 10, and at the best k of 1 .. 19 (chosen on the test
data as in that paper, hence optimistic).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from labeled import SETS
from scipy.spatial.distance import pdist, squareform

import cometric as cm
from cometric import baselines
from cometric.core.problem import Problem
from cometric.maps import views

LABELED = ("cstr", "classic3", "bbc_news", "pbmc3k_cellranger", "citeseq_cbmc")

PUBLISHED = """Published (Lin et al. 2025, Table 2; best k of 1 .. 19, tuned for each data set):
                 BBCSPORT  TWITTER  CLASSIC  AMAZON  ZEISEL  CBMC
WSV                  85.9     71.4     92.6    89.0    81.6  77.5
Tree-WSV             86.3     71.2     92.4    88.7    82.0  76.4
WMD / GMD            95.4     71.3     97.2    92.6    84.2  81.4
HD-TWD               96.1     73.4     96.9    93.1    89.1  84.3
coupled, Alg. 1      96.7     74.1     97.3    94.0    90.1  86.7
coupled, Alg. 2      97.3     76.7     97.6    94.2    94.0  93.3
Theirs are other data: CLASSIC has four collections, CBMC 56 classes. Do not compare numbers."""


# Methods: a distance between the rows of X.


def learned(**options: Any) -> Callable[[Any], np.ndarray]:
    return lambda X: cm.learn(X, **options).samples


def word_movers(X: Any) -> np.ndarray:
    """Exact transport between histograms, under Euclidean distances of LSA vectors of features."""
    problem = Problem.from_data(X)
    hist = problem.features.histograms
    (placed,) = views.lsa(hist).place(hist)
    cost = squareform(pdist(placed.rows))
    return problem.samples.expand(cm.ExactMap(problem.samples.histograms)(cost))


METHODS: dict[str, Callable[[Any], np.ndarray]] = {
    "LSA": baselines.lsa,
    "trees": learned(transport=cm.Tree()),
    "trees, complete": learned(transport=cm.Tree("complete")),
    "trees, ward": learned(transport=cm.Tree("ward")),
    "trees, ward, restart 0.7": learned(transport=cm.Tree("ward"), restart=0.7, norm="local"),
    "trees, single": learned(transport=cm.Tree("single")),
    "trees without R": learned(transport=cm.Tree(), tau=0),
    "WMD": word_movers,
    "default": learned(),
}
CHEAP = ("LSA", "trees", "trees, ward", "trees without R")


def accuracy(distances: np.ndarray, labels: np.ndarray) -> tuple[float, float, int]:
    """Mean accuracy at k = 10, at the best k, and that k."""
    classes = np.unique(labels, return_inverse=True)[1]
    rows = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(labels))
        cut = round(0.7 * len(labels))
        train, test = order[:cut], order[cut:]
        near = np.argsort(distances[np.ix_(test, train)], axis=1, kind="stable")[:, :19]
        votes = np.zeros((len(test), classes.max() + 1))
        scores = []
        for k in range(19):
            votes[np.arange(len(test)), classes[train][near[:, k]]] += 1
            scores.append(float((votes.argmax(axis=1) == classes[test]).mean()))
        rows.append(scores)
    mean = np.mean(rows, axis=0)
    return float(mean[9]), float(mean.max()), int(mean.argmax()) + 1


def silhouette(distances: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(distances, labels, metric="precomputed"))


def run_accuracy(args: argparse.Namespace) -> None:
    print("set | method | 10-NN | best of 1..19 | k | silhouette | seconds")
    for name in args.sets or LABELED:
        data = SETS[name](args.data)
        if args.samples:
            data = data.draw(args.samples)
        for method in args.only or CHEAP:
            began = time.perf_counter()
            distances = METHODS[method](data.X)
            report(f"{name} {data.X.shape}", method, distances, data.labels, began)
        for path in sorted((args.read / name).glob("*.npy")) if args.read else ():
            report(f"{name} {data.X.shape}", path.stem, np.load(path), data.labels)
    print(PUBLISHED)


def report(name: str, method: str, distances: Any, labels: Any, began: float | None = None) -> None:
    seconds = "read" if began is None else f"{time.perf_counter() - began:.1f}"
    ten, best, k = accuracy(distances, labels)
    score = silhouette(distances, labels)
    print(f"{name} | {method} | {ten:.4f} | {best:.4f} | {k} | {score:.4f} | {seconds}", flush=True)


def run_starts(args: argparse.Namespace) -> None:
    """Iterations of exact and entropic solves, from l1 distances and from trees."""
    for name in args.sets or ("cstr", "liu_scrna", "pbmc68k_reduced"):
        data = SETS[name](args.data).draw(args.samples or 200)
        for eps, options in ((0.1, {}), (0.1, {"tau": 1e-3}), (0.0, {"tau": 1e-2})):
            formula = {"norm": "l1", **options} if options else {}
            tree = cm.learn(data.X, transport=cm.Tree(), **formula)
            found = {}
            for start, metrics in (("l1", None), ("trees", tuple(tree.metrics))):
                began = time.perf_counter()
                result = cm.learn(data.X, eps=eps, start=metrics, solver=args.solver, **formula)
                sweeps = result.history[-1].sweeps
                found[start] = (
                    f"{result.iterations} iterations, {sweeps} sweeps, "
                    f"{time.perf_counter() - began:.1f} s, first residual "
                    f"{result.history[0].residual:.2g}"
                )
            print(
                f"{name} {data.X.shape}, eps = {eps:g}, {options or 'default'}: {found}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = {
        "accuracy": run_accuracy,
        "starts": run_starts,
    }
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--sets", nargs="*")
    parser.add_argument("--only", nargs="*", choices=METHODS)
    parser.add_argument("--samples", type=int, help="a random part of the samples")
    parser.add_argument("--read", type=Path, help="folder of distances computed before")
    parser.add_argument("--solver", default="auto", help="of the solves of `starts`")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    commands[args.command](args)


if __name__ == "__main__":
    main()
