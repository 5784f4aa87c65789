"""Labeled data sets of the benchmarks, read with h5py and csv, without anndata and pandas."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from scipy import sparse

GeneSets = dict[str, dict[str, list[str]]]
"""Collections of gene sets: collection -> set -> genes."""


@dataclass(frozen=True)
class Labeled:
    """Data, labels of the samples, and what is known about the features."""

    X: sparse.csr_array
    labels: np.ndarray
    features: np.ndarray  # names
    counts: sparse.csr_array | None = None  # if the values are not the counts themselves
    sets: GeneSets = field(default_factory=dict)
    min_size: int = 3  # members that a gene set must have among the features

    def columns(self, mask: np.ndarray) -> Labeled:
        counts = None if self.counts is None else self.counts[:, mask]
        return replace(self, X=self.X[:, mask], features=self.features[mask], counts=counts)

    def rows(self, chosen: np.ndarray) -> Labeled:
        counts = None if self.counts is None else self.counts[chosen]
        return replace(self, X=self.X[chosen], labels=self.labels[chosen], counts=counts)

    def draw(self, n: int, seed: int = 0) -> Labeled:
        """A random n of the samples, with the features that they have."""
        if n >= self.X.shape[0]:
            return self
        return used(
            self.rows(np.sort(np.random.default_rng(seed).permutation(self.X.shape[0])[:n]))
        )


def used(data: Labeled) -> Labeled:
    """Without the features that are zero everywhere."""
    return data.columns(detected(data.X) > 0)


def detected(X: sparse.csr_array) -> np.ndarray:
    """In how many samples each feature is not zero."""
    return np.bincount(X.indices[X.data != 0], minlength=X.shape[1])


def thinned(data: Labeled, k: int, seed: int) -> Labeled:
    """At most ``k`` of the counts of each sample, drawn at random."""
    rng = np.random.default_rng(seed)
    drawn = sparse.dok_array(data.X.shape)
    for i, (start, end) in enumerate(zip(data.X.indptr[:-1], data.X.indptr[1:], strict=True)):
        listed = np.repeat(data.X.indices[start:end], data.X.data[start:end].astype(np.int64))
        rng.shuffle(listed)
        for feature, count in zip(*np.unique(listed[:k], return_counts=True), strict=True):
            drawn[i, feature] = count
    return shared(replace(data, X=sparse.csr_array(drawn), counts=None))


def shared(data: Labeled, samples: int = 2, features: int = 2) -> Labeled:
    """Only features in at least so many samples, and samples with at least so many features."""
    while True:
        shape = data.X.shape
        data = data.columns(detected(data.X) >= samples)
        data = data.rows(detected(sparse.csr_array(data.X.T)) >= features)
        if data.X.shape == shape:
            return data


# Readers


def read(path: Path, label: str = "label", mask: str | None = None) -> Labeled:
    """An .h5ad file; ``mask`` is a column of ``var`` that selects features."""
    with h5py.File(path, "r") as file:
        layer = file.get("layers/counts")
        data = Labeled(
            _matrix(file["X"]),
            _column(file["obs"][label]),
            _column(file["var"][file["var"].attrs["_index"]]),
            None if layer is None else _matrix(layer),
        )
        return used(data if mask is None else data.columns(file["var"][mask][:].astype(bool)))


def _matrix(group: Any) -> sparse.csr_array:
    parts = tuple(group[name][:] for name in ("data", "indices", "indptr"))
    kind = sparse.csc_array if group.attrs["encoding-type"] == "csc_matrix" else sparse.csr_array
    return sparse.csr_array(kind(parts, shape=tuple(group.attrs["shape"])), dtype=np.float64)


def _column(item: Any) -> np.ndarray:
    """A column of strings, categorical or not."""
    if hasattr(item, "keys"):
        return item["categories"].asstr()[:].astype("U")[item["codes"][:]]
    return item.asstr()[:].astype("U")


def azimuth(path: Path) -> dict[str, list[str]]:
    """The marker genes of each cell type."""
    with path.open(newline="") as file:
        return {row["Label"]: row["Markers"].split(", ") for row in csv.DictReader(file)}


def pbmc3k(folder: Path) -> Labeled:
    sets = {
        f"Azimuth markers, level {level}": azimuth(folder / f"azimuth_pbmc_markers_l{level}.csv")
        for level in (1, 2)
    }
    return replace(read(folder / "pbmc3k_cellranger.h5ad", "cell_type"), sets=sets)


def spectra(folder: Path) -> Labeled:
    data = read(folder / "spectra_immune.h5ad")
    data = data.columns(detected(data.X) >= 50)
    return replace(data, sets={"immune gene sets": immune(folder)}, min_size=5)


def immune(folder: Path) -> dict[str, list[str]]:
    """The immune gene sets of Spectra, by cell type and name."""
    by_type = json.loads((folder / "immune_gene_sets.json").read_text("utf-8"))
    return {f"{t}: {name}": genes for t, of in by_type.items() for name, genes in of.items()}


def pbmc3k_raw(folder: Path) -> Labeled:
    """All cells that pass the filters of the scanpy tutorial, a thousand variable genes.

    Labels are those of the Seurat tutorial; no method sees them.
    """
    import anndata
    import pandas as pd
    import scanpy as sc

    cells = anndata.read_h5ad(folder / "pbmc3k_raw.h5ad")
    cells.var["mt"] = cells.var_names.str.startswith("MT-")
    sc.pp.calculate_qc_metrics(cells, qc_vars=["mt"], percent_top=None, inplace=True)
    count = cells.obs["n_genes_by_counts"]
    cells = cells[(count >= 200) & (count < 2500) & (cells.obs["pct_counts_mt"] < 5)].copy()
    sc.pp.filter_genes(cells, min_cells=3)
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    sc.pp.highly_variable_genes(cells, n_top_genes=1000)
    cells = cells[:, cells.var["highly_variable"]].copy()
    table = pd.read_csv(folder / "pbmc3k_labels.csv.gz", index_col=0)
    types = table["seurat_annotation"].reindex(cells.obs_names).fillna("none")
    sets = {
        f"Azimuth markers, level {level}": azimuth(folder / f"azimuth_pbmc_markers_l{level}.csv")
        for level in (1, 2)
    }
    return used(
        Labeled(
            sparse.csr_array(cells.X, dtype=np.float64),
            types.to_numpy().astype("U"),
            np.asarray(cells.var_names).astype("U"),
            sets=sets | {"immune gene sets": immune(folder)},
        )
    )


def pbmc3k_counts(folder: Path) -> Labeled:
    """Counts of the 1,000 most variable genes of the cells that pass the quality control.

    Variable is the variance of the log-normalized counts divided by their mean. Labels are the
    level 1 of Azimuth.
    """
    with h5py.File(folder / "pbmc3k_raw.h5ad", "r") as file:
        X, cells = _matrix(file["X"]), _column(file["obs/index"])
        genes = _column(file["var/index"])
    with gzip.open(folder / "pbmc3k_labels.csv.gz", "rt", newline="") as file:
        found = {row["barcode"]: row for row in csv.DictReader(file)}
    rows = [found[cell] for cell in cells]
    good = np.array([row["qc_pass"] == "True" and row["azimuth_l2"] != "" for row in rows])
    labels = np.array([row["azimuth_l1_parent"] for row in rows])
    X = X[good]
    logs = X.multiply(1e4 / X.sum(axis=1)[:, None]).tocsr().log1p()
    mean = logs.mean(axis=0)
    variance = logs.power(2).mean(axis=0) - mean**2
    spread = np.where(mean > 0.01, variance / np.maximum(mean, 1e-9), 0.0)
    top = np.sort(np.argsort(-spread)[:1000])
    return Labeled(X[:, top], labels[good], genes[top])


def titles(folder: Path, seed: int = 0) -> Labeled:
    """2,000 of the titles of M10, and their words that are in at least 3 of them."""
    from sklearn.feature_extraction.text import CountVectorizer

    with (folder / "m10_titles.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))[:2000]]
    counter = CountVectorizer(min_df=3, token_pattern=r"\S+")
    X = sparse.csr_array(counter.fit_transform(row["text"] for row in rows), dtype=np.float64)
    labels = np.array([row["label"] for row in rows])
    return shared(Labeled(X, labels, counter.get_feature_names_out()), 3)


def digits(_: Path) -> Labeled:
    from sklearn.datasets import load_digits

    found = load_digits()
    names = np.array(found.feature_names)
    return used(Labeled(sparse.csr_array(found.data), found.target.astype("U"), names))


def file(name: str, **options: Any) -> Callable[[Path], Labeled]:
    return lambda folder: read(folder / f"{name}.h5ad", **options)


SETS: dict[str, Callable[[Path], Labeled]] = {
    "pbmc3k_cellranger": pbmc3k,
    "pbmc68k_reduced": file("pbmc68k_reduced"),
    "liu_scrna": file("liu_scrna", mask="top1000_std"),
    "citeseq_cbmc": file("citeseq_cbmc"),
    "pollen": file("pollen"),
    "spectra_immune": spectra,
    "bbc_news": file("bbc_news"),
    "classic3": file("classic3"),
    "cstr": file("cstr"),
    "digits": digits,
}
"""One line each: how to read it from the folder of --data."""

SEEDS = range(3)


def drawn_down(read: Callable[[Path], Labeled], k: int) -> list[Callable[[Path], Labeled]]:
    """Readers of three draws: 1,000 samples, and ``k`` of the counts of each."""
    return [
        lambda folder, seed=seed: thinned(read(folder).draw(1000, seed), k, 100 + seed)
        for seed in SEEDS
    ]


osmfish = file("osmfish_cortex")

THIN: dict[str, list[Callable[[Path], Labeled]]] = {
    "osmfish": [osmfish],
    "osmfish, 2000 cells": [
        lambda folder, seed=seed: osmfish(folder).draw(2000, seed) for seed in SEEDS
    ],
    "m10 titles": [partial(titles, seed=seed) for seed in SEEDS],
    **{f"bbc_news, {k} words": drawn_down(SETS["bbc_news"], k) for k in (8, 20, 50)},
    **{f"classic3, {k} words": drawn_down(SETS["classic3"], k) for k in (8, 20)},
    **{f"citeseq_cbmc, {k} counts": drawn_down(SETS["citeseq_cbmc"], k) for k in (15, 40, 100)},
    **{f"pbmc3k_raw, {k} counts": drawn_down(pbmc3k_counts, k) for k in (50, 100, 300)},
}
"""Sets with few counts per sample: a reader for each draw."""
