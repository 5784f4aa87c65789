"""``learn(restart=...)``: the fixed point it promises, its certificate, what it refuses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm
from cometric.maps.norms import norm_matrices
from lifts import fresh_lifts

ALPHA = 0.1
RNG = np.random.default_rng(5)
X = RNG.poisson(2.0, (9, 7)) + 0.5 * RNG.random((9, 7))


@pytest.mark.parametrize("eps", [0.0, 0.3, np.inf])
@pytest.mark.parametrize("solver", ["auto", "power", "anderson"])
def test_both_metrics_solve_the_restarted_equations(eps, solver):
    r = cm.learn(X, eps=eps, restart=ALPHA, norm="l1", tol=1e-9, solver=solver)
    assert r.converged
    assert "restart = 0.1" in str(r)
    norms = norm_matrices(r.problem, "l1")
    to_samples, to_features = fresh_lifts(r.problem, eps)
    for phi, cost, metric, R, value in (
        (to_samples, r.features, r.samples, norms.samples, r.values[1]),
        (to_features, r.samples, r.features, norms.features, r.values[0]),
    ):
        plain = phi(cost)
        image = (1 - ALPHA) * plain + ALPHA * plain.max() * R / R.max()
        assert_allclose(image, value * metric, rtol=1e-5, atol=1e-12)


def test_the_certificate_bounds_the_error_of_a_rough_solution():
    truth = cm.learn(X, eps=0, restart=ALPHA, tol=1e-13)
    rough = cm.learn(X, eps=0, restart=ALPHA, tol=1e-3, solver="power")
    proof = rough.certify()
    assert proof.uniqueness.unique
    assert "since restart > 0" in str(proof)
    lam, mu = truth.values
    assert proof.value[0] <= lam * mu <= proof.value[1]
    assert lam <= proof.largest_values[0]
    assert mu <= proof.largest_values[1]
    errors = [
        cm.hilbert_distance(getattr(rough, side), getattr(truth, side))
        for side in ("samples", "features")
    ]
    assert 0 < errors[0] <= proof.samples_error < 0.1
    assert 0 < errors[1] <= proof.features_error < 0.1


@pytest.mark.parametrize("eps", [0.3, np.inf])
def test_the_diagnosis_accounts_for_the_restart(eps):
    r = cm.learn(X, eps=eps, restart=ALPHA, tol=1e-8)
    assert max(r.certify().residuals) < 1e-5
    other = cm.learn(X, eps=eps, restart=5 * ALPHA, tol=1e-8)
    moved = cm.Result(**{**vars(r), "samples": other.samples, "features": other.features})
    assert max(moved.certify().residuals) > 1e-2


@pytest.mark.parametrize("of", ["samples", "features"])
@pytest.mark.parametrize("eps", [0.0, 0.3, np.inf])
def test_learned_items_get_their_own_distances(eps, of):
    r = cm.learn(X, eps=eps, restart=ALPHA, tol=1e-10)
    assert_allclose(r.transform(X, of=of), getattr(r, of), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"restart": 0.1, "solver": "stochastic"}, "stochastic iteration computes a part"),
        ({"restart": 0.1, "solver": cm.StochasticIteration()}, "Pass `tau`, or another `solver`"),
    ],
)
def test_unsupported_restarts_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        cm.learn(X, **options)


def test_a_restart_with_a_norm_that_is_zero_is_refused():
    near = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0]) * (1 + 1e-9 * RNG.random((4, 3)))
    with pytest.raises(ValueError, match="`norm` is lsa, which is 0 between all samples: nothing"):
        cm.learn(near, restart=0.3, norm="lsa")
