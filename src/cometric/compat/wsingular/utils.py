"""The helpers of ``wsingular``: normalization, norms, Hilbert's metric, uniqueness, plots."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from cometric import scores
from cometric.core import cones
from cometric.core.types import Metrics
from cometric.maps.exact import ExactMap
from cometric.proofs.uniqueness import uniqueness


def random_distance(size: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A random symmetric matrix with a zero diagonal and maximum 1."""
    noise = torch.rand(size, size, dtype=dtype, device=device)
    distances = (noise + noise.T).fill_diagonal_(0)
    return distances / distances.max()


def regularization_matrix(A: Any, p: float, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Distances between the rows of ``A`` in the p-norm."""
    check_number("p", p, p > 0, "a number > 0")
    rows = to_matrix(A, "A")
    mode = "donot_use_mm_for_euclid_dist"  # matrix products would leave noise on the diagonal
    return torch.cdist(rows, rows, p=float(p), compute_mode=mode).to(dtype=dtype, device=device)


def hilbert_distance(D_1: Any, D_2: Any) -> float:
    """Hilbert's distance between two matrices: max - min of log(D_1 / D_2) off the diagonal.

    Entries that are 0 in both are ignored.
    """
    one, other = to_matrix(D_1, "D_1"), to_matrix(D_2, "D_2")
    if one.shape != other.shape:
        raise ValueError(
            f"`D_1` has shape {tuple(one.shape)} and `D_2` {tuple(other.shape)}; pass equal shapes."
        )
    return cones.hilbert_distance(one.numpy(), other.numpy())


def normalize_dataset(
    dataset: Any,
    dtype: torch.dtype,
    device: Any,
    normalization_steps: int = 1,
    small_value: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The histograms (A, B): rows and columns of ``dataset``, each divided by its sum.

    ``small_value`` is added to every bin before the rows are normalized again; 0 leaves empty bins
    empty. Each further step replaces (A, B) by (B.T, A.T) with normalized rows; with many steps
    both tend to bistochastic matrices.
    """
    steps = normalization_steps
    whole = steps >= 1 and steps == int(steps)
    check_number("normalization_steps", steps, whole, "a whole number >= 1")
    check_number("small_value", small_value, 0 <= small_value < math.inf, "a number >= 0")
    matrix = to_matrix(dataset, "dataset")
    for sums, item in ((matrix.sum(1), "row"), (matrix.sum(0), "column")):
        empty = torch.nonzero(sums == 0).flatten()
        if len(empty):
            raise ValueError(
                f"`dataset` has {len(empty)} empty {item}{'s' * (len(empty) > 1)} "
                f"(first: {int(empty[0])}), which cannot be normalized. Drop them."
            )
    A, B = (_unit_rows(_unit_rows(rows) + small_value) for rows in (matrix, matrix.T))
    for _ in range(int(steps) - 1):
        A, B = _unit_rows(B.T), _unit_rows(A.T)
    return A.to(dtype=dtype, device=device), B.to(dtype=dtype, device=device)


def check_uniqueness(A: Any, B: Any, C: Any, D: Any) -> bool:
    """Whether the graph of optimal couplings proves that (C, D) are unique."""
    A, B, C, D = (to_matrix(x, name).numpy() for x, name in zip((A, B, C, D), "ABCD", strict=True))
    return uniqueness(Metrics(samples=D, features=C), ExactMap(A), ExactMap(B)).unique is True


def silhouette(D: Any, labels: Iterable[Any]) -> float:
    """The silhouette score of ``labels`` under the distances ``D``."""
    distances = to_matrix(D, "D").numpy()
    return scores.silhouette(distances, _labels(labels, len(distances)))


def viz_TSNE(D: Any, labels: Iterable[Any] | None = None) -> None:
    """Show a t-SNE embedding of the distances ``D``, colored by ``labels``."""
    import matplotlib.pyplot as plt
    from sklearn.manifold import TSNE

    distances = to_matrix(D, "D").numpy()
    n = len(distances)
    groups = None if labels is None else _labels(labels, n)
    tsne = TSNE(
        metric="precomputed", init="random", random_state=0, perplexity=min(30, (n - 1) / 3)
    )
    x, y = tsne.fit_transform(distances).T
    axes = plt.figure().add_subplot()
    if groups is None:
        axes.scatter(x, y, s=12)
    else:
        for group in np.unique(groups):
            own = groups == group
            axes.scatter(x[own], y[own], s=12, label=str(group))
        axes.legend(title="label")
    axes.set(xlabel="t-SNE 1", ylabel="t-SNE 2")
    plt.show()


def to_matrix(X: Any, name: str) -> torch.Tensor:
    """The data as a nonnegative float64 matrix on the CPU."""
    if not isinstance(X, torch.Tensor):
        X = torch.as_tensor(np.asarray(X))
    if X.layout != torch.strided:
        X = X.to_dense()
    matrix = X.detach().to(dtype=torch.float64, device="cpu")
    if matrix.ndim != 2:
        raise ValueError(f"`{name}` has shape {tuple(matrix.shape)}; pass a matrix.")
    wrong = torch.nonzero(~(torch.isfinite(matrix) & (matrix >= 0)))
    if len(wrong):
        i, j = wrong[0].tolist()
        raise ValueError(
            f"`{name}` has {len(wrong)} negative or non-finite entries (first: row {i}, "
            f"column {j}, {float(matrix[i, j]):g}); it must have none."
        )
    return matrix


def check_number(name: str, value: Any, valid: bool, expected: str) -> None:
    """Raise unless the value is valid."""
    if not valid:
        raise ValueError(f"`{name}` is {value!r}; pass {expected}.")


def _unit_rows(matrix: torch.Tensor) -> torch.Tensor:
    return matrix / matrix.sum(1, keepdim=True)


def _labels(labels: Iterable[Any], n: int) -> Any:
    array = np.asarray(labels if hasattr(labels, "__len__") else list(labels))
    if len(array) != n:
        raise ValueError(f"`labels` has {len(array)} entries; `D` has {n} rows.")
    return array
