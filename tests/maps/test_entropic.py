"""The entropic map: its naive twin, its limits, its memory, its bounds."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import fifty_digits
import naive
from cometric import EntropicMap, ExactMap, LimitMap
from cometric.core.types import Accuracy

ABOVE = np.triu_indices(6, 1)


@pytest.mark.parametrize("eps", [0.2, 1.0, 30.0])
def test_it_is_the_naive_divergence(lift, eps):
    hist, cost = lift
    phi = EntropicMap(hist, eps, tol=1e-13)
    assert_allclose(phi(cost), naive.sinkhorn_divergences(hist, cost, eps), atol=1e-9)
    assert phi.error <= 1e-13


def test_small_eps_uses_the_log_domain_and_agrees(lift):
    hist, cost = lift
    scaling, logs = EntropicMap(hist, 0.02, tol=1e-12), EntropicMap(hist, 0.02, tol=1e-12)
    logs.logs = True
    logs._self_scalings[:] = 0.0
    assert_allclose(scaling(cost), logs(cost), atol=1e-11)
    assert EntropicMap(hist, 1e-4).logs
    assert not scaling.logs


@pytest.mark.parametrize("eps", [1e-4, 1e-3])
def test_no_eps_gives_nan(lift, eps):
    hist, cost = lift
    phi = EntropicMap(hist, eps, sweeps=50)
    assert np.isfinite(phi(cost)).all()


def test_it_tends_to_exact_transport_linearly(lift):
    hist, cost = lift
    exact = ExactMap(hist)(cost)[ABOVE]
    eps = np.array([0.04, 0.02, 0.01])
    errors = [
        np.abs(EntropicMap(hist, e, tol=1e-7, max_sweeps=20_000)(cost)[ABOVE] - exact).max()
        for e in eps
    ]
    slope = np.polyfit(np.log(eps), np.log(errors), 1)[0]
    assert 0.7 < slope < 1.3


def test_it_tends_to_the_limit_map_linearly(lift):
    hist, cost = lift
    limit = LimitMap(hist)(cost)
    eps = np.array([30.0, 100.0, 300.0])
    errors = [np.abs(EntropicMap(hist, e, tol=1e-14)(cost) - limit).max() for e in eps]
    slope = np.polyfit(np.log(eps), np.log(errors), 1)[0]
    assert -1.05 < slope < -0.95
    assert (errors <= cost.max() / (8 * eps) + 1e-12).all()


@pytest.mark.parametrize("rho", [None, 1.0])
def test_one_sweep_after_a_small_change_is_worth_a_full_solve(lift, rho):
    hist, cost = lift
    rng = np.random.default_rng(1)
    noise = np.triu(rng.uniform(-1, 1, cost.shape), 1)
    gaps = []
    for size in (1e-2, 1e-3):
        changed = cost * (1 + size * (noise + noise.T))
        phi, full = (EntropicMap(hist, 0.2, rho=rho, tol=1e-13) for _ in range(2))
        phi(cost)
        gaps.append(np.abs(phi(changed, Accuracy(sweeps=1)) - full(changed)).max())
        assert phi.error > 1e-6  # not solved, but nearly right
    assert gaps[0] < 1e-4
    assert gaps[1] < 1e-6
    assert 50 < gaps[0] / gaps[1] < 200  # second order in the change


def test_pairs_agree_with_the_whole_map_in_any_order(lift):
    hist, cost = lift
    D = EntropicMap(hist, 0.1, tol=1e-12)(cost)
    index = np.array([[3, 1], [0, 5], [2, 2], [5, 0], [1, 3]])
    assert_allclose(
        EntropicMap(hist, 0.1, tol=1e-12).pairs(cost, index), D[tuple(index.T)], atol=1e-10
    )


@pytest.mark.parametrize("eps", [1e-3, 0.1])
def test_under_one_cost_self_terms_are_computed_once(lift, eps, monkeypatch):
    hist, cost = lift
    index = np.array([[3, 1], [0, 5], [2, 2]])
    expected = EntropicMap(hist, eps, tol=1e-9).pairs(cost, index)
    calls, self_terms = [], EntropicMap._self_terms

    def counted(*args, **options):
        calls.append(1)
        return self_terms(*args, **options)

    monkeypatch.setattr(EntropicMap, "_self_terms", counted)
    pairs = EntropicMap(hist, eps, tol=1e-9).under(cost)
    assert_array_equal(pairs(index), expected)
    assert_array_equal(pairs(index[:1]), expected[:1])
    assert len(calls) == 1


@pytest.mark.parametrize("rho", [None, 1.0])
def test_single_precision_keeps_six_digits(lift, rho):
    hist, cost = lift
    exact = EntropicMap(hist, 0.1, rho=rho)(cost)
    rough = EntropicMap(hist, 0.1, rho=rho, dtype=np.float32, tol=1e-6)(cost)
    assert 0 < np.abs(rough - exact).max() < 2e-6 * cost.max()


@pytest.mark.parametrize(("size", "stored"), [(8, np.float64), (4, np.float32), (0, None)])
def test_scalings_that_do_not_fit_are_rounded_or_not_stored(lift, size, stored):
    hist, cost = lift
    whole = EntropicMap(hist, 0.2, tol=1e-12)
    layout = 15 * 12  # bytes of the targets and offsets of all pairs
    limit = layout + size * whole.scalings
    phi = EntropicMap(hist, 0.2, memory_limit=limit, tol=1e-12)
    assert phi.stored == stored
    assert phi.memory_used == limit
    for _ in range(2):
        assert_allclose(phi(cost), whole(cost), atol=1e-6 if size == 4 else 1e-10)


@pytest.mark.parametrize("eps", [0.03, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("sweeps", [1, 5, None])
def test_the_bounds_contain_the_truth_however_few_sweeps(lift, eps, sweeps):
    hist, cost = lift
    truth = EntropicMap(hist, eps, tol=1e-12, max_sweeps=50_000)(cost)[ABOVE]
    low, high = EntropicMap(hist, eps, sweeps=sweeps).bounds(cost)
    assert (low <= truth + 1e-12).all()
    assert (truth <= high + 1e-12).all()
    if sweeps is None:
        assert (high - low).max() < 1e-7


def two_bins(seed):
    """Two histograms of two bins each among five, a cost, an eps between 1e-4 and 1e3."""
    rng = np.random.default_rng(seed)
    bins = [rng.choice(5, 2, replace=False) for _ in range(2)]
    mass = rng.dirichlet(np.ones(2), size=2)
    points = rng.random((5, 2))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    return bins, mass, cost, 10 ** rng.uniform(-4, 3)


@pytest.mark.parametrize("seeds", [range(300), pytest.param(range(8000), marks=pytest.mark.slow)])
def test_bounds_contain_the_closed_form_of_two_bins(seeds):
    for seed in seeds:
        bins, mass, cost, eps = two_bins(seed)
        hist = np.zeros((2, 5))
        for row, where, what in zip(hist, bins, mass, strict=True):
            row[where] = what

        def closed_form(i, j, bins=bins, mass=mass, cost=cost, eps=eps):
            part = cost[np.ix_(bins[i], bins[j])]
            return naive.two_bin_cost(mass[i], mass[j], part, eps * cost.max())

        truth = closed_form(0, 1) - 0.5 * (closed_form(0, 0) + closed_form(1, 1))
        (low,), (high,) = EntropicMap(hist, eps).bounds(cost, np.array([[0, 1]]))
        slack = 1e-15 * cost.max() * (1 + eps)  # the last digits of the truth
        assert low - slack <= truth <= high + slack, seed


@pytest.mark.parametrize("sweeps", [1, None])
def test_bounds_contain_the_truth_to_fifty_digits(sweeps):
    for seed in range(20):
        hist, cost, eps = fifty_digits.random_case(seed)
        (low,), (high,) = EntropicMap(hist, eps, sweeps=sweeps).bounds(cost, np.array([[0, 1]]))
        assert low <= fifty_digits.divergence(*hist, cost, eps) <= high, seed


def test_without_a_cost_nothing_is_apart(lift):
    hist, cost = lift
    phi = EntropicMap(hist, 0.1)
    assert_array_equal(phi.bounds(0 * cost), 0.0)
    assert_array_equal(phi.under(0.0 * cost)(np.array([[0, 1]])), [0.0])


@pytest.mark.parametrize("eps", [0.0, -1.0, np.inf, np.nan, "0.1", None])
def test_eps_must_be_positive_and_finite(lift, eps):
    with pytest.raises(ValueError, match="it must be positive and finite. Use ExactMap"):
        EntropicMap(lift[0], eps)


@pytest.mark.parametrize(
    ("hist", "zeros"),
    [
        ([[2.5e-1, 1e-9], [1e-9, 1e-12]], 0),
        ([[8e-12, 8e-12, 8e-12, 1.0], [1e-12, 1.0, 1e-12, 1e-12]], 3),
    ],
)
def test_rounding_does_not_turn_an_interval_around(hist, zeros):
    hist = np.array(hist)
    cost = 1.0 - np.eye(hist.shape[1])
    cost[len(cost) - zeros :, len(cost) - zeros :] = 0.0
    phi = EntropicMap(hist / hist.sum(axis=1, keepdims=True), 1e-3, tol=1e-12, max_sweeps=2_000)
    low, high = phi.bounds(cost)
    assert low < high


@pytest.mark.parametrize("eps", [0.03, 0.1])
def test_a_rough_tolerance_alone_makes_no_divergence_negative(eps):
    for seed in (16, 54, 88, 102):
        for d in (4, 12):
            rng = np.random.default_rng(seed)
            hist = rng.dirichlet(np.full(d, 0.3), 8)
            hist[4:] = hist[:4] * (1.0 + 0.1 * rng.random((4, d)))
            hist /= hist.sum(axis=1, keepdims=True)
            cost = np.triu(rng.random((d, d)) ** 3, 1)
            cost += cost.T
            solved = EntropicMap(hist, eps)(cost)
            rough = EntropicMap(hist, eps, tol=1e-2)(cost)
            assert (rough[solved >= 0.0] >= 0.0).all()


@pytest.mark.parametrize("rho", [None, 1.0, 1e-3])
@pytest.mark.parametrize("tiny", [1e-150, 1e-200, 1e-300, 5e-324])
def test_masses_whose_products_underflow_count_as_nothing(tiny, rho):
    hist = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [0.6, 0.0, 0.0, 0.4]])
    cost = np.array([[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]], float)
    bare = EntropicMap(hist, 0.1, rho=rho)
    full = EntropicMap(np.maximum(hist, tiny), 0.1, rho=rho)
    assert_allclose(full(cost), bare(cost), rtol=1e-6)
