"""Kernels on threads: all tasks are computed, errors are raised, forked processes work."""

import ast
import os
import subprocess
import sys
import threading
import timeit
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numba
import numpy as np
import pytest

import cometric as cm
from cometric import baselines
from cometric.kernels import compiling

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
KERNELS = SRC / "cometric" / "kernels"


def run(code, *arguments, **environment):
    """A child that runs ``code``."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(SRC), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_no_kernel_uses_the_threads_of_numba():
    for path in KERNELS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert not (isinstance(node, ast.Name) and node.id == "prange"), path.name
            assert not (isinstance(node, ast.keyword) and node.arg == "parallel"), path.name


LOST = """
import resource, sys
import numpy as np
from cometric.kernels.compiling import threaded

@threaded
def fill(sizes, values, task, tasks):
    for i in range(task, len(sizes), tasks):
        room = np.empty(sizes[i])
        room[0] = 1.0
        values[i] = room[0]

fill(np.full(4, 10), np.zeros(4), 4)
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + 2**26
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for i in range(4):
    sizes = np.full(4, 10)
    sizes[i] = 2**27
    try:
        print(fill(sizes, np.zeros(4), 4))
    except MemoryError as error:
        print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_thread_without_memory_is_never_passed_over(tmp_path):
    script = tmp_path / "lost.py"  # a file: Numba caches no other code
    script.write_text(LOST)
    code = "import runpy, sys; runpy.run_path(sys.argv[1])"
    said = run(code, str(script), NUMBA_NUM_THREADS="4")
    assert said.stdout.splitlines() == 4 * [compiling.NO_MEMORY], said.stderr


STARVED = """
import resource, numpy as np, cometric as cm
size = 1500
A = np.random.default_rng(0).random((5, size))
A /= A.sum(axis=1, keepdims=True)
C = 1.0 - np.eye(size)
phi = cm.ExactMap(A)
cm.ExactMap(A[:, :4] / A[:, :4].sum(axis=1, keepdims=True))(1.0 - np.eye(4))  # starts threads
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + int(2.5 * 8 * size**2)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    phi(C)
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_kernel_without_memory_reports_it():
    said = run(STARVED, NUMBA_NUM_THREADS="4")
    assert "not enough memory for the work arrays of a kernel" in said.stdout, said.stderr


@pytest.mark.parametrize("cause", [None, ValueError("another")])
def test_other_errors_of_compiled_code_stay_what_they_are(cause):
    def fail(task, tasks):
        raise SystemError("a result with an exception set") from cause

    with pytest.raises(SystemError, match="with an exception set"):
        launched(fail)(2)


def test_a_wrapped_memory_error_is_unwrapped():
    def fail(task, tasks):
        inner = SystemError("inner")
        inner.__cause__ = MemoryError()
        raise SystemError("outer") from inner

    with pytest.raises(MemoryError, match="Pass a smaller `n_threads`"):
        launched(fail)(2)


def launched(function):
    """``function`` launched as a kernel, without its compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba, "njit", lambda **options: lambda function: function)
        return compiling.threaded(function)


@pytest.mark.parametrize("tasks", [1, 2, 3, 9])
def test_every_task_is_computed_once_and_before_the_call_returns(tasks):
    done = []

    def compute(number, task, tasks):
        threading.Event().wait(0.005 * task)
        done.append((number, task, tasks))

    launched(compute)(7, tasks)
    assert sorted(done) == [(7, task, tasks) for task in range(tasks)]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_of_a_task_is_raised_when_all_have_ended(failing):
    ended = []

    def compute(task, tasks):
        if task == failing:
            raise ValueError(f"task {task}")
        threading.Event().wait(0.05)
        ended.append(task)

    with pytest.raises(ValueError, match=f"task {failing}"):
        launched(compute)(3)
    assert sorted(ended) == sorted({0, 1, 2} - {failing})


def test_an_interruption_is_raised_when_all_tasks_have_ended(monkeypatch):
    ended, waits = [], []
    together = threading.Barrier(2, timeout=10)

    def compute(task, tasks):
        together.wait()  # each thread has a task
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait(0.1)
            ended.append(task)

    def interrupted_once(futures, timeout=None):
        waits.append(timeout)
        if waits.count(None) == 1 and timeout is None:
            raise KeyboardInterrupt
        return wait(futures, timeout)

    monkeypatch.setattr(compiling, "wait", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        launched(compute)(2)
    assert len(ended) == 1


def test_threads_take_portions_until_none_is_left():
    done, threads = [], set()

    def compute(number, task, tasks):
        threading.Event().wait(0.002)
        threads.add(threading.get_ident())
        done.append((number, task, tasks))

    launched(compute)(7, 2, portions=5)
    assert sorted(done) == [(7, task, 10) for task in range(10)]
    assert len(threads) == 2


def test_without_memory_for_a_thread_all_tasks_are_computed_here(monkeypatch):
    def full(self, compute, task):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(compiling._Threads, "submit", full)
    done = []
    launched(lambda task, tasks: done.append((task, threading.get_ident())))(3)
    assert done == [(task, threading.get_ident()) for task in range(3)]


def test_no_portion_begins_after_an_interruption():
    done = []
    together = threading.Barrier(2, timeout=10)

    def compute(task, tasks):
        if task < 2:
            together.wait()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        threading.Event().wait(0.1)
        done.append(task)

    with pytest.raises(KeyboardInterrupt):
        launched(compute)(2, portions=10)
    assert len(done) == 1


AT_ONCE = """
import sys
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, sys.argv[1])
from test_threads import RUNS, X, bits
import cometric as cm
with ThreadPoolExecutor(4) as pool:
    jobs = [pool.submit(cm.learn, X, **run) for run in list(RUNS.values()) * 2]
found = [bits(job.result()) for job in jobs]
assert found == 2 * [bits(cm.learn(X, **run)) for run in RUNS.values()]
"""


def test_several_threads_may_learn_at_once_in_a_new_process():
    said = run(AT_ONCE, str(ROOT / "tests" / "runtime"), NUMBA_NUM_THREADS="2")
    assert said.returncode == 0, said.stderr


def test_a_launch_costs_next_to_nothing():
    plain = min(timeit.repeat(lambda: None, number=2000, repeat=5))
    one, two = launched(lambda task, tasks: None), partial(launched(lambda task, tasks: None), 2)
    alone = min(timeit.repeat(partial(one, 1), number=2000, repeat=5))
    assert (alone - plain) / 2000 < 20e-6  # seconds
    beside = min(timeit.repeat(two, number=2000, repeat=5))
    assert (beside - plain) / 2000 < 500e-6


def result():
    return cm.learn([[3, 1, 1], [1, 3, 2], [2, 2, 5], [0, 1, 4]], eps=0, tau=0.1)


DOORS = {
    "plan": lambda r, X: cm.plan(X, eps=0),
    "plan entropic": lambda r, X: cm.plan(X, eps=0.1),
    "learn": lambda r, X: cm.learn(X, eps=0, tau=0.1),
    "learn at infinity": lambda r, X: cm.learn(X, eps=np.inf, tau=0.1),
    "learn_landmarks": lambda r, X: cm.learn_landmarks(X, 3, n_neighbors=2),
    "certify": lambda r, X: r.certify(),
    "explain": lambda r, X: r.explain(0, 1),
    "transform": lambda r, X: r.transform(X),
    "neighbor_graph": lambda r, X: cm.neighbor_graph(r, X, n_neighbors=2),
    "ExactMap": lambda r, X: cm.ExactMap(np.eye(3))(1.0 - np.eye(3)),
    "EntropicMap": lambda r, X: cm.EntropicMap(np.eye(3), 0.1)(1.0 - np.eye(3)),
    "distances_to_zarr": lambda r, X: cm.distances_to_zarr(r, X, mkdtemp() + "/new"),
    "baseline": lambda r, X: baselines.reference(X),
    "warmup": lambda r, X: cm.warmup(["exact"]),
    "estimator": lambda r, X: cm.WassersteinSingularVectors(eps=0).fit(X),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("door", DOORS)
def test_every_door_works_in_a_forked_process(door):
    parent = result()
    X = np.array([[3, 1, 1], [1, 3, 2], [2, 2, 5], [0, 1, 4]], float)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            DOORS[door](parent, X)
            said = "done"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if said.startswith("ImportError"):
        pytest.skip(said)
    assert said == "done"
