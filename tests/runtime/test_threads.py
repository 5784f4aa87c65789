"""Threads and processes: the same bits from any number, nothing left changed, no silent death."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numba.core.compiler_lock import global_compiler_lock
from threadpoolctl import threadpool_info, threadpool_limits

import cometric as cm
from cometric.core.digest import digest
from cometric.kernels import thread_count
from cometric.maps import cluster
from cometric.runtime import threads

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
    before = thread_count(None), blas_threads()
    seen = []
    cm.learn(X, 0.1, 0.1, n_threads=1, callback=lambda *_: seen.append(thread_count(None)))
    assert set(seen) == {1}
    assert (thread_count(None), blas_threads()) == before

    def fail(*line):
        assert set(blas_threads()) == {1}
        raise RuntimeError("stop")

    with threadpool_limits(2, "blas"), pytest.raises(RuntimeError, match="stop"):
        cm.learn(X, 0.1, 0.1, callback=fail)
    assert (thread_count(None), blas_threads()) == before


def test_blas_is_put_back_by_the_last_of_several_users():
    before = blas_threads()
    first, second = threads.one_blas_thread(), threads.one_blas_thread()
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert set(blas_threads()) == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before


def test_blas_is_limited_again_after_a_limit_that_failed(monkeypatch):
    def fail():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("threadpoolctl.ThreadpoolController", fail)
        with pytest.raises(KeyboardInterrupt), threads.one_blas_thread():
            pass
    with threads.one_blas_thread():
        assert set(blas_threads()) == {1}


class InterruptAt:
    """A profiler that raises at one of the places where Python looks for signals."""

    def __init__(self, place):
        self.left = place

    def __call__(self, frame, event, _):
        if event in ("call", "c_return") and "callback" not in frame.f_code.co_name:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def test_ctrl_c_at_any_call_leaves_blas_as_it_was(monkeypatch):
    libraries = threads._blas_libraries()
    monkeypatch.setattr(threads, "_blas_libraries", lambda: libraries)  # quick
    place, interrupted = 0, True
    with threadpool_limits(2, "blas"):
        before = blas_threads()
        while interrupted:
            place, interrupted = place + 1, False
            sys.setprofile(InterruptAt(place))
            try:
                with threads.one_blas_thread():
                    assert {library.num_threads for library in libraries} == {1}
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.setprofile(None)
            assert [library.num_threads for library in libraries] == before, place
    assert place > 30


def said_by_child(call, seconds=10.0):
    """What ``call`` returns in a forked child, as text; "hung" if it does not return."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(call())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + seconds
    while time.monotonic() < end and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.001)
    with open(reading, "rb", buffering=0) as pipe:
        if time.monotonic() < end:
            return pipe.read().decode()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
ignore_forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@contextmanager
def beside(work):
    """Call ``work`` in another thread, again and again, until the end of the block."""
    ended = threading.Event()

    def repeat():
        while not ended.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@forks
@ignore_forks
def test_forks_beside_a_busy_thread_learn_with_blas_as_it_was():
    small = X[:12, :8] + 1.0
    truth, before = bits(cm.learn(small)), blas_threads()

    def learn():
        first = blas_threads()
        same = bits(cm.learn(small)) == truth
        return first, same, blas_threads()

    waits = np.random.default_rng(0).uniform(0.0, 0.02, 40)
    said = []
    with beside(lambda: cm.learn(small)):
        for wait in waits:
            time.sleep(wait)
            said.append(said_by_child(learn))
    assert said == [str((before, True, before))] * 40


@forks
@ignore_forks
def test_a_child_forked_inside_a_run_has_blas_as_it_was_and_can_leave_the_run():
    before = blas_threads()

    def leave():
        first = blas_threads()
        limit.__exit__(None, None, None)
        with threads.one_blas_thread():
            inside = blas_threads()
        return first, set(inside), blas_threads()

    limit = threads.one_blas_thread()
    with limit:
        assert said_by_child(leave) == str((before, {1}, before))
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


@forks
@ignore_forks
@pytest.mark.parametrize("name", ["blas", "tasks", "bars", "numba"])
def test_a_lock_held_by_another_thread_is_free_in_a_child(name):
    tqdm = pytest.importorskip("tqdm.auto").tqdm
    locks = {
        "blas": lambda: threads.one_blas_thread._lock,
        "tasks": lambda: cluster.one_task,
        "bars": tqdm.get_lock,
        "numba": lambda: global_compiler_lock,
    }
    held = threading.Event()

    def hold():
        lock = locks[name]()
        lock.acquire()
        held.set()
        time.sleep(0.5)
        lock.release()

    def acquire():
        with locks[name]():
            return "free"

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    said = said_by_child(acquire, 5.0)
    thread.join()
    assert said == "free"


def bits_of_a_run():
    return bits(cm.learn(X, 0.1, 0.1))


@ignore_forks
@pytest.mark.parametrize("method", ["spawn", pytest.param("fork", marks=forks)])
def test_another_process_learns_the_same_bits(method):
    truth = bits_of_a_run()
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        assert pool.submit(bits_of_a_run).result(200) == truth
