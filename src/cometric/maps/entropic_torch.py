"""The debiased Sinkhorn divergence map on tensors: the GPU's twin of ``EntropicMap``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from cometric.core.arrays import is_tensor, to_numpy
from cometric.core.types import Index, Matrix, Vector
from cometric.machine.devices import free_on, torch_device, usable_memory
from cometric.maps.checks import (
    check_cost,
    check_eps,
    check_histograms,
    check_index,
    fill,
    refuse_bad_cost,
)
from cometric.maps.entropic import MORE_SWEEPS, SAFE, Negatives

LANES = 16
"""Sizes of tensors are padded to multiples of this: 3.3 times faster products, wide loads."""

SCRATCH = 2 << 30
"""Bytes for the intermediate tensors of a block, if there is more memory than that."""

WIDEST = 16384
"""Bins that the cropped kernel can take."""

SELF_STEPS = 4
"""Steps of the self terms per call on the way; each halves their error at least."""

CROPPED, PRODUCTS, TRAFFIC = 0.35e12, 25e12, 2.5e12
"""Entries of the kernel, operations, bytes per second in float64 on an H200: see ``_choose``."""

CLOSER = (10, 100)
"""Further sweeps of a pair at a negative distance, before it is solved."""

ATTAINABLE = {"float64": 0.0, "float32": 1e-5, "tf32": 1e-2}
"""Marginal errors that rounding lets a pair reach."""


class Block(NamedTuple):
    """Sources ``first`` to ``last``, in order of size, and the bins they are padded to."""

    first: int
    last: int
    width: int


@dataclass
class _Task:
    """A block of sources ``first`` to ``last``, and what is found of its pairs with partners."""

    first: int
    last: int
    bins: Any
    masses: Any
    scalings: Any
    values: Any = None
    errors: Any = None


class TensorEntropicMap:
    """Sinkhorn divergences as :class:`EntropicMap` computes them, on the tensors of a device.

    Given a tensor it answers with a tensor, given an array with an array; the work is done on
    ``device`` either way. Two kernels do it: "cropped" (Triton, CUDA) reads only the entries of
    the kernel that two supports select, "dense" (any device) multiplies matrices.

    Parameters
    ----------
    hist, eps, sweeps, tol, max_sweeps, margin
        As for :class:`EntropicMap`.
    device
        What torch calls it: "cuda", "cuda:1", "cpu".
    dtype
        "float64", "float32", or "tf32": float32 whose products may lose digits, some 3 are left.
        ``precision`` changes it between calls.
    engine
        "cropped", "dense", or "auto": cropped for sparse histograms where Triton can run.
    memory_limit
        Bytes the scalings may take, 7/10 of what is free by default. What does not fit in the
        working precision is kept in float32, then in bfloat16; what does not fit there is not
        kept, and each call starts from the scalings of every histogram to itself.
    """

    def __init__(
        self,
        hist: Any,
        eps: float,
        *,
        device: Any = "cuda",
        sweeps: int | None = None,
        tol: float = 1e-10,
        max_sweeps: int = 10_000,
        dtype: str = "float64",
        margin: float = np.inf,
        engine: str = "auto",
        memory_limit: float | None = None,
    ) -> None:
        import torch

        check_eps(eps)
        if 1.0 / eps > SAFE[np.dtype(np.float64)]:
            raise ValueError(
                f"`eps` is {eps:g}; below 1/150 logarithms are needed, which run on the CPU: "
                "pass device='cpu' or a larger `eps`."
            )
        self.device = torch_device(device)
        rows = check_histograms(hist)
        n, d = self.shape = rows.shape
        self.eps, self.sweeps, self.tol, self.max_sweeps = eps, sweeps, tol, max_sweeps
        sizes = np.diff(rows.indptr)
        self._triton = (
            self.device.type == "cuda"
            and find_spec("triton") is not None
            and int(sizes.max()) <= WIDEST
        )
        self.engine, ratio = _choose(engine, self._triton, sizes, d)
        self._few = min(0.25, 1.0 / ratio) if self._triton else 0.0  # not worth whole products

        order = np.argsort(sizes, kind="stable")
        self._sizes = sizes[order]
        rows = rows[order]
        self._bins_used = d + -d % LANES
        self._rank = self._tensor(np.argsort(order, kind="stable"))
        self._indptr = self._tensor(rows.indptr.astype(np.int32))
        self._columns = self._tensor(rows.indices.astype(np.int32))
        self._weight = self._tensor(rows.data)
        self._hist = torch.zeros((n, self._bins_used), dtype=torch.float64, device=self.device)
        lines = self._tensor(np.repeat(np.arange(n), self._sizes))
        self._hist[lines, self._columns.long()] = self._weight
        self._self = (self._hist > 0).to(torch.float64)

        self._limit = usable_memory(self.device) if memory_limit is None else memory_limit
        self._scratch = min(float(SCRATCH), max(0.1 * free_on(self.device), 1e6))
        self._state: list[Any] | None = None
        self._make_blocks()
        self._dtype = ""
        self.margin = margin
        self.precision = dtype
        self.error = np.inf
        self.negatives = Negatives(0, 0.0)
        self.on_progress: Callable[[int, int], None] | None = None

    # ------------------------------------------------------------------------- precision

    @property
    def precision(self) -> str:
        """The numbers it works in: "float64", "float32" or "tf32"."""
        return self._dtype

    @precision.setter
    def precision(self, name: str) -> None:
        """Go on in other numbers; what is remembered is kept as far as they allow."""
        import torch

        if name not in ("float64", "float32", "tf32"):
            raise ValueError(f"`dtype` is {name!r}; choose 'float64', 'float32' or 'tf32'.")
        if name != "float64" and 1.0 / self.eps > SAFE[np.dtype(np.float32)]:
            name = "float64"
        if name == self._dtype:
            return
        self._dtype = name
        self._working = torch.float64 if name == "float64" else torch.float32
        self._plan()

    def _plan(self) -> None:
        """Histograms in the working precision, and that of what is remembered, by its room."""
        import torch

        self._sources = [(bins, masses.to(self._working)) for bins, masses in self._supports]
        if self.engine == "dense":
            self._partners = self._hist.to(self._working)
        numbers = sum(self._numbers(block) for block in self._blocks)
        kinds = dict.fromkeys((self._working, torch.float32, torch.bfloat16))
        self._stored = next(
            (kind for kind in kinds if kind.itemsize * numbers <= self._limit), None
        )
        self.memory = numbers * (self._stored.itemsize if self._stored else 0)
        if self._stored is None:
            self._state = None
        state = self._state or []
        for place, scalings in enumerate(state):  # one by one: two copies of all might not fit
            state[place] = scalings.to(self._stored)

    def _numbers(self, block: Block) -> int:
        """How many numbers the scalings of a block are."""
        partners: int = self.shape[0] - block.first
        return (block.last - block.first) * partners * block.width

    def _make_blocks(self) -> None:
        """Cut the sources into blocks."""
        self._blocks = list(self._cut())
        self._supports = [self._padded(block) for block in self._blocks]

    def _cut(self) -> Iterator[Block]:
        """Sources of like size, as many at once as the scratch allows in any precision."""
        n = self.shape[0]
        widths = self._sizes + -self._sizes % LANES
        most = n if self.engine == "cropped" else max(16, n // 3)  # half its square is lost
        first, last = 0, 1
        while last <= n:
            alike = last < n and (
                _power(widths[last]) == _power(widths[first])
                and (last - first < 64 or widths[last] <= 1.25 * widths[first])
                and (last + 1 - first) * self._scratch_of(first, widths[last]) <= self._scratch
                and last - first < most
            )
            if not alike:
                yield Block(first, last, int(widths[last - 1]))
                first = last
            last += 1

    def _scratch_of(self, first: int, width: int) -> float:
        """Bytes of intermediate tensors that one source of a block takes."""
        partners: int = self.shape[0] - first
        if self.engine == "cropped":
            numbers = float(self._sizes[first:].sum()) + 4.0 * partners
        else:
            numbers = partners * (self._bins_used + 4.0 * width)
        total: float = 8.0 * (self._bins_used * float(width) + numbers)
        return total

    # ----------------------------------------------------------------------------- calls

    def __repr__(self) -> str:
        n, d = self.shape
        return (
            f"TensorEntropicMap({n} histograms on {d} bins, eps = {self.eps:g}, "
            f"{self.engine}, {self._dtype} on {self.device})"
        )

    def __call__(self, cost: Matrix) -> Matrix:
        checked = self._check(cost)
        distances, self.error = self._attempt(checked)
        lowest = float(distances.min())
        number = int((distances < 0).sum()) // 2 if lowest < 0.0 else 0
        self.negatives = Negatives(number, min(lowest, 0.0))
        return _like(cost, distances)

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        import torch

        from cometric.kernels.sinkhorn_torch import sweep

        checked = self._check(cost)
        i, j = self._rank[self._tensor(check_index(index, self.shape[0]))].T
        kernel, unit = self._kernel(checked)
        result = torch.zeros(len(i), dtype=torch.float64, device=self.device)
        if unit == 0.0:
            return _like(cost, result)
        own, _ = self._self_terms(kernel, thoroughly=True)
        limit, tol = self._patience(self.sweeps is None)
        width = int(self._sizes[-1] + -self._sizes[-1] % LANES)
        bins, masses = self._padded(Block(0, self.shape[0], width))
        start = torch.gather(self._self, 1, bins.long()) * (masses > 0)
        step = max(1, int(self._scratch / (8 * self._bins_used * (width + 4))))
        for at in range(0, len(i), step):
            some, other = i[at : at + step], j[at : at + step]
            state = start[some][:, None, :].contiguous()
            partner = self._hist[other][:, None, :]
            values, _ = sweep(kernel, bins[some], masses[some], partner, state, limit, tol)
            result[at : at + step] = values[:, 0]
        result = unit * (result - 0.5 * (own[i] + own[j]))
        result[i == j] = 0.0
        return _like(cost, result)

    def snapshot(self) -> dict[str, Any]:
        import torch

        kept = {} if self._state is None else dict(enumerate(self._state))
        return {
            "self": self._self,
            "margin": self.margin,
            "error": self.error,
            "precision": self.precision,
            # NumPy knows no bfloat16: its bits travel as integers.
            **{
                f"scalings{place}": part.view(torch.int16) if part.dtype.itemsize == 2 else part
                for place, part in kept.items()
                if part is not None
            },
        }

    def restore(self, memory: dict[str, Any]) -> None:
        """Go on from a snapshot; scalings cut into other blocks than ours are left out."""
        import torch

        self.precision = str(memory["precision"])
        fill(self._self, self._tensor(memory["self"]), "scalings of histograms to themselves")
        self.margin, self.error = float(memory["margin"]), float(memory["error"])
        self._state = None
        n = self.shape[0]
        state: list[Any] = []
        for place, (first, last, width) in enumerate(self._blocks):
            part = memory.get(f"scalings{place}")
            fits = part is not None and part.shape == (last - first, n - first, width)
            if not fits or self._stored is None:
                return
            part = self._tensor(part)
            part = part.view(torch.bfloat16) if part.dtype == torch.int16 else part
            state.append(part.to(self._stored))
        self._state = state

    def _attempt(self, cost: Any) -> tuple[Any, float]:
        """One evaluation; where memory or range run out, another with less or with more."""
        import torch

        while True:
            try:
                distances, error = self._evaluate(cost)
            except torch.OutOfMemoryError as full:
                self._shrink(full)
                continue
            if np.isfinite(error):
                return distances, error
            if self.precision == "float64":
                raise FloatingPointError(
                    "some scalings left the range of float64. Logarithms, which have no such "
                    "limit, run on the CPU: pass device='cpu', or a larger `eps`."
                )
            self._state = None
            self.precision = "float64"

    def _shrink(self, full: Exception) -> None:
        """Half the scratch, and what is remembered starts over."""
        import torch

        self._scratch /= 2
        least = max(self._scratch_of(block.first, block.width) for block in self._blocks)
        if self._scratch < least:
            raise MemoryError(
                f"{self!r} found no room on {self.device}: one source needs {least / 1e9:.2g} GB "
                f"of scratch and the scalings {self.memory / 1e9:.3g} GB, "
                f"{free_on(self.device) / 1e9:.3g} GB are free. Pass a `memory_limit`, fewer "
                "samples, or device='cpu'."
            ) from full
        self._state = None
        self._limit = min(self._limit, 0.9 * max(self.memory, 1.0))
        torch.cuda.empty_cache()
        self._make_blocks()
        self._plan()

    def _evaluate(self, cost: Any) -> tuple[Any, float]:
        import torch

        n = self.shape[0]
        exact, unit = self._kernel(cost)
        distances = torch.zeros((n, n), dtype=torch.float64, device=self.device)
        if unit == 0.0:
            return distances, 0.0
        own, own_errors = self._self_terms(exact, self.sweeps is None)
        kernel = exact.to(self._working)
        del exact
        worst = [own_errors.max()]
        if self._state is None and self._stored is not None:
            self._state = [None] * len(self._blocks)
        for tasks in self._tasks():
            self._solve(kernel, tasks, own)
            for task in tasks:
                distances[task.first : task.last, task.first :] = task.values
                worst.append(task.errors.max())
        error = float(torch.stack(worst).max())
        distances.sub_(0.5 * own[:, None]).sub_(0.5 * own).mul_(unit).triu_(1)
        distances = distances + distances.T
        return distances[self._rank][:, self._rank], error

    def _tasks(self) -> Iterator[list[_Task]]:
        """Blocks to solve together: all, or where scalings are not kept, one after the other."""
        tasks = []
        for place, (block, (bins, masses)) in enumerate(
            zip(self._blocks, self._sources, strict=True)
        ):
            scalings = None if self._state is None else self._state[place]
            if scalings is None:
                kind = self._stored or self._working
                scalings = self._first_guess(block, bins, masses, kind)
            task = _Task(block.first, block.last, bins, masses, scalings)
            if self._state is None:
                yield [task]
            else:
                self._state[place] = scalings
                tasks.append(task)
        if tasks:
            yield tasks

    def _solve(self, kernel: Any, tasks: list[_Task], own: Any) -> None:
        """Values and errors of the tasks. Looks at them, which wait for the device, are few."""
        limit, tol = self._patience(self.sweeps is None)
        for task in tasks:
            self._sweep(kernel, task, limit, tol)
            if self.on_progress is not None:
                self.on_progress(task.last, self.shape[0])
        if self.sweeps is not None:
            self._catch_up(kernel, tasks)
            self._look_closer(kernel, tasks, own)

    def _sweep(self, kernel: Any, task: _Task, limit: int, tol: float) -> None:
        """Values and marginal errors after sweeps by the engine chosen, ``limit`` at most."""
        if self.engine == "cropped":
            self._crop(kernel, task, limit, tol)
            return
        from cometric.kernels import sinkhorn_torch

        fused: Any = sinkhorn_torch
        if self._triton:
            from cometric.kernels import sinkhorn_triton

            fused = sinkhorn_triton
        with sinkhorn_torch.fast_products(self._dtype == "tf32"):
            task.values, task.errors = sinkhorn_torch.sweep(
                kernel,
                task.bins,
                task.masses,
                self._partners[task.first :],
                task.scalings,
                limit,
                tol,
                fused.divide,
                fused.update,
                self._few,
            )
        task.errors.triu_(1)  # the others are not asked for
        if self._few and limit > 1 and float(task.errors.max()) > tol:
            self._crop(kernel, task, limit, tol, resume=True)

    def _catch_up(self, kernel: Any, tasks: list[_Task]) -> None:
        """More sweeps for pairs whose marginal error exceeds the margin."""
        margin = max(self.margin, ATTAINABLE[self.precision])
        if margin == np.inf:
            return
        for task, _, late in _marked(tasks, [task.errors > margin for task in tasks]):
            if self.engine == "cropped" or late <= self._few * task.errors.numel():
                self._crop(kernel, task, MORE_SWEEPS, margin, resume=True)
            else:
                self._sweep(kernel, task, MORE_SWEEPS, margin)

    def _look_closer(self, kernel: Any, tasks: list[_Task], own: Any) -> None:
        """More sweeps for pairs at a negative distance: too few made it so, or it is true.

        Sweeps only raise a value, and few of them lift one that is positive in truth.
        """
        tol = self._patience(True)[1]
        for limit in (*CLOSER, self.max_sweeps):
            found = _marked(tasks, [self._negative(task, own) for task in tasks])
            tasks = [task for task, _, _ in found]
            for task, below, _ in found:
                if self._triton:
                    errors, task.errors = task.errors, below.to(task.errors.dtype)  # 1, or none
                    self._crop(kernel, task, limit, tol, resume=True)
                    task.errors = errors
                else:
                    self._sweep(kernel, task, limit, tol)

    def _negative(self, task: _Task, own: Any) -> Any:
        """Which pairs cost less than both their histograms to themselves, on average."""
        debt = 0.5 * (own[task.first : task.last, None] + own[task.first :])
        return (task.values < debt).triu_(1)

    def _crop(self, kernel: Any, task: _Task, limit: int, tol: float, resume: bool = False) -> None:
        """The same on the supports alone; with ``resume`` for pairs whose error exceeds ``tol``."""
        from cometric.kernels import sinkhorn_triton

        task.values, task.errors = sinkhorn_triton.sweep(
            kernel,
            task.bins,
            task.masses,
            self._indptr[task.first :],
            self._columns,
            self._weight.to(self._working),
            int(self._sizes[task.first :].sum()),
            task.scalings,
            limit,
            tol,
            (task.values, task.errors) if resume else None,
        )

    def _self_terms(self, kernel: Any, thoroughly: bool) -> tuple[Any, Any]:
        """Costs over eps of every histogram to itself, and their marginal errors."""
        from cometric.kernels.sinkhorn_torch import self_terms

        limit, tol = (self.max_sweeps, 1e-13) if thoroughly else (SELF_STEPS, 0.0)
        return self_terms(self._hist, kernel, self._self, limit, tol)  # type: ignore[no-any-return]

    def _patience(self, thoroughly: bool) -> tuple[int, float]:
        """Sweeps at most, and the marginal error at which fewer will do."""
        if thoroughly:
            return self.max_sweeps, max(self.tol, ATTAINABLE[self.precision])
        return self.sweeps or 1, 0.0

    # --------------------------------------------------------------------------- tensors

    def _tensor(self, array: Any) -> Any:
        import torch

        return torch.as_tensor(array, device=self.device)

    def _check(self, cost: Any) -> Any:
        """The cost as a float64 tensor, or an error that says what is wrong."""
        import torch

        if not is_tensor(cost):
            return self._tensor(check_cost(cost, self.shape[1]))
        cost = cost.to(self.device, torch.float64)
        refuse_bad_cost(cost, self.shape[1])
        return cost

    def _kernel(self, cost: Any) -> tuple[Any, float]:
        """exp(-C / eps) in float64, with ones for the bins that pad it, and eps absolute."""
        import torch

        unit = self.eps * float(cost.max())
        d, padded = self.shape[1], self._bins_used
        kernel = torch.ones((padded, padded), dtype=torch.float64, device=self.device)
        if unit > 0.0:
            kernel[:d, :d] = torch.exp(cost / -unit)
        return kernel, unit

    def _padded(self, block: Block) -> tuple[Any, Any]:
        """Bins (bin 0 where there is none) and masses (0 there) of the sources of a block."""
        import torch

        first, last, width = block
        k = torch.arange(width, device=self.device)
        begin, end = self._indptr[first:last, None], self._indptr[first + 1 : last + 1, None]
        place = begin + k
        real = place < end
        place = torch.where(real, place, begin).long()
        return (
            torch.where(real, self._columns[place], 0),
            torch.where(real, self._weight[place], 0.0),
        )

    def _first_guess(self, block: Block, bins: Any, masses: Any, dtype: Any) -> Any:
        """Each source's scaling to itself, for all its partners."""
        import torch

        own = torch.gather(self._self[block.first : block.last], 1, bins.long())
        own = (own * (masses > 0)).to(dtype)
        return own[:, None, :].repeat(1, self.shape[0] - block.first, 1)


def _marked(tasks: list[_Task], marks: list[Any]) -> list[tuple[_Task, Any, int]]:
    """Tasks that have marks, with them and their number: one look at the device for all."""
    import torch

    if not tasks:
        return []
    numbers = torch.stack([mark.sum() for mark in marks]).tolist()
    return [found for found in zip(tasks, marks, numbers, strict=True) if found[2]]


def _like(cost: Any, answer: Any) -> Matrix:
    """An answer on the device: as a tensor to whoever asked with one, else as an array."""
    told: Matrix = answer if is_tensor(cost) else to_numpy(answer)
    return told


def _choose(engine: str, can_crop: bool, sizes: Any, d: int) -> tuple[str, float]:
    """The engine asked for, or the one that should be quicker, and the ratio of their times.

    Per pair, cropping reads s_i s_j entries of the kernel, each at the price of a load; products
    take 4 s_i d operations at the rate of matrix units, and 4 passes over d numbers.
    """
    if engine not in ("auto", "cropped", "dense"):
        raise ValueError(f"`engine` is {engine!r}; choose 'auto', 'cropped' or 'dense'.")
    cropped = float(sizes.mean()) ** 2 / CROPPED
    dense = 4.0 * float(sizes.mean()) * d / PRODUCTS + 32.0 * d / TRAFFIC
    ratio = cropped / dense
    if engine == "auto":
        engine = "cropped" if can_crop and ratio < 1.0 else "dense"
    return engine, ratio


def _power(width: int) -> int:
    """The exponent of the power of two that Triton rounds a width up to."""
    return int(width - 1).bit_length()
