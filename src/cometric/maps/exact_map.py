"""The exact Wasserstein distance map, by the network simplex method with warm starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.arrays import symmetric
from cometric.core.histograms import Histograms
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.kernels import thread_count, threads
from cometric.kernels.nodes import Histograms as Rows
from cometric.maps.checking import all_pairs, check_cost, check_index, fill, sums_of_rows
from cometric.maps.exact_pairs import (
    FrozenMap,
    Moves,
    PairBatch,
    Plans,
    ReplayedMap,
    apply_moves,
    is_metric,
    rescale_pow2,
)
from cometric.maps.packed_cost import PackedCost
from cometric.runtime.devices import free_memory

REPLAYED = 3
"""Copies of the trees if couplings are read from them: the current one, and the last two."""

PAIR = 20.0
"""Fixed time per pair, in units of the time per arc."""

LAYOUT = 33
"""Bytes per pair in addition to its tree: both histograms, offset, state, and value."""


class Memory(NamedTuple):
    """Bytes of the trees of all pairs, and of their couplings as lists of moves.

    Couplings count twice: policy iteration stores the last ones beside the new ones.
    """

    trees: int
    moves: int


def memory_needs(hist: Histograms) -> Memory:
    """The memory needed for all pairs of these histograms; allocates nothing."""
    n, d = hist.shape
    sizes = np.diff(hist.rows.indptr)
    nodes = int(sizes.sum()) * (n - 1)  # each histogram takes part in n - 1 pairs
    wide = 2 * int(sizes.max()) >= 2**16
    return Memory(
        trees=nodes * (4 if wide else 2) + n * (n - 1) // 2 * 25,
        moves=2 * (nodes * (12 if d**2 < 2**31 else 16) + n * (n - 1) // 2 * 8),
    )


class Bases(NamedTuple):
    """The trees of all pairs of a map, for warm starts of another map of the same histograms."""

    tree: Any
    state: Any

    @property
    def nbytes(self) -> int:
        return int(self.tree.nbytes + self.state.nbytes)


class ExactMap(DistanceMap):
    """All Wasserstein distances between histograms, ``phi(cost)_ij = W_cost(a_i, a_j)``.

    Pairs are solved on their supports only, in parallel, in float64, each to optimality.
    The optimal tree of every pair is stored, so that a call with a similar cost takes a few
    pivots; the answer depends on the stored trees only through ties and rounding.

    Parameters
    ----------
    hist
        Histograms as rows, each summing to 1; sparse stays sparse.
    memory_limit
        Bytes for trees and couplings; half of the free memory by default. If they do not fit, each
        call computes them again, which is slower.
    n_threads
        Threads to use, all by default. The answer is the same, bit by bit, for any number.

    Examples
    --------
    >>> import cometric as cm
    >>> phi = cm.ExactMap([[1, 0, 0], [0, 0.5, 0.5]])
    >>> phi([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    array([[0. , 1.5],
           [1.5, 0. ]])
    """

    n_threads: int | None

    def __init__(
        self, hist: Any, *, memory_limit: float | None = None, n_threads: int | None = None
    ) -> None:
        checked = Histograms.of(hist)
        self._hist, self.shape = checked.rows, checked.shape
        self._integer = Rows(*checked.integer_parts)
        self.memory = memory_needs(checked)
        self.n_threads = None if n_threads is None else thread_count(n_threads)
        self._memory_limit = free_memory() / 2 if memory_limit is None else memory_limit
        self.keeps_trees = self.memory.trees <= self._memory_limit
        self.memory_used = self._within_limit(*self.memory)
        # Whether policy iteration stays within the limit, with couplings or copies of trees
        self.has_room_to_freeze = self.memory_used > self.memory.trees
        self._all: PairBatch | None = None  # the trees of all pairs, after the first call
        self._parts: list[PairBatch] = []  # the trees of parts of the pairs, see ``divide``
        self.first_bases: Bases | None = None  # warm start for ``bounds``

    @property
    def bases(self) -> Bases | None:
        """The trees of the last call for all pairs, if stored."""
        return None if self._all is None else Bases(self._all.tree, self._all.state)

    @property
    def histograms(self) -> sparse.csr_array:
        """The histograms, one per row."""
        return self._hist

    def __repr__(self) -> str:
        n, d = self.shape
        return f"ExactMap({n} histograms on {d} bins, {self._hist.nnz / n:.1f} used by each)"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        batch = self._solve_all(check_cost(cost, self.shape[1]))
        return symmetric(batch.values, self.shape[0])

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        batch = self._batch(check_index(index, self.shape[0]), keep_trees=False)
        batch.on_progress = self.on_progress
        batch.solve(check_cost(cost, self.shape[1]))
        return batch.values

    def divide(self, parts: Sequence[Index]) -> None:
        n = self.shape[0]
        self._parts = [self._batch(check_index(index, n), self.keeps_trees) for index in parts]

    def part(
        self, number: int, index: Index, cost: Matrix, accuracy: Accuracy | None = None
    ) -> Vector:
        batch = self._parts[number]
        batch.solve(check_cost(cost, self.shape[1]))
        return batch.values.copy()

    def plans(self, cost: Matrix, index: Index) -> Plans:
        """Optimal plans and duals of the pairs ``index`` (p, 2)."""
        cost = check_cost(cost, self.shape[1])
        batch = self._batch(check_index(index, self.shape[0]))
        batch.on_progress = self.on_progress
        batch.solve(cost)
        return batch.plans(cost)

    def freeze(self, cost: Matrix) -> FrozenMap | ReplayedMap:
        """The linear map of the couplings optimal at ``cost``, equal to this map there.

        The couplings are stored as lists of moves if these fit into the memory limit; otherwise
        each call reads them from the trees, which takes a few times longer.
        """
        if not self.keeps_trees:
            raise MemoryError(
                f"couplings need {self.memory.trees / 1e9:.1f} GB for the trees of all pairs, "
                f"more than the limit of {self._memory_limit / 1e9:.1f} GB. Raise "
                "`memory_limit`, or pass solver='power', which does not need them."
            )
        self._solve_all(check_cost(cost, self.shape[1]))
        return self.couplings()

    def sketch(self, cost: Matrix) -> FrozenMap | ReplayedMap | None:
        """The linear map of nearly optimal plans at ``cost``, much faster than ``freeze``.

        None if there are stored trees, with which ``freeze`` is fast, or no room for trees.
        Nothing is stored.
        """
        if self._all is not None or not self.keeps_trees:
            return None
        batch = self._batch(all_pairs(self.shape[0]))
        batch.on_progress = self.on_progress
        batch.solve(check_cost(cost, self.shape[1]), pivots=False)
        return self._couplings_of(batch)

    def couplings(self) -> FrozenMap | ReplayedMap:
        """The map that the last ``freeze`` returned, rebuilt from the trees."""
        batch = self._all
        if batch is None:
            raise ValueError("no couplings are stored yet; call `freeze` first.")
        return self._couplings_of(batch)

    def _couplings_of(self, batch: PairBatch) -> FrozenMap | ReplayedMap:
        if self.memory.trees + self.memory.moves > self._memory_limit:
            return ReplayedMap(self.shape, batch)
        return FrozenMap(self.shape, batch.moves(full=False), self.n_threads)

    def row_work(self) -> Vector:
        """Modeled time for the pairs (i, j > i) of each histogram i."""
        sizes, after, pairs = sums_of_rows(self._integer.indptr)
        work: Vector = sizes * after + PAIR * pairs
        return work

    def row_memory(self) -> Vector:
        """Bytes of the trees of the pairs of each histogram, and of their layout."""
        sizes, after, pairs = sums_of_rows(self._integer.indptr)
        nodes = sizes * pairs + after
        memory: Vector = (4 if 2 * sizes.max() >= 2**16 else 2) * nodes + LAYOUT * pairs
        return memory

    def advance(
        self,
        packed: PackedCost,
        first: int,
        last: int,
        memory: dict[str, Any] | None,
        pivots: bool = True,
    ) -> tuple[Vector, dict[str, Any]]:
        """Distances of the pairs (i, j > i) with ``first`` <= i < ``last``, and their memory.

        A pure function of the cost and of ``memory``, the one that the previous call returned (None
        at first). :meth:`assemble` makes the matrix of the map from the distances of all rows.
        Without ``pivots`` plans are only nearly optimal.
        """
        batch = self._rows_from(first, last, memory)
        with threads(batch.threads):
            metric = packed.once("metric", lambda: is_metric(rescale_pow2(packed.matrix)[0]))
        batch.solve(packed.matrix, metric, pivots)
        return batch.values, {"tree": batch.tree, "state": batch.state}

    def moves_of(self, first: int, last: int, memory: dict[str, Any]) -> Moves:
        """The couplings of the pairs of some rows, given the memory of :meth:`advance`."""
        return self._rows_from(first, last, memory).moves(full=False)

    def apply(self, moves: Moves, packed: PackedCost) -> Vector:
        """Costs of the couplings of :meth:`moves_of` under any cost."""
        return apply_moves(moves, packed.matrix, self.n_threads)

    def assemble(self, values: Vector) -> Matrix:
        """The matrix of the distances that :meth:`advance` returned, range by range."""
        return symmetric(values, self.shape[0])

    def _rows_from(self, first: int, last: int, memory: dict[str, Any] | None) -> PairBatch:
        batch = self._batch(all_pairs(self.shape[0], first, last), self.keeps_trees)
        if memory is not None:
            fill(batch.tree, memory["tree"], "trees")
            fill(batch.state, memory["state"], "states of the trees")
        return batch

    def snapshot(self) -> dict[str, Any]:
        memory: dict[str, Any] = {}
        for name, batch in self._stored().items():
            memory |= {f"{name}tree": batch.tree, f"{name}state": batch.state}
        return memory

    def restore(self, memory: dict[str, Any]) -> None:
        self._all = self._batch(all_pairs(self.shape[0])) if "tree" in memory else None
        for name, batch in self._stored().items():
            fill(batch.tree, memory[f"{name}tree"], "trees")
            fill(batch.state, memory[f"{name}state"], "states of the trees")
            if batch.drop_invalid():
                raise ValueError("the stored trees do not match these histograms.")

    def _batch(self, index: Index, keep_trees: bool = True) -> PairBatch:
        return PairBatch(self._integer, self.shape[1], index, keep_trees, self.n_threads)

    def _stored(self) -> dict[str, PairBatch]:
        """The batches whose trees are stored between calls, by name."""
        parts = {f"part{k}_": batch for k, batch in enumerate(self._parts)}
        return parts if self._all is None else {"": self._all, **parts}

    def bounds(self, cost: Matrix, index: Index | None = None) -> tuple[Vector, Vector]:
        """Proved lower and upper bounds of the distances of ``index``, by default all pairs.

        They hold in exact arithmetic for the stored masses, in units of 2**-62; see
        :func:`~cometric.core.histograms.quantization_errors` for the error of these masses.

        If ``first_bases`` is set, solves for all pairs start from these trees, which takes a
        fraction of the time. Plans and duals are recomputed from the final trees, so the bounds
        hold for any start.
        """
        cost, n = check_cost(cost, self.shape[1]), self.shape[0]
        bases = self.first_bases if index is None else None
        index = all_pairs(n) if index is None else check_index(index, n)
        lower, upper = np.empty(len(index)), np.empty(len(index))
        # Block by block: trees are stored for one block at a time.
        whole = self._batch(index, keep_trees=False)
        whole.on_progress = self.on_progress
        with threads(whole.threads):
            metric = is_metric(cost)
        room = np.zeros(len(index) + 1, np.int64)
        np.cumsum(np.diff(self._integer.indptr)[index].sum(axis=1), out=room[1:])
        if bases is not None and (len(bases.tree), len(bases.state)) != (room[-1], len(index)):
            bases = None  # they belong to other histograms
        for part in whole.blocks():
            block = self._batch(index[part])
            if bases is not None:
                trees_of_part = slice(room[part.start], room[part.stop])
                block.start_from(bases.tree[trees_of_part], bases.state[part])
            block.solve(cost, metric)
            lower[part], upper[part] = block.bounds(cost)
        return lower, upper

    def _within_limit(self, trees: int, moves: int) -> int:
        """Bytes used within the limit: the first of these that fits, or 0.

        Trees and couplings; the copies of trees from which couplings are read; trees alone.
        """
        sizes = (trees + moves, REPLAYED * trees, trees)
        return next((size for size in sizes if size <= self._memory_limit), 0)

    def _solve_all(self, cost: Matrix) -> PairBatch:
        batch = self._all
        if batch is None:
            batch = self._batch(all_pairs(self.shape[0]), keep_trees=self.keeps_trees)
        batch.on_progress = self.on_progress
        batch.solve(cost)
        if self.keeps_trees:
            self._all = batch
        return batch
