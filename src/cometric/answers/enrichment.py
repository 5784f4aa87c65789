"""Hypergeometric tests for the enrichment of given feature sets in modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cometric.core.arguments import quoted
from cometric.core.inputs import counted
from cometric.core.types import Index
from cometric.files.sets import Sets, read_sets


class Enriched(NamedTuple):
    """A module and a set of features with common members."""

    module: int
    name: str  # of the module
    set: str
    shared: tuple[str, ...]  # members of both, the most central first
    size: int  # members of the set among the learned features, which are tested
    p: float  # hypergeometric
    q: float  # adjusted by Benjamini and Hochberg, over all modules and sets
    given: int  # all members of the set, learned or not

    def __str__(self) -> str:
        return f"module {self.module} ({self.name}): {self.set}, {self.summary}"

    @property
    def summary(self) -> str:
        """Numbers of shared, tested and all members of the set, and the q-value."""
        counts = f"{len(self.shared)} of {self.size} tested ({self.given} in the set)"
        return f"{counts}, q = {self.q:.1g}"


def enriched(
    members: Sequence[Index],
    names: Sequence[str],
    items: Sequence[str],
    sets: Sets,
    min_size: int,
) -> tuple[Enriched, ...]:
    """The pairs of module and set that share members, the smallest p-value first.

    ``members`` are the item numbers of each module, ``names`` the module names, and ``items`` the
    names of all items, the universe of the test.
    """
    from scipy.stats import false_discovery_control, hypergeom

    known = read_sets(sets)
    inside = _membership(known, items, min_size)
    if not members:
        return ()
    in_module = np.zeros((len(members), len(items)), dtype=np.int64)
    for g, own in enumerate(members):
        in_module[g, own] = 1
    in_set = np.array(list(inside.values()), dtype=np.int64)
    shared, sizes = in_module @ in_set.T, in_set.sum(axis=1)
    p = hypergeom.sf(shared - 1, len(items), sizes, in_module.sum(axis=1)[:, None])
    p = np.clip(p, 0.0, 1.0)  # rounding
    q = false_discovery_control(p.ravel()).reshape(p.shape)
    rows = []
    for s, (name, mask) in enumerate(inside.items()):
        for g in np.flatnonzero(shared[:, s]).tolist():
            both = tuple(items[k] for k in members[g] if mask[k])
            odds = float(p[g, s]), float(q[g, s])
            given = len(set(known[name]))
            rows.append(Enriched(g, names[g], name, both, int(sizes[s]), *odds, given))
    return tuple(sorted(rows, key=lambda row: row.p))


def _membership(
    sets: dict[str, list[str]], items: Sequence[str], min_size: int
) -> dict[str, NDArray[np.bool_]]:
    """A mask over the items for each set with at least ``min_size`` of them."""
    inside = {name: np.isin(items, members) for name, members in sets.items()}
    large = {name: mask for name, mask in inside.items() if mask.sum() >= min_size}
    if not large:
        raise ValueError(
            f"`sets` has {counted(len(sets), 'set')}, none with {min_size} of the learned items, "
            f"whose names begin with {quoted(items)}. Use the same names, or a smaller `min_size`."
        )
    return large
