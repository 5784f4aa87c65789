"""Labeled data sets of the benchmarks, read with h5py and csv, without anndata and pandas."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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

    def draw(self, n: int) -> Labeled:
        """A random n of the samples, with the features that they have."""
        if n >= self.X.shape[0]:
            return self
        rows = np.sort(np.random.default_rng(0).permutation(self.X.shape[0])[:n])
        counts = None if self.counts is None else self.counts[rows]
        return used(replace(self, X=self.X[rows], labels=self.labels[rows], counts=counts))


def used(data: Labeled) -> Labeled:
    """Without the features that are zero everywhere."""
    return data.columns(detected(data.X) > 0)


def detected(X: sparse.csr_array) -> np.ndarray:
    """In how many samples each feature is not zero."""
    return np.bincount(X.indices[X.data != 0], minlength=X.shape[1])


# Readers


def read(path: Path, label: str = "label", mask: str | None = None) -> Labeled:
    """An .h5ad file; ``mask`` is a column of ``var`` that selects features."""
    import h5py

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
