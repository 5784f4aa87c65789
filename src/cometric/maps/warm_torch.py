"""Entropic maps in strips on the devices of the workers of a Dask cluster, with warm starts.

Strips, copies and checkpoints are those of :mod:`~cometric.maps.warm`. The scalings of a strip
stay on the device of its worker; copies for other workers are in the memory of the host.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cometric.core.types import Matrix
from cometric.core.warn import warn
from cometric.machine.devices import free_on, torch_device
from cometric.maps.blocks import choose_engine
from cometric.maps.checks import check_cost
from cometric.maps.cluster import Cluster
from cometric.maps.entropic_torch import WIDEST, can_crop
from cometric.maps.ground import Ground
from cometric.maps.strips import worker_address
from cometric.maps.strips_torch import TensorStrips
from cometric.maps.warm import TiledEntropicMap

STRIPS = 32
"""The number of strips, for any number of workers: products round differently for other shapes."""


class Facts(NamedTuple):
    """The device of a worker: its kind, where it is, free bytes, whether kernels on supports run.

    Workers with one device have the same ``place``.
    """

    kind: str
    place: str
    free: float
    can_crop: bool


def describe_device(name: str) -> Facts:
    """The device of this name; an error names the worker that has none."""
    try:
        device = torch_device(name)
    except (ImportError, RuntimeError, ValueError) as missing:
        raise ValueError(
            f"Worker {worker_address()} cannot compute on a device: {missing} If others can, start "
            "these with --resources 'GPU=1'."
        ) from missing
    import torch

    kind, place = "CPU", socket.gethostname()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        kind, place = properties.name, f"{place} {getattr(properties, 'uuid', device)}"
    return Facts(f"{kind} with torch {torch.__version__}", place, free_on(device), can_crop(device))


class DeviceCluster(Cluster):
    """The workers of a cluster that have a device.

    If some workers declare the resource "GPU", these; otherwise all.

    Parameters
    ----------
    client, patience
        As for :class:`Cluster`.
    device
        The name of the device on every worker, such as "cuda".
    """

    def __init__(self, client: Any, device: str, patience: float) -> None:
        super().__init__(client, patience)
        self.device = device
        self._facts: dict[str, Facts] = {}
        self._declared: set[str] = set()  # workers with the resource, also those lost since

    def workers(self) -> dict[str, int]:
        workers = super().workers()
        if set(workers) - self._declared:
            with suppress(OSError, KeyError):  # the scheduler has just been lost
                known = self.client.scheduler_info(n_workers=-1)["workers"]
                self._declared |= {
                    name for name, each in known.items() if each.get("resources", {}).get("GPU")
                }
        return {name: n for name, n in workers.items() if name in (self._declared or workers)}

    def submit(self, function: Any, *args: Any, worker: str | None = None) -> Any:
        """The future of a call, on this worker if given, else on any with a device."""
        if worker is None and self._declared:
            return self.client.submit(function, *args, pure=False, resources={"GPU": 1})
        return super().submit(function, *args, worker=worker)

    def facts(self) -> dict[str, Facts]:
        """The devices of all workers, as each was when it was first seen."""
        new = [name for name in self.wait_for_workers() if name not in self._facts]
        futures = {self.submit(describe_device, self.device, worker=name): name for name in new}
        for future, facts in self.collect(futures):
            if isinstance(facts, Facts):
                self._facts[futures[future]] = facts
        return self._facts

    def memory(self) -> dict[str, float]:
        """Bytes of its device that each worker may use; workers may have one in common."""
        facts = self.facts()
        places = [each.place for each in facts.values()]
        return {name: each.free / places.count(each.place) for name, each in facts.items()}

    def compare_devices(self) -> None:
        """Warn of devices of different kinds."""
        kinds = sorted({each.kind for each in self.facts().values()})
        if len(kinds) > 1:
            warn(
                f"Workers have different devices ({', '.join(kinds)}): the last bits may differ "
                "from one run to the next."
            )


class TiledTensorMap(TiledEntropicMap):
    """The strips of a :class:`TensorEntropicMap` on a device of each worker.

    Parameters
    ----------
    hist, eps, client, options
        As for :class:`TiledEntropicMap`; without a client, the device of this process is used.
    device
        The name of the device on every worker.
    strips
        Their number. Results may depend on it in the last bits, but not on the number of workers.
    """

    _kind = TensorStrips

    def __init__(
        self,
        hist: Any,
        eps: float,
        client: Any = None,
        *,
        device: str,
        strips: int = STRIPS,
        **options: Any,
    ) -> None:
        self._device = device
        super().__init__(hist, eps, client, strips=strips, dtype="float64", **options)

    @property
    def engine(self) -> str:
        """The engine of all workers."""
        name: str = self._phi.engine
        return name

    def _connect(self, client: Any, patience: float) -> Cluster:
        cluster = DeviceCluster(client, self._device, patience)
        cluster.compare_devices()
        return cluster

    def _lay_out(self) -> Any:
        """The map of all workers, here on the CPU."""
        sizes = np.diff(self._hist.rows.indptr)
        if isinstance(self._cluster, DeviceCluster):
            croppable = all(each.can_crop for each in self._cluster.facts().values())
        else:
            croppable = can_crop(torch_device(self._device))
        croppable = croppable and int(sizes.max()) <= WIDEST
        engine, _ = choose_engine("auto", croppable, sizes, self.shape[1])
        self._make = partial(self._make, device=self._device, engine=engine)
        return self._make(self._hist, device="cpu")

    def _fixed_memory(self) -> float:
        """Bytes of cost and kernel, of dense histograms and scalings, and of the data."""
        n, d = self.shape
        return 8.0 * (4.0 * d * d + 4.0 * n * d) + 40.0 * float(self._hist.rows.nnz)

    def _pack(self, cost: Matrix) -> Ground:
        """The cost, in float32 if sweeps are: fewer bytes are sent."""
        kind = "float64" if self.precision == "float64" else "float32"
        return Ground.pack(check_cost(cost, self.shape[1]), kind)
