"""The processor, memory, GPUs and numeric libraries of this machine, as lines of a bug report."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from cometric.core.inputs import counted
from cometric.machine.devices import free_memory, memory_limit

EXTENSIONS = ("sse4.2", "avx", "avx2", "fma", "avx512f", "neon", "sve")
"""Vector extensions that change how fast kernels are, in the order of a report."""

VARIABLES = (
    "NUMBA_NUM_THREADS",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
    "NUMBA_DISABLE_JIT",
    "NUMBA_CACHE_DIR",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)
"""Environment variables that change what is computed where."""


def processor() -> str:
    """The model, and what Numba compiles for: the family and its vector extensions."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    found = [name for name in EXTENSIONS if features.get(name)]
    extensions = ", ".join(found) or "no vector extensions that we know"
    return f"{_model()} ({binding.get_host_cpu_name()}: {extensions})"


def _model(path: str = "/proc/cpuinfo") -> str:
    """The name of the processor that the system gives."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def usable_cores() -> int | None:
    """How many cores this process may use, as a batch system allows."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def blas() -> str:
    """The libraries for linear algebra, each with its threads."""
    import numpy.linalg  # noqa: F401  # libraries are listed once they are loaded
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    lines = [
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}".strip()
        + f", {counted(library['num_threads'], 'thread')}"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    return "; ".join(dict.fromkeys(lines)) or "none that threadpoolctl knows"


def memory() -> str:
    """Free memory, all of it, and the limit of a container or batch system."""
    import psutil

    total, limit = psutil.virtual_memory().total, memory_limit()
    text = f"{free_memory() / 1e9:.1f} GB free, {total / 1e9:.1f} GB in all"
    return f"{text}, limited to {limit / 1e9:.1f} GB" if limit < total else f"{text}, no limit"


def gpu() -> str:
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


def environment() -> str:
    """The variables of :data:`VARIABLES` that are set."""
    found = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    return ", ".join(found) or "none of the variables for threads and kernels is set"
