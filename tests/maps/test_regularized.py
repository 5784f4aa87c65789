"""The tau term: norms by name, by power, by matrix, and what it adds to a map."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import naive
from cometric.core.formula import Formula
from cometric.maps.exact_map import ExactMap
from cometric.maps.norms import norm_matrix, norm_name
from cometric.maps.regularized import Regularized
from strategies import fewer, histograms, lifts

HIST = sparse.csr_array([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75], [0.2, 0.3, 0.5]])
COST = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]])
NORMS = {"l1": 1, "l2": 2, "linf": np.inf, 1: 1, 2.5: 2.5, 3: 3, "discrete": "discrete"}


# Norms


@pytest.mark.parametrize(("norm", "p"), NORMS.items())
@fewer(2)
@given(hist=histograms(4, 5))
def test_every_norm_agrees_with_its_definition(norm, p, hist):
    found = norm_matrix(sparse.csr_array(hist), norm)
    # Rows sum to 1 up to rounding, integer masses exactly.
    assert_allclose(found, naive.norms(hist, p), rtol=1e-13, atol=2e-15)


def test_a_matrix_is_taken_as_it_is():
    given_matrix = np.array([[0, 1, 2], [1, 0, 3], [2, 3, 0]])
    found = norm_matrix(HIST, given_matrix)
    assert_array_equal(found, given_matrix)
    assert found.dtype == np.float64


@pytest.mark.parametrize(
    ("norm", "name"),
    [
        ("l1", "l1"),
        ("linf", "linf"),
        (1, "l1"),
        (2.5, "l2.5"),
        (2.123456789, "l2.123456789"),  # in full: what is proved later is proved of this norm
        (np.inf, "linf"),
        ("discrete", "discrete"),
        ((1.0 - np.eye(3), 1.0 - np.eye(4)), "matrix"),
    ],
)
def test_every_norm_has_a_name(norm, name):
    assert norm_name(norm) == name


@pytest.mark.parametrize("power", [400.0, 1e4, 1e9])
def test_high_powers_are_close_to_the_largest_difference(power):
    largest = norm_matrix(HIST, "linf")
    assert_allclose(norm_matrix(HIST, power), largest, rtol=1.2 / power)


def test_high_powers_of_small_differences_are_no_zeros():
    hist = sparse.csr_array([[1.0, 0.0], [1.0 - 1e-9, 1e-9]])
    assert_allclose(norm_matrix(hist, 50.0)[0, 1], 1e-9 * 2 ** (1 / 50), rtol=1e-6)


# The regularized map


def test_the_term_is_tau_times_the_largest_cost_times_the_norm():
    exact, R = ExactMap(HIST), norm_matrix(HIST, "l2")
    phi = Regularized(exact, Formula(0.1), R)
    assert_allclose(phi(COST), exact(COST) + 0.3 * R, rtol=1e-15)
    assert_allclose(phi.pairs(COST, np.array([[2, 0]])), phi(COST)[2, 0], rtol=1e-15)
    assert phi.shape == (3, 3)
    assert repr(phi) == "ExactMap(3 histograms on 3 bins, 2.3 used by each) + 0.1 |C| R"


@pytest.mark.parametrize(("norm", "p"), [("l1", 1), ("l2", 2), ("discrete", "discrete")])
@fewer(2)
@given(lift=lifts(), tau=st.floats(1e-3, 10.0))
def test_it_agrees_with_its_naive_twin(norm, p, lift, tau):
    hist, cost, _ = lift
    phi = Regularized(ExactMap(hist), Formula(tau), norm_matrix(sparse.csr_array(hist), norm))
    rounding = 1e-15 * (1 + tau) * cost.max()
    assert_allclose(phi(cost), naive.lift(hist, cost, tau, p), rtol=1e-13, atol=rounding)


@fewer(2)
@given(lift=lifts())
def test_freezing_holds_the_couplings_but_not_the_maximum(lift):
    hist, cost, rise = lift
    exact, R = ExactMap(hist), norm_matrix(sparse.csr_array(hist), "discrete")
    other = cost + rise
    plain = exact.freeze(cost)(other)
    for formula, want in (
        (Formula(0.1), plain + 0.1 * other.max() * R),
        (Formula(restart=0.1), 0.9 * plain + 0.1 * plain.max() * R),
    ):
        phi = Regularized(exact, formula, R)
        frozen, rounding = phi.freeze(cost), 1e-15 * other.max()
        assert_allclose(frozen(cost), phi(cost), rtol=1e-13, atol=rounding)
        assert_allclose(frozen(other), want, rtol=1e-13, atol=rounding)


@pytest.mark.parametrize("formula", [Formula(0.1), Formula(restart=0.1)], ids=str)
def test_a_map_without_couplings_cannot_be_frozen(formula):
    frozen = ExactMap(HIST).freeze(COST)
    with pytest.raises(TypeError, match="FrozenMap has no couplings to freeze"):
        Regularized(frozen, formula, norm_matrix(HIST, "l1")).freeze(COST)


# Restarts


def test_a_restart_is_a_share_of_the_largest_distance():
    exact, R = ExactMap(HIST), norm_matrix(HIST, "l2")
    phi, plain = Regularized(exact, Formula(restart=0.1), R), exact(COST)
    assert_allclose(phi(COST), 0.9 * plain + 0.1 * plain.max() * R / R.max(), rtol=1e-15)
    assert_allclose(phi.pairs(COST, np.array([[2, 0]])), phi(COST)[2, 0], rtol=1e-15)
    assert phi.shape == (3, 3)
    assert repr(phi).startswith("0.9 ExactMap(3 histograms")


@fewer(2)
@given(lift=lifts(), alpha=st.floats(0.01, 0.9))
def test_a_restart_is_tau_set_as_it_runs(lift, alpha):
    hist, cost, _ = lift
    R = norm_matrix(sparse.csr_array(hist), "discrete")
    plain = ExactMap(hist)(cost)
    if not plain.any():
        return
    tau = alpha / (1 - alpha) * plain.max() / (cost.max() * R.max())
    want = (1 - alpha) * Regularized(ExactMap(hist), Formula(tau), R)(cost)
    assert_allclose(
        Regularized(ExactMap(hist), Formula(restart=alpha), R)(cost), want, rtol=1e-12, atol=1e-15
    )


@fewer(2)
@given(lift=lifts(), alpha=st.floats(0.01, 0.9))
def test_the_largest_transport_can_be_read_off_the_image(lift, alpha):
    hist, cost, _ = lift
    R = norm_matrix(sparse.csr_array(hist), "discrete")
    image = Regularized(ExactMap(hist), Formula(restart=alpha), R)(cost)
    found = Formula(restart=alpha).largest_transport(image / 3.0, 3.0, R)
    assert_allclose(found, ExactMap(hist)(cost).max(), rtol=1e-12, atol=1e-15)
