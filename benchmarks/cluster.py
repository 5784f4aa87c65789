"""A Dask cluster compared with one process: time, bytes, and the cost of lost workers.

    python benchmarks/cluster.py [speed] [pbmc3k] [kills] [bytes] [--data FOLDER]

speed   600 x 300 counts: one process with one thread, then 1 to 4 worker processes
pbmc3k  PBMC 3k, 15 iterations: the same with 1 and 2
kills   --count solves on two workers, one or both of which are killed (SIGKILL) at a random moment,
        every other solve with a checkpoint after each iteration
bytes   bytes of costs that the client sends per iteration, against a formula, and its memory

Results are compared byte by byte with those of one process.
"""

import argparse
import os
import random
import resource
import signal
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import machine
import numpy as np
from dask import config
from distributed import Client, LocalCluster
from entropic import load_pbmc3k

import cometric as cm

OPTIONS = {"tau": 0.05, "tol": 1e-3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    parser.add_argument("--count", type=int, default=50, help="solves of `kills`")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4], help="of `speed`")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of `kills`")
    asked = parser.parse_args()
    print(machine.describe("cometric", "dask", "numba"))
    for part in asked.parts or PARTS:
        print(part, flush=True)
        PARTS[part](asked)


def counts():
    return cm.datasets.simulate_counts(600, 300, density=0.2).X


@contextmanager
def cluster_of(workers):
    """A client of worker processes with one thread each and compiled kernels."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    patient = config.set({"distributed.deploy.lost-worker-timeout": "600s"})
    with (
        patient,
        LocalCluster(n_workers=workers, **options) as cluster,
        Client(cluster) as client,
    ):
        client.run(cm.warmup, ["entropic"])
        yield client


def same_bytes(one, other):
    return one.samples.tobytes() + one.features.tobytes() == (
        other.samples.tobytes() + other.features.tobytes()
    )


def timed(X, **options):
    """A result and the seconds of the call."""
    began = time.perf_counter()
    result = cm.learn(X, **options)
    return result, time.perf_counter() - began


def compare(X, numbers, **options):
    """Print the seconds of one process, and of several numbers of workers."""
    cm.warmup(["entropic"])
    began = time.process_time()
    plain, seconds = timed(X, n_threads=1, **options)
    print(
        f"  one process, one thread  {seconds:6.1f} s, {plain.iterations} iterations, "
        f"{time.process_time() - began:.1f} CPU seconds",
        flush=True,
    )
    _, spent = timed(X, n_threads=2, **options)
    print(
        f"  one process, two threads {spent:6.1f} s, {seconds / spent:.2f} times as fast",
        flush=True,
    )
    blocks, local = timed(X, client="local", n_threads=1, **options)
    same = same_bytes(blocks, plain)
    print(f"  its blocks               {local:6.1f} s, identical bytes: {same}", flush=True)
    one = None
    for workers in numbers:
        with cluster_of(workers) as client:
            before, own = client.run(time.process_time), time.process_time()
            found, spent = timed(X, client=client, **options)
            own = time.process_time() - own
            after = client.run(time.process_time)
        one = one or spent
        busy = ", ".join(f"{after[name] - before[name]:.1f}" for name in sorted(after))
        print(
            f"  {workers} worker(s)              {spent:6.1f} s, {spent / seconds:.2f} times one "
            f"process, {one / spent:.2f} times as fast as one worker, "
            f"identical bytes: {same_bytes(found, plain)}\n"
            f"    CPU seconds: client and scheduler {own:.1f}, workers {busy}",
            flush=True,
        )


def speed(asked: argparse.Namespace) -> None:
    compare(counts(), asked.workers, **OPTIONS)


def pbmc3k(asked: argparse.Namespace) -> None:
    import warnings

    cells, _, _ = load_pbmc3k(asked.data)
    warnings.simplefilter("ignore", cm.ConvergenceWarning)
    compare(cells.X, (1, 2), tau=0.001, tol=0.0, max_iter=15)


def kills(asked: argparse.Namespace) -> None:
    """Solves in which workers are killed; prints the seconds lost."""
    X, rng = cm.datasets.simulate_counts(200, 100, density=0.2).X, random.Random(asked.seed)
    options = OPTIONS | {"tol": 1e-5}
    expected = cm.learn(X, **options)
    identical, killed, lost = 0, 0, []
    with cluster_of(2) as client:
        usual = [min(solve(X, client, k, options)[1] for _ in range(3)) for k in (0, 1)]
    for trial in range(asked.count):
        with cluster_of(2) as client:  # Dask does not always start killed workers again
            victims = list(client.run(os.getpid).values())[: 2 if trial % 5 == 4 else 1]
            moment = threading.Timer(rng.uniform(0.0, 0.9 * usual[trial % 2]), kill, [victims])
            moment.start()
            found, seconds = solve(X, client, trial % 2, options)
            moment.join()
        identical += same_bytes(found, expected)
        killed += len(victims)
        lost.append(seconds - usual[trial % 2])
        print(
            f"  {trial + 1}: {len(victims)} killed after {moment.interval:.2f} s, "
            f"{seconds:.2f} s, identical bytes in {identical}",
            flush=True,
        )
    print(
        f"  {killed} killed in {asked.count} solves of {usual[0]:.2f} s, with checkpoints "
        f"{usual[1]:.2f} s: {identical} identical, seconds lost: median {np.median(lost):.2f}, "
        f"largest {max(lost):.2f}"
    )


def solve(X, client, save, options):
    """A solve, with a checkpoint after each iteration or without, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        saved = {"checkpoint": folder, "checkpoint_every": 0.0} if save else {}
        return timed(X, client=client, **saved, **options)


def kill(processes):
    for process in processes:
        os.kill(process, signal.SIGKILL)


def bytes_sent(_: argparse.Namespace) -> None:
    """Bytes of costs per iteration, measured and by the formula; memory of client and scheduler."""
    from cometric.maps.distributed import DistributedEntropicMap

    for n, m in ((600, 300), (1200, 600)):
        X = cm.datasets.simulate_counts(n, m, density=0.1).X
        problem = cm.Problem.from_data(X)
        with cluster_of(2) as client:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            sides = problem.samples, problem.features
            to_samples, to_features = (
                DistributedEntropicMap(side.hist, 0.1, client, sweeps=1) for side in sides
            )
            n, m = to_samples.shape
            cost = 1.0 - np.eye(m)
            sent = []
            for _ in range(4):
                cost = to_features(to_samples(cost))
                sent.append(to_samples._cluster.sent + to_features._cluster.sent)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            to_samples.close()
            to_features.close()
        formula = 8 * (n * (n - 1) / 2 + m * (m - 1) / 2)
        print(
            f"  {n} x {m}: {np.diff(sent)[-1] / 1e6:.3f} MB per iteration, by the formula "
            f"{formula / 1e6:.3f}; memory of client and scheduler rose by {peak / 1e3:.0f} MB"
        )


PARTS = {"speed": speed, "pbmc3k": pbmc3k, "kills": kills, "bytes": bytes_sent}

if __name__ == "__main__":
    main()
