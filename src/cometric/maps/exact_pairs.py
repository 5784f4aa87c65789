"""Some pairs of histograms solved by the network simplex, and maps with fixed couplings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from cometric.core.arrays import symmetric
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.kernels import geometry, plans, thread_count, threads
from cometric.kernels.nodes import Histograms, Trees, drop_invalid
from cometric.kernels.simplex import transport
from cometric.maps.checking import check_cost, check_index

METRIC_TOLERANCE = 2.0**-48
"""Violations of the triangle inequality up to this fraction of the largest cost are ignored."""

CELLS_PER_BLOCK = 2e8
"""Arcs per call of the kernel: about a second between reports of progress and checks for Ctrl-C."""

SMALL = 2e5
"""Number of arcs below which one thread is faster than several."""

Moves = tuple[Index, Index, Vector]
"""Couplings as start, cells (source * bins + target), amounts."""


class Plans(NamedTuple):
    """Optimal plans of some pairs, one after the other.

    Plan p moves ``mass[e]`` from bin ``source[e]`` to bin ``target[e]`` for e in
    ``start[p] : start[p + 1]``. Its duals f (on the bins of the first histogram) and g (on
    those of the second) satisfy f_k + g_l <= C_kl and <a, f> + <b, g> = ``bounds[p]``. The true
    distance is between ``bounds[p]`` and ``values[p]``.
    """

    values: Vector
    bounds: Vector
    start: Index
    source: Index
    target: Index
    mass: Vector
    f: list[Vector]
    g: list[Vector]


class PairBatch:
    """Some pairs of histograms, their values and their trees.

    Parameters
    ----------
    hist
        The histograms in the format of the kernels.
    bins
        The number of bins.
    index
        The pairs, (p, 2).
    keep_trees
        Whether there is room for their trees; otherwise every solve starts from scratch.
    n_threads
        Threads of a call, unless the problems are small.
    """

    def __init__(
        self, hist: Histograms, bins: int, index: Index, keep_trees: bool, n_threads: int | None
    ) -> None:
        self.hist, self.bins = hist, bins
        self.on_progress: Callable[[int, int], None] | None = None
        self.index = index
        sizes = np.diff(hist.indptr)
        nodes = sizes[index[:, 0]] + sizes[index[:, 1]]
        self.room = np.zeros(len(index) + 1, np.int64)
        if keep_trees:
            np.cumsum(nodes, out=self.room[1:])
        small = nodes.max(initial=0) < 2**16
        self.tree = np.zeros(self.room[-1], np.uint16 if small else np.int32)
        self.state = np.zeros(len(index), np.uint8)
        self.values = np.zeros(len(index))
        self.moves_of: Any = None  # numbers of moves, after a solve
        work = np.cumsum(sizes[index[:, 0]] * sizes[index[:, 1]])
        total = work[-1] if len(work) else 0
        steps = np.arange(CELLS_PER_BLOCK, total, CELLS_PER_BLOCK)
        self.threads = 1 if total < SMALL else thread_count(n_threads)
        self.cuts = np.unique(np.concatenate([[0], np.searchsorted(work, steps), [len(index)]]))

    def _data(self, part: slice | None = None) -> tuple[Histograms, Trees]:
        """The arguments of the kernels: histograms, and some pairs (or all) with their trees."""
        part = slice(0, len(self.index)) if part is None else part
        offsets = self.room[part.start : part.stop + 1]
        return (
            self.hist,
            Trees(self.index[part], self.tree, offsets, self.state[part]),
        )

    def blocks(self) -> Iterator[slice]:
        for start, stop in zip(self.cuts[:-1], self.cuts[1:], strict=True):
            yield slice(int(start), int(stop))
            if self.on_progress is not None:
                self.on_progress(int(stop), len(self.index))

    def solve(self, cost: Matrix, metric: bool | None = None, pivots: bool = True) -> None:
        """Set optimal values and trees under ``cost``.

        ``metric`` says whether the cost is a metric, if known. Without ``pivots``, values and
        trees are those of the initial plans.
        """
        cost, unit = rescale_pow2(cost)
        moves = np.zeros(len(self.index), np.int32)
        self.moves_of = None
        with threads(self.threads):
            cancel = is_metric(cost) if metric is None else metric
            for part in self.blocks():
                values, moves[part] = transport(
                    *self._data(part), cost, cancel, pivots, self.threads
                )
                self.values[part] = values * unit
        self.moves_of = moves

    def bounds(self, cost: Matrix) -> tuple[Vector, Vector]:
        """Lower and upper bounds of the distances, in exact arithmetic: dual and primal values."""
        cost, unit = rescale_pow2(cost)
        lower, upper = np.empty(len(self.index)), np.empty(len(self.index))
        nodes, empty = 2 * self.bins + 8, np.empty(0)
        with threads(self.threads):
            for part in self.blocks():
                values, gaps = plans.values_and_gaps(
                    *self._data(part), cost, empty, empty, self.threads
                )
                gaps *= 1.0 + nodes * plans.UNIT_ROUNDOFF
                # Includes the rounding of these lines.
                margins = 16.0 * plans.UNIT_ROUNDOFF * (values + gaps)
                lower[part] = unit * (values - gaps - margins)
                upper[part] = unit * (values + margins)
        return lower, upper

    def replay(self, cost: Matrix) -> Vector:
        """Cost of the stored plans under another cost."""
        values = np.empty(len(self.index))
        with threads(self.threads):
            for part in self.blocks():
                values[part] = plans.tree_costs(*self._data(part), cost, self.threads)
        return values

    def drop_invalid(self) -> int:
        """Discard stored trees that do not match the histograms; return their number."""
        with threads(self.threads):
            return int(drop_invalid(*self._data(), self.threads))

    def start_from(self, tree: Index, state: Index) -> None:
        """Start from copies of these trees, except damaged ones and those of other histograms."""
        self.tree[:] = tree
        self.state[:] = state
        self.drop_invalid()

    def moves(self, full: bool) -> Moves:
        """The stored plans as start, cells (source * bins + target), amounts.

        Mass that stays in its bin is listed only if ``full``.
        """
        d = self.bins
        start = np.zeros(len(self.index) + 1, np.int64)
        with threads(self.threads):
            counts: Any = None if full else self.moves_of
            if counts is None:
                counts = plans.count_moves(*self._data(), full, self.threads)
            np.cumsum(counts, out=start[1:])
            cells = np.empty(start[-1], np.int32 if d * d < 2**31 else np.int64)
            amounts = np.empty(start[-1])
            plans.write_moves(*self._data(), full, d, start, cells, amounts, self.threads)
        return start, cells, amounts

    def plans(self, cost: Matrix) -> Plans:
        """The stored plans with their duals."""
        start, cells, mass = self.moves(full=True)
        source, target = np.divmod(cells.astype(np.int64), self.bins)
        f, g = np.zeros(self.room[-1]), np.zeros(self.room[-1])
        cost, unit = rescale_pow2(cost)
        with threads(self.threads):
            _, gaps = plans.values_and_gaps(*self._data(), cost, f, g, self.threads)
        f *= unit
        g *= unit
        sizes = np.diff(self.hist.indptr)[self.index]
        ends = self.room[:-1, None] + sizes
        return Plans(
            self.values,
            self.values - unit * gaps,
            start,
            source,
            target,
            mass,
            [f[a:b] for a, b in zip(self.room[:-1], ends[:, 0], strict=True)],
            [g[a:b] for a, b in zip(self.room[:-1], ends[:, 1], strict=True)],
        )


def is_metric(cost: Matrix) -> bool:
    """Whether a cost satisfies the triangle inequality, up to rounding."""
    violation: float = geometry.triangle_violation(cost)
    return bool(violation <= METRIC_TOLERANCE * cost.max(initial=0.0))


def rescale_pow2(cost: Matrix) -> tuple[Matrix, float]:
    """The cost divided by a power of 2, which is exact, and that power; 1 for usual magnitudes."""
    unit = 2.0 ** np.frexp(cost.max(initial=0.0))[1]
    return (cost, 1.0) if 2.0**-100 < unit < 2.0**100 else (cost / unit, float(unit))


class FixedMap(DistanceMap):
    """A map whose couplings are fixed: distances of pairs are taken from all of them."""

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        return super().pairs(cost, check_index(index, self.shape[0]))


class FrozenMap(FixedMap):
    """A map with fixed couplings: ``phi(cost)_ij = <P_ij, cost>``, linear in the cost."""

    def __init__(self, shape: tuple[int, int], moves: Moves, threads: int | None) -> None:
        self.shape = shape
        self._start, self._cells, self._amounts = moves
        self._threads = threads

    @property
    def moves(self) -> int:
        """The number of moves in all couplings."""
        return len(self._cells)

    def __repr__(self) -> str:
        n, d = self.shape
        return f"FrozenMap({n} histograms on {d} bins, {len(self._cells)} moves)"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        moves, cost = (self._start, self._cells, self._amounts), check_cost(cost, self.shape[1])
        return symmetric(apply_moves(moves, cost, self._threads), self.shape[0])


class ReplayedMap(FixedMap):
    """Like :class:`FrozenMap`, with couplings read from stored trees in each call."""

    def __init__(self, shape: tuple[int, int], batch: PairBatch) -> None:
        self.shape = shape
        self._batch = copy(batch)
        self._batch.on_progress = None  # a map reports its own calls only
        self._batch.tree, self._batch.state = batch.tree.copy(), batch.state.copy()

    def __repr__(self) -> str:
        n, d = self.shape
        return f"ReplayedMap({n} histograms on {d} bins)"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        return symmetric(self._batch.replay(check_cost(cost, self.shape[1])), self.shape[0])


def apply_moves(moves: Moves, cost: Matrix, n_threads: int | None) -> Vector:
    """The costs of couplings under a cost."""
    count = 1 if len(moves[1]) < SMALL else thread_count(n_threads)
    with threads(count):
        values: Vector = plans.move_costs(*moves, cost.reshape(-1), count)
    return values
