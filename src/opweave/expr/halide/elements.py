"""Functions, casts and reduction steps of single elements, as Halide expressions.

Signed integers of 32 and 64 bits are computed as unsigned ones, so that they wrap around: Halide assumes that signed
integers never overflow. Indices stay signed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...core.dtypes import FLOATS, INFO
from .. import reductions
from ..ir import FUNCTIONS, INTEGERS, Reduction, Type
from . import mathematics
from .mathematics import HalideExpr, f32, hl

_NUMBERS: dict[Type, Callable[[Any], HalideExpr]] = {
    **dict.fromkeys(FLOATS, f32),  # the arithmetic of float16 is float32
    **{name: getattr(hl, f"{INFO[name].kind}{INFO[name].bits}") for name in INTEGERS},
    "index": hl.i32,
    "bool": lambda value: hl.cast(hl.Bool(), bool(value)),
}
"""Functions that make constants by type, in the Halide type of the computation."""


def constant(value: float, type: Type) -> HalideExpr:
    if type in FLOATS and value == 0 and math.copysign(1, value) < 0:
        return mathematics.negate(f32(0))  # Halide takes the constants 0 and -0 for the same one
    return _NUMBERS[type](value if type in FLOATS else int(value))


def arithmetic_type(type: Type) -> HalideExpr:
    """The Halide type in which elements of a type are computed."""
    return constant(0, type).type()


def _is_signed(type: Type) -> bool:
    return type in INTEGERS and INFO[type].kind == "i"


def _as_unsigned(x: HalideExpr) -> HalideExpr:
    return hl.reinterpret(hl.UInt(x.type().bits()), x)


def _wrap_around(function: Callable[[HalideExpr, HalideExpr], HalideExpr]) -> Callable[..., HalideExpr]:
    def apply(type: Type, a: HalideExpr, b: HalideExpr) -> HalideExpr:
        if _is_signed(type):
            return hl.reinterpret(a.type(), function(_as_unsigned(a), _as_unsigned(b)))
        return function(a, b)

    return apply


_add = _wrap_around(lambda a, b: a + b)
_sub = _wrap_around(lambda a, b: a - b)
_mul = _wrap_around(lambda a, b: a * b)


def _neg(type: Type, a: HalideExpr) -> HalideExpr:
    return mathematics.negate(a) if type in FLOATS else _sub(type, constant(0, type), a)


def _abs(type: Type, a: HalideExpr) -> HalideExpr:
    return mathematics.magnitude(a) if type in FLOATS else hl.select(a < constant(0, type), _neg(type, a), a)


def _divide(type: Type, a: HalideExpr, b: HalideExpr) -> tuple[HalideExpr, HalideExpr]:
    """The truncated quotient and the remainder: arbitrary for divisor 0; the lowest number divided by -1 wraps around.

    Signed numbers are divided as magnitudes. Halide refuses signed divisions that overflow during constant folding, and its
    own rule for division by 2**31 - 1 contains such a division.
    """
    zero = constant(0, type)
    safe = hl.select(b == zero, constant(1, type), b)
    if not (_is_signed(type) or type == "index"):
        quotient = a / safe
        return quotient, a - quotient * safe
    magnitude = _as_unsigned(_abs(type, a)) / _as_unsigned(_abs(type, safe))
    is_negative = (a < zero) != (safe < zero)
    quotient = hl.reinterpret(a.type(), hl.select(is_negative, _as_unsigned(zero) - magnitude, magnitude))
    return quotient, _sub(type, a, _mul(type, quotient, safe))


def _div(type: Type, a: HalideExpr, b: HalideExpr) -> HalideExpr:
    if type in FLOATS:
        return a / b
    return hl.select(b == constant(0, type), constant(0, type), _divide(type, a, b)[0])


def _floor_divide(type: Type, a: HalideExpr, b: HalideExpr) -> tuple[HalideExpr, HalideExpr]:
    """The quotient rounded down, and its remainder; both 0 for a divisor of 0."""
    zero = constant(0, type)
    quotient, remainder = _divide(type, a, b)
    if _is_signed(type) or type == "index":
        # A negative quotient that is inexact was rounded up.
        inexact = (remainder != zero) & ((remainder < zero) != (b < zero))
        quotient = hl.select(inexact, _sub(type, quotient, constant(1, type)), quotient)
        remainder = hl.select(inexact, _add(type, remainder, b), remainder)
    return hl.select(b == zero, zero, quotient), hl.select(b == zero, zero, remainder)


def _pow(type: Type, a: HalideExpr, b: HalideExpr) -> HalideExpr:
    if type in FLOATS:
        return mathematics.pow(a, b)
    one, zero, width = constant(1, type), constant(0, type), a.type().bits()
    result, square = one, a
    for bit in range(width - _is_signed(type)):
        result = hl.select(((b >> constant(bit, type)) & one) == one, _mul(type, result, square), result)
        square = _mul(type, square, square)
    if not _is_signed(type):
        return result
    inverse = hl.select(a == one, one, hl.select(a == constant(-1, type), hl.select((b & one) == one, a, one), zero))
    return hl.select(b < zero, inverse, result)


def power(type: Type, a: HalideExpr, exponent: int) -> HalideExpr:
    """An integer to the power of a non-negative constant."""
    result, square = constant(1, type), a
    while exponent:
        if exponent & 1:
            result = _mul(type, result, square)
        exponent >>= 1
        square = _mul(type, square, square) if exponent else square
    return result


def _max(type: Type, a: HalideExpr, b: HalideExpr) -> HalideExpr:
    return hl.select((a > b) | mathematics.is_nan(a), a, b) if type in FLOATS else hl.max(a, b)


def _min(type: Type, a: HalideExpr, b: HalideExpr) -> HalideExpr:
    return hl.select((a < b) | mathematics.is_nan(a), a, b) if type in FLOATS else hl.min(a, b)


def _fmod(type: Type, a: HalideExpr, b: HalideExpr) -> HalideExpr:
    return mathematics.fmod(a, b)


def _shift_left(type: Type, a: HalideExpr, b: HalideExpr) -> HalideExpr:
    fits, amount = _shift_amount(b)
    shifted = hl.reinterpret(a.type(), _as_unsigned(a) << amount)
    return hl.select(fits, shifted, constant(0, type))


def _shift_right(type: Type, a: HalideExpr, b: HalideExpr) -> HalideExpr:
    fits, amount = _shift_amount(b)
    # An amount that does not fit becomes bits - 1, which leaves the sign.
    shifted = a >> amount
    return shifted if _is_signed(type) else hl.select(fits, shifted, constant(0, type))


def _shift_amount(b: HalideExpr) -> tuple[HalideExpr, HalideExpr]:
    """Return `b < bits` and `min(b, bits - 1)`, with `b` as unsigned: negative amounts count as large."""
    amount, bits = _as_unsigned(b), b.type().bits()
    return amount < bits, hl.min(amount, hl.cast(amount.type(), bits - 1))


def _sign(type: Type, a: HalideExpr) -> HalideExpr:
    zero, one = constant(0, type), constant(1, type)
    return hl.select(a > zero, one, hl.select(a < zero, constant(-1, type), zero))


_PLAIN: dict[str, Callable[..., HalideExpr]] = {
    **{name: function.operator for name, function in FUNCTIONS.items() if function.operator},
    "is_nan": mathematics.is_nan,
    "is_infinite": lambda a: mathematics.magnitude(a) == f32(math.inf),
    "round_even": hl.round,
    "reciprocal": lambda a: f32(1) / a,
    "where": hl.select,
    **{name: getattr(hl, name) for name in ("ceil", "floor", "sqrt", "logical_not")},
    **{name: getattr(mathematics, name) for name in ("exp", "log", "sin", "cos", "tan", "erf", "sigmoid", "tanh")},
}
"""Functions that are computed the same way for all types, except for those in `_TYPED`."""

_TYPED: dict[str, Callable[..., HalideExpr]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "floor_div": lambda *operands: _floor_divide(*operands)[0],
    "mod": lambda *operands: _floor_divide(*operands)[1],
    "fmod": _fmod,
    "pow": _pow,
    "max": _max,
    "min": _min,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
}
"""Functions that also take the type."""


def call(name: str, type: Type, arguments: list[HalideExpr]) -> HalideExpr:
    """Apply a function of `ir.FUNCTIONS` to elements of a type."""
    if type in FLOATS and name in ("greater_or_equal", "lesser_or_equal"):
        # Halide rewrites a <= b as not (a > b), which is wrong for NaN.
        return call(name.removesuffix("_or_equal"), type, arguments) | (arguments[0] == arguments[1])
    if type == "bool" and name in ("greater", "greater_or_equal", "lesser", "lesser_or_equal"):
        arguments = [hl.cast(hl.UInt(8), argument) for argument in arguments]
    return _TYPED[name](type, *arguments) if name in _TYPED else _PLAIN[name](*arguments)


def index_division(name: str, a: HalideExpr, divisor: HalideExpr) -> HalideExpr:
    """`//` or `%` of an index by a positive number, in a form for which Halide infers the range."""
    return a // divisor if name == "floor_div" else a % divisor


def cast(value: HalideExpr, source: Type, target: Type) -> HalideExpr:
    """Convert an element to another type, with the semantics of `ir.Cast`."""
    if target == "bool":
        return value if source == "bool" else value != constant(0, source)
    if source == "bool":
        return hl.select(value, constant(1, target), constant(0, target))
    if source in FLOATS:
        return value if target in FLOATS else _saturate(value, target)  # the caller rounds float16
    return hl.cast(arithmetic_type(target), value)


def _saturate(value: HalideExpr, target: Type) -> HalideExpr:
    """Truncate a float to an integer, clamped to the range of `target`; NaN becomes 0."""
    info = INFO["int32" if target == "index" else target]
    above, below = float(info.highest + 1), float(info.lowest)  # powers of 2, exact in float32
    inside = (value < f32(above)) & (value > f32(below - 1 if info.bits < 32 else below))
    whole = hl.cast(arithmetic_type(target), hl.select(inside, value, f32(0)))
    too_much = (value > f32(above)) | (value == f32(above))  # not >=, see `call`
    low = hl.select(too_much, constant(info.highest, target), whole)
    return hl.select((value < f32(0)) & hl.logical_not(inside), constant(info.lowest, target), low)


def half_bits(value: HalideExpr) -> HalideExpr:
    """Convert a float32 to the bits of a float16."""
    # Multiply by 1, because Halide would drop the float32 between an integer and a float16. Select NaN, because Halide's code
    # makes NaN infinite on machines without an instruction for the conversion.
    bits = hl.reinterpret(hl.UInt(16), hl.cast(hl.Float(16), value * hl.f32(1)))
    return hl.select(mathematics.is_nan(value), hl.u16(0x7E00), bits)


def from_half_bits(bits: HalideExpr) -> HalideExpr:
    """Convert the bits of a float16 to float32."""
    return hl.cast(hl.Float(32), hl.reinterpret(hl.Float(16), bits))


# ---------------------------------------------------------------------------------------------------------------------
# Reductions

State = tuple[HalideExpr, ...]
"""Intermediate result of a reduction: a value, and its position for `arg_max` and `arg_min`."""

_NOWHERE = 2**31 - 1


def neutral(reduction: Reduction, type: Type) -> State:
    """The state before the first element."""
    value = constant(reductions.neutral(reduction, type).value, type)
    return (value, hl.i32(_NOWHERE)) if reduction.startswith("arg_") else (value,)


def combine(reduction: Reduction, type: Type, a: State, b: State) -> State:
    """Combine the states of two parts."""
    if reduction in reductions.COMBINE:
        return (call(reductions.COMBINE[reduction], type, [a[0], b[0]]),)
    better = b[0] > a[0] if reduction == "arg_max" else b[0] < a[0]
    same = b[0] == a[0]
    if type in FLOATS:
        nan_a, nan_b = mathematics.is_nan(a[0]), mathematics.is_nan(b[0])
        better = hl.logical_not(nan_a) & (better | nan_b)
        same = same | (nan_a & nan_b)
    chosen = better | (same & (b[1] < a[1]))
    return hl.select(chosen, b[0], a[0]), hl.select(chosen, b[1], a[1])
