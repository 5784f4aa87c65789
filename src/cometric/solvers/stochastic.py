"""Stochastic iteration: each step evaluates only a random part of the pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from cometric.core.arguments import check_count, check_number
from cometric.core.cones import log_width
from cometric.core.types import (
    Coupled,
    DistanceMap,
    Index,
    Iterate,
    Matrix,
    Metrics,
    NegativeDistances,
    Traits,
    Vector,
)

DRAWS = ("parts", "pairs")

FAR = 1.0
"""Above this residual, the images of an epoch replace all distances at once, at its end."""


class Part(NamedTuple):
    """Some of the pairs."""

    pairs: Index
    number: int | None = None  # of the parts whose solutions the map stores

    def distances(self, phi: DistanceMap, cost: Matrix) -> Vector:
        """The distances of these pairs."""
        if self.number is None:
            return phi.pairs(cost, self.pairs)
        return phi.part(self.number, self.pairs, cost)


@dataclass(frozen=True)
class StochasticIterate(Iterate):
    """An iterate with its step number, and statistics of the steps of the last epoch.

    ``features_seen`` and ``samples_seen`` have a row per step of an epoch: the number of pairs,
    <C, v>, <C, C>, and the minimum and maximum of v / C, for entries C and their images v. Rows
    are NaN until their step has been taken.
    """

    features_seen: Matrix = field(default_factory=lambda: np.full((1, 5), np.nan))
    samples_seen: Matrix = field(default_factory=lambda: np.full((1, 5), np.nan))
    steps: int = 0
    images: tuple[Matrix, Matrix] | None = None  # of features, of samples, to use after the epoch
    parts: tuple[list[Part], list[Part]] = field(default=([], []), metadata={"saved": False})


@dataclass(frozen=True)
class StochasticIteration:
    """Move a random ``fraction`` of the pairs toward their image, on one side and then the other.

    With C the distances of the sampled pairs, v their images and nu the least-squares factor in
    v = nu C (the adaptive scaling of the paper), they become (1 - alpha) C + alpha v / nu.

    By default alpha = 1: a sampled pair is replaced by its image, and nu is computed from the
    latest values of all pairs. For exact maps and ``tau`` > 0 the full step is a contraction in the
    maximum norm of the logarithms, so entries may be updated in any order, and errors shrink as
    fast per evaluated pair as in the power iteration. Far from the solution, a mixture of old and
    new distances is a poor cost, so the images of an epoch replace all distances at once. The steps
    alpha = 1 / sqrt(t) of the paper average out noise that does not arise when values are stored;
    for these use ``paper()``.

    The ``residual`` is the spread of v / C over the last epoch, in which steps evaluate as many
    pairs as exist. It is an estimate, since each step had another cost: only a full sweep measures
    the true residual.

    Parameters
    ----------
    fraction
        Fraction of the pairs of either side that a step evaluates.
    draw
        "parts" partitions all pairs at random, once, and visits each part once per epoch, so that
        the map can reuse its solutions. "pairs" draws new pairs in each step, with the steps of the
        paper: an epoch misses a pair with probability 1/e.
    random_state
        Seed. The pairs of a step depend only on the seed and the number of the step.
    """

    fraction: float = 0.1
    draw: str = "parts"
    random_state: int = 0
    traits: ClassVar[Traits] = Traits(samples_pairs=True, keeps_history=False)

    def __post_init__(self) -> None:
        check_number("fraction", self.fraction)
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"`fraction` is {self.fraction}; it must be above 0 and at most 1.")
        check_count("random_state", self.random_state, least=0)
        if self.draw not in DRAWS:
            raise ValueError(f"`draw` is {self.draw!r}; choose {', '.join(map(repr, DRAWS))}.")

    @classmethod
    def paper(cls, fraction: float = 0.1, random_state: int = 0) -> StochasticIteration:
        """The scheme of the paper: additive steps 1 / sqrt(t), adaptive scaling, new draws."""
        return cls(fraction, "pairs", random_state)

    def init(self, phi: Coupled, start: Metrics) -> StochasticIterate:
        parts: tuple[list[Part], list[Part]] = ([], [])
        rows, images = self._epoch, None
        if self.draw == "parts":
            lifts = (phi.to_features, phi.to_samples)
            rows = min(rows, *(_pair_count(lift.shape[0]) for lift in lifts))
            parts = self._cut(lifts[0], rows, side=0), self._cut(lifts[1], rows, side=1)
            if rows > 1:
                images = np.zeros_like(start.features), np.zeros_like(start.samples)
        seen = np.full((rows, 5), np.nan)
        return StochasticIterate(
            start, (1.0, 1.0), features_seen=seen, samples_seen=seen, images=images, parts=parts
        )

    def step(self, phi: Coupled, now: StochasticIterate) -> StochasticIterate:
        t = now.steps + 1
        metrics, values = [now.metrics.features, now.metrics.samples], list(now.values)
        seen = [now.features_seen, now.samples_seen]
        images = None if now.images is None else list(now.images)
        for side, lift in enumerate((phi.to_features, phi.to_samples)):
            part, row = self._choose(lift, now.parts[side], t, side)
            cost, metric = metrics[1 - side], metrics[side]
            image = part.distances(lift, cost)
            image, seen[side] = _judge(image, part, row, metric, seen[side])
            values[side] = self._scale(seen[side], row)
            if images is None:
                metrics[side] = self._move(part, image / values[side], metric, t)
            else:
                images[side] = _set(images[side], part, image)
        residual = max(map(_spread, seen))
        if images is not None and t % len(seen[0]) == 0:
            metrics = [image / image.max() for image in images]
            images = images if residual > FAR else None
        return replace(
            now,
            metrics=Metrics(samples=metrics[1], features=metrics[0]),
            values=(values[0], values[1]),
            features_seen=seen[0],
            samples_seen=seen[1],
            steps=t,
            sweeps=math.floor(t * self.fraction),
            residual=residual,
            images=None if images is None else (images[0], images[1]),
        )

    def _scale(self, seen: Matrix, row: int) -> float:
        """The singular value by least squares, over the latest values of all parts or this draw."""
        cross, square = (np.nansum(seen, axis=0) if self.draw == "parts" else seen[row])[1:3]
        return float(cross / square)

    def _move(self, part: Part, image: Vector, metric: Matrix, t: int) -> Matrix:
        """The metric with the pairs of a part moved toward their scaled images."""
        i, j = part.pairs.T
        alpha = 1.0 if self.draw == "parts" else 1.0 / math.sqrt(t)
        moved = _set(metric, part, (1.0 - alpha) * metric[i, j] + alpha * image)
        moved /= moved.max()
        return moved

    def _cut(self, lift: DistanceMap, count: int, side: int) -> list[Part]:
        """All pairs in a random order, cut into ``count`` parts."""
        n = lift.shape[0]
        order = self._generator(0, side).permutation(_pair_count(n))
        indices = [_pairs(np.sort(numbers), n) for numbers in np.array_split(order, count)]
        lift.divide(indices)
        return [Part(index, number) for number, index in enumerate(indices)]

    def _choose(self, lift: DistanceMap, parts: list[Part], t: int, side: int) -> tuple[Part, int]:
        """The part to evaluate in a step, and its row in the statistics of an epoch."""
        if self.draw == "parts":
            epoch, step = divmod(t - 1, len(parts))
            row = int(self._generator(epoch + 1, side).permutation(len(parts))[step])
            return parts[row], row
        n, rng = lift.shape[0], self._generator(t, side)
        count = math.ceil(self.fraction * _pair_count(n))
        numbers = rng.choice(_pair_count(n), count, replace=False, shuffle=False)
        return Part(_pairs(np.sort(numbers), n)), (t - 1) % self._epoch

    @property
    def _epoch(self) -> int:
        return math.ceil(1.0 / self.fraction)

    def _generator(self, number: int, side: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.Philox(key=self.random_state, counter=[0, 0, side, number])
        )


def _judge(
    image: Vector, part: Part, row: int, metric: Matrix, seen: Matrix
) -> tuple[Vector, Matrix]:
    """The usable images of the pairs of a part, and the updated statistics of the epoch.

    A poor cost can give negative divergences. Such a pair keeps its distance until it is evaluated
    again, and the residual is infinite until then. Raises if <C, v> of a part is not positive; the
    run then starts over, with all pairs.
    """
    old = metric[part.pairs[:, 0], part.pairs[:, 1]]
    cross, square, ratios = old @ image, old @ old, image / old
    if not cross > 0.0:
        raise NegativeDistances(
            f"{int((image <= 0.0).sum())} of {len(image)} sampled pairs have no positive distance"
        )
    seen = seen.copy()
    seen[row] = len(old), cross, square, ratios.min(), ratios.max()
    return np.where(image > 0.0, image, old * (cross / square)), seen


def _set(metric: Matrix, part: Part, values: Vector) -> Matrix:
    """A copy of the metric with new values at the pairs of a part."""
    i, j = part.pairs.T
    changed = metric.copy()
    changed[i, j] = changed[j, i] = values
    return changed


def _spread(seen: Matrix) -> float:
    """Log of the largest over the smallest ratio v / C of an epoch; infinite until it is over."""
    if np.isnan(seen).any():
        return math.inf
    return log_width((float(seen[:, 3].min()), float(seen[:, 4].max())))


def _pair_count(n: int) -> int:
    return n * (n - 1) // 2


def _pairs(numbers: Index, n: int) -> Index:
    """The pairs i < j with these numbers, in row-major order."""
    starts = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))])  # of the pairs (i, i + 1)
    i = np.searchsorted(starts, numbers, side="right") - 1
    return np.stack([i, i + 1 + numbers - starts[i]], axis=1).astype(np.int64)
