"""Policy iteration: solve with fixed couplings, then update the couplings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from cometric.core.arguments import check_count, check_number
from cometric.core.arrays import upper
from cometric.core.cones import normalize
from cometric.core.types import Coupled, Matrix, Metrics, Traits, freezable
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.power import power_step
from cometric.solvers.trials import TrialIterate, begin, give_up, judge


@dataclass(frozen=True)
class PolicyIterate(TrialIterate):
    """An iterate and the optimal couplings of the sweep that led to it."""

    frozen: Coupled | None = None


@dataclass(frozen=True)
class PolicyIteration:
    """Iterate with frozen couplings to convergence, then update the couplings by one sweep.

    The frozen map includes the maximum in the tau term (Hoffman-Karp); it needs no transport
    solves. For tau > 0, and with frozen problems solved exactly, this reaches the singular vectors
    after finitely many sweeps, in practice a handful (docs/theory.md, section 6).

    For any map the worst case is power iteration with some additional sweeps. A frozen solve is
    discarded if it neither narrows the Collatz-Wielandt bracket nor lowers its upper end (which
    exact frozen solves never raise). Then power steps follow: 2 after the first failure, 4 more
    after each further one. Likewise, 10 frozen solves in a row are discarded if they do not lower
    the residual to 95 % of its lowest value so far. Among N power steps there are at most
    sqrt(N / 2) + 1 failures.

    Parameters
    ----------
    frozen_steps
        Largest number of steps of one frozen solve.
    accuracy
        Tolerance of a frozen solve, as a fraction of the last residual.
    far
        If the residual of the start exceeds this, the start is first improved with nearly optimal
        plans, in a fraction of the time of a sweep.
    inner
        Solver of the frozen problems.
    """

    frozen_steps: int = 1000
    accuracy: float = 1e-4
    far: float = 0.2
    inner: AndersonIteration = field(default_factory=AndersonIteration)
    traits: ClassVar[Traits] = Traits(freezes=True)

    def __post_init__(self) -> None:
        check_count("frozen_steps", self.frozen_steps, least=0)
        check_number("accuracy", self.accuracy)
        check_number("far", self.far, finite=False)

    def init(self, phi: Coupled, start: Metrics) -> PolicyIterate:
        return PolicyIterate(start, values=(1.0, 1.0))

    def step(self, phi: Coupled, now: PolicyIterate) -> PolicyIterate:
        if now.frozen is None or now.wait > 0:
            samples = now.metrics.samples if now.point is None else now.point
            if now.sweeps == 0:
                samples = self._approach(phi, now)
            return replace(_sweep(phi, samples, now), point=None, wait=max(0, now.wait - 1))
        after = _sweep(phi, self._settle(now.frozen, now), begin(now))
        if after.residual < now.residual or after.bracket[1] < now.bracket[1]:
            return judge(after)
        return give_up(replace(now, sweeps=after.sweeps))

    def _approach(self, phi: Coupled, now: PolicyIterate) -> Matrix:
        """A better start for the first sweep: the fixed point with nearly optimal plans.

        Returns the start itself if its residual is at most ``far``, or the maps have no ``sketch``.
        """
        samples = now.metrics.samples
        to_features = phi.to_features.sketch(samples)
        if to_features is None:
            return samples
        to_samples = phi.to_samples.sketch(normalize(to_features(samples))[0])
        if to_samples is None:
            return samples
        rough = Coupled(to_samples, to_features)
        first = power_step(rough, samples, now)
        return self._settle(rough, first) if self.far < first.residual < np.inf else samples

    def _settle(self, frozen: Coupled, now: PolicyIterate) -> Matrix:
        """The fixed point of the frozen map, to a tolerance proportional to the residual."""
        tol = max(1e-14, self.accuracy * now.residual)
        state = self.inner.init(frozen, now.metrics)
        best, stalled = state, 0
        for _ in range(self.frozen_steps):
            state = self.inner.step(frozen, state)
            if upper(state.metrics.samples).min() < 1e-12:  # tau = 0: some distances tend to 0
                return now.metrics.samples
            stalled = 0 if state.residual < best.residual else stalled + 1
            best = state if stalled == 0 else best
            if best.residual <= tol or stalled > 3 or not np.isfinite(state.residual):
                break
        return best.metrics.samples


def _sweep(phi: Coupled, samples: Matrix, now: PolicyIterate) -> PolicyIterate:
    """A power step from ``samples``, computed with its optimal couplings, which are stored."""
    to_features = freezable(phi.to_features).freeze(samples)
    features, _ = normalize(to_features(samples))
    frozen = Coupled(freezable(phi.to_samples).freeze(features), to_features)
    return replace(power_step(frozen, samples, now), frozen=frozen)
