"""Sweeps by matrix products on the supports of the sources, many sources at once, CUDA.

Same interface as ``sinkhorn_torch.sweep``, for balanced transport. Three launches of
``products.cu`` sweep the sources of all blocks, of any width, for pairs above the diagonal only.
The unit of work is a tile: ``EDGE`` partners of a source. Products are in float64, or in TF32 for
float32 data.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np
import torch

from cometric.kernels.sinkhorn_cuda import NUMBERS, Program

EDGE = 64
"""Partners of a tile."""

THREADS = 128

POINTERS = (
    "kernel hist states bins masses widths strides tiles chosen u sums_u sums_v marginals values "
    "errors late"
)
INTEGERS = "n d first line pieces parts begin"


class Shape(NamedTuple):
    """How tiles are multiplied."""

    columns: int  # bins at a time
    depth: int  # bins per step of the products
    stages: int  # of the software pipeline
    programs: int  # per multiprocessor

    def space(self, size: int) -> int:
        """Bytes of shared memory, for numbers of ``size`` bytes."""
        return size * self.stages * (self.depth + 4) * (EDGE + self.columns)


SHAPES = {8: Shape(64, 16, 2, 4), 4: Shape(64, 32, 2, 5)}
"""Fastest shapes on an H200, by item size in bytes."""


class Arguments(ctypes.Structure):
    """The arguments of ``products.cu``; addresses first."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in POINTERS.split()],
        ("tol", ctypes.c_double),
        *[(name, ctypes.c_int) for name in INTEGERS.split()],
    ]


@functools.cache
def _program(device: torch.device, entry: str, size: int) -> Program:
    """One of the kernels, for numbers of ``size`` bytes."""
    constants = SHAPES[size]._asdict()
    lines = [f"typedef {NUMBERS[size]} T;"]
    lines += [f"constexpr int {name.upper()} = {value};" for name, value in constants.items()]
    with torch.cuda.device(device):
        return Program("products", entry, lines, SHAPES[size].space(size))


@functools.cache
def can_run(device: torch.device) -> bool:
    """Whether a device has at least compute capability 9.0 and the kernels compile."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    try:
        if torch.cuda.get_device_capability(device) < (9, 0):
            return False
        _program(device, "count", 8)
    except (AttributeError, ImportError, OSError, RuntimeError):
        return False
    return True


class Sources(NamedTuple):
    """Some sources, padded to the same number of bins: ``bins`` and ``masses`` (B, w).

    ``scalings`` (B, P, w) are those to all partners from the first source on, ``first``.
    """

    first: int
    bins: Any
    masses: Any
    scalings: Any

    @property
    def addresses(self) -> tuple[int, int, int]:
        return self.scalings.data_ptr(), self.bins.data_ptr(), self.masses.data_ptr()

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for sources at the same addresses."""
        return (self.first, *self.addresses, *self.scalings.shape)


class Products:
    """Consecutive blocks of sources, with the tiles of their pairs.

    Parameters
    ----------
    blocks
        Sources of consecutive numbers.
    hist
        All histograms, dense, (n, d), in the order of their sizes.
    widths
        Support size of every histogram, rounded up to a multiple of 16; the total number of bins
        must be such a multiple, too.
    scratch
        Bytes for intermediate results; tiles that do not fit at once are swept in turn.
    """

    def __init__(self, blocks: list[Sources], hist: Any, widths: Any, scratch: float) -> None:
        self._hist, self._device = hist, hist.device
        self._size = size = hist.element_size()
        self._shape = SHAPES[size]
        self._n, self._d = hist.shape
        self.keys = [block.key for block in blocks]
        tables = np.concatenate([_addresses(block, size) for block in blocks])
        self._first = blocks[0].first
        numbers = np.arange(self._first, self._first + len(tables))
        strides = np.concatenate([np.full(len(b.bins), b.bins.shape[1]) for b in blocks])
        self._count = len(numbers)
        self._tables = self._tensor(tables.T)
        self._sizes = self._tensor(np.stack([widths[numbers], strides]).astype(np.int32))
        self._pieces = -(-self._d // self._shape.columns)
        self._parts = int(-(-widths[numbers].max() // self._shape.columns))
        each = EDGE * (size * self._d + 8 * (self._pieces + 2 * self._parts))
        self._most = max(1, int(scratch / each))
        counts = -(-(self._n - 1 - numbers) // EDGE)
        source = np.repeat(np.arange(len(numbers)), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        partner = numbers[source] + 1 + EDGE * (np.arange(len(source)) - before)
        self._all = len(source)
        self._which: Any = None  # the tiles chosen last
        self._chosen: Any = None  # the same on the device
        self._tiles = self._tensor(np.stack([source, partner], axis=1).astype(np.int32))

    def _tensor(self, array: Any) -> Any:
        return torch.as_tensor(np.ascontiguousarray(array), device=self._device)

    def sweep(self, kernel: Any, values: Any, errors: Any, which: Any = None) -> None:
        """One sweep of all tiles, or of those numbered ``which``, an array.

        ``values`` and ``errors`` have a row for each source and a column for each partner from
        the first source on.
        """
        total = self._all if which is None else len(which)
        given, chosen = self._arguments(kernel, values, errors, which)
        rows = EDGE * min(total, self._most)
        u = kernel.new_empty(rows * self._d)
        sums = values.new_empty(rows * (self._pieces + 2 * self._parts))
        given.u, given.sums_u = u.data_ptr(), sums.data_ptr()
        given.sums_v = given.sums_u + 8 * rows * self._pieces
        given.marginals = given.sums_v + 8 * rows * self._parts
        for begin in range(0, total, self._most):
            count = min(self._most, total - begin)
            given.begin = begin
            if chosen is not None:
                given.chosen = chosen.data_ptr() + 4 * begin
            self._start("divide", count * self._pieces, given)
            self._start("update", count * self._parts, given)
            self._start("collect", count, given)

    def late(self, errors: Any, tol: float, share: float, which: Any = None) -> Any:
        """The numbers of the tiles (all, or ``which``) with more than a share of late pairs.

        A pair is late if its error is above ``tol``. Returns a NumPy array.
        """
        given, chosen = self._arguments(errors, errors, errors, which)
        total = self._all if which is None else len(which)
        late = torch.empty(total, dtype=torch.int32, device=self._device)
        given.late, given.tol = late.data_ptr(), tol
        self._start("count", total, given)
        found = np.flatnonzero(late.cpu().numpy() > share * EDGE)
        del chosen  # not earlier: the kernel reads it
        return found if which is None else which[found]

    def _arguments(
        self, kernel: Any, values: Any, errors: Any, which: Any
    ) -> tuple[Arguments, Any]:
        """Arguments of all kernels, and the tensor of chosen tiles, to be kept until they end."""
        tables, sizes, count = self._tables.data_ptr(), self._sizes.data_ptr(), self._count
        if which is not None and which is not self._which:
            self._which, self._chosen = which, self._tensor(which.astype(np.int32))
        chosen = None if which is None else self._chosen
        given = Arguments(
            kernel=kernel.data_ptr(), hist=self._hist.data_ptr(), states=tables,
            bins=tables + 8 * count, masses=tables + 16 * count, widths=sizes,
            strides=sizes + 4 * count, tiles=self._tiles.data_ptr(),
            chosen=None if chosen is None else chosen.data_ptr(), values=values.data_ptr(),
            errors=errors.data_ptr(), n=self._n, d=self._d, first=self._first,
            line=values.stride(0), pieces=self._pieces, parts=self._parts,
        )  # fmt: skip
        return given, chosen

    def _start(self, entry: str, programs: int, given: Arguments) -> None:
        products = entry in ("divide", "update")
        threads, space = (THREADS, self._shape.space(self._size)) if products else (EDGE, 0)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        program = _program(self._device, entry, self._size)
        program((programs, 1, 1), (threads, 1, 1), space, stream, given)


def _addresses(block: Sources, size: int) -> Any:
    """For each source, the addresses of its scalings (to histogram 0), bins and masses."""
    count, partners, width = block.scalings.shape
    state, bins, masses = block.addresses
    number = np.arange(count)
    return np.stack(
        [
            state + size * width * (number * partners - block.first),
            bins + 4 * width * number,
            masses + size * width * number,
        ],
        axis=1,
    )
