"""Several devices of one process: the distances of one device, whatever each of them computes."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch", reason="torch is not installed")

import cometric as cm  # noqa: E402
from cometric.core.arrays import to_numpy  # noqa: E402
from cometric.core.types import Accuracy  # noqa: E402
from cometric.learning.settings import Settings  # noqa: E402
from cometric.maps.blocks import Layout  # noqa: E402
from cometric.maps.entropic_devices import DevicesMap  # noqa: E402
from cometric.maps.entropic_torch import TensorEntropicMap  # noqa: E402
from cometric.runtime.devices import free_on_all, torch_device, usable_memory  # noqa: E402

PLACES = ["torch:cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
everywhere = pytest.mark.parametrize("device", PLACES)
TWICE = ["torch:cpu", "torch:cpu"]
X = cm.datasets.simulate_counts(60, 40, density=0.3).X
HIST = cm.Problem.from_data(X, drop_empty=True).samples.hist
POINTS = np.random.default_rng(0).random((HIST.shape[1], 3))
COST = np.abs(POINTS[:, None] - POINTS).sum(axis=-1)

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@everywhere
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize(
    ("options", "atol"),
    [
        ({}, 1e-12),
        ({"rho": 0.5}, 1e-12),
        ({"sweeps": 1}, 1e-12),
        ({"sweeps": 2, "margin": 1e-3}, 1e-5),  # a margin is that of the worst pair of a block
        ({"memory_limit": 0.0}, 1e-12),
    ],
)
def test_several_devices_give_the_distances_of_one(device, count, options, atol):
    one = TensorEntropicMap(HIST, 0.1, device=device, **options)
    several = DevicesMap(HIST, 0.1, devices=[device] * count, **options)
    for power in (1.0, 0.9, 0.8):  # from stored scalings
        assert_allclose(several(COST**power), one(COST**power), rtol=0, atol=atol)
    assert len(several.maps) == count
    for phi in several.maps:
        assert bool(phi._share.scalings) == (one.memory_used > 0)


@everywhere
def test_each_device_computes_its_share_of_the_pairs_in_its_own_thread(device, monkeypatch):
    phi = DevicesMap(HIST, 0.1, devices=[device] * 3)
    computed, threads = [], set()
    together = threading.Barrier(3, timeout=60)  # all of them at the same time
    divergences = TensorEntropicMap._divergences

    def watch(self, *args):
        together.wait()
        threads.add(threading.get_ident())
        upper = divergences(self, *args)
        computed.append(int((upper != 0.0).sum()))
        return upper

    monkeypatch.setattr(TensorEntropicMap, "_divergences", watch)
    phi(COST)
    n = HIST.shape[0]
    assert sum(computed) == n * (n - 1) // 2
    assert min(computed) > 0
    assert len(threads) == 3
    assert threading.get_ident() in threads


def test_shares_have_about_the_same_work():
    sizes = np.sort(np.random.default_rng(0).integers(20, 200, 900))
    for engine in ("cropped", "dense"):
        layout = Layout(sizes, 1024, engine, 2e9)
        for count in (2, 4, 8):
            work = np.add.reduceat(layout.row_work(), layout.shares(count)[:-1])
            assert len(work) == count
            assert work.max() < 1.3 * work.mean()


def test_products_are_divided_between_blocks_if_that_is_fair():
    """Then two devices give the bits of one."""
    layout = Layout(np.full(90, 64), 128, "dense", 2e9)
    assert 30 in [block.last for block in layout.share().blocks]
    assert layout.shares(2).tolist() == [0, 30, 90]
    assert Layout(np.full(90, 64), 128, "cropped", 2e9).shares(2).tolist() != [0, 30, 90]


@everywhere
def test_tensors_come_back_on_the_first_device(device):
    phi = DevicesMap(HIST, 0.2, devices=[device] * 2, tol=1e-12)
    found = phi(torch.as_tensor(COST, device=phi.device))
    assert found.device.type == phi.device.type
    assert_allclose(found.cpu(), phi(COST), atol=1e-12)
    index = np.array([[3, 1], [0, 5], [2, 2]])
    assert_allclose(phi.pairs(COST, index), phi(COST)[tuple(index.T)], atol=1e-10)


@everywhere
def test_all_devices_compute_with_the_same_accuracy(device):
    phi = DevicesMap(HIST, 0.1, devices=[device] * 2)
    accuracy = Accuracy(3, 1e-4, 0.1, "tf32")
    before = torch.backends.cuda.matmul.allow_tf32
    phi(COST, accuracy)
    assert [part.precision for part in phi.maps] == ["tf32", "tf32"]
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert phi.error == max(part.error for part in phi.maps)
    phi.maps[1].overflow()
    phi(COST, accuracy)
    assert [part.precision for part in phi.maps] == ["float64", "float64"]
    assert phi.memory_used == sum(part.memory_used for part in phi.maps)
    assert repr(phi).endswith(f"on {phi.device} and {phi.device})")


@everywhere
def test_the_first_device_reports_progress(device):
    phi = DevicesMap(HIST, 0.1, devices=[device] * 2)
    told = []
    phi.on_progress = lambda done, total: told.append((done, total, threading.get_ident()))
    assert phi.on_progress is not None
    phi(COST)
    size = phi.maps[0]._share.last
    assert told[-1] == (size, size, threading.get_ident())


@everywhere
def test_a_snapshot_continues_on_all_devices(device):
    first, again = (DevicesMap(HIST, 0.1, devices=[device] * 2, sweeps=1) for _ in range(2))
    first(COST)
    memory = {name: np.copy(to_numpy(part)) for name, part in first.snapshot().items()}
    assert "0.self" in memory
    assert "1.self" not in memory  # the same
    again.restore(memory)
    assert_array_equal(again(COST**0.9), first(COST**0.9))


def test_a_map_too_small_for_all_devices_uses_some():
    hist, cost = np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    phi = DevicesMap(hist, 0.5, devices=["torch:cpu"] * 4)
    assert 1 <= len(phi.maps) <= 2
    assert_allclose(phi(cost), TensorEntropicMap(hist, 0.5, device="cpu")(cost), atol=1e-12)


def test_an_error_on_one_device_is_raised(monkeypatch):
    phi = DevicesMap(HIST, 0.1, devices=TWICE)

    def fail(cost, accuracy):
        raise MemoryError("full")

    monkeypatch.setattr(phi.maps[1], "_distances", fail)
    with pytest.raises(MemoryError, match="full"):
        phi(COST)


def test_memory_of_one_device_is_counted_once(monkeypatch):
    cpu = torch_device("torch:cpu")
    monkeypatch.setattr("cometric.runtime.devices.free_on", lambda device: 10.0)
    assert free_on_all([cpu]) == free_on_all([cpu, cpu]) == 10.0
    assert usable_memory(TWICE) == usable_memory("torch:cpu") == 7.0


@everywhere
@pytest.mark.parametrize("transport", [cm.Entropic(0.1), cm.Unbalanced(0.1, rho=0.5)])
def test_learning_on_several_devices_ends_where_one_does(device, transport, monkeypatch):
    calls, call = [], DevicesMap.__call__

    def count(self, *args, **options):
        calls.append(len(self.maps))
        return call(self, *args, **options)

    monkeypatch.setattr(DevicesMap, "__call__", count)
    options = {"transport": transport, "drop_empty": True, "tol": 1e-4}
    one = cm.learn(X, device=device, **options)
    assert not calls
    several = cm.learn(X, device=[device, device], **options)
    assert set(calls) == {2}
    assert several.converged
    assert "60 samples" in repr(several)
    assert_allclose(several.samples, one.samples, atol=1e-9)
    assert_allclose(several.features, one.features, atol=1e-9)
    assert_allclose(several.values, one.values, rtol=1e-9)


def test_a_list_of_one_device_is_that_device():
    result = cm.learn(X, device=["torch:cpu"], drop_empty=True)
    assert_array_equal(result.samples, cm.learn(X, device="torch:cpu", drop_empty=True).samples)


def test_a_given_metric_is_lifted_on_all_devices():
    data = X[:, np.flatnonzero(X.sum(axis=0))].toarray() + 0.0
    C = 1.0 - np.eye(data.shape[1])
    truth, one, several = (
        cm.learn(data, features=C, tol=1e-12, device=device)
        for device in ("cpu", "torch:cpu", TWICE)
    )
    assert_allclose(several.samples, one.samples, atol=1e-9)
    assert_allclose(one.samples, truth.samples, atol=1e-7)


def test_a_run_on_several_devices_continues_from_its_checkpoint(tmp_path):
    options = {"device": TWICE, "drop_empty": True, "tol": 1e-4}
    whole = cm.learn(X, **options)
    kept = {"checkpoint": tmp_path, "checkpoint_every": 0.0}
    with pytest.warns(cm.ConvergenceWarning, match="iteration limit"):
        cm.learn(X, max_iter=4, **options, **kept)
    other = options | {"device": "torch:cpu"}
    with pytest.raises(
        cm.CheckpointError, match=r"`device` is 'torch:cpu' here and \['torch:cpu',"
    ):
        cm.learn(X, **other, **kept)
    result = cm.resume(tmp_path, max_iter=1000)
    assert result.converged
    assert_allclose(result.samples, whole.samples, rtol=1e-10)
    assert len(result.history) == len(whole.history)


def test_plans_name_all_devices():
    planned = cm.plan(X, drop_empty=True, device=TWICE)
    assert planned.engine == "Sinkhorn on cpu and cpu, dense"
    assert planned.total > 0


def test_the_estimator_accepts_a_list():
    from sklearn.base import clone

    model = clone(cm.WassersteinSingularVectors(device=TWICE, drop_empty=True))
    assert model.device == TWICE
    expected = cm.learn(X.toarray(), device=tuple(TWICE), drop_empty=True)
    assert_array_equal(model.fit(X.toarray()).sample_distances_, expected.samples)


def test_settings_with_a_list_survive_json():
    stored = Settings(device=tuple(TWICE), eps=0.1).to_json()
    assert stored["device"] == TWICE
    again = Settings.from_json(stored)
    assert again.to_json() == stored
    assert again.devices == tuple(TWICE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": ["torch:cpu", "abacus"]}, r"`device` is \['torch:cpu', 'abacus'\]; pass 'cpu'"),
        ({"device": TWICE, "eps": 0.0}, "`device` is .*exact transport runs on the CPU"),
        ({"device": TWICE, "solver": "stochastic"}, "`device` is .*stochastic iteration runs on"),
        (
            {"device": TWICE, "client": "local"},
            "`device` is .*but the workers of a `client` compute on",
        ),
    ],
)
def test_what_several_devices_cannot_do_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        cm.learn(X, drop_empty=True, **given)


def test_other_functions_take_one_device():
    result = cm.learn(X, drop_empty=True)
    words = r"`device` is \['torch:cpu', 'torch:cpu'\]; only `learn` divides its work among devices"
    with pytest.raises(ValueError, match=words):
        cm.neighbor_graph(result, X, 3, device=TWICE)
    with pytest.raises(ValueError, match=words):
        cm.learn_landmarks(X, device=TWICE)
    with pytest.raises(ValueError, match=words):
        result.transform(X, device=TWICE)
