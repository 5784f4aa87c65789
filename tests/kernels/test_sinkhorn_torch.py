"""The tensor kernels: one sweep against its definition, dense and cropped against each other."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

torch = pytest.importorskip("torch", reason="torch is not installed")

from cometric.kernels import sinkhorn_torch  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
RATIO = 3.0  # rho / eps of unbalanced transport


class Pairs:
    """Three sources and five partners on seven bins, with a kernel and scalings."""

    def __init__(self, device, dtype=torch.float64):
        rng = np.random.default_rng(3)
        hist = rng.dirichlet(np.full(7, 0.6), size=5)
        hist[hist < 0.05] = 0.0
        self.hist = hist / hist.sum(axis=1, keepdims=True)
        points = rng.random((7, 2))
        cost = np.abs(points[:, None] - points).sum(axis=-1)
        self.kernel = np.exp(-cost / 0.3)
        self.v = rng.uniform(0.5, 2.0, (3, 5, 7)) * (self.hist[:3, None, :] > 0)
        width = 16
        bins, mass = np.zeros((3, width), np.int32), np.zeros((3, width))
        state = np.zeros((3, 5, width))
        for i in range(3):
            used = np.flatnonzero(self.hist[i])
            bins[i, : len(used)], mass[i, : len(used)] = used, self.hist[i, used]
            state[i, :, : len(used)] = self.v[i][:, used]
        padded = np.ones((16, 16))
        padded[:7, :7] = self.kernel
        dense = np.zeros((5, 16))
        dense[:, :7] = self.hist
        self.bins = torch.as_tensor(bins, device=device)
        self.a, self.b, self.k, self.state = (
            torch.as_tensor(x, dtype=dtype, device=device) for x in (mass, dense, padded, state)
        )

    def by_hand(self, i, p):
        """Value, error and new scaling after one sweep, bin by bin."""
        a, b = self.hist[i], self.hist[p]
        v = self.v[i, p]
        u = b / (self.kernel @ v)
        ku = self.kernel @ u
        new = a / ku
        value = sum(a[k] * np.log(new[k]) for k in np.flatnonzero(a))
        value += sum(b[k] * np.log(u[k]) for k in np.flatnonzero(b))
        return value, np.abs(v * ku - a)[a > 0].sum(), new[a > 0]

    def damped_by_hand(self, i, p):
        """The same for unbalanced transport."""
        a, b, v = self.hist[i], self.hist[p], self.v[i, p]
        x = (self.kernel @ v) ** (1 / (RATIO + 1))
        u = b * x / (self.kernel @ v)
        ku = self.kernel @ u
        y = ku ** (1 / (RATIO + 1))
        new = a * y / ku
        rows, columns = b @ x, a @ y
        value = RATIO * (a.sum() + b.sum() - 2 * np.sqrt(rows * columns)) - columns
        factor = np.sqrt(columns / rows) ** RATIO
        return value, np.abs(v * ku - a * y)[a > 0].sum(), factor * new[a > 0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_sweep_is_its_definition(device):
    pairs = Pairs(device)
    values, errors = sinkhorn_torch.sweep(
        pairs.k, pairs.bins, pairs.a, pairs.b, pairs.state, 1, 0.0
    )
    for i in range(3):
        for p in range(5):
            value, error, new = pairs.by_hand(i, p)
            assert_allclose(float(values[i, p]), value, rtol=1e-12)
            assert_allclose(float(errors[i, p]), error, rtol=1e-12)
            assert_allclose(pairs.state[i, p, : len(new)].cpu(), new, rtol=1e-12)
            assert (pairs.state[i, p, len(new) :] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_an_unbalanced_sweep_is_its_definition(device):
    pairs = Pairs(device)
    values, errors = sinkhorn_torch.sweep(
        pairs.k, pairs.bins, pairs.a, pairs.b, pairs.state, 1, 0.0, ratio=RATIO
    )
    for i in range(3):
        for p in range(5):
            value, error, new = pairs.damped_by_hand(i, p)
            assert_allclose(float(values[i, p]), value, rtol=1e-12)
            assert_allclose(float(errors[i, p]), error, rtol=1e-12)
            assert_allclose(pairs.state[i, p, : len(new)].cpu(), new, rtol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_unbalanced_self_terms_are_the_symmetric_fixed_point(device):
    pairs = Pairs(device)
    scaling = (pairs.b > 0).to(torch.float64)
    values, errors = sinkhorn_torch.self_terms(pairs.b, pairs.k, scaling, 1000, 1e-13, RATIO)
    assert float(errors.max()) <= 1e-13
    u = scaling.cpu().numpy()[:, :7]
    goal = pairs.hist * (u @ pairs.kernel) ** (1 / (RATIO + 1))
    assert_allclose(u * (u @ pairs.kernel), goal, atol=1e-13)
    # Both marginals of the plan are the goal.
    assert_allclose(values.cpu(), 2 * RATIO - (2 * RATIO + 1) * goal.sum(axis=1), atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
def test_sweeps_end_at_the_tolerance(device):
    pairs = Pairs(device)
    _, errors = sinkhorn_torch.sweep(
        pairs.k, pairs.bins, pairs.a, pairs.b, pairs.state, 10_000, 1e-12
    )
    assert float(errors.max()) <= 1e-12
    plan = pairs.state[0, 1, :].cpu().numpy()
    assert np.isfinite(plan).all()


@pytest.mark.parametrize("device", DEVICES)
def test_self_terms_are_the_symmetric_fixed_point(device):
    pairs = Pairs(device)
    scaling = (pairs.b > 0).to(torch.float64)
    values, errors = sinkhorn_torch.self_terms(pairs.b, pairs.k, scaling, 1000, 1e-13)
    assert float(errors.max()) <= 1e-13
    u = scaling.cpu().numpy()[:, :7]
    assert_allclose(u * (u @ pairs.kernel), pairs.hist, atol=1e-13)
    expected = [2 * np.sum(a[a > 0] * np.log(x[a > 0])) for a, x in zip(pairs.hist, u, strict=True)]
    assert_allclose(values.cpu(), expected, atol=1e-12)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("allowed", [True, False])
def test_the_precision_of_products_is_put_back(before, allowed):
    setting = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = before
        with sinkhorn_torch.fast_products(allowed):
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
        assert torch.backends.cuda.matmul.allow_tf32 is before
    finally:
        torch.backends.cuda.matmul.allow_tf32 = setting
