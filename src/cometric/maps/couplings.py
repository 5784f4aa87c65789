"""Maps with fixed couplings: costs of given plans, linear in the cost."""

from __future__ import annotations

from copy import copy

from cometric.core.arrays import symmetric
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.kernels import plans, threads
from cometric.maps.checks import check_cost, check_index
from cometric.maps.exact_pairs import SMALL, Moves, PairBatch


class FrozenMap(DistanceMap):
    """A map with fixed couplings: ``phi(cost)_ij = <P_ij, cost>``, linear in the cost."""

    def __init__(self, shape: tuple[int, int], moves: Moves, threads: int) -> None:
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

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        index = check_index(index, self.shape[0])
        distances: Vector = self(cost)[index[:, 0], index[:, 1]]
        return distances


class ReplayedMap(DistanceMap):
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

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        index = check_index(index, self.shape[0])
        distances: Vector = self(cost)[index[:, 0], index[:, 1]]
        return distances


def apply_moves(moves: Moves, cost: Matrix, n_threads: int) -> Vector:
    """The costs of couplings under a cost."""
    count = 1 if len(moves[1]) < SMALL else n_threads
    with threads(count):
        values: Vector = plans.move_costs(*moves, cost.reshape(-1), count)
    return values
