"""Any distance map, tile by tile, on the workers of a Dask cluster.

A tile is all pairs between two blocks of histograms. It depends on the cost and the settings
only: a new map is made for it, solved and discarded. Hence the result is the same, byte for byte,
on one machine and on a cluster, for any number of workers, also if some of them die; a lost tile
is computed again elsewhere. In return nothing is warm-started: each iteration takes the sweeps of
a cold start (docs/scale.md has numbers).
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from cometric.core.histograms import Histograms
from cometric.core.types import Index, Matrix, Vector
from cometric.core.warn import warn
from cometric.maps.checks import check_cost, check_index
from cometric.maps.entropic import EntropicMap

TILE = 512
"""Histograms on each edge of a tile; smaller where there would be too few tiles."""

ROUGH = 1e-2
"""Marginal error that suffices far from the solution."""

PATIENCE = 120.0
"""Seconds without a scheduler, or without workers, after which a call fails."""

ATTEMPTS = 5
"""Times in a row that tiles may be sent and all be lost before a call fails."""

POLL = 1.0
"""Seconds between checks of a cluster that returns nothing."""

NO_WORKER = "no worker has been available"

_KERNEL_LOCK = threading.Lock()  # Numba's threads run one kernel at a time


class ClusterLost(RuntimeError):
    """The scheduler, or every worker, was lost and did not come back."""


class TileResult(NamedTuple):
    """Distances of a tile's pairs, and the largest marginal error among them."""

    values: Vector
    error: float


Make = Callable[..., Any]
Tile = tuple[slice, slice] | Index


class TiledMap:
    """The map that ``make`` creates, computed in tiles, on the workers of ``client`` if given.

    Parameters
    ----------
    make
        Creates a map from histograms (and ``n_threads``). It is sent to the workers and must be
        picklable, such as ``partial(EntropicMap, eps=0.1)``.
    hist
        Histograms as rows, each summing to 1.
    client
        A ``distributed.Client``, or None for this process. Tiles are the same either way.
    tile
        Histograms on each edge of a tile.
    patience
        Seconds without a scheduler or without workers before :class:`ClusterLost` is raised.
    """

    has_room_to_freeze = False

    def __init__(
        self,
        make: Make,
        hist: Any,
        client: Any = None,
        *,
        tile: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._make, self._client, self._patience = make, client, patience
        self._hist = Histograms.of(hist)
        n = self._hist.shape[0]
        self.tile = min(TILE, max(64, -(-n // 8))) if tile is None else tile
        self.error = 0.0
        self.on_progress: Callable[[int, int], None] | None = None
        self._shared: Any = None  # future of the histograms on the workers
        if client is not None:
            compare_versions(client)

    @property
    def shape(self) -> tuple[int, int]:
        return self._hist.shape

    def __repr__(self) -> str:
        n, d = self.shape
        place = "this process" if self._client is None else "a Dask cluster"
        return f"TiledMap({n} histograms on {d} bins, tiles of {self.tile}, on {place})"

    def __call__(self, cost: Matrix) -> Matrix:
        n = self.shape[0]
        cuts = [slice(k, min(k + self.tile, n)) for k in range(0, n, self.tile)]
        tiles = [(cuts[i], cuts[j]) for i in range(len(cuts)) for j in range(i, len(cuts))]
        distances = np.zeros((n, n))
        for (rows, columns), values in self._solve(cost, tiles):
            if rows == columns:
                i, j = np.triu_indices(rows.stop - rows.start, 1)
                block = np.zeros((rows.stop - rows.start,) * 2)
                block[i, j] = block[j, i] = values
            else:
                block = values.reshape(rows.stop - rows.start, -1)
            distances[rows, columns] = block
            distances[columns, rows] = block.T
        return distances

    def pairs(self, cost: Matrix, index: Index) -> Vector:
        index = check_index(index, self.shape[0])
        step = self.tile**2
        starts = range(0, len(index), step)
        distances = np.empty(len(index))
        parts = [index[k : k + step] for k in starts]
        start_of = {id(part): k for part, k in zip(parts, starts, strict=True)}
        for part, values in self._solve(cost, parts):
            start = start_of[id(part)]
            distances[start : start + len(values)] = values
        return distances

    def settings(self) -> dict[str, Any]:
        """Attributes to set on the map of every tile."""
        return {}

    def _solve(self, cost: Matrix, tiles: list[Any]) -> Iterator[tuple[Any, Vector]]:
        """Tiles with their distances, in the order in which they are finished."""
        cost = check_cost(cost, self.shape[1])
        solve = partial(solve_tile, self._make, self.settings())
        self.error, done = 0.0, 0
        finished: Iterable[tuple[Any, TileResult]]
        if self._client is None:
            finished = ((tile, solve(self._hist, cost, tile)) for tile in tiles)
        else:
            finished = self._on_cluster(solve, cost, tiles)
        for tile, result in finished:
            self.error, done = max(self.error, result.error), done + 1
            if self.on_progress is not None:
                self.on_progress(done, len(tiles))
            yield tile, result.values

    def _on_cluster(
        self, solve: Callable[..., TileResult], cost: Matrix, tiles: list[Any]
    ) -> Iterator[tuple[Any, TileResult]]:
        """Tiles with their results from the workers; lost tiles are sent again."""
        left, attempt = dict(enumerate(tiles)), 0
        while left:
            before = len(left)
            for number, result in self._send(solve, cost, left):
                yield left.pop(number), result
            attempt = attempt + 1 if len(left) == before else 0
            if attempt == ATTEMPTS:
                raise ClusterLost(
                    f"{len(left)} tiles were sent {ATTEMPTS} times and lost each time. Workers may "
                    "be short of memory: pass fewer samples or larger workers."
                )

    def _send(
        self, solve: Callable[..., TileResult], cost: Matrix, left: dict[int, Any]
    ) -> Iterator[tuple[int, TileResult]]:
        """One attempt: the numbers and results of the tiles that were not lost."""
        from distributed import wait

        client = self._client
        futures: dict[Any, int] = {}
        try:
            self._wait_for_workers()
            if self._shared is None:
                self._shared = self._share(self._hist)
            shared_cost = self._share(cost)
            futures = {
                client.submit(solve, self._shared, shared_cost, tile, pure=False): number
                for number, tile in left.items()
            }
        except (OSError, TimeoutError):  # a process died in the meantime
            self._check_scheduler()
            self._shared = None
            return
        waiting, last_seen = set(futures), time.monotonic()
        try:
            while waiting:
                try:
                    ready = wait(waiting, timeout=POLL, return_when="FIRST_COMPLETED").done
                except TimeoutError:
                    self._check_scheduler()
                    if self._workers():
                        last_seen = time.monotonic()
                    elif time.monotonic() - last_seen > self._patience:
                        raise ClusterLost(self._message(NO_WORKER, self._patience)) from None
                    continue
                except _cancelled():
                    self._check_scheduler()
                    return
                last_seen = time.monotonic()
                for future in ready:
                    result = self._result(future)
                    if result is not None:
                        yield futures[future], result
                waiting -= ready
        finally:
            with suppress(Exception):  # the scheduler may not be running
                client.cancel(list(waiting), force=True)

    def _share(self, value: Any) -> Any:
        """A future of ``value``, which every worker that needs it fetches once.

        A task rather than scattered data: those are lost with the worker that holds them, and
        their broadcast hangs if a worker dies. The scheduler can repeat a task.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return self._client.submit(_identity, value, pure=False)

    def _result(self, future: Any) -> TileResult | None:
        """The result of a tile, None if it was lost; raises an error of the map itself."""
        from distributed import KilledWorker

        try:
            result: TileResult = future.result(timeout=self._patience)
        except (KilledWorker, OSError, TimeoutError, *_cancelled()):
            self._check_scheduler()
            self._shared = None  # may be lost with the worker
            return None
        return result

    def _workers(self) -> int:
        try:
            return len(self._client.nthreads())
        except OSError:  # the scheduler has just been lost
            return 0

    def _wait_for_workers(self) -> None:
        try:
            self._check_scheduler()
            self._client.wait_for_workers(1, timeout=self._patience)
        except TimeoutError:
            raise ClusterLost(self._message(NO_WORKER, self._patience)) from None

    def _check_scheduler(self) -> None:
        """Wait while the client tries to reconnect; raise if that takes too long."""
        since = time.monotonic()
        while self._client.status != "running":
            if self._client.status == "closed":  # Dask has stopped reconnecting
                raise ClusterLost(self._message("the scheduler is not running"))
            if time.monotonic() - since > self._patience:
                raise ClusterLost(self._message("the scheduler has not answered", self._patience))
            time.sleep(0.1)

    def _message(self, problem: str, seconds: float | None = None) -> str:
        address = getattr(getattr(self._client, "scheduler", None), "address", "unknown")
        duration = "" if seconds is None else f" for {seconds:.0f} s"
        return (
            f"{problem}{duration} (scheduler {address}). Start a cluster and call again with its "
            "client; a run with `checkpoint=...` continues from its checkpoint, with "
            "cometric.resume(...) also in this process."
        )


class TiledEntropicMap(TiledMap):
    """The tiles of an :class:`EntropicMap`; adds its accuracy controls."""

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
        **options: Any,
    ) -> None:
        self.eps, self.sweeps, self.tol = eps, sweeps, tol
        self.precision, self.margin = np.dtype(dtype).name, np.inf
        make = partial(EntropicMap, eps=eps, rho=rho, tol=tol, memory_limit=0)
        super().__init__(make, hist, client, **options)

    def snapshot(self) -> dict[str, Any]:
        return {"margin": self.margin, "error": self.error}

    def restore(self, memory: dict[str, Any]) -> None:
        self.margin, self.error = float(memory["margin"]), float(memory["error"])

    def settings(self) -> dict[str, Any]:
        """With ``sweeps``, tiles are solved to ``margin``: single sweeps require warm starts."""
        tol = self.tol if self.sweeps is None else max(self.tol, min(self.margin, ROUGH))
        return {"tol": tol, "precision": self.precision}


def solve_tile(
    make: Make, settings: dict[str, Any], hist: Histograms, cost: Matrix, tile: Tile
) -> TileResult:
    """The distances of one tile, from a new map of the histograms it needs."""
    if isinstance(tile, tuple):
        rows, columns = tile
        same = rows == columns
        first = np.arange(rows.start, rows.stop)
        chosen = first if same else np.concatenate([first, np.arange(columns.start, columns.stop)])
        size = len(first)
        i, j = np.triu_indices(size, 1) if same else np.indices((size, len(chosen) - size))
        index = np.stack([i.ravel(), j.ravel() + (0 if same else size)], axis=1)
    else:
        chosen, places = np.unique(tile, return_inverse=True)
        index = places.reshape(-1, 2)
    if len(chosen) < 2:  # a histogram with itself
        return TileResult(np.zeros(len(index)), 0.0)
    with _KERNEL_LOCK:
        phi = make(hist.take(chosen), n_threads=_worker_threads())
        for name, value in settings.items():
            setattr(phi, name, value)
        values = phi.pairs(cost, index.astype(np.int64))
    return TileResult(values, float(getattr(phi, "error", 0.0)))


def _identity(value: Any) -> Any:
    return value


def _worker_threads() -> int | None:
    """The threads of the Dask worker, all used for one tile at a time; None outside a worker."""
    try:
        from distributed import get_worker

        return int(get_worker().state.nthreads)
    except (ImportError, ValueError):
        return None


def _cancelled() -> tuple[type[BaseException], ...]:
    """Exceptions that Dask raises for futures whose data were lost with a worker."""
    from concurrent.futures import CancelledError

    from distributed.client import FutureCancelledError

    return CancelledError, FutureCancelledError


def active_client() -> Any:
    """The Dask client that this process created last; raises if there is none."""
    try:
        from distributed import default_client
    except ImportError:
        raise ImportError("Dask is not installed: pip install 'cometric[dask]'.") from None
    try:
        return default_client()
    except ValueError:
        raise ValueError(
            "No `distributed.Client` is active in this process. Create one first: Client(cluster)."
        ) from None


def software() -> dict[str, str]:
    """Versions and the kind of processor, which determine the last bits of a result."""
    from llvmlite.binding import get_host_cpu_name

    packages = {name: version(name) for name in ("numpy", "scipy", "numba", "dask")}
    # The package is loaded; importing it here would be a circular import.
    own_version = str(vars(sys.modules["cometric"])["__version__"])
    return {"cometric": own_version, **packages, "processor": str(get_host_cpu_name())}


def compare_versions(client: Any) -> None:
    """Raise if a worker has other versions than this process; warn of other processors."""
    local = software()
    for address, remote in client.run(software, on_error="return").items():
        if isinstance(remote, OSError):  # the worker has just died
            continue
        if isinstance(remote, Exception):
            raise remote
        differing = [name for name in local if remote.get(name) != local[name]]
        differences = ", ".join(
            f"{name} {remote.get(name)} for {local[name]}" for name in differing
        )
        if differing == ["processor"]:
            warn(
                f"Worker {address} has another processor ({differences}): the last bits may differ "
                "from one run to the next.",
            )
        elif differing:
            raise ValueError(
                f"Worker {address} runs other versions than this process ({differences}). "
                "Install the same on all machines."
            )
