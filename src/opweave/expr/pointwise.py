"""Functions of expressions that apply to each element. Docstrings take data types from `vocabulary.FUNCTIONS`."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..core.dtypes import FLOATS
from .array import Operand, Traced, apply, as_array as _as_array
from .docstrings import F, add_sections, explain
from .vocabulary import FUNCTIONS, Type


def _unary(name: str, doc: str, arguments: str, result: str, operands: str = "") -> Callable[[Operand], Traced]:
    def function(x: Operand) -> Traced:
        return apply(name, x)

    function.__name__, function.__qualname__ = name, name
    function.__doc__ = _with_example(name, doc, arguments, result, operands)
    return function


def _binary(
    name: str, doc: str, arguments: str, result: str, operands: str = ""
) -> Callable[[Operand, Operand], Traced]:
    def function(a: Operand, b: Operand) -> Traced:
        return apply(name, a, b)

    function.__name__, function.__qualname__ = name, name
    function.__doc__ = _with_example(name, doc, arguments, result, operands)
    return function


def _names_of_types(types: tuple[Type, ...]) -> str:
    named = {FLOATS: "float32 or float16", ("bool",): "bool"}
    if types in named:
        return named[types]
    if "bool" in types:
        return "any type"
    return "floats or integers" if "uint8" in types else "floats or signed integers"


def _with_example(name: str, doc: str, arguments: str, result: str, operands: str) -> str:
    """Complete the docstring of a function of `FUNCTIONS`. The example passes `operands`, a text in terms of `x`."""
    function = FUNCTIONS[name]
    types = _names_of_types(function.types)
    formula = f"lambda x: ow.expr.{name}({operands})" if operands else f"ow.expr.{name}"
    of = "bool" if function.result else f"in the type of the argument{'s' if function.arity == 2 else ''}"
    example = f">>> ow.expression({formula})({arguments}).tolist()\n{result}"
    if function.arity == 1:
        return explain(doc, {"x": types}, f"An array of the shape of `x`, {of}", "another type", example)
    takes = {"a": f"{types}, or a Python number", "b": "of the type of `a`, or a Python number; the two broadcast"}
    errors = "another type, types that differ, or shapes that do not broadcast"
    return explain(doc, takes, f"An array of the broadcast shape, {of}", errors, example)


def _add_sections(types: str, arguments: str, result: str) -> Callable[[F], F]:
    example = f">>> ow.expression(ow.expr.{{}})({arguments}).tolist()\n{result}"
    return add_sections({"x": types}, "An array of the shape and type of `x`", "another type", example)


ceil = _unary("ceil", "Each element rounded up to an integer.", "np.float32([1.2, -1.2])", "[2.0, -1.0]")
cos = _unary("cos", "Cosine of each element, in radians.", "np.float32([0])", "[1.0]")
erf = _unary("erf", "Error function of each element.", "np.float32([0])", "[0.0]")
exp = _unary("exp", "e to the power of each element.", "np.float32([0])", "[1.0]")
floor = _unary("floor", "Each element rounded down to an integer.", "np.float32([1.2, -1.2])", "[1.0, -2.0]")
is_infinite = _unary("is_infinite", "Whether each element is an infinity.", "np.float32([1, np.inf])", "[0, 1]")
is_nan = _unary("is_nan", "Whether each element is NaN.", "np.float32([1, np.nan])", "[0, 1]")
log = _unary("log", "Natural logarithm of each element.", "np.float32([1])", "[0.0]")
logical_not = _unary("logical_not", "Whether each element is false.", "np.float32([1, 2, 3])", "[0, 1, 1]", "x < 2")
neg = _unary("neg", "Each element negated.", "np.float32([1, -2])", "[-1.0, 2.0]")
reciprocal = _unary("reciprocal", "1 divided by each element.", "np.float32([2, 4])", "[0.5, 0.25]")
round_even = _unary(
    "round_even",
    "Each element rounded to the nearest integer, halves to the even one.",
    "np.float32([0.5, 1.5, 2.6])",
    "[0.0, 2.0, 3.0]",
)
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)) of each element.", "np.float32([0])", "[0.5]")
sign = _unary(
    "sign",
    "1 for elements greater than 0, -1 for lesser ones, else 0 (0 and NaN).",
    "np.float32([-3, 0, 5])",
    "[-1.0, 0.0, 1.0]",
)
sin = _unary("sin", "Sine of each element, in radians.", "np.float32([0])", "[0.0]")
sqrt = _unary("sqrt", "Square root of each element; NaN for negative ones.", "np.float32([4, 9])", "[2.0, 3.0]")
tan = _unary("tan", "Tangent of each element, in radians.", "np.float32([0])", "[0.0]")
tanh = _unary("tanh", "Hyperbolic tangent of each element.", "np.float32([0])", "[0.0]")
abs = _unary("abs", "Absolute value of each element.", "np.float32([-1, 2])", "[1.0, 2.0]")

add = _binary("add", "Sum of elements.", "np.float32([1, 2]), np.float32([3, 4])", "[4.0, 6.0]")
div = _binary(
    "div",
    "Quotient of elements; integers are truncated toward zero, and an integer divided by 0 is 0.",
    "np.float32([1, 6]), np.float32([2, 4])",
    "[0.5, 1.5]",
)
equal = _binary("equal", "Whether elements are equal.", "np.float32([1, 2]), np.float32([1, 3])", "[1, 0]")
greater = _binary(
    "greater", "Whether elements of the first are greater.", "np.float32([1, 3]), np.float32([1, 2])", "[0, 1]"
)
greater_or_equal = _binary(
    "greater_or_equal",
    "Whether elements of the first are greater or equal.",
    "np.float32([1, 1]), np.float32([1, 2])",
    "[1, 0]",
)
lesser = _binary(
    "lesser", "Whether elements of the first are less.", "np.float32([1, 1]), np.float32([1, 2])", "[0, 1]"
)
lesser_or_equal = _binary(
    "lesser_or_equal",
    "Whether elements of the first are less or equal.",
    "np.float32([1, 3]), np.float32([1, 2])",
    "[1, 0]",
)
logical_and = _binary(
    "logical_and", "Whether both elements are true.", "np.float32([1, 2, 3])", "[0, 1, 0]", "x > 1, x < 3"
)
logical_or = _binary(
    "logical_or", "Whether one of the elements is true.", "np.float32([1, 2, 3])", "[1, 0, 1]", "x < 2, x > 2"
)
logical_xor = _binary(
    "logical_xor", "Whether exactly one of the elements is true.", "np.float32([1, 2, 3])", "[0, 1, 0]", "x > 1, x > 2"
)
max = _binary(
    "max", "The greater of elements; NaN where one is NaN.", "np.float32([1, 4]), np.float32([3, 2])", "[3.0, 4.0]"
)
min = _binary(
    "min", "The lesser of elements; NaN where one is NaN.", "np.float32([1, 4]), np.float32([3, 2])", "[1.0, 2.0]"
)
mul = _binary("mul", "Product of elements.", "np.float32([1, 2]), np.float32([3, 4])", "[3.0, 8.0]")
not_equal = _binary("not_equal", "Whether elements differ.", "np.float32([1, 2]), np.float32([1, 3])", "[0, 1]")
pow = _binary(
    "pow",
    "Elements of the first to the power of those of the second.",
    "np.float32([2, 3]), np.float32([3, 2])",
    "[8.0, 9.0]",
)
sub = _binary("sub", "Difference of elements.", "np.float32([1, 2]), np.float32([3, 5])", "[-2.0, -3.0]")


def where(condition: Operand, true_value: Operand, false_value: Operand) -> Traced:
    """Select elements by a condition.

    Args:
        condition: any type; numbers are true if they are not 0.
        true_value: values where the condition is true: any type, or a Python number.
        false_value: values elsewhere, of the type of `true_value`. All three broadcast.

    Returns:
        An array of the broadcast shape, in the type of the values.

    Raises:
        ValidationError: types that differ, or shapes that do not broadcast.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda condition, true, false: ow.expr.where(condition, true, false))
    >>> f(np.uint8([1, 0]), np.float32([1, 2]), np.float32([3, 4])).tolist()
    [1.0, 4.0]
    """
    return apply("where", condition, true_value, false_value)


def clamp(x: Operand, min_value: float | None = None, max_value: float | None = None) -> Traced:
    """Limit each element to [min_value, max_value].

    Args:
        x: floats or integers.
        min_value: the lower bound; None for none.
        max_value: the upper bound; None for none.

    Returns:
        An array of the shape and type of `x`.

    Raises:
        ValidationError: another type.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.clamp(x, 0, 1))(np.float32([-1, 0.5, 2])).tolist()
    [0.0, 0.5, 1.0]
    """
    array = _as_array(x)
    if min_value is not None:
        array = apply("max", array, min_value)
    return array if max_value is None else apply("min", array, max_value)


@_add_sections("floats or integers", "np.float32([-1, 2])", "[0.0, 2.0]")
def relu(x: Operand) -> Traced:
    """`max(x, 0)`."""
    return apply("max", x, 0)


@_add_sections("float32 or float16", "np.float32([-np.inf, 100])", "[0.0, 100.0]")
def softplus(x: Operand) -> Traced:
    """`log(1 + exp(x))`, without overflow, and accurate for very negative `x`."""
    array = _as_array(x)
    u = exp(-abs(array))
    w = 1 + u
    # log(w), corrected for the rounding error of w (Kahan's log1p).
    return apply("max", array, 0) + where(w == 1, u, log(w) * (u / (w - 1)))


@_add_sections("float32 or float16", "np.float32([0, 10])", "[0.0, 10.0]")
def gelu(x: Operand) -> Traced:
    """`x / 2 * (1 + erf(x / sqrt(2)))`."""
    array = _as_array(x)
    return array * 0.5 * (1 + erf(array * math.sqrt(0.5)))


@_add_sections("float32 or float16", "np.float32([0, 100])", "[0.0, 100.0]")
def silu(x: Operand) -> Traced:
    """`x * sigmoid(x)`, also called swish."""
    array = _as_array(x)
    return array * sigmoid(array)


__all__ = [
    "abs",
    "add",
    "ceil",
    "clamp",
    "cos",
    "div",
    "equal",
    "erf",
    "exp",
    "floor",
    "gelu",
    "greater",
    "greater_or_equal",
    "is_infinite",
    "is_nan",
    "lesser",
    "lesser_or_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "max",
    "min",
    "mul",
    "neg",
    "not_equal",
    "pow",
    "reciprocal",
    "relu",
    "round_even",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "where",
]
