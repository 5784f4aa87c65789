"""
A spatial panel
===============

Molecules counted in place: few genes, a hundred or two molecules per cell. Here 33 genes in 4,839
cells of the mouse cortex (osmFISH; Codeluppi et al., 2018), of which 2,000 are used: cells by their
learned distances and in space, and genes near one another. Pass the counts as they are: with
logarithms fewer neighbors of a cell have its type (:doc:`/choosing`).
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm
from cometric import baselines, scores

# %%
# The counts
# ----------
# Without the file, a simulated panel of 40 genes takes its place.

here = Path("../../../../shared/data/osmfish_cortex.h5ad")
if here.exists():
    import anndata

    cells = anndata.read_h5ad(here)
    X = cells.to_df().astype(float)
    types, places = cells.obs["label"].to_numpy().astype(str), cells.obsm["spatial"]
else:
    panel = cm.datasets.simulate_counts(1500, 40, types=8, density=0.6)
    X, types = panel.X, panel.labels.astype(str)
    places = np.random.default_rng(0).random((len(types), 2))
rows = np.sort(np.random.default_rng(0).permutation(len(types))[:2000])
X, types, places = X.iloc[rows] if hasattr(X, "iloc") else X[rows], types[rows], places[rows]
print(X.shape, "median count per cell:", np.median(np.asarray(X).sum(axis=1)))

# %%
# Distances between cells and between genes
# -----------------------------------------
# Two cells share several of the few genes, so nearly all of the distance is that of the reference,
# which sees as much alone; ``learn`` also gives distances between genes, and to new cells.

result = cm.learn(X, drop_empty=True)
print(result)
counts = np.asarray(X)
for name, D in {
    "learned": result.samples,
    "reference alone": baselines.reference(counts),
    "CA, all components": baselines.correspondence(counts, min(counts.shape) - 1),
    "tf-idf cosine": baselines.tfidf(counts),
    "log and PCA": baselines.pca(baselines.log_normalized(counts), 20),
}.items():
    print(f"{name:20} {scores.knn_accuracy(D, types, 10):.3f} of the cells have their type")

# %%
# Genes
# -----

if hasattr(X, "columns"):
    for gene in X.columns[::6]:
        print(f"{gene:10}", ", ".join(name for name, _ in result.nearest(gene, k=4)))

# %%
# The map of the cells, and the cells in space
# --------------------------------------------
# One color per type.

cm.plot.embedding(result, method="tsne", labels=types)

# %%

names, number = np.unique(types, return_inverse=True)
fig, ax = plt.subplots(figsize=(7, 6))
ax.scatter(*places.T, c=number, s=6, cmap="gist_ncar")
ax.set_aspect("equal")
ax.set_axis_off()
