"""Inverse trigonometric, hyperbolic and related functions, accurate to a few units in the last place (ULP).

The formulas consist of functions of `opweave.expr`, so that they are the same on all devices. Polynomials without another
source are those of Moshier's Cephes library in single precision (Methods and Programs for Mathematical Functions, 1989).
float16 is computed in float32. `BOUNDS` are measured by `tests/composites/test_elementary.py`.
"""

from __future__ import annotations

import math
from typing import Any

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits
from ..expr import abs as magnitude, cast, exp, log, max as greatest, min as least, sqrt, where
from ..expr.array import Traced
from .declare import declare

BOUNDS = {
    "acos": 4.5, "acosh": 3.5, "asin": 4.5, "asinh": 4.5, "atan": 4.0, "atanh": 3.0, "cosh": 5.0, "erf_inv": 6.0,
    "expm1": 5.0, "log1p": 3.5, "sinh": 5.0,
}  # fmt: skip
"""Maximum error of each function in ULP, for normal arguments and results."""

_LN2 = math.log(2)
_HALF_PI_LOW = -4.371139e-8
"""pi / 2 - float32(pi / 2). Twice this is the same for pi, half of it for pi / 4."""

_FAR = 1e4
"""From here on, sqrt(x**2 + 1) = sqrt(x**2 - 1) = x in float32."""


def _polynomial(x: Traced, *coefficients: float) -> Traced:
    """Evaluate the polynomial with these coefficients, highest power first."""
    result: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result  # type: ignore[no-any-return]


def _odd(x: Traced, *coefficients: float) -> Traced:
    """Compute `x + x**3 * polynomial(x**2)`, which keeps the sign of zero."""
    square = x * x
    return where(square == 0, x, _polynomial(square, *coefficients) * square * x + x)


def _with_sign_of(size: Traced, x: Traced) -> Traced:
    """Give a number that is not negative the sign of `x`, which is not zero."""
    return where(x < 0, -size, size)


def _sinh_near(x: Traced) -> Traced:
    """Compute sinh(x) for x in [-1, 1]."""
    return _odd(x, 2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)


def _half_exp(size: Traced) -> Traced:
    """Compute exp(size) / 2, which overflows later than exp(size). The difference of 1 is exact for sizes from 0.5 on."""
    return exp(size - 1) * (math.e / 2)


def _asin_near(x: Traced) -> Traced:
    """Compute asin(x) for x in [-0.5, 0.5]."""
    return _odd(x, 4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)


def _acos_far(size: Traced) -> Traced:
    """Compute acos(size) = 2 * asin(sqrt((1 - size) / 2)) for sizes in [0.5, 1]; NaN beyond 1."""
    return _asin_near(sqrt((1 - size) * 0.5)) * 2


@declare(input=Limits(FLOATS))
def acos(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the angle in [0, π] whose cosine is the element.

    Returns: An operand of the data type and shape of `input`: the angles in radians; NaN outside of [-1, 1].
        The error is at most 4.5 ULP in float32.

    ONNX's Acos. `opweave.composites.elementary` has the formula.

    >>> print(acos(np.float32([1, 0, -1])).round(4))
    [0.     1.5708 3.1416]
    """
    return input.desc


@acos.expression
def _(input: Traced) -> Traced:
    size = magnitude(input)
    far = _acos_far(size)
    half_pi, low = math.pi / 2, _HALF_PI_LOW
    return where(size > 0.5, where(input < 0, 2 * half_pi - (far - 2 * low), far), half_pi - (_asin_near(input) - low))


@declare(input=Limits(FLOATS))
def acosh(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the number, not negative, whose hyperbolic cosine is the element.

    Returns: An operand of the data type and shape of `input`: the results; NaN below 1.
        The error is at most 3.5 ULP in float32.

    ONNX's Acosh. `opweave.composites.elementary` has the formula.

    >>> print(acosh(np.float32([1, 2])).round(4))
    [0.    1.317]
    """
    return input.desc


@acosh.expression
def _(input: Traced) -> Traced:
    above = input - 1
    near = sqrt(above) * _polynomial(
        above, 1.7596881071e-3, -7.5272886713e-3, 2.6454905019e-2, -1.1784741703e-1, 1.4142135263
    )
    bounded = least(input, _FAR)
    middle = log(bounded + sqrt((bounded - 1) * (bounded + 1)))
    return where(above < 0.5, near, where(input > _FAR, log(input) + _LN2, middle))


@declare(input=Limits(FLOATS))
def asin(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the angle in [-π/2, π/2] whose sine is the element.

    Returns: An operand of the data type and shape of `input`: the angles in radians; NaN outside of [-1, 1].
        The error is at most 4.5 ULP in float32.

    ONNX's Asin. `opweave.composites.elementary` has the formula.

    >>> print(asin(np.float32([1, 0, -1])).round(4))
    [ 1.5708  0.     -1.5708]
    """
    return input.desc


@asin.expression
def _(input: Traced) -> Traced:
    size = magnitude(input)
    far = math.pi / 2 - (_acos_far(size) - _HALF_PI_LOW)
    return where(size > 0.5, _with_sign_of(far, input), _asin_near(input))


@declare(input=Limits(FLOATS))
def asinh(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the number whose hyperbolic sine is the element.

    Returns: An operand of the data type and shape of `input`: the results.
        The error is at most 4.5 ULP in float32.

    ONNX's Asinh. `opweave.composites.elementary` has the formula.

    >>> print(asinh(np.float32([0, 1, -1])).round(4))
    [ 0.      0.8814 -0.8814]
    """
    return input.desc


@asinh.expression
def _(input: Traced) -> Traced:
    size = magnitude(input)
    near = _odd(input, 2.0122003309e-2, -4.2699340972e-2, 7.4847586088e-2, -1.6666288134e-1)
    bounded = least(size, _FAR)
    middle = log(bounded + sqrt(bounded * bounded + 1))
    return where(size < 0.5, near, _with_sign_of(where(size > _FAR, log(size) + _LN2, middle), input))


@declare(input=Limits(FLOATS))
def atan(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the angle in [-π/2, π/2] whose tangent is the element.

    Returns: An operand of the data type and shape of `input`: the angles in radians.
        The error is at most 4.0 ULP in float32.

    ONNX's Atan. `opweave.composites.elementary` has the formula.

    >>> print(atan(np.float32([0, 1, -np.inf])).round(4))
    [ 0.      0.7854 -1.5708]
    """
    return input.desc


@atan.expression
def _(input: Traced) -> Traced:
    x = cast(input, "float32")
    size = magnitude(x)
    is_middle, is_far = size > math.tan(math.pi / 8), size > math.tan(3 * math.pi / 8)
    # Below, around and above 1: the angle of size, of (size - 1) / (size + 1) after pi / 4, of -1 / size after pi / 2.
    reduced = where(is_far, -1 / size, where(is_middle, (size - 1) / (size + 1), size))
    start = where(is_far, math.pi / 2, where(is_middle, math.pi / 4, 0.0))
    low = where(is_far, _HALF_PI_LOW, where(is_middle, _HALF_PI_LOW / 2, 0.0))
    square = reduced * reduced
    bend = _polynomial(square, 8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
    angle = start + ((bend * square * reduced + low) + reduced)
    data_type: Any = input.data_type
    return cast(where(x == 0, x, _with_sign_of(angle, x)), data_type)


@declare(input=Limits(FLOATS))
def atanh(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the number whose hyperbolic tangent is the element.

    Returns: An operand of the data type and shape of `input`: the results; infinite at -1 and 1, NaN beyond.
        The error is at most 3.0 ULP in float32.

    ONNX's Atanh. `opweave.composites.elementary` has the formula.

    >>> print(atanh(np.float32([0, 0.5, 1])).round(4))
    [0.     0.5493    inf]
    """
    return input.desc


@atanh.expression
def _(input: Traced) -> Traced:
    size = magnitude(input)
    near = _odd(input, 1.81740078349e-1, 8.24370301058e-2, 1.46691431730e-1, 1.99782164500e-1, 3.33337300303e-1)
    bounded = least(size, 0.99999997)
    far = where(size == 1, math.inf, where(size > 1, math.nan, log((1 + bounded) / (1 - bounded)) * 0.5))
    return where(size < 0.5, near, _with_sign_of(far, input))


@declare(input=Limits(FLOATS))
def cosh(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the hyperbolic cosine `(exp(input) + exp(-input)) / 2`.

    Returns: An operand of the data type and shape of `input`: the results.
        The error is at most 5.0 ULP in float32.

    ONNX's Cosh. `opweave.composites.elementary` has the formula.

    >>> print(cosh(np.float32([0, 1])).round(4))
    [1.     1.5431]
    """
    return input.desc


@cosh.expression
def _(input: Traced) -> Traced:
    size = magnitude(input)
    half = _sinh_near(least(size, 1.0) * 0.5)
    far = _half_exp(size)
    return where(size < 1, half * half * 2 + 1, far + 0.25 / far)


@declare(input=Limits(FLOATS))
def erf_inv(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the number whose error function is the element.

    Returns: An operand of the data type and shape of `input`: the results; infinite at -1 and 1, NaN beyond.
        The error is at most 6.0 ULP in float32.

    `opweave.composites.elementary` has the formula.

    >>> print(erf_inv(np.float32([0, 0.5, 1])).round(4))
    [0.     0.4769    inf]
    """
    return input.desc


@erf_inv.expression
def _(input: Traced) -> Traced:
    # Giles, Approximating the erfinv function (GPU Computing Gems, 2011). Its w = -log(1 - input**2) loses digits near 1,
    # unless 1 - input**2 is a product.
    size = magnitude(input)
    bounded = least(size, 0.99999994)
    w = -log((1 - bounded) * (1 + bounded))
    near = _polynomial(
        w - 2.5,
        2.81022636e-8,
        3.43273939e-7,
        -3.5233877e-6,
        -4.39150654e-6,
        2.1858087e-4,
        -1.25372503e-3,
        -4.17768164e-3,
        2.46640727e-1,
        1.50140941,
    )
    far = _polynomial(
        sqrt(greatest(w, 5.0)) - 3,
        -2.00214257e-4,
        1.00950558e-4,
        1.34934322e-3,
        -3.67342844e-3,
        5.73950773e-3,
        -7.6224613e-3,
        9.43887047e-3,
        1.00167406,
        2.83297682,
    )
    result = where(w < 5, near, far) * input
    return where(size == 1, input * math.inf, where(size > 1, math.nan, result))


@declare(input=Limits(FLOATS))
def expm1(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute `exp(input) - 1`, accurately for small elements.

    Returns: An operand of the data type and shape of `input`: the results.
        The error is at most 5.0 ULP in float32.

    `opweave.composites.elementary` has the formula.

    >>> print(expm1(np.float32([0, 1, 2])).round(4))
    [0.     1.7183 6.3891]
    """
    return input.desc


@expm1.expression
def _(input: Traced) -> Traced:
    # exp(input) - 1 = 2 * s * (s + c) for s = sinh(input / 2), c = cosh(input / 2) = sqrt(1 + s**2).
    half = _sinh_near(greatest(least(input, 1.0), -1.0) * 0.5)
    near = half * (half + sqrt(half * half + 1)) * 2
    return where(input == 0, input, where(magnitude(input) < 1, near, exp(input) - 1))


@declare(input=Limits(FLOATS))
def log1p(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute `log(1 + input)`, accurately for small elements.

    Returns: An operand of the data type and shape of `input`: the results; -infinity at -1, NaN below.
        The error is at most 3.5 ULP in float32.

    `opweave.composites.elementary` has the formula.

    >>> print(log1p(np.float32([0, 1, 1e-5])))
    [0.000000e+00 6.931472e-01 9.999950e-06]
    """
    return input.desc


@log1p.expression
def _(input: Traced) -> Traced:
    # log(1 + input) = 2 * atanh(input / (2 + input)), whose argument is in [-0.2, 0.2] for input in [-1/3, 1/2].
    ratio = input / (2 + input)
    near = _odd(ratio, 1.81740078349e-1, 8.24370301058e-2, 1.46691431730e-1, 1.99782164500e-1, 3.33337300303e-1) * 2
    return where((input > -0.3333) & (input < 0.5), near, log(1 + input))


@declare(input=Limits(FLOATS))
def sinh(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the hyperbolic sine `(exp(input) - exp(-input)) / 2`.

    Returns: An operand of the data type and shape of `input`: the results.
        The error is at most 5.0 ULP in float32.

    ONNX's Sinh. `opweave.composites.elementary` has the formula.

    >>> print(sinh(np.float32([0, 1, -1])).round(4))
    [ 0.      1.1752 -1.1752]
    """
    return input.desc


@sinh.expression
def _(input: Traced) -> Traced:
    size = magnitude(input)
    far = _half_exp(size)
    return where(size < 1, _sinh_near(input), _with_sign_of(far - 0.25 / far, input))
