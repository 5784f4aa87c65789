"""Labels of held-out samples by a vote of their nearest known ones: learned distances, PCA, LSA.

    python benchmarks/transfer.py                             all three sets, five splits each
    python benchmarks/transfer.py --sets pollen --splits 1    a quick look
    python benchmarks/transfer.py --neighbors 10 --options '{"tau": "paper"}'

A fifth of the samples is held out, stratified by label. Everything is fitted to the rest: both
metrics, principal components, idf weights and singular vectors. All distances use the same vote,
``cm.transfer_labels``, with a confidence estimated from the rest alone. Distances are cached under
--out; with --table nothing is learned, and only the cached distances are scored.
Pollen, whose cells express most genes, is reduced to its 500 genes of largest variance.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import machine
import numpy as np
from labeled import SETS, Labeled, used
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import cometric as cm

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "out" / "transfer"
NAMES = ("pbmc3k_cellranger", "pbmc68k_reduced", "pollen")
OPTIONS = {"dtype": "float32", "tol": 1e-2}
"""Of ``cm.learn``. At the default tolerance and precision, runs take several times longer."""

SELECTED = {"pollen": 500}
"""Features of largest variance that are used: dense data take hours with all of them."""

COMPONENTS = (10, 30, 50)
BINS = (0.0, 0.5, 0.7, 0.9, 0.95, 0.99)


class Distances(NamedTuple):
    """Distances of one split and method: to the training samples, and between them."""

    across: np.ndarray
    within: np.ndarray


class Split(NamedTuple):
    """Which samples of a data set are known, and which are held out."""

    known: np.ndarray
    new: np.ndarray


def main() -> None:
    asked = arguments()
    print(machine.describe("numpy", "scikit-learn"), flush=True)
    for name in asked.sets:
        data = read(name, asked.data)
        scored: dict[str, list[cm.Transfer]] = {}
        truth, missing = [], []
        for seed in range(asked.splits):
            split = split_of(data.labels, seed)
            path = asked.out / f"{name}-{seed}.npz"
            if asked.table and not path.exists():
                continue
            known, new = data.labels[split.known], data.labels[split.new]
            truth.append(new)
            learned = learned_distances(data.X, split, path, asked.options)
            for method, distances in (("learned", learned), *baselines(data.X, split)):
                answer = vote(distances, known, asked.neighbors)
                scored.setdefault(method, []).append(answer)
            missing += without_a_label(learned, known, new, asked.neighbors)
        if truth:
            show(f"{name} {data.X.shape}, {len(truth)} splits", scored, truth)
            names = "confidence, share of novelty > 0.95, that of the others, AUROC:"
            print(f"\nsamples whose label nobody has: {names}", *np.mean(missing, axis=0).round(3))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="*", default=NAMES, choices=SETS, metavar="SET")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--neighbors", type=int, default=15)
    parser.add_argument("--options", type=json.loads, default=OPTIONS, help="of learn, as JSON")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="only score the distances under --out")
    return parser.parse_args()


def read(name: str, folder: Path) -> Labeled:
    """The data set, with the features of :data:`SELECTED`."""
    data = SETS[name](folder)
    if name not in SELECTED:
        return data
    X = data.X.toarray()
    return used(data.columns(np.argsort(np.argsort(-X.var(axis=0))) < SELECTED[name]))


def split_of(labels: np.ndarray, seed: int) -> Split:
    """A fifth of the samples held out; labels of a single sample stay known."""
    kinds, counts = np.unique(labels, return_counts=True)
    single = np.isin(labels, kinds[counts < 2])
    several = np.flatnonzero(~single)
    known, new = train_test_split(
        several, test_size=0.2, random_state=seed, stratify=labels[several]
    )
    return Split(np.sort(np.concatenate([known, np.flatnonzero(single)])), np.sort(new))


def learned_distances(X: Any, split: Split, path: Path, options: dict[str, Any]) -> Distances:
    """Read from ``path``, or learned and written there."""
    if path.exists():
        stored = np.load(path)
        if stored["options"].item() == json.dumps(options):
            return Distances(stored["across"], stored["within"])
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # features that the known samples do not have
        result = cm.learn(X[split.known], drop_empty=True, **options)
        learned = time.perf_counter()
        across = result.transform(X[split.new])
    seconds = [learned - began, time.perf_counter() - learned]
    print(f"{path.stem}: learned in {seconds[0]:.0f} s, placed in {seconds[1]:.0f} s", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        across=across.astype(np.float32),
        within=np.asarray(result.samples, np.float32),
        options=json.dumps(options),
        seconds=seconds,
    )
    return Distances(across, np.asarray(result.samples))


def baselines(X: Any, split: Split) -> Iterator[tuple[str, Distances]]:
    """Euclidean distances on components fitted to the known samples, of log-normalized counts."""
    logged = sparse.csr_array(cm.baselines.log_normalized(X))  # each sample by itself, but a factor
    known, new = logged[split.known], logged[split.new]
    for count in COMPONENTS:
        steps = {
            "PCA": make_pipeline(PCA(count, random_state=0)),
            "LSA": make_pipeline(
                TfidfTransformer(), TruncatedSVD(count, random_state=0), Normalizer()
            ),
        }
        for name, model in steps.items():
            parts = (known.toarray(), new.toarray()) if name == "PCA" else (known, new)
            old = model.fit_transform(parts[0])
            yield (
                f"{name} {count}",
                Distances(cdist(model.transform(parts[1]), old), cdist(old, old)),
            )


def vote(distances: Distances, labels: np.ndarray, k: int) -> cm.Transfer:
    return cm.transfer_labels(distances.across, labels, k, within=distances.within)


def without_a_label(
    distances: Distances, known: np.ndarray, new: np.ndarray, k: int
) -> Iterator[tuple[float, ...]]:
    """Transfer without one label, for each label with 5 held-out samples or more.

    The samples with the label are removed from the known ones, but the metrics were learned
    with them. Mean confidence of the held-out samples with the label; share of them, and of
    the others, with a novelty above 0.95; how well novelty tells the two apart.
    """
    for label in np.unique(new):
        strange, rest = new == label, known != label
        if strange.sum() < 5:
            continue
        part = Distances(distances.across[:, rest], distances.within[np.ix_(rest, rest)])
        answer = vote(part, known[rest], k)
        above = answer.novelty > 0.95
        yield (
            answer.confidence[strange].mean(),
            above[strange].mean(),
            above[~strange].mean(),
            roc_auc_score(strange, answer.novelty),
        )


def show(title: str, scored: dict[str, list[Any]], truth: list[np.ndarray]) -> None:
    """Accuracy of each method, and how confidence and accuracy go together, as Markdown."""
    print(f"\n### {title}\n\n| distances | accuracy | calibration error | sure | right if sure |")
    print("| --- | --- | --- | --- | --- |")
    for method, answers in scored.items():
        pairs = zip(answers, truth, strict=True)
        accuracy = [(answer.labels == true).mean() for answer, true in pairs]
        confidence, hit = pooled(answers, truth)
        error, sure = calibration_error(confidence, hit), confidence >= 0.95
        marks = f"{error:.3f} | {sure.mean():.2f} | {hit[sure].mean():.4f}"
        print(f"| {method} | {np.mean(accuracy):.4f} ± {np.std(accuracy):.4f} | {marks} |")
    confidence, hit = pooled(scored["learned"], truth)
    print("\n| confidence, learned | samples | mean confidence | accuracy |")
    print("| --- | --- | --- | --- |")
    for low, high in zip(BINS, (*BINS[1:], np.inf), strict=True):
        inside = (confidence >= low) & (confidence < high)
        if inside.any():
            means = f"{confidence[inside].mean():.3f} | {hit[inside].mean():.3f}"
            print(f"| {low:g} to {min(high, 1):g} | {inside.sum()} | {means} |", flush=True)


def pooled(answers: list[Any], truth: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Confidence, and whether the label is right, of the held-out samples of all splits."""
    confidence = np.concatenate([answer.confidence for answer in answers])
    return confidence, np.concatenate([a.labels == t for a, t in zip(answers, truth, strict=True)])


def calibration_error(confidence: np.ndarray, hit: np.ndarray) -> float:
    """Mean difference of confidence and accuracy over ten equal bins of confidence."""
    bins = np.minimum((10 * confidence).astype(int), 9)
    gaps = [abs((confidence[bins == b] - hit[bins == b]).sum()) for b in range(10)]
    return float(np.sum(gaps) / len(hit))


if __name__ == "__main__":
    main()
