"""The debiased Sinkhorn divergence map on torch tensors, for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from cometric.core.arrays import is_tensor, to_numpy
from cometric.core.types import Accuracy, Index, Matrix, Vector
from cometric.maps.blocks import LANES, Block, Layout, Part, Share, Task, choose_engine
from cometric.maps.checking import check_cost, check_histograms, check_index, raise_if_bad_cost
from cometric.maps.sinkhorn_map import SAFE, SELF_TOL, SelfTerms
from cometric.maps.sweeps_torch import TensorSweeps
from cometric.runtime.devices import free_on, torch_device, usable_memory

SCRATCH = 2 << 30
"""Bytes for the intermediate tensors of a block, if there is more memory than that."""

PARTS = 4
"""Number of parts that ``pairs`` are divided into by size; each is padded to its largest one."""

SELF_STEPS = 4
"""Steps of the self terms per call if not fully solved; each at least halves their error."""

BEYOND_FLOAT64 = (
    "some scalings exceeded the range of float64. The log domain, which has no such limit, runs on "
    "the CPU only: pass device='cpu', or a larger `eps`."
)


class TensorEntropicMap(TensorSweeps):
    """Sinkhorn divergences as in :class:`EntropicMap`, on the tensors of a device.

    Returns a tensor for a tensor and an array for an array; both are computed on ``device``.
    There are two engines: "cropped" (CUDA, balanced transport) reads only the entries of the kernel
    that two supports select, "dense" (any device) multiplies matrices. With "cropped", supports
    that are too large for its kernel are swept by products; if it is chosen by "auto", also those
    for which products are faster.

    Parameters
    ----------
    hist, eps, rho, sweeps, tol, max_sweeps, margin
        As for :class:`EntropicMap`.
    device
        A torch device: "cuda", "cuda:1", "cpu".
    dtype
        "float64", "float32", or "tf32": float32 with products in TF32, accurate to some 3 digits.
    engine
        "cropped" where its kernel can run, "dense", or "auto": cropped for sparse histograms.
    memory_limit
        Bytes for the stored scalings, 7/10 of the free memory by default. If they do not fit in
        the precision of the sweeps, they are stored in float32 or bfloat16. If they still do not
        fit, they are not stored, and each call starts from the scalings of every histogram to
        itself.
    rows
        Compute only the pairs whose source (the smaller histogram) is in this range, where
        histograms are sorted by size, smallest first. Other distances are 0. All by default.
    """

    _rounding: ClassVar[dict[str, float]] = {"float64": 0.0, "float32": 1e-5, "tf32": 1e-2}
    _overflowed = False  # then a lower precision than float64 is not tried again

    def __init__(
        self,
        hist: Any,
        eps: float,
        *,
        rho: float | None = None,
        device: Any = "cuda",
        sweeps: int | None = None,
        tol: float = 1e-10,
        max_sweeps: int = 10_000,
        dtype: str = "float64",
        margin: float = np.inf,
        engine: str = "auto",
        memory_limit: float | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        data = check_histograms(hist, any_mass=rho is not None)
        accuracy = Accuracy(sweeps, tol, margin, dtype)
        super().__init__(data, eps, rho, accuracy, max_sweeps)
        raise_if_small(self.eps)
        if self._largest_log > SAFE[np.dtype(np.float64)]:
            raise ValueError(
                f"the masses of `hist` differ too much for `rho` = {rho:g} without the log domain, "
                "which runs on the CPU only: pass device='cpu' or a smaller `rho`."
            )
        self.device = torch_device(device)
        sizes = np.diff(data.indptr)
        self._can_crop = can_crop(self.device, rho)
        self.engine, ratio = choose_engine(engine, self._can_crop, sizes, self.shape[1])
        self._mixed = rows is None and engine != self.engine == "cropped"
        # Up to this share of the pairs, cropping them is faster than products for all pairs
        self._croppable = min(0.25, 1.0 / ratio) if self._can_crop else 0.0
        self._layout = lay_out(sizes, self.shape[1], self.engine, scratch_on(self.device))
        self._load(data, np.argsort(sizes, kind="stable"))
        self._limit = usable_memory(self.device) if memory_limit is None else memory_limit
        self._range = (0, self.shape[0]) if rows is None else rows
        self._share = self._layout.share(*self._range)
        self._begin(None)

    def __repr__(self) -> str:
        n, d = self.shape
        return (
            f"TensorEntropicMap({n} histograms on {d} bins, {self._parameters}, "
            f"{self.engine}, {self.precision} on {self.device})"
        )

    @property
    def device_names(self) -> str:
        """The name of the device."""
        return str(self.device)

    # ---------------------------------------------------------------------------- layout

    def _load(self, rows: Any, order: Index) -> None:
        """Copy the histograms to the device in this order, as CSR arrays and as a dense matrix."""
        rows = rows[order]
        self._sizes = self._layout.sizes
        self._padded_bins = self._layout.bins
        self._rank = self._tensor(np.argsort(order, kind="stable"))
        self._indptr = self._tensor(rows.indptr.astype(np.int32))
        self._columns = self._tensor(rows.indices.astype(np.int32))
        self._weight = self._tensor(rows.data)
        self._lines = self._tensor(np.repeat(np.arange(len(order)), self._sizes))
        self._hist = self._spread(self._weight)
        self._self_scalings = (self._hist > 0).double()

    def _spread(self, entries: Any) -> Any:
        """The dense matrix with these entries on the supports of the histograms."""
        matrix = self._weight.new_zeros((self.shape[0], self._padded_bins))
        matrix[self._lines, self._columns.long()] = entries
        return matrix

    def _padded(self, block: Block) -> tuple[Any, Any]:
        """Bins and masses of the sources of a block, padded with bin 0 and mass 0."""
        import torch

        first, last, width = block
        begin, end = self._indptr[first:last, None], self._indptr[first + 1 : last + 1, None]
        place = begin + torch.arange(width, device=self.device)
        real = place < end
        place = torch.where(real, place, begin).long()
        columns, weight = self._columns[place], self._weight[place]
        return torch.where(real, columns, 0), torch.where(real, weight, 0.0)

    def _apply_precision(self) -> None:
        """Convert the histograms, and choose how to store the scalings."""
        import torch

        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        self._cropping: Any = None  # the kernel on supports
        self._last_tiles = None
        self._partners = self._hist.to(self.dtype)
        count = sum(map(np.prod, self._share.shapes(self.shape[0])))
        kinds = dict.fromkeys((self.dtype, torch.float32, torch.bfloat16))
        self._choose_storage(kinds, int(count), self._limit)
        scalings = self._share.scalings
        if self.stored is None:
            scalings.clear()
        for number, part in scalings.items():  # in turn: two copies might not fit
            scalings[number] = part.to(self.stored)

    @property
    def _is_warm(self) -> bool:
        """Whether self terms may come last, because all tiles are launched at once.

        Otherwise sweeps are launched block by block, and the device computes self terms while the
        host prepares these launches.
        """
        stored = len(self._share.scalings) == len(self._share.blocks)
        return stored and self.precision != "float32" and self._can_tile

    def _supports(self, share: Share) -> list[tuple[Any, Any]]:
        """Bins and masses of the sources of each block, in the precision of the sweeps."""
        if share.dtype != self.dtype:
            padded = map(self._padded, share.blocks)
            share.supports = [(bins, masses.to(self.dtype)) for bins, masses in padded]
            share.dtype = self.dtype
        return share.supports

    def _shrink(self, full: Exception) -> None:
        """Halve the scratch memory and discard the scalings; raise if it becomes too small."""
        import torch

        layout = replace(self._layout, scratch=self._layout.scratch / 2)
        least = max(layout.scratch_of(block.first, block.width) for block in self._share.blocks)
        if layout.scratch < least:
            raise MemoryError(
                f"{self!r} ran out of memory on {self.device}: one source needs "
                f"{least / 1e9:.2g} GB of scratch and the scalings "
                f"{self.memory_used / 1e9:.3g} GB, {free_on(self.device) / 1e9:.3g} GB are free. "
                "Pass a `memory_limit`, fewer samples, or device='cpu'."
            ) from full
        self._layout, self._share = layout, layout.share(*self._range)
        self._limit = min(self._limit, 0.9 * max(self.memory_used, 1.0))
        torch.cuda.empty_cache()
        self._apply_precision()

    # ----------------------------------------------------------------------------- calls

    def safe(self, accuracy: Accuracy) -> Accuracy:
        accuracy = super().safe(accuracy)
        return accuracy._replace(precision="float64") if self._overflowed else accuracy

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        """All distances; retries with less scratch if out of memory, in float64 if out of range."""
        import torch

        checked, accuracy = self._check(cost), self._begin(accuracy)
        while True:
            try:
                with self._guard():
                    distances = self._distances(checked, accuracy)
            except torch.OutOfMemoryError as full:
                self._shrink(full)
                continue
            if np.isfinite(self.error):
                return _like(cost, distances)
            if self.precision == "float64":
                raise FloatingPointError(BEYOND_FLOAT64)
            self._share.scalings.clear()
            self.overflow()

    def overflow(self) -> None:
        """Compute in float64 from now on."""
        self._overflowed = True
        self._begin(self.accuracy)

    def _guard(self) -> AbstractContextManager[Any]:
        """Make the device the current one, on which kernels start."""
        import torch

        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _distances(self, cost: Any, accuracy: Accuracy) -> Any:
        n = self.shape[0]
        upper = self._divergences(self._share, cost, accuracy)
        if upper.shape != (n, n):
            first, last = self._range
            part, upper = upper, self._hist.new_zeros((n, n))
            upper[first:last, first:] = part
        distances = upper + upper.T
        return distances[self._rank][:, self._rank]

    def _divergences(self, share: Share, cost: Any, accuracy: Accuracy) -> Any:
        """A matrix with the divergences of a share above the diagonal.

        Rows are the sources, columns all partners from the first source on.
        """
        first, last = share.first, share.last
        values = self._hist.new_zeros((last - first, self.shape[0] - first))
        unit, levels = self._solve(cost, self._batches(share, values), accuracy)
        if unit == 0.0:
            return values
        half = 0.5 * levels
        return values.sub_(half[first:last, None]).sub_(half[first:]).mul_(unit).triu_(1)

    def _batches(self, share: Share, values: Any) -> Iterator[list[Task]]:
        """All blocks at once, or one by one if scalings are not stored.

        When the next batch is requested, the values of the last one are copied to ``values``.
        """
        n = self.shape[0]
        parts = []
        supports = self._supports(share)
        for number, (block, source) in enumerate(zip(share.blocks, supports, strict=True)):
            scalings = share.scalings.get(number)
            if scalings is None:  # start from the scalings of the sources to themselves
                own = self._self_scalings[block.first : block.last].gather(1, source[0].long())
                own = (own * (source[1] > 0)).to(self.stored or self.dtype)
                scalings = own[:, None, :].repeat(1, n - block.first, 1)
            if self.stored is not None:
                share.scalings[number] = scalings
            parts.append(Part(block, *source, scalings, self._is_dense(block)))
            if self.stored is None or block.last == share.last:
                first = parts[0].block.first
                size = (block.last - first, n - first)
                task = Task(parts, self._hist.new_zeros(size), self._hist.new_zeros(size))
                yield [task]
                at = first - share.first
                values[at : block.last - share.first, at:] = task.values
                parts = []

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        """Divergences of pairs, in float64 from a cold start, without regard to the margin."""
        checked = self._check(cost)
        with self._guard():
            return _like(cost, self._pairs(checked, index, self._begin(accuracy)))

    def _pairs(self, checked: Any, index: Index, accuracy: Accuracy) -> Any:
        import torch

        from cometric.kernels.sinkhorn_torch import sweep

        i, j = self._rank[self._tensor(check_index(index, self.shape[0]))].T
        values = self._hist.new_zeros(len(i))
        unit = self.eps * float(checked.max())
        if unit == 0.0:
            return values
        kernel = self._kernel(checked, unit)
        own, _ = self._self_terms(kernel, None)
        limit, tol = self.max_sweeps, self._tolerance(accuracy)
        if accuracy.sweeps is not None:
            limit, tol = max(1, accuracy.sweeps), 0.0
        widths = self._sizes + -self._sizes % LANES
        bins, masses = self._padded(Block(0, self.shape[0], int(widths[-1])))
        bins = bins.long()
        start = self._self_scalings.gather(1, bins) * (masses > 0)
        largest = torch.maximum(i, j)  # histograms are in the order of their sizes
        for part in largest.argsort().split(-(-len(i) // PARTS) or 1):
            width = int(widths[int(largest[part[-1]])])
            step = max(1, int(self._layout.scratch / (8 * width * (width + 8))))
            for pairs in part.split(step):
                source, target = i[pairs], j[pairs]
                costs, _ = sweep(
                    kernel, bins[source, :width], masses[source, :width],
                    masses[target, None, :width], start[source, None, :width].contiguous(),
                    limit, tol, ratio=self.ratio, partner_bins=bins[target, :width],
                )  # fmt: skip
                values[pairs] = costs[:, 0]
        values = unit * (values - 0.5 * (own[i] + own[j]))
        values[i == j] = 0.0
        return values

    def snapshot(self) -> dict[str, Any]:
        import torch

        scalings = {  # NumPy has no bfloat16: its bits are saved as integers
            f"scalings{number}": part.view(torch.int16) if part.dtype.itemsize == 2 else part
            for number, part in self._share.scalings.items()
        }
        flags = {"precision": self.precision, "overflowed": float(self._overflowed)}
        return super().snapshot() | flags | scalings

    def restore(self, memory: dict[str, Any]) -> None:
        """Continue from a snapshot; ignores scalings stored for another division into blocks."""
        import torch

        self._overflowed = bool(memory["overflowed"])
        self._begin(self.accuracy._replace(precision=str(memory["precision"])))
        super().restore(memory | {"self": self._tensor(memory["self"])})
        self._share.scalings.clear()
        restored: dict[int, Any] = {}
        for number, shape in enumerate(self._share.shapes(self.shape[0])):
            part = memory.get(f"scalings{number}")
            if part is None or part.shape != shape or self.stored is None:
                return
            part = self._tensor(part)
            part = part.view(torch.bfloat16) if part.dtype == torch.int16 else part
            restored[number] = part.to(self.stored)
        self._share.scalings = restored

    # --------------------------------------------------------------------------- kernels

    def _kernel(self, cost: Any, unit: float) -> Any:
        d, padded = self.shape[1], self._padded_bins
        kernel = self._hist.new_ones((padded, padded))  # ones for the padding bins
        kernel[:d, :d] = (cost / -unit).exp()
        return kernel

    def _self_terms(self, kernel: Any, sweeps: int | None) -> SelfTerms:
        from cometric.kernels.sinkhorn_torch import self_terms

        limit, tol = (self.max_sweeps, SELF_TOL) if sweeps is None else (SELF_STEPS, 0.0)
        values, errors = self_terms(self._hist, kernel, self._self_scalings, limit, tol, self.ratio)
        return values, errors

    # --------------------------------------------------------------------------- tensors

    def _tensor(self, array: Any) -> Any:
        import torch

        return torch.as_tensor(array, device=self.device)

    def _check(self, cost: Any) -> Any:
        """The cost as a valid float64 tensor on the device."""
        if not is_tensor(cost):
            return self._tensor(check_cost(cost, self.shape[1]))
        cost = cost.to(self._hist)  # its device, its dtype
        raise_if_bad_cost(cost, self.shape[1])
        return cost


def _like(cost: Any, result: Any) -> Matrix:
    """The result as a tensor if the cost is one, else as an array."""
    matrix: Matrix = result if is_tensor(cost) else to_numpy(result)
    return matrix


def raise_if_small(eps: float) -> None:
    """Raise if ``eps`` needs the log domain, which tensors do not have."""
    if 1.0 / eps > SAFE[np.dtype(np.float64)]:
        raise ValueError(
            f"`eps` is {eps:g}; below 1/150 the log domain is needed, which runs on the CPU "
            "only: pass device='cpu' or a larger `eps`."
        )


def scratch_on(device: Any) -> float:
    """Bytes for the intermediate tensors of a block on a device."""
    return min(float(SCRATCH), max(0.1 * free_on(device), 1e6))


def lay_out(sizes: Index, d: int, engine: str, scratch: float) -> Layout:
    """The division into blocks of histograms on ``d`` bins, with supports of these sizes."""
    return Layout(np.sort(sizes), d + -d % LANES, engine, scratch)


def can_crop(device: Any, rho: float | None) -> bool:
    """Whether the kernel on supports can run on a device: for balanced transport only."""
    from cometric.kernels import sinkhorn_cuda

    return rho is None and bool(sinkhorn_cuda.can_run(device))
