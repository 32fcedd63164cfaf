"""Expressions: operations defined by one element of their result.

    import opweave as ow

    @ow.expression                                  # point-wise; shapes, types and broadcasting are inferred
    def swiglu(x, gate):
        return x * gate * ow.expr.sigmoid(gate)

    @ow.expression                                  # index form
    def box3(x):
        n, c, h, w = x.shape
        return ow.expr.compute((n, c, h - 2, w - 2), lambda i, j, y, k:
            sum(x[i, j, y + dy, k + dx] for dy in range(3) for dx in range(3)) / 9)

A function is traced once for each combination of shapes, data types and attributes. Halide compiles the result if the
extra `halide` is installed; otherwise NumPy evaluates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import hints as _hints
from .array import Array as Array, Operand, apply as apply, as_array as _as_array, cast as cast
from .index_form import compute as compute, over as _over, reduce as _reduce, store as store
from .tracing import trace as trace

__all__ = [
    "Array",
    "abs",
    "add",
    "apply",
    "arg_max",
    "arg_max_over",
    "arg_min",
    "arg_min_over",
    "cast",
    "ceil",
    "clamp",
    "compute",
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
    "max_over",
    "min",
    "min_over",
    "mul",
    "neg",
    "not_equal",
    "pow",
    "product_over",
    "reciprocal",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_product",
    "reduce_sum",
    "relu",
    "round_even",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "store",
    "sub",
    "sum_over",
    "tan",
    "tanh",
    "trace",
    "where",
]


def _unary(name: str, doc: str, given: str, result: str, operands: str = "") -> Callable[[Operand], Array]:
    def function(x: Operand) -> Array:
        return apply(name, x)

    function.__name__, function.__qualname__ = name, name
    function.__doc__ = _with_example(name, doc, given, result, operands)
    return function


def _binary(name: str, doc: str, given: str, result: str, operands: str = "") -> Callable[[Operand, Operand], Array]:
    def function(a: Operand, b: Operand) -> Array:
        return apply(name, a, b)

    function.__name__, function.__qualname__ = name, name
    function.__doc__ = _with_example(name, doc, given, result, operands)
    return function


def _with_example(name: str, doc: str, given: str, result: str, operands: str) -> str:
    """The docstring of a function, with a call of it as an expression of its own; `operands` are made of its argument `x`."""
    formula = f"lambda x: ow.expr.{name}({operands})" if operands else f"ow.expr.{name}"
    call = f">>> ow.expression({formula})({given}).tolist()"
    return f"{doc}\n\n    >>> import numpy as np, opweave as ow\n    {call}\n    {result}\n    "


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


def where(condition: Operand, true_value: Operand, false_value: Operand) -> Array:
    """`true_value` where `condition` is true (not 0), else `false_value`.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda condition, true, false: ow.expr.where(condition, true, false))
    >>> f(np.uint8([1, 0]), np.float32([1, 2]), np.float32([3, 4])).tolist()
    [1.0, 4.0]
    """
    return apply("where", condition, true_value, false_value)


def clamp(x: Operand, min_value: float | None = None, max_value: float | None = None) -> Array:
    """Each element limited to [min_value, max_value]; None leaves a side open.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.clamp(x, 0, 1))(np.float32([-1, 0.5, 2])).tolist()
    [0.0, 0.5, 1.0]
    """
    array = _as_array(x)
    if min_value is not None:
        array = apply("max", array, min_value)
    return array if max_value is None else apply("min", array, max_value)


def relu(x: Operand) -> Array:
    """`max(x, 0)`.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.relu(x))(np.float32([-1, 2])).tolist()
    [0.0, 2.0]
    """
    return apply("max", x, 0)


def softplus(x: Operand) -> Array:
    """`log(1 + exp(x))`, without overflow, and accurate for very negative `x`.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.softplus(x))(np.float32([-np.inf, 100])).tolist()
    [0.0, 100.0]
    """
    array = _as_array(x)
    u = exp(-abs(array))
    w = 1 + u
    # log(w), corrected for the rounding error of w (Kahan's log1p).
    return apply("max", array, 0) + where(w == 1, u, log(w) * (u / (w - 1)))


def gelu(x: Operand) -> Array:
    """`x / 2 * (1 + erf(x / sqrt(2)))`.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.gelu(x))(np.float32([0, 10])).tolist()
    [0.0, 10.0]
    """
    array = _as_array(x)
    return array * 0.5 * (1 + erf(array * math.sqrt(0.5)))


def silu(x: Operand) -> Array:
    """`x * sigmoid(x)`, also called swish.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.silu(x))(np.float32([0, 100])).tolist()
    [0.0, 100.0]
    """
    array = _as_array(x)
    return array * sigmoid(array)


def reduce_sum(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The sum over `axes`; None for all.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_sum(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [3.0, 7.0]
    """
    return _reduce("sum", x, axes, keep_dimensions)


def reduce_product(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The product over `axes`; None for all.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_product(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [2.0, 12.0]
    """
    return _reduce("product", x, axes, keep_dimensions)


def reduce_max(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The greatest element over `axes`; None for all.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_max(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [2.0, 4.0]
    """
    return _reduce("max", x, axes, keep_dimensions)


def reduce_min(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The least element over `axes`; None for all.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_min(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [1.0, 3.0]
    """
    return _reduce("min", x, axes, keep_dimensions)


def reduce_mean(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The mean over `axes`; None for all.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_mean(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [1.5, 3.5]
    """
    array = _as_array(x)
    total = _reduce("sum", array, axes, keep_dimensions)
    count = math.prod(array.shape) // math.prod(total.shape)
    return total / count


def arg_max(x: Array, axis: int, *, keep_dimensions: bool = False) -> Array:
    """The position of the (first) greatest element along `axis`, int32.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.arg_max(x, 1))(np.float32([[1, 2], [4, 3]])).tolist()
    [1, 0]
    """
    return _reduce("arg_max", x, [axis], keep_dimensions)


def arg_min(x: Array, axis: int, *, keep_dimensions: bool = False) -> Array:
    """The position of the (first) least element along `axis`, int32.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.arg_min(x, 1))(np.float32([[1, 2], [4, 3]])).tolist()
    [0, 1]
    """
    return _reduce("arg_min", x, [axis], keep_dimensions)


def sum_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Array:
    """The sum of `function(r, …)` for all positions in `extents`: one size, or several.

    >>> import numpy as np, opweave as ow
    >>> @ow.expression
    ... def product(a, b):
    ...     return ow.expr.compute(
    ...         (a.shape[0], b.shape[1]),
    ...         lambda i, j: ow.expr.sum_over(a.shape[1], lambda k: a[i, k] * b[k, j]),
    ...     )
    >>> product(np.float32([[1, 2]]), np.float32([[3], [4]])).tolist()
    [[11.0]]
    """
    return _over("sum", extents, function)


def product_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Array:
    """The product of `function(r, …)` for all positions in `extents`.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.product_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    24.0
    """
    return _over("product", extents, function)


def max_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Array:
    """The greatest `function(r, …)` of all positions in `extents`.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.max_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    4.0
    """
    return _over("max", extents, function)


def min_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Array:
    """The least `function(r, …)` of all positions in `extents`.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.min_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    2.0
    """
    return _over("min", extents, function)


def arg_max_over(extent: int, function: Callable[[Array], Any]) -> Array:
    """The (first) position in `extent` at which `function(r)` is greatest, int32.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.arg_max_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    2
    """
    return _over("arg_max", extent, function)


def arg_min_over(extent: int, function: Callable[[Array], Any]) -> Array:
    """The (first) position in `extent` at which `function(r)` is least, int32.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.arg_min_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    0
    """
    return _over("arg_min", extent, function)


_own = [name for name, value in globals().items() if name[0] != "_" and getattr(value, "__module__", "") == __name__]
_hints.no_methods(Array, ["cast", *_own], __name__)
