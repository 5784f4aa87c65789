"""Unbalanced divergences: naive twin, POT, limits, laws, masses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import naive
from cometric import EntropicMap, Unbalanced
from cometric.core.histograms import Histograms
from cometric.core.types import Accuracy
from cometric.transports.base import Resources

ABOVE = np.triu_indices(6, 1)
SETTINGS = [(0.1, 1.0), (0.3, 0.05), (0.05, 0.5), (1.0, 1e-3), (0.005, 0.02), (0.2, 5.0)]


MASSES = np.array([[1.0], [0.2], [3.0], [1.0], [0.5], [7.0]])


@pytest.mark.parametrize(("eps", "rho"), SETTINGS)
@pytest.mark.parametrize("masses", [1.0, MASSES], ids=["mass 1", "other masses"])
def test_it_is_the_naive_divergence(lift, eps, rho, masses):
    hist, cost = lift[0] * masses, lift[1]
    phi = EntropicMap(hist, eps, rho=rho)
    expected = naive.unbalanced_divergences(hist, cost, eps, rho)
    assert_allclose(phi(cost), expected, atol=1e-11 * max(1.0, expected.max()))
    assert phi.error <= 1e-10
    assert phi.logs == (eps < 1 / 150)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("masses", [False, True])
def test_it_agrees_with_pot(seed, masses):
    pytest.importorskip("ot")
    rng = np.random.default_rng(seed)
    a, b = hist = rng.dirichlet(np.ones(7), size=2) * (rng.uniform(0.1, 5, (2, 1)) if masses else 1)
    cost = np.triu(rng.random((7, 7)), 1)
    cost += cost.T
    eps, rho = rng.choice([0.1, 0.5]), rng.choice([0.1, 2.0])
    phi = EntropicMap(hist, eps, rho=rho)
    linear, whole = naive.pot_unbalanced(a, b, cost, eps, rho)
    own = [naive.pot_unbalanced(x, x, cost, eps, rho)[1] for x in hist]
    gap = eps * cost.max() * (a.sum() - b.sum()) ** 2
    assert_allclose(phi(cost)[0, 1], whole - 0.5 * sum(own) + 0.5 * gap, atol=1e-11)
    assert_allclose(np.sum(phi.plan(cost, 0, 1)[2] * cost), linear, atol=1e-9)


@pytest.mark.parametrize("eps", [0.004, 0.1, 1.0])
def test_large_rho_is_balanced_transport(lift, eps):
    hist, cost = lift
    truth = EntropicMap(hist, eps)(cost)
    assert_allclose(EntropicMap(hist, eps, rho=1e6)(cost), truth, atol=1e-5 * truth.max())


def test_small_rho_is_half_the_squared_distance_of_the_kernel(lift):
    hist, cost = lift
    unit = 0.3 * cost.max()
    kernel = np.exp(-cost / unit)
    gaps = hist[:, None] - hist
    expected = 0.5 * unit * np.einsum("ijk,kl,ijl->ij", gaps, kernel, gaps)
    assert_allclose(EntropicMap(hist, 0.3, rho=1e-7)(cost), expected, atol=1e-5)


def test_the_value_of_one_sweep_is_right_to_second_order(lift):
    hist, cost = lift
    truth = EntropicMap(hist, 0.2, rho=1.0, tol=1e-13)(cost)
    errors, gaps = [], []
    for change in (1e-2, 1e-3):
        phi = EntropicMap(hist, 0.2, rho=1.0, tol=1e-13)
        phi(cost * (1 + change * np.sin(cost)))
        gaps.append(np.abs(phi(cost, Accuracy(sweeps=1, tol=1e-13)) - truth).max())
        errors.append(phi.error)
    assert errors[1] > 1e-6  # not solved, but nearly right
    assert 30 < gaps[0] / gaps[1] < 300
    assert gaps[1] < 1e-6


def test_every_sweep_raises_the_dual_value(lift):
    hist, cost = lift
    phi = EntropicMap(hist, 0.05, rho=0.5, sweeps=1)
    values = []
    for _ in range(6):
        own, _ = phi._self_terms(phi._kernel(cost, 0.05 * cost.max()), None)
        halves = 0.5 * own[phi._rank]
        values.append((phi(cost) / (0.05 * cost.max()) + halves + halves[:, None])[ABOVE])
    assert (np.diff(values, axis=0) >= -1e-12).all()


def test_large_rho_takes_no_more_sweeps_than_balanced_transport(lift):
    """Without the constant of the potentials, some rho / eps sweeps would be needed."""
    hist, cost = lift
    for rho in (None, 1.0, 1e3):
        phi = EntropicMap(hist, 0.2, rho=rho, max_sweeps=80)
        phi(cost)
        assert phi.error <= 1e-10


def test_kernels_that_are_positive_definite_give_positive_divergences(lift):
    hist, cost = lift  # exp(-l1) is positive definite
    divergences = EntropicMap(hist * MASSES, 0.1, rho=0.3)(cost)
    assert (divergences[ABOVE] > 0).all()
    assert divergences.max() <= (0.1 * np.max(MASSES) ** 2 + 0.6 * MASSES.max()) * cost.max()


def test_no_plan_has_more_mass_than_its_histograms(lift):
    hist, cost = lift
    masses = []
    for rho in (0.01, 0.1, 1.0, 100.0):
        rows, columns, plan = EntropicMap(hist, 0.1, rho=rho).plan(cost, 0, 1)
        full = np.zeros_like(cost)
        full[np.ix_(rows, columns)] = plan
        assert_allclose(full, naive.unbalanced_plan(*hist[:2], cost, 0.1, rho, 20_000), atol=1e-8)
        masses.append(plan.sum())
    assert np.all(np.diff(masses) > 0)
    assert masses[0] < 0.5
    assert 0.95 < masses[-1] < 1.0


def test_bins_at_distance_zero_may_be_merged(lift):
    hist, cost = lift
    twice = np.repeat(hist, 2, axis=1) * np.tile([0.3, 0.7], 9)
    apart = EntropicMap(twice, 0.1, rho=0.5)(np.repeat(np.repeat(cost, 2, axis=0), 2, axis=1))
    assert_allclose(apart, EntropicMap(hist, 0.1, rho=0.5)(cost), atol=1e-10)


def test_masses_far_apart_are_solved_in_the_log_domain(lift):
    hist, cost = lift
    heavy = hist * np.array([[1.0], [1e3], [1.0], [1.0], [1e-3], [1.0]])
    phi = EntropicMap(heavy, 0.01, rho=10.0)  # potentials of 500 log(1e6)
    distances = phi(cost)
    assert phi.logs
    assert not EntropicMap(hist, 0.01, rho=10.0).logs
    assert np.isfinite(distances).all()
    low, high = phi.bounds(cost)
    assert (low <= distances[ABOVE] + 1e-9 * high).all()
    assert (distances[ABOVE] <= high + 1e-9 * high).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_threads_and_memory_do_not_change_a_bit(lift, dtype):
    hist, cost = lift
    one, three = (EntropicMap(hist, 0.2, rho=1.0, dtype=dtype, n_threads=k) for k in (1, 3))
    assert_array_equal(one(cost), three(cost))
    snapshot = {k: np.copy(v) for k, v in one.snapshot().items()}
    once = one.accuracy._replace(sweeps=1)
    three.restore(snapshot)
    assert_array_equal(one(1.1 * cost + cost**2, once), three(1.1 * cost + cost**2, once))


def test_single_precision_keeps_six_digits(lift):
    hist, cost = lift
    exact = EntropicMap(hist, 0.2, rho=1.0)(cost)
    rough = EntropicMap(hist, 0.2, rho=1.0, dtype="float32")(cost)
    assert 0 < np.abs(rough - exact).max() < 1e-5 * exact.max()


@pytest.mark.parametrize("eps", [0.05, 0.3])
@pytest.mark.parametrize("rho", [0.05, 1.0, 100.0])
def test_lower_bounds_hold(lift, eps, rho):
    hist, cost = lift
    transport, rows = Unbalanced(eps, rho=rho), sparse.csr_array(hist)
    phi = transport.lift(Histograms(rows), Resources())
    p, q, means, image = transport.lower_bounds(phi, rows, cost)
    bounds = p[:, None] + q - image(slice(0, 6)) @ hist.T
    distances = phi(cost)
    assert (bounds <= distances + 1e-10).all()
    assert_allclose(np.diagonal(bounds), 0.0, atol=1e-10)
    assert bounds.max() > 0.2 * distances.max()
    assert means.shape == (6, 0)


@pytest.mark.parametrize("rho", [0.0, -1.0, np.inf, np.nan, "1"])
def test_rho_must_be_positive_and_finite(lift, rho):
    with pytest.raises(ValueError, match=r"`rho` is .*positive and finite.*Entropic\(eps\)"):
        EntropicMap(lift[0], 0.1, rho=rho)


def test_masses_must_be_positive(lift):
    hist = lift[0].copy()
    hist[2] = 0.0
    with pytest.raises(ValueError, match=r"1 rows without mass \(first: row 2\). Drop them"):
        EntropicMap(hist, 0.1, rho=1.0)
    with pytest.raises(ValueError, match="do not sum to 1"):
        EntropicMap(2 * lift[0], 0.1)


def test_mass_that_is_too_far_is_left():
    """Less of it moves than rounding leaves of the masses."""
    apart = 1.0 - np.eye(2)
    phi = EntropicMap(np.eye(2), 0.01, rho=2.0**-6)
    expected = naive.unbalanced_divergences(np.eye(2), apart, 0.01, 2.0**-6)
    assert not phi.logs
    assert_allclose(phi(apart), expected, rtol=1e-12)
    assert expected[0, 1] == pytest.approx(2 * 2.0**-6 + 0.01)
    low, high = phi.bounds(apart)
    assert low <= expected[0, 1] <= high
