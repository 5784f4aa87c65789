"""Maps on the workers of a Dask cluster; exact and entropic ones with warm starts.

The pairs (i, j > i) of consecutive rows i form a block. The state of a block after a call (scalings
or trees) is a pure function of its previous state, the cost and the settings. It is computed by one
Dask task, whose result stays on its worker as an input of the next call. So results are, byte for
byte, those of the map in one process, for any number of workers, and Dask recomputes the states
that a lost worker had, from the start or from the last renewal. A renewal sends the states through
this process, so that they no longer depend on earlier costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cometric.core.arrays import symmetric
from cometric.core.cached import cached_property
from cometric.core.histograms import Histograms
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.maps.blocks import even_cuts
from cometric.maps.checking import all_pairs, check_cost, check_index
from cometric.maps.cluster import as_cluster, one_task, worker_threads
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.exact_map import ExactMap
from cometric.maps.exact_pairs import FixedMap
from cometric.maps.packed_cost import PackedCost

BLOCKS = 4
"""Blocks per worker; more would balance the load better, at a higher overhead of tasks."""

SIDE = 512
"""Square root of the number of pairs in a task without warm starts, if there are enough pairs."""

CALLS = 16
"""Minimum number of calls between renewals."""


class Rows(NamedTuple):
    """The rows of a block, from ``first`` to before ``last``."""

    first: int
    last: int


class Block(NamedTuple):
    """Distances of a block, the largest marginal error, and the state for the next call."""

    values: Vector | None  # None after a renewal, or from a checkpoint
    error: float
    memory: dict[str, Any]


class Worker:
    """The map on a worker, created on first use; only its arguments are pickled."""

    def __init__(self, make: Callable[..., Any], hist: Histograms) -> None:
        self._make, self._hist = make, hist

    @cached_property
    def phi(self) -> Any:
        return self._make(self._hist, n_threads=worker_threads())

    def __reduce__(self) -> tuple[Any, ...]:
        return Worker, (self._make, self._hist)


def advance(
    worker: Worker, rows: Rows, packed: PackedCost, before: Block | None, *how: Any
) -> Block:
    """The block after a call; ``how`` it is solved is passed to the map."""
    with one_task:
        phi = worker.phi
        memory = None if before is None else before.memory
        values, memory = phi.advance(packed, *rows, memory, *how)
        return Block(values, float(phi.error), memory)


def freeze(worker: Worker, rows: Rows, block: Block) -> Any:
    """The couplings of a block."""
    with one_task:
        return worker.phi.moves_of(*rows, block.memory)


def apply(worker: Worker, moves: Any, packed: PackedCost) -> tuple[Vector, float]:
    """The costs of the couplings of a block under another cost."""
    with one_task:
        return worker.phi.apply(moves, packed), 0.0


def values_of(block: Block) -> tuple[Vector | None, float]:
    """Distances and error, for the client."""
    return block.values, block.error


def memory_of(block: Block) -> dict[str, Any]:
    """The state of a block."""
    return block.memory


def solve_pairs(
    make: Callable[..., Any], hist: Histograms, cost: Matrix, pairs: Rows | Index
) -> tuple[Vector, float]:
    """Distances of the pairs of some rows, or of any pairs, and the error, from a new map."""
    index = all_pairs(hist.shape[0], *pairs) if isinstance(pairs, Rows) else pairs
    numbers, places = np.unique(index, return_inverse=True)
    if len(numbers) < 2:  # a histogram with itself
        return np.zeros(len(index)), 0.0
    with one_task:
        phi = make(hist.take(numbers), n_threads=worker_threads())
        values = phi.pairs(cost, places.reshape(-1, 2))
    return values, float(phi.error)


class ColdMap(DistanceMap):
    """The map that ``make`` creates, without warm starts, on the workers of ``client`` if given.

    Each task creates a new map, so its distances depend on the cost only.

    Parameters
    ----------
    make
        Creates a map from histograms (and ``n_threads``). It is sent to the workers and must be
        picklable.
    hist, client
        As for :class:`DistributedMap`.
    side
        The square root of the number of pairs of a task.
    """

    def __init__(
        self, make: Callable[..., Any], hist: Any, client: Any = None, *, side: int | None = None
    ) -> None:
        self._make, self._cluster, self._hist = make, as_cluster(client), Histograms.of(hist)
        self.shape = self._hist.shape
        n = self.shape[0]
        self._pairs_of_task = (min(SIDE, max(64, -(-n // 8))) if side is None else side) ** 2
        self._shared: Any = None  # future of the histograms on the workers

    def __repr__(self) -> str:
        n, d = self.shape
        return f"ColdMap({n} histograms on {d} bins, on {self._cluster.name})"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        n = self.shape[0]
        counts = np.arange(n - 1.0, -1.0, -1.0)  # pairs of each row
        cuts = even_cuts(counts, -(-int(counts.sum()) // self._pairs_of_task))
        return symmetric(self._solve(cost, [Rows(*ends) for ends in itertools.pairwise(cuts)]), n)

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        index = check_index(index, self.shape[0])
        step = self._pairs_of_task
        return self._solve(cost, [index[k : k + step] for k in range(0, len(index), step)])

    def _solve(self, cost: Matrix, parts: Sequence[Rows | Index]) -> Vector:
        """The distances of all parts, one after the other."""
        cluster = self._cluster
        cost = cluster.share(check_cost(cost, self.shape[1]))
        if self._shared is None:
            self._shared = cluster.share(self._hist)
        futures = [
            cluster.submit(solve_pairs, self._make, self._shared, cost, part, turn=number)
            for number, part in enumerate(parts)
        ]
        self.error = 0.0
        values: list[Any] = [np.empty(0)] * len(parts)
        for done, (number, (part, error)) in enumerate(cluster.results(futures), start=1):
            values[number], self.error = part, max(self.error, error)
            self.report(done, len(parts))
        return np.concatenate([np.empty(0), *values])


class DistributedMap(DistanceMap):
    """The map that ``make`` creates, computed in blocks on the workers of ``client`` if given.

    Parameters
    ----------
    make
        Creates a map with ``advance`` from histograms (and ``n_threads``). It is sent to the
        workers and must be picklable.
    hist
        Histograms as rows, each summing to 1.
    client
        A ``distributed.Client`` or a :class:`~cometric.maps.cluster.Cluster`, or None for this
        process.
    blocks
        Number of blocks, 4 per worker by default. It does not change the result.
    remember
        Store scalings or trees between calls.
    """

    names: tuple[str, ...] = ()  # of the arrays in the state of a block

    def __init__(
        self,
        make: Callable[..., Any],
        hist: Any,
        client: Any = None,
        *,
        blocks: int | None = None,
        remember: bool = True,
    ) -> None:
        self._make, self._hist, self._remember = make, Histograms.of(hist), remember
        self.shape = self._hist.shape
        self._cluster = as_cluster(client)
        self._phi = make(self._hist)  # for cuts and settings; the workers have their own
        self._worker = self._cluster.share(Worker(make, self._hist))
        self._renewed = 0  # bytes sent before the last renewal
        self._cold: ColdMap | None = None
        count = blocks or BLOCKS * max(1, len(self._cluster.check()))
        self._set_cuts(even_cuts(self._phi.row_work(), count))

    def _set_cuts(self, cuts: Index) -> None:
        self._rows = [Rows(*pair) for pair in itertools.pairwise(cuts.tolist())]
        self._blocks: list[Any] = [None] * len(self._rows)  # futures of :class:`Block`

    @cached_property
    def _stored(self) -> float:
        """Bytes of the states of all blocks."""
        return float(self._phi.row_memory().sum())

    def __repr__(self) -> str:
        n, d = self.shape
        name, place = type(self).__name__, self._cluster.name
        return f"{name}({n} histograms on {d} bins, {len(self._rows)} blocks, on {place})"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        outcomes = self._advance(self._pack(cost), self._blocks)
        matrix, self.error = self._gather(outcomes, self.on_progress)
        return matrix

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        """The distances of some pairs, from a cold start, to the accuracy of the map."""
        if self._cold is None:
            make = partial(self._make, memory_limit=0)
            self._cold = ColdMap(make, self._hist, self._cluster)
        return self._cold.pairs(cost, index)

    def close(self) -> None:
        """Release the memory on the workers."""
        self._blocks, self._worker, self._cold = [], None, None

    def _pack(self, cost: Matrix, dtype: Any = np.float64) -> PackedCost:
        return PackedCost.pack(check_cost(cost, self.shape[1]), dtype)

    def _advance(self, packed: PackedCost, blocks: list[Any], *how: Any) -> list[Any]:
        """Futures of values and errors; updates ``blocks`` in place if states are stored."""
        if self._cluster.sent - self._renewed > max(self._stored, CALLS * packed.nbytes):
            self._renew()
        shared, submit = self._cluster.share(packed), self._cluster.submit
        outcomes = []
        for number, rows in enumerate(self._rows):
            before = blocks[number]
            turn = number if before is None else None
            block = submit(advance, self._worker, rows, shared, before, *how, turn=turn)
            if self._remember:
                blocks[number] = block
            outcomes.append(submit(values_of, block))
        return outcomes

    def _gather(self, outcomes: Sequence[Any], report: Any = None) -> tuple[Matrix, float]:
        """The matrix of the distances of all blocks, and the largest error."""
        values: list[Any] = [None] * len(outcomes)
        error = 0.0
        for done, (number, outcome) in enumerate(self._cluster.results(outcomes), start=1):
            values[number], error = outcome[0], max(error, outcome[1])
            if report is not None:
                report(done, len(outcomes))
        return self._phi.assemble(np.concatenate(values)), error

    # --------------------------------------------------------------------- checkpoints

    def _renew(self) -> None:
        """Replace the states by copies that do not depend on earlier costs.

        The scheduler stores a cost as long as something depends on it. A renewal is due when the
        costs have become as large as the states, so it never sends more bytes than the costs did.
        """
        for number, block in enumerate(self._blocks):
            if block is not None:
                self._put(number, self._fetch(block))
        self._renewed = self._cluster.sent

    def _put(self, number: int, memory: dict[str, Any]) -> None:
        self._blocks[number] = self._cluster.share(Block(None, 0.0, memory), turn=number)

    def _fetch(self, block: Any) -> dict[str, Any]:
        memory: dict[str, Any] = self._cluster.result(self._cluster.submit(memory_of, block))
        return memory

    def snapshot(self) -> dict[str, Any]:
        """The states of all blocks; arrays are fetched from the workers when they are written."""
        memory: dict[str, Any] = {"error": self.error}
        if self._blocks[0] is None:
            return memory
        memory["cuts"] = np.array([0, *(rows.last for rows in self._rows)])
        last: list[Any] = [None, {}]  # the block fetched last, and its state
        for number, block in enumerate(self._blocks):
            rows = slice(*self._rows[number])
            size = int(self._phi.row_memory()[rows].sum() / len(self.names))
            for name in self.names:
                memory[f"block{number}.{name}"] = _Fetched(self._fetch, block, name, size, last)
        return memory

    def restore(self, memory: dict[str, Any]) -> None:
        self.error = float(memory["error"])
        if "cuts" not in memory:
            return
        self._set_cuts(np.asarray(memory["cuts"]))
        for number in range(len(self._rows)):
            self._put(number, {name: memory[f"block{number}.{name}"] for name in self.names})


class _Fetched:
    """An array of a block, fetched from its worker when it is needed."""

    def __init__(
        self, fetch: Callable[[Any], dict[str, Any]], block: Any, name: str, size: int, last: Any
    ) -> None:
        self._fetch, self._block, self._name, self._last = fetch, block, name, last
        self.nbytes = size  # estimated

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self._last[0] is not self._block:
            self._last[:] = self._block, self._fetch(self._block)
        return np.asarray(self._last[1][self._name], dtype)


class DistributedEntropicMap(DistributedMap):
    """The blocks of an :class:`EntropicMap`."""

    names = ("own", "scalings")

    def __init__(
        self,
        hist: Any,
        eps: float,
        client: Any = None,
        *,
        rho: float | None = None,
        sweeps: int | None = None,
        tol: float = 1e-10,
        dtype: Any = np.float64,
        remember: bool = True,
        **options: Any,
    ) -> None:
        limit = math.inf if remember else 0.0
        make = partial(EntropicMap, eps=eps, rho=rho, tol=tol, dtype=dtype, memory_limit=limit)
        super().__init__(make, hist, client, remember=remember, **options)
        self.accuracy = self._phi.accuracy._replace(sweeps=sweeps)

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        chosen = self._phi.safe(accuracy or self.accuracy)
        packed = self._pack(cost, chosen.precision)  # fewer bytes to send in float32
        outcomes = self._advance(packed, self._blocks, chosen)
        matrix, self.error = self._gather(outcomes, self.on_progress)
        return matrix


class DistributedExactMap(DistributedMap):
    """The blocks of an :class:`ExactMap`; their couplings can be frozen."""

    names = ("tree", "state")
    has_room_to_freeze = True  # on the workers
    bases = None  # trees stay there

    def __init__(self, hist: Any, client: Any = None, **options: Any) -> None:
        limit = math.inf if options.get("remember", True) else 0.0
        super().__init__(partial(ExactMap, memory_limit=limit), hist, client, **options)

    def sketch(self, cost: Matrix) -> FrozenBlocks | None:
        """The linear map of plans that are near optimal at ``cost``; see ``ExactMap.sketch``."""
        if self._blocks[0] is not None or not self._remember:
            return None
        blocks = [None] * len(self._rows)
        self._advance(self._pack(cost), blocks, False)
        return FrozenBlocks(self, blocks)

    def freeze(self, cost: Matrix) -> FrozenBlocks:
        """The linear map of the couplings optimal at ``cost``, equal to this map there."""
        self(cost)
        return self.couplings()

    def couplings(self) -> FrozenBlocks:
        """The map that the last ``freeze`` returned, rebuilt from the trees."""
        if self._blocks[0] is None:
            raise ValueError("no couplings are stored yet; call `freeze` first.")
        return FrozenBlocks(self, self._blocks)


class FrozenBlocks(FixedMap):
    """Fixed couplings, applied block by block on the workers that store them."""

    def __init__(self, phi: DistributedExactMap, blocks: Sequence[Any]) -> None:
        self._phi, self.shape = phi, phi.shape
        submit = phi._cluster.submit
        self._moves = [
            submit(freeze, phi._worker, rows, block)
            for rows, block in zip(phi._rows, blocks, strict=True)
        ]

    def __repr__(self) -> str:
        n, d = self.shape
        return f"FrozenBlocks({n} histograms on {d} bins)"

    def __call__(self, cost: Matrix, accuracy: Accuracy | None = None) -> Matrix:
        phi, cluster = self._phi, self._phi._cluster
        packed = cluster.share(phi._pack(cost))
        matrix, _ = phi._gather(
            [cluster.submit(apply, phi._worker, moves, packed) for moves in self._moves]
        )
        return matrix
