"""Threads and processes: the same bits from any number, nothing left changed, no silent death."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import cometric as cm
from cometric.core.digest import digest
from cometric.kernels import chosen_threads
from cometric.machine import threads

SRC = Path(__file__).parents[2] / "src"
X = cm.datasets.simulate_counts(24, 18, density=0.5, random_state=2).X.toarray() + np.eye(24, 18)
RUNS = {
    "policy": {"eps": 0, "tau": 0.1},
    "exact power": {"eps": 0, "tau": 0.5, "solver": "power"},
    "entropic": {"eps": 0.1, "tau": 0.1},
    "stochastic": {"eps": 0, "tau": 1.0, "solver": "stochastic", "tol": 1e-3},
    "entropic stochastic": {"eps": 0.3, "tau": 1.0, "solver": "stochastic", "tol": 1e-3},
    "limit": {"eps": np.inf, "tau": 0.1},
}

CHILD = """
import sys, numpy as np, cometric as cm
sys.path.insert(0, sys.argv[1])
from test_threads import RUNS, X, bits
for name in RUNS:
    print("", bits(cm.learn(X, n_threads=int(sys.argv[2]), **RUNS[name])), end="")
"""


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_bad_numbers_of_threads_are_refused(wrong):
    words = "`n_threads` is .*; pass a whole number, at least 1"
    with pytest.raises(ValueError, match=words), threads.workers(wrong):
        pass


def bits(result):
    return digest({"samples": result.samples, "features": result.features})


def test_one_two_and_four_threads_give_the_same_bits():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(count)],
            env={
                **os.environ,
                "PYTHONPATH": str(SRC),
                "NUMBA_NUM_THREADS": str(count),
                "OPENBLAS_NUM_THREADS": str(count),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for count in (1, 2, 4)
    ]
    assert len(outputs[0].split()) == len(RUNS)
    assert outputs[0] == outputs[1] == outputs[2]


def blas_threads():
    return [part["num_threads"] for part in threadpool_info() if part["user_api"] == "blas"]


def test_threads_are_held_during_a_run_and_put_back():
    before = chosen_threads(), blas_threads()
    seen = []
    cm.learn(X, 0.1, 0.1, n_threads=1, callback=lambda *_: seen.append(chosen_threads()))
    assert set(seen) == {1}
    assert (chosen_threads(), blas_threads()) == before

    def fail(*line):
        assert set(blas_threads()) == {1}
        raise RuntimeError("stop")

    with threadpool_limits(2, "blas"), pytest.raises(RuntimeError, match="stop"):
        cm.learn(X, 0.1, 0.1, callback=fail)
    assert (chosen_threads(), blas_threads()) == before


def test_blas_is_put_back_by_the_last_of_several_users():
    before = blas_threads()
    first, second = threads.one_blas_thread(), threads.one_blas_thread()
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert set(blas_threads()) == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before


def test_blas_is_limited_again_after_a_limit_that_failed(monkeypatch):
    def fail(**_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("threadpoolctl.threadpool_limits", fail)
        with pytest.raises(KeyboardInterrupt), threads.one_blas_thread():
            pass
    with threads.one_blas_thread():
        assert set(blas_threads()) == {1}


def test_several_threads_may_learn_at_once():
    truth = {name: bits(cm.learn(X, **RUNS[name])) for name in ("policy", "entropic")}
    before = blas_threads()
    with ThreadPoolExecutor(4) as pool:
        jobs = [(name, pool.submit(cm.learn, X, **RUNS[name])) for name in list(truth) * 3]
    assert all(bits(job.result()) == truth[name] for name, job in jobs)
    assert blas_threads() == before


def learn_in_child(queue):
    queue.put(bits(cm.learn(X, 0.1, 0.1)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_learns_the_same_bits():
    truth = bits(cm.learn(X, 0.1, 0.1))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=learn_in_child, args=(queue,))
    child.start()
    found = queue.get(timeout=120)
    child.join()
    assert child.exitcode == 0
    assert found == truth


SPAWN = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
from test_threads import RUNS, X, bits, learn_in_child
import cometric as cm
if __name__ == "__main__":
    truth = bits(cm.learn(X, 0.1, 0.1))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=learn_in_child, args=(queue,))
    child.start()
    print(queue.get(timeout=200) == truth)
    child.join()
"""


def test_a_spawned_process_learns_the_same_bits(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    path = os.pathsep.join([str(SRC), str(Path(__file__).parent)])
    said = subprocess.run(
        [sys.executable, str(script), str(Path(__file__).parent)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "True"
