"""Certificates: never wrong, tight enough to be useful, and honest where nothing is proved."""

import dataclasses
import warnings

import numpy as np
import pytest

import cometric as cm

TRIDIAGONAL = [[2, 1, 0], [1, 2, 1], [0, 1, 2]]


def random_problem(seed):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(2, 7, size=2)
    X = rng.gamma(rng.choice([0.2, 1.0, 5.0]), size=(n, m)) * (rng.random((n, m)) < 0.7)
    X[np.arange(n), rng.integers(0, m, n)] += 0.1 + rng.random(n)
    X[rng.integers(0, n, m), np.arange(m)] += 0.1 + rng.random(m)
    return X, float(rng.choice([1e-3, 1e-2, 0.1, 1.0]))


def perturbed(result, rng, size):
    def noise(side, metric):
        wiggle = np.exp(size * rng.standard_normal(metric.shape))
        changed = side.expand(side.reduce(metric * np.sqrt(wiggle * wiggle.T)))
        return changed / changed.max()

    return dataclasses.replace(
        result,
        samples=noise(result.problem.samples, result.samples),
        features=noise(result.problem.features, result.features),
    )


def check_bounds(seed):
    """True error at most C3, bracket around the true value, for good and bad answers."""
    X, tau = random_problem(seed)
    rng = np.random.default_rng(seed)
    try:
        truth = cm.learn(X, eps=0, tau=tau, tol=1e-13)
    except ValueError:  # all rows proportional: nothing to learn
        return 0
    value = np.prod(truth.values)
    loose = 10.0 ** rng.uniform(-8, -1)
    answers = [
        truth,
        *(
            cm.learn(X, eps=0, tau=tau, tol=loose, solver=solver)
            for solver in ("power", "policy", "anderson", "stochastic")
        ),
        perturbed(truth, rng, 10.0 ** rng.uniform(-10, 0)),
    ]
    for answer in answers:
        proof = answer.certify()
        low, high = proof.value
        assert low * (1 - 1e-12) <= value <= high * (1 + 1e-12)
        assert cm.hilbert_distance(answer.samples, truth.samples) <= proof.samples_error + 1e-11
        assert cm.hilbert_distance(answer.features, truth.features) <= proof.features_error + 1e-11
        assert proof.gap < 1e-12
    return len(answers)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # random data repeat rows now and then
        yield


def test_the_true_error_never_exceeds_the_bound():
    assert sum(check_bounds(seed) for seed in range(40)) > 180


@pytest.mark.slow
def test_the_true_error_never_exceeds_the_bound_on_1000_problems():
    assert sum(check_bounds(seed) for seed in range(1000)) > 5850


def test_the_bound_is_tight_enough_to_be_useful():
    result = cm.learn(cm.datasets.torus("bimodal", 24, 20), eps=0, tau=0.1, tol=1e-12)
    proof = result.certify()
    assert proof.samples_error < 1e-10
    assert proof.features_error < 1e-10
    assert proof.value[1] / proof.value[0] - 1 < 1e-11
    assert proof.rate <= 1.2**-2


def test_a_bad_answer_gets_no_good_certificate():
    result = cm.learn(cm.datasets.torus("bimodal", 12, 10), eps=0, tau=0.1, tol=1e-12)
    worse = perturbed(result, np.random.default_rng(0), 0.1)
    error = cm.hilbert_distance(worse.samples, result.samples)
    assert worse.certify().samples_error >= error > 0.1


@pytest.mark.parametrize(
    ("X", "unique"),
    [
        ([[2, 1], [1, 2]], True),
        (TRIDIAGONAL, True),
        (np.eye(3), False),
        (np.eye(3) + 0.3, False),
        (cm.datasets.block_diagonal(), False),
    ],
)
def test_uniqueness_at_tau_zero(X, unique):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cm.ConvergenceWarning)
        result = cm.learn(X, eps=0, tau=0)
    proof = result.certify()
    assert proof.uniqueness.unique is unique
    assert (proof.uniqueness.sources == 1) == unique
    assert np.isinf(proof.samples_error)
    assert "no bound exists at tau = 0" in str(proof)


def test_the_tridiagonal_example_has_the_known_pair():
    result = cm.learn(TRIDIAGONAL, eps=0, tau=0, tol=1e-12)
    assert result.converged
    np.testing.assert_allclose(
        result.features, [[0, 0.5, 1], [0.5, 0, 0.5], [1, 0.5, 0]], atol=1e-12
    )
    assert np.isclose(np.prod(result.values), 4 / 9, rtol=1e-12)


@pytest.mark.parametrize("X", [np.eye(3), np.eye(3) + 0.3, cm.datasets.block_diagonal()])
def test_data_without_a_unique_answer_are_called_so(X):
    with pytest.warns(cm.ConvergenceWarning, match="not unique.*Pass `tau` > 0"):
        result = cm.learn(X, eps=0, tau=0)
    assert result.status is cm.Status.NON_UNIQUE
    assert not result.converged


def test_distances_that_tend_to_zero_are_called_so():
    with pytest.warns(cm.ConvergenceWarning, match="on the boundary"):
        result = cm.learn([[2, 1, 0], [1, 2, 0], [0, 0, 1]], eps=0, tau=0)
    assert result.status is cm.Status.BOUNDARY
    low, high = result.bracket
    assert low <= 1 / 9 + 1e-12
    assert high >= 1 - 1e-12


def test_positive_tau_is_unique_without_a_graph():
    proof = cm.learn(np.eye(3), eps=0, tau=0.1).certify()
    assert proof.uniqueness.unique is True
    assert "C6 theorem" in str(proof)


def test_the_a_priori_bounds_hold():
    for seed in range(20):
        X, tau = random_problem(seed)
        result = cm.learn(X, eps=0, tau=tau)
        lam, mu = result.certify().largest_values
        assert result.values[0] <= lam * (1 + 1e-12)
        assert result.values[1] <= mu * (1 + 1e-12)


@pytest.mark.parametrize("norm", ["l2", "linf", 3, "discrete"])
def test_other_norms_are_certified_too(norm):
    X, _ = random_problem(7)
    truth = cm.learn(X, eps=0, tau=0.1, norm=norm, tol=1e-13)
    rough = cm.learn(X, eps=0, tau=0.1, norm=norm, tol=1e-2, solver="power")
    proof = rough.certify()
    assert cm.hilbert_distance(rough.samples, truth.samples) <= proof.samples_error
    assert proof.samples_error < 1.0


def test_a_matrix_as_norm_survives_saving(tmp_path):
    X = np.random.default_rng(0).gamma(1.0, size=(4, 3))
    R = (1 - np.eye(4)) * 0.7, (1 - np.eye(3)) * 0.7
    result = cm.learn(X, eps=0, tau=0.1, norm=R, tol=1e-10)
    result.save(tmp_path / "r.npz")
    again = cm.load(tmp_path / "r.npz")
    assert again.certify().samples_error == result.certify().samples_error < 1e-8


def test_only_positive_metrics_can_be_certified():
    result = cm.learn([[2, 1, 1], [1, 2, 1], [1, 1, 3]], eps=0, tau=0.1)
    zero = result.samples.copy()
    zero[0, 1] = zero[1, 0] = 0
    with pytest.raises(ValueError, match="`metrics.samples` has zero"):
        dataclasses.replace(result, samples=zero).certify()


def test_duplicates_are_certified_as_one():
    X = np.array([[3, 1, 1, 1], [1, 2, 2, 5], [2, 1, 1, 7]], float)
    result = cm.learn(X, eps=0, tau=0.1, tol=1e-12)
    low, high = result.certify().value
    assert low <= 0.243405 * (1 + 1e-5)
    assert high >= 0.243405 * (1 - 1e-5)
    assert high / low - 1 < 1e-10


def test_repeats_that_are_told_apart_cannot_be_certified():
    X = np.array([[3, 1, 1, 1], [1, 2, 2, 5], [2, 1, 1, 7]], float)
    result = cm.learn(X, eps=0, tau=0.1)
    wrong = result.features.copy()
    wrong[0, 2] = wrong[2, 0] = 0.5 * wrong[0, 1]  # features 1 and 2 repeat one another
    with pytest.raises(ValueError, match="`features` tells items apart"):
        dataclasses.replace(result, features=wrong).certify()
