"""What a worker does for a map in strips, and what it stores between calls.

A strip is all pairs (i, j > i) with i in a range of rows. Its memory after a call (scalings or
trees) is a pure function of its memory before and of the cost. So it can be computed again
anywhere, from any earlier memory and the costs since then, with the same bytes. Calls are
numbered; ``chain`` is the list of the numbers of successive calls.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cometric.core.arrays import to_numpy
from cometric.core.histograms import Histograms
from cometric.core.types import Vector
from cometric.machine.threads import free_in_children
from cometric.maps.ground import Ground

START = 0
"""The number of the call before the first one: nothing is stored yet."""

_lock = free_in_children(threading.RLock())  # Numba's threads run one kernel at a time
_stores: dict[tuple[str, str], Store] = {}  # by the map, and the worker: a process may have several
_forgotten: set[str] = set()  # maps whose copies may still be on their way


class Rows(NamedTuple):
    """The number of a strip, and its range of rows."""

    number: int
    first: int
    last: int


class Entry(NamedTuple):
    """The memory of a strip after a call, and what the call returned."""

    call: int
    memory: dict[str, Any] | None
    values: Vector | None = None
    error: float = 0.0


class Answer(NamedTuple):
    """Distances of a strip, the largest marginal error, the seconds of a call, calls repeated."""

    values: Vector
    error: float
    seconds: float
    repeated: int = 0


class Recipe(NamedTuple):
    """How workers make a map, and what they store of it."""

    key: str  # of the map
    make: Callable[..., Any]
    remember: bool = True  # whether solutions are stored between calls
    frozen: tuple[int, ...] = ()  # calls whose couplings are in use


class Store:
    """The map of all histograms, made once per process, and the entries of some strips."""

    def __init__(self, recipe: Recipe, hist: Histograms, n_threads: int | None) -> None:
        self.phi = recipe.make(hist, n_threads=n_threads)
        self.entries: dict[int, Entry] = {}
        self.copies: dict[int, Entry] = {}  # of strips that other workers compute
        self.moves: dict[tuple[int, int], Any] = {}  # frozen couplings by strip and call

    def latest(self, number: int, chain: Sequence[int]) -> Entry | None:
        """The entry of the latest of these calls, own or copied."""
        entries = [self.entries.get(number), self.copies.get(number)]
        if chain[0] == START:
            entries.append(Entry(START, None))
        known = [entry for entry in entries if entry is not None and entry.call in chain]
        return max(known, key=lambda entry: chain.index(entry.call)) if known else None

    def freeze(self, rows: Rows, call: int, memory: dict[str, Any]) -> None:
        """Store the couplings of a strip after a call."""
        if (rows.number, call) not in self.moves:
            self.moves[rows.number, call] = self.phi.moves_of(rows.first, rows.last, memory)


def run_all(
    function: Callable[..., Answer | None],
    recipe: Recipe,
    hist: Histograms,
    rows: Sequence[Rows],
    *args: Any,
) -> list[Answer | None]:
    """What ``function``, :func:`advance` or :func:`apply_frozen`, returns for each strip."""
    return [function(recipe, hist, each, *args) for each in rows]


def advance(
    recipe: Recipe,
    hist: Histograms,
    rows: Rows,
    chain: Sequence[int],
    costs: Sequence[Ground],
    settings: Sequence[dict[str, Any]],
) -> Answer | None:
    """The distances of a strip in the last call of ``chain``; None if earlier calls are needed.

    ``chain`` begins with the call from whose memory to start, then come calls with their ``costs``
    and ``settings``.
    """
    with _lock:
        store = store_of(recipe, hist)
        entry = store.latest(rows.number, chain)
        if entry is None:
            return None
        began, count = time.perf_counter(), len(chain) - 1 - chain.index(entry.call)
        entry = _repeat(store.phi, entry, rows, chain, costs, settings)
        seconds = (time.perf_counter() - began) / max(1, count)
        if recipe.remember:
            old = store.entries.get(rows.number)
            if old is not None and old.memory is not None and old.call in recipe.frozen:
                store.freeze(rows, old.call, old.memory)
            store.entries[rows.number] = entry
            for name in [name for name in store.moves if name[1] not in recipe.frozen]:
                del store.moves[name]
        if entry.values is None:  # restored from a checkpoint, never computed
            return None
        return Answer(entry.values, entry.error, seconds, max(0, count - 1))


def _repeat(
    phi: Any,
    entry: Entry,
    rows: Rows,
    chain: Sequence[int],
    costs: Sequence[Ground],
    settings: Sequence[dict[str, Any]],
) -> Entry:
    """The entry after the calls of ``chain`` that come after that of ``entry``."""
    done = chain.index(entry.call)
    for call, ground, options in zip(chain[done + 1 :], costs[done:], settings[done:], strict=True):
        for name, value in options.items():
            setattr(phi, name, value)
        values, memory = phi.advance(ground, rows.first, rows.last, entry.memory)
        entry = Entry(call, memory, values, float(getattr(phi, "error", 0.0)))
    return entry


def apply_frozen(
    recipe: Recipe,
    hist: Histograms,
    rows: Rows,
    chain: Sequence[int],
    costs: Sequence[Ground],
    settings: Sequence[dict[str, Any]],
    ground: Ground,
) -> Answer | None:
    """The costs of the couplings of the last call of ``chain`` under another cost."""
    with _lock:
        store, call = store_of(recipe, hist), chain[-1]
        began = time.perf_counter()
        if (rows.number, call) not in store.moves:
            entry = store.latest(rows.number, chain)
            if entry is None:
                return None
            entry = _repeat(store.phi, entry, rows, chain, costs, settings)
            if entry.memory is None:
                return None
            store.freeze(rows, call, entry.memory)
        values = store.phi.apply(store.moves[rows.number, call], ground)
        return Answer(values, 0.0, time.perf_counter() - began)


def take_copy(key: str, number: int, call: int) -> Entry | None:
    """The entry of a strip after this call, if this worker has it; tensors become arrays."""
    store = _stores.get((key, worker_address()))
    entry = None if store is None else store.entries.get(number)
    if entry is None or entry.call != call:
        return None
    if entry.memory is None:
        return entry
    arrays = {name: to_numpy(array) for name, array in entry.memory.items()}
    return entry._replace(memory=arrays)


def keep_copy(
    recipe: Recipe, hist: Histograms, number: int, entry: Entry | None, own: bool = False
) -> bool:
    """Store an entry of another worker: as a copy, or as the one to continue from."""
    with _lock:
        if entry is None or recipe.key in _forgotten:
            return False
        store = store_of(recipe, hist)
        (store.entries if own else store.copies)[number] = entry
    return True


def forget(key: str) -> None:
    """Drop all that is stored for a map."""
    with _lock:
        _forgotten.add(key)
        for name in [name for name in _stores if name[0] == key]:
            del _stores[name]


def drop_strip(key: str, number: int) -> None:
    """Drop what is stored for a strip that another worker computes from now on."""
    with _lock:
        store = _stores.get((key, worker_address()))
        if store is not None:
            store.entries.pop(number, None)


def store_of(recipe: Recipe, hist: Histograms) -> Store:
    """The store of a map in this process."""
    name = recipe.key, worker_address()
    store = _stores.get(name)
    if store is None:
        store = _stores[name] = Store(recipe, hist, worker_threads())
    return store


def worker_threads() -> int | None:
    """The threads of the Dask worker, all used for one strip at a time; None outside a worker."""
    worker = _worker()
    return None if worker is None else int(worker.state.nthreads)


def worker_address() -> str:
    """The address of the Dask worker that runs this task; empty outside a worker."""
    worker = _worker()
    return "" if worker is None else str(worker.address)


def _worker() -> Any:
    """The Dask worker that runs this task; where Dask is not loaded, there is none."""
    module = sys.modules.get("distributed")
    try:
        return None if module is None else module.get_worker()
    except ValueError:
        return None
