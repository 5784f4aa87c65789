"""The debiased Sinkhorn divergence map, with potentials that outlive the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cometric.kernels import sinkhorn, thread_count
from cometric.maps.checks import (
    all_pairs,
    check_cost,
    check_histograms,
    check_index,
    free_memory,
    mirror,
)
from cometric.types import Index, Matrix, Vector

SAFE = {np.dtype(np.float64): 150.0, np.dtype(np.float32): 25.0}
"""1 / eps up to which the scaling form cannot overflow; beyond it, logarithms are used."""

CELLS_PER_BLOCK = 2e9
"""Products per call of the kernel: about a second."""


class Negatives(NamedTuple):
    """Divergences below zero in the last call: the kernel was not positive there."""

    number: int
    minimum: float


class EntropicMap:
    """Sinkhorn divergences, ``phi(cost)_ij = W(a_i, a_j) - (W(a_i, a_i) + W(a_j, a_j)) / 2``.

    W is transport with the penalty eps max(cost) <P, log P>: eps is relative to the cost, so
    that the map is homogeneous. It is not monotone: debiasing subtracts.

    The scalings of every pair are kept, so that after a small change of the cost one sweep
    is worth a full solve: its value is wrong only to second order.

    Parameters
    ----------
    hist
        Histograms as rows, each summing to 1; sparse stays sparse.
    eps
        Regularization relative to the largest cost, positive and finite.
    sweeps
        Sweeps per call; None sweeps until every pair's marginal error is at most ``tol``.
    tol, max_sweeps
        When a pair is done, and when it is given up; ``error`` tells the largest error.
    dtype
        float64, or float32 for half the memory and some 6 digits.
    memory_limit
        Bytes the scalings may take, half of the free memory by default. What does not fit in
        float64 is kept in float32; what does not fit there is not kept, and each call starts
        from the scalings of every histogram to itself.
    n_threads
        Threads to use; the answer is the same, bit by bit, for any number.
    """

    homogeneous = True
    monotone = False

    def __init__(
        self,
        hist: Any,
        eps: float,
        *,
        sweeps: int | None = None,
        tol: float = 1e-10,
        max_sweeps: int = 10_000,
        dtype: Any = np.float64,
        memory_limit: float | None = None,
        n_threads: int | None = None,
    ) -> None:
        if not 0.0 < eps < np.inf:
            raise ValueError(
                f"`eps` is {eps}; it must be positive and finite. "
                "Use ExactMap for 0 and LimitMap for infinity."
            )
        self._hist = check_histograms(hist)
        self._indptr = self._hist.indptr.astype(np.int64)
        self._bins = self._hist.indices.astype(np.int32)
        self._weight = self._hist.data
        self._threads = thread_count(n_threads)
        self._dtype = np.dtype(dtype)
        if self._dtype not in SAFE:
            raise ValueError(f"`dtype` is {self._dtype}; choose float64 or float32.")
        self.eps, self.sweeps, self.tol, self.max_sweeps = eps, sweeps, tol, max_sweeps
        self.logs = 1.0 / eps > SAFE[self._dtype]
        if self.logs:
            self._dtype = np.dtype(np.float64)
        limit = free_memory() / 2 if memory_limit is None else memory_limit
        n = self.shape[0]
        scalings = sum(int(size) * i for i, size in enumerate(np.diff(self._indptr)))
        self._fixed = n * (n - 1) // 2 * 12  # targets and offsets
        self._stored: np.dtype[Any] | None = None
        for kind in (self._dtype, np.dtype(np.float32)):
            if kind.itemsize * scalings + self._fixed <= limit and not (
                self.logs and kind.itemsize < 8
            ):
                self._stored = kind
                break
        self.memory = (self._stored.itemsize if self._stored else 0) * scalings + self._fixed
        self._self = np.zeros(self._hist.nnz) if self.logs else np.ones(self._hist.nnz)
        self._all: _Group | None = None
        self.error = np.inf
        self.negatives = Negatives(0, 0.0)
        self.on_progress: Callable[[int, int], None] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self._hist.shape  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        n, d = self.shape
        form = "log domain" if self.logs else self._dtype.name
        return f"EntropicMap({n} histograms on {d} bins, eps = {self.eps:g}, {form})"

    def __call__(self, cost: Matrix) -> Matrix:
        cost = check_cost(cost, self.shape[1])
        group = self._all
        if group is None:
            group = _Group(self, all_pairs(self.shape[0]), self._stored)
        group.on_progress = self.on_progress
        values, error = group.solve(cost)
        if self.sweeps is not None and (values < 0).any():  # the start, or true: look closer
            values, error = group.solve(cost, thoroughly=True)
        if self._stored is not None:
            self._all = group
        self.error = error
        distances = mirror(values, self.shape[0])
        below = values[values < 0]
        self.negatives = Negatives(len(below), float(below.min(initial=0.0)))
        return distances

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        cost = check_cost(cost, self.shape[1])
        index = check_index(index, self.shape[0])
        order = np.argsort(index[:, 0], kind="stable")
        values, self.error = _Group(self, index[order], self._dtype).solve(cost)
        result = np.empty(len(index))
        result[order] = values
        result[index[:, 0] == index[:, 1]] = 0.0
        return result

    def bounds(self, cost: Matrix, index: Index | None = None) -> tuple[Vector, Vector]:
        """Proved bounds (C7) of the divergences of ``index``, all pairs by default."""
        cost = check_cost(cost, self.shape[1])
        n = self.shape[0]
        index = all_pairs(n) if index is None else check_index(index, n)
        order = np.argsort(index[:, 0], kind="stable")
        group = _Group(self, index[order], np.dtype(np.float64))
        group.solve(cost)
        low, high = np.empty(len(index)), np.empty(len(index))
        low[order], high[order] = group.brackets(cost)
        alone = _Group(self, np.stack([np.arange(n)] * 2, axis=1), np.dtype(np.float64))
        alone.start_from_self()
        self_low, self_high = alone.brackets(cost)
        i, j = index.T
        unit = self.eps * cost.max()
        return (
            unit * (low - 0.5 * (self_high[i] + self_high[j])),
            unit * (high - 0.5 * (self_low[i] + self_low[j])),
        )


class _Group:
    """Some pairs of a map, sorted by their first histogram, and their scalings."""

    def __init__(self, phi: EntropicMap, index: Index, stored: np.dtype[Any] | None) -> None:
        self.phi = phi
        self.index = index
        self.target = index[:, 1].astype(np.int32)
        sizes = np.diff(phi._indptr)
        self.room = np.zeros(len(index) + 1, np.int64)
        np.cumsum(sizes[self.target], out=self.room[1:])
        n = phi.shape[0]
        self.start = np.searchsorted(index[:, 0], np.arange(n + 1)).astype(np.int64)
        self.stored = stored
        self.state: NDArray[Any] | None = None
        self.on_progress: Callable[[int, int], None] | None = None
        work = np.concatenate([[0], np.cumsum(sizes[index[:, 0]] * sizes[index[:, 1]])])
        per_source = work[self.start]
        cuts = np.searchsorted(per_source, np.arange(0, per_source[-1], CELLS_PER_BLOCK))
        self.cuts = np.unique(np.concatenate([cuts, [n]]))

    def start_from_self(self) -> None:
        """Take each target's scaling to itself as the first guess."""
        dtype = np.dtype(np.float64) if self.phi.logs else self.stored
        self.state = self._guess(slice(0, len(self.index))).astype(dtype)

    def _guess(self, part: slice) -> NDArray[np.float64]:
        begin = self.phi._indptr[self.target[part]]
        sizes = np.diff(self.room[part.start : part.stop + 1])
        offsets = np.repeat(begin - self.room[part.start : part.stop], sizes)
        where = offsets + np.arange(self.room[part.start], self.room[part.stop])
        guess: NDArray[np.float64] = self.phi._self[where]
        return guess

    def _blocks(self) -> Iterator[tuple[slice, Index]]:
        """Ranges of pairs, each of whole sources, with ``start`` counted within the range."""
        for first, last in zip(self.cuts[:-1], self.cuts[1:], strict=True):
            part = slice(int(self.start[first]), int(self.start[last]))
            yield part, np.clip(self.start - part.start, 0, part.stop - part.start)
            if self.on_progress is not None:
                self.on_progress(part.stop, len(self.index))

    def solve(self, cost: Matrix, thoroughly: bool = False) -> tuple[Vector, float]:
        """Divergences of all pairs under ``cost`` and the largest marginal error."""
        phi = self.phi
        unit = phi.eps * cost.max()
        data = (phi._indptr, phi._bins, phi._weight)
        if unit == 0.0:
            return np.zeros(len(self.index)), 0.0
        scaled = cost / unit
        if phi.logs:
            kernel, sweep, alone = scaled, sinkhorn.sweep_log, sinkhorn.self_terms_log
            own, error = alone(*data, scaled, phi._self, phi.max_sweeps, 1e-13, phi._threads)
        else:
            exact = np.exp(-scaled)
            kernel, sweep, alone = exact.astype(phi._dtype), sinkhorn.sweep, sinkhorn.self_terms
            own, error = alone(*data, exact, phi._self, phi.max_sweeps, 1e-13, phi._threads)
        keep = self.stored is not None
        if keep and self.state is None:
            self.start_from_self()
        limit, tol = (phi.max_sweeps, phi.tol) if phi.sweeps is None else (phi.sweeps, 0.0)
        if thoroughly:
            limit, tol = phi.max_sweeps, phi.tol
        values, errors = np.empty(len(self.index)), np.empty(len(self.index))
        for part, start in self._blocks():
            room = self.room[part.start : part.stop + 1]
            if keep:
                state = self.state
            else:
                state = self._guess(part).astype(kernel.dtype)
                room = room - room[0]
            values[part], errors[part] = sweep(
                *data, kernel, start, self.target[part], state, room, limit, tol, phi._threads
            )
        self._rescue(scaled, values, errors, limit, tol)
        i, j = self.index.T
        worst = float(max(errors.max(initial=0.0), error.max()))
        return unit * (values - 0.5 * (own[i] + own[j])), worst

    def _rescue(
        self, scaled: Matrix, values: Vector, errors: Vector, limit: int, tol: float
    ) -> None:
        """Solve again, by logarithms, the pairs whose scalings left the range of numbers."""
        lost = np.flatnonzero(~np.isfinite(errors))
        if not len(lost):
            return
        phi = self.phi
        start = np.searchsorted(self.index[lost, 0], np.arange(phi.shape[0] + 1)).astype(np.int64)
        sizes = np.diff(self.room)[lost]
        room = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        state = np.zeros(room[-1])
        values[lost], errors[lost] = sinkhorn.sweep_log(
            phi._indptr,
            phi._bins,
            phi._weight,
            scaled,
            start,
            self.target[lost],
            state,
            room,
            max(limit, 100),
            max(tol, phi.tol),
            phi._threads,
        )

    def brackets(self, cost: Matrix) -> tuple[Vector, Vector]:
        """Bounds of the transport costs, over eps, from the scalings as they are."""
        phi = self.phi
        unit = phi.eps * cost.max()
        if self.state is None:
            self.start_from_self()
        state = np.asarray(self.state)
        state = state if phi.logs else np.log(state)
        lower, upper = sinkhorn.brackets(
            phi._indptr,
            phi._bins,
            phi._weight,
            cost / unit,
            self.start,
            self.target,
            state,
            self.room,
            phi._threads,
        )
        return lower, upper
