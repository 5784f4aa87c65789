"""The result of ``choose``: a table of candidates, the one to use, and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

RANDOM = "random"
"""The baseline with random neighbors."""

ALONE = "R alone"
"""The baseline R of the default settings, without transport."""

ERRORS = 2.0
"""A difference counts if it is above this many of its standard errors."""

RESOLUTION = 0.05
"""The smallest difference of losses that matters, as a share of the gap to random neighbors; see
docs/notes/choosing.md."""


class Row(NamedTuple):
    """One candidate: its loss, compared with those of others."""

    name: str
    learned: bool  # otherwise a baseline
    loss: float
    error: float  # standard error of the loss
    difference: float  # to the first candidate; negative is better
    difference_error: float  # its standard error, from differences sample by sample
    behind: float  # largest excess over another loss, plus two standard errors
    seconds: float  # of all splits


@dataclass(frozen=True, repr=False)
class Choice:
    """Candidates ranked by how well their neighbors predict hidden data.

    Parameters
    ----------
    table
        A row per candidate, the smallest loss first. ``pd.DataFrame(choice.table)`` makes a table
        of pandas.
    candidates
        The options of ``learn`` for each candidate that learns, by name. The first is used unless
        another candidate is better.
    n_samples, n_features
        Size of the part of the data that was used: samples, and features to learn from.
    n_splits, n_neighbors
        As passed to :func:`choose`.
    call
        How to learn from these data; the advice adds the settings to it.
    """

    table: tuple[Row, ...]
    candidates: Mapping[str, Mapping[str, Any]]
    n_samples: int
    n_features: int
    n_splits: int
    n_neighbors: int
    call: str = "cm.learn(X)"

    @property
    def best(self) -> str:
        """The name of the candidate with the smallest loss, perhaps by chance."""
        return self.table[0].name

    @property
    def first(self) -> str:
        """The name of the first candidate, to be used unless another is better."""
        return next(iter(self.candidates))

    @property
    def picked(self) -> str | None:
        """The name of the candidate to use, or None if the losses cannot decide.

        The first candidate, unless it may be worse than another by more than a margin. Otherwise
        the best one that is better than the first by more than the margin, and not worse than any
        other by as much. The margin is a twentieth of the gap to random neighbors; "may" and "is"
        refer to two standard errors.
        """
        margin = RESOLUTION * self._range
        known = [row for row in self.table if row.behind < margin]
        if self.row(self.first) in known:
            return self.first
        better = (row for row in known if -row.difference - ERRORS * row.difference_error > margin)
        return next((row.name for row in better), None)

    @property
    def settings(self) -> dict[str, Any]:
        """Options for ``cm.learn(X, **choice.settings)``: those of the candidate that was picked.

        If that is a baseline or None, those of the first.
        """
        return dict(self.candidates.get(self.picked or "", self.candidates[self.first]))

    @property
    def advice(self) -> str:
        """What to do, in a sentence or two."""
        options = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        learning = f"{self.call.removesuffix(')')}{options})"
        first, random = self.row(self.first), self.row(RANDOM)
        most = f"{self._percent(first)} of the distance to random samples"
        if self.picked is None:
            why = f"{first.name} may be behind another candidate by {most}, or ahead of all"
            if random.difference <= ERRORS * random.difference_error:
                why = f"neighbors by {first.name} do not predict hidden features better than random"
            return f"Cannot decide: {why}. Use {learning}, the safe choice."
        if self.picked == first.name:
            also = f"{ALONE} (cm.baselines.reference) by {self._percent(self.row(ALONE))}"
            return f"Use {learning}: it is behind no other candidate by more than {most}; {also}."
        row = self.row(self.picked)
        what = f"use {learning}"
        if not row.learned:
            what = f"use {row.name} for samples; learn if you need distances between features"
        return (
            f"Neighbors by {row.name} predict hidden features better than those by {first.name} "
            f"(loss {row.loss:.3f} against {first.loss:.3f}, standard error of the difference "
            f"{row.difference_error:.2g}): {what}."
        )

    def row(self, name: str) -> Row:
        """The row of a candidate."""
        return next(row for row in self.table if row.name == name)

    @property
    def _range(self) -> float:
        """The gap between the smallest loss and that of random neighbors."""
        return self.row(RANDOM).loss - self.table[0].loss

    def _percent(self, row: Row) -> str:
        """``behind`` as a percentage of the gap to random neighbors."""
        return f"{100.0 * row.behind / self._range:.0f} %" if self._range > 0.0 else "-"

    def plot(self, ax: Any = None) -> Any:
        """The losses with their standard errors, see :func:`cometric.plot.choice`."""
        from cometric import plot

        return plot.choice(self, ax)

    def __str__(self) -> str:
        return f"{self.summary()}\n{self.advice}"

    def summary(self) -> str:
        """The table as text, without the advice."""
        names = [row.name if row.learned else f"({row.name})" for row in self.table]
        width = max(len("candidate"), *map(len, names))
        lines = [
            f"{self.n_samples} samples, {self.n_features} features to learn from, "
            f"{self.n_splits} splits; {self.n_neighbors} neighbors predict hidden features",
            f"  {'candidate':{width}}   loss  ± error  {'to ' + self.first:>16}  behind  seconds",
        ]
        for name, row in zip(names, self.table, strict=True):
            to_first = f"{row.difference:+.4f} ± {row.difference_error:.4f}"
            lines.append(
                f"  {name:{width}}  {row.loss:.4f} ± {row.error:.4f}  "
                f"{to_first if row.name != self.first else '':>16}  {self._percent(row):>6}  "
                f"{row.seconds:7.1f}"
            )
        lines.append("  (baselines in parentheses; behind: by at most this, as a share of the")
        return "\n".join([*lines, "  distance to random, with two standard errors)"])

    __repr__ = __str__
