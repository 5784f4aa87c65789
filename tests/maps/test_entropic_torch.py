"""The entropic map on tensors: the CPU's answers, its precisions, its memory."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch", reason="torch is not installed")

import cometric as cm  # noqa: E402
from cometric.core.types import Accuracy  # noqa: E402
from cometric.kernels import sinkhorn_cuda, sinkhorn_torch  # noqa: E402
from cometric.maps import entropic_torch, sweeps_torch  # noqa: E402
from cometric.maps.blocks import choose_engine  # noqa: E402
from cometric.maps.entropic_torch import TensorEntropicMap  # noqa: E402
from cometric.runtime.devices import torch_device  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

PLACES = [
    ("cpu", "dense"),
    pytest.param("cuda", "dense", marks=pytest.mark.gpu),
    pytest.param("cuda", "cropped", marks=pytest.mark.gpu),
]
everywhere = pytest.mark.parametrize(("device", "engine"), PLACES)


@pytest.fixture(scope="module")
def lift():
    """Twenty sparse histograms of uneven supports on 37 bins, and a metric between the bins."""
    rng = np.random.default_rng(0)
    hist = rng.dirichlet(np.full(37, 0.4), size=20)
    hist[hist < np.linspace(0.001, 0.1, 20)[:, None]] = 0.0
    points = rng.random((37, 3))
    return hist / hist.sum(axis=1, keepdims=True), 3 * np.abs(points[:, None] - points).sum(axis=-1)


@everywhere
@pytest.mark.parametrize("eps", [0.05, 0.2, 1.0, 30.0])
@pytest.mark.parametrize("rho", [None, 0.1, 10.0])
def test_it_is_the_map_of_the_cpu(lift, device, engine, eps, rho):
    hist, cost = lift
    phi = TensorEntropicMap(hist, eps, rho=rho, device=device, engine=engine, tol=1e-13)
    truth = cm.EntropicMap(hist, eps, rho=rho, tol=1e-13)(cost)
    assert phi.engine == (engine if rho is None else "dense")
    assert_allclose(phi(cost), truth, atol=1e-12)
    assert phi.error <= 1e-13


@everywhere
def test_tensors_stay_where_they_are(lift, device, engine):
    hist, cost = lift
    phi = TensorEntropicMap(hist, 0.2, device=device, engine=engine)
    given = torch.as_tensor(cost, device=device)
    answer = phi(given)
    assert isinstance(answer, torch.Tensor)
    assert answer.device == given.device
    assert isinstance(phi(cost), np.ndarray)
    assert_allclose(answer.cpu(), phi(cost), atol=1e-12)


@everywhere
def test_distances_are_symmetric_with_an_exactly_zero_diagonal(lift, device, engine):
    hist, cost = lift
    D = TensorEntropicMap(hist, 0.1, device=device, engine=engine, sweeps=1)(cost)
    assert_array_equal(D, D.T)
    assert_array_equal(np.diag(D), 0.0)


@everywhere
def test_it_remembers_its_scalings(lift, device, engine):
    hist, cost = lift
    phi = TensorEntropicMap(hist, 0.2, device=device, engine=engine, sweeps=1)
    truth = cm.EntropicMap(hist, 0.2, tol=1e-13)(cost)
    errors = [np.abs(phi(cost) - truth).max() for _ in range(12)]
    assert errors[-1] < 1e-3 * errors[0]


@everywhere
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 3e-6), ("tf32", 3e-2)])
def test_lower_precisions_are_near_and_can_be_left(lift, device, engine, dtype, atol):
    hist, cost = lift
    phi = TensorEntropicMap(hist, 0.1, device=device, engine=engine, dtype=dtype)
    truth = cm.EntropicMap(hist, 0.1)(cost)
    assert_allclose(phi(cost), truth, atol=atol)
    assert_allclose(phi(cost, Accuracy()), truth, atol=1e-9)
    assert phi.error <= Accuracy().tol


@everywhere
def test_unbalanced_histograms_may_have_any_mass(lift, device, engine):
    hist, cost = lift[0] * np.linspace(0.2, 4.0, 20)[:, None], lift[1]
    phi = TensorEntropicMap(hist, 0.2, rho=0.5, device=device, engine=engine)
    truth = cm.EntropicMap(hist, 0.2, rho=0.5)(cost)
    assert_allclose(phi(cost), truth, atol=1e-10)
    single = TensorEntropicMap(hist, 0.2, rho=0.5, device=device, engine=engine, dtype="float32")
    assert_allclose(single(cost), truth, atol=1e-5 * truth.max())
    with pytest.raises(ValueError, match="masses of `hist` differ too much"):
        TensorEntropicMap(hist, 0.02, rho=5.0, device=device, engine=engine)


@everywhere
def test_pairs_agree_with_the_whole_map_in_any_order(lift, device, engine):
    hist, cost = lift
    phi = TensorEntropicMap(hist, 0.1, device=device, engine=engine, tol=1e-12)
    index = np.array([[3, 1], [0, 5], [2, 2], [5, 0], [1, 3]])
    assert_allclose(phi.pairs(cost, index), phi(cost)[tuple(index.T)], atol=1e-10)


@everywhere
@pytest.mark.parametrize(("share", "stored"), [(0.6, "float32"), (0.3, "bfloat16"), (0.1, "None")])
def test_scalings_that_do_not_fit_are_rounded_or_not_stored(lift, device, engine, share, stored):
    hist, cost = lift
    whole = TensorEntropicMap(hist, 0.2, device=device, engine=engine, tol=1e-12)
    limit = share * whole.memory_used
    phi = TensorEntropicMap(hist, 0.2, device=device, engine=engine, tol=1e-12, memory_limit=limit)
    assert phi.memory_used <= limit
    assert str(phi.stored).removeprefix("torch.") == stored
    for _ in range(2):
        assert_allclose(phi(cost), whole(cost), atol=1e-10)


@everywhere
def test_negative_divergences_are_not_clipped(device, engine):
    parts = np.array([0, 0, 1, 1, 1])
    cost = np.where(parts[:, None] == parts, 2.0, 1.0)
    np.fill_diagonal(cost, 0.0)
    hist = np.array([parts == 0, parts == 1]) / [[2], [3]]
    for sweeps in (None, 1):
        phi = TensorEntropicMap(hist, 5.0, device=device, engine=engine, tol=1e-14, sweeps=sweeps)
        assert_allclose(phi(cost)[0, 1], -0.11901848, atol=1e-8)


def test_a_full_device_halves_the_block_and_then_says_so(lift, monkeypatch):
    hist, cost = lift
    phi = TensorEntropicMap(hist, 0.2, device="cpu", tol=1e-12)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    distances, failures = phi._distances, 1

    def failing(*given):
        nonlocal failures
        if failures:
            failures -= 1
            raise torch.OutOfMemoryError("full")
        return distances(*given)

    monkeypatch.setattr(phi, "_distances", failing)
    before = phi._layout.scratch
    assert_allclose(phi(cost), cm.EntropicMap(hist, 0.2, tol=1e-12)(cost), atol=1e-11)
    assert phi._layout.scratch == before / 2
    failures = 1000
    with pytest.raises(MemoryError, match="ran out of memory on cpu: one source needs"):
        phi(cost)


def test_blocks_cover_all_pairs_once(lift):
    phi = TensorEntropicMap(lift[0], 0.2, device="cpu")
    layout = phi._layout
    parts = [layout.share(*ends).blocks for ends in ((0, 7), (7, 8), (8, 20))]
    for blocks in (phi._share.blocks, [*itertools.chain(*parts)]):
        assert blocks[0].first == 0
        assert blocks[-1].last == 20
        for one, other in itertools.pairwise(blocks):
            assert one.last == other.first
        for block in blocks:
            assert phi._sizes[block.first : block.last].max() <= block.width


@pytest.mark.parametrize(
    ("size", "engine"), [(46, "cropped"), (90, "cropped"), (500, "dense"), (1034, "dense")]
)
def test_sparse_histograms_are_cropped_where_that_is_possible(size, engine):
    sizes = np.full(10, size)
    assert choose_engine("auto", True, sizes, 1034)[0] == engine
    assert choose_engine("auto", False, sizes, 1034)[0] == "dense"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.ones((3, 3)), r"`cost` has shape \(3, 3\); the histograms have 37 bins"),
        (-np.ones((37, 37)), "negative or non-finite"),
        (np.eye(37), "non-zero diagonal"),
        (np.triu(np.ones((37, 37)), 1), "not symmetric"),
    ],
)
def test_an_invalid_cost_is_refused(lift, bad, words):
    phi = TensorEntropicMap(lift[0], 0.1, device="cpu")
    with pytest.raises(ValueError, match=words):
        phi(torch.as_tensor(bad))


def test_options_are_checked(lift):
    hist = lift[0]
    with pytest.raises(ValueError, match="it must be positive and finite. Use ExactMap"):
        TensorEntropicMap(hist, 0.0, device="cpu")
    with pytest.raises(ValueError, match="the log domain is needed, which runs on the CPU"):
        TensorEntropicMap(hist, 1e-3, device="cpu")
    with pytest.raises(ValueError, match="choose 'auto', 'cropped' or 'dense'"):
        TensorEntropicMap(hist, 0.1, device="cpu", engine="fast")
    with pytest.raises(ValueError, match="choose float64, float32 or tf32"):
        TensorEntropicMap(hist, 0.1, device="cpu", dtype="float16")


def test_a_missing_device_names_the_cure():
    many = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"PyTorch sees {many} CUDA devices.*device='cpu'"):
        torch_device(f"cuda:{many}")


def test_without_torch_the_package_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    X = [[3.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 4.0]]
    with pytest.raises(ImportError, match=r"needs PyTorch: pip install 'cometric\[gpu\]'"):
        cm.learn(X, device="cuda")
    assert cm.learn(X, eps=0.5, tau=0.1).converged


# Maps that mix both engines


def uneven(n=90, d=400, seed=0):
    """Histograms of 2 to 400 bins, most of them small, and a metric between the bins."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(d, 2 + rng.pareto(0.6, n) * 4).astype(int)
    hist = np.zeros((n, d))
    for row, size in zip(hist, sizes, strict=True):
        row[rng.permutation(d)[:size]] = rng.random(size) + 0.01
    points = rng.random((d, 3))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    return hist / hist.sum(axis=1, keepdims=True), cost


@pytest.mark.parametrize("sweeps", [1, 3, None])
@pytest.mark.parametrize("rho", [None, 0.5])
def test_sources_swept_by_products_some_at_a_time_agree(sweeps, rho, monkeypatch):
    hist, cost = uneven()
    options = {"sweeps": sweeps, "tol": 1e-9, "rho": rho, "device": "cpu"}
    plain, mixed = (TensorEntropicMap(hist, 0.2, **options) for _ in range(2))
    monkeypatch.setattr(sweeps_torch, "prefers_products", lambda *_: True)
    monkeypatch.setattr(sweeps_torch, "ROUND", 7)
    mixed._mixed, mixed._layout = True, replace(mixed._layout, scratch=1e6)
    chunks = []
    products = mixed._products
    monkeypatch.setattr(mixed, "_products", lambda *args: chunks.append(1) or products(*args))
    for change in (0.0, 0.1):
        now = cost + change * cost.mean() * (cost > 0)
        assert_allclose(mixed(now), plain(now), rtol=1e-7, atol=1e-9)
    assert len(chunks) > 2 * len(mixed._share.blocks)  # several chunks of each block


@pytest.mark.parametrize("rows", [None, (0, 90)])
def test_supports_too_wide_for_the_kernel_are_swept_by_products(rows, monkeypatch):
    hist, cost = uneven()
    options = {"tol": 1e-9, "device": "cpu"}
    plain = TensorEntropicMap(hist, 0.2, **options)
    monkeypatch.setattr(entropic_torch, "can_crop", lambda *_: True)
    monkeypatch.setattr(sinkhorn_cuda, "choose", lambda width, _: width <= 100 or None)
    phi = TensorEntropicMap(hist, 0.2, engine="cropped", rows=rows, **options)
    cropped, products = [], phi._products

    def crop(jobs, kernel, limit, tol):  # in place of the kernel
        cropped.extend(job.bins.shape[1] for job in jobs)
        for job in jobs:
            partners = phi._partners[job.first :]
            found = sinkhorn_torch.sweep(
                kernel, job.bins, job.masses, partners, job.scalings, limit, tol
            )
            for whole, part in zip((job.values, job.errors), found, strict=True):
                whole.copy_(part.triu(1))

    multiplied = []
    monkeypatch.setattr(phi, "_crop", crop)
    monkeypatch.setattr(
        phi, "_products", lambda *args: multiplied.append(args[1].block.width) or products(*args)
    )
    assert_allclose(phi(cost), plain(cost), rtol=1e-7, atol=1e-9)
    assert max(cropped) <= 100 < min(multiplied)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_wide_blocks_of_a_cropped_map_are_swept_by_products(precision, monkeypatch):
    # With a few large histograms among many small ones, one warp would sweep the largest pairs.
    hist, cost = uneven(n=1500, d=1000)  # the kernel takes 1,024 bins in float64
    monkeypatch.setattr("cometric.maps.blocks.LAUNCHES", 0.0)
    monkeypatch.setattr("cometric.maps.blocks.ENTRIES_OF_WARP", {4: 1e8, 8: 1e8})
    phi = TensorEntropicMap(hist, 0.1, device="cuda", sweeps=None, dtype=precision)
    assert phi.engine == "cropped"
    dense = [phi._is_dense(block) for block in phi._share.blocks]
    assert 0 < sum(dense) < len(dense)
    truth = cm.EntropicMap(hist, 0.1)(cost)
    assert_allclose(phi(cost), truth, rtol=0, atol=1e-9 if precision == "float64" else 3e-5)
    one = TensorEntropicMap(hist, 0.1, device="cuda", sweeps=1, margin=1e-4, dtype="float64")
    other = TensorEntropicMap(hist, 0.1, device="cuda", sweeps=1, margin=1e-4, engine="cropped")
    assert not any(map(other._is_dense, other._share.blocks))
    for _ in range(3):
        assert_allclose(one(cost), other(cost), rtol=0, atol=1e-6 * truth.max())


def test_products_are_preferred_for_wide_blocks_and_supports_for_narrow_ones():
    from cometric.maps.blocks import Block, prefers_products

    sizes = np.sort(np.concatenate([np.full(900, 40), np.full(100, 1500)]))
    for itemsize in (4, 8):
        assert not prefers_products(Block(0, 900, 48), sizes, 2000, itemsize)
        assert prefers_products(Block(900, 1000, 1504), sizes, 2000, itemsize)


# Learning


@pytest.mark.parametrize("device", ["torch:cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("solver", ["auto", "power"])
@pytest.mark.parametrize("transport", [cm.Entropic(0.3), cm.Unbalanced(0.3, rho=0.5)])
def test_learning_on_a_device_ends_where_the_cpu_does(device, solver, transport):
    X = cm.datasets.torus("bimodal", 20, 16)
    truth = cm.learn(X, transport=transport, tau=0.01, tol=1e-10)
    result = cm.learn(X, transport=transport, tau=0.01, tol=1e-9, solver=solver, device=device)
    assert result.converged
    assert isinstance(result.samples, np.ndarray)
    assert_allclose(result.samples, truth.samples, atol=1e-8)
    assert_allclose(result.features, truth.features, atol=1e-8)
    assert_allclose(result.values, truth.values, rtol=1e-8)
    assert [record.iteration for record in result.history] == list(range(1, result.iterations + 1))


@pytest.mark.gpu
def test_a_tensor_on_the_device_is_answered_there():
    X = torch.as_tensor(cm.datasets.torus("bimodal", 20, 16), device="cuda")
    result = cm.learn(X, eps=0.3, tau=0.01, device="cuda")
    assert result.samples.is_cuda
    assert result.features.is_cuda


def test_scalings_beyond_float64_raise_an_error(monkeypatch):
    phi = TensorEntropicMap(np.full((2, 2), 0.5), 0.5, device="cpu")
    monkeypatch.setattr(phi, "_distances", lambda cost, _: cost)  # the error stays infinite
    with pytest.raises(FloatingPointError, match="exceeded the range of float64. .*device='cpu'"):
        phi(torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
