"""Anderson acceleration of the power iteration, on the logarithm of the sample metric."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cometric.core.arrays import namespace, symmetric, to_numpy, upper
from cometric.core.cones import touches_boundary
from cometric.core.types import Coupled, Matrix, Metrics, NegativeDistances, Traits, Vector
from cometric.solvers.power import power_step
from cometric.solvers.trials import TrialIterate, begin, judge

ONLY_PLAIN = 2**31
"""Plain steps to wait for, more than anybody takes."""


@dataclass(frozen=True)
class AndersonIterate(TrialIterate):
    """An iterate with what the next extrapolation needs."""

    changes: tuple[tuple[Vector, Vector], ...] = ()  # of f = g - x and of g, the latest last
    last: tuple[Vector, Vector] | None = None  # f and g of the last evaluation
    start: Matrix | None = None  # where plain steps begin again if all else fails


@dataclass(frozen=True)
class AndersonIteration:
    """Extrapolate from the last ``memory`` steps; take plain ones wherever that does not help.

    With x = log D and g the normalized full step, f_t = g(x_t) - x_t, the next point is g_t
    minus the combination of past changes of g whose changes of f best cancel f_t. On a map
    close to linear this is GMRES for the eigenvector.

    Least squares look for a small f, and f is small in other places too: at fixed points that
    power iteration leaves, and where it passes slowly, without any fixed point. Seen from there
    the way to a smaller f leads back, against f. Such an extrapolation is replaced by a plain
    step.

    Whatever the map, this is at worst power iteration with some steps more: extrapolations are on
    trial, and every 10 evaluations must lower the residual by 5 % below the lowest one before.
    Where they do not, the solver returns to where the trial began and takes plain steps, 2 after
    the first failure and 4 more after each further one. Where plain steps contract, so that N of
    them suffice, N + 10 (sqrt(N / 2) + 1) + 200 log(begin / tol) suffice here
    (docs/notes/acceleration.md).

    Where extrapolations have led to negative distances, as they can at large eps, it begins anew
    with plain steps only.

    Far away the past says little about what follows, so plain steps come first. The norm that
    decides at once whether an extrapolation has failed is that of least squares, which it
    reduces, not the residual, which one pair among millions decides.

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

    @property
    def traits(self) -> Traits:
        return Traits(extrapolates_from=self.begin)

    def init(self, phi: Coupled, start: Metrics) -> AndersonIterate:
        return AndersonIterate(start, values=(1.0, 1.0), start=start.samples)

    def step(self, phi: Coupled, now: AndersonIterate) -> AndersonIterate:
        extrapolated = now.point is not None and now.last is not None
        point = now.metrics.samples if now.point is None else now.point
        try:
            after = power_step(phi, point, now)
        except NegativeDistances:
            if extrapolated:
                return _undo(now)
            if now.start is None or now.level == np.inf:  # no extrapolation has led here
                raise
            return _start_over(now)
        if extrapolated and touches_boundary(after.metrics):
            return _undo(now)
        after = replace(after, point=None, wait=max(0, now.wait - 1))
        image, origin = upper(after.metrics.samples), upper(point)
        if not 0.0 < after.residual < np.inf or min(image.min(), origin.min()) <= 0.0:
            return replace(after, changes=(), last=None)
        log = namespace(image).log
        x, g = log(origin), log(image)
        f = g - x
        f -= f.mean()  # scale does not count
        if extrapolated and self._has_grown(f, now):
            return _undo(now)
        changes = now.changes
        if now.last is not None:
            changes = (*changes, (f - now.last[0], g - now.last[1]))[-self.memory :]
        after = judge(replace(after, changes=changes, last=(f, g)))
        if after.point is not None:  # the trial has failed: the past leads elsewhere
            return replace(after, changes=(), last=None)
        if not changes or after.wait > 0 or after.residual > self.begin:
            return after
        logs = _extrapolate(f, g, changes)
        following = _matrix(logs, len(point))
        if not f @ (logs - x) > 0.0 or touches_boundary((following,)):
            return after
        return replace(begin(after), point=following)

    def _has_grown(self, f: Vector, now: AndersonIterate) -> bool:
        """Whether f is so much larger than before that the extrapolation has failed."""
        if now.last is None:
            return False
        before = now.last[0]
        return not f @ f <= self.tolerance**2 * (before @ before)


def _undo(now: AndersonIterate) -> AndersonIterate:
    """The iterate before an extrapolation that failed, the past forgotten."""
    return judge(replace(now, sweeps=now.sweeps + 1, point=None, changes=(), last=None))


def _start_over(now: AndersonIterate) -> AndersonIterate:
    """Back to the start, with plain steps only: extrapolations led to negative distances.

    Entropic maps give them at matrices that no plain step would have come to, and a few steps
    after an extrapolation nobody knows which one it was.
    """
    return replace(
        now,
        sweeps=now.sweeps + 1,
        point=now.start,
        start=None,
        anchor=None,
        wait=ONLY_PLAIN,
        changes=(),
        last=None,
    )


def _extrapolate(f: Vector, g: Vector, changes: tuple[tuple[Vector, Vector], ...]) -> Vector:
    """The image g minus the changes of g, weighted so that those of f cancel f in least squares."""
    df = namespace(f).stack([change for change, _ in changes])
    gram = to_numpy(df @ df.T)
    sizes = np.sqrt(np.diag(gram))
    scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0.0)
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
