"""The debiased Sinkhorn divergence map, with potentials that outlive the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import logsumexp

from cometric.core.arrays import symmetric
from cometric.core.types import Index, Matrix, Vector
from cometric.kernels import sinkhorn, thread_count
from cometric.machine.devices import free_memory
from cometric.maps.checks import (
    all_pairs,
    check_cost,
    check_eps,
    check_histograms,
    check_index,
    fill,
)

SAFE = {np.dtype(np.float64): 150.0, np.dtype(np.float32): 25.0}
"""1 / eps up to which the scalings cannot overflow; beyond it, float64, then logarithms."""

REACH = {np.dtype(np.float64): 0.0, np.dtype(np.float32): 1e-6}
"""Marginal errors below this are rounding."""

FINE = 1e-10
"""Marginal error to which a divergence is solved before it is called negative."""

MORE_SWEEPS = 20
"""For the pairs of a call that a few sweeps leave beyond the margin."""

FEW_SOURCES = 4
"""Times fewer sources for which a pair's first histogram is its source, larger or not."""

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
        float64, or float32 for half the memory and some 6 digits where eps is at least 0.04.
    margin
        With ``sweeps``: pairs whose marginal error is larger get up to 20 sweeps more.
    memory_limit
        Bytes the scalings may take, half of the free memory by default. What does not fit in
        float64 is kept in float32; what does not fit there is not kept, and each call starts
        from the scalings of every histogram to itself.
    n_threads
        Threads to use; the answer is the same, bit by bit, for any number.

    Examples
    --------
    >>> import cometric as cm
    >>> phi = cm.EntropicMap([[1, 0, 0], [0, 0.5, 0.5]], eps=0.1)
    >>> phi([[0, 1, 2], [1, 0, 1], [2, 1, 0]]).round(3)
    array([[0.   , 1.431],
           [1.431, 0.   ]])
    """

    def __init__(
        self,
        hist: Any,
        eps: float,
        *,
        sweeps: int | None = None,
        tol: float = 1e-10,
        max_sweeps: int = 10_000,
        dtype: Any = np.float64,
        margin: float = np.inf,
        memory_limit: float | None = None,
        n_threads: int | None = None,
    ) -> None:
        check_eps(eps)
        rows = check_histograms(hist)
        order = np.argsort(-np.diff(rows.indptr), kind="stable")
        self._rank = np.argsort(order)
        self._hist = rows[order]  # the larger of two is the source of their pair
        self._indptr = self._hist.indptr.astype(np.int64)
        self._bins = self._hist.indices.astype(np.int32)
        self._weight = self._hist.data
        self._threads = thread_count(n_threads)
        self.eps, self.sweeps, self.tol, self.max_sweeps = eps, sweeps, tol, max_sweeps
        if np.dtype(dtype) not in SAFE:
            raise ValueError(f"`dtype` is {np.dtype(dtype)}; choose float64 or float32.")
        self.precision = np.dtype(dtype).name
        self.logs = 1.0 / eps > SAFE[self.dtype]
        limit = free_memory() / 2 if memory_limit is None else memory_limit
        n = self.shape[0]
        scalings = sum(int(size) * i for i, size in enumerate(np.diff(self._indptr)))
        self.scalings = scalings  # numbers of all pairs
        self._fixed = n * (n - 1) // 2 * 12  # targets and offsets
        kinds = [np.dtype(np.float64)] if self.logs else [self.dtype, np.dtype(np.float32)]
        fits = (kind for kind in kinds if kind.itemsize * scalings + self._fixed <= limit)
        self.stored: np.dtype[Any] | None = next(fits, None)
        self.memory = (self.stored.itemsize if self.stored else 0) * scalings + self._fixed
        self._self = np.zeros(self._hist.nnz) if self.logs else np.ones(self._hist.nnz)
        self._all: _Group | None = None
        self._parts: list[_Group] = []  # see ``divide``
        self.margin = margin
        self.error = np.inf
        self.negatives = Negatives(0, 0.0)
        self.on_progress: Callable[[int, int], None] | None = None

    @property
    def precision(self) -> str:
        """The numbers it works in, "float64" or "float32"; may be changed between calls."""
        return str(self.dtype.name)

    @precision.setter
    def precision(self, name: str) -> None:
        dtype = np.dtype(name)
        self.dtype = dtype if 1.0 / self.eps <= SAFE[dtype] else np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        return self._hist.shape  # type: ignore[no-any-return]

    @property
    def histograms(self) -> sparse.csr_array:
        """The histograms, one per row, the largest first."""
        return self._hist

    def __repr__(self) -> str:
        n, d = self.shape
        form = "log domain" if self.logs else self.dtype.name
        return f"EntropicMap({n} histograms on {d} bins, eps = {self.eps:g}, {form})"

    def __call__(self, cost: Matrix) -> Matrix:
        cost = check_cost(cost, self.shape[1])
        group = self._all
        if group is None:
            group = _Group(self, all_pairs(self.shape[0]), self.stored)
        group.on_progress = self.on_progress
        values = group.solve(cost)
        if self.stored is not None:
            self._all = group
        self.error = group.error
        below = values[values < 0]
        self.negatives = Negatives(len(below), float(below.min(initial=0.0)))
        return symmetric(values, self.shape[0])[np.ix_(self._rank, self._rank)]

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        return self._renew(*self._group(check_index(index, self.shape[0]), self.dtype), cost)

    def under(self, cost: Matrix) -> Callable[[Index], Vector]:
        """Divergences of pairs under one cost; those of histograms to themselves are found once."""
        cost = check_cost(cost, self.shape[1])
        own = self._own_terms(cost)

        def pairs(index: Index) -> Vector:
            group, order = self._group(check_index(index, self.shape[0]), self.dtype)
            return self._renew(group, order, cost, own)

        return pairs

    def divide(self, parts: Sequence[Index]) -> list[Callable[[Matrix], Vector]]:
        """Divergences of each part of the pairs as a function of the cost, scalings remembered."""
        found = [self._group(check_index(index, self.shape[0]), self.stored) for index in parts]
        self._parts = [group for group, _ in found]
        return [partial(self._renew, group, order) for group, order in found]

    def _renew(
        self, group: _Group, order: Index, cost: Matrix, own: tuple[Vector, Vector] | None = None
    ) -> Vector:
        group.on_progress = self.on_progress
        result = np.empty(len(order))
        result[order] = group.solve(check_cost(cost, self.shape[1]), own)
        self.error = group.error
        result[order[group.index[:, 0] == group.index[:, 1]]] = 0.0
        return result

    def snapshot(self) -> dict[str, Any]:
        memory = {"self": self._self, "margin": self.margin, "error": self.error}
        for name, group in self._kept().items():
            if group.state is not None:
                memory[name] = group.state
        return memory

    def restore(self, memory: dict[str, Any]) -> None:
        fill(self._self, memory["self"], "scalings of histograms to themselves")
        self.margin, self.error = float(memory["margin"]), float(memory["error"])
        self._all = None
        if "scalings" in memory:
            self._all = _Group(self, all_pairs(self.shape[0]), self.stored)
        for name, group in self._kept().items():
            group.state = None
            if name in memory:
                group.state = np.empty(group.room[-1], self.stored)
                fill(group.state, memory[name], "scalings")

    def _kept(self) -> dict[str, _Group]:
        """The groups whose scalings outlive a call, by name."""
        parts = {f"part{k}": group for k, group in enumerate(self._parts)}
        return parts if self._all is None else {"scalings": self._all, **parts}

    def own_scalings(self, cost: Matrix) -> sparse.csr_array:
        """The u of every histogram a to itself: u (K u) = a with K = exp(-cost / eps max(cost))."""
        self._own_terms(check_cost(cost, self.shape[1]))
        return sparse.csr_array((self._self, self._bins, self._indptr), self.shape)[self._rank]

    def _own_terms(self, cost: Matrix) -> tuple[Vector, Vector] | None:
        unit = self.eps * cost.max()
        if unit == 0.0:
            return None
        kernel = cost / unit if self.logs else np.exp(-cost / unit)
        return _Group(self, np.empty((0, 2), np.int64), None)._self_terms(kernel)

    def bounds(self, cost: Matrix, index: Index | None = None) -> tuple[Vector, Vector]:
        """Proved bounds (C7) of the divergences of ``index``, all pairs by default."""
        cost = check_cost(cost, self.shape[1])
        n = self.shape[0]
        index = all_pairs(n) if index is None else check_index(index, n)
        unit = self.eps * cost.max()
        if unit == 0.0:  # nothing costs anything
            return np.zeros(len(index)), np.zeros(len(index))
        group, order = self._group(index, np.dtype(np.float64))
        group.on_progress = self.on_progress
        group.solve(cost)
        low, high = np.empty(len(index)), np.empty(len(index))
        low[order], high[order] = group.brackets(cost)
        alone = _Group(self, np.stack([np.arange(n)] * 2, axis=1), np.dtype(np.float64))
        self_low, self_high = alone.brackets(cost)
        i, j = self._rank[index].T
        return (
            unit * (low - 0.5 * (self_high[i] + self_high[j])),
            unit * (high - 0.5 * (self_low[i] + self_low[j])),
        )

    def plan(self, cost: Matrix, i: int, j: int) -> tuple[Index, Index, Matrix]:
        """Bins of histogram i, bins of histogram j, and the mass between them."""
        cost = check_cost(cost, self.shape[1])
        group, _ = self._group(np.array([[i, j]]), np.dtype(np.float64))
        group.solve(cost)
        (first, second), state = group.index[0], np.asarray(group.state)
        own, other = (slice(*self._indptr[[k, k + 1]]) for k in (first, second))
        scaled = cost[np.ix_(self._bins[own], self._bins[other])] / (self.eps * cost.max())
        log_v = state if self.logs else np.log(state)
        log_u = np.log(self._weight[own]) - logsumexp(log_v - scaled, axis=1)
        plan = np.exp(log_u[:, None] + log_v - scaled)
        sides = (self._bins[own].astype(np.int64), self._bins[other].astype(np.int64))
        if self._rank[i] != first:
            return sides[1], sides[0], plan.T
        return *sides, plan

    def _group(self, index: Index, stored: np.dtype[Any] | None) -> tuple[_Group, Index]:
        """The pairs sorted by their sources, and the order that does so.

        The larger histogram is the source, unless taking the first one makes far fewer of them:
        each copies its columns of the kernel.
        """
        pairs = self._rank[index]
        larger = np.sort(pairs, axis=1)
        if FEW_SOURCES * len(np.unique(pairs[:, 0])) > len(np.unique(larger[:, 0])):
            pairs = larger
        order = np.argsort(pairs[:, 0], kind="stable")
        return _Group(self, pairs[order], stored), order


class _Group:
    """Some pairs of a map, sorted by their first histogram, and their scalings.

    Histograms are numbered by size here, the largest first.
    """

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
        self.error = np.inf
        self.on_progress: Callable[[int, int], None] | None = None
        work = np.concatenate([[0], np.cumsum(sizes[index[:, 0]] * sizes[index[:, 1]])])
        per_source = work[self.start]
        cuts = np.searchsorted(per_source, np.arange(0, per_source[-1], CELLS_PER_BLOCK))
        self.cuts = np.unique(np.concatenate([cuts, [n]]))

    def solve(self, cost: Matrix, own: tuple[Vector, Vector] | None = None) -> Vector:
        """Divergences of all pairs under ``cost``; ``error`` is then the largest of a margin.

        ``own`` are the terms of histograms to themselves where they are known.
        """
        phi = self.phi
        unit = phi.eps * cost.max()
        values, errors = np.zeros(len(self.index)), np.full(len(self.index), np.inf)
        if unit == 0.0:
            self.error = 0.0
            return values
        scaled = cost / unit
        kernel = scaled if phi.logs else np.exp(-scaled)
        levels, own_errors = self._self_terms(kernel) if own is None else own
        if not phi.logs:
            kernel = kernel.astype(phi.dtype, copy=False)
        i, j = self.index.T
        level = 0.5 * (levels[i] + levels[j])
        reach = max(phi.tol, REACH[phi.dtype])
        if phi.sweeps is None:
            self._sweep(kernel, values, errors, phi.max_sweeps, reach)
        else:
            self._sweep(kernel, values, errors, phi.sweeps, 0.0)
            self._sweep(kernel, values, errors, MORE_SWEEPS, max(phi.margin, reach))
        self._rescue(scaled, values, errors)
        self.error = float(max(errors.max(initial=0.0), own_errors.max()))
        for tol in (reach, max(FINE, REACH[phi.dtype])):
            below = values < level
            if below.any():  # not there yet, or true: look closer
                errors = np.where(below, np.inf, 0.0)
                self._sweep(kernel, values, errors, phi.max_sweeps, tol)
        divergences: Vector = unit * (values - level)
        return divergences

    def _self_terms(self, kernel: Matrix) -> tuple[Vector, Vector]:
        """Costs over eps of every histogram to itself, and their marginal errors."""
        phi = self.phi
        alone = sinkhorn.self_terms_log if phi.logs else sinkhorn.self_terms
        limit = phi.max_sweeps if phi.sweeps is None else 3 * phi.sweeps
        values, errors = alone(
            phi._indptr, phi._bins, phi._weight, kernel, phi._self, limit, 1e-13, phi._threads
        )
        return values, errors

    def _sweep(
        self, kernel: NDArray[Any], values: Vector, errors: Vector, limit: int, tol: float
    ) -> None:
        """Sweep the pairs whose error exceeds ``tol``, in place, from their last scalings."""
        phi = self.phi
        sweep = sinkhorn.sweep_log if phi.logs else sinkhorn.sweep
        if self.stored is not None and self.state is None:
            self.state = self._guess(slice(0, len(self.index)), self.stored)
        for part, start in self._blocks():
            room = self.room[part.start : part.stop + 1]
            kept = None if self.state is None else self.state[room[0] : room[-1]]
            state = self._guess(part, kernel.dtype) if kept is None else kept
            state = state.astype(kernel.dtype, copy=False)
            sweep(
                phi._indptr, phi._bins, phi._weight, kernel, start, self.target[part], state,
                room - room[0], values[part], errors[part], limit, tol, phi._threads,
            )  # fmt: skip
            if kept is not None and state.dtype != kept.dtype:
                kept[:] = state

    def _guess(self, part: slice, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Each target's scaling to itself."""
        room = self.room[part.start : part.stop + 1]
        state = np.empty(room[-1] - room[0], dtype)
        sinkhorn.copy_scalings(self.phi._indptr, self.phi._self, self.target[part], room, state)
        return state

    def _blocks(self) -> Iterator[tuple[slice, Index]]:
        """Ranges of pairs, each of whole sources, with ``start`` counted within the range."""
        for first, last in zip(self.cuts[:-1], self.cuts[1:], strict=True):
            part = slice(int(self.start[first]), int(self.start[last]))
            yield part, np.clip(self.start - part.start, 0, part.stop - part.start)
            if self.on_progress is not None:
                self.on_progress(part.stop, len(self.index))

    def _rescue(self, scaled: Matrix, values: Vector, errors: Vector) -> None:
        """Solve again, by logarithms, the pairs whose scalings left the range of numbers."""
        lost = np.flatnonzero(~np.isfinite(errors))
        if not len(lost):
            return
        phi = self.phi
        start = np.searchsorted(self.index[lost, 0], np.arange(phi.shape[0] + 1)).astype(np.int64)
        room = np.concatenate([[0], np.cumsum(np.diff(self.room)[lost])]).astype(np.int64)
        values[lost], errors[lost] = sinkhorn.sweep_log(
            phi._indptr, phi._bins, phi._weight, scaled, start, self.target[lost],
            np.zeros(room[-1]), room, values[lost], errors[lost], phi.max_sweeps, phi.tol,
            phi._threads,
        )  # fmt: skip

    def brackets(self, cost: Matrix) -> tuple[Vector, Vector]:
        """Bounds of the transport costs, over eps, from the scalings as they are."""
        phi = self.phi
        if self.state is None:
            self.state = self._guess(slice(0, len(self.index)), np.dtype(np.float64))
        lower, upper = sinkhorn.brackets(
            phi._indptr, phi._bins, phi._weight, cost / (phi.eps * cost.max()), self.start,
            self.target, self.state if phi.logs else np.log(self.state), self.room, phi._threads,
        )  # fmt: skip
        return lower, upper
