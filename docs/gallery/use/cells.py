"""
Blood cells, from raw counts to figures
=======================================

What scanpy users do with `cometric`, line by line: filter and normalize counts, learn a distance
between cells and one between *genes*, then a map, clusters, named modules of genes, the genes of a
cluster, and a page to share. The data are 2,700 blood cells, "PBMC 3k" of 10x Genomics. The times
printed are those of the machine that built this page; see :doc:`/howlong` for others.

.. code-block:: sh

   pip install '.[scverse,plot,report]'    # from a clone of cometric
"""

import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import scanpy as sc

import cometric as cm
import cometric.scverse as cms

started = time.perf_counter()


def clock(what):
    """Print the time since the last call."""
    global started
    now = time.perf_counter()
    print(f"{what}: {now - started:.1f} s")
    started = now


# %%
# The counts
# ----------
# ``sc.datasets.pbmc3k()`` downloads them, 6 MB, once. Here a copy is used if there is one; without
# a copy and without a network, this page falls back to 700 cells that come with scanpy, which are
# filtered and normalized already.

here = Path("../../../../shared/data/pbmc3k_raw.h5ad")
try:
    adata = sc.read_h5ad(here) if here.exists() else sc.datasets.pbmc3k()
    raw = True
except OSError as error:
    print(f"No download ({error}): 700 cells of scanpy instead.")
    adata, raw = cm.datasets.pbmc68k_reduced(), False
print(adata)

# %%
# Filter and normalize
# --------------------
# As in scanpy's own tutorial: cells with too few or too many genes, or with many mitochondrial
# counts, are dropped, and so are genes in fewer than three cells. Counts are scaled to the same sum
# in each cell, and logarithms taken. Then the thousand most variable genes are kept: time and
# memory grow with the square of the number of genes, and rare genes are mostly noise.
#
# **Do not scale** (``sc.pp.scale``): the data must be nonnegative, since each cell is read as a
# histogram over genes.

if raw:
    adata.var["mt"] = adata.var_names.str.startswith("MT-")
    sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=None, inplace=True)
    good = (adata.obs["n_genes_by_counts"] >= 200) & (adata.obs["n_genes_by_counts"] < 2500)
    adata = adata[good & (adata.obs["pct_counts_mt"] < 5)].copy()
    sc.pp.filter_genes(adata, min_cells=3)
    adata.layers["counts"] = adata.X.copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=1000)
    adata = adata[:, adata.var["highly_variable"]].copy()
print(f"{adata.n_obs} cells, {adata.n_vars} genes")
clock("filter and normalize")

# %%
# Learn both distances
# --------------------
# ``dtype="float32"`` and ``tol=1e-2`` are sufficient for maps and modules, and faster than the
# defaults. In a terminal or notebook, add ``progress=True`` for a bar with the time left.
# ``drop_empty=True`` allows for cells without any of the chosen genes.

cms.tl.learn(adata, dtype="float32", tol=1e-2, drop_empty=True)
clock("learn")
print(cms.get.result(adata))

# %%
# A map and clusters of the cells
# -------------------------------
# Neighbors are written where scanpy expects them, so everything of scanpy that builds on neighbors
# works from here.

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scanpy's, about its own future
    cms.pp.neighbors(adata)
    sc.tl.umap(adata)
    sc.tl.leiden(adata, flavor="igraph", n_iterations=2, resolution=0.8)
clock("neighbors, UMAP, Leiden")

figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
markers = [gene for gene in ("LYZ", "NKG7", "CD79A") if gene in adata.var_names][:2]
for ax, color in zip(axes, ["leiden", *markers], strict=True):
    sc.pl.umap(adata, color=color, ax=ax, show=False, legend_loc="on data", frameon=False)

# %%
# Modules of genes
# ----------------
# The distance between genes is what other tools do not give. ``tl.modules`` joins each gene with
# its nearest ones and clusters this graph. Genes that are not more alike in near cells than in
# others belong to no module ("background"). A module is named by its three most central genes: a
# biologist recognizes B cells by CD79A and TCL1A, natural killer cells by NKG7 and GZMB, monocytes
# by CST3 and S100A9, platelets by PF4, T cells by LTB.

found = cms.tl.modules(adata)
print(found)
clock("modules")

# %%
# The same on maps of both sides. Each dot on the right is a gene, in the color of its module; each
# dot on the left is a cell, in the color of the module for which its score is largest.

result = cms.get.result(adata)
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
cm.plot.embedding(result, "samples", "tsne", color=found, ax=left)
left.get_legend().remove()  # the colors are those on the right
left.set(title=f"{len(result.samples)} cells", xlabel="", ylabel="")
cm.plot.embedding(result, "features", "tsne", color=found, ax=right)
right.set(title=f"{len(result.features)} genes", xlabel="", ylabel="")
clock("maps of cells and genes")

# %%
# Where are the modules active? The mean score of each module in each cluster names the clusters.

cms.pl.modules(adata, "leiden")

# %%
# Do modules match gene sets that you know? Give a dictionary, or the path of a GMT or JSON file
# (hypergeometric tests, q-values of Benjamini and Hochberg). Genes that were not among the thousand
# are left out of the test.

sets = {
    "B cells": ["CD79A", "MS4A1", "CD79B", "TCL1A", "LINC00926", "BANK1", "VPREB3"],
    "cytotoxic": ["NKG7", "GNLY", "GZMB", "PRF1", "GZMA", "CST7", "FGFBP2", "KLRD1"],
    "monocytes": ["LYZ", "S100A8", "S100A9", "CD14", "FCN1", "CST3", "LGALS2"],
    "MHC class II": ["HLA-DRA", "HLA-DPA1", "HLA-DPB1", "HLA-DQA1", "HLA-DRB1", "CD74"],
    "platelets": ["PPBP", "PF4", "GNG11", "SDPR", "TUBB1", "CLU"],
}
for row in found.enrichment(sets)[:6]:
    shared = f"{len(row.shared)} of {row.size} genes, q = {row.q:.0e}"
    print(f"module {row.module} ({row.name}): {row.set}, {shared}")

# %%
# The genes nearest to one, or to several: a program of a few genes can be extended this way.

for gene in ("CD79A", "GZMB", "LYZ"):
    if gene in adata.var_names:
        print(f"{gene:6}", ", ".join(name for name, _ in result.nearest(gene, k=8)))

# %%
# The genes of a cluster
# ----------------------
# By distance to the cluster; ``times`` is how much larger the mean share of the gene is inside than
# outside. For p-values of differences use ``sc.tl.rank_genes_groups``.

ranks = cms.tl.rank_features(adata, "leiden", n_features=6)
for group, rows in ranks.groupby("group", observed=True):
    print(f"{group:>3}  {', '.join(rows['feature'])}")
clock("genes of clusters")

# %%
# A page to share
# ---------------
# One HTML file that works offline: both maps, linked; search; the genes of a selection. Send it to
# a colleague who has no Python.

page = cm.report.write(
    result,
    "cells.html",
    clusters=adata.obs["leiden"],  # found from these distances: shown, but not scored
    words=("cells", "genes"),
    title="Blood cells and their genes",
    force=True,
)
print(f"{page}, {page.stat().st_size / 1e6:.1f} MB")
clock("report")

# %%
# .. raw:: html
#
#    <p><a href="../cells.html"><strong>Open the page</strong></a></p>
#
# Everything is stored in ``adata`` (``adata.write_h5ad("cells.h5ad")``), with the slots listed in
# :doc:`/guides/scanpy`. Next: label new cells with ``cms.tl.transfer_labels``, compare settings
# with ``cms.tl.choose``, or learn from landmarks if there are more than about 5,000 cells
# (:doc:`/scale`).
