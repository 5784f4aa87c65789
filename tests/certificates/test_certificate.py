"""Certificates: never wrong, tight enough to be useful, and honest where nothing is proved."""

import dataclasses
import warnings
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse.csgraph import connected_components

import cometric as cm
import naive
from cometric.certificates import certificate
from cometric.certificates.uniqueness import _condense, uniqueness
from cometric.core.formula import Formula
from cometric.core.problem import Problem
from cometric.core.types import Metrics
from cometric.maps.exact_map import ExactMap
from cometric.maps.norms import norm_matrices
from lifts import block_diagonal, fresh_lifts
from strategies import perturbed

TRIDIAGONAL = [[2, 1, 0], [1, 2, 1], [0, 1, 2]]


def random_problem(seed):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(2, 7, size=2)
    X = rng.gamma(rng.choice([0.2, 1.0, 5.0]), size=(n, m)) * (rng.random((n, m)) < 0.7)
    X[np.arange(n), rng.integers(0, m, n)] += 0.1 + rng.random(n)
    X[rng.integers(0, n, m), np.arange(m)] += 0.1 + rng.random(m)
    return X, float(rng.choice([1e-3, 1e-2, 0.1, 1.0]))


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
        assert (np.array(truth.values) <= np.array(proof.largest_values) * (1 + 1e-12)).all()
        assert cm.hilbert_distance(answer.samples, truth.samples) <= proof.samples_error + 1e-11
        assert cm.hilbert_distance(answer.features, truth.features) <= proof.features_error + 1e-11
        # Of the stored histograms, without what rounding has done to their masses.
        lifts, norms = fresh_lifts(answer.problem, 0.0), norm_matrices(answer.problem, "l1")
        bare = certificate.prove(answer._distinct(), lifts, Formula(tau), norms, norms)
        assert bare.gap < 1e-12
    return len(answers)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # random data repeat rows now and then
        yield


# Closed forms (docs/theory.md, section 4) and the definitions by naive means

SHARES = [(0.1, 0.0), (2.0, 0.0), (0.0, 0.3), (0.0, 0.9)]


def metric(*entries):
    """The symmetric matrix with these numbers above its zero diagonal."""
    n = next(n for n in range(2, 9) if n * (n - 1) // 2 == len(entries))
    matrix = np.zeros((n, n))
    matrix[np.triu_indices(n, 1)] = entries
    return matrix + matrix.T


def certify(X, samples, features, tau=0.0, restart=0.0):
    problem = Problem.from_data(X)
    norms = norm_matrices(problem, "l1")
    lifts = fresh_lifts(problem, 0.0)
    formula = Formula(tau, restart)
    return certificate.prove(Metrics(samples, features), lifts, formula, norms, norms)


@pytest.mark.parametrize("tau", [0.01, 0.1, 3.0])
def test_two_by_two(tau):
    # Half the l1 distances of the rows (3/4, 1/4), (1/6, 5/6) and columns (3/4, 1/4), (1/6, 5/6).
    one = metric(1.0)
    proof = certify([[3, 1], [1, 5]], one, one, tau)
    lam = mu = (1 + 2 * tau) * 7 / 12
    assert proof.value == pytest.approx((lam * mu, lam * mu), rel=1e-14)
    assert proof.value[0] <= lam * mu <= proof.value[1]
    assert proof.largest_values == pytest.approx((lam, mu), rel=1e-14)
    assert proof.rate == pytest.approx((1 + 2 * tau) ** -2, rel=1e-14)
    assert proof.rate >= (1 + 2 * tau) ** -2
    assert proof.pairs == 2
    assert proof.gap < 1e-14
    assert proof.triangle == (0.0, 0.0)
    assert 0 <= max(proof.residuals) < 1e-14
    assert proof.samples_error < 1e-14 * (1 + 1 / tau)


def test_values_of_either_side_are_bounded_by_its_own_histograms():
    # Disjoint columns and rows that share much: lam = 1, mu <= 3/4.
    proof = certify([[3, 1, 0], [0, 1, 3]], metric(1.0), metric(0.5, 1.0, 0.5), 0.5)
    assert proof.largest_values == pytest.approx((2.0, 1.5), rel=1e-15)
    assert proof.pairs == 1 + 3


@pytest.mark.parametrize("tau", [0.1, 2.0])
def test_a_cost_halved_at_one_pair_has_bounds_in_closed_form(tau):
    # X = I + 0.3 J has W = C / 1.9 for every metric C; the true answer is J - I on both sides.
    ones, halved = metric(1, 1, 1), metric(0.5, 1, 1)
    proof = certify(np.eye(3) + 0.3, ones, halved, tau)
    low, high = (0.5 + 2 * tau) / 1.9, (1 + 2 * tau) / 1.9  # of the image of `halved`
    assert proof.value == pytest.approx((low * high, 2 * high * high), rel=1e-14)
    r1, r2 = np.log(high / low), np.log(2)
    assert proof.residuals == pytest.approx((r1, r2), rel=1e-13)
    theta = 1 / (1 + 2 * tau)
    assert proof.rate == pytest.approx(theta**2, rel=1e-14)
    room = 1 - np.exp(r1 + r2) * theta**2
    if tau < 1:  # the residual is too large
        assert room < 0
        assert proof.samples_error == proof.features_error == np.inf
        assert "C3 theorem     no bound: the residual is too large for this tau" in str(proof)
        return
    features = np.exp(r2) * (1 - theta + theta * np.exp(r1) * (1 - theta)) / room
    samples = np.exp(r1) * (1 - theta + theta * np.exp(r2) * (1 - theta)) / room
    assert proof.features_error == pytest.approx(np.log(features), rel=1e-13)
    assert proof.samples_error == pytest.approx(np.log(samples), rel=1e-13)
    assert proof.features_error > np.log(2)  # the true error


def test_tiny_errors_keep_their_digits():
    r1, r2, a, b = 1e-13, 3e-13, 0.5, 0.25
    # To first order in r: C3 is linear.
    samples, features = certificate._vector_bounds(r1, r2, a, b)
    assert samples == pytest.approx((r1 + a * r2) / (1 - a * b), rel=1e-11)
    assert features == pytest.approx((r2 + b * r1) / (1 - a * b), rel=1e-11)
    assert certificate._vector_bounds(0.0, 0.0, a, b) == (0.0, 0.0)


def test_vector_bounds_are_rounded_outward():
    rng = np.random.default_rng(0)
    for _ in range(50):
        given = *(10.0 ** rng.uniform(-15, -1, 2)), *rng.uniform(0.01, 0.9, 2)
        r1, r2, a, b = map(Decimal, given)
        with localcontext(prec=60):
            room = 1 - (r1 + r2).exp() * a * b
            samples = (r1.exp() * (1 - a + a * r2.exp() * (1 - b)) / room).ln()
            features = (r2.exp() * (1 - b + b * r1.exp() * (1 - a)) / room).ln()
        for found, exact in zip(
            certificate._vector_bounds(*given), (samples, features), strict=True
        ):
            assert exact <= Decimal(found) <= exact * (1 + Decimal("1e-13"))


@pytest.mark.parametrize("theta", [1.0, 2.0])
def test_without_contraction_there_is_no_bound(theta):
    assert certificate._vector_bounds(0.0, 0.0, theta, 1.0) == (np.inf, np.inf)


class Loose:
    """A lift known only to within a factor."""

    def __init__(self, values, factor):
        self.values, self.factor = values, factor

    def bounds(self, cost):
        values = self.values[np.triu_indices(len(self.values), 1)]
        return values / self.factor, values * self.factor


@pytest.mark.parametrize("factor", [1.0, 1.25, 2.0])
@pytest.mark.parametrize(("tau", "restart"), SHARES)
def test_all_numbers_follow_from_bounds_of_the_distances(tau, restart, factor):
    """Section 3.8 of docs/theory.md, written out."""
    rng = np.random.default_rng(0)
    sizes = 4, 3
    metrics, lifted, norms, spreads = (
        Metrics(*(metric(*rng.uniform(0.5, 2, n * (n - 1) // 2)) for n in sizes)) for _ in range(4)
    )
    lifts = [Loose(values, factor) for values in lifted]
    proof = certificate.prove(metrics, lifts, Formula(tau, restart), norms, spreads)
    lows, highs, thetas, caps = [], [], [], []
    for side, cost in enumerate(reversed(metrics)):
        off = np.triu_indices(sizes[side], 1)
        image, W, U, delta = (x[side][off] for x in (metrics, lifted, norms, spreads))
        moved = np.array([W / factor, W * factor]) * (1 - restart)
        if restart:
            fixed = restart * np.array([[W.max() / factor], [W.max() * factor]]) * U / U.max()
        else:
            fixed = tau * cost.max() * np.array([U, U])
        phi = moved + fixed
        lows.append((phi[0] / image).min())
        highs.append((phi[1] / image).max())
        thetas.append((moved[1] / (moved[1] + fixed[0])).max())
        caps.append((delta / 2 + tau * U).max())
    assert proof.value == pytest.approx((np.prod(lows), np.prod(highs)), rel=1e-13)
    assert proof.value[0] < np.prod(lows) * (1 + 1e-16)
    assert proof.value[1] > np.prod(highs) * (1 - 1e-16)
    assert proof.residuals == pytest.approx(np.log(np.divide(highs, lows)), rel=1e-13)
    assert proof.rate == pytest.approx(np.prod(thetas), rel=1e-13)
    assert proof.largest_values == pytest.approx(caps[::-1], rel=1e-13)
    assert proof.gap == pytest.approx(1 - factor**-2, abs=1e-15)
    assert proof.pairs == 6 + 3
    expected = [max(naive.triangle_violation(m), 0.0) / m.max() for m in metrics]
    assert proof.triangle == pytest.approx(expected, rel=1e-13)
    assert max(expected) > 0.05
    assert proof.contracts
    assert proof.uniqueness[:3] == (True, 1, 1)
    assert proof.tau == tau
    assert proof.restart == restart


def test_bounds_are_rounded_outward():
    one, third = metric(1.0), metric(1 / 3)
    lifts = [Loose(third, 1.0), Loose(third, 1.0)]
    both = Metrics(one, one)
    proof = certificate.prove(both, lifts, Formula(1.0), both, both)
    exact = Fraction(1 / 3) + 1
    low, high = map(Fraction, proof.value)
    assert exact**2 * (1 - Fraction(1, 2**47)) < low < exact**2 < high
    assert high < exact**2 * (1 + Fraction(1, 2**47))
    share = (Fraction(1 / 3) / exact) ** 2
    assert share < Fraction(proof.rate) < share * (1 + Fraction(1, 2**47))


def test_bins_that_cost_nothing_leave_no_gap():
    one = metric(1.0)
    free = Loose(0.0 * one, 1.0)
    both = Metrics(one, one)
    proof = certificate.prove(both, (free, free), Formula(1.0), both, both)
    assert proof.gap == 0.0
    assert proof.rate == 0.0
    assert proof.value == pytest.approx((1.0, 1.0), rel=1e-14)


@pytest.mark.parametrize(("side", "other"), [("samples", "features"), ("features", "samples")])
@pytest.mark.parametrize(
    ("where", "bad"),
    [((0, 1), 0.0), ((0, 2), -1.0), ((1, 2), np.nan), ((0, 1), np.inf), ((1, 1), 1.0)],
)
def test_either_metric_must_be_positive_off_the_diagonal_only(side, other, where, bad):
    wrong = metric(1, 1, 1)
    wrong[where] = wrong[where[::-1]] = bad
    pair = Metrics(**{side: wrong, other: metric(1, 1, 1)})
    with pytest.raises(ValueError, match=f"`metrics.{side}` has zero, negative or non-finite"):
        certify(np.eye(3) + 0.3, *pair, tau=0.1)


def test_a_certificate_reads_as_written():
    ones = metric(1, 1, 1)
    proof = certify(np.eye(3) + 0.3, ones, metric(0.5, 1, 2.5), tau=2.0)
    assert dataclasses.replace(
        proof, gap=3e-16, samples_error=0.25, features_error=0.5, rate=0.04
    ).__str__() == (
        "Certificate, from one exact transport sweep on each side\n"
        "  about          the histograms as stored\n"
        "  rounding       of stored masses moves a distance by at most 0.0e+00, relative: included "
        "below\n"
        "  C1 theorem     6 distances exact to a relative 3.0e-16\n"
        f"  C2 theorem     lam mu in [{proof.value[0]:.12g}, {proof.value[1]:.12g}]\n"
        "  C3 theorem     samples 2.5e-01, features 5.0e-01 (Hilbert distance to the true ones)\n"
        "  C4 theorem     lam <= 2.632, mu <= 2.632; a full sweep shrinks errors to 0.04\n"
        "  C5 diagnostic  some detours are shorter than the direct distance, by up to 40 % of the "
        "largest distance:\n"
        f"{17 * ' '}neighbors and clusterings of these distances are unaffected, but methods that "
        "rely on the\n"
        f"{17 * ' '}triangle inequality (ball trees, some search indexes) may miss neighbors\n"
        "  C6 theorem     unique: yes, since tau > 0"
    )
    proof = certify(np.eye(3) + 0.3, ones, ones)
    assert proof.rate == 1.0
    plain = str(proof)
    assert "no bound exists at tau = 0, where a small residual proves nothing" in plain
    assert "C4 theorem     lam <= 0.5263, mu <= 0.5263\n" in plain
    assert "C5 diagnostic  the triangle inequality holds\n" in plain
    assert "C6 diagnostic  unique: no, 3 groups of distances do not depend on one another" in plain
    restarted = certify(np.eye(3) + 0.3, ones, metric(0.01, 1, 1), restart=0.01)
    assert "no bound: the residual is too large for this restart" in str(restarted)
    assert "shrinks errors to 0.9801" in str(restarted)
    assert "C6 theorem     unique: yes, since restart > 0" in str(restarted)


# Uniqueness at tau = 0 (docs/theory.md, section 5)


def optimal_cells(a, b, cost):
    """Cells that carry mass in some optimal plan, and how many of them one vertex uses.

    The mean of all optimal plans is optimal: one linear program looks for the plan in which as
    many cells as possible carry a little.
    """
    d, little = len(a), 1e-4
    marginals = np.vstack([np.kron(np.eye(d), np.ones(d)), np.kron(np.ones(d), np.eye(d))])
    both, flat, none = np.concatenate([a, b]), cost.ravel(), np.zeros(d * d)
    best = linprog(flat, A_eq=marginals, b_eq=both, method="highs-ds")
    shared = linprog(
        np.concatenate([none, none - 1]),
        A_ub=np.vstack([np.concatenate([flat, none]), np.hstack([-np.eye(d * d), np.eye(d * d)])]),
        b_ub=np.concatenate([[best.fun + 1e-11], none]),
        A_eq=np.hstack([marginals, 0 * marginals]),
        b_eq=both,
        bounds=[(0, None)] * (d * d) + [(0, little)] * (d * d),
    )
    return shared.x[d * d :].reshape(d, d) > little / 2, (best.x > 1e-6).sum()


def naive_graph(A, B, metrics):
    """Strong components, sources and ties of the graph of all optimal couplings."""
    pairs = {
        side: list(combinations(range(len(cost)), 2))
        for side, cost in zip(("samples", "features"), metrics, strict=True)
    }
    nodes = [(side, pair) for side in pairs for pair in pairs[side]]
    edges, tied = np.zeros((len(nodes), len(nodes))), False
    for hist, cost, side, other in (
        (A, metrics.features, "samples", "features"),
        (B, metrics.samples, "features", "samples"),
    ):
        for i, j in pairs[side]:
            cells, vertex = optimal_cells(hist[i], hist[j], cost)
            tied |= cells.sum() > vertex
            for k, l in pairs[other]:
                if cells[k, l] or cells[l, k]:
                    edges[nodes.index((other, (k, l))), nodes.index((side, (i, j)))] = 1
    count, label = connected_components(edges, connection="strong")
    entered = {label[v] for u, v in zip(*np.nonzero(edges), strict=True) if label[u] != label[v]}
    return count, count - len(entered), tied


@pytest.mark.parametrize("seed", range(12))
def test_the_graph_is_that_of_all_optimal_couplings(seed):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(2, 5, size=2)
    A, B = rng.integers(0, 4, (n, m)) + np.eye(n, m), rng.integers(0, 4, (m, n)) + np.eye(m, n)
    A[:, -1] += 0.5
    B[:, -1] += 0.25
    A, B = (hist / hist.sum(axis=1, keepdims=True) for hist in (A, B))
    metrics = Metrics(
        *(metric(*rng.integers(1, 4, k * (k - 1) // 2).astype(float)) for k in (n, m))
    )
    count, sources, tied = naive_graph(A, B, metrics)
    found = uniqueness(metrics, ExactMap(A), ExactMap(B))
    assert (found.components, found.sources) == (count, sources)
    scaled = Metrics(1e-6 * metrics.samples, 1e6 * metrics.features)
    assert uniqueness(scaled, ExactMap(A), ExactMap(B)) == found
    if sources > 1:
        assert found.unique is False
        assert found.reason == f"{sources} groups of distances do not depend on one another"
    elif count == 1:
        assert found.unique is True
        assert found.reason == "optimal couplings connect all distances"
    elif tied:
        assert found.unique is None
        assert found.reason == (
            f"one group of distances determines {count - 1} others, "
            "but optimal couplings are not unique"
        )
    else:
        assert found.unique is True
        assert found.reason == "one group of distances determines all others"


def test_the_number_of_a_pair_is_its_place_above_the_diagonal():
    for d in range(2, 7):
        pairs = {pair: number for number, pair in enumerate(combinations(range(d), 2))}
        off, number = _condense(np.arange(d * d, dtype=np.int32), d)
        for cell in range(d * d):
            pair = tuple(sorted(divmod(cell, d)))
            assert (cell in off) == (pair in pairs)
            assert pair not in pairs or number[cell] == pairs[pair]


def test_tied_couplings_leave_uniqueness_undecided():
    J, swap = np.ones((3, 3)), np.eye(3)[[1, 0, 2]]
    A, B = (np.eye(3) + J) / 4, (swap + J) / 4
    pair = Metrics(metric(2, 1, 1), metric(2, 1, 1))
    found = uniqueness(pair, ExactMap(A), ExactMap(B))
    assert found[:3] == (None, 2, 1)
    below = Metrics(metric(1.5, 1, 1), metric(1.5, 1, 1))
    assert uniqueness(below, ExactMap(A), ExactMap(B)).unique is False


# Random problems, and what users meet


@pytest.mark.parametrize(
    ("problems", "answers"), [(40, 180), pytest.param(1000, 5850, marks=pytest.mark.slow)]
)
def test_the_true_error_never_exceeds_the_bound(problems, answers):
    assert sum(check_bounds(seed) for seed in range(problems)) > answers


def test_the_bound_is_tight_enough_to_be_useful():
    result = cm.learn(cm.datasets.torus("bimodal", 24, 20), eps=0, tau=0.1, tol=1e-12)
    proof = result.certify()
    assert proof.samples_error < 1e-10
    assert proof.features_error < 1e-10
    assert proof.value[1] / proof.value[0] - 1 < 1e-11
    assert proof.rate <= 1.2**-2


@pytest.mark.parametrize(
    ("X", "unique"),
    [
        ([[2, 1], [1, 2]], True),
        (TRIDIAGONAL, True),
        (np.eye(3), False),
        (np.eye(3) + 0.3, False),
        (block_diagonal(), False),
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


def test_repeats_with_different_distances_cannot_be_certified():
    X = np.array([[3, 1, 1, 1], [1, 2, 2, 5], [2, 1, 1, 7]], float)
    result = cm.learn(X, eps=0, tau=0.1)
    wrong = result.features.copy()
    wrong[0, 2] = wrong[2, 0] = 0.5 * wrong[0, 1]  # features 1 and 2 repeat one another
    with pytest.raises(ValueError, match="`features` has different distances for items"):
        dataclasses.replace(result, features=wrong).certify()


def test_a_norm_that_is_zero_proves_no_uniqueness():
    # All rows and columns are proportional up to 1e-9, which singular vectors do not see.
    rng = np.random.default_rng(0)
    X = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0]) * (1 + 1e-9 * rng.random((4, 3)))
    found = cm.learn(X, eps=0, tau=0.1, norm="lsa").certify()
    assert found.uniqueness.unique is None
    assert "unique: undecided, R is 0 between some different items" in str(found)
    assert cm.learn(X, eps=0, tau=0.1).certify().uniqueness.unique is True
