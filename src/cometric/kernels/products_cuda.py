"""Sweeps by matrix products on supports of the sources, in float64, many sources at once, CUDA.

The contract is that of ``sinkhorn_torch.sweep``, for balanced transport; sources of all blocks,
of any width, are swept by the same three launches of ``products.cu``, and only pairs above the
diagonal. The unit of work is a tile: ``EDGE`` partners of a source.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np
import torch

from cometric.kernels.sinkhorn_cuda import Program

EDGE = 64
"""Partners of a tile."""

STEP = 16
"""Sources and the bins of all must be padded to multiples of this."""

THREADS = 128


class Shape(NamedTuple):
    """How tiles are multiplied."""

    columns: int = 64  # bins at a time
    stages: int = 2  # of the pipeline that feeds the products
    programs: int = 4  # of a multiprocessor
    deep: int = 8  # bins of one instruction

    @property
    def space(self) -> int:
        """Bytes of shared memory."""
        return 8 * self.stages * (STEP + 4) * (EDGE + self.columns)


SHAPE = Shape()
"""The fastest on an H200."""

POINTERS = (
    "kernel hist states bins masses widths strides tiles u sums_u sums_v marginals values errors "
    "late"
)
INTEGERS = "n d first line pieces parts"


class Arguments(ctypes.Structure):
    """The arguments of ``products.cu``; addresses first."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in POINTERS.split()],
        ("tol", ctypes.c_double),
        *[(name, ctypes.c_int) for name in INTEGERS.split()],
    ]


@functools.cache
def _program(device: torch.device, entry: str) -> Program:
    """One of the kernels; its shared memory holds the stages."""
    constants = {name.upper(): value for name, value in SHAPE._asdict().items()}
    lines = [f"#define {name} {value}" for name, value in constants.items()]
    room = SHAPE.space if entry in ("divide", "update") else 0
    with torch.cuda.device(device):
        return Program("products", entry, lines, room)


@functools.cache
def can_run(device: torch.device) -> bool:
    """Whether a device has these products, those of compute capability 9.0, and can compile."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    try:
        if torch.cuda.get_device_capability(device) < (9, 0):
            return False
        for entry in ("divide", "update", "collect", "count"):
            _program(device, entry)
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
        """Equal for sources that have the same places in memory."""
        return (self.first, *self.addresses, *self.scalings.shape)


class Chosen(NamedTuple):
    """Tiles on the device: to divide, and to update, where each is repeated for all its bins."""

    tiles: Any
    updates: Any


class Products:
    """Consecutive blocks of sources, with the tiles of their pairs.

    Parameters
    ----------
    blocks
        Sources of consecutive numbers.
    hist
        All histograms, dense, (n, d), in the order of their sizes.
    widths
        Bins of every histogram, rounded up to a multiple of ``STEP``.
    scratch
        Bytes for what lies between both products; more tiles are swept in turn.
    """

    def __init__(self, blocks: list[Sources], hist: Any, widths: Any, scratch: float) -> None:
        self._hist, self._device = hist, hist.device
        self._n, self._d = hist.shape
        self.keys = [block.key for block in blocks]
        tables = [self._addresses(block) for block in blocks]
        self._first = blocks[0].first
        numbers = np.arange(self._first, self._first + sum(len(table) for table in tables))
        # Tables begin with the first source: tiles number their sources from there
        self._tables = torch.as_tensor(np.concatenate(tables).T.copy(), device=self._device)
        self._widths = widths[numbers].astype(np.int32)
        strides = np.concatenate([np.full(len(b.bins), b.bins.shape[1]) for b in blocks])
        sizes = np.stack([self._widths, strides.astype(np.int32)])
        self._sizes = torch.as_tensor(sizes, device=self._device)
        self._pieces = -(-self._d // SHAPE.columns)
        self._parts = int(-(-self._widths.max() // SHAPE.columns))
        each = EDGE * 8 * (self._d + self._pieces + 2 * self._parts)
        self._most = max(1, int(scratch / each))
        counts = -(-(self._n - 1 - numbers) // EDGE)
        self._sources = np.repeat(np.arange(len(numbers)), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        place = np.arange(len(self._sources)) - before
        self._partners = numbers[self._sources] + 1 + EDGE * place
        self._all: list[Chosen] | None = None

    def __len__(self) -> int:
        """The number of all tiles."""
        return len(self._sources)

    def _addresses(self, block: Sources) -> Any:
        """Of each source: where its scalings to histogram 0 would be, its bins, its masses."""
        count, partners, width = block.scalings.shape
        state, bins, masses = block.addresses
        number = np.arange(count)
        return np.stack(
            [
                state + 8 * width * (number * partners - block.first),
                bins + 4 * width * number,
                masses + 8 * width * number,
            ],
            axis=1,
        )

    def _choose(self, which: Any = None) -> list[Chosen]:
        """Some or all tiles on the device, as many at a time as the scratch holds."""
        if which is None:
            if self._all is None:
                self._all = self._choose(np.arange(len(self)))
            return self._all
        return [
            self._upload(which[start : start + self._most])
            for start in range(0, len(which), self._most)
        ]

    def _upload(self, which: Any) -> Chosen:
        source = self._sources[which]
        tiles = np.zeros((len(which), 4), np.int32)
        tiles[:, 0], tiles[:, 1], tiles[:, 2] = source, self._partners[which], np.arange(len(which))
        parts = -(-self._widths[source] // SHAPE.columns)
        updates = np.repeat(tiles, parts, axis=0)
        begin = np.repeat(np.cumsum(parts) - parts, parts)
        updates[:, 3] = SHAPE.columns * (np.arange(len(updates)) - begin)
        both = torch.as_tensor(np.concatenate([tiles, updates]), device=self._device)
        return Chosen(both[: len(tiles)], both[len(tiles) :])

    def sweep(self, kernel: Any, values: Any, errors: Any, which: Any = None) -> None:
        """One sweep of some or all tiles.

        ``values`` and ``errors`` have a row for each source and a column for each partner from
        the first source on.
        """
        for tiles, updates in self._choose(which):
            given = self._arguments(kernel, values, errors)
            rows = EDGE * len(tiles)
            u = kernel.new_empty(rows * self._d)
            sums = kernel.new_empty(rows * (self._pieces + 2 * self._parts))
            given.u, given.sums_u = u.data_ptr(), sums.data_ptr()
            given.sums_v = given.sums_u + 8 * rows * self._pieces
            given.marginals = given.sums_v + 8 * rows * self._parts
            given.tiles = tiles.data_ptr()
            self._start("divide", len(tiles) * self._pieces, SHAPE.space, given)
            given.tiles = updates.data_ptr()
            self._start("update", len(updates), SHAPE.space, given)
            given.tiles = tiles.data_ptr()
            self._start("collect", len(tiles), 0, given, EDGE)

    def late(self, errors: Any, tol: float, share: float, which: Any = None) -> Any:
        """Of some or all tiles, those that have more than a share of late pairs.

        A pair is late if its error is above ``tol``; the numbers of tiles are a NumPy array.
        """
        found = []
        for tiles, _ in self._choose(which):
            given = self._arguments(errors, errors, errors)
            late = torch.empty(len(tiles), dtype=torch.int32, device=self._device)
            given.tiles, given.late, given.tol = tiles.data_ptr(), late.data_ptr(), tol
            self._start("count", len(tiles), 0, given, EDGE)
            found.append(late)
        chosen = np.flatnonzero(torch.cat(found).cpu().numpy() > share * EDGE)
        return chosen if which is None else which[chosen]

    def _arguments(self, kernel: Any, values: Any, errors: Any) -> Arguments:
        tables, sizes = self._tables.data_ptr(), self._sizes.data_ptr()
        count = len(self._widths)
        return Arguments(
            kernel=kernel.data_ptr(), hist=self._hist.data_ptr(), states=tables,
            bins=tables + 8 * count, masses=tables + 16 * count, widths=sizes,
            strides=sizes + 4 * count, values=values.data_ptr(), errors=errors.data_ptr(),
            n=self._n, d=self._d, first=self._first, line=values.stride(0),
            pieces=self._pieces, parts=self._parts,
        )  # fmt: skip

    def _start(
        self, entry: str, programs: int, space: int, given: Arguments, threads: int = THREADS
    ) -> None:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        _program(self._device, entry)((programs, 1, 1), (threads, 1, 1), space, stream, given)
