"""The entropic map on several devices of one machine, with the pairs divided among them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cometric.core.arrays import is_tensor
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.maps.blocks import choose_engine
from cometric.maps.checking import check_histograms
from cometric.maps.entropic_torch import TensorEntropicMap, can_crop, lay_out, scratch_on
from cometric.runtime.devices import torch_device, usable_memory


class DevicesMap(DistanceMap):
    """The distances of a :class:`TensorEntropicMap`, computed on several devices.

    Pairs are divided into shares of about equal modeled time, one per device, where their
    scalings stay. Costs are sent to all devices, distances come back. Each device has a thread;
    the first uses the thread of the caller. Tensors are returned on the first device, and only it
    reports progress.

    Parameters
    ----------
    hist, eps, rho
        As for :class:`TensorEntropicMap`.
    devices
        Names of torch devices. A name may repeat, for tests on a machine with one device.
    memory_limit
        Bytes for the stored scalings on all devices together.
    options
        Further options of :class:`TensorEntropicMap`.
    """

    accuracy: Accuracy

    def __init__(
        self,
        hist: Any,
        eps: float,
        *,
        devices: Sequence[Any],
        rho: float | None = None,
        memory_limit: float | None = None,
        **options: Any,
    ) -> None:
        rows = check_histograms(hist, any_mass=rho is not None)
        places = [torch_device(name) for name in devices]
        limit = usable_memory(devices) if memory_limit is None else memory_limit
        sizes, d = np.diff(rows.indptr), rows.shape[1]
        croppable = all(can_crop(place, rho) for place in places)
        engine, _ = choose_engine(options.get("engine", "auto"), croppable, sizes, d)
        cuts = lay_out(sizes, d, engine, scratch_on(places[0])).shares(len(places)).tolist()
        share: dict[str, Any] = {"rho": rho, "memory_limit": limit / len(places), **options}
        self.maps = [
            TensorEntropicMap(rows, eps, device=device, rows=pair, **share)
            for device, pair in zip(places, itertools.pairwise(cuts), strict=False)
        ]
        self.shape, self.device = self.maps[0].shape, self.maps[0].device
        self.accuracy = self.maps[0].accuracy

    def __repr__(self) -> str:
        n, d = self.shape
        return f"DevicesMap({n} histograms on {d} bins, on {self.device_names})"

    @property
    def device_names(self) -> str:
        """The names of the devices."""
        return " and ".join(phi.device_names for phi in self.maps)

    @property
    def engine(self) -> str:
        """The engines of the devices, usually one."""
        return " and ".join(dict.fromkeys(phi.engine for phi in self.maps))

    @property
    def memory_used(self) -> float:  # type: ignore[override]
        """Bytes of the stored scalings on all devices."""
        return float(sum(phi.memory_used for phi in self.maps))

    @property
    def error(self) -> float:  # type: ignore[override]
        """The largest marginal error of the last call."""
        return max(phi.error for phi in self.maps)

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        """All distances: the sum over devices, each of which returns 0 outside its share."""
        from cometric.kernels.sinkhorn_torch import fast_products

        first, *others = self.maps
        accuracy = first.safe(accuracy or self.accuracy)
        first.on_progress = self.on_progress
        # Set once for all threads: otherwise each would restore the setting of another
        products = fast_products(accuracy.precision == "tf32")
        with products, ThreadPoolExecutor(len(self.maps)) as pool:
            started = [pool.submit(phi, cost, accuracy) for phi in others]
            distances: Any = first(cost, accuracy)
            for future in started:
                part: Any = future.result()
                distances += part.to(self.device) if is_tensor(part) else part
        if len({phi.precision for phi in self.maps}) > 1:  # one exceeded the range of float32
            for phi in self.maps:
                phi.overflow()
        matrix: Matrix = distances
        return matrix

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        """Divergences of pairs, on the first device."""
        return self.maps[0].pairs(cost, index, accuracy)

    def snapshot(self) -> dict[str, Any]:
        """The memory of all devices; the scalings of self terms, equal on all, are stored once."""
        memory = {
            f"{number}.{name}": value
            for number, phi in enumerate(self.maps)
            for name, value in phi.snapshot().items()
        }
        for number in range(1, len(self.maps)):
            del memory[f"{number}.self"]
        return memory

    def restore(self, memory: dict[str, Any]) -> None:
        """Continue from a snapshot of a map of the same devices."""
        for number, phi in enumerate(self.maps):
            prefix = f"{number}."
            part = {
                name.removeprefix(prefix): value
                for name, value in memory.items()
                if name.startswith(prefix)
            }
            phi.restore({"self": memory["0.self"], **part})
