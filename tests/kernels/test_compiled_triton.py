"""Every Triton kernel is compiled for a GPU, whether or not there is one."""

import os

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from cometric.kernels import nearest_triton, sinkhorn_triton
from compiled import compile_kernel

pytestmark = [
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1 is set"
    ),
]
balanced_or_not = pytest.mark.parametrize("damped", [False, True])


def test_the_gathered_copy():
    types = ["*fp64", "*i32", "*fp64", "i32", "i32"]
    assert compile_kernel(sinkhorn_triton._gather, types, {"ROWS": 8, "W": 256}, 4).asm["cubin"]


@pytest.mark.parametrize("parts", [0, 3])
def test_bounds(parts):
    half, single, whole = "*fp16", "*fp32", "*i32"
    types = [*[half] * 6, *[single] * 5, *[whole] * 3, single]
    types += ["i32", "i32", "i32", "i32:16", "i32:16", "i32", "fp32", "fp32", "fp32"]
    kinds = dict.fromkeys(("OVERLAP", "ANGLE", "PLACE", "LOCAL"), parts > 0)
    constants = nearest_triton.TILE | {"SMALL": 32} | kinds
    compiled = compile_kernel(nearest_triton._append, types, constants, 8)
    assert "wgmma" in compiled.asm["ptx"]  # on matrix units


@pytest.mark.parametrize("least", [False, True])
def test_sums_of_sparse_rows(least):
    types = ["*fp64", "*i64", "*i32", "*fp64", "*i64", "*fp64", "i32", "i32", "i32"]
    constants = {"E": 128, "LEAST": least}
    assert compile_kernel(nearest_triton._sums, types, constants, 1).asm["cubin"]


@balanced_or_not
def test_pairs(damped):
    real, whole = "*fp64", "*i32"
    types = [real, real, real, whole, whole, "*i64", whole, *[real] * 5]
    types += ["i32", "i32", "i32", "i32", "fp32"]
    constants = {"T": 4, "W": 128, "LOGS": 32, "ONE": True, "FAST": True, "DAMPED": damped}
    assert compile_kernel(nearest_triton._pairs, types, constants, 1).asm["cubin"]
