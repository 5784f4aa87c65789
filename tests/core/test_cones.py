"""Normalization, ratio bounds and the Hilbert metric."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import naive
from cometric.core.cones import (
    BOUNDARY,
    hilbert_distance,
    log_width,
    normalize,
    ratio_bounds,
    touches_boundary,
)
from cometric.core.types import NegativeDistances
from strategies import positive_costs

ONE = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]])


def changed(matrix, pair, value):
    matrix = matrix.copy()
    matrix[pair] = matrix[pair[::-1]] = value
    return matrix


@pytest.fixture(params=["numpy", "torch"])
def form(request):
    """What makes an array of this library of a matrix."""
    if request.param == "numpy":
        return np.asarray
    return pytest.importorskip("torch").as_tensor


same_size = st.integers(2, 5).flatmap(lambda d: st.tuples(*2 * [positive_costs(d)]))


# Normalization


def test_normalize_returns_maximum_one_and_the_maximum_it_had():
    unit, top = normalize(ONE)
    assert top == 4.0
    assert_array_equal(4.0 * unit, ONE)
    again, top = normalize(2.0**-1000 * ONE)
    assert top == 2.0**-998
    assert_array_equal(again, unit)


@pytest.mark.parametrize("top", [0.0, np.inf, np.nan])
def test_normalize_refuses_a_maximum_that_is_not_positive_and_finite(top):
    with pytest.raises(ValueError, match=f"`distances` has maximum {top}; .* `tau` > 0 or another"):
        normalize(changed(0.0 * ONE, (0, 1), top))


def test_normalize_counts_the_pairs_at_a_negative_distance():
    negative = changed(changed(ONE, (0, 1), -0.5), (0, 2), -0.25)
    with pytest.raises(NegativeDistances, match=r"^2 pairs .*lowest -0.5, largest 4\)$"):
        normalize(negative)
    with pytest.raises(NegativeDistances, match="^1 pair has .*lowest -1e-300, largest"):
        normalize(changed(ONE, (1, 2), -1e-300))
    with pytest.raises(NegativeDistances, match=r"^3 pairs .*lowest -4, largest 0\)$"):
        normalize(0.0 - ONE)
    assert normalize(changed(ONE, (0, 1), 0.0))[1] == 4.0


# Ratio bounds


def test_ratio_bounds_are_the_extreme_quotients(form):
    assert ratio_bounds(form(ONE), form(changed(ONE, (0, 1), 0.25))) == (1.0, 4.0)
    assert ratio_bounds(form(ONE[:2, :2]), form(4.0 * ONE[:2, :2])) == (0.25, 0.25)


def test_pairs_at_which_both_are_zero_do_not_count(form):
    one, other = changed(ONE, (0, 1), 0.0), changed(3.0 * ONE, (0, 1), 0.0)
    assert ratio_bounds(form(one), form(other)) == (1 / 3, 1 / 3)
    assert hilbert_distance(one, other) == 0.0
    assert ratio_bounds(form(0.0 * ONE), form(0.0 * ONE)) == (1.0, 1.0)
    assert ratio_bounds(form(ONE[:1, :1]), form(ONE[:1, :1])) == (1.0, 1.0)


def test_a_zero_against_a_positive_number_makes_a_bound_trivial(form):
    holed = changed(ONE, (0, 1), 0.0)
    assert ratio_bounds(form(holed), form(ONE)) == (0.0, 1.0)
    assert ratio_bounds(form(ONE), form(holed)) == (1.0, np.inf)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_bound_nothing(bad, form):
    assert ratio_bounds(form(changed(ONE, (0, 1), bad)), form(ONE)) == (0.0, np.inf)
    assert ratio_bounds(form(ONE), form(changed(ONE, (0, 1), bad))) == (0.0, np.inf)


def test_matrices_of_different_shape_cannot_be_compared():
    with pytest.raises(ValueError, match=r"`image` has shape \(3, 3\) and `origin` \(2, 2\)"):
        ratio_bounds(ONE, ONE[:2, :2])
    with pytest.raises(ValueError, match=r"`image` has shape \(2, 2\) and `origin` \(3, 3\)"):
        ratio_bounds(ONE[:2, :2], ONE)


# The Hilbert metric


@given(same_size, st.floats(1e-6, 1e6))
def test_the_hilbert_distance_is_that_of_its_naive_twin_and_blind_to_scale(costs, scale):
    one, other = costs
    expected = pytest.approx(naive.hilbert_distance(one, other), rel=1e-12, abs=1e-14)
    assert hilbert_distance(one, other) == expected
    assert hilbert_distance(scale * other, one) == expected
    assert hilbert_distance(scale * one, one) <= 1e-15


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_bad_entry_where_the_other_has_none_is_infinitely_far(bad):
    assert hilbert_distance(changed(ONE, (1, 2), bad), ONE) == np.inf
    assert hilbert_distance(ONE, changed(ONE, (1, 2), bad)) == np.inf


def test_zero_against_a_negative_number_is_infinitely_far():
    zero, negative = changed(ONE, (0, 1), 0.0), changed(ONE, (0, 1), -1.0)
    assert hilbert_distance(zero, negative) == hilbert_distance(negative, zero) == np.inf


def test_lists_and_integers_are_read_too():
    assert hilbert_distance([[0, 1], [1, 0]], [[0, 7], [7, 0]]) == 0.0


def test_numbers_far_apart_are_far_apart_without_a_warning():
    assert hilbert_distance(1e300 * ONE, changed(1e-300 * ONE, (0, 1), 1.0)) == np.inf


# Widths


def test_small_widths_keep_their_digits():
    assert log_width((1.0, 1.0 + 2.0**-40)) == 2.0**-40
    assert log_width((2.0, 2.0 * np.e)) == pytest.approx(1.0, rel=1e-15)
    assert log_width((0.5, 0.5)) == 0.0
    assert log_width((1.0, 1.5)) == np.log(1.5)
    assert log_width((1.0, 2.0)) == np.log(2.0)
    assert log_width((4.0, 4.0 + 2.0**-18)) == pytest.approx(np.log1p(2.0**-20), rel=1e-9)
    assert log_width((4.0, 4.0 + 2.0**-26)) == pytest.approx(2.0**-28, rel=1e-8)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (1.0, np.inf), (2.0, 1.0)])
def test_an_interval_without_positive_finite_ends_is_infinitely_wide(bounds):
    assert log_width(bounds) == np.inf


# The boundary


def test_a_distance_below_the_level_touches_the_boundary(form):
    level = BOUNDARY * ONE.max()
    assert level == 4e-13
    inside, below = changed(ONE, (0, 1), level), changed(ONE, (0, 1), np.nextafter(level, 0.0))
    assert not touches_boundary([form(ONE)])
    assert not touches_boundary([form(inside)])
    assert touches_boundary([form(below)])
    assert touches_boundary([form(changed(ONE, (0, 2), 0.0))])


def test_one_of_several_metrics_is_enough_for_the_boundary(form):
    flat = changed(ONE, (1, 2), 0.0)
    assert touches_boundary([form(flat), form(ONE)])
    assert touches_boundary([form(ONE), form(flat)])
    assert not touches_boundary([form(ONE), form(1e-9 * ONE)])  # each by its own largest
