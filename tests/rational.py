"""Singular vectors of small problems to forty digits, from the data as exact fractions.

An oracle for certificates that shares nothing with the package: masses are fractions of the
entries of X, transport is solved in integers by a transportation simplex, and the fixed point is
found by freezing plans and solving the linear eigenproblem that is left, in mpmath (with saturated
costs: its linearization, which is Newton's method). What comes out
is checked by one more sweep: a Hilbert residual of 1e-35 is an error below 1e-25 for every tau
used here.
"""

from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

import numpy as np
from mpmath import mp, mpf

DIGITS = 60
BITS = 170  # below the largest cost, in which costs are integers
RESIDUAL = mpf("1e-35")


class Truth(NamedTuple):
    """lam * mu, and both metrics (maximum 1) by pairs i < j of distinct items."""

    value: mpf
    samples: dict[tuple[int, int], mpf]
    features: dict[tuple[int, int], mpf]


class Lift:
    """Histograms of one side as fractions, with R and what is added of it."""

    def __init__(self, rows, bins, own, norm, tau, restart, saturate=0.0):
        """``bins`` are the labels of the columns, ``own`` the rows that stand for all."""
        full = [[Fraction(x) / sum(map(Fraction, row)) for x in row] for row in rows]
        full = [full[i] for i in own]
        self.hist = [
            [sum(a for a, b in zip(row, bins, strict=True) if b == k) for k in range(max(bins) + 1)]
            for row in full
        ]
        self.pairs = list(combinations(range(len(full)), 2))
        self.R = {(i, j): _norm(full[i], full[j], norm) for i, j in self.pairs}
        self.top = max(self.R.values())
        self.tau, self.restart, self.saturate = mpf(tau), mpf(restart), mpf(saturate)

    def matrix(self, cost, bins):
        """Rows of the linear map that agrees with this one at ``cost``, a dictionary of pairs.

        A saturated cost g is its gradient times the cost (Euler), with one derivative in the cost
        itself and one in the largest.
        """
        top, dearest = max(cost.values()), max(bins, key=cost.__getitem__)
        g = {pair: self._saturated(c / top) for pair, c in cost.items()}
        grid = {pair: int(value * 2**BITS) for pair, (value, _, _) in g.items()}
        rows = []
        for i, j in self.pairs:
            row = dict.fromkeys(bins, mpf(0))
            for (k, l), mass in optimal_plan(self.hist[i], self.hist[j], grid).items():
                if k != l:
                    pair = min(k, l), max(k, l)
                    amount = mpf(mass.numerator) / mpf(mass.denominator)
                    row[pair] += amount * g[pair][1]
                    row[dearest] += amount * g[pair][2]
            rows.append(row)
        if self.restart:
            moved = [sum(row[e] * cost[e] for e in bins) for row in rows]
            farthest = rows[max(range(len(rows)), key=moved.__getitem__)].copy()
            for row, pair in zip(rows, self.pairs, strict=True):
                for e in bins:
                    share = self.restart * self.R[pair] / self.top
                    row[e] = (1 - self.restart) * row[e] + share * farthest[e]
        else:
            for row, pair in zip(rows, self.pairs, strict=True):
                row[dearest] += self.tau * self.R[pair]
        return rows

    def _saturated(self, x):
        """h(x), its derivative h'(x), and h(x) - x h'(x)."""
        if not self.saturate:
            return x, mpf(1), mpf(0)
        scale = -mp.expm1(-1 / self.saturate)
        value, slope = -mp.expm1(-x / self.saturate) / scale, mp.exp(-x / self.saturate) / scale
        slope /= self.saturate
        return value, slope, value - x * slope


def singular_vectors(problem, X, tau=0.0, restart=0.0, norm="l1", start=None, saturate=0.0):
    """The truth about ``X`` (or the histograms ``(A, B)``), with the repeats of ``problem`` merged.

    ``problem`` says which items count as one and which of them stands for the others, no more.
    ``start`` is a matrix between the distinct features to begin from.
    """
    A, B = X if isinstance(X, tuple) else (X, np.transpose(X))
    rows, columns = (np.asarray(side.labels) for side in (problem.samples, problem.features))
    first = problem.samples.first, problem.features.first
    with mp.workdps(DIGITS):
        formula = norm, tau, restart, saturate
        to_samples = Lift(np.asarray(A).tolist(), columns.tolist(), first[0], *formula)
        to_features = Lift(np.asarray(B).tolist(), rows.tolist(), first[1], *formula)
        cost = {
            (k, l): mpf(1) if start is None else mpf(float(start[k, l]))
            for k, l in to_features.pairs
        }
        for _ in range(60):
            down = to_samples.matrix(cost, to_features.pairs)
            samples = _apply(down, cost, to_samples.pairs)
            up = to_features.matrix(samples, to_samples.pairs)
            image = _apply(up, samples, to_features.pairs)
            ratios = [image[e] / cost[e] for e in cost]
            low, high = min(ratios), max(ratios)
            if high / low - 1 < RESIDUAL:
                scaled = [_unit(metric) for metric in (samples, image)]
                return Truth((low + high) / 2, *scaled)
            cost = _unit(_perron(down, up, to_samples.pairs, to_features.pairs, image, high))
    raise ArithmeticError(f"no fixed point: residual {float(high / low - 1):.1e}")


def hilbert(metric, truth):
    """The Hilbert distance between a float matrix and the truth, to many digits."""
    with mp.workdps(DIGITS):
        logs = [mp.log(mpf(float(metric[pair])) / value) for pair, value in truth.items()]
        return max(logs) - min(logs)


def _apply(rows, cost, pairs):
    return {pair: sum(row[e] * cost[e] for e in row) for row, pair in zip(rows, pairs, strict=True)}


def _unit(metric):
    top = max(metric.values())
    return {pair: value / top for pair, value in metric.items()}


def _perron(down, up, samples, features, guess, high):
    """The positive eigenvector of the product of two frozen maps, by inverse iteration."""
    size = len(features)
    M = mp.matrix(size, size)
    for r, row in enumerate(up):
        for c, e in enumerate(features):
            M[r, c] = sum(row[pair] * down[s][e] for s, pair in enumerate(samples))
    x = mp.matrix([guess[e] for e in features])
    for _ in range(12):
        y = M * x
        ratios = [y[r] / x[r] for r in range(size)]
        low, high = min(ratios), max(ratios)
        if high / low - 1 < RESIDUAL / 100:
            break
        shift = high * (1 + (high / low - 1) / 10)  # above the eigenvalue: the solution is positive
        x = mp.lu_solve(shift * mp.eye(size) - M, x)
        x /= max(x)
    return {e: x[c] for c, e in enumerate(features)}


def _norm(a, b, norm):
    gaps = [abs(x - y) for x, y in zip(a, b, strict=True)]
    if norm == "discrete":
        return mpf(1)
    if norm in ("l1", "linf"):
        exact = sum(gaps) if norm == "l1" else max(gaps)
        return mpf(exact.numerator) / mpf(exact.denominator)
    squares = sum(gap * gap for gap in gaps)
    return mp.sqrt(mpf(squares.numerator) / mpf(squares.denominator))


def optimal_plan(a, b, grid):
    """An optimal plan between two histograms of fractions, costs being integers by pair."""
    sources = [k for k, x in enumerate(a) if x]
    sinks = [l for l, x in enumerate(b) if x]
    supply, demand = [a[k] for k in sources], [b[l] for l in sinks]
    cost = [[0 if k == l else grid[min(k, l), max(k, l)] for l in sinks] for k in sources]
    flow = _northwest(supply, demand)
    while True:
        f, g = _potentials(flow, cost)
        entering = next(
            (
                (x, y)
                for x in range(len(sources))
                for y in range(len(sinks))
                if (x, y) not in flow and cost[x][y] < f[x] + g[y]
            ),
            None,
        )
        if entering is None:
            return {(sources[x], sinks[y]): mass for (x, y), mass in flow.items() if mass}
        _pivot(flow, entering)


def _northwest(supply, demand):
    """A spanning tree of cells with its flows, zeros included."""
    supply, demand, flow, x, y = list(supply), list(demand), {}, 0, 0
    while True:
        mass = min(supply[x], demand[y])
        flow[x, y] = mass
        supply[x] -= mass
        demand[y] -= mass
        if x == len(supply) - 1 and y == len(demand) - 1:
            return flow
        if y == len(demand) - 1 or (supply[x] == 0 and x < len(supply) - 1):
            x += 1
        else:
            y += 1


def _potentials(flow, cost):
    f, g, todo = {0: 0}, {}, list(flow)
    while todo:
        left = []
        for x, y in todo:
            if x in f:
                g[y] = cost[x][y] - f[x]
            elif y in g:
                f[x] = cost[x][y] - g[y]
            else:
                left.append((x, y))
        todo = left
    return f, g


def _pivot(flow, entering):
    """Send as much as possible around the cycle that ``entering`` closes; Bland's rule on ties."""
    x, y = entering
    path = _path(flow, x, y)
    giving = path[::2]  # cells of the path that lose what `entering` gains
    mass = min(flow[cell] for cell in giving)
    leaving = min(cell for cell in giving if flow[cell] == mass)
    for step, cell in enumerate(path):
        flow[cell] += mass if step % 2 else -mass
    del flow[leaving]
    flow[entering] = mass


def _path(flow, x, y):
    """Cells of the tree from source x to sink y, in order."""
    reached = {("source", x): []}
    todo = [("source", x)]
    while todo:
        kind, node = todo.pop()
        for cell in flow:
            if cell[kind == "sink"] != node:
                continue
            there = ("sink", cell[1]) if kind == "source" else ("source", cell[0])
            if there not in reached:
                reached[there] = [*reached[kind, node], cell]
                todo.append(there)
    return reached["sink", y]
