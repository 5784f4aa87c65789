"""What a benchmark ran on: a time means nothing without it."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe(*packages: str) -> dict[str, str]:
    """Processor, cores, load, and the versions of Python and ``packages``."""
    return {
        "cpu": _cpu(),
        "cores": str(cores()),
        "load average": load(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def load() -> str:
    """Processes that wanted a core, on average over the last minute: ours count too."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"


def _cpu() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def cores() -> int:
    """Cores this process may use, which a container makes fewer than there are."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return allowed or os.cpu_count() or 1
