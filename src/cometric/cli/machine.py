"""A description of the machine and of installed versions."""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import cometric
from cometric.cli import hardware
from cometric.core.inputs import counted
from cometric.machine.progress import duration

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

QUIET_SECONDS = 5.0
"""Parts that are done sooner after the last line are not announced."""


def describe() -> dict[str, Any]:
    """Names and values of what bug reports should contain."""
    from cometric.kernels import thread_count
    from cometric.kernels.simplex import optimize

    return {
        "cometric": cometric.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        **{name: metadata.version(name) for name in LIBRARIES},
        **{name: _installed(name) for name in EXTRAS},
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


def compile_kernels(say: Callable[[str], Any] = lambda _: None) -> float:
    """Compile the kernels of all commands, by small calls of each; returns the seconds it took.

    ``say`` gets a line after each part, but not after parts that take a few seconds only.
    """
    began = said = time.perf_counter()
    parts = _parts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about results that nobody sees
        for done, call in enumerate(parts, start=1):
            call()
            now = time.perf_counter()
            if now - said >= QUIET_SECONDS:
                say(f"{done} of {len(parts)} parts ready after {duration(now - began)}")
                said = now
    return time.perf_counter() - began


def _parts() -> list[Callable[[], Any]]:
    """Small calls that together need the kernels of all commands."""
    sparse, dense = (60, 40, 0.3), (140, 130, 0.9)  # dense data have other kernels
    X = cometric.datasets.simulate_counts(140, 130, types=3, density=0.9).X
    transports = cometric.Tree(), cometric.Unbalanced(0.1, rho=1.0)
    return [
        cometric.warmup,
        *(
            partial(_use_all, *data, dtype)
            for data in (sparse, dense)
            for dtype in ("float64", "float32")
        ),
        *(partial(cometric.learn, X, transport=kind, max_iter=2) for kind in transports),
    ]


def _use_all(n: int, m: int, density: float, dtype: str) -> None:
    """Learn from small data, and use the result in all ways that have kernels."""
    X = cometric.datasets.simulate_counts(n, m, types=3, density=density).X
    result = cometric.learn(X, dtype=dtype, tol=1e-2)
    result.transform(X[:5])
    for search in ("exhaustive", "index"):
        cometric.neighbor_graph(result, X, 5, search=search, check=2)
    if dtype == "float32":  # the rest has the same kernels for both
        result.certify()
        result.explain(0, 1)
        cometric.rank_features(result, [k % 2 for k in range(n)])


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
