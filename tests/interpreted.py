"""Kernels without their compiler (``NUMBA_DISABLE_JIT=1``), so that coverage can see into them.

Two things exist in compiled code only, and get plain twins here: records whose fields have names,
and lanes.
"""

from types import SimpleNamespace

import numpy as np

from cometric.kernels import candidates, nodes, plans, scaling, simplex, sinkhorn_numba
from cometric.kernels.simd import BYTES


def zeros(dtype):
    return np.zeros(BYTES // np.dtype(dtype).itemsize, dtype)


def zeros_like(array):
    return zeros(array.dtype)


def item(array, index):
    return array[index]


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


def divide(x, y):
    with np.errstate(all="ignore"):  # compiled code does not warn
        return x / y


def root(x):
    return np.sqrt(x)


def log(x):
    return np.log(np.maximum(x, np.finfo(x.dtype).tiny))


def any_below(x, y):
    return bool((x < y).any())


def distance(x, y, z):
    return abs(x * y - z)


def mark_abnormal(marks, x, weight):
    form = np.finfo(x.dtype)
    is_normal = (x >= form.tiny) & (x <= form.max)
    return np.where(is_normal | (weight == 0), marks, x.dtype.type(1))


def add_double(sums, x):
    for start in range(0, len(x), len(sums)):
        sums = sums + x[start : start + len(sums)]
    return sums


def add_products(sums, x, y):
    return add_double(sums, x * y)


def add_totals(array, begin, *lanes):
    for place, each in enumerate(lanes, begin):
        array.reshape(-1)[place] += total(each)


LANES = (zeros, zeros_like, spread, load, store, item, np.add, multiply_add, total, divide)
LANES += (np.minimum, np.maximum, root, log, any_below, distance, mark_abnormal)
LANES += (add_double, add_products, add_totals)


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
    for module in (nodes, plans, simplex):  # those that make nodes
        module.np = Numpy()
    for module in (candidates, scaling, sinkhorn_numba):
        for twin in LANES:
            if hasattr(module, twin.__name__):
                setattr(module, twin.__name__, twin)
