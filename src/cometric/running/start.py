"""Starting metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from cometric.core.cones import normalize
from cometric.core.given import read_given
from cometric.core.problem import Problem
from cometric.core.sides import Side
from cometric.core.types import Matrix, Metrics
from cometric.maps.norms import norm_matrix

NOTHING = np.empty((0, 0))


def starting_metrics(
    problem: Problem, start: Any, random_state: int | None, default: Metrics | None = None
) -> Metrics:
    """The starting metrics; by default ``default``, or l1 distances."""
    sides = (problem.samples, problem.features)
    if isinstance(start, str) and start == "random":
        rng = np.random.default_rng(random_state)
        return Metrics(*(_random_metric(side.hist.shape[0], rng) for side in sides))
    if isinstance(start, str):
        raise ValueError(f"`start` is {start!r}; the only valid name is 'random'.")
    pair = start if isinstance(start, tuple) else (start, None)
    if len(pair) != 2:
        raise ValueError(f"`start` has {len(pair)} matrices; pass (samples, features) or one.")
    names = ("samples", "features")
    defaults = default or [norm_matrix(side.full_histograms, "l1") for side in sides]
    return Metrics(
        *(
            distances / distances.max() if matrix is None else _check_start(matrix, side, name)
            for matrix, side, name, distances in zip(pair, sides, names, defaults, strict=True)
        )
    )


def given_metrics(problem: Problem, given: Any) -> Metrics:
    """The metric of the side that is fixed, checked; an empty matrix for the other side."""
    side: Side = getattr(problem, problem.fixed)
    matrix = read_given(given, problem.fixed, side)
    return Metrics(NOTHING, NOTHING)._replace(**{problem.fixed: matrix})


def _random_metric(k: int, rng: np.random.Generator) -> Matrix:
    """Distances between random points of a cube: a generic metric."""
    points = rng.random((k, max(2, min(k, 10))))
    distances = np.empty((k, k))
    for i, point in enumerate(points):  # all differences at once: the memory of ten metrics
        distances[i] = np.abs(point - points).sum(axis=-1)
    return normalize(distances)[0]


def _check_start(matrix: Any, side: Side, name: str) -> Matrix:
    """A starting metric of the user between distinct items, normalized; raises if not valid."""
    n = len(side.labels)
    try:
        matrix = np.array(matrix)
        matrix = matrix.astype(np.float64, casting="same_kind" if matrix.size else "unsafe")
    except (TypeError, ValueError) as problem:
        raise ValueError(f"`start` for {name} cannot be read as a matrix: {problem}.") from problem
    if matrix.shape != (n, n):
        raise ValueError(f"`start` for {name} has shape {matrix.shape}; there are {n} {name}.")
    if not np.isfinite(matrix).all() or (matrix < 0).any() or np.diagonal(matrix).any():
        raise ValueError(f"`start` for {name} must be finite, nonnegative, zero on the diagonal.")
    if (matrix != matrix.T).any():
        raise ValueError(
            f"`start` for {name} is not symmetric; pass the mean of it and its transpose."
        )
    return normalize(matrix[np.ix_(side.first, side.first)])[0]
