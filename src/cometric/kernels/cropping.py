"""Sweeps of many blocks of pairs on their supports, by the kernel that can: CUDA, else Triton."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from cometric.kernels import sinkhorn_cuda, sinkhorn_triton

STREAMS = 2
"""Blocks that may run at the same time: one begins while the last programs of another end."""


class Job(NamedTuple):
    """A block: its first partner, supports, masses and scalings of its sources, and results."""

    first: int
    bins: Any
    masses: Any
    scalings: Any
    values: Any
    errors: Any


class Cropping:
    """The partners of all blocks, CSR rows of increasing size ``sizes``, as the kernels read them.

    The kernel in CUDA is for balanced transport, for scalings of the precision of the sweeps and
    for sources that are not too wide.
    """

    def __init__(self, indptr, columns, weight, sizes, ratio):
        self._rows = indptr, columns, weight
        self._sizes, self._ratio = sizes, ratio
        self._layout = None
        if math.isinf(ratio) and sinkhorn_cuda.can_run(weight.device):
            self._layout = sinkhorn_cuda.lay_out(indptr, columns, weight)
        self._streams = []
        if weight.is_cuda:
            self._streams = [torch.cuda.Stream(weight.device) for _ in range(STREAMS)]

    def __call__(self, kernel, jobs, sweeps, tol, resume=False):
        """Sweep blocks; with ``resume`` only pairs whose error exceeds ``tol``."""
        if len(jobs) == 1 or not self._streams:
            for job in jobs:
                self._sweep(kernel, job, sweeps, tol, resume)
            return
        if self._layout is not None:  # before the streams divide
            sinkhorn_cuda.prepare(self._layout, {job.bins.shape[1] for job in jobs}, kernel)
        main = torch.cuda.current_stream(kernel.device)
        for stream in self._streams:
            stream.wait_stream(main)
        for number, job in enumerate(jobs):
            with torch.cuda.stream(self._streams[number % STREAMS]):
                self._sweep(kernel, job, sweeps, tol, resume)
        for stream in self._streams:
            main.wait_stream(stream)

    def _sweep(self, kernel, job, sweeps, tol, resume):
        fits = self._layout is not None and job.scalings.dtype == kernel.dtype
        if fits and sinkhorn_cuda.choose(job.bins.shape[1], kernel.element_size()) is not None:
            sinkhorn_cuda.sweep(
                kernel, job.bins, job.masses, self._layout, job.first, job.scalings, job.values,
                job.errors, sweeps, tol, resume,
            )  # fmt: skip
            return
        indptr, columns, weight = self._rows
        sinkhorn_triton.sweep(
            kernel, job.bins, job.masses, indptr[job.first :], columns, weight,
            int(self._sizes[job.first :].sum()), job.scalings, job.values, job.errors, sweeps, tol,
            resume, self._ratio,
        )  # fmt: skip
