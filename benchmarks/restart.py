"""The weight of the norm: tau and restart over a range of values, with labels and without.

    python benchmarks/restart.py [digits] [pbmc3k] [liu] [bbc] [citeseq] [--data FOLDER]

For each set, eps = 0.1 and residual 1e-3 (at most 40 iterations, float32 for the approach):
silhouette / 10-NN accuracy of the sample metric by the labels; without them, the participation
ratio of the metric and the agreement of 10-neighborhoods between fits on two random halves of
the features. Sets are cut so that all of it takes minutes; the sizes are printed.
"""

import argparse
import time
import warnings
from pathlib import Path

import machine
import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

import cometric as cm
from cometric import baselines, scores

SETTINGS = [{"tau": tau} for tau in (1e-3, 1e-2, 1e-1)]
SETTINGS += [{"restart": alpha} for alpha in (0.02, 0.05, 0.1, 0.2)]
EPS, TOL, ITERATIONS, NEIGHBORS = 0.1, 1e-3, 40, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba"), f"\ncompile: {cm.warmup(['entropic']):.1f} s")
    for name in asked.sets or SETS:
        X, labels = SETS[name](asked.data)
        kept, halves = split(X)
        X, labels = X[kept], labels[kept]
        print(f"\n{name}: {X.shape[0]} x {X.shape[1]}, {len(np.unique(labels))} labels")
        print("| | silhouette | 10-NN | axes | halves agree | iterations | s |", flush=True)
        for words, found in plain(X):
            row(words, found, [plain(half, words) for half in halves], labels, "", 0.0)
        for options in SETTINGS:
            began = time.perf_counter()
            result, *parts = (learn(part, options) for part in (X, *halves))
            words = " ".join(f"{key} {value:g}" for key, value in options.items())
            spent = time.perf_counter() - began
            metrics = [part.samples for part in parts]
            row(words, result.samples, metrics, labels, result.iterations, spent)


def learn(X, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cm.ConvergenceWarning)
        warnings.filterwarnings("ignore", ".*repeat others")
        return cm.learn(X, EPS, norm="l1", tol=TOL, max_iter=ITERATIONS, dtype="float32", **options)


def row(words, metric, halves, labels, iterations, spent):
    # Distances in PCA space are not squared; their number of axes is known anyway.
    axes = "" if words.startswith("PCA") else f"{scores.participation_ratio(metric):.1f}"
    print(
        f"| {words} | {scores.silhouette(metric, labels):.3f} "
        f"| {scores.knn_accuracy(metric, labels, NEIGHBORS):.3f} "
        f"| {axes} | {scores.neighborhood_agreement(*halves, NEIGHBORS):.3f} "
        f"| {iterations} | {spent:.0f} |",
        flush=True,
    )


def plain(X, wanted=None):
    """The baselines by name, or one of them."""
    A = X / X.sum(axis=1, keepdims=True)
    makers = {
        "l1 of histograms": lambda: baselines.l1(A),
        "cosine": lambda: baselines.cosine(X),
        "PCA 5": lambda: baselines.pca(X, 5),
        "PCA 15": lambda: baselines.pca(X, 15),
    }
    if wanted is not None:
        return makers[wanted]()
    return ((name, make()) for name, make in makers.items())


def split(X):
    """The samples with something in both random halves of the features, and the halves."""
    order = np.random.default_rng(0).permutation(X.shape[1])
    parts = order[: len(order) // 2], order[len(order) // 2 :]
    kept = np.flatnonzero(np.logical_and(*(X[:, part].any(axis=1) for part in parts)))
    halves = [X[np.ix_(kept, part)] for part in parts]
    return kept, [half[:, half.any(axis=0)] for half in halves]


def some(X, labels, n, least=3):
    """``n`` random samples (fixed seed), and the features that at least ``least`` of them have."""
    chosen = np.sort(np.random.default_rng(0).choice(len(labels), n, replace=False))
    X = X[chosen].toarray() if sparse.issparse(X) else X[chosen]
    return X[:, (X > 0).sum(axis=0) >= least].astype(np.float64), np.asarray(labels)[chosen]


def widest(X, m):
    """The ``m`` features of largest standard deviation."""
    return X[:, np.sort(np.argsort(-X.std(axis=0), kind="stable")[:m])]


def read(folder, name):
    import anndata

    return anndata.read_h5ad(folder / f"{name}.h5ad")


def digits(_):
    data = cm.datasets.digits()
    return some(data.X, data.labels, 400)


def pbmc3k(folder):
    cells = read(folder, "pbmc3k_cellranger")
    return some(cells.X, cells.obs["cell_type"], 350)


def liu(folder):
    cells = read(folder, "liu_scrna")
    return widest(cells.X.toarray().astype(float), 120), cells.obs["label"].to_numpy()


def bbc(folder):
    texts = read(folder, "bbc_news")
    X, labels = some(texts.X, texts.obs["topic"], 300, least=5)
    weighted = TfidfTransformer().fit_transform(widest(X, 500)).toarray()
    kept = weighted.any(axis=1)
    return weighted[kept], labels[kept]


def citeseq(folder):
    cells = read(folder, "citeseq_cbmc")
    X, labels = some(cells.X, cells.obs["cell_type"], 250)
    kinds, counts = np.unique(labels, return_counts=True)
    kept = np.isin(labels, kinds[counts >= 5])
    return widest(np.log1p(X[kept]), 100), labels[kept]


SETS = {"digits": digits, "pbmc3k": pbmc3k, "liu": liu, "bbc": bbc, "citeseq": citeseq}


if __name__ == "__main__":
    main()
