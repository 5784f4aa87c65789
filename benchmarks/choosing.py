"""Whether `choose`, which sees no labels, ranks distances as labels do.

    python benchmarks/choosing.py [--data FOLDER] [--sets NAME ...] [--device cuda]

For every set: Spearman correlation of minus the loss with leave-one-out 10-NN accuracy, over all
candidates and baselines and over our candidates alone; then the accuracy of the one with the
smallest loss, of the most accurate one, and of the best learned and best baseline by loss.
Accuracies are those of the same distances, averaged over the splits. A quarter of an hour on two
cores.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from sklearn.datasets import load_digits

import cometric as cm
import machine
from cometric import scores
from cometric.choosing.comparison import (
    BASELINES,
    CANDIDATES,
    methods_of,
    select,
    table_of,
)
from cometric.choosing.hiding import hide_features, prediction_losses
from cometric.core.inputs import read_matrix

SETS = {
    "pbmc3k_cellranger": "cell_type",
    "pbmc3k_cellranger counts": "cell_type",
    "pbmc68k_reduced": "label",
    "liu_scrna": "label",
    "citeseq_cbmc": "label",
    "pollen": "label",
    "spectra_immune": "label",
    "bbc_news": "label",
    "classic3": "label",
    "cstr": "label",
    "digits": "",
}
HEADS = (
    "set",
    "all",
    "ours",
    "picked",
    "accuracy",
    "best",
    "learned",
    "baseline",
    "gains",
    "seconds",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default="../shared/data")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--samples", type=int)
    parser.add_argument("--features", type=int)
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--verbose", action="store_true", help="print every table")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(machine.describe("numpy", "numba"))
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for name in asked.sets:
        X, labels = load(name, asked.data)
        row(name, X, labels, asked)


def load(name: str, folder: Path):
    """The data as a sparse matrix, and the labels of its samples."""
    if name == "digits":
        X, labels = load_digits(return_X_y=True)
        return read_matrix(X, "X"), labels
    import anndata

    data = anndata.read_h5ad(folder / f"{name.removesuffix(' counts')}.h5ad")
    if name.endswith(" counts"):
        data.X = data.layers["counts"]
    if "top1000_std" in data.var:
        data = data[:, data.var["top1000_std"].astype(bool)]
    return read_matrix(data, "X"), data.obs[SETS[name]].astype(str).to_numpy()


def row(name: str, X, labels, asked) -> None:
    """Print the row of a set."""
    began = time.perf_counter()
    choice, accuracy = compare(X, labels, asked)
    seconds = time.perf_counter() - began
    loss = {entry.name: entry.loss for entry in choice.table}
    cells = (
        name,
        f"{rank(loss, accuracy, loss):.2f}",
        f"{rank(loss, accuracy, CANDIDATES):.2f}",
        choice.best,
        f"{accuracy[choice.best]:.3f}",
        f"{max(accuracy.values()):.3f} ({max(accuracy, key=accuracy.get)})",
        f"{accuracy[choice.best_learned.name]:.3f}",
        f"{accuracy[choice.best_baseline.name]:.3f}",
        f"{choice.gains}",
        f"{seconds:.0f}",
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    if asked.verbose:
        print(choice)
        print({method: round(value, 3) for method, value in accuracy.items()}, flush=True)


def compare(X, labels, asked) -> tuple[cm.Choice, dict[str, float]]:
    """What `choose` returns, and the accuracy of the same distances, averaged over splits."""
    rng = np.random.default_rng(0)
    rows, columns = select(X, asked.samples, asked.features, rng)
    part, known = X[rows][:, columns], labels[rows]
    methods = {**methods_of(CANDIDATES, device=asked.device), **BASELINES}
    losses = {name: np.full((asked.splits, len(rows)), np.nan) for name in methods}
    seconds, right = dict.fromkeys(methods, 0.0), dict.fromkeys(methods, 0.0)
    for s, half in enumerate(hide_features(part, asked.splits, rng)):
        for name, distances_of in methods.items():
            began = time.perf_counter()
            distances = distances_of(half.visible)
            losses[name][s, half.samples] = prediction_losses(distances, half.hidden, 10)
            seconds[name] += time.perf_counter() - began
            right[name] += scores.knn_accuracy(distances, known[half.samples]) / asked.splits
    table = table_of(losses, seconds, CANDIDATES)
    return cm.Choice(table, CANDIDATES, len(rows), len(columns) // 2, asked.splits, 10), right


def rank(loss: dict[str, float], accuracy: dict[str, float], names) -> float:
    """Spearman correlation of minus the loss with the accuracy."""
    pairs = [(-loss[name], accuracy[name]) for name in names]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


if __name__ == "__main__":
    main()
