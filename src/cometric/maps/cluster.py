"""A Dask cluster whose workers and scheduler may be lost at any time."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from cometric.core.warn import warn

PATIENCE = 120.0
"""Seconds without a scheduler, or without workers, after which a call fails."""

POLL = 0.5
"""Seconds between checks of a cluster that returns nothing."""

ANSWER = 2.0
"""Seconds after which it is checked whether the worker that has a result is still there."""

LATE = 5.0
"""Seconds after which a result that was reported, and is missing, counts as lost."""

NO_WORKER = "no worker has been available"

LOST = object()
"""The result of a task that was lost with its worker."""


class ClusterLost(RuntimeError):
    """The scheduler, or every worker, was lost and did not come back."""


class Cluster:
    """A ``distributed.Client`` that waits for what may come back, and fails if it does not.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    patience
        Seconds without a scheduler or without workers before :class:`ClusterLost` is raised.
    """

    def __init__(self, client: Any, patience: float = PATIENCE) -> None:
        self.client, self.patience = client, patience
        self.moved = 0  # bytes of arrays that this process sent and received

    def share(self, value: Any) -> Any:
        """A future of ``value``, which every worker that needs it fetches once.

        A task rather than scattered data: those are lost with the worker that holds them, and
        their broadcast hangs if a worker dies. The scheduler can repeat a task.
        """
        self.moved += int(getattr(value, "nbytes", 0))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return self.client.submit(_identity, value, pure=False)

    def submit(self, function: Any, *args: Any, worker: str | None = None) -> Any:
        """The future of a call, on this worker if given."""
        pinned = {} if worker is None else {"workers": [worker], "allow_other_workers": False}
        return self.client.submit(function, *args, pure=False, **pinned)

    def collect(self, futures: Mapping[Any, str | None]) -> Iterator[tuple[Any, Any]]:
        """Futures with their results, as they finish; ``LOST`` for those lost with a worker.

        ``futures`` have the worker to which each is bound, or None. Errors of tasks are raised.
        """
        from distributed import wait

        waiting, last_seen = set(futures), time.monotonic()
        try:
            while waiting:
                try:
                    ready = wait(waiting, timeout=POLL, return_when="FIRST_COMPLETED").done
                except TimeoutError:
                    self.check_scheduler()
                    workers = self.workers()
                    if workers:
                        last_seen = time.monotonic()
                    elif time.monotonic() - last_seen > self.patience:
                        raise ClusterLost(self.message(NO_WORKER, self.patience)) from None
                    ready = {
                        future
                        for future in waiting
                        if workers and futures[future] not in (None, *workers)
                    }
                    waiting -= ready
                    for future in ready:
                        self.cancel([future])
                        yield future, LOST
                    continue
                except _cancelled():
                    self.check_scheduler()
                    ready, waiting = waiting, set()
                    yield from ((future, LOST) for future in ready)
                    return
                last_seen = time.monotonic()
                waiting -= ready
                yield from self._results({future: futures[future] for future in ready})
        finally:
            self.cancel(waiting)

    def finish(self, futures: Mapping[Any, str | None]) -> None:
        """Wait until tasks are finished or lost."""
        for _ in self.collect(futures):
            pass

    def _results(self, futures: Mapping[Any, str | None]) -> Iterator[tuple[Any, Any]]:
        """Finished tasks with their results, in one message where none is lost."""
        finished = [future for future in futures if future.status == "finished"]
        # Without a timeout, `gather` would wait for lost data for ever.
        gather = partial(self.client.gather, finished, asynchronous=True)
        try:
            results = self.client.sync(gather, callback_timeout=ANSWER)
        except Exception:  # lost, late, or an error of a task: asked for one by one
            finished, results = [], []
        yield from zip(finished, results, strict=True)
        for future in set(futures) - set(finished):
            yield future, self.result(future, futures[future])

    def result(self, future: Any, worker: str | None = None) -> Any:
        """The result of a finished task, ``LOST`` if it was lost; raises an error of its own.

        A task bound to a ``worker`` that is gone is not computed again.
        """
        from distributed import KilledWorker

        timeout, waited = ANSWER, 0.0
        while waited < self.patience:
            try:
                return future.result(timeout=timeout)
            except TimeoutError:
                self.check_scheduler()
                timeout, waited = 2 * timeout, waited + timeout
                lost = future.status != "finished" and waited > LATE
                if lost or (worker is not None and worker not in self.workers()):
                    break
            # `sync` of distributed raises UnboundLocalError if its own task is cancelled.
            except (KilledWorker, OSError, UnboundLocalError, *_cancelled()):
                self.check_scheduler()
                break
        self.cancel([future])
        return LOST

    def cancel(self, futures: Any) -> None:
        """Cancel tasks whose results are not needed any more."""
        if futures:
            with suppress(Exception):  # the scheduler may not be running
                self.client.cancel(list(futures), force=True)

    def workers(self) -> dict[str, int]:
        """Threads of each worker."""
        try:
            return dict(self.client.nthreads())
        except OSError:  # the scheduler has just been lost
            return {}

    def memory(self) -> dict[str, float]:
        """Bytes that each worker may use; infinity if it has no limit."""
        try:
            info = self.client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, KeyError):
            return {}
        return {
            address: float(worker.get("memory_limit") or "inf") for address, worker in info.items()
        }

    def wait_for_workers(self, ignoring: Collection[str] = ()) -> dict[str, int]:
        """Threads of each worker that is not ignored, of which there is at least one."""
        began = time.monotonic()
        self.check_scheduler()
        while not (workers := {k: v for k, v in self.workers().items() if k not in ignoring}):
            if time.monotonic() - began > self.patience:
                raise ClusterLost(self.message(NO_WORKER, self.patience))
            time.sleep(0.05)
            self.check_scheduler()
        return workers

    def check_scheduler(self) -> None:
        """Wait while the client tries to reconnect; raise if that takes too long."""
        since = time.monotonic()
        while self.client.status != "running":
            if self.client.status == "closed":  # Dask has stopped reconnecting
                raise ClusterLost(self.message("the scheduler is not running"))
            if time.monotonic() - since > self.patience:
                raise ClusterLost(self.message("the scheduler has not answered", self.patience))
            time.sleep(0.1)

    def message(self, problem: str, seconds: float | None = None) -> str:
        """A problem with the address of the scheduler, and what to do."""
        address = getattr(getattr(self.client, "scheduler", None), "address", "unknown")
        duration = "" if seconds is None else f" for {seconds:.0f} s"
        return (
            f"{problem}{duration} (scheduler {address}). Start a cluster and call again with its "
            "client; a run with `checkpoint=...` continues from its checkpoint, with "
            "cometric.resume(...) also in this process."
        )


def as_cluster(client: Any, patience: float = PATIENCE) -> Cluster | None:
    """The cluster of a client, or the cluster itself; None without one."""
    if client is None or isinstance(client, Cluster):
        return client
    return Cluster(client, patience)


def _identity(value: Any) -> Any:
    return value


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
