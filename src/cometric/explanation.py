"""Where the mass goes between two items: an optimal plan as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap
from cometric.problem import Side
from cometric.types import Index, Matrix, Vector


class Flow(NamedTuple):
    """Mass that goes from one bin to another, and what it adds to the distance."""

    source: str
    target: str
    mass: float
    cost: float
    share: float  # of the whole transport cost


@dataclass(frozen=True)
class Explanation:
    """An optimal plan between two items, the costliest flows first.

    ``stays`` is the mass that both have in common and that does not move; ``distance`` is the
    cost of the plan, before the tau term and the division by the singular value. With eps > 0
    the plan is the entropic one: blurred, every bin sending a little to every other.
    """

    items: tuple[str, str]
    distance: float
    stays: float
    flows: list[Flow]

    def __str__(self) -> str:
        first, second = self.items
        shown = self.flows[:20]
        width = max([4, *(len(name) for flow in shown for name in flow[:2])])
        lines = [
            f"From {first} to {second}: transport cost {self.distance:.6g}, "
            f"{100 * self.stays:.1f} % of the mass stays in place",
            f"  {'from':<{width}}  {'to':<{width}}  {'mass':>8}  {'cost':>8}  {'share':>6}",
        ]
        for flow in shown:
            lines.append(
                f"  {flow.source:<{width}}  {flow.target:<{width}}  {flow.mass:8.4f}  "
                f"{flow.cost:8.4f}  {100 * flow.share:5.1f}%"
            )
        if len(self.flows) > len(shown):
            rest = sum(flow.share for flow in self.flows[len(shown) :])
            lines.append(f"  and {len(self.flows) - len(shown)} more flows, {100 * rest:.1f} %")
        return "\n".join(lines)


def explain(
    side: Side, other: Side, cost: Matrix, i: int, j: int, of: str, eps: float = 0.0
) -> Explanation:
    """The flows between items i and j of ``side`` under ``cost`` between those of ``other``."""
    n = len(side.labels)
    for name, item in (("i", i), ("j", j)):
        if not -n <= item < n:
            raise IndexError(f"`{name}` is {item}; there are {n} {of}.")
    first, second = int(side.labels[i]), int(side.labels[j])
    bins = [_name(other, int(item)) for item in other.first]
    if first == second:  # repeats of one another: nothing moves
        return Explanation((_name(side, i), _name(side, j)), 0.0, 1.0, [])
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
    return Explanation((_name(side, i), _name(side, j)), total, stays, flows)


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


def _name(side: Side, item: int) -> str:
    return str(item) if side.names is None else side.names[item]
