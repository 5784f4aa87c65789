"""Certificates compared with exact arithmetic: their claims about the data hold."""

import dataclasses
import warnings
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.optimize import linprog

import cometric as cm
import rational
from cometric.certificates import certificate
from cometric.core.formula import Formula
from cometric.core.histograms import NORMALIZED, SMOOTHED, quantization_errors, quantize
from cometric.core.problem import Problem
from cometric.maps.norms import norm_matrices
from lifts import fresh_lifts
from strategies import perturbed

KINDS = ["digits", "one heavy column", "near repeats", "wide range", "gamma", "sparse", "repeats"]
KINDS += ["histograms"]


def random_data(seed):
    """A small matrix of one of the kinds in which rounding matters, or a pair of histograms."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    n, m = rng.integers(2, 6, size=2)
    X = rng.integers(1, 10, (n, m)).astype(float)
    if kind == "one heavy column":
        X[:, 0] = 1e6 * rng.uniform(0.9, 1.1, n)
    elif kind == "near repeats":
        X[:] = X[0] * (1.0 + 10.0 ** rng.uniform(-11.5, -3) * rng.standard_normal((n, m)))
    elif kind == "wide range":
        X = np.exp(rng.normal(0.0, rng.choice([4.0, 8.0]), (n, m)))
    elif kind == "gamma":
        X = rng.gamma(rng.choice([0.2, 1.0, 5.0]), size=(n, m))
    elif kind == "sparse":
        X = X * (rng.random((n, m)) < 0.5) + np.eye(n, m) + (np.arange(m) >= n) + 0.0
    elif kind == "repeats":
        X = X[rng.integers(0, n, n + 2)] * rng.integers(1, 4, (n + 2, 1))
    elif kind == "histograms":
        A, B = rng.gamma(1.0, size=(n, m)), rng.gamma(1.0, size=(m, n))
        return kind, tuple(hist / hist.sum(axis=1, keepdims=True) for hist in (A, B)), rng
    X = X[:, X.any(axis=0)]
    return kind, X if rng.random() < 0.5 else X.T.copy(), rng


def check_against_fractions(seed, saturated=False):
    """For answers to a random problem, what exceeds its certificate; also the kind of the data."""
    kind, X, rng = random_data(seed)
    norm = str(rng.choice(["l1", "l1", "l1", "l2", "linf", "discrete"]))
    share = {"tau": float(rng.choice([1e-3, 1e-2, 0.1, 1.0]))}
    if rng.random() < 0.3:
        share = {"tau": 0.0, "restart": float(rng.choice([0.02, 0.1, 0.5]))}
    tol = 10.0 ** rng.uniform(-13, -2)
    if saturated:
        if rng.random() < 0.2:
            share = {"tau": 0.0}
        share["saturate"] = float(rng.choice([0.05, 0.2, 0.5, 2.0, 100.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # repeats, a wide range, a tiny tolerance
        try:
            result = cm.learn(X, eps=0, norm=norm, tol=tol, **share)
        except ValueError:  # all rows or all columns are proportional: nothing to learn
            return kind, None
        if not result.converged and share["tau"] == 0.0 and "restart" not in share:
            return kind, None  # no positive pair need exist
        truth = rational.singular_vectors(
            result.problem, X, norm=norm, start=result._distinct().features, **share
        )
        answers = [result, perturbed(result, rng, 10.0 ** rng.uniform(-14, -1))]
        return kind, [wrong for answer in answers for wrong in exceeded(answer, truth)]


def exceeded(answer, truth):
    """The bounds of a certificate that the truth does not keep."""
    proof, found = answer.certify(), answer._distinct()
    low, high = proof.value
    with mp.workdps(rational.DIGITS):
        errors = [
            (name, rational.hilbert(metric, true), bound)
            for name, metric, true, bound in (
                ("samples", found.samples, truth.samples, proof.samples_error),
                ("features", found.features, truth.features, proof.features_error),
            )
        ]
        wrong = [
            f"{name} off by {float(error):.3g}, certified {bound:.3g}"
            for name, error, bound in errors
            if error > mpf(bound) + mpf("1e-25")
        ]
        if not mpf(low) <= truth.value <= mpf(high):
            wrong.append(f"value {truth.value} outside [{low!r}, {high!r}]")
    return wrong


@pytest.mark.parametrize("saturated", [False, True])
@pytest.mark.parametrize("seed", range(3 * len(KINDS)))
def test_no_certificate_is_exceeded(seed, saturated):
    _, wrong = check_against_fractions(seed, saturated)
    assert not wrong


@pytest.mark.parametrize("norm", ["l1", ("l1", "l1"), ("l1", 1)])
def test_nearly_equal_rows_widen_the_bounds_and_no_more_than_they_must(norm):
    # Differences of 1e-12 between masses near 1, which float64 keeps to 1e-16.
    X = np.array(
        [[1, 2.821807935651275e-07], [1, 3.4598397126748776e-11], [1, 3.5168044845111906e-11]]
    )
    result = cm.learn(X, eps=0, tau=0.01, tol=1e-12, norm=norm)
    proof = result.certify()
    assert proof.rounding == cm.learn(X, eps=0, tau=0.01, tol=1e-12).certify().rounding
    truth = rational.singular_vectors(result.problem, X, tau=0.01)
    error = rational.hilbert(result.samples, truth.samples)
    assert 1e-8 < error <= proof.samples_error < 1e-3
    assert 1e-7 < proof.rounding < 1e-5
    assert proof.value[0] <= truth.value <= proof.value[1]


def test_only_norms_of_differences_are_rounded():
    X = np.random.default_rng(0).uniform(0.1, 1.0, (6, 5))
    for side, norm in enumerate([("l1", "lsa"), ("lsa", "l1")]):
        result = cm.learn(X, eps=0, tau=0.1, norm=norm)
        rounding = certificate.rounding_errors(result.problem)
        assert rounding[side].norms.any()
        assert not rounding[1 - side].norms.any()


def test_heavy_columns_cost_no_digits():
    # The light column decides the rows; the heavy one is nearly all of each row.
    rng = np.random.default_rng(0)
    X = np.stack([1e6 * rng.uniform(0.9, 1.1, 6), rng.integers(1, 10, 6)], axis=1)
    proof = cm.learn(X, eps=0, tau=0.1, tol=1e-13).certify()
    assert proof.rounding < 1e-11
    assert proof.samples_error < 1e-9


def test_a_certificate_says_what_it_is_about():
    X = np.array([[3.0, 1, 1, 1], [1, 2, 2, 5], [2, 1, 1, 7]])
    with pytest.warns(UserWarning, match="repeat"):
        text = str(cm.learn(X, eps=0, tau=0.1).certify())
    assert "the data as float64, rows and columns divided by their sums in exact" in text
    assert "repeats (0 samples, 1 features, the same to within 1e-12) count as one" in text
    assert "rounding       of stored masses moves a distance by at most" in text
    balanced = cm.learn(np.eye(3) + 0.3, eps=0, tau=0.1, normalization_steps=3).certify()
    assert balanced.about.startswith("the balanced data as float64")


def test_metrics_that_are_not_symmetric_cannot_be_certified():
    result = cm.learn([[2, 1, 1], [1, 2, 1], [1, 1, 3]], eps=0, tau=0.1)
    askew = result.samples.copy()
    askew[0, 1] *= 1 + 1e-13
    with pytest.raises(ValueError, match="`metrics.samples` is not symmetric"):
        dataclasses.replace(result, samples=askew).certify()


# What the widening rests on


@pytest.mark.parametrize("smoothing", [0.0, 1e-9, 0.3])
@pytest.mark.parametrize("spread", [0.5, 10.0])
def test_masses_are_as_exact_as_claimed(smoothing, spread):
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(0.0, spread, (30, 40))) * (rng.random((30, 40)) < 0.7)
    X[:, 0] += 1.0
    X[0] += 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a wide range
        problem = Problem.from_data(X, smoothing=smoothing)
    worst = Fraction(0)
    for i in range(30):
        row = [Fraction(x) for x in X[i].tolist()]
        exact = [(x / sum(row) + Fraction(smoothing)) / (1 + 40 * Fraction(smoothing)) for x in row]
        stored = problem.samples.full[[i]].toarray()[0].tolist()
        worst = max(
            worst, *(abs(Fraction(a) / b - 1) for a, b in zip(stored, exact, strict=True) if b)
        )
    bound = SMOOTHED if smoothing else NORMALIZED
    assert 0 < worst <= Fraction(bound) == Fraction(problem.mass_error)


@pytest.mark.parametrize("heavy", [1.0, 1e4, 1e8])
def test_integer_masses_are_as_exact_as_claimed(heavy):
    rng = np.random.default_rng(1)
    X = rng.gamma(1.0, size=(20, 30))
    X[:, 3] *= heavy
    side = Problem.from_data(X).samples
    errors, quanta = (
        quantization_errors(side.full, NORMALIZED),
        quantize(side.full).reshape(X.shape),
    )
    for i in range(20):
        row = [Fraction(x) for x in X[i].tolist()]
        off = sum(
            abs(Fraction(int(q), 2**62) - x / sum(row)) for q, x in zip(quanta[i], row, strict=True)
        )
        assert off <= Fraction(errors[i])
    assert errors.max() < (1e-16 if heavy == 1e8 else 1e-15)  # one bin with nearly all the mass


def test_rounding_errors_change_transport_and_norms_by_their_bounds():
    """Both bounds of section 3.8 hold for histograms with rounding errors, and are attained."""
    one = 1.0 - np.eye(2)
    hist = np.array([[0.75, 0.25], [0.25, 0.75]])
    problem = Problem.from_data((hist, hist))
    lifts, norms = fresh_lifts(problem, 0.0), norm_matrices(problem, "l1")
    rounding = certificate.Rounding(np.array([0.02, 0.04]), np.array([0.02, 0.04]), 0.0)
    pair = cm.Metrics(one, one)
    proof = certificate.prove(pair, lifts, Formula(0.5), norms, norms, (rounding, rounding))
    # Moved apart (0.76, 0.24), (0.23, 0.77): W = 0.53, R = 1.06; together 0.47 and 0.94.
    low, high = 0.47 + 0.5 * 0.94, 0.53 + 0.5 * 1.06
    assert proof.value == pytest.approx((low**2, high**2), rel=1e-12)
    assert proof.largest_values == pytest.approx((high, high), rel=1e-12)
    assert proof.rate == pytest.approx((0.53 / (0.53 + 0.5 * 0.94)) ** 2, rel=1e-12)
    assert proof.gap == pytest.approx(0.06 / 0.53, rel=1e-12)
    assert proof.rounding == pytest.approx((0.03 + 0.06) / (0.5 + 0.53), rel=1e-12)


# The oracle itself


@pytest.mark.parametrize("seed", range(20))
def test_plans_in_fractions_are_those_of_a_linear_program(seed):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 7))
    a, b = (
        [Fraction(int(x), int(w.sum())) for x in w]
        for w in (rng.integers(0, 4, d) + np.eye(d, dtype=int)[0] for _ in range(2))
    )
    grid = {pair: int(rng.integers(1, 9)) for pair in combinations(range(d), 2)}
    plan = rational.optimal_plan(a, b, grid)
    marginals = np.vstack([np.kron(np.eye(d), np.ones(d)), np.kron(np.ones(d), np.eye(d))])
    flat = [0 if k == l else grid[min(k, l), max(k, l)] for k in range(d) for l in range(d)]
    best = linprog(flat, A_eq=marginals, b_eq=[float(x) for x in a + b]).fun
    assert float(sum(mass * flat[k * d + l] for (k, l), mass in plan.items())) == pytest.approx(
        best
    )
    assert [sum(m for (k, _), m in plan.items() if k == i) for i in range(d)] == a
    assert [sum(m for (_, l), m in plan.items() if l == i) for i in range(d)] == b


def test_the_oracle_knows_the_closed_forms():
    problem = Problem.from_data(np.eye(4) + 0.5)
    truth = rational.singular_vectors(problem, np.eye(4) + 0.5, tau=0.25)
    assert abs(truth.value - (mpf("1.5") / 3) ** 2) < mpf("1e-14")  # mp's default digits
    assert set(truth.samples.values()) == {mpf(1)}
