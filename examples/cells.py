"""Learn distances between 700 blood cells, and between their genes, without labels.

Run it with ``make demo``. It prints the genes nearest to known markers, by the learned metric and
by the l1 distance, plots both metrics to ``demo/cells.png``, and writes an interactive report,
``demo/report.html``.
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display needed

import matplotlib.pyplot as plt
import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
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
    draw(result, labels, genes)
    print(f"\nThe figure is in {FIGURE.parent.name}/{FIGURE.name}.", flush=True)
    cm.report.write(
        result,
        PAGE,
        labels=labels,
        title="700 blood cells and their genes",
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


def draw(result: cm.Result, labels: np.ndarray, genes: np.ndarray) -> None:
    """Plot both metrics, ordered by hierarchical clustering; cells grouped by type."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 6), layout="constrained")
    figure.suptitle("Distances learned from 700 blood cells without labels", fontsize=15)

    kinds, counts = np.unique(labels, return_counts=True)
    kinds = kinds[np.argsort(-counts)]
    cells = np.concatenate([clustered(result.samples, np.flatnonzero(labels == k)) for k in kinds])
    show(figure, left, result.samples, cells, "Distance between cells (grouped by type)")
    ends = np.cumsum([np.sum(labels == kind) for kind in kinds])
    named = [k for k in range(len(kinds)) if np.sum(labels == kinds[k]) >= 19]
    middles = ends - [np.sum(labels == kind) / 2 for kind in kinds]
    left.set_yticks(middles[named], kinds[named])
    for end in ends[:-1]:
        left.axhline(end - 0.5, color="white", lw=0.6)
        left.axvline(end - 0.5, color="white", lw=0.6)

    order = clustered(result.features, np.arange(len(genes)))
    show(figure, right, result.features, order, "Distance between genes (clustered)")
    rank = np.argsort(order)
    places: dict[int, list[str]] = {}
    for gene in sorted((*MARKERS, "NKG7"), key=lambda gene: rank[genes == gene][0]):
        place = int(rank[genes == gene][0])
        beside = next((other for other in places if place - other < 20), place)
        places.setdefault(beside, []).append(gene)
    right.set_yticks(list(places), [", ".join(names) for names in places.values()])
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=120)


def show(figure, panel, distances: np.ndarray, order: np.ndarray, title: str) -> None:
    ordered = distances[np.ix_(order, order)]
    off = ordered[~np.eye(len(ordered), dtype=bool)]
    low, high = np.quantile(off, [0.01, 0.99])
    image = panel.imshow(ordered, cmap="magma", vmin=low, vmax=high, interpolation="nearest")
    panel.set(title=title, xticks=[])
    figure.colorbar(image, ax=panel, shrink=0.7, label="distance, maximum 1")


def clustered(distances: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The items ``chosen``, ordered as the leaves of a hierarchical clustering."""
    if len(chosen) < 3:
        return chosen
    inner = squareform(distances[np.ix_(chosen, chosen)], checks=False)
    return chosen[hierarchy.leaves_list(hierarchy.linkage(inner, "average", optimal_ordering=True))]


if __name__ == "__main__":
    main()
