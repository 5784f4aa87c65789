"""The exact map: what it answers, what it remembers, what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import naive
from cometric.maps.exact_map import ExactMap
from cometric.maps.exact_pairs import FrozenMap, ReplayedMap
from strategies import costs, fewer, lifts, positive_costs

HIST = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.75, 0.0], [0.1, 0.2, 0.3, 0.4]])
LINE = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
SHORTCUT = np.where(LINE > 1.0, 10.0, LINE)
# W_1 on the line: areas between the cumulative sums (.5, 1, 1), (0, .25, 1), (.1, .3, .6).
ON_THE_LINE = np.array([[0.0, 1.25, 1.5], [1.25, 0.0, 0.55], [1.5, 0.55, 0.0]])


def changed(matrix, where, value):
    matrix = matrix.copy()
    matrix[where] = value
    return matrix


# Answers


def test_all_distances_come_as_a_symmetric_matrix_with_zero_diagonal():
    found = ExactMap(HIST)(LINE)
    assert_allclose(found, ON_THE_LINE, rtol=1e-15)
    assert_array_equal(found, found.T)
    assert_array_equal(np.diagonal(found), 0.0)


def test_some_distances_come_in_the_order_asked_for():
    phi, index = ExactMap(HIST), np.array([[2, 1], [0, 1], [1, 1], [2, 0]], dtype=np.int32)
    assert_allclose(phi.pairs(LINE, index), [0.55, 1.25, 0.0, 1.5], rtol=1e-15)
    assert phi.pairs(LINE, index[:0]).shape == (0,)


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_array, sparse.coo_matrix])
def test_sparse_histograms_give_what_dense_ones_give_and_are_left_alone(form):
    hist = form(HIST)
    assert_array_equal(ExactMap(hist)(LINE), ExactMap(HIST)(LINE))
    assert_array_equal(hist.toarray(), HIST)


def test_it_has_a_shape_and_a_repr():
    phi = ExactMap(HIST)
    assert phi.shape == (3, 4)
    assert repr(phi) == "ExactMap(3 histograms on 4 bins, 2.7 used by each)"


# Plans and bounds


def test_a_plan_lists_where_mass_goes_and_what_stays():
    plans = ExactMap(HIST).plans(LINE, [[0, 1], [0, 0]])
    assert_allclose(plans.values, [1.25, 0.0])
    assert_allclose(plans.bounds, [1.25, 0.0])
    part = slice(plans.start[0], plans.start[1])
    plan = np.zeros((4, 4))
    plan[plans.source[part], plans.target[part]] = plans.mass[part]
    assert_allclose(plan.sum(axis=1), HIST[0], atol=1e-16)
    assert_allclose(plan.sum(axis=0), HIST[1], atol=1e-16)
    assert (plan * LINE).sum() == pytest.approx(1.25, rel=1e-15)
    assert len(plans.f[0]) == len(plans.g[0]) == 2


@fewer(2)
@given(lift=lifts())
def test_duals_cost_no_more_than_any_move_and_add_up_to_the_bound(lift):
    hist, cost, _ = lift
    plans = ExactMap(hist).plans(cost, [[0, 1]])
    rows, columns = np.flatnonzero(hist[0]), np.flatnonzero(hist[1])
    f, g = plans.f[0], plans.g[0]
    assert (f[:, None] + g <= cost[np.ix_(rows, columns)] + 1e-15 * cost.max()).all()
    bound = hist[0, rows] @ f + hist[1, columns] @ g
    assert_allclose(bound, plans.bounds[0], rtol=0, atol=4e-15 * cost.max())
    assert_allclose(plans.values, plans.bounds, rtol=1e-12, atol=1e-15 * cost.max())


@fewer(2)
@given(lift=lifts())
def test_lower_and_upper_bounds_enclose_the_oracle(lift):
    hist, cost, _ = lift
    lower, upper = ExactMap(hist).bounds(cost)
    above = np.triu_indices(len(hist), 1)
    true, rounding = naive.lift(hist, cost)[above], 1e-15 * cost.max()
    assert (lower <= upper).all()
    assert (lower <= true + rounding).all()
    assert (true <= upper + rounding).all()
    assert_allclose(lower, upper, rtol=1e-12, atol=rounding)


# Frozen couplings


@fewer(2)
@given(lift=lifts())
def test_frozen_at_a_cost_it_agrees_there(lift):
    hist, cost, _ = lift
    phi = ExactMap(hist)
    frozen = phi.freeze(cost)
    assert isinstance(frozen, FrozenMap)
    assert_allclose(frozen(cost), phi(cost), rtol=1e-14, atol=1e-16 * cost.max())


@fewer(2)
@given(data=st.data(), lift=lifts())
def test_frozen_couplings_are_never_cheaper_than_the_best(data, lift):
    hist, cost, _ = lift
    other = data.draw(costs(len(cost)))
    frozen = ExactMap(hist).freeze(cost)(other)
    assert (frozen >= ExactMap(hist)(other) - 1e-15 * other.max()).all()


@fewer(2)
@given(data=st.data(), lift=lifts())
def test_frozen_couplings_are_linear_in_the_cost(data, lift):
    hist, cost, rise = lift
    frozen = ExactMap(hist).freeze(cost)
    scale = data.draw(st.floats(0.0, 10.0))
    whole, parts = frozen(cost + scale * rise), frozen(cost) + scale * frozen(rise)
    assert_allclose(whole, parts, rtol=1e-13, atol=1e-15)


def test_frozen_couplings_outlive_later_calls():
    phi = ExactMap(HIST)
    frozen = phi.freeze(LINE)
    before = frozen(SHORTCUT)
    phi(SHORTCUT)
    phi.freeze(1.0 - np.eye(4))
    assert_array_equal(frozen(SHORTCUT), before)


def test_a_frozen_map_gives_pairs_and_has_a_repr():
    frozen = ExactMap(HIST).freeze(LINE)
    assert_allclose(frozen.pairs(LINE, [[2, 0], [1, 1]]), [1.5, 0.0], rtol=1e-15)
    assert frozen.shape == (3, 4)
    assert repr(frozen).startswith("FrozenMap(3 histograms on 4 bins, ")


def test_freezing_at_a_cost_without_triangle_inequality_keeps_the_detour():
    hist = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    cost = np.array([[0.0, 1.0, 10.0], [1.0, 0.0, 1.0], [10.0, 1.0, 0.0]])
    assert ExactMap(hist).freeze(cost)(cost)[0, 1] == 1.0


# Memory


def limits(phi):
    """Memory limits under which couplings are replayed, and under which not even trees fit."""
    return phi.memory.trees + 1, phi.memory.trees - 1


@fewer(2)
@given(lift=lifts(cost=positive_costs))
def test_replayed_couplings_agree_with_written_ones(lift):
    hist, cost, rise = lift
    replay, _ = limits(ExactMap(hist))
    written, replayed = (ExactMap(hist, memory_limit=limit).freeze(cost) for limit in (1e9, replay))
    assert isinstance(replayed, ReplayedMap)
    assert repr(replayed).startswith("ReplayedMap(")
    assert_allclose(replayed(cost + rise), written(cost + rise), rtol=1e-13, atol=1e-15)
    assert_allclose(replayed.pairs(cost, [[0, 1]]), written.pairs(cost, [[0, 1]]), rtol=1e-13)


def test_without_room_for_trees_the_answers_are_the_same():
    _, none = limits(ExactMap(HIST))
    phi = ExactMap(HIST, memory_limit=none)
    assert not phi.keeps_trees
    for cost in (LINE, SHORTCUT, LINE):
        assert_allclose(phi(cost), ExactMap(HIST)(cost), rtol=1e-15)
    for mine, theirs in zip(phi.bounds(SHORTCUT), ExactMap(HIST).bounds(SHORTCUT), strict=True):
        assert_array_equal(mine, theirs)


def test_without_room_for_trees_nothing_can_be_frozen_or_sketched():
    _, none = limits(ExactMap(HIST))
    phi = ExactMap(HIST, memory_limit=none)
    with pytest.raises(MemoryError, match="couplings need .* Raise `memory_limit`, or pass solver"):
        phi.freeze(LINE)
    assert phi.sketch(LINE) is None


# Progress


def test_progress_is_shown_after_each_block(monkeypatch):
    monkeypatch.setattr("cometric.maps.exact_pairs.CELLS_PER_BLOCK", 20.0)
    rng = np.random.default_rng(0)
    hist, told = rng.dirichlet(np.ones(4), 6), []
    phi = ExactMap(hist)
    phi.on_progress = lambda done, total: told.append((done, total))
    found = phi(LINE)
    done, total = zip(*told, strict=True)
    assert set(total) == {15}
    assert done[-1] == 15
    assert len(done) > 5
    assert (np.diff(done) > 0).all()
    assert_array_equal(found, ExactMap(hist)(LINE))


# Refusals


@pytest.mark.parametrize(
    ("hist", "words"),
    [
        (HIST[:1], "`hist` has 1 rows; need at least 2 histograms"),
        (HIST[0], "`hist` has 1 dimensions; pass histograms as rows"),
        (changed(HIST, (1, 1), -0.25), "`hist` has negative or non-finite entries"),
        (changed(HIST, (1, 1), np.nan), "`hist` has negative or non-finite entries"),
        (changed(HIST, (1, 1), np.inf), "`hist` has negative or non-finite entries"),
        (changed(HIST, (1, 1), 0.5), r"1 rows that do not sum to 1 \(first: row 1, sum 1.25\)"),
        (changed(HIST, 2, 0.0), r"1 rows without mass \(first: row 2\). Drop them"),
    ],
)
def test_what_is_no_histogram_is_refused(hist, words):
    with pytest.raises(ValueError, match=words):
        ExactMap(hist)


def test_histograms_whose_indices_lead_outside_are_refused():
    hist = sparse.csr_array(HIST)
    hist.indices[0] = 99
    with pytest.raises(
        ValueError, match="`hist` is not a valid sparse matrix: .*(indices|index values) must be <"
    ):
        ExactMap(hist)


BAD_COSTS = [
    (LINE[:3, :3], r"`cost` has shape \(3, 3\); the histograms have 4 bins"),
    (changed(LINE, (0, 1), -1.0), "`cost` has negative or non-finite entries"),
    (changed(LINE, (0, 1), np.nan), "`cost` has negative or non-finite entries"),
    (changed(LINE, (0, 1), np.inf), "`cost` has negative or non-finite entries"),
    (LINE + np.eye(4), "`cost` has a non-zero diagonal; a bin is at distance 0 from itself"),
    (LINE * 1j, "`cost` is sparse or complex; pass a dense matrix"),
    (sparse.csr_array(LINE), "`cost` is sparse or complex; pass a dense matrix"),
    (changed(LINE, (0, 1), 2.0), r"`cost` is not symmetric; pass \(cost \+ cost.T\) / 2"),
]


@pytest.mark.parametrize(("cost", "words"), BAD_COSTS)
@pytest.mark.parametrize(
    "use",
    [
        lambda phi, cost: phi(cost),
        lambda phi, cost: phi.pairs(cost, [[0, 1]]),
        lambda phi, cost: phi.plans(cost, [[0, 1]]),
        lambda phi, cost: phi.freeze(cost),
        lambda phi, cost: phi.bounds(cost),
        lambda phi, cost: phi.freeze(LINE)(cost),
    ],
    ids=["call", "pairs", "plans", "freeze", "bounds", "frozen"],
)
def test_what_is_no_cost_is_refused(use, cost, words):
    with pytest.raises(ValueError, match=words):
        use(ExactMap(HIST), cost)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([0, 1], r"`index` must be an integer array of shape \(p, 2\)"),
        ([[0, 1, 2]], r"`index` must be an integer array of shape \(p, 2\)"),
        ([[0.0, 1.0]], r"`index` must be an integer array of shape \(p, 2\)"),
        ([[0, 3]], "`index` has entries outside 0 .. 2"),
        ([[-1, 0]], "`index` has entries outside 0 .. 2"),
    ],
)
def test_what_is_no_pair_is_refused(index, words):
    phi = ExactMap(HIST)
    for use in (phi.pairs, phi.plans, phi.freeze(LINE).pairs):
        with pytest.raises(ValueError, match=words):
            use(LINE, index)


def test_rounding_in_sums_and_in_symmetry_is_forgiven():
    cost = changed(LINE, (0, 1), 1.0 + 1e-13)
    assert_allclose(ExactMap(HIST * (1 + 1e-9))(cost), ON_THE_LINE, rtol=1e-12)


@fewer(2)
@given(lift=lifts())
def test_masses_are_integers_that_add_up_exactly(lift):
    phi = ExactMap(lift[0])
    rows = np.split(phi._integer.mass, phi._integer.indptr[1:-1])
    assert [sum(row.tolist()) for row in rows] == [2**62] * len(rows)
    assert phi._integer.mass.min() > 0


def test_couplings_need_a_solve_first():
    with pytest.raises(ValueError, match="no couplings are stored yet; call `freeze` first"):
        ExactMap(np.eye(3)).couplings()


def test_a_light_bin_far_away_does_not_blur_the_proof_for_heavy_ones():
    hist = np.array([[6e-11, 1.0, 0.0], [0.0, 1.0, 4e-7]])
    hist /= hist.sum(axis=1, keepdims=True)
    for far in np.linspace(1.0, 2.0, 50):
        cost = np.array([[0.0, far, far + 2.0], [far, 0.0, 0.133], [far + 2.0, 0.133, 0.0]])
        plans = ExactMap(hist).plans(cost, np.array([[0, 1]]))
        assert plans.values - plans.bounds <= 1e-14 * plans.values


# Sketches and counts


@given(lift=lifts())
def test_sketched_plans_cost_at_least_as_much_as_optimal_ones(lift):
    hist, cost, _ = lift
    phi = ExactMap(hist)
    sketch = phi.sketch(cost)
    assert phi.bases is None  # nothing is stored
    assert (sketch(cost) >= phi(cost) * (1 - 1e-12) - 1e-12).all()


def test_sketched_plans_are_near_optimal_ones():
    rng = np.random.default_rng(1)
    hist = rng.gamma(0.5, size=(12, 30))
    points = rng.random((30, 4))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    phi = ExactMap(hist / hist.sum(axis=1, keepdims=True))
    sketched, exact = phi.sketch(cost), phi(cost)
    above = np.triu_indices(12, 1)
    assert sketched(cost)[above].sum() < 1.1 * exact[above].sum()
    assert phi.sketch(cost) is None  # stored trees are better


@pytest.mark.parametrize("cost", [LINE, SHORTCUT])
def test_moves_counted_while_solving_are_those_of_the_trees(cost):
    phi = ExactMap(HIST)
    phi(cost)
    batch = phi._all
    counted = batch.moves(full=False)
    batch.moves_of = None
    for array, again in zip(counted, batch.moves(full=False), strict=True):
        assert_array_equal(array, again)
