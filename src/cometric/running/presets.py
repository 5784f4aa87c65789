"""What to do by the number of samples; docs/scale.md has the same list with its reasons."""

from __future__ import annotations

ALL, PROVED, UNIFORM = 5_000, 50_000, 500_000
"""Samples up to which all distances, exhaustive bounds, and uniform landmarks are advised."""


def preset(samples: int) -> tuple[str, ...]:
    """Advice for data of this many samples, one line each."""
    if samples <= ALL:
        return ("up to 5,000 samples: `learn`, all distances between samples",)
    landmarks = (
        "`learn_landmarks` (`cometric landmarks` in a shell) learns from some samples only and "
        "finds the neighbors of all"
    )
    if samples <= PROVED:
        return (f"up to 50,000 samples: {landmarks}; `search='exhaustive'` proves most of them",)
    parts = (
        "the data may stay in their file: pass open_store(path), or a backed AnnData; commands "
        "read .h5ad and .zarr in parts"
    )
    resumed = "`folder='run'` lets an interrupted run continue"
    if samples <= UNIFORM:
        return (
            f"up to 500,000 samples: {landmarks}; an index proposes candidates, and `recall` "
            "tells how many are right",
            parts,
            resumed,
        )
    return (
        f"more than 500,000 samples: {landmarks}; an index proposes candidates, and `recall` "
        "tells how many are right",
        "`method='kmeans++'` or labels as landmarks, so that rare kinds of samples are among them",
        parts,
        resumed,
    )
