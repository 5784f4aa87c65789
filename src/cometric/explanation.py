"""Where the mass goes between two items: an optimal plan as a table."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.problem import Side
from cometric.types import Index, Matrix, Vector

SHOWN = 10
"""Flows that are printed, those with the most mass; a blurred plan has hundreds."""


class Flow(NamedTuple):
    """Mass that goes from one bin to another, and what it adds to the distance."""

    source: str
    target: str
    mass: float
    cost: float
    share: float  # of the whole transport cost


@dataclass(frozen=True)
class Explanation:
    """An optimal plan between two items, the costliest flows first; printed, the heaviest.

    ``stays`` is the mass that both have in common and that does not move; ``distance`` is the
    cost of the plan, before the tau term and the division by the singular value. With eps > 0
    the plan is the entropic one: blurred, every bin sending a little to every other.
    """

    items: tuple[str, str]
    distance: float
    stays: float
    flows: list[Flow]

    def __repr__(self) -> str:  # a blurred plan has hundreds of flows
        return f"<{str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        first, second = self.items
        words = f"From {first} to {second}: transport cost {self.distance:.6g}"
        if not self.flows:
            return f"{words}, nothing moves"
        shown = sorted(self.flows, key=lambda flow: -flow.mass)[:SHOWN]
        rows = [("from", "to", "mass", "cost", "distance")]
        rows += [
            (
                flow.source,
                flow.target,
                _percent(flow.mass),
                _percent(flow.share),
                f"{flow.cost:.4f}",
            )
            for flow in shown
        ]
        width = max(len(name) for row in rows for name in row[:2])
        lines = [
            f"  {source:<{width}}  {target:<{width}}  {mass:>7}  {share:>7}  {away:>8}"
            for source, target, mass, share, away in rows
        ]
        others = len(self.flows) - len(shown)
        if others:
            mass = _percent(1.0 - self.stays - sum(flow.mass for flow in shown))
            share = _percent(1.0 - sum(flow.share for flow in shown))
            label = f"{others} other flow{'s' * (others > 1)}"
            lines.append(f"  {label:<{2 * width + 2}}  {mass:>7}  {share:>7}")
        return "\n".join([f"{words}, {_percent(self.stays)} of the mass stays in place", *lines])


def explain(
    side: Side, other: Side, cost: Matrix, i: Any, j: Any, of: str, eps: float = 0.0
) -> Explanation:
    """The flows between items i and j of ``side`` under ``cost`` between those of ``other``."""
    n = len(side.labels)
    for name, item in (("i", i), ("j", j)):
        if not isinstance(item, Integral):
            raise TypeError(f"`{name}` is {item!r}; pass the number of one of the {of}.")
        if not -n <= int(item) < n:
            raise IndexError(f"`{name}` is {item}; there are {n} {of}.")
    first, second = int(side.labels[i]), int(side.labels[j])
    bins = [other.called[item] for item in other.first]
    items = side.called[i], side.called[j]
    if first == second:  # repeats of one another: nothing moves
        return Explanation(items, 0.0, 1.0, [])
    source, target, mass = _plan(side.hist[[first, second]], cost, eps)
    moves = source != target
    spent = mass * cost[source, target]
    total = float(spent.sum())
    flows = [
        Flow(
            bins[source[e]],
            bins[target[e]],
            float(mass[e]),
            float(cost[source[e], target[e]]),
            float(spent[e] / total) if total > 0 else 0.0,
        )
        for e in np.argsort(-spent, kind="stable")
        if moves[e]
    ]
    stays = float(mass[~moves].sum())
    return Explanation(items, total, stays, flows)


def _plan(pair: sparse.csr_array, cost: Matrix, eps: float) -> tuple[Index, Index, Vector]:
    """Source bin, target bin and mass of every flow between two histograms."""
    if eps == 0.0:
        plan = ExactMap(pair).plans(cost, np.array([[0, 1]]))
        return plan.source, plan.target, plan.mass
    if eps == np.inf:  # independent marginals
        rows = [pair[[k]] for k in (0, 1)]
        sources, targets = (row.indices.astype(np.int64) for row in rows)
        masses = np.outer(*(row.data for row in rows))
    else:
        sources, targets, masses = EntropicMap(pair, eps).plan(cost, 0, 1)
    source, target = (grid.ravel() for grid in np.meshgrid(sources, targets, indexing="ij"))
    return source, target, masses.ravel()


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.1f} %"
