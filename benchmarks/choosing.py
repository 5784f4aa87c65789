"""Whether `choose`, without labels, ranks distances as their accuracy does.

    python benchmarks/choosing.py [--data FOLDER] [--sets NAME ...] [--device cuda]

For every set: Spearman correlation of minus the loss with leave-one-out 10-NN accuracy, over all
candidates and baselines and over our candidates alone. The accuracy is that of distances from all
features, which is what matters, or of those from half of the features that the loss ranks, averaged
over the splits. Then accuracies of distances from all features: of the one with the smallest loss,
of the most accurate one, and of the best learned and best baseline by loss. All use the same
samples. About half an hour on two cores.
"""

import argparse
import time
import warnings
from pathlib import Path

import labeled
import numpy as np
from scipy.stats import spearmanr

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

COUNTS = "pbmc3k_cellranger counts"
SETS = [*labeled.SETS, COUNTS]
HEADS = (
    "set",
    "all",
    "ours",
    "all, half",
    "ours, half",
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
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--features", type=int)
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--neighbors", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
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
    data = labeled.SETS[name.removesuffix(" counts")](folder)
    return data.counts if name == COUNTS else data.X, data.labels


def row(name: str, X, labels, asked) -> None:
    """Print the row of a set."""
    began = time.perf_counter()
    choice, accuracy, in_half = compare(X, labels, asked)
    seconds = time.perf_counter() - began
    loss = {entry.name: entry.loss for entry in choice.table}
    cells = (
        name,
        f"{rank(loss, accuracy, loss):.2f}",
        f"{rank(loss, accuracy, CANDIDATES):.2f}",
        f"{rank(loss, in_half, loss):.2f}",
        f"{rank(loss, in_half, CANDIDATES):.2f}",
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
        for found in (accuracy, in_half):
            print({method: round(value, 3) for method, value in found.items()}, flush=True)


def compare(X, labels, asked) -> tuple[cm.Choice, dict[str, float], dict[str, float]]:
    """What `choose` returns; accuracies of distances from all features, and from the halves."""
    rng = np.random.default_rng(asked.seed)
    rows, columns = select(X, asked.samples, asked.features, rng)
    part, known = X[rows][:, columns], labels[rows]
    methods = {**methods_of(CANDIDATES, device=asked.device, drop_empty=True), **BASELINES}
    losses = {name: np.full((asked.splits, len(rows)), np.nan) for name in methods}
    seconds, in_half = dict.fromkeys(methods, 0.0), dict.fromkeys(methods, 0.0)
    for s, half in enumerate(hide_features(part, asked.splits, rng)):
        for name, distances_of in methods.items():
            began = time.perf_counter()
            distances = distances_of(half.visible)
            losses[name][s, half.samples] = prediction_losses(
                distances, half.hidden, asked.neighbors
            )
            seconds[name] += time.perf_counter() - began
            in_half[name] += scores.knn_accuracy(distances, known[half.samples]) / asked.splits
    choice = cm.Choice(
        table_of(losses, seconds, CANDIDATES),
        CANDIDATES,
        len(rows),
        len(columns) // 2,
        asked.splits,
        asked.neighbors,
    )
    accuracy = {
        name: scores.knn_accuracy(distances_of(part), known)
        for name, distances_of in methods.items()
    }
    return choice, accuracy, in_half


def rank(loss: dict[str, float], accuracy: dict[str, float], names) -> float:
    """Spearman correlation of minus the loss with the accuracy."""
    pairs = [(-loss[name], accuracy[name]) for name in names]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


if __name__ == "__main__":
    main()
