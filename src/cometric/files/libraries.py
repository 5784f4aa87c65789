"""Calls of SciPy and pandas that differ between their versions."""

from __future__ import annotations

import io
import warnings
from typing import IO, Any

from scipy import sparse


def read_market(file: IO[bytes]) -> sparse.csr_matrix:
    """The transpose of the matrix in an open ``.mtx`` file: rows of it are columns there."""
    from scipy.io import mmread  # on use: it takes milliseconds to load

    with warnings.catch_warnings():
        # SciPy 1.18 announces that another class will be returned; it is converted here.
        warnings.filterwarnings("ignore", "The default value for `spmatrix`", DeprecationWarning)
        return sparse.csr_matrix(mmread(io.BufferedReader(_Ended(file))).T)


class _Ended(io.RawIOBase):
    """A text stream that ends in a newline and has no NUL: SciPy reads beyond other streams."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._last = source, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._source.read(len(buffer))
        if b"\0" in part:
            raise ValueError("it contains NUL characters")
        if not part and self._last != b"\n":
            part = b"\n"
        buffer[: len(part)] = part
        self._last = part[-1:] or self._last
        return len(part)


def precision(version: str) -> dict[str, Any]:
    """What makes pandas read every digit; since 3.1 it always does, and warns of the option."""
    new = tuple(map(int, version.split(".")[:2])) >= (3, 1)
    return {} if new else {"float_precision": "round_trip"}
