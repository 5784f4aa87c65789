"""Parts of Sinkhorn sweeps that are compiled differently by processor."""

import os

import numpy as np
import pytest
from numba import njit

from cometric.kernels import scaling


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
@pytest.mark.parametrize("whole", [False, True], ids=["avx2", "avx512"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_are_projected_on_every_processor(whole, dtype, monkeypatch):
    # Without AVX-512 this failed to compile, and with it every entropic transport.
    monkeypatch.setattr(scaling, "WHOLE", whole)
    project = njit(**scaling.FAST)(scaling.project_rows.py_func)
    rng = np.random.default_rng(0)
    chunk, u = rng.random((8, 64)).astype(dtype), rng.random(64).astype(dtype)
    rows = np.array([7, 2, 5, 0, 1, 1, 3, 6], dtype=np.int32)
    out = np.ones(8, dtype)
    project(chunk.ravel(), rows, 0, 8, u, out, 0, 64)
    assert np.allclose(out, 1 + chunk[rows] @ u, rtol=1e-5)
