"""Vectors of 64 bytes as values in Numba code: 8 doubles, or 16 floats, at once.

Numba leaves vectorization to LLVM, which stores sums to memory after every term where arrays might
overlap. The operations below work on vectors explicitly; LLVM splits them to fit the machine.
"""

import math
from typing import NamedTuple

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import types
from numba.core.cgutils import get_or_insert_function
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model
from numba.np.arrayobj import make_array

BYTES = 64
WHOLE = bool(get_host_cpu_features().get("avx512f"))
"""Whether a register of this machine holds a whole vector."""
INDEX = ir.IntType(32)
LOG_2 = math.log(2.0)


class Form(NamedTuple):
    """The bit layout of a floating-point type, and the series of artanh to its precision."""

    bits: int
    mantissa: int  # number of stored bits of the mantissa
    bias: int  # exponent bias, shifted to the exponent field: the bits of 1.0
    root_half: int  # the bits of sqrt(1/2)
    rounder: float  # 2^mantissa: its last bit has the value 1
    rounder_bits: int
    smallest: float  # positive normal number
    largest: float
    series: tuple[float, ...]


FORMS = {
    types.float64: Form(
        64, 52, 0x3FF << 52, 0x3FE6A09E667F3BCD, 2.0**52, 0x4330000000000000,
        2.0**-1022, (2.0 - 2.0**-52) * 2.0**1023, tuple(1 / k for k in range(19, 0, -2)),
    ),
    types.float32: Form(
        32, 23, 0x7F << 23, 0x3F3504F3, 2.0**23, 0x4B000000,
        2.0**-126, (2.0 - 2.0**-23) * 2.0**127, tuple(1 / k for k in range(9, 0, -2)),
    ),
}  # fmt: skip


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
def zeros(typing, dtype):
    """Zeros of a dtype."""

    def generate(context, builder, signature, args):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return Lanes(dtype.dtype)(dtype), generate


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


@intrinsic
def item(typing, array, index):
    """The item at a nonnegative index: array[index] without a test for negative indices."""

    def generate(context, builder, signature, args):
        data = make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load(builder.gep(data, [args[1]]))

    return array.dtype(array, types.int64), generate


@intrinsic
def divide(typing, x, y):
    """Quotient, lane by lane."""

    def generate(context, builder, signature, args):
        return builder.fdiv(*args)

    return x(x, x), generate


def _choose(condition, meaning):
    """An intrinsic that selects x in the lanes where ``x condition y`` holds, and y elsewhere."""

    def pick(typing, x, y):
        def generate(context, builder, signature, args):
            return builder.select(builder.fcmp_ordered(condition, *args), *args)

        return x(x, x), generate

    pick.__doc__ = f"The {meaning} of both, lane by lane."
    return intrinsic(pick)


minimum, maximum = _choose("<", "smaller"), _choose(">", "larger")


@intrinsic
def root(typing, x):
    """Square root, lane by lane."""

    def generate(context, builder, signature, args):
        kind = args[0].type
        name = f"llvm.sqrt.v{kind.count}f{x.dtype.bitwidth}"
        function = get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.call(function, args)

    return x(x), generate


@intrinsic
def any_below(typing, x, y):
    """Whether x < y in some lane."""

    def generate(context, builder, signature, args):
        below = builder.fcmp_ordered("<", *args)
        bits = builder.bitcast(below, ir.IntType(below.type.count))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(x, x), generate


@intrinsic
def distance(typing, x, y, z):
    """Return |x y - z|, lane by lane."""

    def generate(context, builder, signature, args):
        product = builder.fmul(args[0], args[1], flags=("contract",))
        gap = builder.fsub(product, args[2], flags=("contract",))
        negative = builder.fsub(args[2], product, flags=("contract",))
        return builder.select(builder.fcmp_ordered(">", gap, negative), gap, negative)

    return x(x, x, x), generate


@intrinsic
def mark_abnormal(typing, marks, x, weight):
    """Set the marks to 1 where x is not a positive normal number, although its weight is not 0."""

    def generate(context, builder, signature, args):
        kind = context.get_value_type(signature.return_type)
        form = FORMS[x.dtype]
        zero, one = ir.Constant(kind, None), _constant(kind, 1.0)
        counted = builder.select(builder.fcmp_ordered("!=", args[2], zero), args[1], one)
        low = builder.fcmp_ordered(">=", counted, _constant(kind, form.smallest))
        high = builder.fcmp_ordered("<=", counted, _constant(kind, form.largest))
        return builder.select(builder.and_(low, high), args[0], one)

    return x(x, x, x), generate


@intrinsic
def log(typing, x):
    """Logarithm of positive normal numbers, lane by lane; finite for all others.

    x = m 2^e with m in [sqrt 1/2, sqrt 2), and log m by the series of artanh. The exponent is
    converted to a float by writing it to the last bits of a large one: not every machine can
    convert vectors of integers.
    """

    def generate(context, builder, signature, args):
        kind = context.get_value_type(signature.return_type)
        form = FORMS[x.dtype]
        integers = ir.VectorType(ir.IntType(form.bits), kind.count)
        shift, bias = _constant(integers, form.mantissa), _constant(integers, form.bias)
        bits = builder.bitcast(args[0], integers)
        raised = builder.add(bits, _constant(integers, form.bias - form.root_half))
        biased = builder.lshr(raised, shift)
        m = builder.bitcast(builder.add(builder.sub(bits, builder.shl(biased, shift)), bias), kind)
        large = builder.bitcast(builder.or_(biased, _constant(integers, form.rounder_bits)), kind)
        e = builder.fsub(large, _constant(kind, form.rounder + (form.bias >> form.mantissa)))
        one = _constant(kind, 1.0)
        f = builder.fdiv(builder.fsub(m, one), builder.fadd(m, one))
        z = builder.fmul(f, f)
        series = _constant(kind, form.series[0])
        for coefficient in form.series[1:]:
            term = builder.fmul(series, z, flags=("contract",))
            series = builder.fadd(term, _constant(kind, coefficient), flags=("contract",))
        log_m = builder.fmul(builder.fadd(f, f), series)
        log_power = builder.fmul(e, _constant(kind, LOG_2), flags=("contract",))
        return builder.fadd(log_power, log_m, flags=("contract",))

    return x(x), generate


@intrinsic
def add_double(typing, sums, x):
    """Add the lanes to sums in double precision; float32 vectors are added as two halves."""

    def generate(context, builder, signature, args):
        return _add_double(builder, *args)

    return sums(sums, x), generate


@intrinsic
def add_products(typing, sums, x, y):
    """Add the products of the lanes to sums in double precision; float32 as two halves."""

    def generate(context, builder, signature, args):
        return _add_double(builder, args[0], builder.fmul(*args[1:], flags=("contract",)))

    return sums(sums, x, x), generate


def _add_double(builder, sums, x):
    if x.type == sums.type:
        return builder.fadd(sums, x, flags=("contract",))
    blank = ir.Constant(x.type, ir.Undefined)
    for part in (range(sums.type.count), range(sums.type.count, x.type.count)):
        half = builder.shuffle_vector(x, blank, _indices(part))
        sums = builder.fadd(sums, builder.fpext(half, sums.type))
    return sums


@intrinsic
def add_totals(typing, array, begin, w, x, y, z):
    """Add the sums over the lanes of w, x, y, z to four items of the array.

    Sums have the order of :func:`total`, but halves of several vectors are added at once.
    """

    def generate(context, builder, signature, args):
        parts, size = list(args[2:]), args[2].type.count
        width = size
        while width > 1:
            half = width // 2
            count = size // width  # sums side by side in a vector
            low = [c * width + k for c in range(count) for k in range(half)]
            high = [k + half for k in low]
            if len(parts) > 1:
                low += [size + k for k in low]
                high += [size + k for k in high]
            seconds = parts[1::2] or [ir.Constant(parts[0].type, ir.Undefined)]
            parts = [
                builder.fadd(
                    builder.shuffle_vector(first, second, _indices(low)),
                    builder.shuffle_vector(first, second, _indices(high)),
                )
                for first, second in zip(parts[::2], seconds, strict=True)
            ]
            size, width = parts[0].type.count, half
        data = make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), parts[0].type.as_pointer())
        align = array.dtype.bitwidth // 8
        before = builder.load(address, align=align)
        builder.store(builder.fadd(before, parts[0]), address, align=align)
        return context.get_dummy_value()

    return types.void(array, types.int64, w, w, w, w), generate


def _indices(numbers):
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(INDEX, len(numbers)), numbers)


def _constant(kind, number):
    """The number in every lane."""
    return ir.Constant(kind, [number] * kind.count)


def _address(context, builder, kind, args):
    """The address of the lanes that begin at an item of an array."""
    array, begin = args
    data = make_array(kind)(context, builder, array).data
    lanes = context.get_value_type(Lanes(kind.dtype))
    return builder.bitcast(builder.gep(data, [begin]), lanes.as_pointer())
