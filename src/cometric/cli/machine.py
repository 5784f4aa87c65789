"""A description of the machine and of installed versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import cometric
from cometric.cli import hardware
from cometric.core.inputs import counted

LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "psutil", "threadpoolctl", "tqdm")
"""Libraries that the package needs, in the order of pyproject.toml."""

EXTRAS = (
    "torch",
    "anndata",
    "igraph",
    "scanpy",
    "matplotlib",
    "umap-learn",
    "jinja2",
    "typer",
    "rich",
    "dask",
    "zarr",
    "POT",
)
"""Libraries of its optional parts."""

BENEATH = ("pandas", "h5py", "click")
"""Libraries that these use, on whose versions it depends how data are read and commands parsed."""


def describe() -> dict[str, Any]:
    """Names and values of what bug reports should contain."""
    from cometric.kernels import thread_count
    from cometric.kernels.simplex import optimize

    return {
        "cometric": cometric.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        **{name: metadata.version(name) for name in LIBRARIES},
        **{name: _installed(name) for name in (*EXTRAS, *BENEATH)},
        "processor": hardware.processor(),
        "cores": os.cpu_count(),
        "usable cores": hardware.usable_cores(),
        "threads": thread_count(None),
        "blas": hardware.blas(),
        "memory": hardware.memory(),
        "gpu": hardware.gpu(),
        "environment": hardware.environment(),
        "kernel cache": _cache(getattr(optimize, "stats", None)),
    }


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cache(stats: Any) -> str:
    if stats is None:
        return "none: NUMBA_DISABLE_JIT is set"
    folder = Path(stats.cache_path)
    compiled = list(folder.glob("*.nbc"))
    if not compiled:
        return f"{folder}: empty, see `cometric warmup`"
    size = sum(path.stat().st_size for path in compiled)
    return f"{folder}: {counted(len(compiled), 'kernel')}, {size / 1e6:.0f} MB"
