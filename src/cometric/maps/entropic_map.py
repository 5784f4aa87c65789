"""The debiased Sinkhorn divergence map on the CPU, with scalings stored between calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from cometric.core.arrays import symmetric
from cometric.core.cached import cached_property
from cometric.core.types import Accuracy, Index, Matrix, Vector
from cometric.kernels import sinkhorn_log, sinkhorn_numba, sinkhorn_pairs, thread_count
from cometric.maps.checking import (
    all_pairs,
    check_cost,
    check_histograms,
    check_index,
    sums_of_rows,
)
from cometric.maps.entropic_pairs import PairGroup, PairTask
from cometric.maps.near import NearPairs
from cometric.maps.packed_cost import PackedCost
from cometric.maps.sinkhorn_map import SAFE, SELF_TOL, SelfTerms, SinkhornMap
from cometric.runtime.devices import free_memory

NEGATIVE_TOL = 1e-10
"""Marginal error to which a divergence is solved before it is reported as negative."""

FEWER_SOURCES = 4
"""The first histograms of pairs are the sources if that reduces their number by this factor."""

SOURCE, PAIR = 6.0, 2000.0
"""Time per kernel entry copied for a source, and per pair, in units of one cell of a problem."""

LAYOUT = 28
"""Bytes per pair in addition to its scalings: both histograms, and the offset of the scalings."""

FLOAT64, FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)


class EntropicMap(SinkhornMap):
    """Sinkhorn divergences, ``phi(cost)_ij = W(a_i, a_j) - (W(a_i, a_i) + W(a_j, a_j)) / 2``.

    W is transport with the penalty eps max(cost) <P, log P>: eps is relative to the cost, so
    that the map is homogeneous. It is not monotone: debiasing subtracts.

    With ``rho`` it is unbalanced: mass may stay unmatched. W is then the least
    <C, P> + max(C) (eps KL(P | a b) + rho KL(P 1 | a) + rho KL(P^T 1 | b)), where KL(p | q) is the
    sum of p log(p / q) - p + q, and eps max(C) (m(a) - m(b))^2 / 2 is added to the divergence of
    histograms with different masses m. Large ``rho`` gives balanced transport.

    The scalings of every pair are stored between calls. After a small change of the cost one
    sweep is then as good as a full solve: the error of its value is of second order.

    Parameters
    ----------
    hist
        Histograms as rows, each summing to 1, or to any positive mass with ``rho``; sparse stays
        sparse.
    eps
        Regularization relative to the largest cost, positive and finite.
    rho
        Price of unmatched mass relative to the largest cost, positive and finite; None for
        balanced transport, where all mass is matched.
    sweeps
        Sweeps per call; None sweeps until every pair's marginal error is at most ``tol``.
    tol, max_sweeps
        Marginal error at which a pair is solved, and the maximum number of sweeps per pair. After
        a call, ``error`` is the largest marginal error; if unbalanced, the l1 norm of the last
        change of a plan's marginals.
    dtype
        float64, or float32 for half the memory and about 6 digits if eps is at least 0.04.
    margin
        With ``sweeps``: pairs whose marginal error is larger get up to 20 sweeps more.
    memory_limit
        Bytes for the stored scalings, half of the free memory by default. If they do not fit in
        float64, they are stored in float32. If they still do not fit, they are not stored, and
        each call starts from the scalings of every histogram to itself.
    n_threads
        Threads to use; the result is the same, bit by bit, for any number.

    Examples
    --------
    >>> import cometric as cm
    >>> phi = cm.EntropicMap([[1, 0, 0], [0, 0.5, 0.5]], eps=0.1)
    >>> phi([[0, 1, 2], [1, 0, 1], [2, 1, 0]]).round(3)
    array([[0.   , 1.431],
           [1.431, 0.   ]])
    """

    n_threads: int | None
    _rounding: ClassVar[dict[str, float]] = {"float64": 0.0, "float32": 1e-6}

    def __init__(
        self,
        hist: Any,
        eps: float,
        *,
        rho: float | None = None,
        sweeps: int | None = None,
        tol: float = 1e-10,
        max_sweeps: int = 10_000,
        dtype: Any = np.float64,
        margin: float = np.inf,
        memory_limit: float | None = None,
        n_threads: int | None = None,
    ) -> None:
        rows = check_histograms(hist, any_mass=rho is not None)
        accuracy = Accuracy(sweeps, tol, margin, np.dtype(dtype).name)
        super().__init__(rows, eps, rho, accuracy, max_sweeps)
        self.precision, self.dtype = self.accuracy.precision, np.dtype(self.accuracy.precision)
        self.logs = self._largest_log > SAFE[FLOAT64]
        n = self.shape[0]
        order = np.argsort(-np.diff(rows.indptr), kind="stable")
        self._rank = np.argsort(order)
        self._hist = rows = rows[order]  # the larger histogram is the source of a pair
        self._rows = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
        self.n_threads = None if n_threads is None else thread_count(n_threads)
        self._self_scalings = self._first_scalings()

        limit = free_memory() / 2 if memory_limit is None else memory_limit
        sizes = np.diff(self._rows[0])
        self.scalings = sum(int(size) * i for i, size in enumerate(sizes))  # of all pairs
        layout = n * (n - 1) // 2 * 12  # bytes of targets and offsets
        kinds = [FLOAT64] if self.logs else [self.dtype, FLOAT32]
        self._choose_storage(kinds, self.scalings, limit - layout)
        self.memory_used += layout
        self._all: PairGroup | None = None
        self._parts: list[PairGroup] = []  # see ``divide``
        self._blocks: dict[tuple[int, int], PairGroup] = {}  # see ``advance``
        self._packed: PackedCost | None = None

    def __repr__(self) -> str:
        n, d = self.shape
        form = "log domain" if self.logs else self.precision
        return f"EntropicMap({n} histograms on {d} bins, {self._parameters}, {form})"

    @cached_property
    def _nearly_equal(self) -> NearPairs:
        return NearPairs(self._hist)

    @property
    def histograms(self) -> sparse.csr_array:
        """The histograms, one per row, the largest first."""
        return self._hist

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        checked, accuracy = check_cost(cost, self.shape[1]), self._begin(accuracy)
        # Rounded to the precision of the sweeps, as are costs sent to the workers of a cluster
        cost = checked.astype(self.dtype, copy=False).astype(FLOAT64, copy=False)
        group = self._all or PairGroup(self._rows[0], all_pairs(self.shape[0]), self.stored)
        values = self._divergences(group, cost, accuracy)
        self._all = None if self.stored is None else group
        return self.assemble(values)

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        return self._pairs(cost, None, self._begin(accuracy), False, index)

    def under(
        self, cost: Matrix, own: tuple[Vector, Vector] | None = None, few: bool = False
    ) -> Callable[[Index], Vector]:
        """A function from pairs to their divergences under one cost; computes self terms once.

        ``own`` is the result of :meth:`own_terms` for the same histograms and cost, if known.
        ``few`` means few pairs of each histogram: kernel entries are then copied pair by pair.
        """
        cost, accuracy = check_cost(cost, self.shape[1]), self._begin(None)
        if own is None:
            own_terms = self._self_terms_under(cost, accuracy.sweeps)
            return partial(self._pairs, cost, own_terms, accuracy, few)
        scalings, values = own
        order = np.argsort(self._rank)
        starts = np.concatenate([[0], np.cumsum(np.diff(self._rows[0])[self._rank])])
        bins = self._hist[self._rank].indices
        given = sparse.csr_array((scalings, bins, starts), self.shape)
        self._self_scalings = given[order].data.astype(np.float64)
        return partial(self._pairs, cost, (values[order], np.zeros(len(order))), accuracy, few)

    def own_terms(self, cost: Matrix) -> tuple[Vector, Vector]:
        """For every histogram a, as passed, the scaling u to itself, and its self term over eps.

        u (K u) = a with K = exp(-cost / eps max(cost)), or a (K u)^(eps / (eps + rho)).
        """
        terms = self._self_terms_under(check_cost(cost, self.shape[1]), self.accuracy.sweeps)
        costs = np.zeros(self.shape[0]) if terms is None else terms[0][self._rank]
        indptr, bins, _ = self._rows
        scalings = sparse.csr_array((self._self_scalings, bins, indptr), self.shape)[self._rank]
        return scalings.data, costs

    def divide(self, parts: Sequence[Index]) -> None:
        self._parts = [self._group(part, self.stored) for part in parts]

    def part(
        self, number: int, index: Index, cost: Matrix, accuracy: Accuracy | None = None
    ) -> Vector:
        return self._sorted(self._parts[number], cost, self._begin(accuracy))

    def row_work(self) -> Vector:
        """Modeled time for the pairs of each source (the larger histogram of a pair)."""
        sizes, after, pairs = sums_of_rows(self._rows[0])
        work: Vector = sizes * (after + SOURCE * self.shape[1]) + PAIR * pairs
        return work

    def row_memory(self) -> Vector:
        """Bytes of the scalings of the pairs of each source, and of their layout."""
        _, after, pairs = sums_of_rows(self._rows[0])
        stored = 0 if self.stored is None else self.stored.itemsize
        memory: Vector = stored * after + LAYOUT * pairs
        return memory

    def advance(
        self,
        packed: PackedCost,
        first: int,
        last: int,
        memory: dict[str, Any] | None,
        accuracy: Accuracy,
    ) -> tuple[Vector, dict[str, Any]]:
        """Divergences for the sources ``first`` <= i < ``last``, and the new memory.

        A pure function of the cost and of ``memory``, the one that the previous call returned (None
        at first). :meth:`assemble` makes the matrix of the map from the divergences of all sources,
        range after range.
        """
        accuracy = self._begin(accuracy)
        group = self._blocks.get((first, last))
        if group is None:
            index = all_pairs(self.shape[0], first, last)
            group = self._blocks[first, last] = PairGroup(self._rows[0], index, self.stored)
        self._packed = packed
        before = self._first_scalings() if memory is None else memory["own"]

        def own_terms() -> tuple[SelfTerms | None, Vector]:
            self._self_scalings = before.copy()
            return self._self_terms_under(packed.matrix, accuracy.sweeps), self._self_scalings

        own, self._self_scalings = packed.once("own", own_terms)
        group.restore(None if memory is None else memory.get("scalings"))
        values = self._divergences(group, packed.matrix, accuracy, own)
        after = {"own": self._self_scalings}
        if group.scalings is not None:
            after["scalings"] = group.scalings
        group.scalings, self._packed = None, None
        return values, after

    def assemble(self, values: Vector) -> Matrix:
        """The matrix of the divergences that :meth:`advance` returned, range by range."""
        return symmetric(values, self.shape[0])[np.ix_(self._rank, self._rank)]

    def _first_scalings(self) -> Vector:
        return np.zeros(self._hist.nnz) if self.logs else np.ones(self._hist.nnz)

    def bounds(self, cost: Matrix, index: Index | None = None) -> tuple[Vector, Vector]:
        """Proved bounds (C7) of the divergences of ``index``, all pairs by default."""
        cost = check_cost(cost, self.shape[1])
        n = self.shape[0]
        index = all_pairs(n) if index is None else check_index(index, n)
        unit = self.eps * cost.max()
        if unit == 0.0:
            return np.zeros(len(index)), np.zeros(len(index))
        group = self._group(index, FLOAT64)
        self._divergences(group, cost, self._begin(None))
        low, high = np.empty(len(index)), np.empty(len(index))
        low[group.order], high[group.order] = self._brackets(group, cost)
        diagonal = PairGroup(self._rows[0], np.stack([np.arange(n)] * 2, axis=1), FLOAT64)
        self_low, self_high = self._brackets(diagonal, cost)
        i, j = self._rank[index].T
        return (
            unit * (low - 0.5 * (self_high[i] + self_high[j])),
            unit * (high - 0.5 * (self_low[i] + self_low[j])),
        )

    def plan(self, cost: Matrix, i: int, j: int) -> tuple[Index, Index, Matrix]:
        """Bins of histogram i, bins of histogram j, and the mass between them."""
        cost = check_cost(cost, self.shape[1])
        group = self._group(np.array([[i, j]]), FLOAT64)
        self._divergences(group, cost, self._begin(None))
        indptr, bins, weight = self._rows
        source, target = (slice(*indptr[[k, k + 1]]) for k in group.index[0])
        scaled = cost[np.ix_(bins[source], bins[target])] / (self.eps * cost.max())
        scalings = np.asarray(group.scalings)
        log_v = scalings if self.logs else np.log(scalings)
        log_u = np.log(weight[source]) - self.damping * logsumexp(log_v - scaled, axis=1)
        plan = np.exp(log_u[:, None] + log_v - scaled)
        sides = bins[source].astype(np.int64), bins[target].astype(np.int64)
        if self._rank[i] != group.index[0, 0]:
            return sides[1], sides[0], plan.T
        return *sides, plan

    def _pairs(
        self, cost: Matrix, own: SelfTerms | None, accuracy: Accuracy, few: bool, index: Index
    ) -> Vector:
        return self._sorted(self._group(index, self.dtype, few), cost, accuracy, own)

    def _sorted(
        self,
        group: PairGroup,
        cost: Matrix,
        accuracy: Accuracy,
        own: SelfTerms | None = None,
    ) -> Vector:
        """Divergences of a group in the order of its pairs before they were sorted."""
        divergences = np.empty(len(group.index))
        checked = check_cost(cost, self.shape[1])
        divergences[group.order] = self._divergences(group, checked, accuracy, own)
        divergences[group.order[group.index[:, 0] == group.index[:, 1]]] = 0.0
        return divergences

    def _divergences(
        self, group: PairGroup, cost: Matrix, accuracy: Accuracy, own: SelfTerms | None = None
    ) -> Vector:
        """Divergences of the pairs of a group; ``own`` are the self terms if known."""
        count = len(group.index)
        task = PairTask(group, cost, np.zeros(count), np.full(count, np.inf))
        unit, _ = self._solve(cost, [[task]] if count else [], accuracy, own)
        if task.level is None:  # no pairs, or all costs are zero
            return task.values
        divergences: Vector = task.values - task.level
        np.put(divergences, *task.near)
        return unit * divergences

    def _group(self, index: Index, stored: np.dtype[Any] | None, few: bool = False) -> PairGroup:
        """Pairs sorted by their sources.

        The source is the larger histogram, unless there are far fewer first histograms: fewer
        sources mean fewer copies of kernel columns.
        """
        pairs = self._rank[check_index(index, self.shape[0])]
        larger = np.sort(pairs, axis=1)
        fewer = FEWER_SOURCES * len(np.unique(pairs[:, 0])) <= len(np.unique(larger[:, 0]))
        if not (fewer or few):
            pairs = larger
        order = np.argsort(pairs[:, 0], kind="stable")
        return PairGroup(self._rows[0], pairs[order], stored, few, order)

    def snapshot(self) -> dict[str, Any]:
        groups = self._groups_by_name().items()
        scalings = {name: group.scalings for name, group in groups if group.scalings is not None}
        return super().snapshot() | scalings

    def restore(self, memory: dict[str, Any]) -> None:
        super().restore(memory)
        self._all = None
        if "scalings" in memory:
            self._all = PairGroup(self._rows[0], all_pairs(self.shape[0]), self.stored)
        for name, group in self._groups_by_name().items():
            group.restore(memory.get(name))

    def _groups_by_name(self) -> dict[str, PairGroup]:
        """The groups whose scalings are stored between calls."""
        parts = {f"part{k}": group for k, group in enumerate(self._parts)}
        return parts if self._all is None else {"scalings": self._all, **parts}

    # --------------------------------------------------------------------------- kernels

    def _apply_precision(self) -> None:
        self.dtype = np.dtype(self.precision)

    def _kernel(self, cost: Matrix, unit: float) -> Matrix:
        def compute() -> Matrix:
            kernel: Matrix = cost / unit if self.logs else np.exp(cost / -unit)
            return kernel

        kernel: Matrix = compute() if self._packed is None else self._packed.once("kernel", compute)
        return kernel

    def _self_terms(self, kernel: Matrix, sweeps: int | None) -> SelfTerms:
        self_terms: Callable[..., SelfTerms] = (
            sinkhorn_log.self_terms_log if self.logs else sinkhorn_numba.self_terms
        )
        limit = self.max_sweeps if sweeps is None else 3 * sweeps
        values, errors = self_terms(
            *self._rows, kernel, self._self_scalings, self.ratio, limit, SELF_TOL, self.n_threads
        )
        return values, errors

    def _self_terms_under(self, cost: Matrix, sweeps: int | None) -> SelfTerms | None:
        """The self terms under ``cost``; None if all costs are zero."""
        unit = self.eps * float(cost.max())
        return None if unit == 0.0 else self._self_terms(self._kernel(cost, unit), sweeps)

    def _sweep(
        self, tasks: list[PairTask], kernel: Any, limit: int, tol: float, solve: bool
    ) -> None:
        """The first sweeps; full solves begin in float32 if scalings are stored in float32.

        Float32 reaches the marginal errors in ``_rounding``. Then float64 sweeps follow, usually
        one; the error of its values is of second order.
        """
        rounding = self._rounding["float32"]
        safe = self._largest_log <= SAFE[FLOAT32]
        rough = self.stored == FLOAT32
        if rough and safe and solve and kernel.dtype == FLOAT64:
            single = kernel.astype(FLOAT32)
            for task in tasks:
                self._sweep_pairs(task, task.errors, single, limit, max(tol, rounding))
                task.values[:], task.errors[:] = 0.0, np.inf
        for task in tasks:
            self._sweep_pairs(task, task.errors, kernel, limit, tol, self.report)

    def _resume(self, tasks: list[PairTask], kernel: Any, limit: int, tol: float) -> None:
        for task in tasks:  # the kernel skips the pairs within ``tol``
            self._sweep_pairs(task, task.errors, kernel, limit, tol)

    def _sweep_pairs(
        self,
        task: PairTask,
        errors: Any,
        kernel: Any,
        limit: int,
        tol: float,
        report: Callable[[int, int], None] | None = None,
    ) -> None:
        """Sweep the pairs whose error exceeds ``tol``, from their stored scalings."""
        group = task.group
        scaled = sinkhorn_pairs.sweep_pairs if group.few else sinkhorn_numba.sweep
        sweep = sinkhorn_log.sweep_log if self.logs else scaled
        if group.stored is not None and group.scalings is None:
            group.scalings = group.start_at(self._self_scalings, group.stored, self.n_threads)
        for part, start in group.blocks():
            offsets = group.offsets[part.start : part.stop + 1]
            stored = None if group.scalings is None else group.scalings[offsets[0] : offsets[-1]]
            if stored is None:
                used = group.start_at(self._self_scalings, kernel.dtype, self.n_threads, part)
            else:
                used = stored.astype(kernel.dtype, copy=False)
            pairs = (
                start, group.target[part], used, offsets - offsets[0], task.values[part],
                errors[part],
            )  # fmt: skip
            sweep(*self._rows, kernel, *pairs, self.ratio, limit, tol, self.n_threads)
            if stored is not None and used.dtype != stored.dtype:
                stored[:] = used
            if report is not None:  # only the first sweeps count as progress
                report(part.stop, len(group.index))

    def _repair(self, tasks: list[PairTask], tol: float) -> None:
        """Solve in the log domain the pairs whose scalings overflowed."""
        for task in tasks:
            lost = np.flatnonzero(~np.isfinite(task.errors))
            if not len(lost):
                continue
            group = PairGroup(self._rows[0], task.group.index[lost], None)
            scaled = task.cost / (self.eps * task.cost.max())
            values, errors = task.values[lost], task.errors[lost]
            sinkhorn_log.sweep_log(
                *self._rows, scaled, group.start, group.target, np.zeros(group.offsets[-1]),
                group.offsets, values, errors, self.ratio, self.max_sweeps, tol,
                self.n_threads,
            )  # fmt: skip
            task.values[lost], task.errors[lost] = values, errors

    def _negative_rounds(self, accuracy: Accuracy) -> Sequence[tuple[int, float]]:
        tol, final = self._tolerance(accuracy), max(NEGATIVE_TOL, self._rounding[self.precision])
        return (3, tol), (10, tol), (self.max_sweeps, tol), (self.max_sweeps, final)

    def _is_negative(self, task: PairTask, levels: Vector) -> Any:
        if task.level is None:
            i, j = task.group.index.T
            task.level = 0.5 * (levels[i] + levels[j])
            own = self._self_scalings, self.logs, task.cost / (self.eps * task.cost.max())
            task.near = self._nearly_equal.expand(task.group.index, *own, self.damping)
        mask = task.values < task.level
        mask[task.near[0]] = False
        return mask

    def _sweep_negative(
        self, task: PairTask, mask: Any, kernel: Any, limit: int, tol: float
    ) -> None:
        errors = np.where(mask, np.inf, 0.0)  # the errors of the task do not change
        before = task.values[mask]
        self._sweep_pairs(task, errors, kernel, limit, tol)
        after = task.values[mask]  # NaN if scalings overflow: solved in the log domain before
        task.values[mask] = np.where(np.isnan(after), before, after)

    def _brackets(self, group: PairGroup, cost: Matrix) -> tuple[Vector, Vector]:
        """Bounds on the transport costs over eps, from the stored scalings, without sweeps."""
        if group.scalings is None:
            group.scalings = group.start_at(self._self_scalings, FLOAT64, self.n_threads)
        lower, upper = sinkhorn_log.brackets(
            *self._rows, cost / (self.eps * cost.max()), group.start, group.target,
            group.scalings if self.logs else np.log(group.scalings), group.offsets, self.ratio,
            self.n_threads,
        )  # fmt: skip
        return lower, upper
