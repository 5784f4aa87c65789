"""
Blood cells, from raw counts to figures
=======================================

A complete analysis with scanpy and `cometric`: filter and normalize counts, learn a distance
between cells and one between *genes*, then a map, clusters, named gene modules, the genes of a
cluster, a report to share, and labels for new cells. The data are 2,700 blood cells, "PBMC 3k" of
10x Genomics. The times printed are those of the machine that built this page; see :doc:`/howlong`
for others. Comments that begin with ``# >`` show the output.

.. code-block:: sh

   pip install '.[scverse,plot,report,modules,cli]'    # from a clone of cometric
   cometric warmup                                     # compiles all, once: three to four minutes
"""

import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
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
# ``sc.datasets.pbmc3k()`` downloads 6 MB, once. Without a network, this page falls back to 700
# cells that come with scanpy, already filtered and normalized.

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
# in each cell and log-transformed. Then the thousand most variable genes are selected: time and
# memory grow with the square of the number of genes, and rare genes are mostly noise.
#
# **Add the markers that you want to see.** A selection of variable genes leaves out some known
# markers: this one CD3D and IL7R, and scanpy's default, ``flavor="seurat"``, also MS4A1, CD8A
# and CD14. A gene that is not used for learning is in no module and has no nearest genes. All genes
# stay in ``adata.raw``, for colors.
#
# **Do not scale** (``sc.pp.scale``): the data must be nonnegative, since each cell is read as a
# histogram over genes.

MARKERS = {
    "B cells": ["CD79A", "MS4A1", "CD79B", "TCL1A", "LINC00926", "BANK1", "VPREB3"],
    "T cells": ["CD3D", "CD3E", "IL7R", "CCR7", "CD8A", "CD8B", "LTB"],
    "cytotoxic": ["NKG7", "GNLY", "GZMB", "PRF1", "GZMA", "CST7", "FGFBP2", "KLRD1"],
    "monocytes": ["LYZ", "S100A8", "S100A9", "CD14", "FCN1", "CST3", "LGALS2", "FCGR3A", "MS4A7"],
    "dendritic cells": ["FCER1A", "CLEC10A", "CD1C", "SERPINF1", "CLIC2"],
    "platelets": ["PPBP", "PF4", "GNG11", "SDPR", "TUBB1", "CLU"],
    "MHC class II": ["HLA-DRA", "HLA-DPA1", "HLA-DPB1", "HLA-DQA1", "HLA-DRB1", "CD74"],
}

if raw:
    adata.var["mt"] = adata.var_names.str.startswith("MT-")
    sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=None, inplace=True)
    good = (adata.obs["n_genes_by_counts"] >= 200) & (adata.obs["n_genes_by_counts"] < 2500)
    adata = adata[good & (adata.obs["pct_counts_mt"] < 5)].copy()
    sc.pp.filter_genes(adata, min_cells=3)
    adata.layers["counts"] = adata.X.copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    adata.raw = adata
    sc.pp.highly_variable_genes(adata, n_top_genes=1000, flavor="cell_ranger")
    marks = adata.var_names.isin([gene for genes in MARKERS.values() for gene in genes])
    adata = adata[:, adata.var["highly_variable"] | marks].copy()
print(f"{adata.n_obs} cells, {adata.n_vars} genes")
clock("filter and normalize")

# > 2638 cells, 1009 genes

# %%
# One cell in twenty is set aside: the end of this page labels them as new cells.

aside = np.arange(adata.n_obs) % 20 == 19
new, adata = adata[aside].copy(), adata[~aside].copy()
print(f"{adata.n_obs} cells to learn from, {new.n_obs} new ones")

# > 2507 cells to learn from, 131 new ones

# %%
# Learn both distances
# --------------------
# ``dtype="float32"`` and ``tol=1e-2`` are sufficient for maps and modules, and faster than the
# defaults. In a terminal or notebook, add ``progress=True`` for a bar with the time left.
# ``drop_empty=True`` allows for cells without any of the chosen genes.

cms.tl.learn(adata, dtype="float32", tol=1e-2, drop_empty=True)
clock("learn")
print(cms.get.result(adata))

# > Learned a distance between 2507 samples and one between 1009 features
# >   converged: the residual is below the tolerance
# >   residual         2.18e-03 (tolerance 1e-02, Hilbert metric)
# >   singular values  lam = 0.644579, mu = 0.436668, lam mu = 0.2814675

# %%
# A map and clusters of the cells
# -------------------------------
# Neighbors are stored where scanpy expects them, so all of its functions that use neighbors work.

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scanpy's, about its own future
    cms.pp.neighbors(adata)
    sc.tl.umap(adata)
    sc.tl.leiden(adata, flavor="igraph", n_iterations=2, resolution=0.8)
clock("neighbors, UMAP, Leiden")

figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
markers = [gene for gene in ("CD3D", "MS4A1", "LYZ", "NKG7") if gene in adata.var_names][:2]
for ax, color in zip(axes, ["leiden", *markers], strict=True):
    sc.pl.umap(adata, color=color, ax=ax, show=False, legend_loc="on data", frameon=False)

# %%
# Modules of genes
# ----------------
# ``tl.modules`` joins each gene with its nearest genes, by the learned distance, and clusters this
# graph. Genes whose values are no more alike in near cells than in others belong to no module
# ("background"). A module is named by its three most central genes: CD79A and MS4A1 mark B cells,
# NKG7 and GZMB natural killer cells, CST3 and S100A9 monocytes, PF4 platelets, CD3D T cells.

found = cms.tl.modules(adata)
print(found)
clock("modules")

# > 10 modules of features, 708 features are background
# >     0     58  NKG7, CST7, GZMB, GZMA, PRF1, FGFBP2, GZMH, GNLY, ...
# >     1     55  CD79A, MS4A1, VPREB3, LINC00926, TCL1A, FCER2, TSPAN13, BANK1, ...
# >     2     38  CFD, CD68, IFI30, CST3, TYROBP, LST1, FCER1G, FCN1, ...
# >     3     31  S100A8, LGALS2, S100A9, CD14, MS4A6A, CSF3R, FPR1, ASGR1, ...
# >     4     29  AP001189.4, LY6G6F, GP9, TMEM40, PTCRA, TREML1, ITGA2B, CLDN5, ...
# >     5     29  HLA-DQA1, HLA-DRB1, HLA-DQB1, HLA-DRA, HLA-DPA1, HLA-DMA, HLA-DPB1, ...
# >     6     23  PF4, GNG11, SDPR, SPARC, PPBP, CLU, MYL9, NRGN, ...
# >     7     22  CD3D, LTB, CD3E, IL7R, CCR7, MAL, LEF1, AQP3, ...
# >     8      9  FCGR3A, RHOC, IGFBP7, ABI3, CX3CR1, PLEK, HAVCR2, LYN, ...
# >     9      7  SERPINF1, FCER1A, CLEC10A, CLIC2, CD1C, ZNF503, LILRA4

# %%
# The same on maps of both sides. Each dot on the right is a gene, in the color of its module; each
# dot on the left is a cell, in the color of the module for which its score is largest. For seven
# colors, the modules that correlate most are joined.

result = cms.get.result(adata)
few = found.merge(7)
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
cm.plot.embedding(result, "samples", "tsne", color=few, ax=left)
left.get_legend().remove()  # the colors are those on the right
left.set(title=f"{len(result.samples)} cells", xlabel="", ylabel="")
cm.plot.embedding(result, "features", "tsne", color=few, ax=right)
right.set(title=f"{len(result.features)} genes", xlabel="", ylabel="")
clock("maps of cells and genes")

# %%
# Where are the modules active? The mean score of each module in each cluster names the clusters.

cms.pl.modules(adata, "leiden")

# %%
# Do modules match known gene sets? Pass a dictionary, or the path of a GMT or JSON file
# (hypergeometric tests, q-values of Benjamini and Hochberg). ``enrichment`` returns a tuple of
# rows, the smallest p-value first; ``pd.DataFrame(found.enrichment(sets))`` is a table. Genes of a
# set that were not used for learning are not tested; each row says how many were.

for row in found.enrichment(MARKERS)[:7]:
    print(row)

# > module 9 (SERPINF1, FCER1A, CLEC10A): dendritic cells, 5 of 5 tested (5 in the set), q = 2e-10
# > module 6 (PF4, GNG11, SDPR): platelets, 6 of 6 tested (6 in the set), q = 2e-09
# > module 0 (NKG7, CST7, GZMB): cytotoxic, 8 of 8 tested (8 in the set), q = 2e-09
# > module 5 (HLA-DQA1, HLA-DRB1, HLA-DQB1): MHC class II, 6 of 6 tested (6 in the set), q = 6e-09
# > module 7 (CD3D, LTB, CD3E): T cells, 5 of 7 tested (7 in the set), q = 9e-07
# > module 1 (CD79A, MS4A1, VPREB3): B cells, 6 of 7 tested (7 in the set), q = 2e-06
# > module 3 (S100A8, LGALS2, S100A9): monocytes, 4 of 9 tested (9 in the set), q = 0.0008

# %%
# The genes nearest to one or several, for example to extend a program of a few genes.

for gene in ("CD3D", "MS4A1", "GZMB", "LYZ"):
    if gene in adata.var_names:
        print(f"{gene:6}", ", ".join(name for name, _ in result.nearest(gene, k=8)))

# > CD3D   CD3E, IL7R, LTB, AQP3, AC013264.2, DENND2D, GPR171, LEF1
# > MS4A1  CD79A, VPREB3, BANK1, CD79B, LINC00926, TCL1A, FCRLA, HLA-DOB
# > GZMB   FGFBP2, SPON2, PRF1, CLIC3, TTC38, GNLY, CCL4, GPR56
# > LYZ    LGALS1, CST3, S100A9, TYMP, TYROBP, FCN1, CEBPD, LGALS3

# %%
# The genes of a cluster
# ----------------------
# Genes ranked by distance to the cluster; ``times`` is the ratio of the gene's mean share inside to
# that outside, shrunk toward 1. For p-values of differences use ``sc.tl.rank_genes_groups``.

ranks = cms.tl.rank_features(adata, "leiden", n_features=6)
for group, rows in ranks.groupby("group", observed=True):
    print(f"{group:>3}  {', '.join(rows['feature'])}")
clock("genes of clusters")

# >   0  GZMK, LAG3, CD8A, KLRG1, LYAR, AC092580.4
# >   1  CD79A, LINC00926, VPREB3, MS4A1, TCL1A, BANK1
# >   2  MAL, IL7R, CD3D, AQP3, CD3E, LEF1
# >   3  CD14, LGALS2, S100A8, MS4A6A, ASGR1, CSF3R
# >   4  LILRA3, LYPD2, RP11-290F20.3, MS4A7, LRRC25, C1QA
# >   5  AKR1C3, KLRD1, CLIC3, SPON2, XCL2, KLRF1
# >   6  RP11-291B21.2, CD8B, RP11-247A12.2, CCR7, CA6, CARS
# >   7  GZMH, FCRL6, TIGIT, IFNG, JAKMIP1, LAG3
# >   8  FCER1A, CLIC2, SERPINF1, CLEC10A, ZNF503, CD1C
# >   9  ITGA2B, GP9, AP001189.4, LY6G6F, SEPT5, TMEM40

# %%
# A page to share
# ---------------
# One HTML file that works offline: both maps, linked; search; the genes of a selection. Send it to
# a colleague who has no Python.

page = cm.report.write(
    result,
    "cells.html",
    clusters=adata.obs["leiden"][result.problem.samples.kept],  # shown, but not scored
    words=("cells", "genes"),
    X=adata.raw if raw else None,  # to color by all genes
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
# New cells
# ---------
# Name the clusters by hand, or, as here, by the markers that are largest in each compared with the
# other clusters. Then label the cells that were set aside, which learning did not see: each gets
# the label that its nearest cells vote for, the probability that this is right, and a novelty,
# which is near 1 for cells unlike all known ones. A check without distances uses only the markers
# of each new cell.


def by_markers(table):
    """The type whose markers are largest in each row, compared with the other rows."""
    score = (table - table.mean()) / table.std().clip(lower=1e-9)
    types = {name: genes for name, genes in MARKERS.items() if name != "MHC class II"}
    means = {name: score[score.columns.intersection(genes)] for name, genes in types.items()}
    return pd.DataFrame({name: part.mean(axis=1) for name, part in means.items()}).idxmax(axis=1)


names = by_markers(adata.to_df().groupby(adata.obs["leiden"], observed=True).mean())
adata.obs["cell_type"] = adata.obs["leiden"].map(names).astype("category")
cms.tl.transfer_labels(new, adata, "cell_type", progress=True)
told = new.obs.groupby("cometric_cell_type", observed=True)
print(told["cometric_cell_type_confidence"].agg(["size", "mean"]).round(3).to_string())
agree = new.obs["cometric_cell_type"].astype(str) == by_markers(new.to_df())
print(f"The markers of each cell alone agree with {agree.sum()} of {len(new)} labels.")
clock("labels of new cells")

# >                     size   mean
# > cometric_cell_type
# > B cells               19  1.000
# > T cells               60  1.000
# > cytotoxic             20  1.000
# > dendritic cells        4  0.975
# > monocytes             28  1.000
# > The markers of each cell alone agree with 118 of 131 labels.

# %%
# Everything is stored in ``adata`` (``adata.write_h5ad("cells.h5ad")``), with the slots listed in
# :doc:`/guides/scanpy`, which also says what confidence and novelty are. Next: compare settings
# with ``cms.tl.choose``, or learn from landmarks if there are more than about 5,000 cells
# (:doc:`/scale`).
