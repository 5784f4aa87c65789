"""Free memory, on the host and on torch devices, and torch devices by name."""

from __future__ import annotations

from typing import Any

SHARE_ON_DEVICES = 0.7
"""Of the free memory that scalings may take; metrics, logarithms and a block need the rest."""


def free_memory() -> float:
    """Bytes that can be allocated now without swapping, and within the limit of a container."""
    import psutil  # on use: it takes milliseconds to load

    return min(float(psutil.virtual_memory().available), _free_in_cgroup())


def _free_in_cgroup(folder: str = "/sys/fs/cgroup") -> float:
    """Bytes left of the limit of a container or a batch system; infinite without such a limit."""
    try:
        with open(f"{folder}/memory.max") as most, open(f"{folder}/memory.current") as now:
            free = float(int(most.read()) - int(now.read()))
        with open(f"{folder}/memory.stat") as file:
            stat = dict(line.split() for line in file)
        return max(0.0, free + int(stat["inactive_file"]))  # cached files can be evicted
    except (OSError, KeyError, ValueError):
        return float("inf")


def free_on(device: Any) -> float:
    """Bytes that can be allocated on a device now."""
    import torch

    if device.type != "cuda":
        return free_memory()
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + cached)


def usable_memory(device: Any) -> float:
    """Bytes that scalings may take."""
    return SHARE_ON_DEVICES * free_on(torch_device(device))


def torch_device(name: Any) -> Any:
    """The torch device of this name, or an error that says what is missing.

    "torch:cpu" is torch on the CPU: slower than Numba, for tests.
    """
    try:
        import torch
    except ImportError as missing:
        raise ImportError(
            f"`device` is {str(name)!r}, which needs PyTorch: pip install 'cometric[gpu]', "
            "or pass device='cpu'."
        ) from missing
    device = torch.device(str(name).removeprefix("torch:"))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"`device` is {str(name)!r}, but PyTorch sees {torch.cuda.device_count()} CUDA "
            "devices. Install a CUDA build of PyTorch and check `nvidia-smi`, or pass device='cpu'."
        )
    return device
