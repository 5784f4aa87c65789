"""The kernel in CUDA against products on a GPU; its layout and its shapes anywhere."""

import re
from importlib.resources import files

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

torch = pytest.importorskip("torch", reason="torch is not installed")

from cometric.kernels import sinkhorn_cuda, sinkhorn_torch  # noqa: E402
from cometric.kernels.sinkhorn_cuda import Job, SupportSweeps  # noqa: E402

ROOM = 227 * 1024


def histograms(n, d, density, seed=0):
    """Random histograms of increasing size, as CSR rows."""
    rng = np.random.default_rng(seed)
    hist = rng.dirichlet(np.full(d, 0.5), size=n) * (rng.random((n, d)) < density)
    hist[:, 0] += 1e-3
    hist = hist[np.argsort((hist > 0).sum(1), kind="stable")]
    return sparse.csr_array(hist / hist.sum(1, keepdims=True))


def rows_of(hist, device="cpu", dtype=torch.float64):
    indptr, indices = (torch.as_tensor(x.astype(np.int32)) for x in (hist.indptr, hist.indices))
    return (indptr.to(device), indices.to(device), torch.as_tensor(hist.data).to(device, dtype))


# -------------------------------------------------------------------------- without a device


@pytest.mark.parametrize("size", [4, 8])
def test_shapes_hold_every_bin_until_registers_are_full(size):
    widest = 32 * 16 // size * sinkhorn_cuda.VECTORS
    for width in range(16, widest + 1, 16):
        shape = sinkhorn_cuda.choose(width, size)
        assert shape.group * shape.vectors * (16 // size) >= width
        assert shape.group % shape.rows == 0
        registers = size // 4 * (16 // size) * shape.vectors * (2 + shape.rows)
        assert registers <= 0.8 * 65_536 / shape.threads
    assert sinkhorn_cuda.choose(widest + 16, size) is None
    assert sinkhorn_cuda.fit(widest + 16, 100, size, ROOM) is None


def test_columns_go_to_shared_memory_if_they_fit():
    assert sinkhorn_cuda.fit(48, 1040, 4, ROOM).shared
    assert not sinkhorn_cuda.fit(48, 1040, 8, ROOM).shared
    for width in range(16, 2049, 16):
        fit = sinkhorn_cuda.fit(width, 1040, 4, ROOM)
        assert fit.space + 4 * sinkhorn_cuda.CHUNK <= ROOM
        last = 1039 * fit.stride + fit.shape.group * fit.shape.vectors * 4  # what lanes read
        if fit.shared:
            assert 4 * last <= fit.space
        else:
            assert last <= fit.copied + fit.beyond


def test_the_padded_rows_are_the_histograms():
    hist = histograms(9, 400, 0.5)
    layout = sinkhorn_cuda.lay_out(*rows_of(hist))
    assert layout.short == int((np.diff(hist.indptr) < sinkhorn_cuda.LONG).sum())
    assert not (layout.pointers % sinkhorn_cuda.LANES).any()
    offsets = layout.offsets(20)
    again = np.zeros(hist.shape)
    for row, (begin, end) in enumerate(zip(layout.pointers[:-1], layout.pointers[1:], strict=True)):
        np.add.at(again[row], offsets[begin:end].numpy() // 20, layout.weight[begin:end].numpy())
    assert_array_equal(again, hist.toarray())
    assert layout.offsets(20) is offsets


@pytest.mark.parametrize(
    ("name", "structure"), [("sinkhorn", sinkhorn_cuda.Arguments), ("gather", sinkhorn_cuda.Copy)]
)
def test_both_sides_have_the_same_arguments(name, structure):
    source = files("cometric.kernels").joinpath(f"{name}.cu").read_text()
    body = re.search(r"struct Arguments \{.*?\n(.*?)\n\};", source, re.DOTALL).group(1)
    fields = [
        (field.strip(" *"), "*" in field or "*" in line.split(",")[0])
        for line in re.sub(r"//.*", "", body).replace(",\n", ", ").split(";")
        for field in re.sub(r"^\s*(const )?(long long|double|int|T)\b", "", line.strip()).split(",")
        if field.strip()
    ]
    expected = [(field, of is sinkhorn_cuda.ctypes.c_void_p) for field, of in structure._fields_]
    assert fields == expected


def test_it_does_not_run_on_a_cpu():
    assert not sinkhorn_cuda.can_run(torch.device("cpu"))


def test_it_does_not_run_where_torch_cannot_compile(monkeypatch):
    def fail(*_):
        raise RuntimeError("no NVRTC")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    monkeypatch.setattr(sinkhorn_cuda, "_gathering", fail)
    can_run = sinkhorn_cuda.can_run.__wrapped__
    assert not can_run(torch.device("cuda"))
    monkeypatch.setattr(sinkhorn_cuda, "_gathering", lambda *_: None)
    assert can_run(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not can_run(torch.device("cuda"))


def test_scalings_in_another_precision_are_converted_and_rounded_back(monkeypatch):
    hist = histograms(4, 64, 0.5)
    swept = []

    def start(self, kernel, jobs, *_):
        swept.append([job.scalings.dtype for job in jobs])
        for job in jobs:
            job.scalings.add_(1.0)

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(SupportSweeps, "_start", start)
    stored = [torch.zeros(2, 4, 16, dtype=kind) for kind in (torch.float32, torch.float64)]
    jobs = [Job(0, None, None, scalings, None, None) for scalings in (*stored, stored[0])]
    SupportSweeps(*rows_of(hist))(torch.ones((64, 64), dtype=torch.float64), jobs, 1, 0.0)
    assert swept == [[torch.float64]] * 3
    assert [float(scalings.max()) for scalings in stored] == [2.0, 1.0]
    assert stored[0].dtype == torch.float32


# ------------------------------------------------------------------------------- on a device


def block(width, n, dtype, d=None, sources=3, seed=0):
    """Sources of up to ``width`` bins, all partners, and a kernel on ``d`` bins."""
    d = d or width
    rng = np.random.default_rng(seed)
    hist = histograms(n, d, 0.9 * width / d, seed)
    sizes = np.diff(hist.indptr)
    assert sizes[sources - 1] <= width
    bins, mass = np.zeros((sources, width), np.int32), np.zeros((sources, width))
    for i in range(sources):
        own = slice(hist.indptr[i], hist.indptr[i + 1])
        bins[i, : sizes[i]], mass[i, : sizes[i]] = hist.indices[own], hist.data[own]
    points = rng.random((d, 2))
    kernel = np.exp(-np.abs(points[:, None] - points).sum(axis=-1) / 0.3)

    def put(x, kind=None):
        return torch.as_tensor(x, dtype=kind, device="cuda")

    start = (put(mass) > 0).to(dtype)[:, None, :].repeat(1, n, 1)
    dense = put(hist.toarray(), dtype)
    crop = SupportSweeps(*rows_of(hist, "cuda", dtype))
    return put(kernel, dtype), put(bins), put(mass, dtype), dense, start, crop


def results(start, values=0.0):
    return torch.full((2, *start.shape[:2]), values, dtype=torch.float64, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("width", "d"),
    [(16, 48), (32, 1040), (48, 1040), (64, 4096), (80, 96), (112, 2000), (176, 400), (256, 4096)]
    + [(384, 1040), (512, 512), (768, 1040), (1024, 1024), (2048, 2048)],
)
@pytest.mark.parametrize("sweeps", [1, 3])
def test_it_agrees_with_products(dtype, width, d, sweeps):
    if dtype is torch.float64 and width > 1024:
        pytest.skip("the kernel takes 1,024 bins in float64")
    kernel, bins, mass, dense, start, crop = block(width, 40, dtype, d)
    expected = start.clone()
    values, errors = sinkhorn_torch.sweep(kernel, bins, mass, dense, expected, sweeps, 0.0)
    again, first = start.clone(), results(start)
    second = results(start)
    crop(kernel, [Job(0, bins, mass, start, *first)], sweeps, 0.0)
    crop(kernel, [Job(0, bins, mass, again, *second)], sweeps, 0.0)
    assert torch.equal(first, second)
    assert torch.equal(start, again)
    exact = dtype is torch.float64
    assert_allclose(first[0].cpu(), values.triu(1).cpu(), rtol=1e-11 if exact else 1e-4, atol=1e-6)
    assert_allclose(first[1].cpu(), errors.triu(1).cpu(), atol=1e-12 if exact else 1e-4)
    for i in range(3):
        mine, other = start[i, i + 1 :].cpu(), expected[i, i + 1 :].cpu()
        assert_allclose(mine, other, rtol=1e-10 if exact else 2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "d"), [(48, 400), (112, 4096), (400, 4096)])
@pytest.mark.parametrize("left", [2, 60])
def test_it_leaves_alone_what_is_done(width, d, left):
    """With few pairs left, whole programs solve them."""
    kernel, bins, mass, dense, start, crop = block(width, 200, torch.float64, d)
    expected = start.clone()
    values, _ = sinkhorn_torch.sweep(kernel, bins, mass, dense, expected, 500, 1e-10)
    found = results(start, 7.0)
    found[1] = 0.0
    found[1, 1, 3 : 3 + left] = 1.0
    wanted = (found[1] > 1e-9).sum(1)
    untouched = start.clone()
    crop(kernel, [Job(0, bins, mass, start, *found, wanted)], 500, 1e-9)
    assert float(found[1].max()) <= 1e-9
    assert int((found[0] == 7.0).sum()) == found[0].numel() - left
    some = slice(3, 3 + left)
    assert_allclose(found[0, 1, some].cpu(), values[1, some].cpu(), atol=1e-9)
    start[1, some] = untouched[1, some]
    assert torch.equal(start, untouched)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_memory_held_before_does_not_count(dtype, monkeypatch):
    """Lanes without bins read what follows their source, perhaps a source that was not copied."""
    kernel, bins, mass, _, start, crop = block(112, 200, dtype, 4096, sources=6)
    scratch_for = sinkhorn_cuda.scratch_for
    monkeypatch.setattr(
        sinkhorn_cuda, "scratch_for", lambda *args: scratch_for(*args).fill_(float("nan"))
    )
    found = results(start)
    found[1, ::2, 100:] = 1.0
    wanted = (found[1] > 0.5).sum(1)
    crop(kernel, [Job(0, bins, mass, start, *found, wanted)], 3, 0.0)
    assert found.isfinite().all()
    assert start.isfinite().all()


@pytest.mark.gpu
def test_blocks_on_several_streams_are_the_same_as_one_by_one():
    kernel, bins, mass, _, start, crop = block(64, 300, torch.float64, 4096, sources=9)
    whole = results(start)
    crop(kernel, [Job(0, bins, mass, start.clone(), *whole)], 3, 0.0)
    parts = results(start)
    jobs = []
    for k in range(0, 9, 3):
        some = slice(k, k + 3)
        own = start[some, k:].contiguous()
        jobs.append(Job(k, bins[some], mass[some], own, *parts[:, some, k:]))
    assert len(jobs) > sinkhorn_cuda.STREAMS
    crop(kernel, jobs, 3, 0.0)
    assert torch.equal(parts, whole)
