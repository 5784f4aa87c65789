"""The debiased Sinkhorn divergence map on torch tensors, for GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from cometric.core.arrays import is_tensor, to_numpy
from cometric.core.types import Index, Matrix, Vector
from cometric.machine.devices import free_on, torch_device, usable_memory
from cometric.maps.blocks import Block, Part, Task, pair_ratio, prefers_products
from cometric.maps.checks import check_cost, check_histograms, check_index, raise_if_bad_cost
from cometric.maps.sinkhorn import SAFE, SELF_TOL, SelfTerms, SinkhornMap

LANES = 16
"""Sizes of tensors are padded to multiples of this: 3.3 times faster products, wide loads."""

SCRATCH = 2 << 30
"""Bytes for the intermediate tensors of a block, if there is more memory than that."""

WIDEST = 16384
"""The largest support that the cropped kernel can handle."""

SELF_STEPS = 4
"""Steps of the self terms per call unless they are solved; each at least halves their error."""

ROUND = 20
"""Sweeps by products after which solved sources are left out, in maps that mix both engines."""

NEGATIVE_SWEEPS = (3, 10, 100)
"""Further sweeps of pairs with a negative divergence, before they are solved."""


class TensorEntropicMap(SinkhornMap):
    """Sinkhorn divergences as in :class:`EntropicMap`, on the tensors of a device.

    Returns a tensor for a tensor and an array for an array; both are computed on ``device``.
    There are two engines: "cropped" (CUDA) reads only the entries of the kernel that two
    supports select, "dense" (any device) multiplies matrices. If "cropped" is chosen by "auto",
    blocks of large supports are still swept by products where that is faster.

    Parameters
    ----------
    hist, eps, rho, sweeps, tol, max_sweeps, margin
        As for :class:`EntropicMap`.
    device
        A torch device: "cuda", "cuda:1", "cpu".
    dtype
        "float64", "float32", or "tf32": float32 with products in TF32, accurate to some 3 digits.
        ``precision`` changes it between calls.
    engine
        "cropped", "dense", or "auto": cropped for sparse histograms where Triton can run.
    memory_limit
        Bytes for the stored scalings, 7/10 of the free memory by default. If they do not fit in
        the precision of the sweeps, they are stored in float32, then in bfloat16; if not even so,
        they are not stored, and each call starts from the scalings of every histogram to itself.
    """

    _rounding: ClassVar[dict[str, float]] = {"float64": 0.0, "float32": 1e-5, "tf32": 1e-2}

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
    ) -> None:
        rows = check_histograms(hist, any_mass=rho is not None)
        super().__init__(rows, eps, rho, sweeps, tol, max_sweeps, margin)
        safe = SAFE[np.dtype(np.float64)]
        if 1.0 / self.eps > safe:
            raise ValueError(
                f"`eps` is {eps:g}; below 1/150 the log domain is needed, which runs on the CPU "
                "only: pass device='cpu' or a larger `eps`."
            )
        if self._largest_log > safe:
            raise ValueError(
                f"the masses of `hist` differ too much for `rho` = {rho:g} without the log domain, "
                "which runs on the CPU only: pass device='cpu' or a smaller `rho`."
            )
        self.device = torch_device(device)
        sizes = np.diff(rows.indptr)
        has_triton = self.device.type == "cuda" and find_spec("triton") is not None
        self._triton = has_triton and int(sizes.max()) <= WIDEST
        self.engine, ratio = _choose(engine, self._triton, sizes, self.shape[1])
        self._mixed = engine == "auto" and self.engine == "cropped"
        # The share of the pairs up to which cropping them is faster than products for all
        self._croppable = min(0.25, 1.0 / ratio) if self._triton else 0.0
        self._load(rows, np.argsort(sizes, kind="stable"))
        self._limit = usable_memory(self.device) if memory_limit is None else memory_limit
        self._scratch = min(float(SCRATCH), max(0.1 * free_on(self.device), 1e6))
        self._scalings: dict[int, Any] = {}  # stored, by block
        self._blocks = list(self._cut())
        self.precision = dtype

    def __repr__(self) -> str:
        n, d = self.shape
        return (
            f"TensorEntropicMap({n} histograms on {d} bins, {self._parameters}, "
            f"{self.engine}, {self.precision} on {self.device})"
        )

    # ---------------------------------------------------------------------------- layout

    def _load(self, rows: Any, order: Index) -> None:
        """Copy the histograms to the device in this order, as CSR arrays and as a dense matrix."""
        n, d = self.shape
        rows = rows[order]
        self._sizes = np.diff(rows.indptr)
        self._padded_bins = d + -d % LANES
        self._rank = self._tensor(np.argsort(order, kind="stable"))
        self._indptr = self._tensor(rows.indptr.astype(np.int32))
        self._columns = self._tensor(rows.indices.astype(np.int32))
        self._weight = self._tensor(rows.data)
        self._hist = self._weight.new_zeros((n, self._padded_bins))
        lines = self._tensor(np.repeat(np.arange(n), self._sizes))
        self._hist[lines, self._columns.long()] = self._weight
        self._self_scalings = (self._hist > 0).double()

    def _cut(self) -> Iterator[Block]:
        """Blocks of sources of similar size, as large as the scratch allows in any precision."""
        n = self.shape[0]
        widths = self._sizes + -self._sizes % LANES
        exponents = np.frexp(widths - 1.0)[1]  # Triton rounds widths up to powers of two
        most = n if self.engine == "cropped" else max(16, n // 3)  # half its square is wasted
        first, last = 0, 1
        while last <= n:
            fits = last < n and (
                exponents[last] == exponents[first]
                and (last - first < 64 or widths[last] <= 1.25 * widths[first])
                and (last + 1 - first) * self._scratch_of(first, widths[last]) <= self._scratch
                and last - first < most
            )
            if not fits:
                yield Block(first, last, int(widths[last - 1]))
                first = last
            last += 1

    def _scratch_of(self, first: int, width: int) -> float:
        """Bytes of intermediate tensors that one source of a block needs."""
        partners = self.shape[0] - first
        numbers = partners * (self._padded_bins + 4.0 * width)
        if self.engine == "cropped":
            numbers = float(self._sizes[first:].sum()) + 4.0 * partners
        return 8.0 * (self._padded_bins * float(width) + float(numbers))

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
        self._cropping: Any = None  # the kernels on supports
        supports = map(self._padded, self._blocks)
        self._sources = [(bins, masses.to(self.dtype)) for bins, masses in supports]
        n, d = self.shape
        self._dense = [self.engine == "dense"] * len(self._blocks)  # which are swept by products
        if self._mixed:
            size = self.dtype.itemsize
            self._dense = [prefers_products(each, self._sizes, d, size) for each in self._blocks]
        self._partners = self._hist.to(self.dtype) if self._mixed or any(self._dense) else None
        count = sum((last - first) * (n - first) * width for first, last, width in self._blocks)
        kinds = dict.fromkeys((self.dtype, torch.float32, torch.bfloat16))
        self._choose_storage(kinds, count, self._limit)
        if self.stored is None:
            self._scalings.clear()
        for number, scalings in self._scalings.items():  # in turn: two copies might not fit
            self._scalings[number] = scalings.to(self.stored)

    def _shrink(self, full: Exception) -> None:
        """Halve the scratch and discard the stored scalings; raise if the scratch is too small."""
        import torch

        self._scratch /= 2
        least = max(self._scratch_of(block.first, block.width) for block in self._blocks)
        if self._scratch < least:
            raise MemoryError(
                f"{self!r} ran out of memory on {self.device}: one source needs "
                f"{least / 1e9:.2g} GB of scratch and the scalings {self.memory / 1e9:.3g} GB, "
                f"{free_on(self.device) / 1e9:.3g} GB are free. Pass a `memory_limit`, fewer "
                "samples, or device='cpu'."
            ) from full
        self._scalings.clear()
        self._limit = min(self._limit, 0.9 * max(self.memory, 1.0))
        torch.cuda.empty_cache()
        self._blocks = list(self._cut())
        self._apply_precision()

    # ----------------------------------------------------------------------------- calls

    def __call__(self, cost: Matrix) -> Matrix:
        """All distances; again with less scratch, or in float64, if memory or range run out."""
        import torch

        checked = self._check(cost)
        while True:
            try:
                distances = self._distances(checked)
            except torch.OutOfMemoryError as full:
                self._shrink(full)
                continue
            if np.isfinite(self.error):
                return _like(cost, distances)
            if self.precision == "float64":
                raise FloatingPointError(
                    "some scalings exceeded the range of float64. The log domain, which has no "
                    "such limit, runs on the CPU only: pass device='cpu', or a larger `eps`."
                )
            self._scalings.clear()
            self.precision = "float64"

    def _distances(self, cost: Any) -> Any:
        distances = self._hist.new_zeros((self.shape[0],) * 2)
        unit, own = self._solve(cost, self._batches(distances))
        if unit == 0.0:
            return distances
        distances.sub_(0.5 * own[:, None]).sub_(0.5 * own).mul_(unit).triu_(1)
        distances = distances + distances.T
        return distances[self._rank][:, self._rank]

    def _batches(self, distances: Any) -> Iterator[list[Task]]:
        """All blocks at once, or one by one if scalings are not stored.

        When the next batch is requested, the values of the last one go into ``distances``.
        """
        n = self.shape[0]
        parts = []
        for number, (block, source) in enumerate(zip(self._blocks, self._sources, strict=True)):
            scalings = self._scalings.get(number)
            if scalings is None:  # start from those of the sources to themselves
                own = self._self_scalings[block.first : block.last].gather(1, source[0].long())
                own = (own * (source[1] > 0)).to(self.stored or self.dtype)
                scalings = own[:, None, :].repeat(1, n - block.first, 1)
            if self.stored is not None:
                self._scalings[number] = scalings
            parts.append(Part(block, *source, scalings, self._dense[number]))
            if self.stored is None or block.last == n:
                first = parts[0].block.first
                size = (block.last - first, n - first)
                task = Task(parts, self._hist.new_zeros(size), self._hist.new_zeros(size))
                yield [task]
                distances[first : block.last, first:] = task.values
                parts = []

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        """Divergences of pairs, in float64 from a cold start, whatever the margin."""
        from cometric.kernels.sinkhorn_torch import sweep

        checked = self._check(cost)
        i, j = self._rank[self._tensor(check_index(index, self.shape[0]))].T
        values = self._hist.new_zeros(len(i))
        unit = self.eps * float(checked.max())
        if unit == 0.0:
            return _like(cost, values)
        kernel = self._kernel(checked, unit)
        own, _ = self._self_terms(kernel, solve=True)
        limit, tol = self.max_sweeps, self._tolerance
        if self.sweeps is not None:
            limit, tol = max(1, self.sweeps), 0.0
        width = int(self._sizes[-1] + -self._sizes[-1] % LANES)
        bins, masses = self._padded(Block(0, self.shape[0], width))
        start = self._self_scalings.gather(1, bins.long()) * (masses > 0)
        step = max(1, int(self._scratch / (8 * self._padded_bins * (width + 4))))
        for at in range(0, len(i), step):
            some, other = i[at : at + step], j[at : at + step]
            scalings = start[some][:, None, :].contiguous()
            partner = self._hist[other][:, None, :]
            part, _ = sweep(
                kernel, bins[some], masses[some], partner, scalings, limit, tol, ratio=self.ratio
            )
            values[at : at + step] = part[:, 0]
        values = unit * (values - 0.5 * (own[i] + own[j]))
        values[i == j] = 0.0
        return _like(cost, values)

    def snapshot(self) -> dict[str, Any]:
        import torch

        scalings = {  # NumPy has no bfloat16: its bits are saved as integers
            f"scalings{number}": part.view(torch.int16) if part.dtype.itemsize == 2 else part
            for number, part in self._scalings.items()
        }
        return super().snapshot() | {"precision": self.precision} | scalings

    def restore(self, memory: dict[str, Any]) -> None:
        """Continue from a snapshot; scalings of another division into blocks are left out."""
        import torch

        self.precision = str(memory["precision"])
        super().restore(memory | {"self": self._tensor(memory["self"])})
        self._scalings.clear()
        restored: dict[int, Any] = {}
        for number, (first, last, width) in enumerate(self._blocks):
            part = memory.get(f"scalings{number}")
            fits = part is not None and part.shape == (last - first, self.shape[0] - first, width)
            if not fits or self.stored is None:
                return
            part = self._tensor(part)
            part = part.view(torch.bfloat16) if part.dtype == torch.int16 else part
            restored[number] = part.to(self.stored)
        self._scalings = restored

    # --------------------------------------------------------------------------- kernels

    def _kernel(self, cost: Any, unit: float) -> Any:
        d, padded = self.shape[1], self._padded_bins
        kernel = self._hist.new_ones((padded, padded))  # ones for the bins that pad it
        kernel[:d, :d] = (cost / -unit).exp()
        return kernel

    def _self_terms(self, kernel: Any, solve: bool) -> SelfTerms:
        from cometric.kernels.sinkhorn_torch import self_terms

        limit, tol = (self.max_sweeps, SELF_TOL) if solve else (SELF_STEPS, 0.0)
        values, errors = self_terms(self._hist, kernel, self._self_scalings, limit, tol, self.ratio)
        return values, errors

    def _sweep(self, tasks: list[Task], kernel: Any, limit: int, tol: float) -> None:
        for task in tasks:
            jobs = [self._job(task, part) for part in task.parts if not part.dense]
            self._crop(jobs, kernel, max(1, limit), tol)
            for part in task.parts:
                if part.dense:
                    self._multiply(task, part, kernel, max(1, limit), tol)
                    self._report(part.block.last, self.shape[0])
            self._report(task.last, self.shape[0])

    def _resume(self, tasks: list[Task], kernel: Any, limit: int, tol: float) -> None:
        for task in tasks:
            jobs = []
            for part, rows, count in task.select(task.errors > tol):
                few = count <= self._croppable * task.of(part, task.errors).numel()
                if self._is_wide(part) if self._mixed else part.dense and not few:
                    self._multiply(task, part, kernel, limit, tol, rows)
                else:
                    jobs.append(self._job(task, part, rows))
            self._crop(jobs, kernel, limit, tol)

    def _is_wide(self, part: Part) -> bool:
        """Whether even a few pairs are better swept by products: one program would sweep each."""
        from cometric.kernels import sinkhorn_cuda

        if math.isinf(self.ratio) and sinkhorn_cuda.can_run(self.device):
            return sinkhorn_cuda.choose(part.block.width, self.dtype.itemsize) is None
        return part.dense

    def _negative_rounds(self) -> Sequence[tuple[int, float]]:
        if self.sweeps is None:
            return ()
        return [(limit, self._tolerance) for limit in (*NEGATIVE_SWEEPS, self.max_sweeps)]

    def _is_negative(self, task: Task, levels: Any) -> Any:
        half = 0.5 * levels
        return (task.values < half[task.first : task.last, None] + half[task.first :]).triu_(1)

    def _sweep_negative(self, task: Task, mask: Any, kernel: Any, limit: int, tol: float) -> None:
        jobs = []
        errors, task.errors = task.errors, mask.to(task.errors.dtype)  # 1 exceeds ``tol``
        for part, rows, _ in task.select(mask):
            if self._is_wide(part) if self._mixed else not self._triton:
                self._multiply(task, part, kernel, limit, tol, rows)
            else:
                jobs.append(self._job(task, part, rows))
        self._crop(jobs, kernel, limit, tol)
        task.errors = errors

    def _multiply(
        self, task: Task, part: Part, kernel: Any, limit: int, tol: float, rows: Any = None
    ) -> None:
        """Sweep a block by products; in a mixed map only sources with ``rows`` > 0, if given."""
        if self._mixed:
            self._multiply_sources(task, part, kernel, limit, tol, rows)
            return
        values, errors = self._products(kernel, part, limit, tol, self._croppable)
        errors.triu_(1)  # pairs below the diagonal do not count
        task.of(part, task.values).copy_(values)
        task.of(part, task.errors).copy_(errors)
        if self._croppable and limit > 1:
            rows = (errors > tol).sum(1)
            if rows.any():
                self._crop([self._job(task, part, rows)], kernel, limit, tol)

    def _multiply_sources(
        self, task: Task, part: Part, kernel: Any, limit: int, tol: float, rows: Any
    ) -> None:
        """Sweep the pairs of some sources by products, some sources at a time.

        Every ``ROUND`` sweeps, those whose pairs are all solved are left out.
        """
        import torch

        values, errors = task.of(part, task.values), task.of(part, task.errors)
        count, partners = errors.shape
        width = part.block.width
        bytes_each = self._padded_bins * width + partners * (self._padded_bins + 4 * width)
        at_once = max(1, int(self._scratch / (bytes_each * kernel.element_size())))
        column = torch.arange(partners, device=self.device)
        number = column[:count] if rows is None else rows[:count].nonzero()[:, 0]
        while limit > 0 and len(number):
            for some in number.split(at_once):
                whole = len(some) == count
                chosen = part if whole else part.at(some)
                found, wrong = self._products(kernel, chosen, min(limit, ROUND), tol, 0.0)
                if whole:
                    values.copy_(found)
                    errors.copy_(wrong.triu_(1))
                    continue
                part.scalings[some], values[some] = chosen.scalings, found
                errors[some] = torch.where(column > some[:, None], wrong, 0.0)
            limit -= ROUND
            if limit > 0:
                number = number[(errors[number] > tol).any(1)]

    def _products(
        self, kernel: Any, part: Part, limit: int, tol: float, few: float
    ) -> tuple[Any, Any]:
        """Values and errors of the pairs of a part after sweeps by products."""
        from cometric.kernels import sinkhorn_torch

        fused: Any = sinkhorn_torch
        if self._triton:
            from cometric.kernels import sinkhorn_triton

            fused = sinkhorn_triton
        with sinkhorn_torch.fast_products(self.precision == "tf32"):
            values, errors = sinkhorn_torch.sweep(
                kernel, part.bins, part.masses, self._partners[part.block.first :], part.scalings,
                limit, tol, fused.divide, fused.update, few, self.ratio,
            )  # fmt: skip
        return values, errors

    def _job(self, task: Task, part: Part, wanted: Any = None) -> Any:
        """A block for the kernels on supports, with the numbers of pairs to resume in each row."""
        from cometric.kernels.cropping import Job

        results = task.of(part, task.values), task.of(part, task.errors)
        return Job(part.block.first, *part[1:4], *results, wanted)

    def _crop(self, jobs: list[Any], kernel: Any, limit: int, tol: float) -> None:
        """Sweep on the supports only; where jobs say so, only pairs whose error exceeds ``tol``."""
        if not jobs:
            return
        from cometric.kernels.cropping import Cropping

        if self._cropping is None:
            weight = self._weight.to(self.dtype)
            self._cropping = Cropping(self._indptr, self._columns, weight, self._sizes, self.ratio)
        self._cropping(kernel, jobs, limit, tol)

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


def _choose(engine: str, can_crop: bool, sizes: Any, d: int) -> tuple[str, float]:
    """The chosen or the faster engine, and the estimated ratio of times, cropped to dense."""
    if engine not in ("auto", "cropped", "dense"):
        raise ValueError(f"`engine` is {engine!r}; choose 'auto', 'cropped' or 'dense'.")
    ratio = pair_ratio(float(sizes.mean()), d)
    if engine == "auto":
        engine = "cropped" if can_crop and ratio < 1.0 else "dense"
    return engine, ratio
