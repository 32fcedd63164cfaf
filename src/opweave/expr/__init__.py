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


def _unary(name: str, doc: str) -> Callable[[Operand], Array]:
    def function(x: Operand) -> Array:
        return apply(name, x)

    function.__name__, function.__qualname__, function.__doc__ = name, name, doc
    return function


def _binary(name: str, doc: str) -> Callable[[Operand, Operand], Array]:
    def function(a: Operand, b: Operand) -> Array:
        return apply(name, a, b)

    function.__name__, function.__qualname__, function.__doc__ = name, name, doc
    return function


ceil = _unary("ceil", "Each element rounded up to an integer.")
cos = _unary("cos", "Cosine of each element, in radians.")
erf = _unary("erf", "Error function of each element.")
exp = _unary("exp", "e to the power of each element.")
floor = _unary("floor", "Each element rounded down to an integer.")
is_infinite = _unary("is_infinite", "Whether each element is an infinity.")
is_nan = _unary("is_nan", "Whether each element is NaN.")
log = _unary("log", "Natural logarithm of each element.")
logical_not = _unary("logical_not", "Whether each element is false.")
neg = _unary("neg", "Each element negated.")
reciprocal = _unary("reciprocal", "1 divided by each element.")
round_even = _unary("round_even", "Each element rounded to the nearest integer, halves to the even one.")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)) of each element.")
sign = _unary("sign", "1 for elements greater than 0, -1 for lesser ones, else 0 (0 and NaN).")
sin = _unary("sin", "Sine of each element, in radians.")
sqrt = _unary("sqrt", "Square root of each element; NaN for negative ones.")
tan = _unary("tan", "Tangent of each element, in radians.")
tanh = _unary("tanh", "Hyperbolic tangent of each element.")
abs = _unary("abs", "Absolute value of each element.")

add = _binary("add", "Sum of elements.")
div = _binary("div", "Quotient of elements; integers are truncated toward zero, and an integer divided by 0 is 0.")
equal = _binary("equal", "Whether elements are equal.")
greater = _binary("greater", "Whether elements of the first are greater.")
greater_or_equal = _binary("greater_or_equal", "Whether elements of the first are greater or equal.")
lesser = _binary("lesser", "Whether elements of the first are less.")
lesser_or_equal = _binary("lesser_or_equal", "Whether elements of the first are less or equal.")
logical_and = _binary("logical_and", "Whether both elements are true.")
logical_or = _binary("logical_or", "Whether one of the elements is true.")
logical_xor = _binary("logical_xor", "Whether exactly one of the elements is true.")
max = _binary("max", "The greater of elements; NaN where one is NaN.")
min = _binary("min", "The lesser of elements; NaN where one is NaN.")
mul = _binary("mul", "Product of elements.")
not_equal = _binary("not_equal", "Whether elements differ.")
pow = _binary("pow", "Elements of the first to the power of those of the second.")
sub = _binary("sub", "Difference of elements.")


def where(condition: Operand, true_value: Operand, false_value: Operand) -> Array:
    """`true_value` where `condition` is true (not 0), else `false_value`."""
    return apply("where", condition, true_value, false_value)


def clamp(x: Operand, min_value: float | None = None, max_value: float | None = None) -> Array:
    """Each element limited to [min_value, max_value]; None leaves a side open."""
    array = _as_array(x)
    if min_value is not None:
        array = apply("max", array, min_value)
    return array if max_value is None else apply("min", array, max_value)


def relu(x: Operand) -> Array:
    """`max(x, 0)`."""
    return apply("max", x, 0)


def softplus(x: Operand) -> Array:
    """`log(1 + exp(x))`, without overflow, and accurate for very negative `x`."""
    array = _as_array(x)
    u = exp(-abs(array))
    w = 1 + u
    # log(w), corrected for the rounding error of w (Kahan's log1p).
    return apply("max", array, 0) + where(w == 1, u, log(w) * (u / (w - 1)))


def gelu(x: Operand) -> Array:
    """`x / 2 * (1 + erf(x / sqrt(2)))`."""
    array = _as_array(x)
    return array * 0.5 * (1 + erf(array * math.sqrt(0.5)))


def silu(x: Operand) -> Array:
    """`x * sigmoid(x)`, also called swish."""
    array = _as_array(x)
    return array * sigmoid(array)


def reduce_sum(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The sum over `axes`; None for all."""
    return _reduce("sum", x, axes, keep_dimensions)


def reduce_product(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The product over `axes`; None for all."""
    return _reduce("product", x, axes, keep_dimensions)


def reduce_max(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The greatest element over `axes`; None for all."""
    return _reduce("max", x, axes, keep_dimensions)


def reduce_min(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The least element over `axes`; None for all."""
    return _reduce("min", x, axes, keep_dimensions)


def reduce_mean(x: Array, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Array:
    """The mean over `axes`; None for all."""
    array = _as_array(x)
    total = _reduce("sum", array, axes, keep_dimensions)
    count = math.prod(array.shape) // math.prod(total.shape)
    return total / count


def arg_max(x: Array, axis: int, *, keep_dimensions: bool = False) -> Array:
    """The position of the (first) greatest element along `axis`, int32."""
    return _reduce("arg_max", x, [axis], keep_dimensions)


def arg_min(x: Array, axis: int, *, keep_dimensions: bool = False) -> Array:
    """The position of the (first) least element along `axis`, int32."""
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
    """The product of `function(r, …)` for all positions in `extents`."""
    return _over("product", extents, function)


def max_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Array:
    """The greatest `function(r, …)` of all positions in `extents`."""
    return _over("max", extents, function)


def min_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Array:
    """The least `function(r, …)` of all positions in `extents`."""
    return _over("min", extents, function)


def arg_max_over(extent: int, function: Callable[[Array], Any]) -> Array:
    """The (first) position in `extent` at which `function(r)` is greatest, int32."""
    return _over("arg_max", extent, function)


def arg_min_over(extent: int, function: Callable[[Array], Any]) -> Array:
    """The (first) position in `extent` at which `function(r)` is least, int32."""
    return _over("arg_min", extent, function)


_own = [name for name, value in globals().items() if name[0] != "_" and getattr(value, "__module__", "") == __name__]
_hints.no_methods(Array, ["cast", *_own], __name__)
