"""Exact and entropic maps on the workers of a Dask cluster, with warm starts.

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

from cometric.core.cached import cached_property
from cometric.core.histograms import Histograms
from cometric.core.types import Accuracy, DistanceMap, Index, Matrix, Vector
from cometric.maps.blocks import even_cuts
from cometric.maps.checks import check_cost, check_index
from cometric.maps.cluster import as_cluster, one_task, worker_threads
from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.ground import Ground
from cometric.maps.tiled import TiledMap

BLOCKS = 4
"""Blocks per worker; more would balance the load better, at a higher overhead of tasks."""

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


def advance(worker: Worker, rows: Rows, ground: Ground, before: Block | None, *how: Any) -> Block:
    """The block after a call; ``how`` it is solved is passed to the map."""
    with one_task:
        phi = worker.phi
        memory = None if before is None else before.memory
        values, memory = phi.advance(ground, *rows, memory, *how)
        return Block(values, float(phi.error), memory)


def freeze(worker: Worker, rows: Rows, block: Block) -> Any:
    """The couplings of a block."""
    with one_task:
        return worker.phi.moves_of(*rows, block.memory)


def apply(worker: Worker, moves: Any, ground: Ground) -> tuple[Vector, float]:
    """The costs of the couplings of a block under another cost."""
    with one_task:
        return worker.phi.apply(moves, ground), 0.0


def values_of(block: Block) -> tuple[Vector | None, float]:
    """Distances and error, for the client."""
    return block.values, block.error


def memory_of(block: Block) -> dict[str, Any]:
    """The state of a block."""
    return block.memory


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
        self._stored = float(self._phi.row_memory().sum())
        self._renewed = 0  # bytes sent before the last renewal
        self._pairs_only: TiledMap | None = None
        count = blocks or BLOCKS * max(1, len(self._cluster.check()))
        self._set_cuts(even_cuts(self._phi.row_work(), count))

    def _set_cuts(self, cuts: Index) -> None:
        self._rows = [Rows(*pair) for pair in itertools.pairwise(cuts.tolist())]
        self._blocks: list[Any] = [None] * len(self._rows)  # futures of :class:`Block`

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
        if self._pairs_only is None:
            make = partial(self._make, memory_limit=0)
            self._pairs_only = TiledMap(make, self._hist, self._cluster)
        return self._pairs_only.pairs(cost, index)

    def close(self) -> None:
        """Release the memory on the workers."""
        self._blocks, self._worker, self._pairs_only = [], None, None

    def _pack(self, cost: Matrix, dtype: Any = np.float64) -> Ground:
        return Ground.pack(check_cost(cost, self.shape[1]), dtype)

    def _advance(self, ground: Ground, blocks: list[Any], *how: Any) -> list[Any]:
        """Futures of values and errors; updates ``blocks`` in place if states are stored."""
        if self._cluster.sent - self._renewed > max(self._stored, CALLS * ground.nbytes):
            self._renew()
        shared, submit = self._cluster.share(ground), self._cluster.submit
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
            for name in self.names:  # files of earlier versions call a block a strip
                memory[f"strip{number}.{name}"] = _Fetched(self._fetch, block, name, size, last)
        return memory

    def restore(self, memory: dict[str, Any]) -> None:
        self.error = float(memory["error"])
        if "cuts" not in memory:
            return
        self._set_cuts(np.asarray(memory["cuts"]))
        for number in range(len(self._rows)):
            self._put(number, {name: memory[f"strip{number}.{name}"] for name in self.names})


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
        ground = self._pack(cost, chosen.precision)  # fewer bytes to send in float32
        outcomes = self._advance(ground, self._blocks, chosen)
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


class FrozenBlocks(DistanceMap):
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
        ground = cluster.share(phi._pack(cost))
        matrix, _ = phi._gather(
            [cluster.submit(apply, phi._worker, moves, ground) for moves in self._moves]
        )
        return matrix

    def pairs(self, cost: Matrix, index: Index, accuracy: Accuracy | None = None) -> Vector:
        index = check_index(index, self.shape[0])
        distances: Vector = self(cost)[index[:, 0], index[:, 1]]
        return distances
