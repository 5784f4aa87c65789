"""Candidates by bounds of all pairs: the slow twin against plain formulas, Triton against it.

For Triton's interpreter: ``TRITON_INTERPRET=1 pytest tests/kernels/test_nearest.py``.
"""

import os

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch", reason="torch is not installed")

import nearest_twin  # noqa: E402
from cometric.kernels.lowest_bounds import (  # noqa: E402
    Columns,
    Lowest,
    Rows,
    round_up,
    select,
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PLACES = [
    pytest.param(
        "cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 is not set")
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
KINDS = [(), ("overlap",), ("angle",), ("place",), ("overlap", "angle", "place", "local")]
SMALL = {"M": 16, "N": 16, "K": 16, "GROUP": 2}


def triton_kernels():
    pytest.importorskip("triton", reason="triton is not installed")
    from cometric.kernels import nearest_triton

    return nearest_triton


def unit(rng, n, depth):
    vectors = np.abs(rng.standard_normal((n, depth))) * (rng.random((n, depth)) < 0.4) + 1e-3
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def problem(n_rows, n, kinds, device="cpu", depth=48, seed=0):
    """Rows that are among the columns, with the parts of the bound named."""
    rng = np.random.default_rng(seed)

    def put(x, kind=torch.float32):
        return torch.as_tensor(np.asarray(x), dtype=kind, device=device)

    half = torch.float16
    numbers = rng.uniform(0.5, 1.5, (n, 8))
    numbers[:, 4] = 1.0
    numbers[:, 5] *= 0.1
    own = rng.choice(n, n_rows, replace=False)
    parts = {}
    for name in ("overlap", "angle", "place"):
        if name in kinds:
            width = 32 if name == "place" else depth
            parts[name] = put(unit(rng, n, width), torch.float32 if name == "place" else half)
    a = put(rng.dirichlet(np.ones(depth), n), half)
    columns = Columns(
        a, *(parts.get(k) for k in ("overlap", "angle", "place")), put(numbers), depth
    )
    x = put(rng.standard_normal((n_rows, depth)), half)
    mine = [None if part is None else part[own] for part in columns[1:4]]
    rows = Rows(
        x, *mine, put(rng.uniform(0.5, 1.5, (n_rows, 8))), put(own, torch.int32),
        0.5, 0.7, 2.0, "local" in kinds,
    )  # fmt: skip
    return rows, columns


def plain_bounds(rows, columns):
    """The formula of ``lowest_bounds``, entry by entry; infinite for a row and itself."""
    mine, theirs = (x.numbers.double().cpu().numpy() for x in (rows, columns))
    n_rows, n = len(mine), len(theirs)
    bounds = np.empty((n_rows, n))
    for i in range(n_rows):
        for j in range(n):

            def inner(name, i=i, j=j):
                one, other = getattr(rows, name)[i], getattr(columns, name)[j]
                return float(one.double() @ other.double())

            r, c = mine[i], theirs[j]
            N = 0.0
            if rows.overlap is not None:
                N += r[1] * c[1] * max(0.0, 2 - 2 * inner("overlap"))
            if rows.angle is not None:
                N += r[2] * c[2] * np.sqrt(max(0.0, 2 - 2 * inner("angle")))
            if rows.place is not None:
                N += r[3] * c[3] * np.sqrt(max(0.0, r[4] + c[4] - 2 * inner("place")))
            if rows.local:
                above = max(N - r[5], 1e-6 * N) * max(N - c[5], 1e-6 * N) * r[6] * c[6]
                N = min(above**0.75, rows.farthest)
            bounds[i, j] = (
                r[0]
                + c[0]
                - rows.unit * float(rows.x[i].double() @ columns.x[j].double())
                + rows.weight * N
            )
    bounds[np.arange(n_rows), rows.own.cpu().numpy()] = np.inf
    return bounds


def sorted_state(state, slots):
    bounds, order = state.bounds[:, :slots].sort(dim=1)
    return bounds.cpu().numpy(), state.found[:, :slots].gather(1, order).cpu().numpy()


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize(("n_rows", "n", "slots"), [(3, 17, 4), (5, 50, 7), (9, 40, 40)])
def test_the_lowest_bounds_are_selected(kinds, n_rows, n, slots):
    rows, columns = problem(n_rows, n, kinds)
    state = select(rows, columns, slots, 2 * slots, nearest_twin.append)
    expected = plain_bounds(rows, columns)
    bounds, found = sorted_state(state, slots)
    real = np.isfinite(bounds)
    assert_allclose(bounds[real], np.sort(expected, axis=1)[:, :slots][real], rtol=1e-4, atol=1e-5)
    i = np.nonzero(real)[0]
    assert_allclose(expected[i, found[real]], bounds[real], rtol=1e-4, atol=1e-5)
    assert real.sum() == n_rows * min(slots, n - 1)
    others = np.sort(expected, axis=1)[:, slots:]
    if others.size:
        assert (state.threshold.numpy()[:, None] <= others + 1e-4).all()


def test_a_panel_with_too_many_low_bounds_is_cut():
    """Columns whose bounds decrease: every one is below the threshold when its turn comes."""
    rows, columns = problem(2, 200, ())
    columns.x[:] = 0.0
    columns.numbers[:, 0] = torch.arange(200, 0, -1)
    rows = rows._replace(own=torch.tensor([199, 0], dtype=torch.int32))
    state = select(rows, columns, 4, 8, nearest_twin.append)
    _, found = sorted_state(state, 4)
    assert_array_equal(found, [[198, 197, 196, 195], [199, 198, 197, 196]])


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize(
    ("n_rows", "n", "first"), [(16, 16, 0), (17, 33, 0), (5, 47, 3), (33, 70, 19)]
)
def test_triton_appends_the_same_bounds(device, kinds, n_rows, n, first):
    """Also where sizes are no multiples of a tile: nothing is read beyond the last row."""
    kernels = triton_kernels()
    rows, columns = problem(n_rows, n, kinds, device)
    found = []
    for append in (nearest_twin.append, lambda *x: kernels.append(*x, tile=SMALL)):
        state = Lowest.empty(n_rows, 8, 128, device)
        state.threshold[: n_rows // 2] = 1.8
        append(rows, columns, state, first, n)
        count = state.count.cpu().numpy()
        found.append((count, *sorted_state(state, 128)))
    assert_array_equal(found[0][0], found[1][0])
    assert_allclose(found[1][1], found[0][1], rtol=2e-4, atol=1e-4)
    for i, count in enumerate(found[0][0]):
        assert sorted(found[0][2][i, :count]) == sorted(found[1][2][i, :count])


def csr(rng, n, depth, device="cpu"):
    dense = rng.random((n, depth)) * (rng.random((n, depth)) < 0.4)
    dense[:, 0] += 0.1
    used = [np.flatnonzero(row) for row in dense]
    indptr = np.concatenate([[0], np.cumsum([len(u) for u in used])])
    parts = (indptr, np.concatenate(used).astype(np.int32), dense[dense > 0])
    return dense, [torch.as_tensor(part, device=device) for part in parts]


@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_sums_are_plain_ones(least, shared):
    check_sums(least, shared, "cpu", nearest_twin.sums)


def check_sums(least, shared, device, sums):
    rng = np.random.default_rng(0)
    dense, parts = csr(rng, 30, 20, device)
    rows = rng.random((7, 20))
    targets = rng.integers(0, 30, 11 if shared else (7, 11))
    put = torch.as_tensor(targets, device=device)
    found = sums(torch.as_tensor(rows, device=device), *parts, put, least).cpu().numpy()
    others = dense[np.broadcast_to(targets, (7, 11))]
    pairs = np.minimum(rows[:, None], others) if least else rows[:, None] * others
    assert_allclose(found, pairs.sum(axis=2), rtol=1e-13)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_sums_by_triton(device, least, shared):
    check_sums(least, shared, device, triton_kernels().sums)


def some_pairs(ratio, device="cpu"):
    """Arguments of ``pairs`` for five pairs of three sources with nine histograms."""
    rng = np.random.default_rng(0)
    dense, (indptr, columns, weight) = csr(rng, 9, 32, device)
    weight /= torch.as_tensor(np.repeat(dense.sum(axis=1), np.diff(indptr.cpu())), device=device)
    points = rng.random((32, 2))
    kernel = np.exp(-np.abs(points[:, None] - points).sum(axis=-1) / 0.3)
    kernel = torch.as_tensor(kernel, device=device)
    sizes = np.diff(indptr.cpu())
    bins, a = np.zeros((3, 32), np.int32), np.zeros((3, 32))
    for i in range(3):
        part = slice(int(indptr[i]), int(indptr[i + 1]))
        bins[i, : sizes[i]], a[i, : sizes[i]] = columns[part].cpu(), weight[part].cpu()
    bins, a = torch.as_tensor(bins, device=device), torch.as_tensor(a, device=device)
    slots = torch.tensor([0, 0, 1, 2, 2], dtype=torch.int32, device=device)
    targets = torch.tensor([3, 8, 0, 2, 5], dtype=torch.int32, device=device)
    return (
        kernel, bins, a, (a > 0).double(), slots, targets, indptr, columns, weight,
        int(sizes.max()), 300, 1e-10, ratio,
    )  # fmt: skip


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("ratio", [np.inf, 3.0])
def test_pairs_by_triton(device, ratio):
    kernels = triton_kernels()
    arguments = some_pairs(ratio, device)
    expected, _ = nearest_twin.pairs(*arguments[:11], 1e-12, ratio)
    values, errors = kernels.pairs(*arguments)
    assert_allclose(values.cpu(), expected.cpu(), rtol=1e-8, atol=1e-12)
    assert float(errors.max()) <= 1e-10
    _, errors = kernels.pairs(*arguments[:10], 2, *arguments[11:])
    assert float(errors.max()) > 1e-10


def test_rounding_up_never_rounds_down():
    values = torch.as_tensor(np.geomspace(1e-9, 1.0, 5000))
    raised = round_up(values, 1e-5).double()
    assert (raised >= values * (1 + 1e-5)).all()
    assert (raised <= values * 1.003 + 2e-7).all()
    assert float(round_up(torch.zeros(1))) == 0.0
