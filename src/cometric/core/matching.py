"""Matching the columns of new data to the learned bins, by name or else by position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.arguments import quoted
from cometric.core.types import Index, Vector
from cometric.core.warn import warn

LOOKED_AT, FEWEST_ROWS = 200, 5
"""Rows tested for counts, and the fewest rows that must be informative."""


class NothingInCommon(ValueError):
    """New data and learned data have no names in common."""


def find_bins(
    width: int,
    names: Sequence[str] | None,
    kept: NDArray[np.bool_],
    learned: tuple[str, ...] | None,
    of: str,
    across: Sequence[str] | None = None,
) -> Index:
    """The column of each learned bin in new data of ``width`` columns; -1 for missing ones.

    ``names`` are the column names of the new data, ``learned`` the names of the bins ``kept``.
    Names that are equal in the same order need no matching, and may repeat. The names 0, 1, 2,
    ..., the default of many readers, count as positions, with a warning, unless some of them were
    learned. ``across`` are the row names of the new data, to recognize transposed data.
    """
    fits = width == len(kept)
    bins = _bins(of)
    if names is not None and learned is not None:
        if fits and tuple(np.array(names, dtype=object)[kept]) == learned:
            return np.flatnonzero(kept)
        if not is_numbering(names) or (fits and not set(names).isdisjoint(learned)):
            return _match(names, learned, bins, across or ())
        if fits and not is_numbering(learned):
            warn(
                f"`X` has numbers for the names of its {bins} (0, 1, ...), which were learned with "
                f"names ({quoted(learned)}): they are taken to be the same, in the same order."
            )
    if not fits:
        raise ValueError(
            f"`X` has {width} {bins}; the learned data have {len(kept)}. Pass new {of} over "
            f"the same {bins}, in the same order. (Another number or order of {bins} is matched by "
            "name, where `X` and the learned data both have names.)"
        )
    return np.flatnonzero(kept)


def describe_differences(
    matrix: sparse.csr_array,
    places: Index,
    names: Sequence[str] | None,
    learned: Sequence[str],
    of: str,
) -> str:
    """A message about columns of ``matrix`` that were not learned, and learned ones it lacks."""
    sentences, bins = [], _bins(of)
    unknown = np.ones(matrix.shape[1], dtype=bool)
    unknown[places[places >= 0]] = False
    ignored = np.unique(matrix.indices[unknown[matrix.indices]]).tolist()
    if ignored:
        shares = _shares(matrix, unknown)
        shown = ignored if names is None else [names[k] for k in ignored]
        sentences.append(
            f"`X` has mass on {len(ignored)} of its {matrix.shape[1]} {bins} where the learned "
            f"data have none ({quoted(shown)}): ignored, {100 * shares.mean():.3g} % of the mass "
            f"of a {of[:-1]} on average, {100 * shares.max():.3g} % at most."
        )
    missing = np.flatnonzero(places < 0).tolist()
    if missing:
        sentences.append(
            f"`X` lacks {len(missing)} of the {len(places)} learned {bins} "
            f"({quoted([learned[k] for k in missing])}): they count as zero."
        )
    return " ".join(sentences)


def describe_scales(learned: sparse.csr_array, new: sparse.csr_array) -> str:
    """A message if only one of the two has counts (the other, for example, logarithms)."""
    old, other = _share_of_counts(learned), _share_of_counts(new)
    if old is None or other is None or abs(old - other) < 0.8:
        return ""
    first = "The learned data have counts, `X` has"
    if old < other:
        first = "`X` has counts, the learned data have"
    return (
        f"{first} other values, such as logarithms: distances between the two mean little. Pass "
        "new data on the scale of the learned ones, for example the same layer."
    )


def _share_of_counts(matrix: sparse.csr_array) -> float | None:
    """The share of rows that are counts, up to a factor; None if too few are informative.

    Entries of counts are multiples of the smallest one, which is nearly always 1 in sparse data.
    """
    are_counts = []
    for row in range(min(matrix.shape[0], LOOKED_AT)):
        entries = matrix.data[matrix.indptr[row] : matrix.indptr[row + 1]]
        with np.errstate(all="ignore"):  # quotients may overflow
            multiples = entries / entries.min()
            errors = abs(multiples - np.rint(multiples))
            if multiples.max() > 1.001:  # else all are the same
                are_counts.append(bool((errors <= 1e-6 * multiples).all()))
    return float(np.mean(are_counts)) if len(are_counts) >= FEWEST_ROWS else None


def select(matrix: sparse.csr_array, places: Index) -> sparse.csr_array:
    """The columns at ``places``, empty ones for -1; ``matrix`` itself if nothing changes."""
    if np.array_equal(places, np.arange(matrix.shape[1])):
        return matrix
    present = places >= 0
    target = np.full(matrix.shape[1], -1, dtype=matrix.indices.dtype)
    target[places[present]] = np.flatnonzero(present)
    columns = target[matrix.indices]
    known = columns >= 0
    starts = np.concatenate([[0], np.cumsum(known)]).astype(matrix.indptr.dtype)[matrix.indptr]
    shape = (matrix.shape[0], len(places))
    selected = sparse.csr_array((matrix.data[known], columns[known], starts), shape=shape)
    selected.sort_indices()
    return selected


def _bins(of: str) -> str:
    """The bins of one side's histograms: the items of the other side."""
    return "features" if of == "samples" else "samples"


def _shares(matrix: sparse.csr_array, columns: NDArray[np.bool_]) -> Vector:
    """The fraction of each row's sum in the given columns; no row may be empty."""
    start, sizes = matrix.indptr[:-1], np.diff(matrix.indptr)
    largest = np.maximum.reduceat(matrix.data, start)
    mass = matrix.data / np.repeat(largest, sizes)  # so that sums cannot overflow
    part = np.where(columns[matrix.indices], mass, 0.0)
    shares: Vector = np.add.reduceat(part, start) / np.add.reduceat(mass, start)
    return shares


def _match(names: Sequence[str], learned: Sequence[str], of: str, across: Sequence[str]) -> Index:
    """The position of each ``learned`` name among ``names``, -1 for missing ones.

    Names in common must be unique. ``across`` are the names on the other axis of the new data, to
    recognize transposed data.
    """
    new_counts, learned_counts = Counter(names), Counter(learned)
    common = new_counts.keys() & learned_counts.keys()
    if not common:
        raise NothingInCommon(_nothing_in_common(names, learned, of, across))
    for owner, counts in (("`X` has", new_counts), ("the learned data have", learned_counts)):
        repeated = [name for name in counts if counts[name] > 1 and name in common]
        if repeated:
            raise ValueError(
                f"{owner} several {of} with the same name ({quoted(repeated)}), so those "
                "of `X` cannot be matched with the learned ones. Make names unique before learning "
                f"and here, or pass the same {of} in the same order."
            )
    position = {name: k for k, name in enumerate(names)}
    return np.array([position.get(name, -1) for name in learned], dtype=np.int64)


def _nothing_in_common(
    names: Sequence[str], learned: Sequence[str], of: str, across: Sequence[str]
) -> str:
    message = (
        f"`X` has none of the {len(learned)} learned {of} (learned: {quoted(learned)}; "
        f"in `X`: {quoted(names)})."
    )
    if not set(across).isdisjoint(learned):
        return f"{message} They are on its other axis: transpose `X`."
    cases = {name.casefold(): name for name in learned}
    alike = [name for name in names if name.casefold() in cases]
    if alike:
        return (
            f"{message} {len(alike)} names differ from learned ones only in upper and lower case: "
            f"{alike[0]!r} is {cases[alike[0].casefold()]!r} there. Rename them."
        )
    return (
        f"{message} Rename them, or, if they are the same in the same order, pass the matrix "
        "without names."
    )


def is_numbering(names: Sequence[str]) -> bool:
    """Whether the names are 0, 1, 2, ..., the default of pandas and AnnData."""
    return all(name == str(k) for k, name in enumerate(names))
