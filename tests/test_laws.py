"""Laws of distance maps, whatever computes them, and of what is learned.

Numbers such as C2 and Lemma 1 are those of docs/theory.md.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import naive
from cometric import learn
from cometric.core.cones import hilbert_distance, ratio_bounds
from cometric.core.formula import Formula
from cometric.core.problem import Problem
from cometric.kernels.geometry import triangle_violation
from cometric.maps.distributed import ColdMap, DistributedEntropicMap, DistributedExactMap
from cometric.maps.entropic_devices import DevicesMap
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.entropic_torch import TensorEntropicMap
from cometric.maps.exact_map import ExactMap
from cometric.maps.norms import norm_matrices, norm_matrix
from cometric.maps.regularized import Regularized
from cometric.solvers.power import PowerIteration
from cometric.transports.limit import LimitMap
from cometric.transports.quadratic import MahalanobisMap
from cometric.transports.solving import couple
from cometric.transports.tree import TreeMap
from lifts import exact_lifts, regularize
from strategies import costs, data_matrices, fewer, lifts, metrics, positive_costs

TAU = 0.1
ALPHA = 0.2
SATURATE = 0.3

# U <= k |a - b|_1 for each norm: the constant of the Lipschitz bound 1 + 2 tau k (C4).
CONSTANTS = {"l1": 1.0, "l2": 2.0**-0.5, "discrete": 0.5}


def norm_of(hist, norm):
    return norm_matrix(sparse.csr_array(hist), norm)


def by(formula, norm=None, transport=ExactMap):
    """A maker of maps with this formula, R being ``norm``."""

    def make_map(hist):
        R = None if norm is None else norm_of(hist, norm)
        return Regularized(transport(hist), formula, R)

    return make_map


def with_norm(norm):
    return by(Formula(TAU), norm)


restarted = by(Formula(restart=ALPHA), "discrete")
saturated = by(Formula(TAU, saturate=SATURATE), "l1")


def entropic(hist, **options):
    return EntropicMap(hist, 0.5, **options)


def entropic_tensors(hist, **options):
    pytest.importorskip("torch")
    return TensorEntropicMap(hist, 0.5, device="cpu", **options)


def entropic_devices(hist):
    pytest.importorskip("torch")
    return DevicesMap(hist, 0.5, devices=["torch:cpu", "torch:cpu"])


def mahalanobis(hist):
    """The kernel is relative to the largest cost, so that there is none without costs."""
    phi = MahalanobisMap(hist)
    return lambda cost: phi(cost) if cost.any() else np.zeros((len(hist), len(hist)))


# Maps of exact transport obey all laws; the others are not monotone, and may be negative.
EXACT_MAPS = {
    "exact": ExactMap,
    "cold": lambda hist: ColdMap(ExactMap, hist, side=2),
    "blocks": lambda hist: DistributedExactMap(hist, blocks=2),
    "single tree": lambda hist: TreeMap(hist, "single"),
    **{norm: with_norm(norm) for norm in CONSTANTS},
    "restart": restarted,
    "saturated": saturated,
    "saturated restart": by(Formula(restart=ALPHA, saturate=SATURATE), "discrete"),
    "only saturated": by(Formula(saturate=SATURATE)),
}
ENTROPIC_MAPS = {
    "entropic": entropic,
    "entropic blocks": lambda hist: DistributedEntropicMap(hist, 0.5, blocks=2),
    "entropic tensors": entropic_tensors,
    "entropic devices": entropic_devices,
    "saturated entropic": by(Formula(saturate=SATURATE), transport=entropic),
    "unbalanced": partial(entropic, rho=0.7),
    "unbalanced blocks": lambda hist: DistributedEntropicMap(hist, 0.5, rho=0.7, blocks=2),
    "unbalanced tensors": partial(entropic_tensors, rho=0.7),
}
REFERENCES = {name: with_norm(name) for name in ("cosine", "hellinger")}  # so R may be
MONOTONE_MAPS = EXACT_MAPS | REFERENCES
# Its kernel falls where the cost rises, and the root makes rounding errors of squares larger.
ROOTS = {"mahalanobis": mahalanobis}
NONNEGATIVE_MAPS = MONOTONE_MAPS | ROOTS
LIMITS = {"limit": LimitMap, "limit with tau": by(Formula(TAU), "l1", LimitMap)}
MAPS = NONNEGATIVE_MAPS | ENTROPIC_MAPS | LIMITS
# Transport along any tree is a metric. But merges that are equally good up to rounding may change
# places if costs are scaled or bins permuted, and a dearer cost may join others: no other laws.
METRIC_MAPS = EXACT_MAPS | {"average tree": TreeMap}
every_monotone_map = pytest.mark.parametrize(
    "make_map", MONOTONE_MAPS.values(), ids=MONOTONE_MAPS.keys()
)
every_metric_map = pytest.mark.parametrize("make_map", METRIC_MAPS.values(), ids=METRIC_MAPS.keys())
every_map = pytest.mark.parametrize("make_map", MAPS.values(), ids=MAPS.keys())


def close(found, wanted, scale, make_map=None):
    """Equal up to rounding of numbers as large as ``scale``; Sinkhorn stops at 1e-10, squared."""
    accuracy = 1e-9 if make_map in ENTROPIC_MAPS.values() else 1e-14
    if make_map in (*ROOTS.values(), REFERENCES["hellinger"]):  # roots of rounding errors
        accuracy = 1e-7
    assert_allclose(found, wanted, rtol=1e-12, atol=accuracy * scale)


@every_map
@fewer(2)
@given(lift=lifts(), scale=st.floats(1e-3, 1e3))
def test_scaling_the_cost_scales_the_distances(make_map, lift, scale):
    hist, cost, _ = lift
    phi = make_map(hist)
    close(phi(scale * cost), scale * phi(cost), scale * cost.max(), make_map)


@every_monotone_map
@fewer(2)
@given(lift=lifts())
def test_a_dearer_cost_never_brings_histograms_closer(make_map, lift):
    hist, cost, rise = lift
    phi = make_map(hist)
    assert (phi(cost + rise) >= phi(cost) - 1e-14 * (cost + rise).max()).all()


@every_map
@fewer(2)
@given(lift=lifts())
def test_distances_are_symmetric_with_zero_diagonal_and_not_negative(make_map, lift):
    hist, cost, _ = lift
    distances = make_map(hist)(cost)
    assert_array_equal(distances, distances.T)
    assert_array_equal(np.diagonal(distances), 0.0)
    if make_map in NONNEGATIVE_MAPS.values():
        assert (distances >= 0).all()


@pytest.mark.parametrize(("norm", "k"), [*CONSTANTS.items(), (None, 0.0)])
@fewer(2)
@given(data=st.data(), lift=lifts())
def test_no_distance_moves_more_than_the_lipschitz_constant_allows(norm, k, data, lift):
    hist, cost, _ = lift
    other = data.draw(costs(len(cost)))
    phi = ExactMap(hist) if norm is None else with_norm(norm)(hist)
    moved, by = np.abs(phi(cost) - phi(other)).max(), np.abs(cost - other).max()
    assert moved <= (1 + 2 * TAU * k) * by + 1e-14 * (cost + other).max()


@pytest.mark.parametrize("norm", [*CONSTANTS, "restart", "saturated"])
@fewer(2)
@given(data=st.data(), lift=lifts(cost=positive_costs))
def test_the_hilbert_distance_contracts_by_lemma_1(norm, data, lift):
    """Under saturation, that of saturated costs, which are nearer to each other (lemma 7)."""
    hist, cost, _ = lift
    other = data.draw(positive_costs(len(cost)))
    phi = {"restart": restarted, "saturated": saturated}.get(norm, with_norm(norm))(hist)
    formula = phi.formula
    # Nearer histograms are as far apart as rounding has it.
    live = (norm_of(hist, "l1") if norm == "restart" else phi.R) > 1e-6
    assume(live.any())
    image = phi(cost)[live]
    transport = formula.transport_weight * ExactMap(hist)(formula.saturated(cost))
    theta = (transport[live] / image).max()
    ratios = phi(other)[live] / image
    before = hilbert_distance(formula.saturated(cost), formula.saturated(other))
    after = np.log(ratios.max() / ratios.min())
    assert after <= np.log(1 - theta + theta * np.exp(before)) + 1e-9
    assert before <= hilbert_distance(cost, other) + 1e-12


@fewer(2)
@given(data=st.data(), lift=lifts(cost=positive_costs), s=st.floats(0.02, 10.0))
def test_saturation_contracts_by_lemma_7(data, lift, s):
    _, cost, _ = lift
    other = data.draw(positive_costs(len(cost)))
    formula, off = Formula(saturate=s), ~np.eye(len(cost), dtype=bool)
    x = min(matrix[off].min() / matrix.max() for matrix in (cost, other)) / s
    kappa = x / np.expm1(min(x, 700.0))
    before = hilbert_distance(cost, other)
    after = hilbert_distance(formula.saturated(cost), formula.saturated(other))
    assert after <= kappa * before + 1e-12


@every_map
@fewer(2)
@given(lift=lifts(), seed=st.integers(0, 99))
def test_the_order_of_histograms_does_not_matter(make_map, lift, seed):
    hist, cost, _ = lift
    order = np.random.default_rng(seed).permutation(len(hist))
    permuted = make_map(hist[order])(cost)
    close(permuted, make_map(hist)(cost)[np.ix_(order, order)], cost.max(), make_map)


@every_map
@fewer(2)
@given(lift=lifts(), seed=st.integers(0, 99))
def test_the_order_of_bins_does_not_matter(make_map, lift, seed):
    hist, cost, _ = lift
    order = np.random.default_rng(seed).permutation(len(cost))
    permuted = make_map(hist[:, order])(cost[np.ix_(order, order)])
    close(permuted, make_map(hist)(cost), cost.max(), make_map)


@every_metric_map
@fewer(2)
@given(lift=lifts(cost=metrics))
def test_a_metric_is_lifted_to_a_metric(make_map, lift):
    hist, cost, _ = lift
    assert triangle_violation(make_map(hist)(cost)) <= 2e-15 * cost.max()


@every_map
@fewer(2)
@given(data=st.data(), lift=lifts())
def test_the_state_of_a_map_does_not_change_its_values(make_map, data, lift):
    hist, cost, _ = lift
    phi = make_map(hist)
    phi(data.draw(costs(len(cost))))
    close(phi(cost), make_map(hist)(cost), cost.max(), make_map)


@fewer(2)
@given(lift=lifts(), power=st.floats(-3.0, 3.0), rho=st.none() | st.floats(0.01, 100.0))
def test_the_interval_after_one_sweep_meets_the_one_at_the_end(lift, power, rho):
    hist, cost, _ = lift
    begun = EntropicMap(hist, 10**power, rho=rho, sweeps=1).bounds(cost)
    ended = EntropicMap(hist, 10**power, rho=rho, tol=1e-12, max_sweeps=2_000).bounds(cost)
    for low, high in (begun, ended):
        assert np.isfinite(low).all()
        assert (low <= high).all()
    assert (np.maximum(begun[0], ended[0]) <= np.minimum(begun[1], ended[1])).all()


def learned(X, norm="l1", **options):
    return learn(X, eps=0, tau=TAU, norm=norm, solver="power", tol=1e-12, **options)


def same_metrics(one, other):
    """Equal to the tolerance both were learned to, as the contraction at TAU warrants."""
    for mine, theirs in zip(one, other, strict=True):
        assert_allclose(mine, theirs, rtol=1e-10)


every_norm = pytest.mark.parametrize("norm", CONSTANTS)


@every_norm
@fewer(5)
@given(X=data_matrices())
def test_transposing_the_data_swaps_the_metrics(norm, X):
    one, other = learned(X, norm), learned(X.T, norm)
    same_metrics(one.metrics, other.metrics[::-1])
    assert_allclose(np.prod(one.values), np.prod(other.values), rtol=1e-11)


@every_norm
@fewer(5)
@given(X=data_matrices(), scale=st.floats(1e-6, 1e6))
def test_scaling_the_data_changes_nothing(norm, X, scale):
    one, other = learned(X, norm), learned(scale * X, norm)
    same_metrics(one.metrics, other.metrics)
    assert_allclose(one.values, other.values, rtol=1e-11)


@every_norm
@fewer(5)
@given(X=data_matrices(), seed=st.integers(0, 99))
def test_permuting_the_data_permutes_the_metrics(norm, X, seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(X.shape[0]), rng.permutation(X.shape[1])
    one, other = learned(X, norm), learned(X[np.ix_(rows, columns)], norm)
    same_metrics(
        (one.samples[np.ix_(rows, rows)], one.features[np.ix_(columns, columns)]), other.metrics
    )


@every_norm
@fewer(5)
@given(X=data_matrices(), seed=st.integers(0, 99))
def test_every_start_ends_at_the_same_metrics(norm, X, seed):
    one, other = learned(X, norm), learned(X, norm, start="random", random_state=seed)
    same_metrics(one.metrics, other.metrics)


@every_norm
@fewer(5)
@given(X=data_matrices())
def test_learned_metrics_are_metrics_and_solve_both_equations(norm, X):
    result = learned(X, norm)
    lam, mu = result.values
    phi = maps_of(X, norm)
    assert_allclose(phi.to_features(result.samples), lam * result.features, rtol=1e-10)
    assert_allclose(phi.to_samples(result.features), mu * result.samples, rtol=1e-10)
    for metric in result.metrics:
        assert metric.max() == 1.0
        assert triangle_violation(metric) <= 1e-14


@every_norm
@fewer(5)
@given(data=st.data(), X=data_matrices())
def test_the_bracket_of_any_positive_matrix_contains_the_value(norm, data, X):
    cost = data.draw(positive_costs(X.shape[1]))
    phi = maps_of(X, norm)
    low, high = ratio_bounds(phi.to_features(phi.to_samples(cost)), cost)
    lam, mu = learned(X, norm).values
    assert low <= lam * mu * (1 + 1e-11)
    assert high >= lam * mu * (1 - 1e-11)


@every_norm
@fewer(5)
@given(X=data_matrices())
def test_brackets_are_nested_from_one_step_to_the_next(norm, X):
    brackets = []
    learned(X, norm, callback=lambda now, _: brackets.append(now.bracket))
    low, high = np.transpose(brackets)
    assert (np.diff(low) >= -1e-14 * low[1:]).all()
    assert (np.diff(high) <= 1e-14 * high[1:]).all()


@pytest.mark.parametrize("saturate", [0.0, SATURATE])
@fewer(5)
@given(X=data_matrices())
def test_ten_steps_are_those_of_the_naive_power_iteration(saturate, X):
    C, D, lam, mu = naive.power_iteration(X, TAU, steps=10, s=saturate)
    problem = Problem.from_data(X)
    norms = norm_matrices(problem, "l1")
    solver = PowerIteration()
    phi = couple(exact_lifts(problem), Formula(TAU, saturate=saturate), norms)
    now = solver.init(phi, norms)
    for _ in range(10):
        now = solver.step(phi, now)
    assert_allclose(now.metrics.samples, D, rtol=1e-11)
    assert_allclose(now.metrics.features, C, rtol=1e-11)
    assert_allclose(now.values, (lam, mu), rtol=1e-12)


def maps_of(X, norm):
    problem = Problem.from_data(X)
    return regularize(*exact_lifts(problem), TAU, norm_matrices(problem, norm))
