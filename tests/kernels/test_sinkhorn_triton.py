"""The cropped kernel against the dense one: on a GPU, and by Triton's interpreter where it runs.

For the interpreter: ``TRITON_INTERPRET=1 pytest tests/kernels/test_sinkhorn_triton.py``.
"""

import os

import numpy as np
import pytest
from numpy.testing import assert_allclose

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from cometric.kernels import sinkhorn_torch, sinkhorn_triton  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = [
    pytest.param(
        "cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 is not set")
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
RATIOS = [np.inf, 1e3, 10.0, 0.2]  # rho / eps; infinite for balanced transport
ABOVE = torch.ones((2, 4), dtype=torch.bool).triu(
    1
)  # pairs above the diagonal of a block of two sources


def block(device, dtype, d=40, n=5, seed=0):
    """Sources 0, 1, 2 of some histograms, dense and as rows, and a kernel."""
    rng = np.random.default_rng(seed)
    hist = rng.dirichlet(np.full(d, 0.3), size=n) * (rng.random((n, d)) < 0.5)
    hist /= hist.sum(axis=1, keepdims=True)
    points = rng.random((d, 2))
    kernel = np.ones((48, 48))
    kernel[:d, :d] = np.exp(-np.abs(points[:, None] - points).sum(axis=-1) / 0.3)
    used = [np.flatnonzero(row) for row in hist]
    width = -(-max(len(u) for u in used) // 16) * 16
    bins, mass = np.zeros((3, width), np.int32), np.zeros((3, width))
    for i in range(3):
        bins[i, : len(used[i])], mass[i, : len(used[i])] = used[i], hist[i, used[i]]
    dense = np.zeros((n, 48))
    dense[:, :d] = hist
    indptr = np.concatenate([[0], np.cumsum([len(u) for u in used])]).astype(np.int32)
    columns = np.concatenate(used).astype(np.int32)

    def put(x, kind=None):
        return torch.as_tensor(x, dtype=kind, device=device)

    rows = (put(indptr), put(columns), put(hist[hist > 0], dtype), len(columns))
    start = (put(mass, dtype) > 0).to(dtype)[:, None, :].repeat(1, n, 1)
    return put(kernel, dtype), put(bins), put(mass, dtype), put(dense, dtype), rows, start


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-11), (torch.float32, 2e-4)])
@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize("ratio", RATIOS)
def test_it_agrees_with_products_above_the_diagonal(device, dtype, rtol, sweeps, ratio):
    kernel, bins, mass, dense, rows, start = block(device, dtype)
    expected = start.clone()
    values, errors = sinkhorn_torch.sweep(
        kernel, bins, mass, dense, expected, sweeps, 0.0, ratio=ratio
    )
    results = torch.zeros((2, 3, 5), dtype=torch.float64, device=device)
    sinkhorn_triton.sweep(kernel, bins, mass, *rows, start, *results, sweeps, 0.0, ratio=ratio)
    for mine, other in zip(results, (values, errors), strict=True):
        atol = 1e-6 if rtol > 1e-9 else 1e-15
        assert_allclose(mine.cpu(), other.triu(1).cpu(), rtol=rtol, atol=atol)
    for i in range(3):
        assert_allclose(start[i, i + 1 :].cpu(), expected[i, i + 1 :].cpu(), rtol=rtol)


@pytest.mark.parametrize("device", DEVICES)
def test_it_leaves_alone_what_is_done(device):
    kernel, bins, mass, _, rows, start = block(device, torch.float64)
    values, errors = torch.full((2, 3, 5), 7.0, dtype=torch.float64, device=device)
    errors[:] = 0.0
    errors[0, 4] = 1.0
    untouched = start[1].clone()
    sinkhorn_triton.sweep(kernel, bins, mass, *rows, start, values, errors, 500, 1e-9, True)
    assert float(errors[0, 4]) <= 1e-9
    assert float(values[0, 4]) != 7.0
    assert int((values == 7.0).sum()) == 14
    assert (start[1] == untouched).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("width", sorted(sinkhorn_triton.SHAPES[8]))
def test_every_width_on_a_device(dtype, width):
    """One source that fills the width, one partner; no sum is lost."""
    d = width
    rng = np.random.default_rng(width)
    hist = torch.as_tensor(rng.dirichlet(np.ones(d), size=2), dtype=dtype, device="cuda")
    kernel = torch.as_tensor(np.exp(-rng.random((d, d))), dtype=dtype, device="cuda")
    kernel = (kernel + kernel.T) / 2
    bins = torch.arange(d, dtype=torch.int32, device="cuda")[None]
    indptr = torch.tensor([0, d, 2 * d], dtype=torch.int32, device="cuda")
    columns = bins[0].repeat(2)
    start = torch.ones((1, 2, d), dtype=dtype, device="cuda")
    expected = start.clone()
    values, errors = sinkhorn_torch.sweep(kernel, bins, hist[:1], hist, expected, 2, 0.0)
    mine, gaps = torch.zeros((2, 1, 2), dtype=torch.float64, device="cuda")
    sinkhorn_triton.sweep(
        kernel, bins, hist[:1], indptr, columns, hist.reshape(-1), 2 * d, start, mine, gaps, 2, 0.0
    )
    exact = dtype is torch.float64
    assert_allclose(float(mine[0, 1]), float(values[0, 1]), rtol=1e-12 if exact else 1e-5)
    assert_allclose(float(gaps[0, 1]), float(errors[0, 1]), atol=1e-12 if exact else 1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_fused_division_is_the_plain_one(device, ratio):
    rng = np.random.default_rng(0)
    b = torch.as_tensor(rng.dirichlet(np.ones(50), size=4), device=device)
    b[:, ::3] = 0.0
    kv = torch.as_tensor(rng.uniform(0.1, 1.0, (2, 4, 50)), device=device)
    u, logs = sinkhorn_torch.divide(b, kv, ratio)
    fused, sums = sinkhorn_triton.divide(b, kv.clone(), ratio)
    assert_allclose(fused[ABOVE].cpu(), u[ABOVE].cpu(), rtol=1e-14)
    assert_allclose(sums.cpu(), logs.cpu() * ABOVE, rtol=1e-13)
    assert torch.equal(fused[~ABOVE], kv[~ABOVE])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [16, 48, 300])
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_fused_update_is_the_plain_one(device, width, ratio):
    rng = np.random.default_rng(0)
    a = torch.as_tensor(rng.dirichlet(np.ones(width), size=2), device=device)
    a[:, ::3] = 0.0
    ku, v = torch.as_tensor(rng.uniform(0.1, 1.0, (2, 2, 4, width)), device=device)
    v = v * (a > 0)[:, None]
    expected = sinkhorn_torch.update(a, ku, v.clone(), ratio)
    results = sinkhorn_triton.update(a, ku, v.clone(), ratio)
    for mine, plain in zip(results, expected, strict=True):
        assert_allclose(mine[ABOVE].cpu(), plain[ABOVE].cpu(), rtol=1e-13)
    assert torch.equal(results[0][~ABOVE], v[~ABOVE])
    assert not results[1][~ABOVE].any()
