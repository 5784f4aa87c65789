"""The same bytes for any number of threads, blocks and workers, even if workers die."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import cometric as cm
from cometric import ExactMap
from cometric.core.digest import digest
from cometric.maps import entropic_pairs, exact_pairs
from cometric.maps.distributed import ColdMap
from cometric.maps.norms import norm_matrices
from trials import Outcome
from trials.crashes import RUNS, X, bits, each, quiet
from trials.processes import in_child

ALL_RUNS = """
import sys
sys.path.insert(0, sys.argv[1])
from trials.determinism import all_answers, all_runs
print(all_runs(), all_answers())
"""

LABELS = [f"group {i % 3}" for i in range(len(X))]


def all_runs() -> str:
    return " ".join(quiet(partial(cm.learn, X, **options)) for options in RUNS)


def _arrays(**found: Any) -> str:
    """A checksum of arrays, sparse matrices and text."""
    parts = {}
    for name, value in found.items():
        if sparse.issparse(value):
            rows = sparse.csr_array(value)
            parts |= {f"{name} data": rows.data, f"{name} at": rows.indices, name: rows.indptr}
        else:
            parts[name] = np.asarray(value)
    return digest(parts)


def _answers() -> Iterator[tuple[str, str]]:
    """All other computations, most of them from a result, by name."""
    result = cm.learn(X, tol=1e-3)
    for transport in (cm.Mahalanobis(), cm.Tree("single"), cm.Limit()):
        yield f"{transport}", quiet(partial(cm.learn, X, transport=transport, tau=0.1))
    for norm in ("lsa", "cosine", "hellinger"):
        yield norm, quiet(partial(cm.learn, X, restart=0.3, norm=norm, tol=1e-3))
    given: dict[str, Any] = {"features": result.features, "saturate": 0.5}
    yield "given metric", quiet(partial(cm.learn, X, **given))
    found = cm.modules(result, n_neighbors=5, min_size=2)
    yield "modules", _arrays(labels=found.labels, coherence=found.coherence, scores=found.scores())
    yield "smooth", _arrays(X=cm.smooth(X, result, 5, of="both"))
    across = result.transform(X[:7] + 0.5)
    yield "transform", _arrays(across=across)
    labels = cm.transfer_labels(across, LABELS, 5, within=result.samples)
    yield "transfer_labels", _arrays(labels=labels.labels, confidence=labels.confidence)
    yield "rank_features", repr(cm.rank_features(result, LABELS))
    choice = cm.choose(X, {"entropic": {"tol": 1e-2}}, n_splits=1, n_neighbors=5)
    yield "choose", repr([(row.name, row.loss) for row in choice.table])
    for search in ("exhaustive", "index"):
        near = cm.neighbor_graph(result, X, 4, search=search, check=3)
        yield search, _arrays(graph=near.graph, proved=near.proved, recall=near.recall)
    sketch = cm.learn_landmarks(X, 20, 4, tol=1e-3)
    yield "learn_landmarks", _arrays(features=sketch.features, graph=sketch.graph)
    yield "certify", repr(result.certify())


def all_answers() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return " ".join(text for pair in _answers() for text in pair)


def thread_counts(counts: tuple[int, ...]) -> Outcome:
    """The same runs in interpreters with several numbers of threads, even more than cores."""
    found = {
        subprocess.run(
            [sys.executable, "-c", ALL_RUNS, str(Path(__file__).parents[1])],
            env={**os.environ, "NUMBA_NUM_THREADS": str(k), "OPENBLAS_NUM_THREADS": str(k)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for k in counts
    }
    return _compared(
        f"{', '.join(map(str, counts))} threads: {len(RUNS)} runs, and modules, smoothed data, new "
        "samples and their labels, features of groups, choices, neighbors, landmarks, trees, given "
        "metrics, quadratic forms and references once each",
        len(found),
    )


def block_sizes(tiles: tuple[int, ...]) -> Outcome:
    """The same runs with blocks of several sizes, and exact maps in tasks."""

    def work(cells: float, tile: int) -> str:
        exact_pairs.CELLS_PER_BLOCK = entropic_pairs.CELLS_PER_BLOCK = cells
        problem = cm.Problem.from_data(X)
        norms = norm_matrices(problem, "l1")
        maps = {
            name: ColdMap(ExactMap, side.hist, side=tile)(cost)
            for name, side, cost in (
                ("samples", problem.samples, norms.features),
                ("features", problem.features, norms.samples),
            )
        }
        return f"{all_runs()} {digest(maps)}"

    cells = [10.0**power for power in range(2, 2 + len(tiles))]
    pairs = zip(cells, tiles, strict=True)
    found = {in_child(partial(work, *sizes)) for sizes in pairs}
    return _compared(
        f"blocks of {', '.join(f'{size:g}' for size in cells)} cells, {len(RUNS)} runs each; "
        f"tiles of {', '.join(map(str, tiles))} histograms, 4 maps each",
        len(found),
    )


def _compared(done: str, outcomes: int) -> Outcome:
    same = outcomes == 1
    return Outcome(done, "identical bytes" if same else f"{outcomes} different outcomes", same)


# --------------------------------------------------------------------------------- Dask


DATA = cm.datasets.simulate_counts(120, 60, density=0.2)
OPTIONS: dict[str, Any] = {"tau": 0.05, "tol": 1e-3}


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "600s"}),  # busy machines
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as made,
        Client(made) as client,
    ):
        yield client


def worker_counts(counts: tuple[int, ...]) -> Outcome:
    """Exact and entropic runs in this process, and on several numbers of workers."""
    found = set()
    for workers in (0, *counts):
        if workers == 0:
            found.add(_exact_and_entropic("local"))
        else:
            with cluster(workers) as client:
                found.add(_exact_and_entropic(client))
    words = ", ".join(map(str, counts))
    return _compared(f"{words} Dask workers and none, exact and entropic", len(found))


def _exact_and_entropic(client: Any) -> str:
    return " ".join(bits(cm.learn(DATA.X, eps, client=client, **OPTIONS)) for eps in (0.0, 0.1))


def worker_kills(runs: int) -> Outcome:
    """Entropic runs on two workers, one of which is killed in each, at a random moment."""
    rng = random.Random(3)
    truth = bits(cm.learn(DATA.X, client="local", **OPTIONS))
    killed = identical = 0
    with cluster(2) as client:
        while killed < runs:
            client.wait_for_workers(2, timeout=1200)  # Dask replaces lost ones after 600 s
            known = client.run(os.getpid, on_error="ignore")  # one may be dying still
            victim = rng.choice(list(known.values()))
            struck = threading.Event()

            def kill(victim: int = victim, struck: threading.Event = struck) -> None:
                os.kill(victim, signal.SIGKILL)
                struck.set()

            timer = threading.Timer(rng.uniform(0.0, 1.0), kill)

            def begin(now: object, record: cm.result.Record, timer: Any = timer) -> None:
                if record.iteration == 1:
                    timer.start()

            found = cm.learn(DATA.X, client=client, callback=begin, **OPTIONS)
            timer.cancel()
            if struck.is_set():  # otherwise the run was over before
                killed += 1
                identical += bits(found) == truth
    return Outcome(
        f"{killed} runs on two Dask workers, one of which is killed in each",
        f"identical bytes in {identical}",
        identical == killed == runs,
    )


class Faulty:
    """The ``submit`` of a client, whose n-th task meets ``fault``."""

    def __init__(self, submit: Callable[..., Any], n: int, fault: Callable[..., Any]) -> None:
        self._submit, self._n, self._fault = submit, n, fault
        self.tasks = 0

    def __call__(self, work: Callable[..., Any], *args: Any, **how: Any) -> Any:
        self.tasks += 1
        if self.tasks == self._n:
            work = partial(self._fault, work)
        return self._submit(work, *args, **how)


def _raises(struck: Path, work: Callable[..., Any], *args: Any) -> Any:
    raise MemoryError("injected")


def _dies(struck: Path, work: Callable[..., Any], *args: Any) -> Any:
    """Only once: if the task is sent again, it succeeds."""
    if not struck.exists():
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return work(*args)


def _every_task(step: int, fault: Callable[..., Any], raises: bool) -> tuple[int, int]:
    """The runs whose n-th task meets a fault, for every n; in how many all went as it should."""
    options: dict[str, Any] = {"tau": 1.0, "tol": 1e-2}
    truth = bits(cm.learn(DATA.X, client="local", **options))
    runs = good = 0
    while True:
        n = 1 + runs * step
        # A new cluster each time: Dask may take 20 minutes to replace a worker, or for ever
        with tempfile.TemporaryDirectory() as folder, cluster(2) as client:
            options |= {"client": client, "checkpoint": f"{folder}/run"}
            submit, raised = client.submit, False
            client.submit = faulty = Faulty(submit, n, partial(fault, Path(folder, "struck")))
            try:
                cm.learn(DATA.X, checkpoint_every=0, **options)
            except MemoryError:
                raised = True
            client.submit = submit
            if faulty.tasks < n:
                return runs, good
            # Continues, or reads what is complete.
            runs += 1
            good += raised == raises and bits(cm.learn(DATA.X, **options)) == truth


def task_errors(step: int) -> Outcome:
    """Make the n-th task of a cluster raise, for every n."""
    runs, good = _every_task(step, _raises, raises=True)
    return Outcome(
        f"n-th task of two Dask workers raises MemoryError, {each(step)}: {runs} runs",
        f"{good} raised it and then went on to the same bytes; {runs - good} other",
        good == runs > 0,
    )


def task_kills(step: int) -> Outcome:
    """Let the n-th task of a cluster kill its worker, for every n."""
    runs, good = _every_task(step, _dies, raises=False)
    return Outcome(
        f"n-th task of two Dask workers kills its worker, {each(step)}: {runs} runs",
        f"{good} ended with the same bytes",
        good == runs > 0,
    )
