"""Tasks on the workers of a Dask cluster, which may be lost at any time.

Tasks depend only on results of other tasks, never on data that exists on a single worker. So Dask
itself recomputes what a lost worker had; this module waits for results, and raises if the
scheduler or all workers are gone.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from cometric.core.warn import warn
from cometric.runtime.threads import free_in_children

PATIENCE = 120.0
"""Seconds without a scheduler, or without workers, after which a call fails."""

POLL = 0.5
"""Seconds between checks of a cluster that returns nothing."""

one_task = free_in_children(threading.RLock())  # it uses all threads of its worker


class ClusterLost(RuntimeError):
    """The scheduler, or every worker, was lost and did not come back."""


class ThisProcess:
    """Runs tasks in this process, as they are submitted, instead of on a cluster."""

    name = "this process"
    sent = 0

    def share(self, value: Any, turn: int | None = None) -> Any:
        return value

    def submit(self, function: Callable[..., Any], *args: Any, turn: int | None = None) -> Any:
        return function(*args)

    def results(self, futures: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        return enumerate(futures)

    def result(self, future: Any) -> Any:
        return future

    def check(self) -> dict[str, int]:
        return {}


class Cluster:
    """The workers of a ``distributed.Client``.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    patience
        Seconds without a scheduler or without workers before :class:`ClusterLost` is raised.
    """

    name = "a Dask cluster"

    def __init__(self, client: Any, patience: float = PATIENCE) -> None:
        self.client, self.patience = client, patience
        self.sent = 0  # bytes of arrays shared so far
        self._workers = sorted(self.check())
        compare_versions(client)

    def share(self, value: Any, turn: int | None = None) -> Any:
        """A future of ``value``; each worker that needs it fetches it once.

        It is the result of a task, which the scheduler can rerun; scattered data would be lost
        with the worker.
        """
        if self.client.status != "running":
            self.check()
        self.sent += int(getattr(value, "nbytes", 0))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return self.submit(_identity, value, turn=turn)

    def submit(self, function: Callable[..., Any], *args: Any, turn: int | None = None) -> Any:
        """The future of a call; tasks with a ``turn`` are assigned to workers round-robin.

        Dask places the others, usually where most of their inputs are.
        """
        place: dict[str, Any] = {}
        if turn is not None:
            worker = self._workers[turn % len(self._workers)]
            place = {"workers": [worker], "allow_other_workers": True}
        try:
            return self.client.submit(function, *args, pure=False, **place)
        except Exception:
            self.check()  # the scheduler may be the reason
            raise

    def results(self, futures: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Positions and results, as they are computed; errors of tasks are raised."""
        from distributed import wait

        waiting = {future: position for position, future in enumerate(futures)}
        try:
            while waiting:
                try:
                    ready = list(wait(list(waiting), POLL, "FIRST_COMPLETED").done)
                    results = self._gather(ready)
                except TimeoutError:
                    self.check()
                    continue
                except _cancelled():
                    self.check()
                    raise ClusterLost(self._message("the scheduler was started again")) from None
                for future, result in zip(ready, results, strict=True):
                    yield waiting.pop(future), result
        finally:
            if waiting:
                with suppress(Exception):  # the scheduler may not be running
                    self.client.cancel(list(waiting))

    def result(self, future: Any) -> Any:
        """The result of one task."""
        return next(self.results([future]))[1]

    def _gather(self, futures: list[Any]) -> list[Any]:
        """The results of finished tasks; waits if a worker is lost in the meantime."""
        seconds = POLL
        while True:
            seconds *= 2
            gather = partial(self.client.gather, futures, asynchronous=True)
            try:
                results: list[Any] = self.client.sync(gather, callback_timeout=seconds)
            except (TimeoutError, UnboundLocalError):  # UnboundLocalError: gather was interrupted
                self.check()
            else:
                return results

    def check(self) -> dict[str, int]:
        """Threads of each worker; waits up to ``patience`` for the scheduler and a worker."""
        began = time.monotonic()
        while True:
            if self.client.status == "closed":  # Dask has stopped reconnecting
                raise ClusterLost(self._message("the scheduler is not running"))
            problem = "the scheduler has not answered"
            if self.client.status == "running":
                with suppress(OSError, TimeoutError):
                    ask = self.client.scheduler.ncores
                    workers = self.client.sync(ask, callback_timeout=self.patience + POLL)
                    problem = "no worker has been available"
                    if workers:
                        return dict(workers)
            if time.monotonic() - began > self.patience:
                raise ClusterLost(self._message(f"{problem} for {self.patience:.0f} s"))
            time.sleep(POLL / 5)

    def _message(self, problem: str) -> str:
        """An error message: the problem, the address of the scheduler, and what to do."""
        address = getattr(getattr(self.client, "scheduler", None), "address", "unknown")
        return (
            f"{problem} (scheduler {address}). Start a cluster and call again with its client; a "
            "run with `checkpoint=...` continues from its checkpoint, with cometric.resume(...) "
            "also in this process."
        )


def as_cluster(client: Any) -> Cluster | ThisProcess:
    """The cluster of a client; a cluster is returned as it is, None means this process."""
    if client is None:
        return ThisProcess()
    return client if isinstance(client, Cluster | ThisProcess) else Cluster(client)


def _identity(value: Any) -> Any:
    return value


def _cancelled() -> tuple[type[BaseException], ...]:
    """Exceptions that Dask raises for futures that the scheduler does not know."""
    from concurrent.futures import CancelledError

    from distributed.client import FutureCancelledError

    return CancelledError, FutureCancelledError


def worker_threads() -> int | None:
    """The threads of the Dask worker that runs this task; None outside a worker."""
    module = sys.modules.get("distributed")
    try:
        return None if module is None else int(module.get_worker().state.nthreads)
    except ValueError:
        return None


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
    """Package versions and processor type, which determine the last bits of a result."""
    from llvmlite.binding import get_host_cpu_name

    packages = {name: version(name) for name in ("numpy", "scipy", "numba", "dask")}
    # The package is loaded; importing it here would be a circular import.
    own_version = str(vars(sys.modules["cometric"])["__version__"])
    return {"cometric": own_version, **packages, "processor": str(get_host_cpu_name())}


def compare_versions(client: Any) -> None:
    """Raise if a worker has other package versions than this process; warn if the CPU differs."""
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
