"""Free memory, on the host and on torch devices, and torch devices by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHARE_ON_DEVICES = 0.7
"""Share of the free memory for scalings; metrics, logarithms and a block need the rest."""


def free_memory() -> float:
    """Bytes that can be allocated now without swapping, and within the limit of a container."""
    import psutil  # on use: it takes milliseconds to load

    return min(float(psutil.virtual_memory().available), _free_in_cgroup())


def memory_limit(folder: str = "/sys/fs/cgroup") -> float:
    """Memory limit of a container or batch job in bytes; infinite without one."""
    try:
        with open(f"{folder}/memory.max") as most:
            return float(int(most.read()))
    except (OSError, ValueError):  # "max" where there is none
        return float("inf")


def _free_in_cgroup(folder: str = "/sys/fs/cgroup") -> float:
    """Bytes left below the memory limit of a container or batch job; infinite without one."""
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


def free_on_all(devices: Sequence[Any]) -> float:
    """Total bytes that can be allocated in equal parts on devices; a name may repeat."""
    places = [(device.type, device.index or 0) for device in devices]
    pairs = zip(devices, places, strict=True)
    return len(devices) * min(free_on(device) / places.count(place) for device, place in pairs)


def usable_memory(device: Any) -> float:
    """Bytes that scalings may take on a device, or on several together."""
    return SHARE_ON_DEVICES * free_on_all([torch_device(name) for name in device_names(device)])


def device_names(device: Any) -> tuple[str, ...]:
    """The names of one device or of several."""
    several = isinstance(device, list | tuple)
    return tuple(str(name) for name in device) if several else (str(device),)


def check_single(device: Any) -> None:
    """Raise if several devices are named."""
    if isinstance(device, list | tuple):
        raise ValueError(
            f"`device` is {device!r}; only `learn` divides its work among devices. Pass one name."
        )


def torch_device(name: Any) -> Any:
    """The torch device of this name, or an error that says what is missing.

    "torch:cpu" is torch on the CPU: slower than Numba, for tests.
    """
    check_single(name)
    if str(name).lower() == "gpu":
        raise ValueError(f"`device` is {str(name)!r}; pass 'cuda', or 'cuda:0' for the first GPU.")
    try:
        import torch
    except ImportError as missing:
        raise ImportError(
            f"`device` is {str(name)!r}, which needs PyTorch: pip install 'cometric[gpu]', "
            "or pass device='cpu'."
        ) from missing
    device = torch.device(str(name).removeprefix("torch:"))
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"`device` is {str(name)!r}, which is not supported; pass 'cpu' or 'cuda'."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"`device` is {str(name)!r}, but PyTorch sees {torch.cuda.device_count()} CUDA "
            "devices. Install a CUDA build of PyTorch and check nvidia-smi, or pass device='cpu'."
        )
    return device
