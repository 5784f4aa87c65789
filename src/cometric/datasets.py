"""Example data, with labels of samples and features."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from cometric.core.types import Index, Matrix

if TYPE_CHECKING:
    from anndata import AnnData

__all__ = [
    "Labeled",
    "digits",
    "pbmc3k",
    "pbmc68k_reduced",
    "simulate_counts",
    "torus",
]


def __dir__() -> list[str]:
    return __all__


Seed = int | np.random.Generator | None


class Labeled(NamedTuple):
    """Data ``X`` (samples x features), a label per sample, and one per feature."""

    X: Matrix | csr_array
    labels: Index
    features: Index


def _bump(t: Matrix, center: float, width: float) -> Matrix:
    """exp(-d(t, center)² / width), d the distance on the circle of length one."""
    offset = t - center
    bump: Matrix = np.exp(-((offset - np.round(offset)) ** 2) / width)
    return bump


# Each takes t in [0, 1), the position on the circle.
_TEMPLATES: dict[str, Callable[[Matrix], Matrix]] = {
    "unimodal": lambda t: _bump(t, 0.0, 0.02),
    "bimodal": lambda t: _bump(t, 0.0, 0.005) + 0.6 * _bump(t, 0.4, 0.005),
    "asymmetric": lambda t: t * np.exp(-t / 0.15) + 1e-3,
}


def torus(template: str = "unimodal", n: int = 100, m: int = 80) -> Matrix:
    """A template translated around the circle: the example of the paper.

    X[i, k] = h(i/n - k/m), with t = i/n - k/m taken modulo 1, d(t, c) the distance on the
    circle and h one of

    - "unimodal": exp(-d(t, 0)² / 0.02)
    - "bimodal": exp(-d(t, 0)² / 0.005) + 0.6 exp(-d(t, 0.4)² / 0.005)
    - "asymmetric": t exp(-t / 0.15) + 0.001

    Parameters
    ----------
    template
        The name of h.
    n, m
        Number of samples and of features.

    Returns
    -------
    X of shape (n, m). It is unchanged, to the last bit, by the shift
    (i, k) -> (i + n/g, k + m/g) with g = gcd(n, m), and so are the metrics learned from it.
    """
    if template not in _TEMPLATES:
        choices = ", ".join(map(repr, _TEMPLATES))
        raise ValueError(f"`template` is {template!r}; choose one of {choices}.")
    n, m = _at_least_one("n", n), _at_least_one("m", m)
    # Modulo in integers: in floats 3/10 - 24/80 may fall just below zero and wrap to one.
    position = np.arange(n)[:, None] * m - np.arange(m) * n
    return _TEMPLATES[template](position % (n * m) / (n * m))


def digits(n: int | None = None) -> Labeled:
    """Handwritten digits, images x pixels, as shipped with scikit-learn.

    Pixels that are 0 in all images are left out: an empty feature has no histogram.

    Parameters
    ----------
    n
        Keep the first ``n`` images of 1797; all of them by default.

    Returns
    -------
    ``X``, intensities 0 to 16; ``labels``, the digits; ``features``, the number of each pixel, row
    by row in the 8 x 8 image.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    if n is not None and not 1 <= n <= len(images):
        raise ValueError(f"`n` is {n}; choose between 1 and {len(images)} images.")
    X = np.asarray(images[:n], dtype=np.float64)
    used = np.flatnonzero(X.any(axis=0))
    return Labeled(X[:, used], np.asarray(labels[:n], dtype=np.int64), used)


def pbmc68k_reduced(path: str | Path | None = None) -> AnnData:
    """700 blood cells, 765 genes, log-normalized counts: a data set that scanpy includes.

    Parameters
    ----------
    path
        The file; by default that of the installed scanpy.

    Returns
    -------
    AnnData with the cell type in ``obs["cell_type"]`` and the gene names in ``var_names``.
    """
    try:
        import anndata
    except ImportError:
        raise ImportError("this data set needs anndata: pip install 'cometric[scverse]'.") from None
    if path is None:
        spec = importlib.util.find_spec("scanpy")  # importing it takes seconds
        if spec is None or spec.origin is None:
            raise ImportError(
                "this data set is part of scanpy, which is not installed: pip install scanpy, or "
                "pass the `path` of 10x_pbmc68k_reduced.h5ad."
            )
        path = Path(spec.origin).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an older file format
        whole = anndata.read_h5ad(path)
        cells = whole.raw.to_adata() if whole.raw is not None else whole
    column = "bulk_labels" if "bulk_labels" in cells.obs else "cell_type"
    cells.obs = cells.obs[[column]].rename(columns={column: "cell_type"})
    return cells


CELL_TYPES = {
    "B": "B cell",
    "CD4 T": "CD4+ T cell",
    "CD8 T": "CD8+ T cell",
    "DC": "Dendritic cell",
    "Mono": "Monocyte",
    "NK": "Natural Killer",
}
"""The six cell types of the paper, by their names in Azimuth."""


def pbmc3k(
    folder: str | Path | None = None,
    *,
    n_top_genes: int = 1000,
    flavor: str = "cell_ranger",
    select: str | None = "in_paper_set",
) -> AnnData:
    """The blood cells of the paper, from raw counts: "PBMC 3k" of 10x Genomics.

    Cells with 200 to 2500 genes and less than 5 % mitochondrial counts, genes in at least 3 cells,
    scaled to a million counts per cell, log(1 + x), then the most variable genes and the marker
    genes. The paper does not say which of scanpy's selections of variable genes it used; it
    matters (docs/choosing.md).

    Parameters
    ----------
    folder
        Holds ``pbmc3k_raw.h5ad``, the cell types (``pbmc3k_labels.csv.gz``, columns ``barcode``,
        ``cell_type``) and Azimuth's table of markers (``azimuth_pbmc_markers_l1.csv``). Without a
        folder scanpy downloads the counts and the cell types of its tutorial, and no markers are
        added.
    n_top_genes, flavor
        Passed to ``scanpy.pp.highly_variable_genes``: "cell_ranger", "seurat" (on the logarithms)
        or "seurat_v3" (on the counts).
    select
        A boolean column of the table of cell types: the cells to use. None uses all that pass
        the filters and have a type.

    Returns
    -------
    AnnData with ``obs["cell_type"]``, ``var["marker_of"]`` (the type a gene marks, empty for
    none or for several) and the counts in ``layers["counts"]``.
    """
    try:
        import pandas as pd
        import scanpy as sc
    except ImportError:
        raise ImportError("this data set needs scanpy: pip install 'cometric[scverse]'.") from None
    markers: dict[str, set[str]] = {}
    if folder is None:
        cells = sc.datasets.pbmc3k()
        table = sc.datasets.pbmc3k_processed().obs[["louvain"]]
        table = table.rename(columns={"louvain": "cell_type"})
        select = None
    else:
        folder = Path(folder)
        cells = sc.read_h5ad(folder / "pbmc3k_raw.h5ad")
        table = pd.read_csv(folder / "pbmc3k_labels.csv.gz", index_col="barcode")
        markers = _azimuth_markers(pd.read_csv(folder / "azimuth_pbmc_markers_l1.csv"))
    if select is not None and select not in table:
        raise ValueError(f"`select` is {select!r}; the table of cell types has no such column.")
    cells.var_names_make_unique()

    mitochondrial = cells.var_names.str.startswith("MT-")
    totals = np.asarray(cells.X.sum(axis=1)).ravel()
    share = np.asarray(cells.X[:, mitochondrial].sum(axis=1)).ravel() / totals
    genes = np.asarray((cells.X > 0).sum(axis=1)).ravel()
    kinds = table["cell_type"].reindex(cells.obs_names)
    passing = (genes >= 200) & (genes < 2500) & (share < 0.05) & kinds.notna().to_numpy()
    if select is not None:
        passing &= table[select].reindex(cells.obs_names).fillna(False).to_numpy(dtype=bool)
    cells = cells[passing].copy()
    cells.obs["cell_type"] = pd.Categorical(kinds[passing])

    sc.pp.filter_genes(cells, min_cells=3)
    cells.layers["counts"] = cells.X.copy()
    sc.pp.normalize_total(cells, target_sum=1e6)
    sc.pp.log1p(cells)
    layer = "counts" if flavor == "seurat_v3" else None
    sc.pp.highly_variable_genes(cells, n_top_genes=n_top_genes, flavor=flavor, layer=layer)
    marked = {gene: types.pop() if len(types) == 1 else "" for gene, types in markers.items()}
    chosen = cells.var["highly_variable"].to_numpy() | cells.var_names.isin(list(marked))
    cells = cells[:, chosen].copy()
    cells.var["marker_of"] = [marked.get(gene, "") for gene in cells.var_names]
    return cells


def _azimuth_markers(table: Any) -> dict[str, set[str]]:
    """The cell types of the paper that each gene marks."""
    markers: dict[str, set[str]] = {}
    for label, genes in zip(table["Label"], table["Markers"], strict=True):
        if label in CELL_TYPES:
            for gene in genes.split(", "):
                markers.setdefault(gene, set()).add(CELL_TYPES[label])
    return markers


def simulate_counts(
    n: int = 400,
    m: int = 400,
    types: int = 5,
    density: float = 0.15,
    random_state: Seed = 0,
) -> Labeled:
    """Counts that look like single-cell RNA sequencing: cells x genes, sparse, with cell types.

    Cell i of type c has depth s_i (log-normal), gene k has level g_k (log-normal), and

    X[i, k] ~ Poisson(s_i g_k f_ck),    f_ck = 10 if gene k marks type c, else 1,

    scaled so that the expected share of nonzero entries is ``density``. A quarter of the genes are
    markers; markers and cells are spread evenly over the types. An empty row or column gets one
    count where its mean is highest, so that every cell and gene has a histogram; with few counts
    per row, this makes X denser than ``density``.

    Parameters
    ----------
    n, m
        Number of cells and of genes. A dense (n, m) array of means is computed.
    types
        Number of cell types.
    density
        Share of nonzero entries, between 0 and 1.
    random_state
        Random seed.

    Returns
    -------
    ``X`` in CSR format, integers as float64; ``labels``, the type of each cell; ``features``, the
    type each gene marks, -1 for none.
    """
    n, m = _at_least_one("n", n), _at_least_one("m", m)
    if not 1 <= types <= n:
        raise ValueError(f"`types` is {types}; choose between 1 and n = {n}.")
    if not 0.0 < density < 1.0:
        raise ValueError(f"`density` is {density}; choose a share strictly between 0 and 1.")
    from scipy.optimize import brentq  # slow to load

    rng = np.random.default_rng(random_state)

    labels = rng.permutation(np.arange(n) % types)
    markers = np.arange(m)
    marker_of = rng.permutation(np.where(markers < m // 4, markers % types, -1))
    depth = rng.lognormal(sigma=0.4, size=n)
    level = rng.lognormal(sigma=1.0, size=m)
    fold = np.where(labels[:, None] == marker_of, 10.0, 1.0)
    means = depth[:, None] * level * fold

    # P(Poisson(s) > 0) = 1 - exp(-s); its average over entries grows with the scale.
    scale = brentq(lambda x: -np.expm1(-np.exp(x) * means).mean() - density, -40.0, 40.0)
    means *= np.exp(scale)
    counts = rng.poisson(means).astype(np.float64)
    cells = np.flatnonzero(~counts.any(axis=1))
    counts[cells, means[cells].argmax(axis=1)] = 1.0
    genes = np.flatnonzero(~counts.any(axis=0))
    counts[means[:, genes].argmax(axis=0), genes] = 1.0
    return Labeled(csr_array(counts), labels, marker_of)


def _at_least_one(name: str, size: int) -> int:
    if size < 1:
        raise ValueError(f"`{name}` is {size}; it must be at least 1.")
    return size
