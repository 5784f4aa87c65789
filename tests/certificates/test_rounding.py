"""Certificates include what rounding and saturation do: compared with exact arithmetic."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

import cometric as cm
from cometric.certificates import certificate
from cometric.certificates.certificate import RADII, WIDEST, Rounding, _Side
from cometric.core.formula import SATURATION_ERROR, Formula
from cometric.core.problem import Problem

N, BINS = 4, 5
PAIRS = [(i, j) for i in range(N) for j in range(i + 1, N)]
OUTWARD = Fraction(1, 10**14)
FORMULAS = [
    Formula(tau=0.3),
    Formula(restart=0.25),
    Formula(tau=0.2, saturate=0.5),
    Formula(restart=0.4, saturate=0.3),
    Formula(saturate=0.7),
]


class Given:
    """A map whose bounds are known; it records the cost that it is called with."""

    def __init__(self, lower, upper):
        self.lower, self.upper = lower, upper

    def bounds(self, cost):
        self.cost = cost
        return self.lower, self.upper


def symmetric(rng, size, low, high):
    values = np.triu(rng.uniform(low, high, (size, size)), 1)
    return values + values.T


@pytest.mark.parametrize("relative", [0.0, 0.05])
@pytest.mark.parametrize("formula", FORMULAS, ids=str)
def test_rounding_errors_widen_every_bound(formula, relative):
    rng = np.random.default_rng(0)
    cost, image = symmetric(rng, BINS, 0.3, 1.7), symmetric(rng, N, 0.2, 1.0)
    norm, spread = symmetric(rng, N, 0.5, 1.5), symmetric(rng, N, 0.5, 2.0)
    lower = rng.uniform(0.2, 0.5, len(PAIRS))
    phi = Given(lower, lower * rng.uniform(1.0, 1.2, len(PAIRS)))
    error = Rounding(rng.uniform(0.0, 0.05, N), rng.uniform(0.0, 0.08, N), relative)
    found = certificate._bound(phi, cost, image, formula, norm, spread, error)
    np.testing.assert_array_equal(phi.cost, formula.saturated(cost))

    top, weight, r = Fraction(cost.max()), 1 - Fraction(formula.restart), Fraction(relative)
    slack = Fraction(SATURATION_ERROR) if formula.saturate else Fraction(0)
    low, high, norm_low, norm_high, moved, spreads = [], [], [], [], [], []
    for k, (i, j) in enumerate(PAIRS):
        masses = Fraction(error.masses[i]) + Fraction(error.masses[j])
        norms = Fraction(error.norms[i]) + Fraction(error.norms[j])
        moved.append(top * masses / 2)
        low.append(Fraction(phi.lower[k]) * (1 - slack) - moved[k])
        high.append(Fraction(phi.upper[k]) * (1 + slack) + moved[k])
        norm_low.append(Fraction(norm[i, j]) * (1 - r) - norms)
        norm_high.append(Fraction(norm[i, j]) * (1 + r) + norms)
        spreads.append((Fraction(spread[i, j]) * (1 + r) + masses) / 2)
    tau, restart = Fraction(formula.tau), Fraction(formula.restart)
    factor_low = restart * max(low) / max(norm_high) if restart else tau * top
    factor_high = restart * max(high) / max(norm_low) if restart else tau * top
    distance = [Fraction(image[pair]) for pair in PAIRS]
    term_low = [factor_low * value for value in norm_low]
    term_high = [factor_high * value for value in norm_high]
    shares = [weight * h / (weight * h + term) for h, term in zip(high, term_low, strict=True)]
    exact = {
        "high": max(
            (weight * h + t) / d for h, t, d in zip(high, term_high, distance, strict=True)
        ),
        "theta": max(shares) if formula.has_norm else Fraction(1),
        "cap": max(s + tau * t for s, t in zip(spreads, norm_high, strict=True)),
        "gap": max((h - a) / h for h, a in zip(high, low, strict=True)),
        "nearest": Fraction(min(cost[k, l] for k in range(BINS) for l in range(k))) / top,
        "rounding": max(
            (weight * shift + after - before) / (weight * Fraction(upper) * (1 + slack) + after)
            for shift, before, after, upper in zip(
                moved, term_low, term_high, phi.upper, strict=True
            )
        ),
    }
    below = min((weight * a + t) / d for a, t, d in zip(low, term_low, distance, strict=True))
    assert below * (1 - OUTWARD) <= Fraction(found.low) <= below
    for name in ("high", "theta", "cap"):
        assert exact[name] <= Fraction(getattr(found, name)) <= exact[name] * (1 + OUTWARD)
    for name in ("gap", "nearest", "rounding"):
        assert getattr(found, name) == pytest.approx(float(exact[name]), rel=1e-13)


def test_errors_of_a_norm_follow_from_the_number_of_its_terms():
    X = np.array([[1, 2, 0, 4], [0, 3, 1, 0], [5, 0, 0, 2], [1, 1, 1, 1]])
    for norm, terms in (("l1", (4, 3)), ("l2", (4, 3)), ("lsa", None)):
        errors = certificate.rounding_errors(
            Problem.from_data(X, formula=Formula(tau=0.1, norm=norm))
        )
        for error, most in zip(errors, terms or (None, None), strict=True):
            if most is None:
                assert error.relative == 0.0
                assert not error.norms.any()
                continue
            assert error.relative == (2 * most + 8) * 2.0**-53
            np.testing.assert_array_equal(error.norms, error.masses)
            assert (error.masses > 0).any()


@pytest.mark.parametrize(("tau", "passes"), [(0.0, 3), (0.1, 1)])
def test_the_number_of_transport_problems(tau, passes):
    X = np.arange(1.0, 21.0).reshape(5, 4) ** 2 % 7 + 1
    problem = Problem.from_data(X, formula=Formula(tau=tau))
    n, m = (len(side.hist.indptr) - 1 for side in (problem.samples, problem.features))
    pairs = n * (n - 1) // 2 + m * (m - 1) // 2
    assert certificate.pairs_to_certify(problem) == passes * pairs


# ------------------------------------------------------------------------ saturated pairs


def images(r1, r2, a, b, saturate, radius):
    """Radii of the images of a ball of features, in exact arithmetic, and the rate (Lemma 8)."""
    r1, r2, s, radius = map(Decimal, (r1, r2, saturate, radius))

    def kappa(nearest, size):
        x = Decimal(nearest) / s * (-size).exp()
        return x / (x.exp() - 1)

    def image(theta, factor, size):
        return (1 + Decimal(theta) * ((factor * size).exp() - 1)).ln()

    first = kappa(a.nearest, radius)
    samples = r1 + image(a.theta, first, radius)
    second = kappa(b.nearest, samples)
    features = r2 + image(b.theta, second, samples)
    return samples, features, Decimal(a.theta) * Decimal(b.theta) * first * second


def side(theta, nearest):
    return _Side(low=1.0, high=1.0, theta=theta, gap=0.0, cap=1.0, nearest=nearest, rounding=0.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_ball_around_a_saturated_pair_is_the_smallest_that_is_mapped_into_itself(seed):
    rng = np.random.default_rng(seed)
    r1, r2 = 10.0 ** rng.uniform(-9, -2, 2)
    a, b = (side(theta, nearest) for theta, nearest in rng.uniform(0.2, 0.9, (2, 2)))
    saturate = float(rng.uniform(0.2, 0.8))
    samples, features, rate = certificate._saturated_bounds(r1, r2, a, b, saturate)
    radii = np.geomspace(r2, WIDEST, RADII)
    k = int(np.flatnonzero(radii == features)[0])
    with localcontext(prec=40):
        exact, again, factor = images(r1, r2, a, b, saturate, features)
        assert exact <= Decimal(samples) <= exact * (1 + Decimal("1e-13"))
        assert again <= Decimal(features)
        assert factor <= Decimal(rate) <= factor * (1 + Decimal("1e-13"))
        smaller = float(radii[k - 1])
        assert images(r1, r2, a, b, saturate, smaller)[1] > Decimal(smaller) * (
            1 - Decimal("1e-12")
        )


@pytest.mark.parametrize("r2", [0.1, 2 * WIDEST])
def test_without_such_a_ball_there_is_no_bound(r2):
    """A distance near zero: saturation changes nothing there."""
    a = b = side(1.0, 1e-9)
    assert certificate._saturated_bounds(0.1, r2, a, b, 1.0) == (np.inf, np.inf, 1.0)


def test_residuals_of_zero_and_very_strong_saturation_are_no_obstacle():
    a, b = side(0.9, 0.5), side(0.9, 1.0)
    samples, features, rate = certificate._saturated_bounds(0.0, 0.0, a, b, 1e-6)
    assert 0.0 <= samples <= features == 1e-17
    assert rate < 1e-100


def test_the_errors_of_a_saturated_pair_are_those_of_its_ball():
    X = np.random.default_rng(0).gamma(1.0, size=(9, 7))
    proof = cm.learn(X, eps=0, tau=0, saturate=0.5, tol=1e-10).certify()
    assert 0 < proof.samples_error < 1e-9
    assert 0 < proof.features_error < 1e-9
    assert proof.samples_error != proof.features_error
    assert 0.1 < proof.rate < 1  # of saturation: without R the other bounds are infinite
