"""The function ``rank_features``: which features are nearest to each group of samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cometric.core.arguments import check_count, checks_options, shown
from cometric.core.labels import NO_GROUP, check_order, groups_of, indicators
from cometric.core.nearest import nearest_to
from cometric.core.types import Index, Matrix
from cometric.results.result import Result, check_is_result

SHRINK = 0.1
"""Pseudocount of enrichments, in units of the mean mass: ratios of small masses are unreliable."""


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

    A group is treated as a feature that has the same mass in all samples of the group and none
    elsewhere; its distances to the learned features are those of
    ``result.transform(..., of="features")``. So a feature is near if its mass lies on the samples
    of the group or on samples near to them. Groups are in the order of pandas categories,
    otherwise sorted.

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
    count = len(result.problem.features.labels)
    if n_features is not None:
        check_count("n_features", n_features)
    check_order(labels, "labels", result.problem.samples, "samples")
    remedy = without_dropped("labels", "samples")
    groups, number = read_groups(labels, len(result.problem.samples.labels), "samples", remedy)
    if len(groups) == 1:
        raise ValueError(
            f"`labels` has one group only, {groups[0]!r}, and nothing to compare it with; pass "
            "labels with two groups or more."
        )
    distances = group_distances(result, number, len(groups), n_threads=n_threads, progress=progress)
    inside, outside, times = group_shares(result, number, len(groups))
    names = result.problem.features.item_names
    return tuple(
        Ranked(
            group, names[k], *(float(part[g, k]) for part in (distances, times, inside, outside))
        )
        for g, group in enumerate(groups)
        for k in nearest_to(distances[g], min(n_features or count, count))
    )


def group_distances(result: Result, number: Index, count: int, **options: Any) -> Matrix:
    """Distances from ``count`` groups to all features; ``number`` has the group of each sample."""
    kept = result.problem.samples.kept
    group = np.full(len(kept), NO_GROUP)
    group[kept] = number
    distances: Matrix = result.transform(indicators(group, count).T, of="features", **options)
    return distances


def group_shares(result: Result, number: Index, count: int) -> tuple[Matrix, Matrix, Matrix]:
    """Mean shares of features in each group and in the others, and their ratios, shrunk."""
    known = number != NO_GROUP
    hist = result.problem.samples.item_histograms[known]
    members = number[known] == np.arange(count)[:, None]
    inside, outside = (
        np.array([hist[part].sum(axis=0) / max(1, part.sum()) for part in parts])
        for parts in (members, ~members)
    )
    floor = SHRINK / hist.shape[1]
    return inside, outside, (inside + floor) / (outside + floor)


def read_groups(
    labels: Any, count: int, of: str, remedy: str = ""
) -> tuple[tuple[str, ...], Index]:
    """The distinct labels in order, and the number of the label of each of ``count`` items.

    Raises unless there is a label for each; ``remedy`` ends the message.
    """
    if isinstance(labels, str):
        raise ValueError(
            f"`labels` is {labels!r}; pass the label of each sample, such as "
            f"`adata.obs[{labels!r}]`, not a name."
        )
    if np.asarray(labels, dtype=object).ndim == 0:
        raise ValueError(f"`labels` is {shown(labels)}; pass the label of each sample.")
    groups, number = groups_of(labels)
    if len(number) != count:
        raise ValueError(
            f"`labels` has {len(number)} entries; there are {count} {of}, so pass {count} of them. "
            f"{remedy}".rstrip()
        )
    if not groups:
        raise ValueError("`labels` are all missing; pass a label for some samples at least.")
    return groups, number


def without_dropped(argument: str, of: str) -> str:
    """Advice for values that still include dropped samples or features."""
    return f"If empty {of} were dropped: `{argument}[result.problem.{of}.kept]`."
