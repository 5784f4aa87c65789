"""Entropic transport of small histograms to fifty digits, each proved by its own duality gap.

Newton's method in mpmath instead of Sinkhorn sweeps, which small eps would make endless.
"""

import numpy as np
from mpmath import mp, mpf

WORKING = 75  # digits, some of which small eps takes away
DIGITS = 50


def random_case(seed):
    """Two histograms of two to four bins among five, a cost, an eps between 1e-4 and 1e3."""
    rng = np.random.default_rng(seed)
    hist = np.zeros((2, 5))
    for row in hist:
        bins = rng.choice(5, rng.integers(2, 5), replace=False)
        row[bins] = rng.dirichlet(np.full(len(bins), rng.choice([0.5, 1.0, 5.0])))
    if rng.random() < 0.5:
        points = rng.random((5, 2))
        cost = np.abs(points[:, None] - points).sum(axis=-1)
    else:  # no metric
        upper = np.triu(rng.exponential(size=(5, 5)), 1)
        cost = upper + upper.T
    return hist, cost, 10.0 ** rng.uniform(-4, 3)


def divergence(a, b, cost, eps):
    """The debiased divergence of two histograms."""
    with mp.workdps(WORKING):
        unit = mpf(float(eps)) * mpf(float(cost.max()))
        return unit * (
            _pair(a, b, cost, unit) - (_alone(a, cost, unit) + _alone(b, cost, unit)) / 2
        )


def _problem(a, b, cost, unit):
    """Masses that sum to 1, and the cost over eps, on the supports."""
    rows, columns = np.flatnonzero(a), np.flatnonzero(b)
    sides = [[mpf(float(x)) for x in side[side > 0]] for side in (a, b)]
    mass = [[x / sum(side) for x in side] for side in sides]
    return *mass, [[mpf(float(cost[k, l])) / unit for l in columns] for k in rows]


def _pair(a, b, cost, unit):
    """Min <P, C / eps> + <P, log P>, by the concave function of y = log v with x eliminated."""
    a, b, M = _problem(a, b, cost, unit)
    top, level = max(map(max, M)), mpf(1)
    y = [mpf(0)] * len(b)

    def at(y, share):
        x = [
            mp.log(m) - _log_sum([v - share * c for v, c in zip(y, row, strict=True)])
            for m, row in zip(a, M, strict=True)
        ]
        return x, _dot(a, x) + _dot(b, y)

    # C / eps comes in gradually: Newton's method then never starts far away.
    while True:
        share = min(mpf(1), level / top)
        while True:
            x, value = at(y, share)
            P = [[mp.exp(u + v - share * c) for v, c in zip(y, row, strict=True)]
                 for u, row in zip(x, M, strict=True)]  # fmt: skip
            slope = [m - sum(column) for m, column in zip(b, zip(*P, strict=True), strict=True)]
            if max(map(abs, slope)) < mpf(10) ** (5 - WORKING if share == 1 else -5):
                break
            size = len(b) - 1  # a constant may be added to y: keep its last entry
            H = mp.matrix(size, size)
            for k in range(size):
                for l in range(size):
                    H[k, l] = -sum(p[k] * p[l] / m for p, m in zip(P, a, strict=True))
                H[k, k] += sum(p[k] for p in P)
            way = [*mp.lu_solve(H, mp.matrix(slope[:-1])), mpf(0)]
            y = _climb(lambda y, s=share: at(y, s)[1], y, way, value, _dot(slope, way))
        if share == 1:
            return _proved(x, y, a, b, M)
        level *= 4
        y = [4 * v if level < top else v * top * 4 / level for v in y]


def _alone(a, cost, unit):
    """The same of a histogram to itself, where both scalings are one."""
    a, _, M = _problem(a, a, cost, unit)
    x = [mp.log(m) / 2 for m in a]

    def plan(x):
        return [[mp.exp(u + v - c) for v, c in zip(x, row, strict=True)]
                for u, row in zip(x, M, strict=True)]  # fmt: skip

    def value(x):
        return 2 * _dot(a, x) - sum(map(sum, plan(x)))

    while True:
        P = plan(x)
        slope = [m - sum(row) for m, row in zip(a, P, strict=True)]
        if max(map(abs, slope)) < mpf(10) ** (5 - WORKING):
            return _proved(x, x, a, a, M)
        H = mp.matrix(P) + mp.diag([sum(row) for row in P])
        way = list(mp.lu_solve(H, mp.matrix(slope)))
        x = _climb(value, x, way, value(x), 2 * _dot(slope, way))


def _climb(function, start, way, value, slope):
    """Newton's step, or so much of it that the function rises as it should."""
    step = mpf(1)
    while True:
        there = [u + step * v for u, v in zip(start, way, strict=True)]
        if function(there) >= value + step * slope / 4 - mpf(10) ** (8 - WORKING):
            return there
        step /= 2


def _proved(x, y, a, b, M):
    """The dual value, if the primal one of the plan rounded to its marginals is the same."""
    P = [[mp.exp(u + v - c) for v, c in zip(y, row, strict=True)]
         for u, row in zip(x, M, strict=True)]  # fmt: skip
    lower = _dot(a, x) + _dot(b, y) + 1 - sum(map(sum, P))
    P = [[p * min(1, m / sum(row)) for p in row] for m, row in zip(a, P, strict=True)]
    shares = [min(1, m / sum(column)) for m, column in zip(b, zip(*P, strict=True), strict=True)]
    P = [[p * s for p, s in zip(row, shares, strict=True)] for row in P]
    rows = [m - sum(row) for m, row in zip(a, P, strict=True)]
    columns = [m - sum(column) for m, column in zip(b, zip(*P, strict=True), strict=True)]
    missing = sum(rows) or mpf(1)
    upper = mpf(0)
    for k, row in enumerate(P):
        for l, p in enumerate(row):
            q = p + rows[k] * columns[l] / missing
            if q > 0:
                upper += q * (M[k][l] + mp.log(q))
    assert abs(upper - lower) < mpf(10) ** -DIGITS * (1 + abs(lower)), "not solved"
    return lower


def _dot(x, y):
    return sum(u * v for u, v in zip(x, y, strict=True))


def _log_sum(terms):
    top = max(terms)
    return top + mp.log(sum(mp.exp(t - top) for t in terms))
