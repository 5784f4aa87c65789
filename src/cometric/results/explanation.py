"""Explanations of the distance of two items: which bins differ, and how mass moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.arguments import find, other_side
from cometric.core.histograms import MERGE_TOLERANCE
from cometric.core.problem import Problem
from cometric.core.text import printable
from cometric.core.types import Index, Metrics, Vector
from cometric.transports.base import Transport

SHOWN = 10
"""Number of flows printed, heaviest first; an entropic plan has hundreds."""

WHOLE = 1e-6
"""Missing mass up to this is due to rounding and tolerance, not to unbalanced transport."""

SHOWN_CHANGES = 6
"""Number of losses and of gains printed, largest first."""

SHOWN_ALIKE = 5
"""Number of merged bins named for each bin."""


class Change(NamedTuple):
    """The difference in mass of two items on one bin.

    ``change`` is ``second - first``: negative for a loss, positive for a gain. ``distance`` is the
    mean distance moved by the mass that leaves the bin (loss) or arrives there (gain), and
    ``share`` its fraction of the transport cost, from 0 to 1.
    """

    name: str
    first: float
    second: float
    change: float
    distance: float
    share: float


class Flow(NamedTuple):
    """Mass that moves from one bin to another, and its share of the transport cost.

    ``cost`` is per unit of mass.
    """

    source: str
    target: str
    mass: float
    cost: float
    share: float  # fraction of the transport cost


@dataclass(frozen=True)
class Explanation:
    """The differences between two items, and an optimal plan that moves one to the other.

    Its text lists the largest net losses and gains, then the flows with the most mass.

    Attributes
    ----------
    items
        The names of the two items, or their numbers in the data.
    distance
        The cost of the plan, before the tau term and the division by the singular value.
    stays
        The mass that does not move.
    unmatched
        The mass of each item outside the plan, positive for unbalanced transport only, where
        leaving mass can be cheaper than moving it. Not counted in ``distance``.
    flows
        A :class:`Flow` for each pair of bins between which mass moves, the costliest first. With
        eps > 0 the plan is entropic, hence blurred: every bin sends a little mass to every other,
        so that a few flows are a small part of it. Net changes are not blurred.
    changes
        A :class:`Change` for each bin on which the two differ, the largest first.
    learned
        The learned distance of the two, the entry of ``result.samples`` (or ``features``). Unlike
        the cost of the plan it includes the norm R, if there is one, and is scaled to a maximum
        of 1; if a metric was given, it is in the units of that metric.
    meaning
        Two phrases, printed before and after ``learned``.
    alike
        For each bin merged from several with proportional counts, the names of the others; its
        mass is their sum.
    """

    items: tuple[str, str]
    distance: float
    stays: float
    flows: list[Flow]
    changes: list[Change] = field(default_factory=list)
    unmatched: float = 0.0
    learned: float | None = None
    alike: dict[str, list[str]] = field(default_factory=dict)
    meaning: tuple[str, str] = ("learned distance", "with the norm and scaled to 1")

    @property
    def losses(self) -> list[Change]:
        """The bins on which the first item has more mass, the largest difference first."""
        return [change for change in self.changes if change.change < 0]

    @property
    def gains(self) -> list[Change]:
        """The bins on which the second item has more mass, the largest difference first."""
        return [change for change in self.changes if change.change > 0]

    def heaviest(self, count: int = SHOWN) -> list[Flow]:
        """The flows that carry the most mass."""
        return sorted(self.flows, key=lambda flow: -flow.mass)[:count]

    def __repr__(self) -> str:  # an entropic plan has hundreds of flows
        return f"<{str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        first, second = self.items
        summary = f"From {first} to {second}: transport cost {self.distance:.6g}"
        if not self.flows:
            return printable(f"{summary}, nothing moves")
        lines = [f"{summary}, {_percent(self.stays)} of the mass stays in place"]
        if self.unmatched > 0.0:
            lines[0] += f", {_percent(self.unmatched)} is not matched"
        if self.learned is not None:
            name, scale = self.meaning
            lines.append(f"  {name} {self.learned:.6g}, {scale}")
        if self.changes:
            rows = _rows_of_changes(f"more in {first}", self.losses)
            rows += _rows_of_changes(f"more in {second}", self.gains)
            lines += _aligned(rows, names=1)
        return printable("\n".join([*lines, *_table_of_flows(self), *_notes_on_alike(self)]))


def _rows_of_changes(title: str, changes: list[Change]) -> list[tuple[str, ...]]:
    """The largest changes of one sign, and the sum of the others."""
    rows: list[tuple[str, ...]] = [(title, "first", "second", "change", "cost", "distance")]
    rows += [_row(change, f"{change.distance:.4f}") for change in changes[:SHOWN_CHANGES]]
    others = changes[SHOWN_CHANGES:]
    if others:
        label = f"{len(others)} other{'s' * (len(others) > 1)}"
        rows.append(_row(Change(label, *np.sum([other[1:] for other in others], axis=0)), ""))
    return rows


def _row(change: Change, distance: str) -> tuple[str, ...]:
    masses = _percent(change.first), _percent(change.second), f"{100 * change.change:+.1f} %"
    return change.name, *masses, _percent(change.share), distance


def _table_of_flows(explanation: Explanation) -> list[str]:
    """The heaviest flows, and the sum of the others."""
    shown = explanation.heaviest()
    rows = [("from", "to", "mass", "cost", "distance")]
    rows += [
        (flow.source, flow.target, _percent(flow.mass), _percent(flow.share), f"{flow.cost:.4f}")
        for flow in shown
    ]
    others = len(explanation.flows) - len(shown)
    if others:
        rest = 1.0 - explanation.stays - explanation.unmatched
        mass = _percent(rest - sum(flow.mass for flow in shown))
        share = _percent(1.0 - sum(flow.share for flow in shown))
        rows.append((f"{others} other flow{'s' * (others > 1)}", "", mass, share, ""))
    return _aligned(rows, names=2)


def _notes_on_alike(explanation: Explanation) -> list[str]:
    """A line for each bin shown that stands for several."""
    shown = [change.name for change in explanation.losses[:SHOWN_CHANGES]]
    shown += [change.name for change in explanation.gains[:SHOWN_CHANGES]]
    shown += [name for flow in explanation.heaviest() for name in (flow.source, flow.target)]
    return [
        f"  {name} includes {', '.join(others[:SHOWN_ALIKE])}"
        + (f" and {len(others) - SHOWN_ALIKE} more" if len(others) > SHOWN_ALIKE else "")
        + ": the same counts up to scale"
        for name in dict.fromkeys(shown)
        if (others := explanation.alike.get(name))
    ]


def _aligned(rows: Sequence[tuple[str, ...]], names: int) -> list[str]:
    """Rows of text as lines: the first columns are names, the others numbers."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            text.ljust(width) if k < names else text.rjust(width)
            for k, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def explain(
    problem: Problem, metrics: Metrics, transport: Transport, i: Any, j: Any, of: str
) -> Explanation:
    """Explain the distance of items i and j of one side, by the metric of the other side."""
    side, other, cost, own = problem.samples, problem.features, metrics.features, metrics.samples
    if of == "features":
        side, other, cost, own = other, side, own, cost
    i, j = find_item(problem, of, i, "i"), find_item(problem, of, j, "j")
    first, second = int(side.labels[i]), int(side.labels[j])
    named = other.first  # the item that names each bin
    bins = [other.item_names[item] for item in named]
    items = side.item_names[i], side.item_names[j]
    if first == second:  # equal histograms: nothing moves
        return Explanation(items, 0.0, 1.0, [], learned=0.0)
    pair = side.histograms.take([first, second])
    cost = problem.formula.saturated(cost)
    source, target, mass = transport.plan(pair, cost)
    cost = transport.plan_cost(cost)
    moves = source != target
    costs = mass * cost[source, target]
    total = float(costs.sum())
    shares = costs / total if total > 0 else costs
    flows = [
        Flow(
            bins[source[e]],
            bins[target[e]],
            *map(float, (mass[e], cost[source[e], target[e]], shares[e])),
        )
        for e in np.argsort(-costs, kind="stable")
        if moves[e]
    ]
    stays, left = float(mass[~moves].sum()), 1.0 - float(mass.sum())
    changes = _changes(pair.rows, source[moves], target[moves], mass[moves], costs[moves], bins)
    alike: dict[str, list[str]] = {}
    for item, bin_ in enumerate(other.labels):
        if item != named[bin_]:
            alike.setdefault(bins[bin_], []).append(other.item_names[item])
    unmatched = left if left > WHOLE else 0.0
    learned = float(own[first, second])
    meaning = _meaning(problem, of)
    return Explanation(items, total, stays, flows, changes, unmatched, learned, alike, meaning)


def _meaning(problem: Problem, of: str) -> tuple[str, str]:
    """Phrases for the kind of distance (learned, given, computed) and for its scale."""
    if problem.fixed == of:
        return "given distance", "not learned"
    norm = "with the norm" if problem.formula.has_norm else "without a norm"
    if problem.fixed:
        return "computed distance", f"{norm}, in the units of the given metric"
    return "learned distance", f"{norm} and scaled to 1"


def find_item(problem: Problem, of: str, item: Any, argument: str) -> int:
    """The number of an item, given by name or number; errors say if the other side has the name."""
    side, other = getattr(problem, of), getattr(problem, other_side(of))
    remedy = f" Pass `of='{other_side(of)}'`."
    return find(item, side.item_names, argument, of, other.names or (), remedy)


def _changes(
    pair: sparse.csr_array,
    source: Index,
    target: Index,
    mass: Vector,
    costs: Vector,
    bins: list[str],
) -> list[Change]:
    """Net losses and gains, the largest first, with mean distances and shares of the cost."""
    first, second = pair.toarray()
    change = second - first
    left, arrived, cost_left, cost_arrived = (
        np.bincount(end, weights, minlength=len(bins))
        for weights in (mass, costs)
        for end in (source, target)
    )
    moved = np.where(change < 0, left, arrived)
    cost = np.where(change < 0, cost_left, cost_arrived)
    distance = np.divide(cost, moved, out=np.zeros(len(bins)), where=moved > 0)
    share = cost / costs.sum() if costs.sum() > 0 else cost
    return [
        Change(bins[k], *(float(column[k]) for column in (first, second, change, distance, share)))
        for k in np.argsort(-np.abs(change), kind="stable")
        if abs(change[k]) > MERGE_TOLERANCE
    ]


def _percent(share: float) -> str:
    """A percentage with one decimal, or with one significant digit if that would be 0.0."""
    share = 100 * max(share, 0.0)
    return f"{share:.1g} %" if 1e-9 < share < 0.05 else f"{share:.1f} %"
