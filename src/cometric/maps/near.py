"""Sinkhorn divergences of histograms that are nearly equal, by their second-order expansion.

The divergence of a and b = a + h is of second order in h: computed as a difference of transport
costs, it would vanish in their rounding errors. With the plan of a to itself, diag(u) K diag(u),
and eps = 1,

    S(a, b) = <h, w (I - T^2)^-1 (G h / w)> / 2 + O(h^3),    G, T and w at a,
    v = (K u)^-s,    G = diag(v) K diag(v),    w = v (K u),    T = s diag(1 / w) G diag(a),

where s is 1 for balanced transport, for which w = 1, and rho / (rho + eps) otherwise. (G and v are
defined outside the support of a, too.) For the proof, differentiate the equations of the
potentials of a and b, and those of b and b, at b = a. In the mean of the expansions at a and at b
the terms of third order cancel, since S is symmetric.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from cometric.core.rounding import close_pairs
from cometric.core.types import Index, Matrix, Vector

REACH = 1e-4
"""Largest l1 distance of histograms compared by the expansion."""

ACCURATE = 3e-3
"""Largest change of the logarithms of scalings from a to b; its square is the relative error."""

SOLVABLE = 1e9
"""The largest condition number of the equations of an expansion."""


class NearPairs:
    """The pairs of nearly equal histograms in the rows of a matrix."""

    def __init__(self, rows: sparse.csr_array) -> None:
        self._rows = rows
        i, j = close_pairs(rows, REACH).T
        self._keys = np.sort(self._key(i, j))

    def _find(self, index: Index) -> Index:
        """The positions in ``index`` of nearly equal pairs."""
        if not len(self._keys):
            return np.empty(0, np.int64)
        i, j = index.T
        return np.flatnonzero(np.isin(self._key(i, j), self._keys) & (i != j))

    def _key(self, i: Index, j: Index) -> Index:
        keys: Index = np.minimum(i, j) * self._rows.shape[0] + np.maximum(i, j)
        return keys

    def expand(
        self, index: Index, scalings: Vector, are_logs: bool, scaled: Matrix, damping: float
    ) -> tuple[Index, Vector]:
        """The positions in ``index`` of pairs with an accurate expansion, and their divergences.

        Divergences are divided by eps, as is the cost ``scaled``. ``scalings`` are the u of the
        histograms to themselves, or their logarithms, and ``damping`` is s.
        """
        places = self._find(index)
        pairs = np.concatenate([index[places], index[places, ::-1]])
        order = np.argsort(pairs[:, 0], kind="stable")
        values, are_accurate = np.zeros(len(pairs)), np.zeros(len(pairs), dtype=bool)
        logs = scalings if are_logs or not len(places) else np.log(scalings)
        cuts = np.flatnonzero(np.diff(pairs[order, 0], prepend=-1, append=-1))
        for start, end in pairwise(cuts.tolist()):
            some = order[start:end]
            found = self._expand(int(pairs[some[0], 0]), pairs[some, 1], logs, scaled, damping)
            values[some], are_accurate[some] = found
        values = values.reshape(2, -1).mean(axis=0)
        accurate = are_accurate.reshape(2, -1).all(axis=0)
        return places[accurate], values[accurate]

    def _expand(
        self, one: int, others: Index, logs: Vector, scaled: Matrix, s: float
    ) -> tuple[Vector, Vector]:
        """Divergences of one histogram from ``others``, and whether they are accurate."""
        rows = self._rows
        support = slice(rows.indptr[one], rows.indptr[one + 1])
        near = rows[others]
        bins = np.union1d(rows.indices[support], near.indices)
        a = rows[[one]].toarray()[0, bins]
        h = (near.toarray()[:, bins] - a).T
        if not h.any():
            return np.zeros(len(others)), np.ones(len(others), dtype=bool)
        cost = scaled[np.ix_(bins, bins)]
        own = np.searchsorted(bins, rows.indices[support])
        log_Ku = logsumexp(logs[support] - cost[:, own], axis=1)
        log_v = -s * log_Ku
        with np.errstate(over="ignore", invalid="ignore"):
            G = np.exp(log_v[:, None] + log_v - cost)
            w = np.exp((1.0 - s) * log_Ku)
            T = s * G * a / w[:, None]
            system = np.eye(len(bins)) - T @ T
            if s == 1.0:  # constants do not matter
                system += a
            y = _solve(system, G @ h / w[:, None])
        is_accurate = np.abs(y).max(axis=0) <= ACCURATE
        y[:, ~is_accurate] = 0.0
        values = 0.5 * (h * (w[:, None] * y)).sum(axis=0)
        return values, is_accurate


def _solve(system: Matrix, right: Matrix) -> Matrix:
    """The solution, or infinity if inaccurate (for small eps, divergences are linear in h)."""
    lost = np.full(right.shape, np.inf)
    try:
        inverse = np.linalg.inv(system)
    except np.linalg.LinAlgError:
        return lost
    condition = np.linalg.norm(system, 1) * np.linalg.norm(inverse, 1)
    y: Matrix = inverse @ right if condition <= SOLVABLE else lost  # not if it is NaN
    return y
