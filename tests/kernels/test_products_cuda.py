"""Products in CUDA against those of torch on a GPU; their arguments and who calls them anywhere."""

import re
from importlib.resources import files

import numpy as np
import pytest
from numpy.testing import assert_allclose

torch = pytest.importorskip("torch", reason="torch is not installed")

from cometric.kernels import products_cuda, sinkhorn_torch  # noqa: E402
from cometric.kernels.products_cuda import EDGE, Products, Sources  # noqa: E402
from cometric.maps.entropic_torch import TensorEntropicMap  # noqa: E402

N, D = 150, 208


def histograms(n, d, seed=0):
    """Random histograms of increasing and very different size."""
    rng = np.random.default_rng(seed)
    share = np.sort(rng.random(n))[:, None]
    hist = rng.random((n, d)) * (rng.random((n, d)) < share)
    hist[:, 0] += 1e-3
    hist = hist[np.argsort((hist > 0).sum(1), kind="stable")]
    return hist / hist.sum(1, keepdims=True)


def costs(d, seed=1):
    points = np.random.default_rng(seed).random((d, 3))
    return np.linalg.norm(points[:, None] - points[None], axis=2)


class Case:
    """Two blocks of sources with all their partners."""

    def __init__(self, device, dtype):
        hist = histograms(N, D)
        sizes = (hist > 0).sum(1)
        self.widths = sizes + -sizes % 16
        cost = costs(D)
        self.kernel = torch.as_tensor(np.exp(-10 * cost / cost.max()), device=device).to(dtype)
        self.hist = torch.as_tensor(hist, device=device).to(dtype)
        self.blocks = [self.block(10, 90, hist), self.block(90, N, hist)]
        self.values = torch.zeros((N - 10, N - 10), dtype=torch.float64, device=device)
        self.errors = torch.zeros_like(self.values)

    def block(self, first, last, hist):
        width = int(self.widths[last - 1])
        bins = np.zeros((last - first, width), np.int32)
        masses = np.zeros(bins.shape)
        for row, source in enumerate(hist[first:last]):
            support = np.flatnonzero(source)
            bins[row, : len(support)], masses[row, : len(support)] = support, source[support]
        bins = torch.as_tensor(bins, device=self.hist.device)
        masses = torch.as_tensor(masses, device=self.hist.device).to(self.hist.dtype)
        scalings = (masses > 0).to(masses.dtype)[:, None, :].repeat(1, N - first, 1)
        return Sources(first, bins, masses, scalings)

    def products(self, scratch=1e9):
        return Products(self.blocks, self.hist, self.widths, scratch)

    def truth(self, sweeps):
        """Values, errors and scalings of both blocks by products of torch."""
        values, errors = torch.zeros_like(self.values), torch.zeros_like(self.errors)
        states = []
        for first, bins, masses, scalings in self.blocks:
            state = scalings.clone()
            found = sinkhorn_torch.sweep(
                self.kernel, bins, masses, self.hist[first:], state, sweeps, 0.0
            )
            for whole, part in zip((values, errors), found, strict=True):
                at = first - 10
                whole[at : at + len(bins), at:] = part.triu(1)
            states.append(state)
        return values, errors, states


# -------------------------------------------------------------------------- without a device


def test_both_sides_have_the_same_arguments():
    source = files("cometric.kernels").joinpath("products.cu").read_text()
    body = re.search(r"struct Arguments \{.*?\n(.*?)\n\};", source, re.DOTALL).group(1)
    kinds = r"^\s*(const )?(long long|double|int|Tile|T)\b"
    names = [
        name.strip(" *")
        for line in re.sub(r"//.*", "", body).split(";")
        for name in re.sub(kinds, "", line.strip()).split(",")
        if name.strip()
    ]
    assert names == [name for name, _ in products_cuda.Arguments._fields_]


def test_they_do_not_run_elsewhere(monkeypatch):
    can_run = products_cuda.can_run.__wrapped__
    assert not can_run(torch.device("cpu"))
    monkeypatch.setattr(products_cuda, "_program", lambda *_: None)
    for capability in ((8, 0), (9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert can_run(torch.device("cuda")) == (capability == (9, 0))


class Stand:
    """In place of :class:`Products`, on the CPU: blocks one by one, late pairs counted by NumPy."""

    def __init__(self, blocks, hist, widths, scratch):
        self.keys, self.blocks, self.hist = [block.key for block in blocks], blocks, hist
        self.called = 0

    def sweep(self, kernel, values, errors, which=None):
        self.called += 1
        for first, bins, masses, scalings in self.blocks:
            at = first - self.blocks[0].first
            found = sinkhorn_torch.sweep(kernel, bins, masses, self.hist[first:], scalings, 1, 0.0)
            for whole, part in zip((values, errors), found, strict=True):
                whole[at : at + len(bins), at:] = part.triu(1)

    def late(self, errors, tol, share, which=None):
        return np.flatnonzero((errors > tol).sum(1).numpy() > share * EDGE)


@pytest.mark.parametrize("sweeps", [1, 3, None])
def test_a_map_sweeps_tiles_until_few_pairs_are_late(monkeypatch, sweeps):
    hist, cost = histograms(40, 30), costs(30)
    options = {"device": "cpu", "sweeps": sweeps, "tol": 1e-9, "engine": "dense"}
    plain = TensorEntropicMap(hist, 0.1, **options)
    tiled = TensorEntropicMap(hist, 0.1, **options)
    tiled._can_crop = True
    cropped = []
    monkeypatch.setattr(products_cuda, "can_run", lambda _: True)
    monkeypatch.setattr(products_cuda, "Products", Stand)
    monkeypatch.setattr(tiled, "_crop", lambda jobs, *_: cropped.append(len(jobs)))
    monkeypatch.setattr("cometric.maps.sweeps_torch.FEW", 0.0)
    for k in range(2):  # the second call starts from the scalings of the first
        assert_allclose(tiled(cost * (1 + k)), plain(cost * (1 + k)), rtol=1e-7, atol=1e-10)
    if sweeps is None:
        assert tiled.error <= 1e-9
        assert cropped == [0, 0]
    else:
        assert tiled._last_tiles.called == 2 * sweeps


# ------------------------------------------------------------------------------ on a device


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 5e-3)])
@pytest.mark.parametrize("scratch", [1e9, 1e6])  # all tiles at once, or some at a time
def test_they_are_the_products_of_torch(dtype, rtol, scratch):
    case = Case("cuda", dtype)
    values, errors, states = case.truth(2)
    products = case.products(scratch)
    for _ in range(2):
        products.sweep(case.kernel, case.values, case.errors)
    scale = float(values.abs().max())
    assert_allclose(case.values.cpu(), values.cpu(), rtol=0, atol=rtol * scale)
    assert_allclose(case.errors.cpu(), errors.cpu(), rtol=0, atol=rtol)
    for block, state in zip(case.blocks, states, strict=True):
        above = torch.ones(state.shape[:2], device="cuda").triu(1)[..., None].to(dtype)
        assert_allclose((block.scalings * above).cpu(), (state * above).cpu(), rtol=10 * rtol)


@pytest.mark.gpu
def test_chosen_tiles_alone_are_swept_and_bits_repeat():
    first, second = Case("cuda", torch.float64), Case("cuda", torch.float64)
    tiles = [case.products() for case in (first, second)]
    tiles[0].sweep(first.kernel, first.values, first.errors)
    tiles[1].sweep(second.kernel, second.values, second.errors)
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.errors, second.errors)
    tol = float(first.errors[first.errors > 0].median())
    which = tiles[0].late(first.errors, tol, 0.5)
    assert 0 < len(which) < tiles[0]._all
    before = first.errors.clone()
    tiles[0].sweep(first.kernel, first.values, first.errors, which)
    tiles[1].sweep(second.kernel, second.values, second.errors)
    moved = first.errors != before
    assert torch.equal(first.errors[moved], second.errors[moved])
    assert 0 < int(moved.sum()) <= EDGE * len(which)
