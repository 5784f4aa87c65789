"""Sweeps of many blocks of pairs on their supports, in CUDA if possible, else in Triton."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from cometric.kernels import sinkhorn_cuda, sinkhorn_triton

STREAMS = 2
"""CUDA streams: a block can start while the last programs of another one finish."""


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


class Cropping:
    """The partners of all blocks in the format of the kernels: CSR rows of increasing ``sizes``.

    The CUDA kernel requires balanced transport, scalings in the precision of the sweeps, and
    sources that are not too wide.
    """

    def __init__(self, indptr, columns, weight, sizes, ratio):
        self._rows = indptr, columns, weight
        self._sizes, self._ratio = sizes, ratio
        self._layout: Any = None
        if math.isinf(ratio) and sinkhorn_cuda.can_run(weight.device):
            self._layout = sinkhorn_cuda.lay_out(indptr, columns, weight)
        self._streams = []
        if weight.is_cuda:
            self._streams = [torch.cuda.Stream(weight.device) for _ in range(STREAMS)]

    def __call__(self, kernel, jobs, sweeps, tol):
        """Sweep blocks at most ``sweeps`` times, until errors are at most ``tol``."""
        fits = [job for job in jobs if self._fits(kernel, job)]
        if fits:
            self._start(kernel, fits, sweeps, tol)
        indptr, columns, weight = self._rows
        for job in jobs:
            if not self._fits(kernel, job):
                sinkhorn_triton.sweep(
                    kernel, job.bins, job.masses, indptr[job.first :], columns, weight,
                    int(self._sizes[job.first :].sum()), job.scalings, job.values, job.errors,
                    sweeps, tol, job.wanted is not None, self._ratio,
                )  # fmt: skip

    def _fits(self, kernel, job):
        """Whether the CUDA kernel can sweep a block."""
        if self._layout is None or job.scalings.dtype != kernel.dtype:
            return False
        return sinkhorn_cuda.fit_on(kernel, job.bins) is not None

    def _start(self, kernel, jobs, sweeps, tol):
        """Sweep blocks in CUDA. Memory shared by streams is allocated before they start."""
        device = kernel.device
        with torch.cuda.device(device):
            queues = torch.zeros(len(jobs), dtype=torch.int32, device=device)
            for job in jobs:
                self._layout.offsets(sinkhorn_cuda.fit_on(kernel, job.bins).stride)
            main = torch.cuda.current_stream()
            streams = [main] if len(jobs) == 1 else self._streams
            scratch = [
                sinkhorn_cuda.scratch_for(kernel, [job.bins for job in jobs[k :: len(streams)]])
                for k in range(len(streams))
            ]
            for stream in streams:
                stream.wait_stream(main)
            for number, job in enumerate(jobs):
                k = number % len(streams)
                sinkhorn_cuda.sweep(
                    kernel, job.bins, job.masses, self._layout, job.first, job.scalings,
                    job.values, job.errors, sweeps, tol, scratch=scratch[k], queue=queues[number],
                    stream=streams[k].cuda_stream, wanted=job.wanted,
                )  # fmt: skip
            for stream in streams:
                main.wait_stream(stream)
