"""How many landmarks are enough? Their metric compared with that of all samples, on labeled data.

    python benchmarks/sketches.py --data FOLDER
    python benchmarks/sketches.py --data FOLDER --sets citeseq_cbmc --device cuda
    python benchmarks/sketches.py --data FOLDER --sets citeseq_cbmc --numbers 400 --no-full

Landmarks are drawn at random. For every number of them, over ``--seeds`` draws: seconds of learning
and of the neighbors, rank correlation of the feature metric with that of all samples, share of the
ten nearest features in common, and the share of samples whose label is the most frequent one among
their ten nearest (``cm.neighbor_graph``). The same vote for the metric of all samples (unless
--no-full), and for neighbors by PCA and LSA. No method sees labels.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import machine
import numpy as np
from labeled import SETS, Labeled, pbmc3k_raw
from scipy import sparse
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

import cometric as cm
from cometric import baselines
from cometric.core.nearest import nearest_stored
from cometric.files.rows import rows_of
from cometric.landmarks import landmarks
from cometric.landmarks.stored import store_rows

K = 10
READERS = {**SETS, "pbmc3k_raw": pbmc3k_raw}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    parser.add_argument("--sets", nargs="*", default=["pbmc3k_raw", "citeseq_cbmc"])
    parser.add_argument("--numbers", nargs="*", type=int, default=[100, 200, 400, 800, 1600])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-full", action="store_true", help="do not learn from all samples")
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba"), asked.device, flush=True)
    warnings.simplefilter("ignore")
    for name in asked.sets:
        compare(name, READERS[name](asked.data), asked)


def compare(name: str, data: Labeled, asked: argparse.Namespace) -> None:
    """The table of a data set."""
    X = data.X
    print(f"\n### {name} {X.shape}, {X.nnz / X.shape[0]:.0f} features per sample\n")
    columns = ("samples", "learning, s", "neighbors, s", "rank corr.", "features shared", "labels")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    for label, vectors, metric in (
        ("PCA 30", components(X), "euclidean"),
        ("LSA 30", baselines.lsa_vectors(X, 30), "cosine"),
    ):
        near = NearestNeighbors(n_neighbors=K, metric=metric).fit(vectors).kneighbors()[1]
        print(f"| {label} | | | | | {vote(near, data.labels):.4f} |", flush=True)
    whole = None
    if not asked.no_full:
        began = time.perf_counter()
        result = cm.learn(X, device=asked.device, drop_empty=True)
        seconds, whole = time.perf_counter() - began, np.asarray(result.features)
        score = vote(cm.scores.neighbors(np.asarray(result.samples), K), data.labels)
        print(f"| all {X.shape[0]} | {seconds:.1f} | | 1 | 1 | {score:.4f} |", flush=True)
    for number in [s for s in asked.numbers if s < X.shape[0]]:
        rows = [sketch(X, data.labels, number, seed, whole, asked) for seed in range(asked.seeds)]
        used, learning, finding, rank, near, score = np.mean(rows, axis=0)
        times = f"{used:.0f} | {learning:.1f} | {finding:.1f}"
        print(f"| {times} | {rank:.4f} | {near:.3f} | {score:.4f} |", flush=True)


def sketch(
    X: sparse.csr_array,
    labels: np.ndarray,
    number: int,
    seed: int,
    whole: np.ndarray | None,
    asked: argparse.Namespace,
) -> tuple[float, ...]:
    """One row of the table, for one draw of landmarks."""
    chosen, _ = landmarks.draw_landmarks(store_rows(rows_of(X), None), number, "uniform", seed)
    began = time.perf_counter()
    result = cm.learn(X[chosen], device=asked.device, drop_empty=True)
    learning = time.perf_counter() - began
    began = time.perf_counter()
    device = None if asked.device == "cpu" else asked.device
    found = cm.neighbor_graph(result, X, K, check=0, device=device)
    finding = time.perf_counter() - began
    rank = near = np.nan
    if whole is not None:
        above = np.triu_indices(len(whole), 1)
        rank = spearmanr(np.asarray(result.features)[above], whole[above]).statistic
        near = cm.scores.neighborhood_agreement(np.asarray(result.features), whole, K)
    score = vote(nearest_stored(found.graph, K)[0], labels)
    return len(chosen), learning, finding, rank, near, score


def vote(near: np.ndarray, labels: np.ndarray) -> float:
    """The share of samples whose label is the most frequent one among ``near``, (n, K).

    A tie goes to the label of the nearest.
    """
    classes = np.unique(labels, return_inverse=True)[1]
    found = classes[near]
    votes = (found[:, :, None] == found[:, None, :]).sum(axis=2)
    return float(np.mean(found[np.arange(len(found)), votes.argmax(axis=1)] == classes))


def components(X: sparse.csr_array) -> np.ndarray:
    """Principal components of log-normalized data."""
    normalized = sparse.csr_array(baselines.log_normalized(X)).toarray()
    return PCA(30, random_state=0).fit_transform(normalized)


if __name__ == "__main__":
    main()
