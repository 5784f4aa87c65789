"""Kernels without their compiler (``NUMBA_DISABLE_JIT=1``), so that coverage can see into them.

Two things exist in compiled code only, and get plain twins here: fields of a record by name, and
lanes.
"""

import numpy as np

from cometric.kernels import sinkhorn, transport, trees
from cometric.kernels.lanes import BYTES


def zeros_like(array):
    return np.zeros(BYTES // array.itemsize, array.dtype)


def spread(number):
    return np.full(BYTES // number.itemsize, number)


def load(array, begin):
    return array[begin : begin + BYTES // array.itemsize].copy()


def store(array, begin, lanes):
    array[begin : begin + len(lanes)] = lanes


def multiply_add(x, y, z):
    return x * y + z


def total(lanes):
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def interpret():
    """Put the twins where the kernels look."""
    transport.NODE = trees.NODE = np.dtype((np.record, transport.NODE))
    for twin in (zeros_like, spread, load, store, np.add, multiply_add, total):
        setattr(sinkhorn, twin.__name__, twin)
