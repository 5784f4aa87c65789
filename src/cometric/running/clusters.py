"""Time and memory of a solve on a cluster, predicted from measured rates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cometric.kernels import thread_count
from cometric.machine.progress import duration
from cometric.maps.cluster import Cluster
from cometric.maps.entropic import EntropicMap
from cometric.maps.strips import worker_threads
from cometric.maps.warm import fixed_memory
from cometric.transports.base import Lifts

WORKERS = (1, 2, 4, 8, 64)
"""Numbers of workers for which time and memory are predicted."""

PAYLOAD = 8_000_000
"""Bytes that are sent to a worker and back, to measure the network."""

TRIES = 3
"""Repetitions of a measurement, of which the shortest counts."""

COPIES = 2.0
"""What workers store, in sizes of the scalings or trees: each strip, and a copy of another one."""


class Rates(NamedTuple):
    """What was measured of a cluster.

    ``speed`` of a worker is relative to this process with its threads; ``latency`` are the seconds
    of a task that does nothing.
    """

    speed: float
    bytes_per_second: float
    latency: float


class Load(NamedTuple):
    """What a solve asks of a cluster.

    ``parallel`` and ``serial`` are seconds of this process in calls of the maps and outside of
    them; ``calls`` is the number of calls of each map, ``sent`` and ``returned`` the bytes of a
    call of both, ``stored`` the bytes of all scalings or trees, ``fixed`` those of every worker.
    """

    parallel: float
    serial: float
    calls: float
    sent: float
    returned: float
    stored: float
    fixed: float


class OnWorkers(NamedTuple):
    """Predicted seconds of a solve on this number of workers, and bytes of memory of each."""

    workers: int
    seconds: float
    memory: float


def measure(client: Any, n_threads: int | None = None) -> Rates:
    """Measure the speed of the workers and of the network, in about a second."""
    cluster = Cluster(client)
    names = list(cluster.wait_for_workers())
    here = probe(thread_count(n_threads))
    spent = [  # at the same time on all workers, as in a solve
        result
        for _, result in cluster.collect({cluster.submit(probe, worker=n): n for n in names})
        if isinstance(result, float)
    ]
    latency = _shortest(lambda: cluster.finish({cluster.submit(_nothing, worker=names[0]): None}))
    data = np.random.default_rng(0).bytes(PAYLOAD)
    there_and_back = _shortest(lambda: client.submit(_same, data, pure=False).result())
    network = 2 * PAYLOAD / max(there_and_back - latency, 1e-6)
    return Rates(here / float(np.mean(spent or [here])), network, latency)


def probe(n_threads: int | None = None) -> float:
    """Seconds of a small map, the shortest of a few calls; by default with a worker's threads."""
    rng = np.random.default_rng(0)
    hist, places = rng.random((240, 60)) * (rng.random((240, 60)) < 0.4) + 1e-3, rng.random(60)
    phi = EntropicMap(
        hist / hist.sum(axis=1)[:, None], 0.1, sweeps=1, n_threads=n_threads or worker_threads()
    )
    cost = np.abs(places[:, None] - places)
    phi(cost)  # compiles
    return _shortest(lambda: phi(cost))


def _shortest(run: Callable[[], Any]) -> float:
    """Seconds of the shortest of a few runs."""
    spent = []
    for _ in range(TRIES):
        began = time.perf_counter()
        run()
        spent.append(time.perf_counter() - began)
    return min(spent)


def _nothing() -> None:
    return None


def _same(data: bytes) -> bytes:
    return data


def load_of(lifts: Lifts, parallel: float, serial: float, calls: float) -> Load:
    """The load of a solve with these maps, given its seconds on this process."""
    pairs = [math.comb(lift.shape[0], 2) for lift in lifts]
    bins = [math.comb(lift.shape[1], 2) for lift in lifts]
    stored = float(sum(lift.row_memory().sum() for lift in lifts))
    fixed = sum(fixed_memory(lift.shape[1], lift.histograms.nnz) for lift in lifts)
    return Load(parallel, serial, calls, 8.0 * sum(bins), 8.0 * sum(pairs), stored, fixed)


def predict(load: Load, rates: Rates, workers: int) -> OnWorkers:
    """Seconds and memory of a solve on this number of equal workers.

    The maps take their share of the time; in each call the costs reach one worker and spread from
    there, distances come back to this process, and every call waits for two tasks, one per map.
    """
    spread = 1.0 + math.log2(workers)
    moving = (load.sent * spread + load.returned) / rates.bytes_per_second
    seconds = load.serial + load.parallel / (workers * rates.speed)
    seconds += load.calls * (moving + 2.0 * rates.latency)
    copies = COPIES if workers > 1 else 1.0
    return OnWorkers(workers, seconds, load.fixed + copies * load.stored / workers)


def verdict(one_machine: float, predicted: tuple[OnWorkers, ...]) -> str:
    """From how many workers on the cluster is faster, in words."""
    best = min(predicted, key=lambda each: each.seconds)
    if best.seconds >= one_machine:
        return "one machine: this process is faster than any number of such workers"
    first = next(each for each in predicted if each.seconds < one_machine)
    return (
        f"a cluster is faster from {first.workers} such worker{'s' * (first.workers > 1)} on; "
        f"{best.workers} take {duration(best.seconds)}, this process {duration(one_machine)}"
    )
