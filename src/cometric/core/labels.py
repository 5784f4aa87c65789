"""Labels of samples: missing ones, their order, and the groups they define."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.text import storable_names
from cometric.core.types import Index

if TYPE_CHECKING:
    from cometric.core.histograms import Side

NO_GROUP = -1
"""Group number of items without a label."""


def is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, or pandas' NA or NaT."""
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):  # NA has no truth value
        return True


def as_array(labels: Any) -> NDArray[Any]:
    """Labels as an array, of objects where NumPy would change their text.

    NumPy turns 1 into 1.0 in a pandas column with missing values, and formats dates differently.
    """
    array = np.asarray(labels)
    dtype = getattr(labels, "dtype", array.dtype)
    if array.ndim != 1 or (array.dtype == dtype and array.dtype.kind not in "mM"):
        return array
    objects = np.empty(len(array), dtype=object)
    objects[:] = list(labels)
    return objects


def in_other_order(names: Sequence[str] | None, side: Side) -> bool:
    """Whether these are the names of the learned items, in another order.

    They may include the names of dropped items.
    """
    if names is None or side.names is None:
        return False
    if len(names) == len(side.kept):
        names = [name for name, kept in zip(names, side.kept, strict=True) if kept]
    return tuple(names) != side.names and sorted(names) == sorted(side.names)


def check_order(labels: Any, argument: str, side: Side, of: str) -> None:
    """Raise if labels are a pandas series whose index has other items, or another order.

    Labels without an index are matched by position, as is a series whose index is 0, 1, 2, ...,
    or has none of the learned names.
    """
    if not (hasattr(labels, "iloc") and hasattr(labels, "index")):
        return
    names, learned = storable_names(labels.index), side.names or ()
    if names == [str(k) for k in range(len(labels))]:
        return
    fault = ""
    if in_other_order(names, side):
        fault = f"the names of the {of} in its index, in another order than the learned ones"
    elif len(names) == len(learned) and not set(names).isdisjoint(learned):
        k = next((k for k, name in enumerate(names) if name != learned[k]), None)
        if k is not None:
            first = f"{names[k]!r} where {learned[k]!r} was learned"
            fault = f"names of other {of} in its index (first: {first})"
    if fault:
        raise ValueError(
            f"`{argument}` has {fault}. Pass `{argument}.loc[X.index]`, with the learned data X; "
            f"or, if they are in the right order, `{argument}.to_numpy()`."
        )


def categories_of(labels: Any) -> tuple[str, ...]:
    """The different labels as text, without missing ones, in the order of their colors.

    This is the order of pandas' categories, unused ones included; without categories, numbers are
    sorted by value and other labels alphabetically. Scanpy uses the same order.
    """
    kinds = getattr(getattr(labels, "dtype", None), "categories", None)
    if kinds is not None:
        return tuple(map(str, kinds))
    texts = sorted({str(label) for label in labels if not is_missing(label)})
    try:
        return tuple(sorted(texts, key=float))
    except ValueError:
        return tuple(texts)


def groups_of(labels: Any) -> tuple[tuple[str, ...], Index]:
    """The distinct labels in order, and for each item the number of its label.

    Items without a label get ``NO_GROUP``.
    """
    texts = [None if is_missing(label) else str(label) for label in labels]
    used = set(texts)
    names = tuple(name for name in dict.fromkeys(categories_of(labels)) if name in used)
    numbers = {name: k for k, name in enumerate(names)}
    groups = [NO_GROUP if text is None else numbers[text] for text in texts]
    return names, np.array(groups, dtype=np.int64)


def indicators(groups: Index, count: int) -> sparse.csr_array:
    """A row for each of ``count`` groups, with 1 for its members and 0 for all other items."""
    members = np.flatnonzero(groups != NO_GROUP)
    return sparse.csr_array(
        (np.ones(len(members)), (groups[members], members)), shape=(count, len(groups))
    )
