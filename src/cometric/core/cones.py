"""Positive matrices up to scale: normalization, Hilbert's projective metric, eigenvalue bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cometric.core.arrays import extremes, is_tensor, namespace, numbers, off_diagonal, upper
from cometric.core.types import BOUNDARY, Matrix, NegativeDistances


def normalize(distances: Matrix) -> tuple[Matrix, float]:
    """The matrix with maximum 1, and the maximum it had."""
    lowest, top = extremes(distances)
    if lowest < 0.0:
        raise NegativeDistances(negative_pairs(distances))
    if not 0.0 < top < np.inf:
        raise ValueError(
            f"`distances` has maximum {top}; a metric needs a positive, finite one. "
            "This cost does not tell the histograms apart: pass `tau` > 0 or another start."
        )
    return distances / top, top


def negative_pairs(distances: Matrix) -> str:
    """How many pairs have negative distances, and how low they are, in words."""
    count = int((distances < 0).sum()) // 2
    many = f"{count} pairs have negative distances"
    words = "1 pair has a negative distance" if count == 1 else many
    return f"{words} (lowest {float(distances.min()):.3g}, largest {float(distances.max()):.3g})"


def ratio_bounds(image: Matrix, origin: Matrix) -> tuple[float, float]:
    """Min and max of ``image / origin`` over the off-diagonal pairs.

    Pairs for which both are zero (duplicates) are ignored. For a monotone, homogeneous F
    with F(C) = ``image`` and C = ``origin`` this is the Collatz-Wielandt interval: it contains
    the eigenvalue.
    """
    if image.shape != origin.shape:
        raise ValueError(
            f"`image` has shape {tuple(image.shape)} and `origin` {tuple(origin.shape)}; "
            "compare equal shapes."
        )
    if is_tensor(image):
        return _ratio_bounds_of_tensors(image, origin)
    top, bottom = upper(image), upper(origin)
    finite = namespace(image).isfinite
    if not (finite(top).all() and finite(bottom).all()):
        return 0.0, np.inf
    if len(bottom) == 0 or (bottom == 0).any():
        nonzero = (top != 0) | (bottom != 0)
        if not nonzero.any():
            return 1.0, 1.0
        top, bottom = top[nonzero], bottom[nonzero]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratios = top / bottom
    return float(ratios.min()), float(ratios.max())


def _ratio_bounds_of_tensors(image: Any, origin: Any) -> tuple[float, float]:
    """The same in one device synchronization, from both triangles."""
    ratios = image / origin  # NaN if both are zero, as on the diagonal
    low, high, *sums = numbers(
        ratios.nan_to_num(nan=np.inf, posinf=np.inf).min(),
        ratios.nan_to_num(nan=-np.inf, posinf=np.inf).max(),
        image.sum(),
        origin.sum(),
    )
    if not np.isfinite(sums).all():
        return 0.0, np.inf
    return (low, high) if low <= high else (1.0, 1.0)


def hilbert_distance(one: Matrix, other: Matrix) -> float:
    """Hilbert's projective distance, ``max log(C/C') - min log(C/C')`` off the diagonal.

    Zero if the matrices are proportional, infinite if one has a zero entry where the other has
    none, or any negative or non-finite entry. Pairs for which both are zero are ignored.
    """
    return log_width(ratio_bounds(np.asarray(one, float), np.asarray(other, float)))


def log_width(bounds: tuple[float, float]) -> float:
    """log(high / low): the Hilbert distance of two matrices with these ratio bounds."""
    low, high = bounds
    if not 0.0 < low <= high < np.inf:
        return float("inf")
    return float(np.log(high / low)) if high / low > 1.0 + 1e-8 else float((high - low) / low)


def touches_boundary(metrics: Iterable[Matrix], level: float = BOUNDARY) -> bool:
    """Whether some distance between different items is below this fraction of the largest."""
    metrics = list(metrics)
    if not is_tensor(metrics[0]):
        return any(upper(metric).min() < level * metric.max() for metric in metrics)
    lows = [off_diagonal(metric, np.inf).min() for metric in metrics]
    found = numbers(*lows, *(metric.max() for metric in metrics))
    pairs = zip(found[: len(metrics)], found[len(metrics) :], strict=True)
    return any(low < level * high for low, high in pairs)
