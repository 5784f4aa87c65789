"""Entropic transport costs on supports only, many pairs at once, CUDA.

:class:`SupportSweeps` sweeps blocks of pairs as in ``sinkhorn_torch``, for balanced transport and
sources that are not too wide (:func:`choose`); all else is left to products. Source i of a block is
paired only with the partners i + 1, i + 2, ... of the block, which are rows of a :class:`Layout`.
The kernel is ``sinkhorn.cu``, compiled by torch's NVRTC.

The columns of K that a source selects are copied into the shared memory of a multiprocessor if
they fit, else side by side in global memory; every pair of the source reads its rows from there.
Thread blocks are persistent and take sources from a queue, some partners at a time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

import torch

STREAMS = 2
"""CUDA streams: a block can start while the last programs of another one finish."""

LANES = 4
"""Bins of a partner are padded to multiples of this, the maximum number of rows read at a time."""

LONG = 128
"""Partners with at least this many bins are divided among the groups of a warp."""

NUMBERS = {4: "float", 8: "double"}

POINTERS = "kernel bins masses pointers offsets weight state values errors queue"
INTEGERS = "sources partners line longs d width stride chunk sweeps resume"

VECTORS = 16
"""Maximum number of 16-byte vectors per lane: scalings must fit into registers."""

FEW = 8
"""If at most this many pairs of a source remain, each is solved by a whole thread block."""

CHUNK = 2048
"""Maximum number of partners that a thread block takes at a time."""


@dataclass
class Layout:
    """Histograms of increasing size, as CSR rows padded to multiples of ``LANES`` bins."""

    pointers: torch.Tensor
    columns: torch.Tensor
    weight: torch.Tensor
    short: int  # how many have fewer than LONG bins
    _offsets: dict[int, torch.Tensor] = field(default_factory=dict)

    def offsets(self, stride: int) -> torch.Tensor:
        """The offsets of the rows of K that the bins select, for rows ``stride`` numbers apart."""
        if stride not in self._offsets:
            self._offsets[stride] = self.columns * stride
        return self._offsets[stride]


class Shape(NamedTuple):
    """How warps divide a source."""

    group: int  # lanes that share a row
    vectors: int  # of 16 bytes, per lane
    rows: int  # rows of a partner per group at a time
    threads: int  # per thread block


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
    """Distance of rows in shared memory, in numbers; padded by a vector if that avoids conflicts.

    Eight lanes read 128 bytes of a row without bank conflicts, wherever they begin.
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
    """Multiprocessors of a device, and bytes of shared memory per thread block."""
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin - 1024


class Arguments(ctypes.Structure):
    """The arguments of ``sinkhorn.cu``; addresses first."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in POINTERS.split()],
        ("tol", ctypes.c_double),
        *[(name, ctypes.c_int) for name in INTEGERS.split()],
    ]


class Copy(ctypes.Structure):
    """The arguments of ``gather.cu``."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("kernel", "bins", "out", "wanted")],
        *[(name, ctypes.c_int) for name in ("d", "width", "beyond")],
    ]


class Program:
    """A compiled kernel with a single structure as its argument.

    Launching it takes a tenth of the time that torch takes with 20 arguments.
    """

    def __init__(self, name: str, entry: str, lines: Sequence[str] = (), room: int = 0) -> None:
        source = files("cometric.kernels").joinpath(f"{name}.cu").read_text()
        self._kernel = torch.cuda._compile_kernel("\n".join([*lines, source]), entry)
        if room:
            self._kernel.set_shared_memory_config(room)
        self._launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel

    def __call__(self, grid, block, space, stream, arguments) -> None:
        """Start it on a stream, given by its address."""
        array = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        status = self._launch(
            self._kernel.func, *grid, *block, space, ctypes.c_void_p(stream), array, None
        )
        if status != 0:
            raise RuntimeError(f"CUDA could not start a kernel: error {status} of its driver.")


@functools.cache
def _compiled(device: torch.device, number: str, shape: Shape, shared: bool) -> Program:
    """The sweep kernel for a shape."""
    constants = {
        "G": shape.group,
        "Q": shape.vectors,
        "U": shape.rows,
        "THREADS": shape.threads,
        "SHARED": int(shared),
        "FEW": FEW,
    }
    lines = [f"typedef {number} T;"]
    lines += [f"constexpr int {name} = {value};" for name, value in constants.items()]
    return Program("sinkhorn", "sweep", lines, _limits(device)[1])


@functools.cache
def _gathering(device: torch.device, number: str) -> Program:
    """The kernel that copies columns of K."""
    return Program("gather", "gather", [f"typedef {number} T;"])


@functools.cache
def can_run(device: torch.device) -> bool:
    """Whether torch can compile and start the kernels on a device."""
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
    space: int  # bytes of shared memory, without the list of partners; if not shared, to resume
    copied: int  # numbers per source in the copy in global memory
    beyond: int  # zeros after the copy


@functools.cache
def fit(width: int, d: int, size: int, room: int) -> Fit | None:
    """The fit for sources of ``width`` bins out of ``d``, numbers of ``size`` bytes.

    ``room`` is the shared memory in bytes. None if the scalings do not fit into registers.
    """
    shape = choose(width, size)
    if shape is None:
        return None
    stride = stride_of(shape, width, size)
    lanes = shape.group * shape.vectors * (16 // size)
    space = (d * stride + max(0, lanes - stride)) * size
    if space + 4 * CHUNK <= room:
        return Fit(shape, True, stride, space, 0, 0)
    together = (shape.threads // 32 + 1) * width * size
    return Fit(shape, False, width, together, d * width, lanes)


def fit_on(kernel, bins):
    """The fit for the sources of a block on the device of the kernel matrix."""
    return fit(bins.shape[1], len(kernel), kernel.element_size(), _limits(kernel.device)[1])


def scratch_for(kernel, blocks):
    """Scratch memory for the largest copy that these blocks need, given their bins."""
    most = 0
    for bins in blocks:
        found = fit_on(kernel, bins)
        if found is not None and not found.shared:
            most = max(most, len(bins) * found.copied + found.beyond)
    return kernel.new_empty(most)


def sweep(
    kernel, bins, a, layout, first, state, values, errors, sweeps, tol, *,
    scratch, queue, stream, wanted=None,
):  # fmt: skip
    """Sweeps of the pairs of a block; ``values`` and ``errors``, both (B, P), are overwritten.

    The partners are the histograms of ``layout`` from ``first`` on; ``state`` has the precision
    of ``kernel``, and both have sizes that are multiples of 16. ``scratch`` comes from
    :func:`scratch_for`; ``queue`` is one integer, zero; ``stream`` is an address. ``wanted`` is the
    number of pairs to resume of each source (int64); if given, pairs whose error is at most ``tol``
    are unchanged.
    """
    sources, width = bins.shape
    partners, d = len(layout.pointers) - 1 - first, len(kernel)
    device, number = kernel.device, NUMBERS[kernel.element_size()]
    units, _ = _limits(device)
    shape, shared, stride, space, _, beyond = fit_on(kernel, bins)
    # Enough portions for all multiprocessors, but few copies to shared memory
    portions = -(-(4 if shared else 16) * units // sources)
    chunk = min(CHUNK, max(64, -(-partners // portions)))
    rows = kernel.data_ptr()
    if not shared:
        named = 0 if wanted is None else wanted.data_ptr()
        copy = Copy(rows, bins.data_ptr(), scratch.data_ptr(), named, d, width, beyond)
        tiles = -(-width // 32), -(-d // 32), sources
        _gathering(device, number)(tiles, (32, 8, 1), 0, stream, copy)
        rows = scratch.data_ptr()
    arguments = Arguments(
        rows, bins.data_ptr(), a.data_ptr(), layout.pointers.data_ptr() + 4 * first,
        layout.offsets(stride).data_ptr(), layout.weight.data_ptr(), state.data_ptr(),
        values.data_ptr(), errors.data_ptr(), queue.data_ptr(), tol, sources, partners,
        values.stride(0), max(0, layout.short - first), d, width, stride, chunk, sweeps,
        int(wanted is not None),
    )  # fmt: skip
    programs = min(units, sources * -(-partners // chunk))
    listed = (chunk + 3) // 4 * 16
    space = listed + (space if shared or wanted is not None else 0)
    _compiled(device, number, shape, shared)(
        (programs, 1, 1), (shape.threads, 1, 1), space, stream, arguments
    )


class Job(NamedTuple):
    """A block: its first partner, supports, masses and scalings of its sources, and results.

    ``wanted`` is the number of pairs to sweep of each source (int64). If given, only pairs whose
    error exceeds the tolerance are swept.
    """

    first: int
    bins: Any
    masses: Any
    scalings: Any
    values: Any
    errors: Any
    wanted: Any = None


class SupportSweeps:
    """Sweeps of many blocks; the partners of all are CSR rows of increasing size."""

    def __init__(self, indptr, columns, weight):
        self._layout = lay_out(indptr, columns, weight)
        self._streams = [torch.cuda.Stream(weight.device) for _ in range(STREAMS)]

    def __call__(self, kernel, jobs, sweeps, tol):
        """Sweep blocks at most ``sweeps`` times, until errors are at most ``tol``."""
        exact = [job for job in jobs if job.scalings.dtype == kernel.dtype]
        if exact:
            self._start(kernel, exact, sweeps, tol)
        for job in jobs:
            if job.scalings.dtype != kernel.dtype:  # one by one: all copies might not fit
                scalings = job.scalings.to(kernel.dtype)
                self._start(kernel, [job._replace(scalings=scalings)], sweeps, tol)
                job.scalings.copy_(scalings)

    def _start(self, kernel, jobs, sweeps, tol):
        """Start the kernels. Memory shared by streams is allocated before they start."""
        device = kernel.device
        with torch.cuda.device(device):
            queues = torch.zeros(len(jobs), dtype=torch.int32, device=device)
            for job in jobs:
                self._layout.offsets(fit_on(kernel, job.bins).stride)
            main = torch.cuda.current_stream()
            streams = [main] if len(jobs) == 1 else self._streams
            scratch = [
                scratch_for(kernel, [job.bins for job in jobs[k :: len(streams)]])
                for k in range(len(streams))
            ]
            for stream in streams:
                stream.wait_stream(main)
            for number, job in enumerate(jobs):
                k = number % len(streams)
                sweep(
                    kernel, job.bins, job.masses, self._layout, job.first, job.scalings,
                    job.values, job.errors, sweeps, tol, scratch=scratch[k], queue=queues[number],
                    stream=streams[k].cuda_stream, wanted=job.wanted,
                )  # fmt: skip
            for stream in streams:
                main.wait_stream(stream)
