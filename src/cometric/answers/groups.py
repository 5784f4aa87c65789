"""The function ``rank_features``: which features are nearest to each group of samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.answers.checks import check_is_result, check_labels, without_dropped
from cometric.answers.extension import check_norm
from cometric.answers.result import Result
from cometric.core.arguments import check_count, checks_options
from cometric.core.labels import NO_GROUP, check_order, groups_of
from cometric.core.nearest import nearest_to
from cometric.core.types import Index, Matrix, Vector

SHRINK = 0.1
"""Pseudocount of enrichments, in units of the mean mass: ratios of small masses are unreliable."""

MAX_MEMBERS = 2_000
"""Most samples of all groups compared in a report: more would take longer than the rest of it."""


class Ranked(NamedTuple):
    """A feature ranked for a group of samples."""

    group: str
    feature: str
    distance: float  # to the group
    times: float  # mean share in the group over that in the rest, shrunk toward 1
    inside: float  # mean share of the feature in the samples of the group
    outside: float  # the same in the other labeled samples


@checks_options
def rank_features(
    result: Result,
    labels: Any,
    *,
    n_features: int | None = 20,
    n_threads: int | None = None,
    progress: bool = False,
) -> tuple[Ranked, ...]:
    """The features nearest to each group of samples, group by group, the nearest first.

    Groups are in the order of pandas categories, otherwise sorted.

    A group is treated as a feature that has the same mass in all samples of the group and none
    elsewhere. Its distances to the learned features are those of
    ``result.transform(..., of="features")``. So a feature is near if its mass lies on the samples
    of the group or on samples near to them.

    Parameters
    ----------
    result
        What :func:`learn` returned.
    labels
        The label of each sample, without empty samples that were dropped:
        ``labels[result.problem.samples.kept]``. Samples whose label is missing (None, NaN) are in
        no group, and not counted as outside of one.
    n_features
        Features of each group to return; None: all.
    n_threads, progress
        As for :func:`learn`.

    Returns
    -------
    tuple of Ranked
        Each with ``group``, ``feature``, ``distance``, and the mean share of the feature in the
        samples of the group (``inside``), in the others (``outside``), and their ratio, shrunk
        toward 1 (``times``).

    Examples
    --------
    >>> import cometric as cm
    >>> data = cm.datasets.simulate_counts(80, 60, types=3, density=0.4)
    >>> ranks = cm.rank_features(cm.learn(data.X), data.labels, n_features=5)
    >>> len(ranks)  # five for each of three types
    15
    """
    check_is_result(result)
    check_labels(labels)
    check_order(labels, "labels", result.problem.samples, "samples")
    side, count = result.problem.samples, len(result.problem.features.labels)
    if n_features is not None:
        check_count("n_features", n_features)
    groups, number = groups_of(labels)
    if len(number) != len(side.labels):
        raise ValueError(
            f"`labels` has {len(number)} entries; there are {len(side.labels)} samples, so pass "
            f"{len(side.labels)} of them. {without_dropped('labels', 'samples')}"
        )
    if not groups:
        raise ValueError("`labels` are all missing; pass a label for some samples at least.")
    if len(groups) == 1:
        raise ValueError(
            f"`labels` has one group only, {groups[0]!r}, and nothing to compare it with; pass "
            "labels with two groups or more."
        )
    known = np.flatnonzero(number != NO_GROUP)
    distances = distances_to_groups(result, known, number[known], len(groups), n_threads, progress)
    masses = side.item_histograms[known]
    names = result.problem.features.item_names
    rows = []
    for g, group in enumerate(groups):
        inside, outside = mean_masses(masses, number[known] == g)
        times = 2.0 ** log_ratio(inside, outside)
        for k in nearest_to(distances[g], min(n_features or count, count)):
            numbers = (distances[g, k], times[k], inside[k], outside[k])
            rows.append(Ranked(group, names[k], *map(float, numbers)))
    return tuple(rows)


def distances_to_groups(
    result: Result,
    samples: Index,
    group: Any,
    count: int,
    n_threads: int | None = None,
    progress: bool = False,
) -> Matrix:
    """Distances from ``count`` groups to all features; ``group`` has the group of each sample."""
    side = result.problem.samples
    rows = np.flatnonzero(side.kept)[samples]
    members = sparse.csr_array(
        (np.ones(len(rows)), (rows, np.asarray(group))), shape=(len(side.kept), count)
    )
    distances: Matrix = result.transform(
        members, of="features", n_threads=n_threads, progress=progress
    )
    return distances


def distances_to_some(result: Result, samples: Index, group: Index, count: int) -> Matrix | None:
    """The same for at most ``MAX_MEMBERS`` of these samples, evenly from the groups.

    None if distances between features were given, or their R is a matrix: new ones have none.
    """
    try:
        check_norm(result, "features")
    except ValueError:
        return None
    drawn = np.random.default_rng(0).permutation(len(samples))
    some = [drawn[group[drawn] == g][: max(1, MAX_MEMBERS // count)] for g in range(count)]
    chosen = np.sort(np.concatenate(some))
    return distances_to_groups(result, samples[chosen], group[chosen], count)


def enrichment(hist: sparse.csr_array, members: NDArray[np.bool_]) -> Vector:
    """For each bin, log2 of its mean mass in ``members`` over that in the rest."""
    return log_ratio(*mean_masses(hist, members))


def mean_masses(hist: sparse.csr_array, members: NDArray[np.bool_]) -> tuple[Vector, Vector]:
    """For each bin, its mean mass in ``members``, and in the rest (0 if there is none)."""
    inside, outside = (
        np.asarray(hist[part].sum(axis=0)).ravel() / max(1, int(part.sum()))
        for part in (members, ~members)
    )
    return inside, outside


def log_ratio(inside: Vector, outside: Vector) -> Vector:
    """log2 of the ratio of mean masses, shrunk toward 0."""
    floor = SHRINK / len(inside)
    ratio: Vector = np.log2((inside + floor) / (outside + floor))
    return ratio
