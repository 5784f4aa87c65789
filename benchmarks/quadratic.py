"""Cheap lifts compared with transport: scores by labels, status, iterations and time.

    python benchmarks/quadratic.py [SET ...] [--data FOLDER]

Silhouette and 10-NN accuracy of the samples, for R with the weight of the paper (tau = 0.001, l1)
and for the default of version 0.2 (restart = 0.5, norm "local-0.2"). 350 samples and their 300
most variable features, prepared as in ``saturate.py``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import machine
from labeled import SETS
from saturate import prepared

import cometric as cm
from cometric import scores

LIFTS = {
    "Entropic(0.1)": cm.Entropic(0.1),
    "Entropic(0.3)": cm.Entropic(0.3),
    "Limit()": cm.Limit(),
    "Mahalanobis(0.1)": cm.Mahalanobis(0.1),
    "Mahalanobis(0.5)": cm.Mahalanobis(0.5),
    "Mahalanobis(2)": cm.Mahalanobis(2.0),
}
DEFAULT = ("cstr", "liu_scrna", "pbmc3k_cellranger")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba"))
    print("| data | lift | tau | silhouette | 10-NN | status | iterations | s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in asked.sets or DEFAULT:
        X, labels = prepared(SETS[name](asked.data))
        for title, lift in LIFTS.items():
            for tau in ("paper", "0.2"):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # repeats; the status is printed
                    began = time.perf_counter()
                    found = cm.learn(X, transport=lift, tau=tau, max_iter=300)
                    seconds = time.perf_counter() - began
                cells = (
                    f"{name}, {X.shape[0]} x {X.shape[1]}",
                    title,
                    tau,
                    f"{scores.silhouette(found.samples, labels):.3f}",
                    f"{scores.knn_accuracy(found.samples, labels, 10):.3f}",
                    found.status.outcome,
                    str(found.iterations),
                    f"{seconds:.1f}",
                )
                print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
