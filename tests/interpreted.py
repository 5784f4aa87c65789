"""Kernels without their compiler (``NUMBA_DISABLE_JIT=1``), so that coverage can see into them.

Two things exist in compiled code only, and get plain twins here: records whose fields have names,
and lanes.
"""

from types import SimpleNamespace

import numpy as np

from cometric.kernels import candidates, duals, nodes, plans, scaling, sinkhorn, transport, trees
from cometric.kernels.lanes import BYTES


def zeros_like(array):
    return np.zeros(BYTES // array.itemsize, array.dtype)


def spread(number):
    return np.full(BYTES // np.asarray(number).itemsize, number)


def load(array, begin):
    return array.reshape(-1)[begin : begin + BYTES // array.itemsize].copy()


def store(array, begin, lanes):
    array.reshape(-1)[begin : begin + len(lanes)] = lanes  # a view: arrays here are contiguous


def multiply_add(x, y, z):
    return x * y + z


def total(lanes):
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


class Numpy:
    """NumPy, but an array of nodes is a list of objects: records hide fields named ``size``."""

    def __getattr__(self, name):
        return getattr(np, name)

    def empty(self, shape, dtype=np.float64):
        if dtype is nodes.NODE:
            return [SimpleNamespace(**dict.fromkeys(dtype.names, 0)) for _ in range(shape)]
        return np.empty(shape, dtype)


def interpret():
    """Put the twins where the kernels look."""
    for module in (duals, plans, transport, trees):  # those that make nodes
        module.np = Numpy()
    for twin in (zeros_like, spread, load, store, np.add, multiply_add, total):
        setattr(scaling, twin.__name__, twin)
        setattr(sinkhorn, twin.__name__, twin)
        setattr(candidates, twin.__name__, twin)
    candidates._minimum, candidates._maximum = np.minimum, np.maximum
