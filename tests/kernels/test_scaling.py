"""The inner loops of a sweep, as they are compiled on machines with wide and narrow registers."""

from types import FunctionType

import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cometric.kernels import scaling

LANES = 64  # in bytes


def compiled(whole):
    """``project_rows``, compiled without a cache as if ``WHOLE`` were so."""
    function = scaling.project_rows.py_func
    names = function.__globals__ | {"WHOLE": whole}
    return numba.njit(**scaling.FAST)(FunctionType(function.__code__, names))


def projected(whole, dtype):
    """Sums of 11 rows of a chunk, and what NumPy says."""
    rng = np.random.default_rng(0)
    width = 3 * (LANES // np.dtype(dtype).itemsize)
    chunk, u = rng.random((20, width), dtype), rng.random(width, dtype)
    rows = np.zeros(16, np.int32)
    rows[:11] = rng.permutation(20)[:11]
    out = np.zeros(16, dtype)
    compiled(whole)(chunk.ravel(), rows, 0, 11, u, out, 0, width)
    return out[:11], chunk[rows[:11]] @ u


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_projected_whatever_the_registers(dtype):
    narrow, expected = projected(False, dtype)
    assert_allclose(narrow, expected, rtol=1e-5 if dtype == "float32" else 1e-13)
    wide, _ = projected(True, dtype)
    assert_array_equal(wide, narrow)
