"""Matrices in the Matrix Market format, ``.mtx``."""

from __future__ import annotations

import warnings
from typing import IO

from scipy import sparse


def read_market(file: IO[bytes]) -> sparse.csr_matrix:
    """The transpose of the matrix in an open file: rows of it are columns there."""
    from scipy.io import mmread  # on use: it takes milliseconds to load

    with warnings.catch_warnings():
        # SciPy 1.18 announces that another class will be returned; it is converted here.
        warnings.filterwarnings("ignore", "The default value for `spmatrix`", DeprecationWarning)
        return sparse.csr_matrix(mmread(file).T)
