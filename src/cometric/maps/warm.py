"""Exact and entropic maps in strips, on the workers of a Dask cluster, with warm starts.

Each strip (see :mod:`~cometric.maps.strips`) belongs to a worker, which stores its scalings or
trees between calls. Results are, byte for byte, those of the map in one process, for any number
of workers. A strip whose worker is lost is computed again by another one: from a copy, which other
workers store now and then, or from the start, and with all costs since then.
"""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np

from cometric.core.histograms import Histograms
from cometric.core.types import Index, Matrix, Vector
from cometric.maps import strips
from cometric.maps.blocks import even_cuts
from cometric.maps.checks import check_cost, check_index
from cometric.maps.cluster import PATIENCE, Cluster, compare_versions
from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.ground import Ground
from cometric.maps.lineage import Call, Lineage
from cometric.maps.ownership import Owners
from cometric.maps.strips import START, Answer, Entry, Recipe, Rows
from cometric.maps.tiled import Make, TiledMap

STRIPS = 8
"""Least number of strips."""

STRIPS_PER_WORKER = 4
"""Strips for each worker at the start, so that workers of different speed can be balanced."""


def fixed_memory(bins: int, nnz: int) -> float:
    """Bytes of a worker beside its strips: cost and kernel, packed cost; copies of the data."""
    return 8.0 * 2.5 * bins**2 + 40.0 * nnz


class StripMap:
    """The map that ``make`` creates, computed in strips, on the workers of ``client`` if given.

    Parameters
    ----------
    make
        Creates a map with ``advance`` from histograms (and ``n_threads``). It is sent to the
        workers and must be picklable.
    hist
        Histograms as rows, each summing to 1.
    client
        A ``distributed.Client``, or None for this process.
    strips
        Their number; 4 for each worker by default. It does not change the result.
    remember
        Store scalings or trees between calls.
    patience
        Seconds without a scheduler or without workers before
        :class:`~cometric.maps.cluster.ClusterLost` is raised.
    """

    names: tuple[str, ...] = ()  # of the arrays that a strip stores

    def __init__(
        self,
        make: Make,
        hist: Any,
        client: Any = None,
        *,
        strips: int | None = None,
        remember: bool = True,
        patience: float = PATIENCE,
    ) -> None:
        self._make, self._hist, self._remember = make, Histograms.of(hist), remember
        self._key = uuid.uuid4().hex
        if client is not None:
            compare_versions(client)
        self._cluster = None if client is None else self._connect(client, patience)
        self._phi = self._lay_out()
        self._calls = itertools.count(START + 1)
        self._lineage = Lineage()
        self._restored: dict[int, dict[str, Any]] = {}
        self._frozen: WeakSet[FrozenStrips] = WeakSet()
        self.error = 0.0
        self.on_progress: Any = None
        self._pairs_only: TiledMap | None = None
        workers = 0
        if self._cluster is not None:
            workers = len(self._cluster.wait_for_workers())
        self._cut(strips or max(STRIPS, STRIPS_PER_WORKER * workers))

    def _connect(self, client: Any, patience: float) -> Cluster:
        """The cluster of a client."""
        return Cluster(client, patience)

    def _lay_out(self) -> Any:
        """A map for the layout of strips and for settings; the workers have their own."""
        return self._make(self._hist)

    def _fixed_memory(self) -> float:
        """Bytes that every worker needs beside its strips."""
        return fixed_memory(self.shape[1], self._hist.rows.nnz)

    def _cut(self, count: int) -> None:
        """Cut the rows into strips of about the same work."""
        self._set_cuts(even_cuts(self._phi.row_work(), count))

    def _set_cuts(self, cuts: Index) -> None:
        ends = cuts.tolist()
        self._rows = [Rows(k, *ends[k : k + 2]) for k in range(len(ends) - 1)]
        n = self.shape[0]
        stops = np.cumsum(np.concatenate([[0], np.arange(n - 1, -1, -1)]))[cuts]
        self._slices = [slice(*pair) for pair in itertools.pairwise(stops.tolist())]
        if self._cluster is not None:
            work, memory = (
                np.add.reduceat(each, cuts[:-1])
                for each in (self._phi.row_work(), self._phi.row_memory())
            )
            self._owners = Owners(self._cluster, self._key, work, memory, self._fixed_memory())

    @property
    def shape(self) -> tuple[int, int]:
        return self._hist.shape

    def __repr__(self) -> str:
        n, d = self.shape
        place = "this process" if self._cluster is None else "a Dask cluster"
        name = type(self).__name__
        return f"{name}({n} histograms on {d} bins, {len(self._rows)} strips, on {place})"

    def __call__(self, cost: Matrix) -> Matrix:
        matrix: Matrix = self._phi.assemble(self._advance(cost))
        return matrix

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        """The distances of some pairs, from a cold start."""
        index = check_index(index, self.shape[0])
        if self._pairs_only is None:
            make = partial(self._make, memory_limit=0)
            self._pairs_only = TiledMap(make, self._hist, self._cluster)
        return self._pairs_only.pairs(cost, index)

    def settings(self) -> dict[str, Any]:
        """Attributes to set on the maps of the workers."""
        return {}

    def close(self) -> None:
        """Let the workers drop what they store."""
        if self._cluster is None:
            strips.forget(self._key)
        else:
            self._owners.close()
        self._lineage.close()

    def __del__(self) -> None:
        if getattr(self, "_cluster", self) is None:
            strips.forget(self._key)

    # --------------------------------------------------------------------------- calls

    def _advance(self, cost: Matrix) -> Vector:
        """The distances of all pairs, strip by strip; the strips remember their solutions."""
        ground = self._pack(cost)
        call = Call(next(self._calls), ground, self.settings())
        keep = self._remember and self._cluster is not None
        calls = self._lineage.followed_by(call, keep)
        values, self.error = self._gather(strips.advance, calls, (), self._rows)
        if self._remember:
            self._lineage = calls
            if self._cluster is not None:
                self._owners.protect(self._recipe, self._hist, call.number)
        return values

    def _pack(self, cost: Matrix) -> Ground:
        return Ground.pack(check_cost(cost, self.shape[1]))

    @property
    def _recipe(self) -> Recipe:
        frozen = tuple(sorted({each.call for each in self._frozen}))
        return Recipe(self._key, self._make, self._remember, frozen)

    def _gather(
        self, function: Any, calls: Lineage, extra: tuple[Any, ...], rows: Sequence[Rows]
    ) -> tuple[Vector, float]:
        """The values of all strips, and the largest error."""
        values, error, done = np.empty(self._slices[-1].stop), 0.0, 0
        for number, answer in self._answers(function, calls, extra, rows):
            values[self._slices[number]] = answer.values
            error, done = max(error, answer.error), done + 1
            if self.on_progress is not None and function is strips.advance:
                self.on_progress(done, len(rows))
        return values, error

    def _answers(
        self, function: Any, calls: Lineage, extra: tuple[Any, ...], rows: Sequence[Rows]
    ) -> Iterator[tuple[int, Answer]]:
        if self._cluster is not None:
            yield from self._owners.answers(
                function, self._recipe, self._hist, calls, extra, rows, self._restored
            )
            return
        for each in rows:
            answer = function(self._recipe, self._hist, each, *calls.last(1), *extra)
            if answer is None:
                raise RuntimeError(f"the memory of strip {each.number} is lost.")
            yield each.number, answer

    # --------------------------------------------------------------------- checkpoints

    def snapshot(self) -> dict[str, Any]:
        """What the strips store; arrays of workers are fetched when they are written."""
        memory: dict[str, Any] = {"error": self.error}
        call = self._lineage.number
        if call == START or not self._remember:
            return memory
        memory["cuts"] = np.array([0, *(rows.last for rows in self._rows)])
        held: list[Any] = [-1, None]  # the last strip fetched
        for rows in self._rows:
            for name in self.names:
                memory[f"strip{rows.number}.{name}"] = _Fetched(self, rows, name, call, held)
        return memory

    def restore(self, memory: dict[str, Any]) -> None:
        self.error = float(memory["error"])
        if "cuts" not in memory:
            return
        self._set_cuts(np.asarray(memory["cuts"]))
        call = next(self._calls)
        self._lineage = Lineage(call)
        self._restored = {
            rows.number: {name: memory[f"strip{rows.number}.{name}"] for name in self.names}
            for rows in self._rows
        }
        if self._cluster is None:
            for number, stored in self._restored.items():
                entry = Entry(call, stored)
                strips.keep_copy(self._recipe, self._hist, number, entry, own=True)
            self._restored = {}

    def _fetch(self, rows: Rows, call: int) -> dict[str, Any]:
        """The memory of a strip after a call."""
        if self._cluster is None:
            entry = strips.take_copy(self._key, rows.number, call)
        else:
            entry = self._owners.fetch(
                self._recipe, self._hist, self._lineage, rows, self._restored
            )
        if entry is None or entry.memory is None:
            raise RuntimeError(f"the memory of strip {rows.number} is lost.")
        return entry.memory


class TiledEntropicMap(StripMap):
    """The strips of an :class:`EntropicMap`; adds its accuracy controls."""

    names = ("own", "scalings")
    _kind: Any = EntropicMap  # of the maps of the workers

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
        self.eps, self.sweeps, self.tol, self.margin = eps, sweeps, tol, np.inf
        limit = math.inf if remember else 0.0
        make = partial(self._kind, eps=eps, rho=rho, tol=tol, dtype=dtype, memory_limit=limit)
        super().__init__(make, hist, client, remember=remember, **options)

    @property
    def panels(self) -> bool:
        """Whether histograms are dense, and sweeps products of matrices."""
        dense: bool = self._phi.panels
        return dense

    @property
    def precision(self) -> str:
        """The precision of the sweeps; float64 if eps is so small that scalings could overflow."""
        name: str = self._phi.precision
        return name

    @precision.setter
    def precision(self, name: str) -> None:
        self._phi.precision = name

    def settings(self) -> dict[str, Any]:
        names = ("sweeps", "tol", "margin", "precision")
        return {name: getattr(self, name) for name in names}

    def _pack(self, cost: Matrix) -> Ground:
        """The cost, in float32 if sweeps are: fewer bytes are sent."""
        return Ground.pack(check_cost(cost, self.shape[1]), self.precision)

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {"margin": self.margin, "tol": self.tol}

    def restore(self, memory: dict[str, Any]) -> None:
        super().restore(memory)
        self.margin, self.tol = float(memory["margin"]), float(memory["tol"])


class TiledExactMap(StripMap):
    """The strips of an :class:`ExactMap`; their couplings can be frozen."""

    names = ("tree", "state")
    has_room_to_freeze = True  # on the workers

    def __init__(self, hist: Any, client: Any = None, **options: Any) -> None:
        limit = math.inf if options.get("remember", True) else 0.0
        super().__init__(partial(ExactMap, memory_limit=limit), hist, client, **options)

    def settings(self) -> dict[str, Any]:
        return {"pivots": True}

    def sketch(self, cost: Matrix) -> FrozenStrips | None:
        """The linear map of plans that are near optimal at ``cost``; see ``ExactMap.sketch``."""
        if self._lineage.number != START or not self._remember:
            return None
        call = Call(next(self._calls), self._pack(cost), {"pivots": False})
        return FrozenStrips(self, Lineage().followed_by(call, keep=True))

    def freeze(self, cost: Matrix) -> FrozenStrips:
        """The linear map of the couplings optimal at ``cost``, equal to this map there."""
        self._advance(cost)
        return self.couplings()

    def couplings(self) -> FrozenStrips:
        """The map that the last ``freeze`` returned, rebuilt from the trees."""
        if self._lineage.number == START:
            raise ValueError("no couplings are stored yet; call `freeze` first.")
        return FrozenStrips(self, self._lineage)


class FrozenStrips:
    """Couplings held fixed, applied strip by strip where they are stored."""

    def __init__(self, phi: TiledExactMap, lineage: Lineage) -> None:
        self._phi, self._lineage = phi, lineage
        self.call = lineage.number
        phi._frozen.add(self)

    @property
    def shape(self) -> tuple[int, int]:
        return self._phi.shape

    def __repr__(self) -> str:
        n, d = self.shape
        return f"FrozenStrips({n} histograms on {d} bins)"

    def __call__(self, cost: Matrix) -> Matrix:
        phi = self._phi
        ground: Any = Ground.pack(check_cost(cost, self.shape[1]))
        values, _ = phi._gather(strips.apply_frozen, self._lineage, (ground,), phi._rows)
        matrix: Matrix = phi._phi.assemble(values)
        return matrix

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        index = check_index(index, self.shape[0])
        distances: Vector = self(cost)[index[:, 0], index[:, 1]]
        return distances


class _Fetched:
    """An array of a strip, fetched from its worker when it is needed."""

    def __init__(self, phi: StripMap, rows: Rows, name: str, call: int, held: list[Any]) -> None:
        self._phi, self._rows, self._name, self._call, self._held = phi, rows, name, call, held

    @property
    def nbytes(self) -> int:
        """Bytes of the array, about: its share of what is modeled for the strip."""
        _, first, last = self._rows
        memory = self._phi._phi.row_memory()[first:last].sum()
        return int(memory / len(self._phi.names))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self._held[0] != self._rows.number:
            self._held[:] = self._rows.number, self._phi._fetch(self._rows, self._call)
        return np.asarray(self._held[1][self._name], dtype)
