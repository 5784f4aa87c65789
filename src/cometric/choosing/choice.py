"""The result of ``choose``: a table of candidates, the one to use, and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cometric.choosing.hiding import ERRORS

RANDOM = "random"
"""The baseline that takes other samples at random for neighbors."""

ALONE = "R alone"
"""The baseline that is R of the default settings, without transport."""

RESOLUTION = 0.05
"""The loss of a candidate is known well enough if it is at most this far above that of any other,
as a share of the distance to random neighbors; see docs/notes/choosing.md."""


class Row(NamedTuple):
    """One candidate: its loss, and how much larger than another loss it can be."""

    name: str
    learned: bool  # otherwise a baseline
    loss: float
    error: float  # standard error of the loss
    difference: float  # to the first candidate; negative is better
    difference_error: float  # its standard error, from differences sample by sample
    behind: float  # at most this much above the loss of any other, by two standard errors
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
        """The name of the candidate with the smallest loss, which may be so by chance."""
        return self.table[0].name

    @property
    def first(self) -> str:
        """The name of the first candidate, to be used unless another is better."""
        return next(iter(self.candidates))

    @property
    def picked(self) -> str | None:
        """The name of the candidate to use, or None if the losses cannot decide.

        The first candidate, if its loss is surely no more than a twentieth of the distance to
        random neighbors above any other loss. Otherwise the best of which the same is known,
        if it is better than the first by more than two standard errors.
        """
        first = self._row(self.first)
        for row in (first, *self.table):
            better = row == first or row.difference < -ERRORS * row.difference_error
            if row.name != RANDOM and better and self._known(row):
                return row.name
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """Options for ``cm.learn(X, **choice.settings)``.

        Those of the candidate that was picked, or of the first if that is a baseline or there is
        none.
        """
        return dict(self.candidates.get(self.picked or "", self.candidates[self.first]))

    @property
    def advice(self) -> str:
        """What to do, in a sentence or two."""
        options = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return self.advise(f"{self.call.removesuffix(')')}{options})")

    def advise(self, learning: str) -> str:
        """The advice, with the call or the command that learns with these settings."""
        first, random = self._row(self.first), self._row(RANDOM)
        if self.picked is None and random.difference <= ERRORS * random.difference_error:
            return (
                f"Cannot decide: neighbors by {self.first} predict hidden features no better than "
                f"random samples do (loss {first.loss:.3f} against {random.loss:.3f}). If you "
                f"learn, use {learning}."
            )
        if self.picked is None:
            return (
                f"Cannot decide: the loss of {self.first} may be above that of another candidate "
                f"by {self._share(first)} of the distance to random samples, or below all others. "
                f"Use {learning}, the safe choice."
            )
        if self.picked == self.first:
            alone = any(row.name == ALONE and self._known(row) for row in self.table)
            return (
                f"Use {learning}: no other candidate is better by more than {self._share(first)} "
                "of the distance to random samples."
                + f" For samples {ALONE} is as good (cm.baselines.reference)." * alone
            )
        row = self._row(self.picked)
        what = f"use {learning}"
        if not row.learned:
            what = f"use {row.name} for samples; learn if you need distances between features"
        return (
            f"Neighbors by {row.name} predict hidden features better than those by {self.first} "
            f"(loss {row.loss:.3f} against {first.loss:.3f}, standard error of the difference "
            f"{row.difference_error:.2g}): {what}."
        )

    def _row(self, name: str) -> Row:
        return next(row for row in self.table if row.name == name)

    @property
    def _range(self) -> float:
        """From the smallest loss to that of random neighbors."""
        return self._row(RANDOM).loss - self.table[0].loss

    def _known(self, row: Row) -> bool:
        return row.behind < RESOLUTION * self._range

    def _share(self, row: Row) -> str:
        """The most that the loss of this candidate can be above another, in words."""
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
                f"{to_first if row.name != self.first else '':>16}  {self._share(row):>6}  "
                f"{row.seconds:7.1f}"
            )
        return "\n".join(
            [
                *lines,
                "  (baselines in parentheses; behind: at most this much of the distance to random "
                "samples above another loss)",
            ]
        )

    __repr__ = __str__
