"""Anderson acceleration of the power iteration, on the logarithm of the sample metric."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cometric.core.arguments import check_count, check_number
from cometric.core.arrays import namespace, numbers, symmetric, to_numpy, upper
from cometric.core.cones import touches_boundary
from cometric.core.types import Coupled, Matrix, Metrics, NegativeDistances, Traits, Vector
from cometric.solvers.power import power_step
from cometric.solvers.trials import TrialIterate, begin, judge

ONLY_PLAIN = 2**31
"""More plain steps than any run takes: disables extrapolation."""


@dataclass(frozen=True)
class AndersonIterate(TrialIterate):
    """An iterate with the past steps from which the next one is extrapolated."""

    changes: tuple[tuple[Vector, Vector], ...] = ()  # of f = g - x and of g, latest last
    last: tuple[Vector, Vector] | None = None  # f and g of the last evaluation
    start: Matrix | None = None  # the first sample metric, for starting over


@dataclass(frozen=True)
class AndersonIteration:
    """Extrapolate from the last ``memory`` steps; take plain steps where that does not help.

    With x = log D, g the normalized full step, and f_t = g(x_t) - x_t, the next point is g_t minus
    a combination of past changes of g; its weights are chosen so that the same combination of
    changes of f best cancels f_t. For a nearly linear map this is GMRES for the eigenvector.

    A small f does not imply that the solution is near: f is also small at unstable fixed points
    of the power iteration, and where it moves slowly. Least squares may then lead backward. An
    extrapolation that does not have a positive inner product with f is replaced by a plain step.

    For any map the worst case is power iteration with some additional steps. Extrapolations are
    made in trials: within 10 evaluations, the residual must fall to 95 % of its lowest value so
    far. Otherwise the solver returns to the start of the trial and takes plain steps: 2 after the
    first failure, 4 more after each further one. If plain steps contract and N of them suffice,
    then N + 10 (sqrt(N / 2) + 1) + 200 log(begin / tol) steps suffice here
    (docs/notes/acceleration.md).

    If extrapolations lead to negative distances, which is possible at large eps, the solver starts
    over with plain steps only.

    Far from the solution, past steps predict little, so plain steps come first. A single
    extrapolation is judged by the l2 norm of f, which least squares minimize, not by the residual,
    a maximum that depends on a single pair.

    Parameters
    ----------
    memory
        Number of past steps to extrapolate from; each stores two copies of the upper triangle of
        the sample metric.
    tolerance
        An extrapolation that increases the norm of f by more than this factor is undone, and all
        past steps are discarded.
    begin
        Extrapolate while the residual is at most this.
    """

    memory: int = 5
    tolerance: float = 1.2
    begin: float = 0.1

    def __post_init__(self) -> None:
        check_count("memory", self.memory)
        check_number("tolerance", self.tolerance, finite=False)
        check_number("begin", self.begin, finite=False)

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
            if now.start is None or now.level == np.inf:  # not caused by extrapolation
                raise
            return _start_over(now)
        if extrapolated and touches_boundary(after.metrics, phi.boundary):
            return _undo(now)
        after = replace(after, point=None, wait=max(0, now.wait - 1))
        image, origin = upper(after.metrics.samples), upper(point)
        if not 0.0 < after.residual < np.inf or min(numbers(image.min(), origin.min())) <= 0.0:
            return replace(after, changes=(), last=None)
        log = namespace(image).log
        x, g = log(origin), log(image)
        f = g - x
        f -= f.mean()  # the scale of a metric is arbitrary
        if extrapolated and self._has_grown(f, now):
            return _undo(now)
        changes = now.changes
        if now.last is not None:
            changes = (*changes, (f - now.last[0], g - now.last[1]))[-self.memory :]
        after = judge(replace(after, changes=changes, last=(f, g)))
        if after.point is not None:  # the trial has failed: past steps do not apply there
            return replace(after, changes=(), last=None)
        if not changes or after.wait > 0 or after.residual > self.begin:
            return after
        logs = _extrapolate(f, g, changes)
        following = _matrix(logs, len(point))
        if not f @ (logs - x) > 0.0 or touches_boundary((following,), phi.boundary):
            return after
        return replace(begin(after), point=following)

    def _has_grown(self, f: Vector, now: AndersonIterate) -> bool:
        """Whether the norm of f has grown by more than ``tolerance``."""
        if now.last is None:
            return False
        before = now.last[0]
        return not f @ f <= self.tolerance**2 * (before @ before)


def _undo(now: AndersonIterate) -> AndersonIterate:
    """The iterate before a failed extrapolation, without past steps."""
    return judge(replace(now, sweeps=now.sweeps + 1, point=None, changes=(), last=None))


def _start_over(now: AndersonIterate) -> AndersonIterate:
    """The start, with plain steps only from now on: extrapolations led to negative distances.

    Entropic maps give negative distances at matrices that plain steps do not reach; a few steps
    later it is unknown which extrapolation was the cause.
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
    """The image g minus a combination of its changes, with the least-squares weights for f."""
    rows = namespace(f).stack([*(change for change, _ in changes), f])
    products = to_numpy(rows @ rows.T)
    gram, aim = products[:-1, :-1], products[:-1, -1]
    sizes = np.sqrt(np.diag(gram))
    scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0.0)
    scaled = gram * np.outer(scale, scale)
    weights = scale * np.linalg.lstsq(scaled, scale * aim, rcond=1e-12)[0]
    combined = 1.0 * g
    for weight, (_, change) in zip(weights.tolist(), changes, strict=True):
        combined -= weight * change
    return combined


def _matrix(logs: Vector, n: int) -> Matrix:
    """The symmetric matrix with these logarithms off the diagonal, scaled to maximum 1."""
    return symmetric(namespace(logs).exp(logs - logs.max()), n)
