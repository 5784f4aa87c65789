"""Metrics of cells and genes on AnnData, with the conventions of scanpy.

>>> import cometric.scverse as cms
>>> cms.tl.learn(adata)  # obsp, varp and uns, under "cometric"
>>> cms.pp.neighbors(adata)  # what sc.pp.neighbors writes, from the learned distances
>>> sc.tl.umap(adata), sc.tl.leiden(adata)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cometric.scverse import get, pp, tl

if TYPE_CHECKING:
    from cometric.scverse import pl as pl

__all__ = ["get", "pl", "pp", "tl"]


def __getattr__(name: str) -> Any:
    if name == "pl":  # on first use: matplotlib is an optional dependency
        return import_module("cometric.scverse.pl")
    raise AttributeError(f"module 'cometric.scverse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
