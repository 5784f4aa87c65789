"""``learn(saturate=..., restart=...)``: the equations it promises, its limits, its certificates."""

import dataclasses

import numpy as np
import pytest
from mpmath import mp, mpf
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
import naive
from cometric.core.formula import SATURATION_ERROR, Formula
from cometric.core.problem import Problem
from cometric.maps.exact_map import ExactMap
from cometric.maps.norms import norm_matrices, norm_matrix
from cometric.maps.regularized import Regularized
from lifts import fresh_lifts

S = 0.2
RNG = np.random.default_rng(5)
X = RNG.poisson(2.0, (9, 7)) + 0.5 * RNG.random((9, 7))
T12 = np.array([[2.0, 1, 0], [1, 2, 0], [0, 0, 1]])  # of docs/theory.md
SHARES = [{"saturate": S, **share} for share in ({"tau": 0.05}, {"restart": 0.1}, {"tau": 0.0})]
SHARES += [{"restart": 0.1}]
every_share = pytest.mark.parametrize("share", SHARES, ids=str)
every_eps = pytest.mark.parametrize("eps", [0.0, 0.3, np.inf])


def random_cost(rng, d=6):
    upper = np.triu(rng.exponential(size=(d, d)), 1)
    return upper + upper.T


@pytest.mark.parametrize("s", [1e-310, 1e-3, 0.05, 0.5, 3.0, 1e5, 1e15, 1e17, 1e300])
def test_saturated_costs_are_right_to_the_error_that_certificates_allow(s):
    cost = random_cost(np.random.default_rng(1)) * [[3.0]]
    cost[0, 1] = cost[1, 0] = 1e-12
    found, top = Formula(saturate=s).saturated(cost), cost.max()
    assert found.max() == top
    assert_array_equal(found, found.T)
    assert_array_equal(np.diagonal(found), 0.0)
    with mp.workdps(400):
        for c, value in zip(cost[cost > 0], found[cost > 0], strict=True):
            x = mpf(c) / mpf(top) / mpf(s)
            true = mpf(top) * mp.expm1(-x) / mp.expm1(-1 / mpf(s))
            assert abs(mpf(value) / true - 1) < SATURATION_ERROR / 2


def test_it_agrees_with_its_naive_twin_and_leaves_the_cost_alone():
    cost = random_cost(np.random.default_rng(2))
    before = cost.copy()
    assert_allclose(Formula(saturate=S).saturated(cost), naive.saturated(cost, S), rtol=1e-14)
    assert_array_equal(cost, before)
    assert Formula().saturated(cost) is cost


def test_tensors_saturate_like_arrays():
    torch = pytest.importorskip("torch")
    cost = random_cost(np.random.default_rng(3))
    found = Formula(saturate=S).saturated(torch.as_tensor(cost))
    assert_allclose(found.numpy(), Formula(saturate=S).saturated(cost), rtol=1e-14)
    assert float(found.max()) == cost.max()


def test_a_cost_of_zeros_stays_zero():
    assert_array_equal(Formula(saturate=S).saturated(np.zeros((3, 3))), 0.0)


def test_only_transport_is_under_the_saturated_cost():
    hist = sparse.csr_array(np.random.default_rng(4).dirichlet(np.ones(6), 4))
    cost, R, exact = random_cost(np.random.default_rng(4)), norm_matrix(hist, "l1"), ExactMap(hist)
    plain = exact(naive.saturated(cost, S))
    phi = Regularized(exact, Formula(0.1, saturate=S), R)
    assert_allclose(phi(cost), plain + 0.1 * cost.max() * R, rtol=1e-13)
    assert_allclose(phi.pairs(cost, np.array([[2, 0]])), phi(cost)[2, 0], rtol=1e-13)
    assert repr(phi).endswith("of costs saturated at 0.2 + 0.1 |C| R")
    restarted = Regularized(exact, Formula(restart=0.1, saturate=S), R)
    assert_allclose(restarted(cost), 0.9 * plain + 0.1 * plain.max() * R / R.max(), rtol=1e-13)
    assert repr(Regularized(exact, Formula(saturate=S), R)).endswith("of costs saturated at 0.2")


@every_eps
@every_share
@pytest.mark.parametrize("solver", ["auto", "power", "anderson"])
def test_both_metrics_solve_their_equations(eps, share, solver):
    r = cm.learn(X, eps=eps, tol=1e-9, solver=solver, **share)
    assert r.converged
    for name, value in share.items():
        assert value == 0.0 or f"{name} = {value}" in str(r)
    norms = norm_matrices(r.problem, r.problem.formula.norm)
    to_samples, to_features = fresh_lifts(r.problem, eps)
    for phi, cost, metric, R, value in (
        (to_samples, r.features, r.samples, norms.samples, r.values[1]),
        (to_features, r.samples, r.features, norms.features, r.values[0]),
    ):
        plain, alpha = phi(naive.saturated(cost, share.get("saturate", 0.0))), share.get("restart")
        image = plain + share.get("tau", 0.0) * R
        if alpha:
            image = (1 - alpha) * plain + alpha * plain.max() * R / R.max()
        assert_allclose(image, value * metric, rtol=1e-5, atol=1e-12)


@every_share
def test_all_solvers_find_the_same_from_any_start(share):
    options = {"eps": 0.0, "tol": 1e-12, **share}
    one = cm.learn(X, **options)
    assert one.parameters.solver == "PolicyIteration"
    for solver in ("power", "anderson", "stochastic")[: 2 if "restart" in share else 3]:
        other = cm.learn(X, solver=solver, start="random", random_state=3, **options)
        assert_allclose(one.samples, other.samples, rtol=1e-10)
        assert_allclose(one.features, other.features, rtol=1e-10)


def test_policy_iteration_takes_a_few_sweeps_where_power_takes_many():
    data = cm.datasets.torus("unimodal", 24, 20)
    options = {"eps": 0.0, "tau": 1e-3, "saturate": 5.0, "tol": 1e-10}
    few, many = (cm.learn(data, solver=name, **options) for name in ("policy", "power"))
    assert_allclose(few.samples, many.samples, atol=1e-7)
    assert few.history[-1].sweeps < many.history[-1].sweeps / 3


def test_the_limits_are_the_plain_map_and_the_discrete_metric():
    plain = cm.learn(X, eps=0, tau=0.05, tol=1e-11)
    large = cm.learn(X, eps=0, tau=0.05, saturate=1e7, tol=1e-11)
    assert_allclose(large.samples, plain.samples, rtol=1e-6)
    small = cm.learn(X, eps=0, tau=0.05, saturate=1e-4, tol=1e-11)
    l1 = norm_matrices(Problem.from_data(X), "l1")
    assert_allclose(small.samples, l1.samples / l1.samples.max(), rtol=1e-12)
    assert_allclose(small.features, l1.features / l1.features.max(), rtol=1e-12)
    assert_allclose(small.values[1], 0.55 * l1.samples.max(), rtol=1e-12)


def test_without_norm_the_solution_is_unique_unlike_for_plain_transport():
    data = np.eye(4) + 0.3  # at tau = 0 every metric is a singular vector (section 4, item 2)
    for seed in range(3):
        found = cm.learn(
            data, eps=0, tau=0, saturate=0.5, tol=1e-12, start="random", random_state=seed
        )
        assert found.converged
        assert_allclose(found.samples, 1.0 - np.eye(4), rtol=1e-10)
    proof = found.certify()
    assert "unique: yes, since saturate > 0" in str(proof)
    assert proof.samples_error < 1e-10


def test_saturation_prevents_distances_from_tending_to_zero():
    positive = cm.learn(T12, eps=0, tau=0, saturate=0.2, tol=1e-10)
    assert positive.converged
    assert positive.samples[0, 1] == pytest.approx(0.2285710, abs=1e-6)
    assert positive.certify().samples_error < 1e-8
    with pytest.warns(cm.ConvergenceWarning, match="on the boundary"):
        lost = cm.learn(T12, eps=0, tau=0, saturate=2.0, tol=1e-10)
    assert not np.isfinite(lost.certify().samples_error)
    assert "too large for this saturate" in str(lost.certify())


@every_share
def test_the_certificate_bounds_the_error_of_a_rough_solution(share):
    truth = cm.learn(X, eps=0, tol=1e-13, **share)
    rough = cm.learn(X, eps=0, tol=1e-3, solver="power", **share)
    proof = rough.certify()
    assert proof.uniqueness.unique
    assert proof.rate < (0.5 if "saturate" in share else 1.0)
    assert "saturate" in share or "since restart > 0" in str(proof)
    lam, mu = truth.values
    assert proof.value[0] <= lam * mu <= proof.value[1]
    assert lam <= proof.largest_values[0]
    assert mu <= proof.largest_values[1]
    for side, bound in (("samples", proof.samples_error), ("features", proof.features_error)):
        error = cm.hilbert_distance(getattr(rough, side), getattr(truth, side))
        assert 0 < error <= bound < 0.1


@pytest.mark.parametrize("eps", [0.3, np.inf])
@pytest.mark.parametrize(
    ("share", "changed"),
    [({"saturate": S, "restart": 0.1}, {"saturate": 5 * S}), ({"restart": 0.1}, {"restart": 0.5})],
)
def test_the_diagnosis_accounts_for_saturation_and_restarts(eps, share, changed):
    r = cm.learn(X, eps=eps, tol=1e-8, **share)
    assert max(r.certify().residuals) < 1e-5
    assert r.certify().saturate == share.get("saturate", 0.0)
    other = cm.learn(X, eps=eps, tol=1e-8, **{**share, **changed})
    moved = dataclasses.replace(r, samples=other.samples, features=other.features)
    assert max(moved.certify().residuals) > 1e-2


@every_eps
@pytest.mark.parametrize("of", ["samples", "features"])
def test_learned_items_get_their_own_distances(eps, of):
    for share in SHARES:
        r = cm.learn(X, eps=eps, tol=1e-10, **share)
        assert_allclose(r.transform(X, of=of), getattr(r, of), atol=1e-6)


def test_a_norm_that_is_not_used_does_not_hinder_new_items():
    norm = (1.0 - np.eye(9), 1.0 - np.eye(7))
    r = cm.learn(X, eps=0, tau=0, saturate=S, norm=norm, tol=1e-8)
    assert_allclose(r.transform(X), r.samples, atol=1e-6)


@every_eps
def test_explanations_are_by_saturated_costs(eps):
    r = cm.learn(X, eps=eps, saturate=S, tau=0.05, tol=1e-8)
    explained = r.explain(0, 3)
    g = naive.saturated(r.features, S)
    for flow in explained.flows:
        assert flow.cost == pytest.approx(g[int(flow.source), int(flow.target)], rel=1e-12)
    if eps == 0.0:
        R = norm_matrices(r.problem, "l1").samples
        assert r.values[1] * r.samples[0, 3] == pytest.approx(
            explained.distance + 0.05 * R[0, 3], rel=1e-10
        )


def test_tensors_find_the_same_metrics():
    pytest.importorskip("torch")
    options = {"eps": 0.3, "restart": 0.1, "saturate": S, "norm": "l1", "tol": 1e-7}
    found, truth = (cm.learn(X, device=device, **options) for device in ("torch:cpu", "cpu"))
    assert_allclose(found.samples, truth.samples, atol=1e-5)
    assert_allclose(found.features, truth.features, atol=1e-5)


def test_plans_know_that_there_is_no_closed_form():
    without, planned = (cm.plan(X, eps=np.inf, tau=0, saturate=s) for s in (0.0, S))
    assert "closed form" in str(without)
    assert "closed form" not in str(planned)
    assert cm.plan(X, saturate=S).memory > cm.plan(X).memory


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        ("stochastic", "stochastic iteration computes a part"),
        (cm.StochasticIteration(), "Pass `tau`, or another `solver`"),
    ],
)
def test_restarts_of_stochastic_iteration_are_refused(solver, words):
    with pytest.raises(ValueError, match=words):
        cm.learn(X, restart=0.1, solver=solver)


def test_a_restart_with_a_norm_that_is_zero_is_refused():
    near = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0]) * (1 + 1e-9 * RNG.random((4, 3)))
    with pytest.raises(ValueError, match="`norm` is lsa, which is 0 between all samples: nothing"):
        cm.learn(near, restart=0.3, norm="lsa")
