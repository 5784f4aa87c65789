"""Sinkhorn sweeps of blocks on tensors, either on supports or by matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cometric.core.types import Accuracy, Index
from cometric.maps.blocks import Block, Layout, Part, Task, prefers_products
from cometric.maps.sinkhorn_map import SinkhornMap

ROUND = 20
"""In maps that mix both engines, sweeps by products between two removals of solved sources."""

FEW = 0.05
"""Up to this share of unsolved pairs, a tile is swept on supports."""

NEGATIVE_SWEEPS = (3, 10, 100)
"""Further sweeps of pairs with a negative divergence, before they are solved."""


class TensorSweeps(SinkhornMap):
    """The sweeps of :class:`TensorEntropicMap`, which adds the layout and stored scalings."""

    device: Any
    engine: str
    _layout: Layout
    _range: tuple[int, int]  # of the sources
    _sizes: Index
    _padded_bins: int
    _indptr: Any
    _columns: Any
    _weight: Any
    _partners: Any  # dense histograms in the precision of the sweeps, for products
    _cropping: Any  # the kernel on supports
    _can_crop: bool  # whether it can run
    _mixed: bool  # whether the engine is chosen for each block
    _last_tiles: Any = None  # the tiles of the last task
    _croppable: float  # up to this share of pairs, that kernel is faster than products

    def _sweep(self, tasks: list[Task], kernel: Any, limit: int, tol: float, solve: bool) -> None:
        for task in tasks:
            if self._is_tiled(task):
                self._sweep_tiles(task, kernel, max(1, limit), tol)
                self._report_until(task.last)
                continue
            jobs = [self._job(task, part) for part in task.parts if not part.dense]
            self._crop(jobs, kernel, max(1, limit), tol)
            for part in task.parts:
                if part.dense:
                    self._multiply(task, part, kernel, max(1, limit), tol)
                    self._report_until(part.block.last)
            self._report_until(task.last)

    def _report_until(self, last: int) -> None:
        first, end = self._range
        self.report(last - first, end - first)

    def _resume(self, tasks: list[Task], kernel: Any, limit: int, tol: float) -> None:
        for task in tasks:
            if self._is_tiled(task):
                self._resume_tiles(task, kernel, limit, tol)
                continue
            share = 1.0 if self._mixed else self._croppable
            self._sweep_some(task, task.errors > tol, kernel, limit, tol, share)

    def _sweep_some(
        self, task: Task, mask: Any, kernel: Any, limit: int, tol: float, share: float = 1.0
    ) -> None:
        """Sweep the pairs of a mask, whose errors exceed ``tol``, on supports if these are narrow.

        If it has more than a ``share`` of the pairs of a dense block, by products.
        """
        jobs = []
        for part, rows, count in task.select(mask):
            many = part.dense and count > share * task.of(part, mask).numel()
            if many or not self._is_narrow(part.block):
                self._multiply(task, part, kernel, limit, tol, rows)
            else:
                jobs.append(self._job(task, part, rows))
        self._crop(jobs, kernel, limit, tol)

    def _is_narrow(self, block: Block) -> bool:
        """Whether the kernel on supports can sweep a block."""
        if not self._can_crop:
            return False
        from cometric.kernels import sinkhorn_cuda

        return sinkhorn_cuda.choose(block.width, self.dtype.itemsize) is not None

    def _is_dense(self, block: Block) -> bool:
        """Whether a block is swept by products."""
        if self.engine == "dense" or not self._is_narrow(block):
            return True
        itemsize = self.dtype.itemsize
        return self._mixed and prefers_products(block, self._sizes, self.shape[1], itemsize)

    # ----------------------------------------------------------------------------- tiles

    @property
    def _can_tile(self) -> bool:
        """Whether products may sweep all blocks at once, in CUDA."""
        if not self._can_crop or self.engine != "dense":
            return False
        from cometric.kernels import products_cuda

        return products_cuda.can_run(self.device)

    def _is_tiled(self, task: Task) -> bool:
        """Whether all blocks of a task are swept at once."""
        stored = task.parts[0].scalings.dtype
        return self.precision != "float32" and stored == self.dtype and self._can_tile

    def _tiles(self, task: Task) -> Any:
        """The tiles of a task; reuses those of the last task if it has the same memory."""
        from cometric.kernels.products_cuda import Products, Sources

        blocks = [Sources(part.block.first, *part[1:4]) for part in task.parts]
        if self._last_tiles is None or self._last_tiles.keys != [block.key for block in blocks]:
            layout = self._layout
            self._last_tiles = Products(blocks, self._partners, layout.widths, layout.scratch)
        return self._last_tiles

    def _sweep_tiles(self, task: Task, kernel: Any, limit: int, tol: float) -> None:
        """Sweep all pairs ``limit`` times, or until errors are at most ``tol`` > 0."""
        for _ in range(limit if tol == 0.0 else 1):
            self._tiles(task).sweep(kernel, task.values, task.errors)
        if tol > 0.0:
            self._resume_tiles(task, kernel, limit - 1, tol)

    def _resume_tiles(self, task: Task, kernel: Any, limit: int, tol: float) -> None:
        """Sweep tiles while many of their pairs are unsolved, then the other pairs on supports."""
        tiles, which = self._tiles(task), None
        for _ in range(limit):
            which = tiles.late(task.errors, tol, FEW, which)
            if not len(which):
                break
            tiles.sweep(kernel, task.values, task.errors, which)
        self._sweep_some(task, task.errors > tol, kernel, limit, tol)

    # -------------------------------------------------------------------------- negative

    def _negative_rounds(self, accuracy: Accuracy) -> Sequence[tuple[int, float]]:
        if accuracy.sweeps is None:
            return ()
        tol = self._tolerance(accuracy)
        return [(limit, tol) for limit in (*NEGATIVE_SWEEPS, self.max_sweeps)]

    def _is_negative(self, task: Task, levels: Any) -> Any:
        half = 0.5 * levels
        return (task.values < half[task.first : task.last, None] + half[task.first :]).triu_(1)

    def _sweep_negative(self, task: Task, mask: Any, kernel: Any, limit: int, tol: float) -> None:
        errors, task.errors = task.errors, mask.to(task.errors.dtype)  # 1 exceeds ``tol``
        self._sweep_some(task, mask, kernel, limit, tol)
        task.errors = errors

    def _multiply(
        self, task: Task, part: Part, kernel: Any, limit: int, tol: float, rows: Any = None
    ) -> None:
        """Sweep a block by products, unsolved pairs on supports if only few remain.

        A wide block, or any in a map that mixes both engines, is swept by products only, source by
        source: only those with ``rows`` > 0, if given.
        """
        if self._mixed or (self._can_crop and not self._is_narrow(part.block)):
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
        """Sweep the pairs of some sources by products, as many at a time as fit into the scratch.

        Every ``ROUND`` sweeps, sources with all pairs solved are removed.
        """
        import torch

        values, errors = task.of(part, task.values), task.of(part, task.errors)
        count, partners = errors.shape
        width = part.block.width
        bytes_each = self._padded_bins * width + partners * (self._padded_bins + 4 * width)
        at_once = max(1, int(self._layout.scratch / (bytes_each * kernel.element_size())))
        column = torch.arange(partners, device=self.device)
        number = column[:count] if rows is None else rows[:count].nonzero()[:, 0]
        while limit > 0 and len(number):
            for some in number.split(at_once):
                whole = len(some) == count
                chosen = part if whole else part.at(some)
                swept = self._products(kernel, chosen, min(limit, ROUND), tol, 0.0)
                if whole:
                    values.copy_(swept[0])
                    errors.copy_(swept[1].triu_(1))
                    continue
                part.scalings[some], values[some] = chosen.scalings, swept[0]
                errors[some] = torch.where(column > some[:, None], swept[1], 0.0)
            limit -= ROUND
            if limit > 0:
                number = number[(errors[number] > tol).any(1)]

    def _products(
        self, kernel: Any, part: Part, limit: int, tol: float, few: float
    ) -> tuple[Any, Any]:
        """Values and errors of the pairs of a part after sweeps by products."""
        from cometric.kernels.sinkhorn_torch import fast_products, sweep

        with fast_products(self.precision == "tf32"):
            values, errors = sweep(
                kernel, part.bins, part.masses, self._partners[part.block.first :], part.scalings,
                limit, tol, few, self.ratio,
            )  # fmt: skip
        return values, errors

    def _job(self, task: Task, part: Part, wanted: Any = None) -> Any:
        """A block for the kernel on supports; ``wanted`` counts the pairs to resume per row."""
        from cometric.kernels.sinkhorn_cuda import Job

        results = task.of(part, task.values), task.of(part, task.errors)
        return Job(part.block.first, *part[1:4], *results, wanted)

    def _crop(self, jobs: list[Any], kernel: Any, limit: int, tol: float) -> None:
        """Sweep on supports; jobs with ``wanted`` sweep only pairs whose error exceeds ``tol``."""
        if not jobs:
            return
        from cometric.kernels.sinkhorn_cuda import SupportSweeps

        if self._cropping is None:
            weight = self._weight.to(self.dtype)
            self._cropping = SupportSweeps(self._indptr, self._columns, weight)
        self._cropping(kernel, jobs, limit, tol)
