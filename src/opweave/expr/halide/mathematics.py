"""Mathematical functions as Halide expressions.

Halide's own are wrong at infinities and NaN, or do not vectorise. Ours are correct for every float32, and consist of
arithmetic and selects only.

`BOUNDS` are measured by `tests/expr/test_expr_halide.py` on samples of all exponents, on several processors. For exp and
sigmoid, the maximum occurs without fused multiply-add; with it, the errors are at most 0.9 and 2.2. The bounds hold on the
whole range: the argument of sin, cos and tan is reduced with enough bits of 2 / pi.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ...support.errors import import_extra

hl = import_extra("halide", "halide", "compiling expressions")

HalideExpr: TypeAlias = Any

BOUNDS = {
    "exp": 1.2, "log": 0.9, "sin": 1.6, "cos": 1.6, "tan": 0.9, "tanh": 2.5, "erf": 1.2, "sigmoid": 2.4, "pow": 0.6
}  # fmt: skip
"""Maximum error of each function in ULP."""

f32 = hl.f32
_F32, _F64 = hl.Float(32), hl.Float(64)
_I32, _U32, _I64, _U64 = hl.Int(32), hl.UInt(32), hl.Int(64), hl.UInt(64)


def _polynomial(x: HalideExpr, coefficients: Sequence[float], number: Callable[[float], HalideExpr]) -> HalideExpr:
    """Horner's scheme; the coefficient of the highest power comes first."""
    result = number(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + number(coefficient)
    return result


def is_nan(x: HalideExpr) -> HalideExpr:
    """Whether `x` is NaN. Halide's `is_nan` would evaluate `x` again."""
    return hl.logical_not(x == x)


def bits(x: HalideExpr) -> HalideExpr:
    """The bits of a float32, uint32."""
    return hl.reinterpret(_U32, x)


def negate(x: HalideExpr) -> HalideExpr:
    """`-x`; `0 - x` would lose the sign of zero."""
    return hl.reinterpret(_F32, bits(x) ^ hl.u32(0x80000000))


def magnitude(x: HalideExpr) -> HalideExpr:
    """`x` with the sign bit cleared."""
    return hl.reinterpret(_F32, bits(x) & hl.u32(0x7FFFFFFF))


def with_sign(x: HalideExpr, sign: HalideExpr) -> HalideExpr:
    """`x`, which must be positive, with the sign of `sign`."""
    return hl.reinterpret(_F32, bits(x) | (bits(sign) & hl.u32(0x80000000)))


def _power_of_two(exponent: HalideExpr) -> HalideExpr:
    """2 to the power of an integer in [-126, 127], a uint32 in two's complement."""
    return hl.reinterpret(_F32, (exponent + hl.u32(127)) << hl.u32(23))


_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the first one times an integer is exact
_SHIFT = 1.5 * 2.0**23  # adding it rounds to an integer: floats of this size have no fraction bits
_POWER_SHIFT = _SHIFT + 127  # its sum with an integer ends with the bits of an exponent
_ROUGHLY_LOG2_E = 1.44269  # enough for rounding; more digits could occur in user code, see fusion.py


def _reduce_by_ln2(x: HalideExpr, factor: float, shift: float = _SHIFT) -> tuple[HalideExpr, HalideExpr]:
    """Split `x` into `remainder + whole * factor * ln(2)` for a factor of 1 or -1; return `remainder` and `whole + shift`."""
    shifted = x * f32(factor * _ROUGHLY_LOG2_E) + f32(shift)
    whole = shifted - f32(shift)
    return (x - whole * f32(factor * _LN2_HIGH)) - whole * f32(factor * _LN2_LOW), shifted


def _last_bits_as_power(shifted: HalideExpr) -> HalideExpr:
    """2 to the power of an integer in [-126, 127] that was added to `_POWER_SHIFT`."""
    return hl.reinterpret(_F32, bits(shifted) << hl.u32(23))


def exp(x: HalideExpr) -> HalideExpr:
    """The exponential function; results may be denormal."""
    finite = hl.select(x > f32(89), f32(89), hl.select(x < f32(-104.5), f32(-104.5), x))  # NaN propagates
    remainder, shifted = _reduce_by_ln2(finite, 1)
    value, exponent = _polynomial(remainder, (*_EXP, 1, 1), f32), bits(shifted) - bits(f32(_SHIFT))
    # Scale in two steps: 2 ** 128 and 2 ** -150 are not representable in float32.
    half = hl.reinterpret(_U32, hl.reinterpret(_I32, exponent) >> hl.i32(1))
    return (value * _power_of_two(half)) * _power_of_two(exponent - half)


_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)


def log(x: HalideExpr) -> HalideExpr:
    """The natural logarithm; arguments may be denormal."""
    tiny = x < f32(2.0**-126)
    normal = hl.select(tiny, x * f32(2.0**23), x)
    pattern = hl.reinterpret(_I32, normal)
    shifted = pattern - hl.i32(0x3F3504F3)  # sqrt(1 / 2)
    exponent = hl.cast(_F32, shifted >> hl.i32(23)) - hl.select(tiny, f32(23), f32(0))
    mantissa = hl.reinterpret(_F32, (shifted & hl.i32(0x007FFFFF)) + hl.i32(0x3F3504F3))
    remainder = mantissa - f32(1)
    square = remainder * remainder
    low = (remainder * square) * _polynomial(remainder, _LOG, f32) + exponent * f32(_LN2_LOW) - square * f32(0.5)
    value = (remainder + low) + exponent * f32(_LN2_HIGH)
    unusual = hl.select(x == f32(0), f32(-math.inf), hl.select(x < f32(0), f32(math.nan), x))  # inf and NaN propagate
    return hl.select((x > f32(0)) & (x < f32(math.inf)), value, unusual)


_TANH = tuple(c * 2.0**k for k, c in zip(range(7, 1, -1), _EXP, strict=True))  # of half the argument
_HALF_LN2 = math.log(2) / 2


def tanh(x: HalideExpr) -> HalideExpr:
    """The hyperbolic tangent: e / (e + 2), where e = exp(2 * x) - 1 is accurate for small `x` too."""
    size = magnitude(x)
    limited = hl.select(size > f32(10), f32(10), size)  # tanh(10) is 1; NaN propagates
    shifted = limited * f32(2 * _ROUGHLY_LOG2_E) + f32(_POWER_SHIFT)
    whole = shifted - f32(_POWER_SHIFT)
    half = limited - whole * f32(_HALF_LN2)  # one step is enough: the error matters less for larger products
    less_one = _polynomial(half, _TANH, f32) * (half * half) + (half + half)
    scale = _last_bits_as_power(shifted)
    e = less_one * scale + (scale - f32(1))
    return with_sign(e / (e + f32(2)), x)


# _SIGMOID_UNIT * exp(-remainder) is in [1, 2], where the rounding error is smallest.
_SIGMOID_UNIT = 1.4142135
_SIGMOID = tuple(
    _SIGMOID_UNIT * c for c in (1.38144545e-3, -8.36875103e-3, 4.16683890e-2, -1.66665196e-1, 4.99999940e-1, -1, 1)
)


def sigmoid(x: HalideExpr) -> HalideExpr:
    """1 / (1 + exp(-x)), computed in units of 2 ** -64 so that exp(-x) cannot overflow."""
    below = hl.select(x < f32(-104.5), f32(-104.5), x)  # sigmoid(-104.5) is 0, sigmoid(20) is 1; NaN propagates
    remainder, shifted = _reduce_by_ln2(hl.select(below > f32(20), f32(20), below), -1, _POWER_SHIFT - 64)
    tiny = f32(_SIGMOID_UNIT * 2.0**-64)
    return tiny / (_polynomial(remainder, _SIGMOID, f32) * _last_bits_as_power(shifted) + tiny)


_ERF_SMALL = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_LARGE = (
    *(-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2),
    *(-1.06777877e-1, -6.34846687e-1, -1.28717512e-1),
)


def erf(x: HalideExpr) -> HalideExpr:
    size = magnitude(x)
    small = _polynomial(size * size, _ERF_SMALL, f32) * size + size
    limited = hl.select(size > f32(4), f32(4), size)  # erf(4) is 1; NaN propagates
    remainder, shifted = _reduce_by_ln2(_polynomial(limited, _ERF_LARGE, f32) * limited - limited, 1, _POWER_SHIFT)
    scale = _last_bits_as_power(shifted)
    less_one = _polynomial(remainder, _EXP, f32) * (remainder * remainder) + remainder
    large = (f32(1) - scale) - less_one * scale
    return with_sign(hl.select(size > f32(0.927734375), large, small), x)


# 2 / pi in words of 32 bits, preceded by its integer part, 0.
_TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)


def _quadrant(x: HalideExpr) -> tuple[HalideExpr, HalideExpr]:
    """Split `x` into `remainder + quadrant * pi / 2`, with a float64 remainder in [-pi / 4, pi / 4] and the quadrant modulo 4.

    The integer mantissa of `x` is multiplied by the 96 relevant bits of 2 / pi: bits further left are multiples of 4
    quadrants, bits further right are too small (Payne and Hanek).
    """
    size = magnitude(x)
    pattern = hl.reinterpret(_I32, size)
    exponent = (pattern >> hl.i32(23)) - 120  # x = mantissa * 2 ** (exponent - 30)
    position = hl.select(exponent > 0, exponent, hl.i32(0))
    mantissa = (pattern & hl.i32(0x007FFFFF)) | hl.i32(0x00800000)
    word, shift = position >> hl.i32(5), hl.cast(_U64, position & hl.i32(31))

    def window(k: int) -> HalideExpr:
        """32 bits of 2 / pi, starting at bit `position + 32 * k`."""
        chosen = hl.u64(_TWO_OVER_PI[k] << 32 | _TWO_OVER_PI[k + 1])
        for step in range(1, 5):
            pair = _TWO_OVER_PI[k + step] << 32 | (_TWO_OVER_PI[k + step + 1] if k + step + 1 < 8 else 0)
            chosen = hl.select(word == step, hl.u64(pair), chosen)
        return (chosen << shift) >> hl.u64(32)

    m = hl.cast(_U64, mantissa)
    # Fixed point with 62 fraction bits; the bits that overflow are whole turns.
    high, middle, low = m * window(0), m * window(1), m * window(2)
    product = (high << hl.u64(32)) + middle + (low >> hl.u64(32))
    turns = product + hl.u64(1 << 61)  # to the nearest
    quadrant = hl.cast(_I32, turns >> hl.u64(62))
    remainder = hl.reinterpret(_I64, product - (hl.cast(_U64, quadrant) << hl.u64(62)))
    reduced = hl.cast(_F64, remainder) * hl.f64(math.pi / 2 / 2.0**62)
    is_small = size < f32(math.pi / 4)
    negative = x < f32(0)
    remainder = hl.select(is_small, hl.cast(_F64, x), hl.select(negative, hl.f64(0) - reduced, reduced))
    return remainder, hl.select(is_small, hl.i32(0), hl.select(negative, (hl.i32(4) - quadrant) & hl.i32(3), quadrant))


_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_TAN = (
    *(9.38540185543e-3, 3.11992232697e-3, 2.44301354525e-2),
    *(5.34112807005e-2, 1.33387994085e-1, 3.33331568548e-1),
)


def _wave(x: HalideExpr, shift: int) -> HalideExpr:
    wide, quadrant = _quadrant(x)
    remainder = hl.cast(_F32, wide)
    quadrant = (quadrant + shift) & hl.i32(3)
    square = remainder * remainder
    sine = _polynomial(square, _SIN, f32) * square * remainder + remainder
    cosine = _polynomial(square, _COS, f32) * (square * square) - square * f32(0.5) + f32(1)
    value = hl.select((quadrant & hl.i32(1)) == 0, sine, cosine)
    value = hl.select(quadrant < 2, value, negate(value))
    return hl.select(magnitude(x) < f32(math.inf), value, f32(math.nan))


def sin(x: HalideExpr) -> HalideExpr:
    return _wave(x, 0)


def cos(x: HalideExpr) -> HalideExpr:
    return _wave(x, 1)


def tan(x: HalideExpr) -> HalideExpr:
    remainder, quadrant = _quadrant(x)
    square = remainder * remainder
    value = _polynomial(square, _TAN, hl.f64) * square * remainder + remainder
    value = hl.cast(_F32, hl.select((quadrant & hl.i32(1)) == 0, value, hl.f64(-1) / value))
    return hl.select(magnitude(x) < f32(math.inf), value, f32(math.nan))


def _log2_double(x: HalideExpr) -> HalideExpr:
    """The binary logarithm of a positive float64 that was a float32; +-1e300 for 0 and infinity."""
    pattern = hl.reinterpret(_I64, x)
    shifted = pattern - hl.i64(0x3FE6A09E667F3BCD)  # sqrt(1 / 2)
    exponent = hl.cast(_F64, hl.cast(_I32, shifted >> hl.i64(52)))
    mantissa = hl.reinterpret(_F64, (shifted & hl.i64((1 << 52) - 1)) + hl.i64(0x3FE6A09E667F3BCD))
    s = (mantissa - hl.f64(1)) / (mantissa + hl.f64(1))
    series = _polynomial(s * s, [1 / n for n in range(15, 0, -2)], hl.f64)
    value = exponent + s * series * hl.f64(2 / math.log(2))
    value = hl.select(x > hl.f64(0), value, hl.f64(-1e300))
    return hl.select(x < hl.f64(math.inf), value, hl.f64(1e300))


def _exp2_double(x: HalideExpr) -> HalideExpr:
    """2 to the power of a float64 in [-1000, 1000]."""
    whole = hl.round(x)
    remainder = (x - whole) * hl.f64(math.log(2))
    series = _polynomial(remainder, [1 / math.factorial(n) for n in range(10, -1, -1)], hl.f64)
    scale = hl.reinterpret(_F64, (hl.cast(_I64, hl.cast(_I32, whole)) + hl.i64(1023)) << hl.i64(52))
    return series * scale


def pow(a: HalideExpr, b: HalideExpr) -> HalideExpr:
    """`a` to the power of `b`, computed in float64; zeros, infinities and NaN as in C99 and NumPy."""
    size, size_b = magnitude(a), magnitude(b)
    ordinary = (size == size) & (size_b < f32(math.inf))
    exponent = hl.cast(_F64, hl.select(size_b < f32(1e30), b, hl.select(b > f32(0), f32(1e30), f32(-1e30))))
    product = _log2_double(hl.cast(_F64, size)) * exponent
    limited = hl.select(
        product > hl.f64(1000), hl.f64(1000), hl.select(product > hl.f64(-1000), product, hl.f64(-1000))
    )
    value = hl.cast(_F32, _exp2_double(limited))
    value = hl.select((size == f32(1)) & ~ordinary, f32(1), value)  # 1 and -1 to the power of infinities
    whole = hl.floor(b) == b
    half = b * f32(0.5)
    odd = whole & (hl.floor(half) != half) & (size_b < f32(math.inf))
    negative = (bits(a) >> hl.u32(31)) == hl.u32(1)
    value = hl.select(negative & odd, negate(value), value)
    value = hl.select((a < f32(0)) & (size < f32(math.inf)) & ~whole, f32(math.nan), value)
    value = hl.select(is_nan(a) | is_nan(b), f32(math.nan), value)
    return hl.select((b == f32(0)) | (a == f32(1)), f32(1), value)


def fmod(a: HalideExpr, b: HalideExpr) -> HalideExpr:
    """The exact remainder with the sign of `a`: a long division of the mantissas, 40 binary digits at a time."""
    size, divisor = bits(a) & hl.u32(0x7FFFFFFF), bits(b) & hl.u32(0x7FFFFFFF)

    def parts(pattern: HalideExpr) -> tuple[HalideExpr, HalideExpr]:
        """The exponent, at least 1, and the mantissa as an integer."""
        exponent, digits = pattern >> hl.u32(23), pattern & hl.u32(0x007FFFFF)
        is_normal = exponent > hl.u32(0)
        return hl.max(exponent, hl.u32(1)), hl.select(is_normal, digits | hl.u32(0x00800000), digits)

    (high, mantissa), (low, unit) = parts(size), parts(divisor)
    wide = hl.cast(_U64, hl.max(unit, hl.u32(1)))
    left = hl.cast(_U64, hl.select(high > low, high - low, hl.u32(0)))
    remainder = hl.cast(_U64, mantissa) % wide
    for _ in range(7):  # exponents differ by at most 253
        step = hl.min(left, hl.u64(40))
        remainder = (remainder << step) % wide
        left = left - step
    # The unit of the last place of the divisor, 2 ** (low - 150), as a product of two normal numbers.
    half = low >> hl.u32(1)
    value = (
        hl.cast(_F32, hl.cast(_I32, remainder))
        * _power_of_two(half - hl.u32(75))
        * _power_of_two(low - half - hl.u32(75))
    )
    value = hl.select(size < divisor, a, with_sign(value, a))
    is_known = (size < hl.u32(0x7F800000)) & (divisor < hl.u32(0x7F800001)) & (divisor > hl.u32(0))
    return hl.select(is_known, value, f32(math.nan))


def coefficients() -> list[float]:
    """The constants of the polynomials of this module, by which `fusion` recognises them."""
    tables = (*_EXP, *_LOG, *_TANH, *_SIGMOID, *_ERF_SMALL, *_ERF_LARGE, *_SIN, *_COS)
    shifts = (_SHIFT, _POWER_SHIFT, _POWER_SHIFT - 64)
    return [*tables, *shifts, _LN2_HIGH, _LN2_LOW, _HALF_LN2, _ROUGHLY_LOG2_E, 2 * _ROUGHLY_LOG2_E]
