"""Calls of SciPy and pandas that differ between their versions."""

from __future__ import annotations

import warnings
from typing import IO, Any

from scipy import sparse


def read_market(file: IO[bytes]) -> sparse.csr_matrix:
    """The transpose of the matrix in an open ``.mtx`` file: rows of it are columns there."""
    from scipy.io import mmread  # on use: it takes milliseconds to load

    with warnings.catch_warnings():
        # SciPy 1.18 announces that another class will be returned; it is converted here.
        warnings.filterwarnings("ignore", "The default value for `spmatrix`", DeprecationWarning)
        return sparse.csr_matrix(mmread(file).T)


def precision(version: str) -> dict[str, Any]:
    """What makes pandas read every digit; since 3.1 it always does, and warns of the option."""
    new = tuple(map(int, version.split(".")[:2])) >= (3, 1)
    return {} if new else {"float_precision": "round_trip"}
