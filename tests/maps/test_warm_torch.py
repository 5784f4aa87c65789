"""Strips on the devices of workers: the distances of one device, for any number of workers."""

import os
import signal

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch", reason="torch is not installed")
dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

import cometric as cm  # noqa: E402
from clusters import make_cluster, same_bytes  # noqa: E402
from cometric.core.types import InexactMap, RememberingMap  # noqa: E402
from cometric.maps import strips, warm_torch  # noqa: E402
from cometric.maps.entropic_torch import TensorEntropicMap  # noqa: E402
from cometric.maps.ground import Ground  # noqa: E402
from cometric.maps.strips_torch import TensorStrips  # noqa: E402
from cometric.maps.warm_torch import DeviceCluster, Facts, TiledTensorMap  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets of closed workers
]

PLACES = ["torch:cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
everywhere = pytest.mark.parametrize("device", PLACES)
X = cm.datasets.simulate_counts(40, 20, density=0.3).X
HIST = cm.Problem.from_data(X).samples.hist
POINTS = np.random.default_rng(0).random((20, 3))
COST = np.abs(POINTS[:, None] - POINTS).sum(axis=-1)
OPTIONS = {"tau": 0.2, "tol": 1e-7}


@pytest.fixture(scope="module")
def client():
    with make_cluster(2) as cluster, distributed.Client(cluster) as client:
        yield client


# One worker


@everywhere
@pytest.mark.parametrize("options", [{}, {"rho": 0.5}, {"sweeps": 1}, {"remember": False}])
def test_strips_are_the_map_itself(device, options):
    phi = TiledTensorMap(HIST, 0.2, device=device, strips=5, **options)
    options = {name: value for name, value in options.items() if name != "remember"}
    whole = TensorEntropicMap(HIST, 0.2, device=device, **options)
    for power in (1.0, 0.9, 0.8):
        assert_allclose(phi(COST**power), whole(COST**power), atol=1e-12)
    assert isinstance(phi, InexactMap)
    assert isinstance(phi, RememberingMap)
    assert phi.engine == whole.engine
    phi.close()


@everywhere
def test_a_strip_is_a_pure_function_of_its_memory_and_the_cost(device):
    grounds = [Ground.pack(COST**power) for power in (1.0, 0.9)]
    phi = TensorStrips(HIST, 0.1, device=device, sweeps=1)
    _, memory = phi.advance(grounds[0], 3, 9, None)
    before = {name: part.clone() for name, part in memory.items()}
    values, after = phi.advance(grounds[1], 3, 9, memory)
    for name, part in memory.items():
        assert_array_equal(part.cpu(), before[name].cpu())
    other = TensorStrips(HIST, 0.1, device=device, sweeps=1)
    other.advance(Ground.pack(COST**0.5), 0, 40, None)  # has other memories
    arrays = {name: part.cpu().numpy() for name, part in memory.items()}
    again, stored = other.advance(Ground.pack(COST**0.9), 3, 9, arrays)
    assert_array_equal(again, values)
    for name, part in stored.items():
        assert_array_equal(part.cpu(), after[name].cpu())


def test_blocks_do_not_depend_on_free_memory(monkeypatch):
    """A strip may move to a worker with less of it."""
    blocks = TensorStrips(HIST, 0.1, device="cpu")._layout.strip(3, 9).blocks
    monkeypatch.setattr("cometric.maps.entropic_torch.free_on", lambda device: 1e5)
    assert TensorStrips(HIST, 0.1, device="cpu")._layout.strip(3, 9).blocks == blocks


@everywhere
def test_all_costs_zero_are_all_distances_zero(device):
    phi = TiledTensorMap(HIST, 0.1, device=device, strips=3)
    assert_array_equal(phi(0 * COST), 0.0)
    assert_allclose(phi(COST), TensorEntropicMap(HIST, 0.1, device=device)(COST), atol=1e-12)
    phi.close()


def test_single_precision_that_overflows_is_repeated_in_double(monkeypatch):
    phi = TensorStrips(HIST, 0.1, device="cpu", dtype="float32")
    divergences, precisions = phi._divergences, []

    def overflow(strip, cost, own=None):
        found = divergences(strip, cost, own)
        precisions.append(phi.precision)
        if phi.precision == "float32" or len(precisions) > 2:
            phi.error = np.inf
        return found

    monkeypatch.setattr(phi, "_divergences", overflow)
    values, memory = phi.advance(Ground.pack(COST), 0, 40, None)
    assert precisions == ["float32", "float64"]
    assert phi.precision == "float32"
    assert memory["scalings"].dtype == torch.float64
    assert_allclose(phi.assemble(values), cm.EntropicMap(HIST, 0.1)(COST), atol=1e-9)
    with pytest.raises(FloatingPointError, match="exceeded the range of float64"):
        phi.advance(Ground.pack(COST), 0, 40, None)


def test_a_full_device_says_so(monkeypatch):
    phi = TensorStrips(HIST, 0.1, device="cpu")

    def fail(*_):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(phi, "_divergences", fail)
    with pytest.raises(MemoryError, match="ran out of memory in sources 3 to 8. Add workers"):
        phi.advance(Ground.pack(COST), 3, 9, None)


@pytest.mark.parametrize("name", ["own", "scalings"])
def test_a_memory_of_other_histograms_is_refused(name):
    phi = TensorStrips(HIST, 0.1, device="cpu")
    _, memory = phi.advance(Ground.pack(COST), 3, 9, None)
    memory[name] = memory[name][1:]
    with pytest.raises(ValueError, match=r"the stored scalings .*shape \(\d+,\); these histograms"):
        phi.advance(Ground.pack(COST), 3, 9, memory)


# Clusters


@everywhere
def test_workers_learn_what_one_device_learns(client, device):
    there = cm.learn(X, client=client, device=device, **OPTIONS)
    assert there.converged
    assert isinstance(there.samples, np.ndarray)
    here = cm.learn(X, device=device, **OPTIONS)
    assert_allclose(there.samples, here.samples, atol=1e-9)
    assert_allclose(there.features, here.features, atol=1e-9)
    assert not any(client.run(lambda: len(strips._stores)).values())  # nothing is left there
    if device == "torch:cpu":
        assert same_bytes(there, cm.learn(X, client="local", device=device, **OPTIONS))


@everywhere
def test_the_strips_are_computed_on_the_devices_of_the_workers(client, device):
    phi = TiledTensorMap(HIST, 0.1, client, device=device, sweeps=1)
    phi(COST)
    assert set(phi._owners.owner.values()) == set(client.nthreads())
    where = torch.device(device.removeprefix("torch:")).type

    def devices():
        from cometric.maps import strips

        entries = [e for store in strips._stores.values() for e in store.entries.values()]
        return {part.device.type for entry in entries for part in entry.memory.values()}

    assert all(found == {where} for found in client.run(devices).values())
    index = np.array([[0, 3], [2, 1]])
    expected = TensorEntropicMap(HIST, 0.1, device=device).pairs(COST, index)
    assert_allclose(phi.pairs(COST, index), expected, atol=1e-9)
    phi.close()


@pytest.mark.parametrize(
    ("device", "counts"),
    [
        pytest.param("torch:cpu", (1, 2, 3, 4), marks=pytest.mark.slow),
        pytest.param("cuda", (1, 2), marks=pytest.mark.gpu),  # each loads torch and CUDA
    ],
)
def test_any_number_of_workers_learns_the_same_bytes(device, counts):
    results = []
    for workers in counts:
        with make_cluster(workers) as cluster, distributed.Client(cluster) as client:
            results.append(cm.learn(X, client=client, device=device, tau=0.2, tol=1e-4))
    assert all(same_bytes(result, results[0]) for result in results)


@pytest.mark.slow
def test_a_killed_worker_changes_no_byte():
    with make_cluster(2) as cluster, distributed.Client(cluster) as client:
        phi, here = (
            TiledTensorMap(HIST, 0.1, at, device="torch:cpu", sweeps=1, strips=8)
            for at in (client, None)
        )
        victims = list(client.run(os.getpid).values())[:1]

        def kill(done, total):
            if phi._lineage.number == 2 and done > 1 and victims:
                os.kill(victims.pop(), signal.SIGKILL)

        phi.on_progress = kill
        for power in (1.0, 0.95, 0.9, 0.85, 0.8):
            assert_array_equal(phi(COST**power), here(COST**power))
        assert not victims
        phi.close()
        here.close()


def test_a_strip_that_moves_takes_its_state_along():
    with make_cluster(1, processes=False) as cluster, distributed.Client(cluster) as client:
        phi, here = (
            TiledTensorMap(HIST, 0.1, at, device="torch:cpu", sweeps=1, strips=8)
            for at in (client, None)
        )
        costs = [COST**power for power in (1.0, 0.9, 0.8)]
        assert_array_equal(phi(costs[0]), here(costs[0]))
        cluster.scale(2)
        client.wait_for_workers(2, timeout=600)
        for cost in costs[1:]:
            assert_array_equal(phi(cost), here(cost))
        assert len(set(phi._owners.owner.values())) == 2
        assert phi._owners.repeated == 0  # from arrays of the other worker
        phi.close()
        here.close()


def test_a_run_of_workers_continues_from_its_checkpoint_in_one_process(tmp_path):
    whole = cm.learn(X, client="local", device="torch:cpu", **OPTIONS)
    options = {"device": "torch:cpu", "checkpoint": tmp_path, "checkpoint_every": 0.0} | OPTIONS
    unfinished = pytest.warns(cm.ConvergenceWarning, match="iteration limit")
    with (
        make_cluster(2, processes=False) as cluster,
        distributed.Client(cluster) as client,
        unfinished,
    ):
        cm.learn(X, client=client, max_iter=3, **options)
    result = cm.resume(tmp_path, max_iter=1000)
    assert result.converged
    assert same_bytes(result, whole)
    assert len(result.history) == len(whole.history)


def test_only_workers_that_declare_a_gpu_get_strips():
    with make_cluster(1, processes=False) as cluster, distributed.Client(cluster) as client:
        plain = set(client.nthreads())
        cluster.new_spec["options"]["resources"] = {"GPU": 1}
        cluster.scale(2)
        client.wait_for_workers(2, timeout=600)
        phi = TiledTensorMap(HIST, 0.1, client, device="torch:cpu", sweeps=1, strips=4)
        phi(COST)
        (chosen,) = set(phi._owners.owner.values())
        assert chosen not in plain
        assert set(phi._cluster.workers()) == {chosen}
        phi.pairs(COST, np.array([[0, 1]]))
        phi.close()


def test_a_worker_without_the_device_is_named():
    missing = f"cuda:{torch.cuda.device_count()}"
    with make_cluster(1, processes=False) as cluster, distributed.Client(cluster) as client:
        words = r"Worker .*://.* cannot compute on a device: `device` is 'cuda.*--resources 'GPU=1'"
        with pytest.raises(ValueError, match=words):
            cm.learn(X, client=client, device=missing)
        with pytest.raises(ValueError, match="cannot compute on a device: .*abacus"):
            cm.learn(X, client=client, device="abacus")


def cluster_of(monkeypatch, *facts):
    """A cluster whose workers have these devices."""
    cluster = DeviceCluster(None, "cuda", 1.0)
    monkeypatch.setattr(cluster, "facts", lambda: dict(zip("abc", facts, strict=False)))
    return cluster


def test_workers_with_one_device_share_its_memory(monkeypatch):
    facts = [Facts("H200", place, 100.0, True) for place in ("here 0", "here 0", "here 1")]
    assert cluster_of(monkeypatch, *facts).memory() == {"a": 50.0, "b": 50.0, "c": 100.0}


def test_devices_of_different_kinds_warn(monkeypatch):
    facts = [Facts(kind, kind, 100.0, True) for kind in ("A100", "H200")]
    cluster_of(monkeypatch, facts[0]).compare_devices()
    with pytest.warns(
        UserWarning, match=r"Workers have different devices \(A100, H200\): the last"
    ):
        cluster_of(monkeypatch, *facts).compare_devices()


def test_a_plan_for_workers_with_devices_measures_this_process():
    with make_cluster(1, processes=False) as cluster, distributed.Client(cluster) as client:
        planned = cm.plan(X, client=client, device="torch:cpu")
    assert planned.engine == "Sinkhorn on cpu, dense"


def test_the_device_is_described():
    found = warm_torch.describe_device("torch:cpu")
    assert found.kind == f"CPU with torch {torch.__version__}"
    assert found.free > 0
    assert not found.can_crop
