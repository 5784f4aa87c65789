"""Learn distances between 700 blood cells, and between their genes, without labels.

Run it with ``make demo``. It prints the genes nearest to known markers, by the learned metric and
by the l1 distance, and modules of genes; draws maps of the cells and of the genes to
``demo/cells.png``; and writes an interactive report, ``demo/report.html``.
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display needed

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import pairwise_distances

import cometric as cm

MARKERS = {
    "CD3D": "T cells",
    "CD79A": "B cells",
    "LYZ": "monocytes",
    "S100A8": "CD14+ monocytes",
}
FIGURE = Path(__file__).parents[1] / "demo" / "cells.png"
PAGE = FIGURE.with_name("report.html")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data", help="10x_pbmc68k_reduced.h5ad; default: that of scanpy")
    cells = cm.datasets.pbmc68k_reduced(arguments.parse_args().data)
    print(f"Data: {cells.n_obs} blood cells, {cells.n_vars} genes; no labels are used.\n")
    print("Compiling, once (about a minute; later runs use a cache) ... ", end="", flush=True)
    print(f"{cm.warmup(['entropic']):.1f} s\n")

    print(cm.plan(cells, dtype="float32"), "\n", flush=True)
    began = time.perf_counter()
    result = cm.learn(cells, dtype="float32", progress=True)  # single precision is sufficient
    print(f"\n{result}\n  wall time        {time.perf_counter() - began:.1f} s\n")
    certificate = result.certify()
    print(certificate)

    genes = np.asarray(cells.var_names)
    B = result.problem.features.full.toarray()
    plain = pairwise_distances(B, metric="manhattan")
    tell(genes, result.features, plain)
    labels = cells.obs["cell_type"].to_numpy()
    print("\nThe cell types, which were not used for learning:")
    print(f"  {'':24}silhouette   10-NN accuracy")
    for name, distances in (
        ("learned", result.samples),
        ("LSA, 30 components", cm.baselines.lsa(cells.X)),
        ("PCA, 30 components", cm.baselines.pca(cells.X)),
    ):
        scores = cm.scores.silhouette(distances, labels), cm.scores.knn_accuracy(distances, labels)
        print(f"  {name:24}{scores[0]:10.3f}{scores[1]:17.3f}")
    found = cm.modules(result)
    print(f"\n{found}\n\nDrawing maps of cells and genes ...", flush=True)
    draw(result, labels, found)
    print(f"The figure is in {FIGURE.parent.name}/{FIGURE.name}.", flush=True)
    cm.report.write(
        result,
        PAGE,
        labels=labels,
        title="700 blood cells and their genes",
        words=("cells", "genes"),
        certificate=certificate,
        force=True,
    )
    print(f"To explore the result, open {PAGE.parent.name}/{PAGE.name} in a browser.")


def nearest(genes: np.ndarray, distances: np.ndarray, gene: str, count: int = 6) -> list[str]:
    order = np.argsort(distances[np.flatnonzero(genes == gene)[0]], kind="stable")
    return [str(name) for name in genes[order] if name != gene][:count]


def tell(genes: np.ndarray, learned: np.ndarray, plain: np.ndarray) -> None:
    """Print the nearest genes of known markers, by the learned metric and by l1."""
    print("\nThe genes nearest to known markers:")
    for marker, kind in MARKERS.items():
        ours, theirs = nearest(genes, learned, marker), nearest(genes, plain, marker)
        new = [f"{name}*" if name not in theirs else name for name in ours]
        print(f"  {marker:7}{kind:17}learned  {'  '.join(new)}")
        print(f"  {'':24}l1       {'  '.join(theirs)}")
    print("  * not among the nearest in l1")


def draw(result: cm.Result, labels: np.ndarray, found: cm.Modules) -> None:
    """Plot a map of the cells, colored by type, and one of the genes, colored by module."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 5), layout="constrained")
    figure.suptitle("Distances learned from 700 blood cells, without labels", fontsize=15)
    cm.plot.embedding(result, "samples", "tsne", labels, ax=left)
    cm.plot.embedding(result, "features", "tsne", color=found, ax=right)
    left.set_title(f"{len(result.samples)} cells, by type")
    right.set_title(f"{len(result.features)} genes, by module")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=120)


if __name__ == "__main__":
    main()
