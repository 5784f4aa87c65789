"""A description of the machine and of installed versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import cometric
from cometric.core.inputs import counted
from cometric.machine.devices import free_memory

LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn")
EXTRAS = ("anndata", "scanpy", "torch", "matplotlib", "jinja2", "dask")


def describe() -> dict[str, Any]:
    """Names and values of what bug reports should contain."""
    import numba

    cache = os.environ.get("NUMBA_CACHE_DIR") or Path(cometric.__file__).parent / "kernels"
    return {
        "cometric": cometric.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: metadata.version(name) for name in LIBRARIES},
        **{name: _installed(name) for name in EXTRAS},
        "cores": os.cpu_count(),
        "threads": numba.get_num_threads(),
        "free memory": f"{free_memory() / 1e9:.1f} GB",
        "gpu": _gpu(),
        "kernel cache": _cache(Path(cache)),
    }


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
    return str(torch.cuda.get_device_name())


def _cache(folder: Path) -> str:
    compiled = list(folder.rglob("*.nbc"))
    if not compiled:
        return f"{folder}: empty, see `cometric warmup`"
    size = sum(path.stat().st_size for path in compiled)
    return f"{folder}: {counted(len(compiled), 'kernel')}, {size / 1e6:.0f} MB"
