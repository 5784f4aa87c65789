"""Neighbors on a torch device: the answers of the CPU, and bounds that stay below distances."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch", reason="torch is not installed")

import cometric as cm  # noqa: E402
from cometric.files.rows import rows_of  # noqa: E402
from cometric.landmarks import search_torch  # noqa: E402
from cometric.landmarks.neighbors import read_histograms  # noqa: E402
from cometric.landmarks.search_torch import TensorSearch  # noqa: E402
from cometric.maps import pairs_torch  # noqa: E402
from cometric.results import distances_torch  # noqa: E402
from nearest_twin import use_twin  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread", "twin")

X = cm.datasets.simulate_counts(90, 30, density=0.3, random_state=1).X
X = X[:, np.asarray(X[:20].sum(axis=0)).ravel() > 0]
DEVICES = ["torch:cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OPTIONS = [
    {"eps": 0.1, "tau": 1e-3, "norm": "l1"},
    {"eps": 0.1, "norm": "local-0.2"},
    {"transport": cm.Unbalanced(0.1, rho=0.5), "norm": "local-0.2"},
    {"eps": 0.2, "tau": 0.0, "restart": 0.3, "norm": "cosine"},
    {"eps": 0.2, "tau": 0.0, "restart": 0.3, "norm": "hellinger"},
    {"eps": 0.2, "tau": 0.0, "restart": 0.3, "norm": "lsa"},
    {"eps": 0.2, "tau": 0.0, "saturate": 0.3},
]


@pytest.fixture
def twin(monkeypatch):
    use_twin(monkeypatch)


@pytest.fixture(scope="module", params=OPTIONS, ids=str)
def result(request):
    return cm.learn(X[:40], tol=1e-4, drop_empty=True, **request.param)


@pytest.mark.parametrize("device", DEVICES)
def test_neighbors_are_those_of_the_cpu(result, device):
    options = {"max_candidates": 89, "check": 10}
    truth = cm.neighbor_graph(result, X, 5, **options)
    found = cm.neighbor_graph(result, X, 5, device=device, **options)
    assert found.proved.all()
    assert found.recall == 1.0
    assert_allclose(found.graph.data, truth.graph.data, rtol=1e-5, atol=1e-8)
    assert_array_equal(found.graph.indices, truth.graph.indices)


@pytest.mark.parametrize("device", DEVICES)
def test_bounds_are_below_the_distances(result, device, monkeypatch):
    """Those of pairs kept, before and after sweeps, and that of all others."""
    monkeypatch.setattr(search_torch, "SLOTS", 16)
    search = TensorSearch(result, *read_histograms(result, rows_of(X)), 3, 8, device)
    some = torch.arange(20, 40, device=search._device)
    low, index, norms, floor = search.candidates(some)
    assert low.shape == (20, 16)
    everyone = torch.arange(90, device=search._device)
    true = search._distances.from_rows(some, everyone)
    true[torch.arange(20), some] = np.inf
    kept = true.gather(1, index)
    assert (low <= kept + 1e-12).all()
    others = true.scatter(1, index, np.inf).amin(1)
    assert (floor <= others).all()
    assert float(floor.max()) > 0.0  # and worth having
    before = low.clone()
    search._raise_bounds(low, torch.ones_like(low, dtype=torch.bool), some, index, norms)
    assert (low >= before).all()
    assert (low > before).any()
    assert (low <= kept + 1e-9).all()


@pytest.mark.parametrize("device", DEVICES)
def test_few_candidates_are_a_warning(device, monkeypatch):
    monkeypatch.setattr(search_torch, "SLOTS", 4)
    result = cm.learn(X[:40], eps=0.1, norm="local-0.2", tol=1e-4, drop_empty=True)
    found = cm.neighbor_graph(result, X, 5, max_candidates=5, check=90, device=device)
    assert found.compared == 5
    true = np.sort(cm.neighbor_graph(result, X, 5, max_candidates=89).graph.data.reshape(90, 5))
    near = found.graph.data.reshape(90, 5)
    hits = near <= true[:, -1:] * (1 + 1e-6)
    assert found.recall == pytest.approx(hits.mean())
    assert not found.proved.all()
    assert_allclose(near[found.proved], true[found.proved], rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_new_samples_have_the_distances_of_the_cpu(result, device):
    assert_allclose(result.transform(X, device=device), result.transform(X), atol=1e-7)
    near = result.transform(X, n_neighbors=3, device=device)
    assert near.shape == (90, 40)


@pytest.mark.parametrize("device", DEVICES)
def test_new_features_have_the_distances_of_the_cpu(device):
    result = cm.learn(X[:40], eps=0.1, tol=1e-4, drop_empty=True)
    new = X[:40, :10]
    new = new[:, np.asarray(new.sum(axis=0)).ravel() > 0]
    found = result.transform(new, of="features", device=device)
    assert_allclose(found, result.transform(new, of="features"), atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
def test_landmarks_on_a_device(device):
    sketch = cm.learn_landmarks(X, 40, 4, eps=0.1, norm="local-0.2", device=device, check=5)
    assert sketch.neighbors.proved.all()
    assert sketch.neighbors.recall == 1.0


@pytest.mark.parametrize("device", DEVICES)
def test_the_local_reference_falls_back_to_the_cpu(device):
    """It is learned on the device, where R is moved; distances of more samples are not."""
    words = "the reference 'local' between samples runs on the CPU"
    options = {"eps": 0.1, "tol": 1e-6, "drop_empty": True}
    result = cm.learn(X[:40], device=device, **options)
    assert result.parameters.norm == "local"
    on_cpu = cm.learn(X[:40], **options)
    assert_allclose(result.samples, on_cpu.samples, atol=1e-5)
    assert_allclose(result.features, on_cpu.features, atol=1e-5)
    with pytest.warns(UserWarning, match=words):
        found = result.transform(X, device=device)
    assert_array_equal(found, result.transform(X))
    with pytest.warns(UserWarning, match=words):
        near = cm.neighbor_graph(result, X, 5, device=device)
    assert_array_equal(near.graph.data, cm.neighbor_graph(result, X, 5).graph.data)
    with pytest.warns(UserWarning, match=words):
        sketch = cm.learn_landmarks(X, 40, 4, eps=0.1, device=device, check=5)
    assert sketch.neighbors.recall == 1.0


def test_without_triton_distances_fall_back_to_the_cpu(monkeypatch):
    monkeypatch.undo()  # the twin
    monkeypatch.setattr(pairs_torch, "find_spec", lambda name: None)
    assert pairs_torch.kernels_for(torch.device("cuda")) is None
    result = cm.learn(X[:40], eps=0.1, norm="l1", tol=1e-4, drop_empty=True)
    for of, new in (("samples", X), ("features", X[:40, :10])):
        with pytest.warns(UserWarning, match="without CUDA and Triton run on the CPU"):
            found = result.transform(new, of=of, device="torch:cpu")
        assert_array_equal(found, result.transform(new, of=of))
    with pytest.warns(UserWarning, match="without CUDA and Triton run on the CPU"):
        near = cm.neighbor_graph(result, X, 5, device="torch:cpu")
    assert_array_equal(near.graph.data, cm.neighbor_graph(result, X, 5).graph.data)


def test_histograms_that_are_too_wide_are_refused(monkeypatch):
    monkeypatch.setattr(distances_torch, "WIDEST", 8)
    result = cm.learn(X[:40], eps=0.1, norm="l1", tol=1e-4, drop_empty=True)
    with pytest.raises(ValueError, match="distances with more than 8 run on the CPU: pass device"):
        result.transform(X, device="torch:cpu")


def test_what_runs_on_the_cpu_only_says_so():
    exact = cm.learn(X[:20], eps=0.0, tau=0.1, drop_empty=True)
    with pytest.raises(ValueError, match="but exact transport runs on the CPU: pass device='cpu'"):
        exact.transform(X[:20], device="torch:cpu")
    other = cm.learn(X[:20], eps=0.2, tau=0.1, norm="l2", drop_empty=True)
    with pytest.raises(ValueError, match="`norm` was 'l2', which runs on the CPU only"):
        cm.neighbor_graph(other, X, 3, device="torch:cpu")


def test_small_eps_is_refused():
    result = cm.learn(X[:20], eps=0.005, tau=0.1, norm="l1", tol=1.0, drop_empty=True)
    with pytest.raises(ValueError, match="below 1/150 the log domain is needed"):
        cm.neighbor_graph(result, X, 3, device="torch:cpu")
