"""Modules of features compared with other groupings, and topics of documents with NMF and LSA.

python benchmarks/modules.py                              all four data sets
python benchmarks/modules.py --sets pbmc3k_cellranger     one of them
python benchmarks/modules.py --results FOLDER             use results learned earlier
python benchmarks/modules.py --eps inf                    learn with matrix products only: fast

For gene sets, every method makes as many modules as `cm.modules` does by default, from all genes,
and again from the genes that are not background for `cm.modules`. Scores, means over sets:
best F1 of a module; -log10 p of the best module (hypergeometric, times the number of modules); and
the adjusted mutual information of modules and sets, over genes that are in exactly one set.
No method sees labels or sets.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from labeled import SETS, Labeled, pbmc3k_raw
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from scipy.stats import hypergeom
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF, PCA, TruncatedSVD
from sklearn.metrics import adjusted_mutual_info_score as adjusted_mutual_information
from sklearn.metrics import adjusted_rand_score as adjusted_rand
from sklearn.metrics import normalized_mutual_info_score as mutual_information
from sklearn.metrics import roc_auc_score

import cometric as cm
from cometric import baselines

ROOT = Path(__file__).parents[1]
GENES = ("pbmc3k_cellranger", "pbmc3k_raw", "spectra_immune")
READ = SETS | {"pbmc3k_raw": pbmc3k_raw}
QUICK = {"dtype": "float32", "tol": 1e-2}
SEEDS = 5
AZIMUTH = {
    "B cell": "B",
    "CD4+ T cell": "CD4 T",
    "CD8+ T cell": "CD8 T",
    "Dendritic cell": "DC",
    "Monocyte": "Mono",
    "Natural Killer": "NK",
}
"""Labels of PBMC 3k, and the names of their markers."""


class Named(NamedTuple):
    """A matrix with names, as `learn` reads it."""

    X: Any
    obs_names: list[str]
    var_names: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = (*GENES, "bbc_news")
    parser.add_argument("--sets", nargs="*", default=list(known), choices=known, metavar="SET")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "out" / "learned")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--eps", type=float, default=0.1)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in asked.sets:
        data = READ[name](asked.data)
        result = learned(name, data, asked)
        print(f"\n{name}, {data.X.shape[0]} x {data.X.shape[1]}")
        stability(result)
        if name in GENES:
            genes(data, result)
            groups(data, result)
        else:
            documents(data, result)


def learned(name: str, data: Labeled, asked: argparse.Namespace) -> cm.Result:
    """The result of the defaults (but for eps), learned now or read from the folder."""
    path = asked.results / (f"{name}.npz" if asked.eps == 0.1 else f"{name}-eps-{asked.eps:g}.npz")
    if not path.exists():
        asked.results.mkdir(parents=True, exist_ok=True)
        named = Named(data.X, [str(i) for i in range(data.X.shape[0])], list(data.features))
        options = QUICK if asked.eps < np.inf else {}
        began = time.perf_counter()
        result = cm.learn(named, asked.eps, device=asked.device, **options)
        print(f"{name}: learned in {time.perf_counter() - began:.0f} s on {asked.device}")
        result.save(path)
    return cm.load(path)


def stability(result: cm.Result) -> None:
    """How much modules depend on the seed: which features are in a module, and in which."""
    runs = [cm.modules(result, random_state=seed).labels for seed in range(SEEDS)]
    common, agree = [], []
    for one, other in combinations(runs, 2):
        both = (one >= 0) & (other >= 0)
        common.append(both.sum() / ((one >= 0) | (other >= 0)).sum())
        agree.append(adjusted_rand(one[both], other[both]))
    print(
        f"{SEEDS} seeds: {np.mean(common):.2f} of the features in common, ARI {np.mean(agree):.2f}"
    )


# Genes


def genes(data: Labeled, result: cm.Result) -> None:
    began = time.perf_counter()
    found = cm.modules(result)
    print(f"{found}\n({time.perf_counter() - began:.1f} s)\n{found.table(data.labels)}")
    for collection, sets in data.sets.items():
        rows = [row for row in found.enrichment(sets, min_size=data.min_size) if row.q < 0.05]
        print(f"{collection}: {len(rows)} pairs of module and set with q < 0.05")
        for row in rows[:8]:
            print(f"  {row.name} | {row.set}: {len(row.shared)} of {row.size}, q {row.q:.1e}")
    print(f"  {'method':36}", *(f"{name:>38}" for name in data.sets))
    print(f"  {'':36}", *(f"{'F1  -log10 p    AMI':>38}" for _ in data.sets))
    show("modules", found.labels, data)
    everything = np.arange(data.X.shape[1])
    for used, words in ((everything, ""), (np.flatnonzero(found.labels >= 0), ", no background")):
        for method, labels in others(data.X, used, len(found)):
            show(method + words, labels, data)


def others(X: Any, used: np.ndarray, k: int) -> Iterator[tuple[str, np.ndarray]]:
    """Other ways to make k groups of the features ``used``; -1 for the rest."""

    def whole(part: np.ndarray) -> np.ndarray:
        labels = np.full(X.shape[1], -1)
        labels[used] = part
        return labels

    dense = sparse.csr_array(baselines.log_normalized(X)).toarray()[:, used]
    model = PCA(min(30, *(size - 1 for size in dense.shape)), random_state=0).fit(dense)
    loadings = model.components_.T * np.sqrt(model.explained_variance_)
    unit = loadings / np.linalg.norm(loadings, axis=1, keepdims=True)
    yield "k-means, PCA loadings", whole(KMeans(k, n_init=10, random_state=0).fit_predict(loadings))
    yield "k-means, unit loadings", whole(KMeans(k, n_init=10, random_state=0).fit_predict(unit))
    parts = NMF(k, init="nndsvd", max_iter=500, random_state=0).fit(dense).components_
    yield "NMF", whole((parts / parts.sum(axis=1, keepdims=True)).argmax(axis=0))
    away = 1.0 - np.corrcoef(dense.T)
    np.fill_diagonal(away, 0.0)
    for linkage in ("average", "ward"):
        tree = hierarchy.linkage(squareform(away, checks=False), linkage)
        yield f"correlation, {linkage}", whole(hierarchy.fcluster(tree, k, "maxclust") - 1)


def show(method: str, labels: np.ndarray, data: Labeled) -> None:
    marks = []
    for sets in data.sets.values():
        inside = [np.isin(data.features, genes) for genes in sets.values()]
        inside = [mask for mask in inside if mask.sum() >= data.min_size]
        f1, surprise = zip(*(best(labels, mask) for mask in inside), strict=True)
        marks.append(f"{np.mean(f1):18.3f} {np.mean(surprise):8.2f} {shared(labels, inside):10.3f}")
    print(f"  {method:36}", *marks, flush=True)


def best(labels: np.ndarray, mask: np.ndarray) -> tuple[float, float]:
    """The largest F1 of a module and a set, and the largest -log10 p; modules only."""
    kinds, count = np.unique(labels[labels >= 0], return_counts=True)
    both = np.array([(mask & (labels == kind)).sum() for kind in kinds])
    f1 = 2.0 * both / (count + mask.sum())
    log_p = hypergeom.logsf(both - 1, len(labels), mask.sum(), count) / np.log(10)
    return float(f1.max()), float(max(0.0, -log_p.min() - np.log10(len(kinds))))


def shared(labels: np.ndarray, inside: list[np.ndarray]) -> float:
    """Adjusted mutual information of modules and sets, over features in exactly one set."""
    table = np.array(inside)
    one = table.sum(axis=0) == 1
    return float(adjusted_mutual_information(table[:, one].argmax(axis=0), labels[one]))


def groups(data: Labeled, result: cm.Result) -> None:
    """The nearest features of each label, and the ranks of markers."""
    began = time.perf_counter()
    rows = cm.rank_features(result, data.labels, n_features=None)
    print(f"features of a group ({time.perf_counter() - began:.0f} s)")
    kinds = list(dict.fromkeys(row.group for row in rows))
    for group in kinds:
        first = [row.feature for row in rows if row.group == group][:8]
        print(f"  {group:28}", ", ".join(first))
    if set(kinds) == set(AZIMUTH):
        markers = data.sets["Azimuth markers, level 1"]
        rankings = {
            "distance": {(row.group, row.feature): -row.distance for row in rows},
            "times": {(row.group, row.feature): row.times for row in rows},
            "Wilcoxon (scanpy)": wilcoxon(data),
        }
        print(f"  {'markers of the six types, ranked by':36}    AUROC  share of the first 10")
        for name, value in rankings.items():
            areas, early = [], []
            for group in kinds:
                mark = np.isin(data.features, markers[AZIMUTH[group]])
                score = np.array([value[group, feature] for feature in data.features])
                areas.append(roc_auc_score(mark, score))
                early.append(mark[np.argsort(-score, kind="stable")[:10]].mean())
            print(f"  {name:36} {np.mean(areas):8.3f} {np.mean(early):8.2f}")


def wilcoxon(data: Labeled) -> dict[tuple[str, str], float]:
    """The scores of ``scanpy.tl.rank_genes_groups``."""
    import anndata
    import pandas as pd
    import scanpy as sc

    names = pd.Index(data.features)
    obs = pd.DataFrame({"label": pd.Categorical(data.labels)}).rename(index=str)
    table = anndata.AnnData(sparse.csr_matrix(data.X), obs=obs, var=pd.DataFrame(index=names))
    sc.tl.rank_genes_groups(table, "label", method="wilcoxon")
    found = table.uns["rank_genes_groups"]
    return {
        (group, str(name)): float(score)
        for group in found["names"].dtype.names
        for name, score in zip(found["names"][group], found["scores"][group], strict=True)
    }


# Documents


def documents(data: Labeled, result: cm.Result) -> None:
    kinds = len(np.unique(data.labels))
    found = cm.modules(result)
    print(found)
    few = found.merge(kinds)
    print(f"merged:\n{few}\n{few.table(data.labels)}")

    def tell(method: str, many: list[np.ndarray]) -> None:
        rand = np.mean([adjusted_rand(data.labels, one) for one in many])
        info = np.mean([mutual_information(data.labels, one) for one in many])
        sizes = {len(np.unique(one)) for one in many}
        print(f"  {method:44} {rand:.3f} {info:.3f}  {sorted(sizes)}", flush=True)

    print(f"  {'clusters of documents':44}   ARI   NMI  number of clusters")
    tell("largest score of merged modules", [few.scores().argmax(axis=1)])
    for resolution in (1.0, 3.0):
        many = cm.modules(result, resolution=resolution)
        tell(f"k-means of the scores of {len(many)} modules", k_means(many.scores(), kinds))
    tell("Leiden on learned neighbors, as many clusters", [leiden(result, kinds)])
    tfidf = weighted(data.X)
    parts = NMF(kinds, init="nndsvd", max_iter=500, random_state=0).fit_transform(tfidf)
    tell("NMF of TF-IDF, largest part", [parts.argmax(axis=1)])
    counts = NMF(kinds, init="nndsvd", max_iter=500, random_state=0).fit_transform(data.X)
    tell("NMF of counts, largest part", [counts.argmax(axis=1)])
    for size in (kinds, 10, 30, 100):
        places = TruncatedSVD(size, random_state=0).fit_transform(tfidf)
        tell(f"LSA {size}, k-means", k_means(places, kinds))


def k_means(places: np.ndarray, k: int) -> list[np.ndarray]:
    """Clusters by direction, for several seeds."""
    unit = places / np.maximum(np.linalg.norm(places, axis=1, keepdims=True), 1e-12)
    return [KMeans(k, n_init=10, random_state=seed).fit_predict(unit) for seed in range(SEEDS)]


def leiden(result: cm.Result, k: int) -> np.ndarray:
    """Modules of samples, k of them if a resolution gives so many, otherwise about k."""
    low, high, found = 0.01, 2.0, []
    for _ in range(10):
        resolution = np.sqrt(low * high)
        labels = cm.modules(result, of="samples", resolution=resolution).labels
        count = int(labels.max()) + 1
        found.append((abs(count - k), len(found), labels))
        low, high = (resolution, high) if count < k else (low, resolution)
        if count == k:
            break
    return min(found)[2]


def weighted(X: Any) -> sparse.csr_array:
    from sklearn.feature_extraction.text import TfidfTransformer

    return sparse.csr_array(TfidfTransformer(sublinear_tf=True).fit_transform(X))


if __name__ == "__main__":
    main()
