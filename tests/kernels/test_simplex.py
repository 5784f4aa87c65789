"""The network simplex against POT, linear programs, closed forms, and its own duals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linear_sum_assignment

import naive
from audit import ALLOWED, audit_random_pairs, worst
from cometric.kernels import nodes
from cometric.maps.exact_map import ExactMap
from strategies import costs, fewer, histograms, lifts


def random_histograms(n, d, rng, share=1.0):
    """Rows of d bins, each of them filled with probability ``share``, the first one always."""
    masses = rng.exponential(size=(n, d)) * (rng.random((n, d)) < share)
    masses[:, 0] += 0.1
    return masses / masses.sum(axis=1, keepdims=True)


def random_metric(d, rng):
    points = rng.random((d, 3))
    return np.abs(points[:, None] - points[None]).sum(axis=-1)


def random_cost(d, rng):
    """Symmetric with zero diagonal, and hardly any detour longer than the direct way."""
    upper = np.triu(rng.exponential(size=(d, d)) ** 2, 1)
    return upper + upper.T


def kinds_of_trees(phi):
    """What the map remembers of its pairs."""
    return set(phi._all.state.tolist())


# Values


@pytest.mark.parametrize("make_cost", [random_metric, random_cost])
def test_values_agree_with_pot(make_cost):
    rng = np.random.default_rng(1)
    hist, cost = random_histograms(12, 20, rng, share=0.6), make_cost(20, rng)
    assert_allclose(ExactMap(hist)(cost), naive.lift(hist, cost), rtol=1e-13, atol=1e-15)


@fewer(2)
@given(lift=lifts())
def test_values_agree_with_a_linear_program_over_all_cells(lift):
    hist, cost, _ = lift
    value = ExactMap(hist).pairs(cost, [[0, 1]])[0]
    assert value == pytest.approx(naive.transport_cost(*hist[:2], cost), rel=1e-9, abs=1e-8)


@given(cost=st.integers(2, 7).flatmap(costs))
def test_point_masses_are_as_far_apart_as_their_bins(cost):
    assert_array_equal(ExactMap(np.eye(len(cost)))(cost), cost)


@given(data=st.data(), d=st.integers(2, 12))
def test_on_a_line_the_value_is_the_area_between_cumulative_sums(data, d):
    hist = data.draw(histograms(2, d))
    points = np.array(data.draw(st.lists(st.floats(-1.0, 1.0), min_size=d, max_size=d)))
    cost = np.abs(points[:, None] - points[None])
    value = ExactMap(hist).pairs(cost, [[0, 1]])[0]
    assert value == pytest.approx(naive.transport_on_a_line(*hist, points), rel=1e-12, abs=2e-15)


@given(hist=st.integers(2, 9).flatmap(lambda d: histograms(4, d)))
def test_under_the_discrete_metric_the_value_is_half_the_l1_norm(hist):
    distances = ExactMap(hist)(1.0 - np.eye(hist.shape[1]))
    assert_allclose(distances, naive.norms(hist, 1) / 2, rtol=0, atol=1e-15)


@pytest.mark.parametrize("make_cost", [random_metric, random_cost])
@pytest.mark.parametrize("size", [2, 3, 7, 40])
def test_uniform_histograms_on_disjoint_bins_are_an_assignment_problem(make_cost, size):
    rng = np.random.default_rng(size)
    cost = make_cost(2 * size, rng)
    hist = np.kron(np.eye(2), np.ones(size)) / size
    block = cost[:size, size:]
    best = block[linear_sum_assignment(block)].sum() / size
    assert ExactMap(hist).pairs(cost, [[0, 1]])[0] == pytest.approx(best, rel=1e-14)


def test_costs_that_differ_in_their_last_digits_are_distinguished():
    rng = np.random.default_rng(13)
    size, digit = 8, 2.0**-46
    digits = np.triu(rng.integers(0, 10, (2 * size, 2 * size)), 1)
    cost = (1.0 + digit * (digits + digits.T)) * (1.0 - np.eye(2 * size))
    hist = np.kron(np.eye(2), np.ones(size)) / size
    block = digits[:size, size:]
    best = block[linear_sum_assignment(block)].sum()
    value = ExactMap(hist).pairs(cost, [[0, 1]])[0]
    assert (value - 1.0) / digit * size == pytest.approx(best, abs=0.25)


def test_integer_costs_and_uniform_masses_tie_everywhere_and_still_end():
    rng = np.random.default_rng(3)
    upper = np.triu(rng.integers(0, 3, (60, 60)), 1).astype(float)
    cost = upper + upper.T
    hist = np.vstack([np.kron(np.eye(2), np.ones(30) / 30), np.ones(60) / 60])
    assert_allclose(ExactMap(hist)(cost), naive.lift(hist, cost), rtol=1e-14)


@pytest.mark.parametrize("make_cost", [random_metric, random_cost])
def test_equal_histograms_are_at_distance_zero(make_cost):
    rng = np.random.default_rng(4)
    hist = np.repeat(random_histograms(3, 9, rng), 2, axis=0)
    same = np.array([[0, 1], [2, 3], [4, 5], [5, 4], [1, 1]])
    plans = ExactMap(hist).plans(make_cost(9, rng), same)
    assert_array_equal(plans.values, 0.0)
    assert_array_equal(plans.bounds, 0.0)


def test_bins_at_distance_zero_act_as_one():
    rng = np.random.default_rng(5)
    labels = np.array([0, 0, 1, 2, 2, 2, 3])
    small = random_metric(4, rng)
    hist = random_histograms(6, 7, rng)
    merged = hist @ np.eye(4)[labels]
    distances = ExactMap(hist)(small[np.ix_(labels, labels)])
    assert_allclose(distances, ExactMap(merged)(small), rtol=1e-13, atol=1e-16)


def test_a_cost_of_zero_or_of_minus_zero_moves_mass_for_nothing():
    rng = np.random.default_rng(6)
    hist = random_histograms(4, 8, rng)
    for zero in (0.0, -0.0):
        assert_array_equal(ExactMap(hist)(np.full((8, 8), zero)), 0.0)
    cost = np.where(random_cost(8, rng) > 1.0, 3.0, 0.0)
    assert_array_equal(ExactMap(hist)(np.where(cost == 0.0, -0.0, cost)), ExactMap(hist)(cost))


def test_tiny_masses_keep_their_value_to_the_quantum():
    tiny = 10.0 ** -np.arange(1, 13)
    hist = np.vstack([[1.0, 0.0], np.stack([1.0 - tiny, tiny], axis=1)])
    index = np.stack([np.zeros(12, int), np.arange(1, 13)], axis=1)
    values = ExactMap(hist).pairs(1.0 - np.eye(2), index)
    assert_allclose(values, tiny, rtol=0, atol=2.0**-53)


@pytest.mark.parametrize("make_cost", [random_metric, random_cost])
def test_supports_of_more_than_600_bins_agree_with_pot(make_cost):
    rng = np.random.default_rng(7)
    hist = random_histograms(2, 700, rng, share=0.95)
    assert (np.count_nonzero(hist, axis=1) > 600).all()
    cost = make_cost(700, rng)
    value = ExactMap(hist).pairs(cost, [[0, 1]])[0]
    assert value == pytest.approx(naive.emd(*hist, cost), rel=1e-12)


@pytest.mark.parametrize("make_cost", [random_metric, random_cost])
@pytest.mark.parametrize("scale", [1e-305, 1e-290, 1e-30, 1e30, 1e285, 1e300])
def test_the_unit_of_the_cost_does_not_matter(make_cost, scale):
    rng = np.random.default_rng(8)
    hist, cost = random_histograms(4, 8, rng), make_cost(8, rng)
    rtol = 1e-14 if 1e-300 < scale < 1e290 else 1e-12  # near the ends of the float range
    assert_allclose(ExactMap(hist)(scale * cost), scale * ExactMap(hist)(cost), rtol=rtol)


# Pairs


@given(lift=lifts())
def test_the_order_of_a_pair_does_not_matter(lift):
    hist, cost, _ = lift
    phi = ExactMap(hist)
    there, back = phi.pairs(cost, [[0, 1]]), phi.pairs(cost, [[1, 0]])
    assert_allclose(there, back, rtol=1e-14, atol=1e-16 * cost.max())


# Trees that outlive a call


def test_a_tree_of_differences_is_lifted_when_the_triangle_inequality_goes():
    hist = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    metric = 1.0 - np.eye(3)
    shortcut = np.array([[0.0, 1.0, 10.0], [1.0, 0.0, 1.0], [10.0, 1.0, 0.0]])
    phi = ExactMap(hist)
    assert phi(metric)[0, 1] == 0.5
    assert kinds_of_trees(phi) == {nodes.REDUCED_TREE}
    assert phi(shortcut)[0, 1] == 1.0
    assert kinds_of_trees(phi) == {nodes.FULL_TREE}
    assert phi(metric)[0, 1] == 0.5


@given(data=st.data())
def test_a_warm_start_ends_where_a_cold_one_does(data):
    n, d = data.draw(st.integers(2, 5)), data.draw(st.integers(2, 7))
    hist = data.draw(histograms(n, d))
    phi = ExactMap(hist)
    for cost in data.draw(st.lists(costs(d), min_size=2, max_size=5)):
        assert_allclose(phi(cost), ExactMap(hist)(cost), rtol=1e-13, atol=1e-16 * cost.max())


def test_the_same_cost_twice_leaves_every_tree_as_it_was():
    rng = np.random.default_rng(12)
    phi, cost = ExactMap(random_histograms(8, 20, rng)), random_metric(20, rng)
    first = phi(cost)
    trees = phi._all.tree.copy()
    assert kinds_of_trees(phi) == {nodes.REDUCED_TREE}
    assert_array_equal(phi(cost), first)
    assert_array_equal(phi._all.tree, trees)


# Plans, duals and gaps of many random problems


@pytest.mark.parametrize(
    ("count", "seed"), [(3_000, 0), pytest.param(200_000, 1, marks=pytest.mark.slow)]
)
def test_random_pairs_are_solved_to_the_last_digits(count, seed):
    audited = audit_random_pairs(count, seed, naive.emd)
    assert len(audited.values) == count
    assert audited.lightest.min() > 0
    for name, size in worst(audited).items():
        assert size <= ALLOWED[name], name
