"""A description of the machine and of installed versions."""

from __future__ import annotations

import os
import platform
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import cometric
from cometric.core.inputs import counted
from cometric.machine.devices import free_memory

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


def describe() -> dict[str, Any]:
    """Names and values of what bug reports should contain."""
    import psutil

    from cometric.kernels import thread_count
    from cometric.kernels.simplex import optimize

    total = psutil.virtual_memory().total
    return {
        "cometric": cometric.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: metadata.version(name) for name in LIBRARIES},
        **{name: _installed(name) for name in EXTRAS},
        "cores": os.cpu_count(),
        "threads": thread_count(None),
        "memory": f"{free_memory() / 1e9:.1f} GB free, {total / 1e9:.1f} GB in all",
        "gpu": _gpu(),
        "kernel cache": _cache(getattr(optimize, "stats", None)),
    }


def compile_kernels() -> float:
    """Compile the kernels of all commands, by small calls of each; returns the seconds it took."""
    began = time.perf_counter()
    cometric.warmup()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about results that nobody sees
        for n, m, density in ((60, 40, 0.3), (140, 130, 0.9)):  # dense data have other kernels
            X = cometric.datasets.simulate_counts(n, m, types=3, density=density).X
            for dtype in ("float64", "float32"):
                result = cometric.learn(X, dtype=dtype, tol=1e-2)
                result.transform(X[:5])
                for search in ("exhaustive", "index"):
                    cometric.neighbor_graph(result, X, 5, search=search, check=2)
            result.certify()
            result.explain(0, 1)
            cometric.rank_features(result, [k % 2 for k in range(n)])
        cometric.learn(X, transport=cometric.Tree(), max_iter=2)
        cometric.learn(X, transport=cometric.Unbalanced(0.1, rho=1.0), max_iter=2)
    return time.perf_counter() - began


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _gpu() -> str:
    try:
        import torch
    except ImportError:
        return "none: torch is not installed"
    if not torch.cuda.is_available():
        return "none that torch can use"
    memory = torch.cuda.get_device_properties(0).total_memory
    return f"{torch.cuda.get_device_name()}, {memory / 1e9:.0f} GB, CUDA {torch.version.cuda}"


def _cache(stats: Any) -> str:
    if stats is None:
        return "none: NUMBA_DISABLE_JIT is set"
    folder = Path(stats.cache_path)
    compiled = list(folder.glob("*.nbc"))
    if not compiled:
        return f"{folder}: empty, see `cometric warmup`"
    size = sum(path.stat().st_size for path in compiled)
    return f"{folder}: {counted(len(compiled), 'kernel')}, {size / 1e6:.0f} MB"
