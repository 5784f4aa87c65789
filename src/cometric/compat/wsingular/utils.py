"""The helpers of ``wsingular``: normalization, norms, Hilbert's metric, uniqueness."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from cometric import scores
from cometric.certificates.uniqueness import uniqueness
from cometric.core import cones
from cometric.core.arguments import check_count, check_number
from cometric.core.inputs import check_not_empty, read_matrix
from cometric.core.types import Matrix, Metrics
from cometric.maps.exact_map import ExactMap


def random_distance(size: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A random symmetric matrix with a zero diagonal and maximum 1."""
    noise = torch.rand(size, size, dtype=dtype, device=device)
    distances = (noise + noise.T).fill_diagonal_(0)
    return distances / distances.max()


def regularization_matrix(A: Any, p: float, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Distances between the rows of ``A`` in the p-norm."""
    if not p > 0:
        raise ValueError(f"`p` is {p}; pass a positive number.")
    rows = torch.as_tensor(to_matrix(A, "A"))
    mode = "donot_use_mm_for_euclid_dist"  # matrix products would leave noise on the diagonal
    return torch.cdist(rows, rows, p=float(p), compute_mode=mode).to(dtype=dtype, device=device)


def hilbert_distance(D_1: Any, D_2: Any) -> float:
    """Max - min of log(D_1 / D_2) off the diagonal; entries that are 0 in both are ignored."""
    one = to_matrix(D_1, "D_1")
    return cones.hilbert_distance(one, to_matrix(D_2, "D_2", len(one)))


def normalize_dataset(
    dataset: Any, dtype: Any, device: Any, normalization_steps: int = 1, small_value: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """The histograms (A, B): rows and columns of ``dataset``, each divided by its sum.

    ``small_value`` is added to every bin before they are normalized again. Each further step
    replaces (A, B) by (B.T, A.T) with normalized rows.
    """
    check_count("normalization_steps", normalization_steps, floats=True)
    check_number("small_value", small_value)
    X = to_matrix(dataset, "dataset")
    for axis, item in enumerate(("column", "row")):
        check_not_empty(
            X.sum(axis=axis) > 0.0, "dataset", item, "They cannot be normalized; drop them."
        )
    A, B = X / X.sum(1)[:, None] + small_value, X.T / X.sum(0)[:, None] + small_value
    A, B = A / A.sum(1)[:, None], B / B.sum(1)[:, None]
    for _ in range(int(normalization_steps) - 1):
        A, B = B.T / B.sum(0)[:, None], A.T / A.sum(0)[:, None]
    return torch.as_tensor(A).to(device, dtype), torch.as_tensor(B).to(device, dtype)


def check_uniqueness(A: Any, B: Any, C: Any, D: Any) -> bool:
    """Whether the graph of optimal couplings proves that (C, D) are unique."""
    A, B, C, D = (to_matrix(x, name) for x, name in zip((A, B, C, D), "ABCD", strict=True))
    return uniqueness(Metrics(samples=D, features=C), ExactMap(A), ExactMap(B)).unique is True


def silhouette(D: Any, labels: Iterable[Any]) -> float:
    """The silhouette score of ``labels`` under the distances ``D``."""
    return scores.silhouette(to_matrix(D, "D"), list(labels))


def to_matrix(X: Any, name: str, size: int | None = None) -> Matrix:
    """The data as a dense, nonnegative float64 matrix, ``size`` x ``size`` if that is given."""
    if isinstance(X, torch.Tensor):
        X = X.detach().to_dense().cpu().numpy()
    matrix: Matrix = read_matrix(X, name, least=(2, 1)).toarray()
    if size is not None and matrix.shape != (size, size):
        raise ValueError(f"`{name}` has shape {matrix.shape}; pass {size} x {size}.")
    return matrix
