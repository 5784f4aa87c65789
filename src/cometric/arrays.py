"""The few array operations whose names differ between NumPy and torch.

Solvers and cones run on the arrays they are given. A tensor brings its library along, so that
torch is never imported here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from cometric.types import Matrix


def is_tensor(array: Any) -> bool:
    """Whether this is a torch tensor."""
    torch = sys.modules.get("torch")  # whoever holds a tensor has loaded it
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
    return matrix[np.triu_indices(n, 1)]


def symmetric(values: Any, n: int) -> Matrix:
    """The symmetric matrix with a zero diagonal and these entries above it, row by row."""
    matrix: Matrix
    if is_tensor(values):
        matrix = values.new_zeros((n, n))
        rows, columns = namespace(values).triu_indices(n, n, 1, device=values.device)
    else:
        matrix = np.zeros((n, n))
        rows, columns = np.triu_indices(n, 1)
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return matrix


def to_numpy(array: Any) -> Any:
    """The same numbers as a NumPy array."""
    return array.detach().cpu().numpy() if is_tensor(array) else array
