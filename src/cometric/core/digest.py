"""Checksums that tell whether arrays, or the histograms of a problem, are the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cometric.core.problem import Problem


def digest(arrays: dict[str, Any]) -> str:
    """SHA-256 of named arrays: names, types, shapes and values, for any memory layout."""
    checksum = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        checksum.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        checksum.update(array.tobytes())
    return checksum.hexdigest()


def fingerprint(problem: Problem) -> str:
    """A short checksum of the histograms, the same on machines of either byte order.

    AnnData files store it: changing it would make them look as if their data had changed.
    """
    checksum = hashlib.blake2b(digest_size=16)
    for side in (problem.samples, problem.features):
        for part in (side.full.indptr, side.full.indices, side.full.data, side.labels):
            checksum.update(np.asarray(part, part.dtype.newbyteorder("<")).tobytes())
    return checksum.hexdigest()
