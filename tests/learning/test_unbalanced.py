"""Unbalanced transport from beginning to end: learning, and everything that takes a result."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm
import naive
from cometric.core.types import Status
from cometric.maps.norms import norm_matrices

TRANSPORT = cm.Unbalanced(0.2, rho=0.5)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).gamma(0.5, size=(12, 9)) + 1e-3


@pytest.fixture(scope="module")
def result(X):
    return cm.learn(X, transport=TRANSPORT, tau=0.05, tol=1e-8)


def test_the_learned_metrics_solve_their_equations(X, result):
    assert result.status is Status.CONVERGED
    A = X / X.sum(axis=1, keepdims=True)
    W = naive.unbalanced_divergences(A, result.features, 0.2, 0.5)
    R = norm_matrices(result.problem, "local").samples
    assert_allclose((W + 0.05 * R) / result.values[1], result.samples, atol=1e-6)


def test_it_describes_the_result(result):
    assert str(TRANSPORT) == "eps = 0.2, rho = 0.5"
    assert "rho = 0.5" in str(result)
    assert result.parameters.transport == TRANSPORT


def test_another_rho_gives_other_metrics(X, result):
    other = cm.learn(X, transport=cm.Unbalanced(0.2, rho=1e6), tau=0.05, tol=1e-8)
    entropic = cm.learn(X, eps=0.2, tau=0.05, tol=1e-8)
    assert_allclose(other.samples, entropic.samples, atol=1e-5)
    assert_allclose(other.features, entropic.features, atol=1e-5)
    assert np.abs(other.samples - result.samples).max() > 1e-3


def test_default_parameters():
    assert cm.Unbalanced() == cm.Unbalanced(0.1, rho=1.0)
    with pytest.raises(TypeError):
        cm.Unbalanced(0.1, 1.0)


def test_single_precision_agrees(X, result):
    single = cm.learn(X, transport=TRANSPORT, tau=0.05, tol=1e-8, dtype="float32")
    assert single.status is Status.CONVERGED
    assert_allclose(single.samples, result.samples, atol=1e-6)


def test_an_explanation_counts_the_mass_that_is_not_matched(X, result):
    explanation = result.explain(0, 1)
    a, b = (X / X.sum(axis=1, keepdims=True))[:2]
    plan = naive.unbalanced_plan(a, b, result.features, 0.2, 0.5)
    assert_allclose(explanation.unmatched, 1 - plan.sum(), atol=1e-8)
    assert_allclose(explanation.stays, np.trace(plan), atol=1e-8)
    assert_allclose(explanation.distance, np.sum(plan * result.features), atol=1e-8)
    assert "% is not matched" in str(explanation)
    mass = explanation.stays + explanation.unmatched + sum(flow.mass for flow in explanation.flows)
    assert_allclose(mass, 1.0)


def test_balanced_plans_match_everything(X):
    explanation = cm.learn(X, eps=0.2, tau=0.05).explain(0, 1)
    assert explanation.unmatched == 0.0
    assert "matched" not in str(explanation)


def test_a_diagnosis_proves_each_distance(result):
    diagnosis = result.certify()
    assert max(diagnosis.residuals) < 1e-6
    assert diagnosis.bracket < 1e-9
    assert diagnosis.negatives == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("sinkhorn", "unbalanced(0.1, rho=1)"),
        ("unbalanced(0.1, rho=0)", "--transport: `rho` is 0; it must be positive and finite"),
    ],
)
def test_the_command_line_says_what_is_wrong_with_a_transport(wrong, words, tmp_path):
    pytest.importorskip("anndata")
    from shell import run

    np.save(tmp_path / "x.npy", np.eye(3))
    refused = run("plan", tmp_path / "x.npy", "--transport", wrong, code=2)
    assert words in " ".join(refused.output.split())
