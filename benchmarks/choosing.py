"""Whether `choose`, without labels, recommends what labels recommend.

    python benchmarks/choosing.py [--data FOLDER] [--sets NAME ...] [--device cuda]

For every draw of every set: the candidate that `choose` recommends, or that it cannot decide; how
far behind another its defaults may be, as a share of the distance to random neighbors; then
leave-one-out 10-NN accuracies, on all samples: of what it recommends (the defaults, where it cannot
decide), of the candidate with the smallest loss, and of the best. At the end: on how many draws it
decides, and by how much the accuracy is below the best there, on average and at most. About two
hours on two cores.
"""

import argparse
import warnings
from pathlib import Path

import labeled
import machine
import numpy as np

import cometric as cm
from cometric import scores
from cometric.selection.choice import RANDOM
from cometric.selection.comparison import BASELINES, CANDIDATES, methods_of

SETS = {**{name: [read] for name, read in labeled.SETS.items()}, **labeled.THIN}
HEADS = ("set", "recommended", "behind", "accuracy", "smallest loss", "best", "lost", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default="../shared/data")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--samples", type=int, default=1500, help="for accuracies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--verbose", action="store_true", help="print every table")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(machine.describe("numpy", "numba"))
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}", flush=True)
    lost = [row(name, read(asked.data), asked) for name in asked.sets for read in SETS[name]]
    known = [value for value in lost if value is not None]
    print(f"decides on {len(known)} of {len(lost)}", end="")
    print(f", {np.mean(known):.4f} lost on average, {max(known):.4f} at most" if known else "")


def row(name: str, data: labeled.Labeled, asked) -> float | None:
    """Print the row of a draw; the accuracy lost by what is recommended, if anything is."""
    choice = cm.choose(data.X, random_state=asked.seed, device=asked.device)
    accuracy = accuracies(data.draw(asked.samples), asked.device)
    named, best = choice.picked or choice.first, max(accuracy, key=accuracy.get)
    lost = accuracy[best] - accuracy[named]
    first, random = (choice.row(of) for of in (choice.first, RANDOM))
    least = choice.best if choice.best != RANDOM else choice.table[1].name
    cells = (
        name,
        choice.picked or "cannot decide",
        f"{first.behind / (random.loss - choice.table[0].loss):.3f}",
        f"{accuracy[named]:.3f}",
        f"{accuracy[least]:.3f} ({least})",
        f"{accuracy[best]:.3f} ({best})",
        f"{lost:.3f}",
        f"{sum(entry.seconds for entry in choice.table):.0f}",
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    if asked.verbose:
        print(choice)
        print({method: round(value, 3) for method, value in accuracy.items()}, flush=True)
    return lost if choice.picked else None


def accuracies(data: labeled.Labeled, device: str) -> dict[str, float]:
    """The accuracy of every candidate and baseline but the random one."""
    methods = {**methods_of(CANDIDATES, device=device, drop_empty=True), **BASELINES}
    kept = np.diff(data.X.indptr) > 0
    X, labels = data.X[kept], data.labels[kept]
    X = X[:, labeled.detected(X) > 0]
    return {name: scores.knn_accuracy(of(X), labels) for name, of in methods.items()}


if __name__ == "__main__":
    main()
