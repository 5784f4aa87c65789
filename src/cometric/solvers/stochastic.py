"""Stochastic iteration: each step looks at a random part of the pairs only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cometric.cones import log_width
from cometric.types import Coupled, DistanceMap, Index, Iterate, Matrix, Metrics

STEP_SIZES: dict[str, Callable[[int], float]] = {
    "sqrt": lambda t: 1.0 / math.sqrt(t),
    "harmonic": lambda t: 1.0 / t,
}


@dataclass(frozen=True)
class StochasticIterate(Iterate):
    """An iterate that knows its number and what the last steps saw."""

    steps: int = 0
    seen: tuple[float, ...] = ()  # log-widths of the sampled ratios, the latest last


@dataclass(frozen=True)
class StochasticIteration:
    """Move a random ``fraction`` of the pairs toward their image, on one side and then the other.

    With v the images of the sampled pairs and nu their least-squares multiple of what stood there
    (the adaptive scaling of the paper), an additive update is (1 - alpha) C + alpha v / nu, a
    multiplicative one C^(1 - alpha) (v / nu)^alpha.

    By default alpha = 1: a sampled pair takes its image whole. For exact maps and ``tau`` > 0 the
    full step contracts every entry's logarithm at once, so entries may be renewed in any order,
    and errors shrink as fast per evaluated pair as in the power iteration. The paper's steps
    1 / sqrt(t) average noise that the scaling has removed already; ``paper()`` has them.

    The pairs of one epoch are a random order of all, cut into parts, so that each is renewed once;
    or each step draws anew, as in the paper, and an epoch misses a pair with probability 1/e.
    The ``residual`` is the widest spread of v / C within a step over the last epoch. Pairs of
    different steps were seen under different costs: only a full sweep says what was reached.

    Parameters
    ----------
    fraction
        Share of the pairs of either side that a step evaluates.
    step_size
        alpha: a number, "sqrt" for 1 / sqrt(t), "harmonic" for 1 / t, or a function of the step.
    multiplicative
        How a pair moves when alpha < 1.
    reshuffle
        Whether an epoch visits every pair once, or each step draws anew.
    random_state
        Seed. A step's pairs depend on it and on the number of the step, on nothing else.
    """

    fraction: float = 0.1
    step_size: float | str | Callable[[int], float] = 1.0
    multiplicative: bool = False
    reshuffle: bool = True
    random_state: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"`fraction` is {self.fraction}; it must be above 0, at most 1.")
        if isinstance(self.step_size, str) and self.step_size not in STEP_SIZES:
            raise ValueError(
                f"`step_size` is {self.step_size!r}; choose 'sqrt', 'harmonic', a number or a "
                "function of the step."
            )

    @classmethod
    def paper(cls, fraction: float = 0.1, random_state: int = 0) -> StochasticIteration:
        """The scheme of the paper: additive steps 1 / sqrt(t), adaptive scaling, new draws."""
        return cls(fraction, "sqrt", reshuffle=False, random_state=random_state)

    def init(self, phi: Coupled, start: Metrics) -> StochasticIterate:
        return StochasticIterate(start, values=(1.0, 1.0))

    def step(self, phi: Coupled, now: StochasticIterate) -> StochasticIterate:
        t = now.steps + 1
        samples, features = now.metrics
        features, lam, first = self._move(phi.to_features, samples, features, t, side=0)
        samples, mu, second = self._move(phi.to_samples, features, samples, t, side=1)
        epoch = math.ceil(1.0 / self.fraction)
        seen = (*now.seen, max(first, second))[-epoch:]
        return replace(
            now,
            metrics=Metrics(samples, features),
            values=(lam, mu),
            residual=max(seen) if len(seen) == epoch else math.inf,
            sweeps=math.floor(t * self.fraction),
            steps=t,
            seen=seen,
        )

    def _move(
        self, lift: DistanceMap, cost: Matrix, metric: Matrix, t: int, side: int
    ) -> tuple[Matrix, float, float]:
        """The metric after the step, its singular value, and the sampled residual."""
        index = self._draw(len(metric), t, side)
        i, j = index.T
        old, image = metric[i, j], lift.pairs(cost, index)
        scale = float(old @ image / (old @ old))
        alpha = self._alpha(t)
        if self.multiplicative:
            new = old ** (1.0 - alpha) * (image / scale) ** alpha
        else:
            new = (1.0 - alpha) * old + alpha * image / scale
        moved = metric.copy()
        moved[i, j] = moved[j, i] = new
        ratios = image / old
        return moved / moved.max(), scale, log_width((float(ratios.min()), float(ratios.max())))

    def _draw(self, n: int, t: int, side: int) -> Index:
        """The pairs i < j of a step, from numbers that only seed and step determine."""
        total = n * (n - 1) // 2
        parts = math.ceil(1.0 / self.fraction)
        if self.reshuffle:
            epoch, part = divmod(t - 1, parts)
            order = self._generator(epoch, side).permutation(total)
            drawn = order[part * total // parts : (part + 1) * total // parts]
            drawn = drawn if len(drawn) else order[:1]
        else:
            count = math.ceil(self.fraction * total)
            drawn = self._generator(t, side).choice(total, count, replace=False, shuffle=False)
        drawn.sort()
        # Pairs are numbered row by row; ``starts`` are the numbers of the pairs (i, i + 1).
        starts = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))])
        i = np.searchsorted(starts, drawn, side="right") - 1
        return np.stack([i, i + 1 + drawn - starts[i]], axis=1).astype(np.int64)

    def _generator(self, number: int, side: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.Philox(key=self.random_state, counter=[0, 0, side, number])
        )

    def _alpha(self, t: int) -> float:
        if isinstance(self.step_size, str):
            return STEP_SIZES[self.step_size](t)
        return float(self.step_size(t) if callable(self.step_size) else self.step_size)
