"""Every parallel kernel is started with the same care, whoever asks for it and however."""

import ast
import os
import subprocess
import sys
import threading
import timeit
from pathlib import Path
from tempfile import mkdtemp

import numba
import numpy as np
import pytest

import cometric as cm
from cometric import baselines, kernels
from cometric.kernels import launching, plans

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
KERNELS = SRC / "cometric" / "kernels"

THREADS_ALLOCATE_NOTHING = {
    "move_costs", "copy_scalings", "pairwise_norms", "pair_norms", "pair_squares",
}  # fmt: skip


def run(code, *arguments, **environment):
    """A child that runs ``code``."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(SRC), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def functions():
    """All functions of the kernels, with the names of their decorators."""
    for path in KERNELS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield node, [ast.unparse(one) for one in node.decorator_list]


def calls(node):
    """The names of all functions called inside, but not in functions defined there."""
    names = {ast.unparse(node.func)} if isinstance(node, ast.Call) else set()
    inner = (x for x in ast.iter_child_nodes(node) if not isinstance(x, ast.FunctionDef))
    return names.union(*map(calls, inner))


def test_every_parallel_kernel_is_launched_with_care():
    for function, decorators in functions():
        if "prange" in calls(function):
            assert decorators == ["parallel"], function.name
            careful = "check_finished" in calls(function)
            assert careful or function.name in THREADS_ALLOCATE_NOTHING, function.name


# Memory

LOST = """
import resource, sys
import numpy as np
from numba import prange
from cometric.kernels.launching import check_finished, parallel

@parallel
def fill(sizes):
    values, finished = np.zeros(len(sizes)), np.zeros(len(sizes), np.bool_)
    for i in prange(len(sizes)):
        room = np.empty(sizes[i])
        room[0] = 1.0
        values[i] = room[0]
        finished[i] = True
    check_finished(finished)
    return values

fill(np.full(4, 10))
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + 2**26
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for i in range(4):
    sizes = np.full(4, 10)
    sizes[i] = 2**27
    try:
        print(fill(sizes))
    except MemoryError as error:
        print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_a_thread_without_memory_is_never_passed_over(layer, tmp_path):
    script = tmp_path / "lost.py"  # a file: Numba caches no other code
    script.write_text(LOST)
    code = "import runpy, sys; runpy.run_path(sys.argv[1])"
    said = run(code, str(script), NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="4")
    if "No threading layer could be loaded" in said.stderr:
        pytest.skip(f"no {layer} here")
    assert said.stdout.splitlines() == 4 * [launching.NO_MEMORY], said.stderr


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
def test_a_map_without_memory_says_so():
    said = run(STARVED, NUMBA_NUM_THREADS="4", OMP_WAIT_POLICY="passive")
    assert "not enough memory for the work arrays of a kernel" in said.stdout, said.stderr


@pytest.mark.parametrize("cause", [None, ValueError("another")])
def test_other_errors_of_compiled_code_stay_what_they_are(cause):
    def fail():
        raise SystemError("a result with an exception set") from cause

    with pytest.raises(SystemError, match="with an exception set"):
        guarded(fail)()


def test_a_wrapped_memory_error_is_unwrapped():
    def fail():
        inner = SystemError("inner")
        inner.__cause__ = MemoryError()
        raise SystemError("outer") from inner

    with pytest.raises(MemoryError, match="Pass a smaller `n_threads`"):
        guarded(fail)()


def guarded(function):
    """``function`` launched as a kernel, without its compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba, "njit", lambda **options: lambda function: function)
        return launching.parallel(function)


# Threads

AT_ONCE = """
import sys
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, sys.argv[1])
from test_threads import RUNS, X, bits
import cometric as cm, numba
with ThreadPoolExecutor(4) as pool:
    jobs = [pool.submit(cm.learn, X, **run) for run in list(RUNS.values()) * 2]
found = [bits(job.result()) for job in jobs]
assert found == 2 * [bits(cm.learn(X, **run)) for run in RUNS.values()]
print(numba.threading_layer())
"""


@pytest.mark.parametrize("layer", ["workqueue", "default"])
def test_several_threads_may_learn_at_once_on_any_layer(layer):
    tests = str(ROOT / "tests" / "machine")
    said = run(AT_ONCE, tests, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="2")
    assert said.returncode == 0, said.stderr
    assert layer in (said.stdout.strip(), "default")


def test_kernels_take_turns_until_the_layer_is_known(monkeypatch):
    def unknown():
        raise ValueError("Threading layer is not initialized.")

    inside, most = [], []

    def kernel():
        inside.append(threading.get_ident())
        most.append(len(inside))
        threading.Event().wait(0.01)
        inside.remove(threading.get_ident())

    launch = guarded(kernel)
    for layer, crowd in ((unknown, 1), (lambda: "workqueue", 1)):
        monkeypatch.setattr(numba, "threading_layer", layer)
        most.clear()
        threads = [threading.Thread(target=launch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert max(most) == crowd
        assert len(most) == 4


def test_a_kernel_may_be_launched_inside_another(monkeypatch):
    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")
    assert guarded(guarded(lambda: "inside"))() == "inside"


def test_a_forked_child_does_not_wait_for_its_parent(monkeypatch):
    monkeypatch.setattr(launching, "_lock", threading.Lock())
    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")
    launching._lock.acquire()
    launching._reset_lock()
    assert guarded(lambda: "not held")() == "not held"


def test_an_interrupted_kernel_gives_its_turn_back(monkeypatch):
    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupted)()
    found = []
    other = threading.Thread(target=lambda: found.append(guarded(lambda: "free")()))
    other.start()
    other.join(timeout=10)
    assert found == ["free"]


def test_the_care_costs_next_to_nothing():
    plain = min(timeit.repeat(lambda: None, number=10_000, repeat=5))
    launch = guarded(lambda: None)
    plans.move_costs(np.zeros(2, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(1), 1)
    careful = min(timeit.repeat(launch, number=10_000, repeat=5))
    assert (careful - plain) / 10_000 < 20e-6  # seconds; a kernel takes a thousand times longer


# Processes


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
    "baseline": lambda r, X: baselines.sinkhorn(X),
    "warmup": lambda r, X: cm.warmup(["exact"]),
    "estimator": lambda r, X: cm.WassersteinSingularVectors(eps=0).fit(X),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("door", DOORS)
def test_no_door_ends_a_forked_process(door):
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
    message = "RuntimeError: this process was forked from one in which cometric had run"
    assert said == "done" or said.startswith(message), said
    if door in ("plan", "certify", "learn", "ExactMap") and kernels_need_spawn():
        assert said.startswith(message)


def kernels_need_spawn():
    return numba.threading_layer() == "omp"


def test_the_mark_of_a_forked_child_reaches_every_kernel(monkeypatch):
    monkeypatch.setattr(kernels, "_forked", True)
    with pytest.raises(RuntimeError, match="multiprocessing.get_context\\('spawn'\\)"):
        guarded(lambda: None)()
