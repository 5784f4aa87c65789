"""Every Triton kernel is compiled for a GPU, whether or not there is one."""

import os

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from cometric.kernels import sinkhorn_triton  # noqa: E402
from compiled import compile_kernel  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1 is set"
    ),
]
each = pytest.mark.parametrize("number", ["fp32", "fp64"])
balanced_or_not = pytest.mark.parametrize("damped", [False, True])


@each
@balanced_or_not
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("width", [64, 512])
def test_sweeps(number, damped, resume, width):
    shape = sinkhorn_triton.SHAPES[int(number[2:]) // 8][width]
    of = f"*{number}"
    types = [of, of, "*i32", "*i32", of, of, "*fp64", "*fp64", of, "*fp64"]
    constants = {
        "T": shape.rows,
        "W": width,
        "LOGS": 32 * shape.warps,
        "ONE": shape.one,
        "FAST": True,
        "RESUME": resume,
        "DAMPED": damped,
    }
    types += ["i32", "i32", "i32", "i32", "fp32"]
    compiled = compile_kernel(sinkhorn_triton._sweep, types, constants, shape.warps)
    assert "sm_90" in compiled.asm["ptx"]


@each
def test_the_gathered_copy(number):
    types = [f"*{number}", "*i32", f"*{number}", "i32", "i32"]
    assert compile_kernel(sinkhorn_triton._gather, types, {"ROWS": 8, "W": 256}, 4).asm["cubin"]


@each
@balanced_or_not
def test_the_fused_passes(number, damped):
    of = f"*{number}"
    constants = {"D": 256, "FAST": True, "DAMPED": damped}
    types = [of, of, "*fp64", "*fp64", "i32", "i32"]
    assert compile_kernel(sinkhorn_triton._divide, types, constants, 2).asm["cubin"]
    types = [of, of, of, "*fp64", "*fp64", "*fp64", "i32", "i32"]
    constants = {"W": 256, "DAMPED": damped}
    assert compile_kernel(sinkhorn_triton._update, types, constants, 2).asm["cubin"]
