"""The machine that a benchmark ran on."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
    """The load average of the last minute, which includes our own processes."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"


def commit() -> str:
    """The commit that last changed ``src``, with a plus if it has been changed since."""

    def git(*arguments: str) -> str:
        ran = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return ran.stdout.strip()

    last = git("log", "-1", "--abbrev=7", "--format=%h", "--", "src")
    return f"{last or 'unknown'}{'+' if git('status', '--porcelain', '--', 'src') else ''}"


def _cpu() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def cores() -> int:
    """Cores this process may use: in a container, fewer than the machine has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return allowed or os.cpu_count() or 1
