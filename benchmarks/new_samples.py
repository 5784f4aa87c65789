"""New samples: cell types of held-out cells of PBMC 3k by their nearest training cells.

    python benchmarks/new_samples.py [--data FOLDER] [--neighbors 10] [--tol 1e-4]

A fifth of the cells is held out, of each type alike; both metrics are learned from the rest, and
the held-out cells enter by ``transform``. Beside them, the same classifier on other distances.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from entropic import load_pbmc3k
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import cometric as cm
import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    parser.add_argument("--neighbors", type=int, default=10)
    parser.add_argument("--tol", type=float, default=1e-4)
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba", "scikit-learn"))
    print(f"compile (or load from cache): {cm.warmup(['entropic']):.1f} s", flush=True)
    cells, labels, _ = load_pbmc3k(asked.data)
    X = cells.X.tocsr()
    known, new = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    print(f"{len(known)} cells to learn from, {len(new)} new ones, load {machine.load()}")

    learner = cm.WassersteinSingularVectors(tol=asked.tol, drop_empty=True)
    began = time.perf_counter()
    distances = learner.fit_transform(X[known])
    learned = time.perf_counter()
    across = learner.transform(X[new])
    carried = time.perf_counter()
    nearest = KNeighborsClassifier(asked.neighbors, metric="precomputed")
    accuracy = nearest.fit(distances, labels[known]).score(across, labels[new])
    print(
        f"learned metric: accuracy {accuracy:.4f}; fit {learned - began:.0f} s "
        f"({learner.n_iter_} iterations), transform {carried - learned:.0f} s",
        flush=True,
    )
    dense = X.toarray()
    for count in (5, 10, 15, 30, 50):
        pca = make_pipeline(PCA(count, random_state=0), KNeighborsClassifier(asked.neighbors))
        accuracy = pca.fit(dense[known], labels[known]).score(dense[new], labels[new])
        print(f"PCA {count:2}: accuracy {accuracy:.4f}")
    for metric in ("euclidean", "cosine", "manhattan"):
        plain = KNeighborsClassifier(asked.neighbors, metric=metric)
        accuracy = plain.fit(dense[known], labels[known]).score(dense[new], labels[new])
        print(f"{metric}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
