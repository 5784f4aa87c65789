"""Entropic transport costs on supports only, many pairs at once, CUDA.

The contract of :func:`sweep` is that of ``sinkhorn_triton.sweep``, for balanced transport; the
partners are rows of a :class:`Layout`. The kernel is ``sinkhorn.cu``, compiled by the NVRTC that
torch brings.

The columns of K that a source selects are copied into the shared memory of a multiprocessor if
they fit, else side by side in memory, and every pair of the source reads its rows from there.
Programs stay on their multiprocessor and take sources from a queue, some partners at a time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from importlib.resources import files
from typing import NamedTuple

import torch

LANES = 4
"""Bins of a partner are padded to multiples of this, the most rows that are read at a time."""

LONG = 128
"""Partners of this many bins or more are shared by the groups of a warp."""

NUMBERS = {4: "float", 8: "double"}

VECTORS = 16
"""The most vectors of 16 bytes per lane: scalings must fit into registers."""

CHUNK = 2048
"""The most partners that a program takes at a time."""


@dataclass
class Layout:
    """Histograms of increasing size, as CSR rows padded to multiples of ``LANES`` bins."""

    pointers: torch.Tensor
    columns: torch.Tensor
    weight: torch.Tensor
    short: int  # how many have fewer than LONG bins
    _offsets: dict[int, torch.Tensor] = field(default_factory=dict)

    def offsets(self, stride: int) -> torch.Tensor:
        """Where the rows of K begin that are ``stride`` numbers apart."""
        if stride not in self._offsets:
            self._offsets[stride] = self.columns * stride
        return self._offsets[stride]


class Shape(NamedTuple):
    """How warps divide a source."""

    group: int  # lanes that share a row
    vectors: int  # of 16 bytes, per lane
    rows: int  # of a partner that a group takes at a time
    threads: int  # of a program


def choose(width: int, itemsize: int) -> Shape | None:
    """The shape for sources of ``width`` bins; None if their scalings do not fit."""
    lanes = 16 // itemsize
    for group in (4, 8, 16, 32):
        vectors = -(-width // (group * lanes))
        if vectors <= 3:
            break
    if vectors > VECTORS:
        return None
    rows = 4 if vectors <= 4 else 2 if vectors <= 6 else 1
    return Shape(group, vectors, rows, 512 if vectors <= 8 else 256)


def stride_of(shape: Shape, width: int, itemsize: int) -> int:
    """Numbers from one row to the next in shared memory: an odd number of vectors if it helps.

    Eight lanes read 128 bytes of a row without conflicts wherever they begin.
    """
    return width + (16 // itemsize if shape.group >= 8 else 0)


def lay_out(indptr, columns, weight) -> Layout:
    """Pad histograms, CSR rows of increasing size."""
    sizes = indptr.diff().long()
    ends = ((sizes + LANES - 1) // LANES * LANES).cumsum(0)
    pointers = torch.cat([ends.new_zeros(1), ends])
    shift = torch.repeat_interleave(pointers[:-1] - indptr[:-1], sizes)
    place = shift + torch.arange(len(columns), device=columns.device)
    total = int(ends[-1])
    padded, masses = columns.new_zeros(total), weight.new_zeros(total)
    padded[place], masses[place] = columns, weight
    return Layout(pointers.int(), padded, masses, int((sizes < LONG).sum()))


@functools.cache
def _limits(device: torch.device) -> tuple[int, int]:
    """Multiprocessors of a device, and bytes of shared memory that a program may use."""
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin - 256


@functools.cache
def _compiled(device: torch.device, number: str, shape: Shape, shared: bool):
    """The kernel for a shape."""
    constants = {
        "G": shape.group,
        "Q": shape.vectors,
        "U": shape.rows,
        "THREADS": shape.threads,
        "SHARED": int(shared),
    }
    lines = [f"typedef {number} T;"]
    lines += [f"constexpr int {name} = {value};" for name, value in constants.items()]
    lines += [files("cometric.kernels").joinpath("sinkhorn.cu").read_text()]
    kernel = torch.cuda._compile_kernel("\n".join(lines), "sweep")
    kernel.set_shared_memory_config(_limits(device)[1] if shared else 4 * CHUNK)
    return kernel


@functools.cache
def _gathering(device: torch.device, number: str):
    """The kernel that copies columns of K side by side."""
    source = files("cometric.kernels").joinpath("gather.cu").read_text()
    return torch.cuda._compile_kernel(f"typedef {number} T;\n{source}", "gather")


def prepare(layout, widths, kernel):
    """Compute what all streams share: offsets of rows for sources of these widths."""
    for width in widths:
        found = fit(width, len(kernel), kernel.element_size(), _limits(kernel.device)[1])
        if found is not None:
            layout.offsets(found.stride)


@functools.cache
def can_run(device: torch.device) -> bool:
    """Whether torch can compile and start the kernel on a device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    try:
        with torch.cuda.device(device):
            if torch.cuda.get_device_capability(device) < (8, 0):
                return False
            _gathering(device, "float")
    except (AttributeError, ImportError, OSError, RuntimeError):
        return False
    return True


class Fit(NamedTuple):
    """How sources of one width are processed, and whether in shared memory."""

    shape: Shape
    shared: bool
    stride: int
    space: int  # bytes of shared memory, without the list of partners


@functools.cache
def fit(width: int, d: int, size: int, room: int) -> Fit | None:
    """Divide sources of ``width`` bins out of ``d``, numbers of ``size`` bytes."""
    shape = choose(width, size)
    if shape is None:
        return None
    stride = stride_of(shape, width, size)
    beyond = max(0, shape.group * shape.vectors * (16 // size) - stride)
    space = (d * stride + beyond) * size
    if space + 4 * CHUNK <= room:
        return Fit(shape, True, stride, space)
    return Fit(shape, False, width, 0)


def sweep(kernel, bins, a, layout, first, state, values, errors, sweeps, tol, resume=False):
    """Sweeps of the pairs of a block; ``values`` and ``errors``, both (B, P), are overwritten.

    The partners are the histograms of ``layout`` from ``first`` on; ``state`` has the precision
    of ``kernel``, and both have sizes that are multiples of 16.
    """
    sources, width = bins.shape
    partners, d = len(layout.pointers) - 1 - first, len(kernel)
    device, size = kernel.device, kernel.element_size()
    units, room = _limits(device)
    found = fit(width, d, size, room)
    assert found is not None, "choose() tells which sources fit"
    shape, shared, stride, space = found
    # Enough portions for all multiprocessors, but not too many copies to shared memory
    portions = -(-(4 if shared else 16) * units // sources)
    chunk = min(CHUNK, max(64, -(-partners // portions)))
    with torch.cuda.device(device):
        if not shared:
            kernel = _copies(kernel, bins, shape)
        queue = torch.zeros(1, dtype=torch.int32, device=device)
        _compiled(device, NUMBERS[size], shape, shared)(
            grid=(min(units, sources * -(-partners // chunk)), 1, 1),
            block=(shape.threads, 1, 1),
            args=[
                kernel, bins, a, layout.pointers[first:], layout.offsets(stride), layout.weight,
                state, values, errors, queue, sources, partners, values.stride(0),
                max(0, layout.short - first), d, width, stride, chunk, sweeps, int(resume),
                float(tol),
            ],
            shared_mem=space + (chunk + 3) // 4 * 16,
        )  # fmt: skip


def _copies(kernel, bins, shape):
    """The columns of K that every source selects, side by side, and zeros to read at the end."""
    sources, width = bins.shape
    d, size = len(kernel), kernel.element_size()
    beyond = shape.group * shape.vectors * (16 // size)
    out = kernel.new_empty(sources * d * width + beyond)
    gather = _gathering(kernel.device, NUMBERS[size])
    for start in range(0, sources, 65_535):
        some = bins[start : start + 65_535]
        gather(
            grid=(-(-width // 32), -(-d // 32), len(some)),
            block=(32, 8, 1),
            args=[kernel, some, out[start * d * width :], d, width, beyond],
        )
    return out
