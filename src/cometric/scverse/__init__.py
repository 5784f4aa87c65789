"""Metrics of cells and genes on AnnData, named as scanpy names things.

>>> import cometric.scverse as cms
>>> cms.tl.learn(adata)  # obsp, varp and uns, under "cometric"
>>> cms.pp.neighbors(adata)  # what sc.pp.neighbors writes, from the learned distances
>>> sc.tl.umap(adata), sc.tl.leiden(adata)
"""

from cometric.scverse import get, pp, tl

__all__ = ["get", "pp", "tl"]
