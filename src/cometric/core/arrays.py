"""The few array operations whose names differ between NumPy and torch.

Solvers and cones work on arrays and tensors alike. torch is not imported here: if there is a
tensor, torch is already loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from cometric.core.types import Matrix

BLOCK = 128
"""Edge of the blocks in which a matrix is mirrored."""


def is_tensor(array: Any) -> bool:
    """Whether this is a torch tensor."""
    torch = sys.modules.get("torch")  # a tensor exists only if torch is loaded
    return torch is not None and isinstance(array, torch.Tensor)


def namespace(array: Any) -> Any:
    """The module, numpy or torch, with ``exp``, ``log``, ``stack``, ``zeros`` for this array."""
    return sys.modules["torch"] if is_tensor(array) else np


def upper(matrix: Any) -> Any:
    """The entries above the diagonal, row by row."""
    n = len(matrix)
    if is_tensor(matrix):
        rows, columns = namespace(matrix).triu_indices(n, n, 1, device=matrix.device)
        return matrix[rows, columns]
    values = np.empty(n * (n - 1) // 2, matrix.dtype)
    for i, row in enumerate(_rows(n)):  # triu_indices would take the memory of two matrices
        values[row] = matrix[i, i + 1 :]
    return values


def numbers(*scalars: Any) -> list[float]:
    """Scalars as floats; for tensors, with a single device synchronization."""
    if is_tensor(scalars[0]):
        stacked: list[float] = namespace(scalars[0]).stack(scalars).tolist()
        return stacked
    return [float(scalar) for scalar in scalars]


def extremes(array: Any) -> tuple[float, float]:
    """The smallest and the largest entry."""
    if is_tensor(array):
        low, high = numbers(*namespace(array).aminmax(array))
        return low, high
    return float(array.min()), float(array.max())


def off_diagonal(matrix: Any, other: float) -> Any:
    """A copy of an n x n tensor with ``other`` on its diagonal.

    Reducing it takes fewer kernel launches, and less memory, than reducing :func:`upper`.
    """
    return matrix.clone().fill_diagonal_(other)


def symmetric(values: Any, n: int) -> Matrix:
    """The symmetric matrix with a zero diagonal and these entries above it, row by row."""
    matrix: Matrix
    if is_tensor(values):
        matrix = values.new_zeros((n, n))
        rows, columns = namespace(values).triu_indices(n, n, 1, device=values.device)
        matrix[rows, columns] = values
        matrix[columns, rows] = values
        return matrix
    matrix = np.zeros((n, n))
    for i, row in enumerate(_rows(n)):
        matrix[i, i + 1 :] = values[row]
    for start in range(0, n, BLOCK):  # the lower triangle, in blocks that fit the CPU cache
        rows, rest = slice(start, start + BLOCK), slice(start + BLOCK, n)
        matrix[rest, rows] = matrix[rows, rest].T
        matrix[rows, rows] += matrix[rows, rows].T
    return matrix


def _rows(n: int) -> Iterator[slice]:
    """For each row, the slice of its entries in the vector of all entries above the diagonal."""
    stop = 0
    for length in range(n - 1, -1, -1):
        start, stop = stop, stop + length
        yield slice(start, stop)


def on_device(device: Any, array: Any) -> Any:
    """The array as a tensor on a torch device."""
    import torch

    return torch.as_tensor(array, device=device)


def to_numpy(array: Any) -> Any:
    """The array or tensor as a NumPy array."""
    return array.detach().cpu().numpy() if is_tensor(array) else array
