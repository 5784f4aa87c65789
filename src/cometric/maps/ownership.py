"""Which worker computes which strip of a map, and how lost strips come back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from cometric.core.histograms import Histograms
from cometric.core.types import Vector
from cometric.core.warn import warn
from cometric.maps import strips
from cometric.maps.cluster import LOST, Cluster, ClusterLost
from cometric.maps.ground import Ground
from cometric.maps.lineage import Lineage
from cometric.maps.strips import Answer, Entry, Recipe, Rows
from cometric.maps.tiled import ATTEMPTS

SHARE_OF_COPIES = 0.05
"""Share of the time that copies of strips may take."""

BYTES_PER_SECOND = 2e8
"""Speed of copies that is assumed before the first one is measured."""

TASK = 0.5
"""Seconds of a task that has several strips."""

WORTH_MOVING, SAVED = 0.85, 0.1
"""Strips are moved if a call then takes at most this part of its time, and saves these seconds."""

COPYING = 600.0
"""Seconds after which copies that are not complete are given up."""

CLOSING = 10.0
"""Seconds to wait until workers have dropped what they store."""

USABLE = 0.7
"""Share of the memory of a worker that may be used: above it, Dask begins to write to disk."""


class Owners:
    """The workers of all strips of a map.

    Parameters
    ----------
    cluster
        Where they are.
    key
        The name of the map in the stores of the workers.
    work, memory
        Of each strip: modeled time in any unit, and bytes that it stores.
    fixed
        Bytes that every worker needs beside strips.
    """

    def __init__(
        self, cluster: Cluster, key: str, work: Vector, memory: Vector, fixed: float
    ) -> None:
        self._cluster, self._key = cluster, key
        self._work, self._memory, self._fixed = work, memory, fixed
        self.owner: dict[int, str] = {}
        self.copied_to: dict[int, str] = {}
        self.copied_call = -1  # the call after which the last copies were made
        self.repeated = 0  # calls of strips that were computed again
        self._rates: dict[str, float] = {}  # work per second
        self._refused: set[str] = set()
        self._known: set[str] = set()
        self._hist: Any = None  # future of the histograms
        self._copying: _Copying | None = None
        self._seconds_per_copy = math.nan
        self._calls_since_copy, self._seconds_per_call = 0, math.nan

    # --------------------------------------------------------------------------- calls

    def answers(
        self,
        function: Any,
        recipe: Recipe,
        hist: Histograms,
        calls: Lineage,
        extra: tuple[Any, ...],
        rows: Sequence[Rows],
        restored: dict[int, dict[str, Any]],
    ) -> Iterator[tuple[int, Answer]]:
        """Strips with their answers, as they finish; lost ones are computed again elsewhere."""
        by_number = {each.number: each for each in rows}
        depth = dict.fromkeys(by_number, 1)  # the number of calls to send
        attempt, began = 0, time.monotonic()
        spent: dict[str, list[float]] = {}  # work and seconds by worker
        while depth:
            before = len(depth), sum(depth.values())
            for number, result in self._send(
                function, recipe, hist, calls, extra, by_number, depth
            ):
                if isinstance(result, Answer):
                    del depth[number]
                    self.repeated += result.repeated
                    self._cluster.moved += result.values.nbytes
                    total = spent.setdefault(self.owner[number], [0.0, 0.0])
                    total[0] += self._work[number]
                    total[1] += result.seconds
                    yield number, result
                elif result is LOST:
                    self._hist = None  # may be lost with the worker
                    depth[number] = max(depth[number], calls.since(self.copied_call))
                else:  # the worker lacks what came before
                    shallow = depth[number] < calls.since(self.copied_call)
                    depth[number] = calls.since(self.copied_call) if shallow else len(calls.calls)
                    if not shallow and number in restored:
                        self._put(recipe, hist, number, Entry(calls.base, restored[number]))
            attempt = attempt + 1 if (len(depth), sum(depth.values())) == before else 0
            if attempt == ATTEMPTS:
                raise ClusterLost(
                    f"{len(depth)} strips were sent {ATTEMPTS} times and lost each time. Workers "
                    "may be short of memory: give them more, or take fewer samples."
                )
        for name, (work, seconds) in spent.items():
            rate = work / max(seconds, 1e-9)
            self._rates[name] = 0.5 * (self._rates.get(name, rate) + rate)
        self._seconds_per_call = time.monotonic() - began

    def _send(
        self,
        function: Any,
        recipe: Recipe,
        hist: Histograms,
        calls: Lineage,
        extra: tuple[Any, ...],
        rows: dict[int, Rows],
        depth: dict[int, int],
    ) -> Iterator[tuple[int, Any]]:
        """One attempt: numbers of strips with an answer, None or ``LOST``."""
        cluster = self._cluster
        futures: dict[Any, list[int]] = {}
        try:
            self._assign(recipe, hist, calls)
            shared: dict[int, Any] = {}  # futures of costs
            others = tuple(
                cluster.share(each) if isinstance(each, Ground) else each for each in extra
            )
            for count, numbers in self._tasks(depth):
                chain, costs, settings = calls.last(count)
                for call, ground in zip(chain[1:], costs, strict=True):
                    if call not in shared:
                        shared[call] = cluster.share(ground)
                grounds = [shared[call] for call in chain[1:]]
                chosen = [rows[number] for number in numbers]
                args = recipe, self._shared(hist), chosen, chain, grounds, settings, *others
                owner = self.owner[numbers[0]]
                future = cluster.submit(strips.run_all, function, *args, worker=owner)
                futures[future] = numbers
        except (OSError, TimeoutError):  # a process died in the meantime
            cluster.check_scheduler()
            self._hist = None
            return
        bound = {future: self.owner[numbers[0]] for future, numbers in futures.items()}
        for future, results in cluster.collect(bound):
            for k, number in enumerate(futures[future]):
                yield number, LOST if results is LOST else results[k]

    def _tasks(self, depth: dict[int, int]) -> list[tuple[int, list[int]]]:
        """Strips divided into tasks, with the number of calls to send.

        A task has strips of one worker, for about ``TASK`` seconds: each task has a price.
        """
        tasks: list[tuple[int, list[int]]] = []
        seconds = math.inf
        for number in sorted(depth, key=lambda k: (self.owner[k], depth[k], k)):
            owner, count = self.owner[number], depth[number]
            last = tasks[-1] if tasks else (0, [])
            same = last[1] and self.owner[last[1][0]] == owner and last[0] == count
            if not same or owner not in self._rates or seconds > TASK:
                tasks.append((count, []))
                seconds = 0.0
            tasks[-1][1].append(number)
            seconds += self._time(number, owner)
        return tasks

    def _shared(self, hist: Histograms) -> Any:
        if self._hist is None:
            self._hist = self._cluster.share(hist)
        return self._hist

    # ---------------------------------------------------------------------- assignment

    def _assign(self, recipe: Recipe, hist: Histograms, calls: Lineage) -> None:
        """Give strips without a worker to one, and move some if others would be done sooner."""
        workers = self._usable(self._cluster.wait_for_workers(ignoring=self._refused))
        for number in self._order():
            if self.owner.get(number) in workers:
                continue
            copy = self.copied_to.get(number)
            if copy in workers and copy is not None:
                self.owner[number] = copy
            else:
                ends = self._ends(workers)
                added = {name: ends[name] + self._time(number, name) for name in workers}
                self.owner[number] = min(workers, key=lambda name: (added[name], name))
        if len(calls.calls) > 1:
            self._move(recipe, hist, calls.calls[-2].number, self._moves(workers))

    def _order(self) -> list[int]:
        return [int(number) for number in np.argsort(-self._work, kind="stable")]

    def _time(self, number: int, worker: str) -> float:
        mean = float(np.mean(list(self._rates.values()))) if self._rates else 1.0
        return float(self._work[number]) / self._rates.get(worker, mean)

    def _ends(self, workers: Sequence[str]) -> dict[str, float]:
        """The predicted time of each worker."""
        ends = dict.fromkeys(workers, 0.0)
        for number, name in self.owner.items():
            if name in ends:
                ends[name] += self._time(number, name)
        return ends

    def _moves(self, workers: Sequence[str]) -> dict[int, tuple[str, str]]:
        """Strips to move, from which worker to which: from late ones to those that are idle."""
        owner, ends = dict(self.owner), self._ends(workers)
        latest = max(ends.values())
        for _ in range(len(owner)):
            slow = max(workers, key=lambda name: (ends[name], name))
            quick = min(workers, key=lambda name: (ends[name], name))
            options = [
                (max(ends[slow] - self._time(k, slow), ends[quick] + self._time(k, quick)), k)
                for k, name in owner.items()
                if name == slow
            ]
            best, number = min(options, default=(math.inf, -1))
            if best >= ends[slow]:
                break
            owner[number] = quick
            ends[slow] -= self._time(number, slow)
            ends[quick] += self._time(number, quick)
        after = max(ends.values())
        if set(workers) <= set(self.owner.values()) and (
            after > WORTH_MOVING * latest or latest - after < SAVED
        ):
            return {}
        return {
            number: (self.owner[number], name)
            for number, name in owner.items()
            if name != self.owner[number]
        }

    def _move(
        self, recipe: Recipe, hist: Histograms, call: int, moves: dict[int, tuple[str, str]]
    ) -> None:
        """Bring the memory of strips to new workers; what fails is computed again."""
        submit, key = self._cluster.submit, self._key
        stored: dict[Any, str] = {}
        for number, (old, new) in moves.items():
            entry = submit(strips.take_copy, key, number, call, worker=old)
            args = strips.keep_copy, recipe, self._shared(hist), number, entry, True
            stored |= {entry: old, submit(*args, worker=new): new}
            self.owner[number] = new
        self._cluster.finish(stored)
        self._cluster.finish(
            {submit(strips.drop_strip, key, k, worker=old): old for k, (old, _) in moves.items()}
        )

    def _put(self, recipe: Recipe, hist: Histograms, number: int, entry: Entry) -> None:
        """Send a memory of this process to the worker of a strip."""
        cluster, owner = self._cluster, self.owner[number]
        shared = cluster.share(entry)
        stored = cluster.submit(
            strips.keep_copy, recipe, self._shared(hist), number, shared, True, worker=owner
        )
        cluster.finish({stored: owner})

    def _usable(self, workers: dict[str, int]) -> list[str]:
        """The workers with enough memory; warns of the others."""
        if set(workers) - self._known:  # some are new
            self._known |= set(workers)
            limits = self._cluster.memory()
            need = self._fixed + float(self._memory.max(initial=0.0))
            for name in workers:
                limit = limits.get(name, math.inf)
                if USABLE * limit < need and name not in self._refused:
                    self._refused.add(name)
                    warn(
                        f"Worker {name} is not used: it has {limit / 1e9:.3g} GB of memory, of "
                        f"which {USABLE:.0%} may be used, and one strip needs {need / 1e9:.3g} GB."
                    )
            room = sum(
                max(0.0, USABLE * limits.get(name, math.inf) - self._fixed)
                for name in workers
                if name not in self._refused
            )
            self._room_for_copies = room > 2.5 * float(self._memory.sum())
            if room < float(self._memory.sum()):
                raise MemoryError(
                    f"the workers of the cluster have room for {room / 1e9:.3g} GB beside the "
                    f"costs, and the strips store {float(self._memory.sum()) / 1e9:.3g} GB. Add "
                    "workers or memory, or take fewer samples or features."
                )
        return [name for name in workers if name not in self._refused]

    # -------------------------------------------------------------------------- copies

    def protect(self, recipe: Recipe, hist: Histograms, call: int) -> None:
        """Copy all strips to other workers, if that is due; does not wait for it.

        Copies are made as often as they take at most a twentieth of the time.
        """
        self._finish_copies()
        self._calls_since_copy += 1
        workers = sorted(set(self.owner.values()))
        if self._copying is not None or len(workers) < 2 or not self._room_for_copies:
            return
        if self._calls_since_copy < self.calls_per_copy:
            return
        following = dict(zip(workers, [*workers[1:], workers[0]], strict=True))
        self._copying = _Copying(call, {n: following[name] for n, name in self.owner.items()})
        with suppress(OSError, TimeoutError):
            shared = self._shared(hist)
            for number, target in self._copying.targets.items():
                owner = self.owner[number]
                submit = self._cluster.submit
                entry = submit(strips.take_copy, self._key, number, call, worker=owner)
                args = strips.keep_copy, recipe, shared, number, entry
                self._copying.add(submit(*args, worker=target))
        self._calls_since_copy = 0

    @property
    def calls_per_copy(self) -> int:
        """Calls from one copy to the next: few if copies are quick relative to calls."""
        seconds = self._seconds_per_copy
        if math.isnan(seconds):
            seconds = float(self._memory.sum()) / BYTES_PER_SECOND
        share = SHARE_OF_COPIES * max(self._seconds_per_call, 1e-3)
        return max(1, math.ceil(seconds / share))

    def _finish_copies(self) -> None:
        """Take note of copies that are complete; give up those that failed."""
        copying = self._copying
        if copying is None:
            return
        states = {future.status for future in copying.futures}
        if states <= {"finished"} and len(copying.futures) == len(copying.targets):
            self.copied_call, self.copied_to = copying.call, copying.targets
            self._seconds_per_copy = copying.seconds
            self._copying = None
        elif states - {"finished", "pending"} or time.monotonic() - copying.began > COPYING:
            self._cluster.cancel(copying.futures)
            self._copying = None

    def fetch(
        self,
        recipe: Recipe,
        hist: Histograms,
        calls: Lineage,
        rows: Rows,
        restored: dict[int, dict[str, Any]],
    ) -> Entry | None:
        """The entry of a strip after the last call, computed again if its worker was lost."""
        if not calls.calls:  # restored and not called since
            return Entry(calls.base, restored[rows.number])
        for _ in range(ATTEMPTS):
            owner = self.owner.get(rows.number, "")
            args = strips.take_copy, self._key, rows.number, calls.number
            if owner in self._cluster.wait_for_workers():
                taken = self._cluster.submit(*args, worker=owner)
                for _, entry in self._cluster.collect({taken: owner}):
                    if isinstance(entry, Entry):
                        return entry
            for _ in self.answers(strips.advance, recipe, hist, calls, (), [rows], restored):
                pass
        return None

    def close(self) -> None:
        """Let the workers drop what they store."""
        with suppress(Exception):  # the cluster may be gone
            cluster = Cluster(self._cluster.client, CLOSING)
            if cluster.client.status == "running":
                tasks = {
                    cluster.submit(strips.forget, self._key, worker=name): name
                    for name in cluster.workers()
                }
                cluster.finish(tasks)


class _Copying:
    """Copies on their way: of which call, to which workers."""

    def __init__(self, call: int, targets: dict[int, str]) -> None:
        self.call, self.targets = call, targets
        self.began = self._ended = time.monotonic()
        self.futures: list[Any] = []

    def add(self, future: Any) -> None:
        self.futures.append(future)
        future.add_done_callback(self._note)

    def _note(self, _: Any) -> None:
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """From the first request to the last copy."""
        return self._ended - self.began
