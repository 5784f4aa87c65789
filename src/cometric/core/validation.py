"""Checks of problems and metrics read from a file, which may be damaged.

Kernels trust indices and histograms, and users trust a status. So everything that holds for the
problems and metrics of this package is checked. Errors are a ``ValueError`` whose text follows
"is damaged: ".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cometric.core.histograms import Side
    from cometric.core.problem import Problem

SUM_TOLERANCE = 1e-6
"""How far from 1 the sum of a histogram may be."""

SYMMETRY_TOLERANCE = 1e-9
"""How far from symmetric a metric may be, over its largest entry."""


def require(holds: bool, message: str) -> None:
    """Raise a ``ValueError`` with this message unless a condition holds."""
    if not holds:
        raise ValueError(message)


def check_problem(problem: Problem) -> None:
    """Raise if the parts of a problem are inconsistent."""
    _check_side("samples", problem.samples, problem.features)
    _check_side("features", problem.features, problem.samples)
    require(0 <= problem.smoothing < np.inf, f"smoothing is {problem.smoothing}")


def _check_side(name: str, side: Side, other: Side) -> None:
    labels, kept, n = side.labels, side.kept, len(side.labels)
    rows = side.hist.shape[0]
    require(
        labels.ndim == 1
        and labels.dtype.kind in "iu"
        and np.array_equal(np.unique(labels), np.arange(rows)),
        f"the labels of {name} do not number its {rows} histograms",
    )
    require(
        kept.ndim == 1 and kept.dtype == bool and int(kept.sum()) == n,
        f"{name} has {int(kept.sum())} kept items, but labels of {n}",
    )
    require(
        side.names is None or len(side.names) == n,
        f"{name} has {len(side.names or ())} names for {n} items",
    )
    scale = side.scale
    require(
        scale is None
        or (scale.shape == (n,) and bool(np.isfinite(scale).all() and (scale >= 0).all())),
        f"the scale of {name} is not a nonnegative number for each item",
    )
    for hist, bins in ((side.hist, other.hist.shape[0]), (side.full, len(other.labels))):
        require(
            hist.shape == (rows, bins),
            f"{name} has histograms of shape {hist.shape}, not {(rows, bins)}",
        )
        require(
            hist.dtype == np.float64
            and bool(np.isfinite(hist.data).all() and (hist.data > 0).all())
            and bool((abs(hist.sum(axis=1) - 1.0) <= SUM_TOLERANCE).all()),
            f"the histograms of {name} are not positive with sum 1",
        )
        require(
            bool(hist.has_canonical_format), f"the histograms of {name} are not in canonical order"
        )


def check_metric(metric: Any, name: str, size: int, *, negative: bool = False) -> None:
    """Raise unless these are distances between ``size`` items, ``negative`` ones if allowed."""
    require(metric.shape == (size, size), f"{name} has shape {metric.shape}, not {(size, size)}")
    require(metric.dtype.kind == "f", f"{name} holds {metric.dtype}, not numbers")
    require(bool(np.isfinite(metric).all()), f"{name} has entries that are not finite")
    require(negative or bool((metric >= 0).all()), f"{name} has negative distances")
    require(not metric.diagonal().any(), f"{name} has a diagonal that is not zero")
    tolerance = SYMMETRY_TOLERANCE * abs(metric).max(initial=0.0)
    require(bool((abs(metric - metric.T) <= tolerance).all()), f"{name} is not symmetric")
