"""Commands about the machine: its description, and compilation of all kernels in advance."""

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
from cometric.cli.console import Console, Exit
from cometric.cli.options import command
from cometric.core.inputs import counted
from cometric.runtime.devices import free_memory
from cometric.runtime.progress import duration

LIBRARIES = (
    "numpy scipy numba scikit-learn psutil threadpoolctl tqdm torch anndata igraph scanpy "
    "matplotlib umap-learn jinja2 dask zarr POT pandas h5py"
)
"""Required and optional libraries, and two that read data."""

VARIABLES = ("NUMBA_", "OMP_", "OPENBLAS_", "MKL_", "CUDA_VISIBLE_")
"""Prefixes of environment variables that affect threads, kernels and devices."""


@command()
def info(console: Console) -> Exit:
    """Show versions, processor, threads, memory, GPU and kernel cache, for bug reports."""
    import psutil
    from llvmlite import binding

    from cometric.kernels import thread_count

    found = [f"{name}={text}" for name, text in os.environ.items() if name.startswith(VARIABLES)]
    total = psutil.virtual_memory().total
    facts = {
        "cometric": cometric.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        **{name: _version(name) for name in LIBRARIES.split()},
        "processor": f"{platform.machine()} ({binding.get_host_cpu_name()})",
        "cores": os.cpu_count(),
        "threads": thread_count(None),
        "blas": _blas(),
        "memory": f"{free_memory() / 1e9:.1f} GB free, {total / 1e9:.1f} GB in all",
        "gpu": _gpu(),
        "environment": ", ".join(found) or "no variables for threads and kernels",
        "kernel cache": _cache(),
    }
    width = max(map(len, facts))
    lines = [f"{name:{width}}  {value}" for name, value in facts.items()]
    return console.answer("info", "\n".join(lines), [], [], facts)


@command()
def warmup(console: Console) -> Exit:
    """Compile the kernels of all commands now, so that later runs start at once."""
    began, parts = time.perf_counter(), _parts()
    for done, call in enumerate(parts, start=1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about results that are discarded
            call()
        seconds = time.perf_counter() - began
        console.say(f"{done} of {len(parts)} parts ready after {duration(seconds)}")
    text = f"Ready after {duration(seconds)}."
    return console.answer("warmup", text, [], [], {"seconds": seconds})


def _parts() -> list[Callable[[], Any]]:
    """Small calls that together compile the kernels of all commands."""
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


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _blas() -> str:
    """The libraries for linear algebra, each with its threads."""
    import scipy.linalg  # noqa: F401  # libraries are listed once they are loaded
    from threadpoolctl import threadpool_info

    names = [
        f"{each['internal_api']} {each['version']}, {counted(each['num_threads'], 'thread')}"
        for each in threadpool_info()
        if each["user_api"] == "blas"
    ]
    return "; ".join(dict.fromkeys(names)) or "none that threadpoolctl knows"


def _gpu() -> str:
    """All GPUs that torch can use."""
    try:
        import torch
    except ImportError:
        return "none: torch is not installed"
    if not torch.cuda.is_available():
        return "none that torch can use"
    lines = []
    for number in range(torch.cuda.device_count()):
        known = torch.cuda.get_device_properties(number)
        size, version = known.total_memory / 1e9, f"{known.major}.{known.minor}"
        lines.append(f"{known.name}, {size:.0f} GB, compute capability {version}")
    return f"{'; '.join(lines)}; CUDA {torch.version.cuda}"


def _cache() -> str:
    """The folder of compiled kernels."""
    from cometric.kernels.simplex import optimize

    if not hasattr(optimize, "stats"):
        return "none: NUMBA_DISABLE_JIT is set"
    folder = Path(optimize.stats.cache_path)
    compiled = list(folder.glob("*.nbc"))
    if not compiled:
        return f"{folder}: empty, see `cometric warmup`"
    size = sum(path.stat().st_size for path in compiled)
    return f"{folder}: {counted(len(compiled), 'kernel')}, {size / 1e6:.0f} MB"
