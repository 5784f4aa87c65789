"""The lowest bounds of every row, shortlists and sums of pairs, beside the same written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
from cometric.files.rows import rows_of
from cometric.kernels.candidates import SCALE, lowest, pack, pair_sums, shortlist, view_squares
from cometric.landmarks.index import Shortlist
from cometric.landmarks.neighbors import learned_rows
from cometric.landmarks.samples import Samples

X = cm.datasets.simulate_counts(90, 30, density=0.3, random_state=3).X
FIRST, ROWS = 3, 19  # more rows than lanes, and a part of the last lanes


@pytest.fixture(scope="module")
def parts():
    rng = np.random.default_rng(0)
    hist = rng.dirichlet(np.full(20, 0.2), 40)
    hist[hist < 0.01] = 0.0
    hist /= hist.sum(axis=1, keepdims=True)
    return {
        "hist": hist,
        "p": rng.random(ROWS),
        "q": rng.random(40) - 0.5,
        "images": rng.random((ROWS, 20)) - 0.5,
        "means": rng.random((40, 3)),
    }


def naive(hist, p, q, images, means, share):
    bounds = np.full((ROWS, 40), np.inf)
    for row in range(ROWS):
        i = FIRST + row
        for j in range(40):
            if j != i:
                gap = np.abs(means[i] - means[j]).max(initial=0.0)
                l1 = np.abs(hist[i] - hist[j]).sum()
                bound = p[row] + q[j] - images[row] @ hist[j] + gap + share * l1
                bounds[row, j] = max(0.0, bound)
    return bounds


@pytest.mark.parametrize("share", [0.0, 0.7])
@pytest.mark.parametrize("references", [0, 3])
@pytest.mark.parametrize("count", [1, 7, 39])
def test_the_lowest_of_all_bounds_in_their_order(parts, share, references, count):
    parts = parts | {"means": np.ascontiguousarray(parts["means"][:, :references])}
    expected = naive(**parts, share=share)
    rows = sparse.csr_array(parts["hist"])
    csr = rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
    others = (parts["p"], parts["q"], parts["images"], parts["means"])
    bounds, index = lowest(*csr, FIRST, *others, share, np.empty((0, 0)), count, 2)
    assert_allclose(bounds, np.sort(expected, axis=1)[:, :count], atol=1e-14)
    assert_allclose(np.take_along_axis(expected, index, axis=1), bounds, atol=1e-14)
    assert all(len(set(row)) == count for row in index.tolist())


def test_sums_of_pairs_are_those_written_out():
    rng = np.random.default_rng(0)
    rows = sparse.csr_array(np.where(rng.random((25, 21)) < 0.4, rng.random((25, 21)), 0.0))
    two, three = rng.random((2, rows.nnz))
    x, low, z = rng.random((3, 4, 21))
    index = np.array([[0, 5, -1], [1, 1, 24], [3, 2, 7], [9, 8, 6]])
    sums = pair_sums(
        rows.indptr.astype(np.int64), rows.indices, rows.data, two, three, x, low, z, index, 2
    )
    for i, line in enumerate(index):
        for c, j in enumerate(line):
            own = slice(rows.indptr[j], rows.indptr[j + 1]) if j >= 0 else slice(0, 0)
            k = rows.indices[own]
            expected = (
                x[i, k] @ rows.data[own],
                np.minimum(low[i, k], two[own]).sum(),
                z[i, k] @ three[own],
            )
            assert_allclose(sums[:, i, c], expected, atol=1e-14)


def test_packed_rows_are_rounded_down():
    rows = sparse.csr_array(X).astype(np.float32)
    rows.data /= rows.data.max()
    members = np.array([2, 5, 6, 41, 88])
    z = np.linspace(0.0, 1.0, rows.nnz, dtype=np.float32)
    pointers, bins, lows, zs = pack(
        rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data, z, members
    )
    expected = rows[members]
    assert_array_equal(pointers, expected.indptr)
    assert_array_equal(bins, expected.indices)
    assert_array_equal(lows, np.floor(np.float32(SCALE) * expected.data))
    numbers = sparse.csr_array((z, rows.indices, rows.indptr), rows.shape)[members]
    assert_array_equal(zs, np.floor(np.float32(SCALE) * numbers.data))


def test_sums_of_equal_rows_do_not_overflow():
    # the sums are 1: integers of 16 bits end at 65535
    rng = np.random.default_rng(0)
    n, m = 40, 3000
    low = rng.random((n, m)).astype(np.float32)
    low[1:] = low[0]
    low /= low.sum(axis=1, keepdims=True)
    z = low / np.sqrt((low**2).sum(axis=1, keepdims=True))
    indptr = np.arange(0, n * m + 1, m)
    bins = np.tile(np.arange(m, dtype=np.int32), n)
    packed = pack(indptr, bins, low.ravel(), z.ravel(), np.arange(n))
    nothing, scores = np.zeros((n, 64), np.float32), np.full((n, n - 1), np.inf, np.float32)
    none = np.zeros((0, n, 64), np.float32)
    parts = np.ones((n, 6), np.float32)
    parts[:, [2, 3, 5]] = 0.0  # LSA and noise
    norms = (parts, nothing[None], 0.5), (np.empty((n, 0), np.float32), none, 0.05)
    for own_parts, dots, largest in norms:
        scores[:] = np.inf
        shortlist(
            *packed, *packed, m, np.arange(n), np.zeros(n, np.float32), np.zeros(n, np.float32),
            nothing, dots, own_parts, own_parts, np.float32(1), np.float32(9), 0, scores,
            np.zeros(scores.shape, np.int64), 2,
        )  # fmt: skip
        assert scores.max() < largest  # 2 - 2 sums, not 2: nothing was lost by overflow


def test_squares_of_views_are_those_of_their_columns():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((20, 17)).astype(np.float32)
    cuts, rows, index = np.array([0, 3, 3, 17]), np.array([4, 9]), rng.integers(0, 20, (2, 6))
    found = view_squares(vectors, cuts, rows, index, 2)
    for squares, start, stop in zip(found, cuts[:-1], cuts[1:], strict=True):
        part = vectors[:, start:stop].astype(float)
        gaps = part[rows][:, None] - part[index]
        assert_allclose(squares, (gaps**2).sum(axis=2), rtol=1e-6)


def described(**options):
    """All samples, as the index describes them by a metric learned from the first."""
    result = cm.learn(X[:50], tol=1e-3, drop_empty=True, **options)
    samples = Samples(result, learned_rows(result, rows_of(X), np.inf))
    samples.collect(map(samples.describe, samples.blocks()), np.inf)
    return samples


@pytest.mark.parametrize(
    "options", [{}, {"tau": "0.2"}, {"eps": 0.1}, {"tau": 1e-3, "norm": "l1"}], ids=str
)
def test_the_candidates_of_lowest_score_are_chosen(options):
    samples = described(**options)
    rows, members = np.arange(3, 70), np.flatnonzero(np.arange(90) % 7)
    rows = np.intersect1d(rows, members)
    images, potentials = samples.potentials(rows)
    scores = samples.score(rows, images, np.broadcast_to(members, (len(rows), len(members))).copy())
    # the score has all of the potential, the shortlist what few singular vectors leave of it
    transport = samples.p[rows, None] + samples.q[members] - samples.mean[members]
    exact = transport - samples.base.scale * (
        (images - samples._center) @ samples.histograms(members)[0].T.toarray()
    )
    rough = transport - samples.base.scale * potentials @ samples.coordinates[members].T
    scores += rough - np.maximum(exact, 0.0)
    scores[rows[:, None] == members] = np.inf
    chosen = Shortlist(samples).best(rows, potentials, members, 8)
    assert (np.diff(chosen, axis=1) > 0).all()
    places = np.searchsorted(members, chosen)
    found = np.sort(np.take_along_axis(scores, places, axis=1), axis=1)
    assert_allclose(found, np.sort(scores, axis=1)[:, :8], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("norm", ["lsa", "cosine"])
def test_other_references_are_replaced_by_squares_of_dense_vectors(norm):
    samples = described(eps=0.1, restart=0.3, norm=norm)
    rows, members = np.arange(3, 70), np.arange(90)
    potentials = samples.potentials(rows)[1]
    scores = samples.p[rows, None] + (samples.q - samples.mean)[members]
    scores -= samples.base.scale * potentials @ samples.coordinates[members].T
    gaps = samples.vectors[rows, None].astype(float) - samples.vectors[members]
    scores += samples.slope * (gaps**2).sum(axis=2)
    scores[np.arange(len(rows)), rows] = np.inf
    chosen = Shortlist(samples).best(rows, potentials, members, 8)
    found = np.sort(np.take_along_axis(scores, chosen, axis=1), axis=1)
    assert samples.slope > 0.0
    assert_allclose(found, np.sort(scores, axis=1)[:, :8], rtol=1e-4, atol=1e-6)


def test_no_more_are_chosen_than_there_are():
    samples = described()
    rows, members = np.array([4, 5]), np.arange(10)
    potentials = samples.potentials(rows)[1]
    chosen = Shortlist(samples).best(rows, potentials, members, 50)
    expected = [[j for j in range(10) if j != i] for i in rows]
    assert_array_equal(chosen, expected)
