"""The result of ``choose``: a table of candidates, the best one, and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MARGIN = 2.0
"""A difference counts if it is above this many of its standard errors."""

RANDOM = "random"
"""The baseline that takes other samples at random for neighbors."""


class Row(NamedTuple):
    """One candidate: its loss, and the difference to the loss of the best baseline."""

    name: str
    learned: bool  # otherwise a baseline
    loss: float
    error: float  # standard error of the loss
    difference: float  # to the best baseline; negative is better
    difference_error: float  # its standard error, from differences sample by sample
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
        The options of ``learn`` for each candidate that learns, by name.
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
        """The name of the candidate with the smallest loss."""
        return self.table[0].name

    @property
    def best_learned(self) -> Row:
        """The row of the best candidate that learns."""
        return next(row for row in self.table if row.learned)

    @property
    def best_baseline(self) -> Row:
        """The row of the best baseline."""
        return next(row for row in self.table if not row.learned)

    @property
    def settings(self) -> dict[str, Any]:
        """The options of the best candidate that learns: ``cm.learn(X, **choice.settings)``."""
        return dict(self.candidates[self.best_learned.name])

    @property
    def gains(self) -> bool:
        """Whether the best learned candidate beats the best baseline.

        That is, by more than twice the standard error of the difference.
        """
        row = self.best_learned
        return row.difference < -MARGIN * row.difference_error

    @property
    def advice(self) -> str:
        """What to do, in a sentence."""
        options = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return self.advise(f"{self.call.removesuffix(')')}{options})")

    def advise(self, learning: str) -> str:
        """The advice, with the call or the command that learns with the best settings."""
        row, other = self.best_learned, self.best_baseline
        if self.gains:
            rank, what = "better than", f"use {learning}"
        elif other.name == RANDOM:
            rank, what = "no better than", "there is nothing to learn in this part of the data"
        elif row.difference <= MARGIN * row.difference_error:
            rank = "as well as"
            what = (
                f"{other.name} is enough for samples; learn if you need distances between features"
            )
        else:
            rank, what = "no better than", f"use {other.name} for samples"
        whose = "random samples" if other.name == RANDOM else f"those of {other.name}"
        return (
            f"Learned neighbors predict hidden features {rank} {whose} do (loss {row.loss:.3f} "
            f"against {other.loss:.3f}, standard error of the difference "
            f"{row.difference_error:.2g}): {what}."
        )

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
            f"  {'candidate':{width}}   loss  ± error   to best baseline  seconds",
        ]
        for name, row in zip(names, self.table, strict=True):
            to_best = f"{row.difference:+.4f} ± {row.difference_error:.4f}"
            if row == self.best_baseline:
                to_best = ""
            lines.append(
                f"  {name:{width}}  {row.loss:.4f} ± {row.error:.4f}  {to_best:>16}  "
                f"{row.seconds:7.1f}"
            )
        return "\n".join([*lines, "  (baselines in parentheses)"])

    __repr__ = __str__
