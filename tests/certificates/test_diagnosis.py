"""Diagnoses of entropic results: true residuals, bounds that hold, no further claims."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm
from cometric.certificates.diagnosis import diagnose
from lifts import fresh_lifts

X = np.random.default_rng(0).poisson(2.0, (9, 7)) + np.eye(9, 7)


@pytest.mark.parametrize("eps", [0.05, 0.5, np.inf])
def test_a_converged_result_is_close_to_its_image(eps):
    result = cm.learn(X, eps=eps, tau=0.1, tol=1e-9)
    told = result.certify()
    assert max(told.residuals) <= 3e-9
    assert told.negatives == 0
    assert "no theorem bounds the distance to the true solution" in str(told)
    if eps < np.inf:
        assert told.pairs == 9 * 8 // 2 + 7 * 6 // 2
        assert 0 < told.bracket < 1e-6
    else:
        assert told.bracket is None


def test_triangle_violations_are_described_with_a_remedy():
    told = cm.learn(X, eps=0.5, tau=0.1).certify()
    broken = str(replace(told, triangle=(0.1, 0.33)))
    assert "shorter than the direct distance, by up to 33 % of the largest distance" in broken
    assert "neighbors and clusterings of these distances are unaffected" in broken
    assert "may miss neighbors" in broken
    assert "triangle       the triangle inequality holds" in str(replace(told, triangle=(0, 1e-16)))


def test_a_wrong_result_is_far_from_its_image():
    result = cm.learn(X, eps=0.5, tau=0.1)
    lifts = fresh_lifts(result.problem, 0.5)
    bent = result.samples.copy()
    bent[0, 1] = bent[1, 0] = 0.5 * bent[0, 1]
    told = diagnose(result.problem, cm.Metrics(bent, result.features), lifts, 0.5)
    assert told.residuals[0] >= 0.99 * np.log(2)


def test_distances_of_zero_have_no_finite_residual():
    with pytest.warns(cm.ConvergenceWarning, match="not unique"):
        result = cm.learn(np.eye(3), eps=np.inf, tau=0)
    assert not result.samples[np.triu_indices(3, 1)].all()
    assert result.certify().residuals == (np.inf, np.inf)


@pytest.mark.parametrize("eps", [0.005, 0.05, 0.3, np.inf])  # the first by logarithms
@pytest.mark.parametrize("of", ["samples", "features"])
def test_the_plan_shown_has_the_right_marginals(eps, of):
    result = cm.learn(X, eps=eps, tau=0.1, tol=1e-3)
    told = result.explain(2, 1, of=of)
    side = getattr(result.problem, of)
    sent, received = np.zeros(side.hist.shape[1]), np.zeros(side.hist.shape[1])
    for flow in told.flows:
        sent[int(flow.source)] += flow.mass
        received[int(flow.target)] += flow.mass
    first, second = side.hist[[2]].toarray()[0], side.hist[[1]].toarray()[0]
    assert_allclose(sent - received, first - second, atol=1e-8)
    assert_allclose(sent.sum() + told.stays, 1.0)
    assert_allclose(sum(flow.mass * flow.cost for flow in told.flows), told.distance)
