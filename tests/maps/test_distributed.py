"""Blocks and tiles: the bytes of one process, for any number of workers, even if workers die."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cometric as cm
from clusters import make_cluster, same_bytes
from cometric import EntropicMap, ExactMap
from cometric.maps import distributed as blocks
from cometric.maps.cluster import Cluster, ClusterLost, compare_versions, software
from cometric.maps.distributed import ColdMap, DistributedEntropicMap, DistributedExactMap

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of killed workers

X = cm.datasets.simulate_counts(40, 20, density=0.3).X
HIST = cm.Problem.from_data(X).samples.hist
rng = np.random.default_rng(0)
POINTS = rng.random((20, 3))
COST = np.abs(POINTS[:, None] - POINTS).sum(axis=-1)
OPTIONS = {"tau": 0.2, "tol": 1e-4}


@pytest.fixture(scope="module")
def client():
    with make_cluster(2) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def victims():
    """A client of two workers to kill: Dask does not always start them again."""
    with make_cluster(2) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.parametrize("side", [4, 17, 100])
@pytest.mark.parametrize("make", [ExactMap, partial(EntropicMap, eps=0.1, tol=1e-7)])
def test_tasks_of_any_size_give_the_distances_of_the_map(make, side):
    index = rng.integers(0, 40, (50, 2))
    cold = ColdMap(make, HIST, side=side)
    assert_allclose(cold(COST), make(HIST)(COST), rtol=1e-12, atol=1e-12)
    assert_allclose(cold.pairs(COST, index), make(HIST).pairs(COST, index), atol=1e-12)
    assert cold.shape == (40, 20)
    assert len(cold.pairs(COST, index[:0])) == 0


@pytest.mark.parametrize(
    "options",
    [{"eps": 0.0}, {"eps": 0.1}, {"eps": 0.1, "dtype": "float32"}, {"transport": cm.Unbalanced()}],
    ids=["exact", "entropic", "float32", "unbalanced"],
)
def test_workers_learn_the_bytes_of_one_process(client, options):
    options = OPTIONS | options
    there = cm.learn(X, client=client, **options)
    assert there.converged
    assert same_bytes(there, cm.learn(X, client="local", **options))
    assert same_bytes(there, cm.learn(X, **options))
    wait_until(lambda: not tasks_of(client))  # nothing is left on the workers


def tasks_of(client):
    """The tasks that the scheduler knows."""
    return client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))


def wait_until(condition, seconds=60.0):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.1)


def costs(count):
    """Similar costs, one after the other."""
    return [
        COST + 0.1 * k * np.abs(np.subtract.outer(*POINTS.T[:1].repeat(2, 0))) for k in range(count)
    ]


def kill_some(client, count=1):
    for pid in list(client.run(os.getpid).values())[:count]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (partial(DistributedEntropicMap, eps=0.1, sweeps=1), 1),
        pytest.param(partial(DistributedEntropicMap, eps=0.1, sweeps=1), 2, marks=pytest.mark.slow),
        pytest.param(DistributedExactMap, 1, marks=pytest.mark.slow),
    ],
)
def test_killed_workers_change_no_byte(victims, make, count):
    """What the fourth call starts from is lost while it runs."""
    phi, here = make(HIST, client=victims), make(HIST)
    for number, cost in enumerate(costs(6)):
        if number == 3:
            phi.on_progress = lambda done, total: done == 2 and kill_some(victims, count)
        assert_array_equal(phi(cost), here(cost))
        phi.on_progress = None
    phi.close()


def test_after_a_renewal_earlier_costs_are_forgotten(victims, monkeypatch):
    """And what a killed worker had is computed again from what was renewed."""
    monkeypatch.setattr(blocks, "CALLS", 2)
    phi, here = (DistributedEntropicMap(HIST, 0.1, at, sweeps=1) for at in (victims, None))
    phi._stored = 0.0  # less than the costs
    renewals, renew = [], phi._renew
    monkeypatch.setattr(phi, "_renew", lambda: (renewals.append(1), renew()))
    known = []
    for cost in costs(8):
        assert_array_equal(phi(cost), here(cost))
        known.append(len([name for name in tasks_of(victims) if name.startswith("advance")]))
    assert len(renewals) == 2
    assert max(known) <= 4 * len(phi._rows)
    kill_some(victims)
    assert_array_equal(phi(COST), here(COST))
    phi.close()


@pytest.mark.slow
def test_a_block_lost_before_or_after_a_checkpoint_is_computed_again(victims):
    client = victims
    make = partial(DistributedEntropicMap, HIST, 0.1, sweeps=1, blocks=5)
    phi, here = make(client=client), make()
    for cost in costs(2):
        phi(cost), here(cost)
    memory, expected = phi.snapshot(), here.snapshot()
    assert memory.keys() == expected.keys()
    kill_some(client)
    for name, array in expected.items():
        assert_array_equal(np.asarray(memory[name]), np.asarray(array))
    client.wait_for_workers(2, timeout=600)
    phi, here = (DistributedEntropicMap(HIST, 0.1, at, sweeps=1) for at in (client, None))
    for each in (phi, here):
        each.restore({name: np.array(array) for name, array in expected.items()})
    kill_some(client)
    assert_array_equal(phi(COST), here(COST))
    phi.close()


def test_frozen_couplings_are_applied_where_they_are(client):
    first, second, third = costs(3)
    phi, here = DistributedExactMap(HIST, client), ExactMap(HIST)
    for cost in (first, second):
        frozen, frozen_here = phi.freeze(cost), here.freeze(cost)
    assert_array_equal(frozen(third), frozen_here(third))
    old = frozen
    phi.freeze(third)
    assert_array_equal(old(first), frozen_here(first))  # later ones do not replace it
    assert_array_equal(old.pairs(first, np.array([[0, 3]])), [frozen_here(first)[0, 3]])
    phi.close()


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_an_interrupted_run_resumes_on_other_workers_to_the_same_bytes(client, eps, tmp_path):
    """Ctrl-C stops after the iteration and writes a checkpoint."""
    options = OPTIONS | {"eps": eps, "tol": 1e-6, "solver": "power"}
    expected = cm.learn(X, client="local", **options)

    def interrupt(now, record):
        if record.iteration == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(cm.Interrupted):
        cm.learn(X, client=client, callback=interrupt, checkpoint=tmp_path, **options)
    with make_cluster(1, processes=False) as cluster, distributed.Client(cluster) as other:
        result = cm.resume(tmp_path, client=other)
    assert result.converged
    assert same_bytes(result, expected)
    assert len(result.history) == len(expected.history)


def test_a_call_cut_off_leaves_nothing_behind(client):
    phi = DistributedEntropicMap(HIST, 0.1, client)

    def interrupt(done, total):
        raise KeyboardInterrupt

    phi.on_progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        phi(COST)
    phi.close()
    wait_until(lambda: not tasks_of(client))


def test_the_error_of_a_task_is_raised_by_learn(client, monkeypatch):
    submit = client.submit

    def fail(work, *args, **how):
        return submit(_no_memory if work is blocks.values_of else work, *args, **how)

    monkeypatch.setattr(client, "submit", fail)
    with pytest.raises(MemoryError, match="injected"):
        cm.learn(X, client=client, **OPTIONS)


def _no_memory(*_):
    raise MemoryError("injected")


def test_the_error_of_a_map_is_raised_as_it_is(client):
    phi = ColdMap(partial(EntropicMap, eps=0.1), HIST, client)
    phi._make = partial(EntropicMap, eps=-1.0)
    with pytest.raises(ValueError, match="`eps` is -1.0"):
        phi(COST)


def test_the_estimator_finds_the_client(client):
    model = cm.WassersteinSingularVectors(engine="dask", **OPTIONS)
    from sklearn.base import clone

    fitted = clone(model).fit(X.toarray())
    assert same_bytes(fitted.result_, cm.learn(X, client="local", **OPTIONS))


@pytest.mark.slow
def test_ten_killed_workers_change_no_byte():
    expected = cm.learn(X, client="local", **OPTIONS)
    killed = 0
    with make_cluster(2) as cluster, distributed.Client(cluster) as client:
        while killed < 10:
            client.wait_for_workers(2, timeout=600)
            victims = list(client.run(os.getpid).values())[:1]

            def kill(now, record, victims=victims):
                if victims:
                    os.kill(victims.pop(), signal.SIGKILL)

            assert same_bytes(cm.learn(X, client=client, callback=kill, **OPTIONS), expected)
            killed += 1


@pytest.mark.slow
def test_any_number_of_workers_learns_the_same_bytes():
    expected = cm.learn(X, client="local", **OPTIONS)
    for workers in (1, 2, 3, 4):
        with make_cluster(workers) as cluster, distributed.Client(cluster) as client:
            assert len(client.nthreads()) == workers
            assert same_bytes(cm.learn(X, client=client, **OPTIONS), expected)


CLUSTER = """
import sys
from distributed import LocalCluster

options = {"processes": False, "protocol": "tcp", "dashboard_address": ":0", "silence_logs": 50}
with LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


def start_scheduler():
    """A process with a scheduler and a worker, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(cm.__file__))},
    )
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize(
    "go_on",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("learn", "resume", "resume here")],
)
def test_after_a_lost_scheduler_the_checkpoint_resumes_to_the_same_bytes(go_on, tmp_path):
    expected = cm.learn(X, client="local", **OPTIONS)
    options = {"checkpoint": tmp_path / "run", "checkpoint_every": 0.0}
    process, address = start_scheduler()

    def kill(now, record):
        if record.iteration == 2:
            process.kill()
            process.communicate()

    quick = dask.config.set({"distributed.comm.timeouts.connect": "2s"})  # gives up to reconnect
    lost = pytest.raises(
        ClusterLost, match=r"the scheduler is not running .*checkpoint=.* continues"
    )
    with quick, distributed.Client(address) as client, lost:
        cm.learn(X, client=client, callback=kill, **options, **OPTIONS)
    if go_on == "resume here":
        result = cm.resume(tmp_path / "run")
    else:
        process, address = start_scheduler()
        with distributed.Client(address) as client:
            if go_on == "learn":
                result = cm.learn(X, client=client, **options, **OPTIONS)
            else:
                result = cm.resume(tmp_path / "run", client=client)
        process.communicate("")
    assert result.converged
    assert same_bytes(result, expected)
    assert len(result.history) == len(expected.history)


def test_a_closed_scheduler_raises_at_once():
    cluster = make_cluster(1, processes=False)
    client = distributed.Client(cluster)
    phi = DistributedEntropicMap(HIST, 0.1, client)
    cluster.close()
    with pytest.raises(ClusterLost, match=r"the scheduler is not running \(scheduler"):
        phi(COST)
    client.close()


def test_a_silent_scheduler_raises_when_patience_ends():
    with pytest.raises(ClusterLost, match="the scheduler has not answered for 1 s"):
        Cluster(SimpleNamespace(status="connecting"), patience=1.0)


def test_a_cluster_without_workers_raises():
    with make_cluster(1, processes=False) as cluster, distributed.Client(cluster) as client:
        phi = DistributedEntropicMap(HIST, 0.1, Cluster(client, patience=2.0))
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.1)
        with pytest.raises(ClusterLost, match="no worker has been available for 2 s"):
            phi(COST)


def fake_client(answers):
    """A client whose workers return these."""
    return SimpleNamespace(run=lambda _, on_error: answers)


def test_a_worker_that_dies_during_the_check_is_skipped():
    compare_versions(fake_client({"tcp://a": OSError("connection reset"), "tcp://b": software()}))


def test_a_worker_without_the_package_is_reported():
    with pytest.raises(ModuleNotFoundError, match="No module named 'cometric'"):
        compare_versions(
            fake_client({"tcp://a": ModuleNotFoundError("No module named 'cometric'")})
        )


def test_other_versions_are_refused():
    there = {**software(), "numpy": "1.0"}
    client = fake_client({"tcp://a": software(), "tcp://b": there})
    with pytest.raises(ValueError, match=r"Worker tcp://b runs other versions .*numpy 1.0 for"):
        compare_versions(client)


def test_other_processors_warn():
    client = fake_client({"tcp://a": {**software(), "processor": "z80"}})
    with pytest.warns(UserWarning, match="another processor .*z80"):
        compare_versions(client)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"client": "local", "device": "cuda"},
            "`device` is 'cuda', but the workers of a `client`",
        ),
        ({"client": "local", "eps": np.inf}, "`client` has no effect for the linear limit"),
        ({"client": "local", "eps": 0.0, "tau": 0.0}, "`client` needs tau > 0 at eps = 0"),
    ],
)
def test_what_a_client_cannot_do_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        cm.learn(X, **given)


@pytest.mark.parametrize("share", [{"restart": 0.1}, {"tau": "auto"}])
def test_a_client_supports_exact_transport_with_a_restart(share):
    """It was refused as if nothing made the answer unique."""
    tiled = cm.learn(X, eps=0.0, client="local", tol=1e-6, **share)
    assert tiled.converged
    whole = cm.learn(X, eps=0.0, solver="policy", tol=1e-6, **share)
    assert cm.hilbert_distance(tiled.samples, whole.samples) < 1e-4


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="`engine` is 'spark'; choose 'local' or 'dask'"):
        cm.WassersteinSingularVectors(engine="spark").fit(X.toarray())


def test_without_a_client_the_dask_engine_says_so(monkeypatch):
    def none():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "default_client", none)
    with pytest.raises(ValueError, match=r"No `distributed.Client` is active"):
        cm.WassersteinSingularVectors(engine="dask").fit(X.toarray())
