"""Vectors of 64 bytes as values in Numba code: 8 doubles, or 16 floats, at once.

Numba leaves vectorization to LLVM, which stores sums to memory after every term where arrays might
overlap. The operations below work on vectors explicitly; LLVM splits them to fit the machine.
"""

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model
from numba.np.arrayobj import make_array

BYTES = 64
INDEX = ir.IntType(32)


class Lanes(types.Type):
    """A vector of ``BYTES`` bytes of one number type."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        item = manager.lookup(kind.dtype).get_value_type()
        super().__init__(manager, kind, ir.VectorType(item, 8 * BYTES // kind.dtype.bitwidth))


@intrinsic
def zeros_like(typing, array):
    """Zeros of the array's dtype."""

    def generate(context, builder, signature, args):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return Lanes(array.dtype)(array), generate


@intrinsic
def spread(typing, number):
    """The number in every lane."""

    def generate(context, builder, signature, args):
        kind = context.get_value_type(signature.return_type)
        blank = ir.Constant(kind, ir.Undefined)
        first = builder.insert_element(blank, args[0], INDEX(0))
        return builder.shuffle_vector(first, blank, _indices([0] * kind.count))

    return Lanes(number)(number), generate


@intrinsic
def load(typing, array, begin):
    """The items of a contiguous array from ``begin`` on."""

    def generate(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args)
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, types.int64), generate


@intrinsic
def store(typing, array, begin, lanes):
    """Write the lanes into a contiguous array from ``begin`` on."""

    def generate(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[:2])
        builder.store(args[2], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, lanes), generate


@intrinsic
def add(typing, x, y):
    """Sum, lane by lane."""

    def generate(context, builder, signature, args):
        return builder.fadd(*args)

    return x(x, x), generate


@intrinsic
def multiply_add(typing, x, y, z):
    """Return x y + z, lane by lane, with one rounding where the machine can."""

    def generate(context, builder, signature, args):
        product = builder.fmul(args[0], args[1], flags=("contract",))
        return builder.fadd(product, args[2], flags=("contract",))

    return x(x, x, x), generate


@intrinsic
def total(typing, lanes):
    """The sum over the lanes, by adding halves."""

    def generate(context, builder, signature, args):
        sums = args[0]
        while sums.type.count > 1:
            half = sums.type.count // 2
            blank = ir.Constant(sums.type, ir.Undefined)
            low = builder.shuffle_vector(sums, blank, _indices(range(half)))
            high = builder.shuffle_vector(sums, blank, _indices(range(half, 2 * half)))
            sums = builder.fadd(low, high)
        return builder.extract_element(sums, INDEX(0))

    return lanes.dtype(lanes), generate


def _indices(numbers):
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(INDEX, len(numbers)), numbers)


def _address(context, builder, kind, args):
    """The address of the lanes that begin at an item of an array."""
    array, begin = args
    data = make_array(kind)(context, builder, array).data
    lanes = context.get_value_type(Lanes(kind.dtype))
    return builder.bitcast(builder.gep(data, [begin]), lanes.as_pointer())
