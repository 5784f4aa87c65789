"""Anderson acceleration of a positive, homogeneous fixed-point iteration, in logarithms."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cometric.cones import log_width, normalize, ratio_bounds
from cometric.types import Matrix, Vector


class Fixed(NamedTuple):
    """An image under the map, how far it moved in the Hilbert metric, and the steps taken."""

    point: Matrix
    residual: float
    steps: int


@dataclass(frozen=True)
class Anderson:
    """Extrapolate from the last ``memory`` steps; fall back to plain ones when that fails.

    With x = log D and g the normalized map, f_t = g(x_t) - x_t, the next point is g_t minus
    the combination of past changes of g whose changes of f best cancel f_t. On a map close to
    linear this is GMRES for the eigenvector. A step whose residual grows is not kept: the
    past is forgotten and the plain iteration goes on from the best point.
    """

    memory: int = 8

    def solve(
        self, step: Callable[[Matrix], Matrix], start: Matrix, tol: float, max_steps: int
    ) -> Fixed:
        """Iterate ``step`` from ``start`` until the Hilbert residual is at most ``tol``."""
        above = np.triu_indices(len(start), 1)
        changes: deque[tuple[Vector, Vector]] = deque(maxlen=self.memory)  # of f, of g
        best = Fixed(start, np.inf, 0)
        point, last = start, None
        for count in range(1, max_steps + 1):
            image, _ = normalize(step(point))
            residual = log_width(ratio_bounds(image, point))
            if not residual < best.residual and not residual <= tol:
                if last is None:  # already a plain step: the map has no more to give
                    return best._replace(steps=count)
                changes.clear()
                last, point = None, best.point
                continue
            best = Fixed(image, residual, count)
            if residual <= tol:
                break
            g = np.log(image[above])
            f = g - np.log(point[above])
            if last is not None:
                changes.append((f - last[0], g - last[1]))
            last = (f, g)
            point = _matrix(_extrapolate(f, g, changes), above, len(start)) if changes else image
        return best


def _extrapolate(f: Vector, g: Vector, changes: deque[tuple[Vector, Vector]]) -> Vector:
    """G minus the changes of g, weighted so that those of f cancel f in least squares."""
    df = np.stack([change for change, _ in changes])
    gram = df @ df.T
    gram[np.diag_indices_from(gram)] *= 1.0 + 1e-12
    weights = np.linalg.lstsq(gram, df @ f, rcond=None)[0]
    combined = g.copy()
    for weight, (_, change) in zip(weights, changes, strict=True):
        combined -= weight * change
    return combined


def _matrix(logs: Vector, above: tuple[Any, Any], n: int) -> Matrix:
    """The symmetric matrix with these logarithms off the diagonal, scaled to maximum 1."""
    matrix = np.zeros((n, n))
    matrix[above] = np.exp(logs - logs.max())
    return matrix + matrix.T
