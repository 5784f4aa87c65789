"""Checks of the options of a search for neighbors, before any work."""

from __future__ import annotations

from typing import Any

from cometric.core.arguments import check_count, check_folder
from cometric.core.nearest import check_neighbors
from cometric.machine.devices import check_single

SEARCHES = ("auto", "exhaustive", "index")


def check_search(
    n: int,
    n_neighbors: Any,
    max_candidates: Any,
    check: Any,
    random_state: Any,
    search: Any,
    folder: Any,
) -> None:
    """Raise unless neighbors of ``n`` samples can be searched with these options."""
    if not isinstance(search, str) or search not in SEARCHES:
        raise ValueError(f"`search` is {search!r}; choose {', '.join(map(repr, SEARCHES))}.")
    check_neighbors(n_neighbors, n - 1)
    if max_candidates is not None:
        check_count("max_candidates", max_candidates)
    if check != 0:
        check_count("check", check)
    check_count("random_state", random_state, least=0, optional=True)
    check_folder("folder", folder)
    if max_candidates is not None and min(n - 1, max_candidates) < n_neighbors:
        raise ValueError(
            f"`max_candidates` is {max_candidates}; at least `n_neighbors` = {n_neighbors} are "
            "needed."
        )


def check_device(device: Any, search: str) -> None:
    """Raise if neighbors cannot be found by this search on the device."""
    check_single(device)
    if search == "index" and device is not None and str(device) != "cpu":
        raise ValueError(
            f"`search` is 'index' and `device` is {str(device)!r}; a GPU computes bounds of all "
            "pairs. Choose search='exhaustive', or device='cpu'."
        )
