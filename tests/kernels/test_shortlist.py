"""Shortlists of candidates beside the same scores written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
from cometric.kernels.shortlist import by_feature
from cometric.large.neighbors import store_samples
from cometric.large.samples import Samples
from cometric.large.shortlist import Shortlist

X = cm.datasets.simulate_counts(90, 30, density=0.3, random_state=3).X


def test_entries_by_feature_are_the_columns_of_the_rows():
    rows = sparse.csr_array(X).astype(np.float32)
    members = np.array([2, 5, 6, 41, 88])
    z = np.arange(rows.nnz, dtype=np.float32)
    starts, place, lows, zs = by_feature(
        rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data, z, members, 30
    )
    columns = sparse.csc_array(rows[members])
    assert_array_equal(starts, columns.indptr)
    assert_array_equal(place, columns.indices)
    assert_array_equal(lows, columns.data)
    numbers = sparse.csr_array((z, rows.indices, rows.indptr), rows.shape)[members]
    assert_array_equal(zs, sparse.csc_array(numbers).data)


@pytest.mark.parametrize("options", [{}, {"tau": 1e-3}], ids=["local", "l1"])
def test_the_candidates_of_lowest_score_are_chosen(options):
    result = cm.learn(X[:50], tol=1e-3, drop_empty=True, **options)
    samples = Samples(result, store_samples(result, X, np.inf))
    samples.collect(map(samples.place, samples.blocks()), np.inf)
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
    scores += np.maximum(rough, 0.0) - np.maximum(exact, 0.0)
    scores[rows[:, None] == members] = np.inf
    chosen = Shortlist(samples).best(rows, potentials, members, 8)
    assert (np.diff(chosen, axis=1) > 0).all()
    places = np.searchsorted(members, chosen)
    found = np.sort(np.take_along_axis(scores, places, axis=1), axis=1)
    assert_allclose(found, np.sort(scores, axis=1)[:, :8], rtol=2e-4, atol=2e-5)


def test_no_more_are_chosen_than_there_are():
    result = cm.learn(X[:50], tol=1e-3, drop_empty=True)
    samples = Samples(result, store_samples(result, X, np.inf))
    samples.collect(map(samples.place, samples.blocks()), np.inf)
    rows, members = np.array([4, 5]), np.arange(10)
    potentials = samples.potentials(rows)[1]
    chosen = Shortlist(samples).best(rows, potentials, members, 50)
    expected = [[j for j in range(10) if j != i] for i in rows]
    assert_array_equal(chosen, expected)
