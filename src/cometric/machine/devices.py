"""Where maps compute, and how much memory there is: on the host, on the devices of torch."""

from __future__ import annotations

from typing import Any


def free_memory() -> float:
    """Bytes of memory that can be used now without swapping."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        free = 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return 4e9  # not Linux: a size most machines have
    return min(free, _room_in_group())


def _room_in_group(folder: str = "/sys/fs/cgroup") -> float:
    """Bytes left of what a container or a batch system allows; infinite without such a limit."""
    try:
        with open(f"{folder}/memory.max") as most, open(f"{folder}/memory.current") as now:
            room = float(int(most.read()) - int(now.read()))
        with open(f"{folder}/memory.stat") as file:
            stat = dict(line.split() for line in file)
        return max(0.0, room + int(stat["inactive_file"]))  # cached files make way
    except (OSError, KeyError, ValueError):
        return float("inf")


def free_on(device: Any) -> float:
    """Bytes that can be had on a device now."""
    import torch

    if device.type != "cuda":
        return free_memory()
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + cached)


def usable_memory(device: Any) -> float:
    """Bytes that scalings may take: the metrics, their logarithms and a block want the rest."""
    return 0.7 * free_on(torch_device(device))


def torch_device(name: Any) -> Any:
    """The device of this name, or an error that says what is missing.

    "torch:cpu" is the CPU by way of torch: slower than Numba, for tests.
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
        found = torch.cuda.device_count()
        raise ValueError(
            f"`device` is {str(name)!r}, but PyTorch sees {found} CUDA devices. Install a CUDA "
            "build of PyTorch and check `nvidia-smi`, or pass device='cpu'."
        )
    return device
