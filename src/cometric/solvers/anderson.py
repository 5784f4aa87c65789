"""Anderson acceleration of the power iteration, on the logarithm of the sample metric."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cometric.arrays import namespace, symmetric, to_numpy, upper
from cometric.solvers.power import power_step
from cometric.types import Coupled, Iterate, Matrix, Metrics, Vector


WINDOW, FALL, FLOW = 10, 0.8, True


@dataclass(frozen=True)
class AndersonIterate(Iterate):
    """An iterate with what the next extrapolation needs."""

    point: Matrix | None = None  # where to evaluate next; None is the metric itself
    changes: tuple[tuple[Vector, Vector], ...] = ()  # of f = g - x and of g, the latest last
    last: tuple[Vector, Vector] | None = None  # f and g of the last evaluation
    anchor: Matrix | None = None  # where the current trial began, to return to if it fails
    level: float = float("inf")  # the residual there
    trial: int = 0  # evaluations of the current trial
    wait: int = 0  # plain steps to take before the next trial
    patience: int = 2  # plain steps after the next failure


@dataclass(frozen=True)
class AndersonIteration:
    """Extrapolate from the last ``memory`` steps; fall back to plain ones when that fails.

    With x = log D and g the normalized full step, f_t = g(x_t) - x_t, the next point is g_t
    minus the combination of past changes of g whose changes of f best cancel f_t. On a map
    close to linear this is GMRES for the eigenvector.

    Far away the past says little about what follows, so plain steps come first. The norm that
    decides whether an extrapolation has failed is that of least squares, which it reduces, not
    the residual, which one pair among millions decides.

    Parameters
    ----------
    memory
        Past steps to extrapolate from; each keeps two copies of the sample metric's upper half.
    tolerance
        An extrapolation after which the norm of f has grown by more than this factor is undone,
        and the past forgotten.
    begin
        Residual from which on to extrapolate.
    """

    memory: int = 5
    tolerance: float = 1.2
    begin: float = 0.1

    def init(self, phi: Coupled, start: Metrics) -> AndersonIterate:
        return AndersonIterate(start, values=(1.0, 1.0))

    def step(self, phi: Coupled, now: AndersonIterate) -> AndersonIterate:
        point = now.metrics.samples if now.point is None else now.point
        after = power_step(phi, point, now)
        image, origin = upper(after.metrics.samples), upper(point)
        if not 0.0 < after.residual < np.inf or min(image.min(), origin.min()) <= 0.0:
            return replace(after, point=None, changes=(), last=None)
        log = namespace(image).log
        g = log(image)
        f = g - log(origin)
        f -= f.mean()  # scale does not count
        if now.anchor is not None:
            trial = now.trial + 1
            if after.residual <= FALL * now.level:
                after = replace(after, anchor=after.metrics.samples, level=after.residual, trial=0)
            elif trial >= WINDOW:
                return replace(now, sweeps=after.sweeps, point=now.anchor, changes=(), last=None,
                    anchor=None, wait=now.patience, patience=2 * now.patience)
            else:
                after = replace(after, trial=trial)
        if now.point is not None and now.last is not None:
            before = now.last[0]
            if not f @ f <= self.tolerance**2 * (before @ before):
                return replace(now, sweeps=after.sweeps, trial=now.trial+1, point=None, changes=(), last=None)
        changes = now.changes
        if now.last is not None:
            changes = (*changes, (f - now.last[0], g - now.last[1]))[-self.memory :]
        following = None
        if changes and after.residual <= self.begin and now.wait == 0:
            vec = _extrapolate(f, g, changes)
            if not FLOW or f @ (vec - log(origin)) > 0:
                following = _matrix(vec, len(point))
                if after.anchor is None:
                    after = replace(after, anchor=after.metrics.samples, level=after.residual, trial=0)
        return replace(after, point=following, changes=changes, last=(f, g), wait=max(0, now.wait-1))


def _extrapolate(f: Vector, g: Vector, changes: tuple[tuple[Vector, Vector], ...]) -> Vector:
    """The image g minus the changes of g, weighted so that those of f cancel f in least squares."""
    df = namespace(f).stack([change for change, _ in changes])
    gram = to_numpy(df @ df.T)
    scale = 1.0 / np.sqrt(np.diag(gram))
    weights = (
        scale
        * np.linalg.lstsq(gram * np.outer(scale, scale), scale * to_numpy(df @ f), rcond=1e-12)[0]
    )
    combined = 1.0 * g
    for weight, (_, change) in zip(weights.tolist(), changes, strict=True):
        combined -= weight * change
    return combined


def _matrix(logs: Vector, n: int) -> Matrix:
    """The symmetric matrix with these logarithms off the diagonal, scaled to maximum 1."""
    return symmetric(namespace(logs).exp(logs - logs.max()), n)
