"""Hypothesis strategies for histograms, costs and data, and one generator of random problems.

They like what solvers dislike: ties, empty bins, tiny masses, equal rows, costs of zero.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse.csgraph import shortest_path

TINY = [1e-12, 1e-9, 1e-6]

# Row 3 is twice row 0; column 3 is half of column 0; row 4 and column 4 are empty.
REPEATS_AND_HOLES = np.array(
    [
        [2.0, 3.0, 1.0, 1.0, 0.0],
        [4.0, 1.0, 0.0, 2.0, 0.0],
        [6.0, 0.0, 5.0, 3.0, 0.0],
        [4.0, 6.0, 2.0, 2.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
    ]
)


def fewer(by):
    """Settings for slow tests: a fraction of the usual number of examples, or a given number."""
    asked, usual = settings().max_examples, settings.get_profile("default").max_examples
    return settings(max_examples=asked // by if asked == usual else asked)


def _fill(d, numbers):
    """The symmetric matrix of size d with zero diagonal and ``numbers`` above it."""
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d, 1)] = numbers
    return matrix + matrix.T


def symmetric(d, elements):
    """Symmetric matrices with zero diagonal and any entries: seldom a metric."""
    return hnp.arrays(float, d * (d - 1) // 2, elements=elements).map(lambda x: _fill(d, x))


def histograms(n, d):
    """Rows of d bins: a few small integers (so that sums tie), or any masses, some of them tiny."""
    ties = st.sampled_from([0.0, 1.0, 2.0, 3.0])
    wide = st.one_of(st.just(0.0), st.sampled_from(TINY), st.floats(1e-3, 1.0))
    masses = st.one_of(*(hnp.arrays(float, (n, d), elements=kind) for kind in (ties, wide)))
    return masses.map(_normalized)


def _normalized(masses):
    """Rows divided by their sums; an empty row puts its mass in the first bin."""
    masses[masses.sum(axis=1) == 0, 0] = 1.0
    return masses / masses.sum(axis=1, keepdims=True)


def metrics(d):
    """l1 distances between points, graph distances, the discrete metric."""
    points = hnp.arrays(float, (d, 2), elements=st.floats(0.0, 1.0, width=16))
    edges = symmetric(d, st.sampled_from([1.0, 1.0, 2.0, 5.0]))
    return st.one_of(
        points.map(lambda x: np.abs(x[:, None] - x[None]).sum(axis=-1)),
        edges.map(lambda x: shortest_path(x, directed=False)),
        st.just(1.0 - np.eye(d)),
    )


def costs(d):
    """Metrics, and symmetric costs that are none: zeros, ties and shortcuts included."""
    free = st.one_of(st.sampled_from([0.0, 1.0, 1.0, 10.0]), st.floats(0.0, 1.0, width=32))
    return st.one_of(metrics(d), symmetric(d, free))


def positive_costs(d):
    """Symmetric costs, positive off the diagonal."""
    return symmetric(d, st.floats(0.0625, 1.0, width=32))


@st.composite
def lifts(draw, cost=costs):
    """Histograms, a cost between their bins, and a rise of that cost."""
    n, d = draw(st.integers(2, 5)), draw(st.integers(2, 6))
    rise = symmetric(d, st.one_of(st.just(0.0), st.floats(0.0, 1.0, width=32)))
    return draw(histograms(n, d)), draw(cost(d)), draw(rise)


@st.composite
def data_matrices(draw):
    """Counts without empty or proportional rows or columns: X for ``learn``."""
    shape = draw(st.tuples(st.integers(2, 5), st.integers(2, 5)))
    return draw(hnp.arrays(float, shape, elements=st.integers(0, 9)).filter(_is_generic))


def _is_generic(X):
    for side in (X, X.T):
        sums = side.sum(axis=1, keepdims=True)
        if not sums.all():
            return False
        hist = side / sums
        gaps = np.abs(hist[:, None] - hist[None]).sum(axis=-1) + np.eye(len(hist))
        if gaps.min() < 1e-3:
            return False
    return True


class Pairs(NamedTuple):
    """Some pairs of histograms that share one cost."""

    hist: np.ndarray  # (k, d)
    cost: np.ndarray  # (d, d)
    index: np.ndarray  # (p, 2)


def random_problems(count, seed):
    """``count`` pairs of histograms on 2 to 512 bins, in groups that share one cost.

    Half of the groups have 6 bins or fewer. Histograms are dense, sparse, or a few integers (so
    that sums tie); a third of them hold masses down to 1e-12. Costs are l1 or Euclidean
    distances between points, graph distances, the discrete metric, small integers, or anything.
    """
    rng = np.random.default_rng(seed)
    while count > 0:
        d = int(2 * 256 ** (rng.random() ** 3))
        size = min(count, max(4, 240 // d))
        hist = np.array([_random_histogram(d, rng) for _ in range(max(2, size // 3))])
        index = rng.integers(len(hist), size=(size, 2))
        yield Pairs(hist, _random_cost(d, rng), index)
        count -= size


def _random_histogram(d, rng):
    support = rng.permutation(d)[: rng.integers(1, d + 1)] if rng.random() < 0.5 else np.arange(d)
    masses = np.zeros(d)
    masses[support] = (
        rng.integers(1, 4, len(support))
        if rng.random() < 0.4
        else rng.exponential(size=len(support))
    )
    if rng.random() < 1 / 3:
        few = rng.random(d) < 0.3
        masses[few] *= 10.0 ** rng.uniform(-12, 0, few.sum())
    return masses / masses.sum()


def _random_cost(d, rng):
    kind = rng.integers(6)
    if kind == 0:
        points = rng.random((d, 3))
        return np.abs(points[:, None] - points[None]).sum(axis=-1)
    if kind == 1:
        points = rng.normal(size=(d, 5))
        return np.linalg.norm(points[:, None] - points[None], axis=-1)
    if kind == 2:
        weights = np.triu(rng.integers(1, 9, (d, d)), 1).astype(float)
        return shortest_path(weights, directed=False)
    if kind == 3:
        return 1.0 - np.eye(d)
    entries = rng.integers(0, 6, (d, d)) if kind == 4 else rng.exponential(size=(d, d)) ** 2
    upper = np.triu(entries, 1).astype(float)
    return upper + upper.T


def perturbed(result, rng, size):
    """The result with its metrics moved at random, by about ``size``."""

    def noise(side, metric):
        wiggle = np.exp(size * rng.standard_normal(metric.shape))
        changed = side.expand(side.reduce(metric * np.sqrt(wiggle * wiggle.T)))
        return changed / changed.max()

    return dataclasses.replace(
        result,
        samples=noise(result.problem.samples, result.samples),
        features=noise(result.problem.features, result.features),
    )
