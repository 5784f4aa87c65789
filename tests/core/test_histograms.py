"""Sums that are rounded once, repeats that are told apart, sides that were stored."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from cometric.core import histograms
from cometric.core.histograms import (
    MERGE_TOLERANCE,
    NORMALIZED,
    label_repeats,
    make_side,
    normalize,
)
from cometric.core.problem import Problem


def rows_of(*rows):
    """A matrix whose rows have these entries, in the first columns."""
    wide = max(map(len, rows))
    return sparse.csr_array(np.array([[*row, *[0.0] * (wide - len(row))] for row in rows]))


@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 33, 1000])
@pytest.mark.parametrize("span", [0, 10, 45, 60, 200])
def test_sums_of_rows_are_rounded_once(size, span):
    rng = np.random.default_rng(size + span)
    data = rng.uniform(0.5, 1.0, (40, size)) * 2.0 ** -rng.integers(0, span + 1, (40, size))
    data[:, 0] = rng.uniform(0.5, 1.0, 40)  # rows are scaled so that their largest entry is
    found = histograms._row_sums(data.ravel(), np.arange(0, 40 * size, size))
    for total, row in zip(found, data, strict=True):
        exact = sum(map(Fraction, row))
        assert abs(Fraction(total) - exact) <= Fraction(math.ulp(total)) * Fraction(501, 1000)


def test_sums_of_long_rows_are_rounded_once():
    small = 2.0**-34 * (1 + 0.45 * 2.0**-32)  # added one by one, all are rounded the same way
    data = np.concatenate([[0.6], np.full(2**20, small)])
    assert histograms._row_sums(data, np.array([0]))[0] == math.fsum(data)


def test_sums_of_rows_of_different_lengths():
    data = np.array([0.5, 0.25, 2.0**-60, 0.75, 2.0**-30, 2.0**-53, 2.0**-54])
    found = histograms._row_sums(data, np.array([0, 3, 4]))
    assert_array_equal(found, [0.75, 0.75, math.fsum(data[4:])])


def test_masses_are_normalized_to_three_roundings():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(30, 400)) * 2.0 ** rng.integers(-40, 40, (30, 400))
    hist = normalize(sparse.csr_array(X)).toarray()
    for row, masses in zip(X, hist, strict=True):
        total = sum(map(Fraction, row))
        for entry, mass in zip(row, masses, strict=True):
            exact = Fraction(entry) / total
            assert abs(Fraction(mass) - exact) <= Fraction(NORMALIZED) * exact


def test_labels_count_by_first_appearance():
    hist = rows_of([0.5, 0.5], [1.0], [0.5, 0.5], [0.25, 0.75], [1.0])
    assert_array_equal(label_repeats(hist), [0, 1, 0, 2, 1])


@pytest.mark.parametrize(("apart", "merged"), [(0.0, True), (0.9, True), (1.1, False), (5, False)])
def test_rows_are_merged_up_to_the_tolerance(apart, merged):
    shift = apart * MERGE_TOLERANCE / 2
    hist = rows_of([0.5, 0.5], [0.5 + shift, 0.5 - shift], [0.2, 0.8])
    labels = label_repeats(hist)
    assert (labels[0] == labels[1]) is np.bool_(merged)
    assert labels[2] not in labels[:2]


def test_every_row_of_a_run_is_compared_with_its_first():
    """A chain of rows, each near the next: those beyond the tolerance begin another group."""
    step = 0.4 * MERGE_TOLERANCE
    hist = rows_of(*([0.5 + k * step, 0.5 - k * step] for k in range(6)))
    labels = label_repeats(hist)
    dense = hist.toarray()
    for label in np.unique(labels):
        group = np.flatnonzero(labels == label)
        gaps = np.abs(dense[group] - dense[group[0]]).sum(axis=1)
        assert gaps.max() <= MERGE_TOLERANCE
    assert 3 <= labels.max() + 1 <= 6


def test_merged_bins_hold_the_mass_of_all_and_names_are_those_of_the_items_kept():
    hist = rows_of([0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
    kept = np.array([True, False, True, True])
    side = make_side(hist, np.array([0, 1, 0]), np.array([0, 1, 0]), kept, list("axbc"))
    assert_array_equal(side.hist.toarray(), [[0.75, 0.25], [0.75, 0.25]])
    assert_array_equal(side.full.toarray(), [[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]])
    assert side.names == ("a", "b", "c")


def test_repeats_have_the_histogram_of_the_first():
    X = np.array([[1.0, 2.0, 0.0], [2.0, 0.0, 1.0], [2.0, 4.0, 0.0], [0.0, 1.0, 1.0]])
    with pytest.warns(UserWarning, match="1 row that repeats"):
        samples = Problem.from_data(X).samples
    rows = X / X.sum(axis=1, keepdims=True)
    assert samples.hist.shape[0] == 3
    np.testing.assert_allclose(samples.item_histograms.toarray(), rows, rtol=1e-15)
    plain = Problem.from_data(X[[0, 1, 3]]).samples
    assert_array_equal(plain.item_histograms.toarray(), plain.full.toarray())
