"""Triton kernels compiled for a GPU that is not there.

The interpreter accepts what the compiler refuses, such as a variable that changes its type in a
loop, so kernels are compiled as well: for compute capability 9.0, by the assembler in Triton.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)


def compile_kernel(kernel, types, constants, warps, stages=3):
    """Compile a kernel; ``types`` are those of its arguments in order, without the constants.

    Pointers, and integers written "i32:16", are multiples of 16.
    """
    names = [parameter.name for parameter in kernel.params if parameter.name not in constants]
    assert len(names) == len(types), f"{kernel.__name__} takes {names}"
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    aligned = [name for name in names if signature[name][0] == "*" or ":" in signature[name]]
    signature = {name: of.removesuffix(":16") for name, of in signature.items()}
    source = ASTSource(
        fn=kernel,
        signature={parameter.name: signature[parameter.name] for parameter in kernel.params},
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=TARGET, options=options)
