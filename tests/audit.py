"""Everything that is claimed of plans, duals and values, recomputed for many random pairs."""

from typing import NamedTuple

import numpy as np

from cometric.maps.exact_map import ExactMap
from strategies import random_problems

# What the worst pair may have.
ALLOWED = {
    "gap relative to the value": 1e-12,
    "gap over the largest cost": 1e-15,
    "violation of f + g <= C, over the largest cost": 1e-15,
    "error of the marginals": 1e-15,
    "mass of a plan below zero": 0.0,
    "<P, C> beside the value, relative": 1e-14,
    "difference from POT, relative": 1e-12,
    "difference from POT, over the largest cost": 1e-15,
}


class Audit(NamedTuple):
    """What was found of some pairs, one entry each; ``scale`` is the largest cost."""

    values: np.ndarray
    oracle: np.ndarray  # the value of POT, or NaN where it was not asked
    marginals: np.ndarray  # largest error of the plan's marginals
    lightest: np.ndarray  # smallest mass of the plan
    costs: np.ndarray  # |<P, C> - value|
    infeasible: np.ndarray  # largest f_k + g_l - C_kl
    gaps: np.ndarray  # how far <P, C> lies above <a, f> + <b, g>
    scale: np.ndarray


def audit(hist, cost, index, oracle=None):
    """One row for each pair, in the order of :class:`Audit`.

    The gap is summed as <P, C - f - g>, a sum of small terms: <P, C> - <a, f> - <b, g> would
    lose all digits where the value is much smaller than the cost.
    """
    plans = ExactMap(hist).plans(cost, index)
    found = []
    for p, (i, j) in enumerate(index):
        part = slice(plans.start[p], plans.start[p + 1])
        source, target, mass = plans.source[part], plans.target[part], plans.mass[part]
        if i == j or not len(mass):  # equal histograms: everything stays in place
            source = target = np.flatnonzero(hist[i])
            mass = hist[i, source]
        rows, columns = np.flatnonzero(hist[i]), np.flatnonzero(hist[j])
        f, g = np.zeros(len(cost)), np.zeros(len(cost))
        f[rows], g[columns] = plans.f[p], plans.g[p]
        slack = cost[source, target] - f[source] - g[target]
        found.append(
            (
                plans.values[p],
                np.nan if oracle is None else oracle(hist[i], hist[j], cost),
                max(
                    np.abs(sums(source, mass, len(cost)) - hist[i]).max(),
                    np.abs(sums(target, mass, len(cost)) - hist[j]).max(),
                ),
                mass.min(),
                abs(mass @ cost[source, target] - plans.values[p]),
                (f[rows, None] + g[columns] - cost[np.ix_(rows, columns)]).max(),
                mass @ np.abs(slack),
                cost.max(),
            )
        )
    return np.array(found)


def sums(bins, mass, d):
    """Mass on each bin, in more digits than it has: adding up a hundred doubles loses some."""
    total = np.zeros(d, np.longdouble)
    np.add.at(total, bins, mass.astype(np.longdouble))
    return total


def audit_random_pairs(count, seed, oracle=None):
    """The audit of ``count`` pairs of :func:`strategies.random_problems`."""
    groups = [audit(*group, oracle) for group in random_problems(count, seed)]
    return Audit(*np.concatenate(groups).T)


def worst(found):
    """The worst of all pairs in each respect of ``ALLOWED``."""
    zero = found.values == 0
    # POT prices to 2.2e-15 of the largest cost, and both solvers read masses that carry the
    # rounding of 1: nothing below 1e-3 of the largest cost can agree to 1e-12 of itself. Such
    # values are held to 1e-15 of that cost, and to a relative gap of 1e-12 like all others.
    large = found.values > 1e-3 * found.scale
    small = ~large & (found.scale > 0)
    asked = ~np.isnan(found.oracle)
    errors = np.abs(found.values - found.oracle)
    scale = np.where(found.scale > 0, found.scale, 1.0)
    value = np.where(zero, 1.0, found.values)
    measured = (
        (found.gaps / value)[~zero],
        found.gaps / scale,
        found.infeasible / scale,
        found.marginals,
        -found.lightest,
        found.costs / value,
        (errors / value)[large & asked],
        (errors / scale)[small & asked],
    )
    return {
        name: max(0.0, float(part.max(initial=0.0)))
        for name, part in zip(ALLOWED, measured, strict=True)
    }
