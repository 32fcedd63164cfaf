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

from .array import (
    Traced as Traced,
    apply as apply,
    as_array as _as_array,
    cast as cast,
    no_such_name as _no_such_name,
)
from .index_form import compute as compute, over as _over, reduce as _reduce, store as store
from .pointwise import (
    abs as abs,
    add as add,
    ceil as ceil,
    clamp as clamp,
    cos as cos,
    div as div,
    equal as equal,
    erf as erf,
    exp as exp,
    floor as floor,
    gelu as gelu,
    greater as greater,
    greater_or_equal as greater_or_equal,
    is_infinite as is_infinite,
    is_nan as is_nan,
    lesser as lesser,
    lesser_or_equal as lesser_or_equal,
    log as log,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    max as max,
    min as min,
    mul as mul,
    neg as neg,
    not_equal as not_equal,
    pow as pow,
    reciprocal as reciprocal,
    relu as relu,
    round_even as round_even,
    sigmoid as sigmoid,
    sign as sign,
    silu as silu,
    sin as sin,
    softplus as softplus,
    sqrt as sqrt,
    sub as sub,
    tan as tan,
    tanh as tanh,
    where as where,
)
from .tracing import trace as trace

__all__ = [
    "Traced",
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


def reduce_sum(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Add elements over axes.

    Args:
        x: floats or integers.
        axes: in [-rank, rank). Default: all.
        keep_dimensions: whether the axes stay, with size 1.

    Returns:
        An array of the type of `x`, without these axes.

    Raises:
        ValidationError: another type, or axes out of range.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_sum(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [3.0, 7.0]
    """
    return _reduce("sum", x, axes, keep_dimensions)


def reduce_product(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Multiply elements over axes.

    Args:
        x: floats or integers.
        axes: in [-rank, rank). Default: all.
        keep_dimensions: whether the axes stay, with size 1.

    Returns:
        An array of the type of `x`, without these axes.

    Raises:
        ValidationError: another type, or axes out of range.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_product(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [2.0, 12.0]
    """
    return _reduce("product", x, axes, keep_dimensions)


def reduce_max(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Find the greatest element over axes.

    Args:
        x: floats or integers.
        axes: in [-rank, rank). Default: all.
        keep_dimensions: whether the axes stay, with size 1.

    Returns:
        An array of the type of `x`, without these axes.

    Raises:
        ValidationError: another type, or axes out of range.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_max(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [2.0, 4.0]
    """
    return _reduce("max", x, axes, keep_dimensions)


def reduce_min(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Find the least element over axes.

    Args:
        x: floats or integers.
        axes: in [-rank, rank). Default: all.
        keep_dimensions: whether the axes stay, with size 1.

    Returns:
        An array of the type of `x`, without these axes.

    Raises:
        ValidationError: another type, or axes out of range.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_min(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [1.0, 3.0]
    """
    return _reduce("min", x, axes, keep_dimensions)


def reduce_mean(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Compute the mean over axes; integers are truncated.

    Args:
        x: floats or integers.
        axes: in [-rank, rank). Default: all.
        keep_dimensions: whether the axes stay, with size 1.

    Returns:
        An array of the type of `x`, without these axes.

    Raises:
        ValidationError: another type, or axes out of range.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.reduce_mean(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()
    [1.5, 3.5]
    """
    array = _as_array(x)
    total = _reduce("sum", array, axes, keep_dimensions)
    count = math.prod(array.shape) // math.prod(total.shape)
    return total / count


def arg_max(x: Traced, axis: int, *, keep_dimensions: bool = False) -> Traced:
    """Find the position of the greatest element along an axis; of equal elements, the first one.

    Args:
        x: floats or integers.
        axis: in [-rank, rank).
        keep_dimensions: whether the axis stays, with size 1.

    Returns:
        An int32 array without the axis.

    Raises:
        ValidationError: another type, or an axis out of range.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.arg_max(x, 1))(np.float32([[1, 2], [4, 3]])).tolist()
    [1, 0]
    """
    return _reduce("arg_max", x, [axis], keep_dimensions)


def arg_min(x: Traced, axis: int, *, keep_dimensions: bool = False) -> Traced:
    """Find the position of the least element along an axis; of equal elements, the first one.

    Args:
        x: floats or integers.
        axis: in [-rank, rank).
        keep_dimensions: whether the axis stays, with size 1.

    Returns:
        An int32 array without the axis.

    Raises:
        ValidationError: another type, or an axis out of range.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.arg_min(x, 1))(np.float32([[1, 2], [4, 3]])).tolist()
    [0, 1]
    """
    return _reduce("arg_min", x, [axis], keep_dimensions)


def sum_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Add `function(r, …)` for all positions.

    Args:
        extents: the size of the range of positions, or a size for each of several axes; positive integers.
        function: takes one position for each axis, and returns one element: a float or an integer.

    Returns:
        One element, of the type of the terms.

    Raises:
        ValidationError: sizes that are not positive, or a function that returns an array or a bool.

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


def product_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Multiply `function(r, …)` for all positions.

    Args:
        extents: the size of the range of positions, or a size for each of several axes; positive integers.
        function: takes one position for each axis, and returns one element: a float or an integer.

    Returns:
        One element, of the type of the terms.

    Raises:
        ValidationError: sizes that are not positive, or a function that returns an array or a bool.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.product_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    24.0
    """
    return _over("product", extents, function)


def max_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Find the greatest `function(r, …)` of all positions.

    Args:
        extents: the size of the range of positions, or a size for each of several axes; positive integers.
        function: takes one position for each axis, and returns one element: a float or an integer.

    Returns:
        One element, of the type of the terms.

    Raises:
        ValidationError: sizes that are not positive, or a function that returns an array or a bool.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.max_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    4.0
    """
    return _over("max", extents, function)


def min_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Find the least `function(r, …)` of all positions.

    Args:
        extents: the size of the range of positions, or a size for each of several axes; positive integers.
        function: takes one position for each axis, and returns one element: a float or an integer.

    Returns:
        One element, of the type of the terms.

    Raises:
        ValidationError: sizes that are not positive, or a function that returns an array or a bool.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.min_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    2.0
    """
    return _over("min", extents, function)


def arg_max_over(extent: int, function: Callable[[Traced], Any]) -> Traced:
    """Find the position at which `function(r)` is greatest; of equal elements, the first one.

    Args:
        extent: the size of the range of positions, a positive integer.
        function: takes a position, and returns one element: a float or an integer.

    Returns:
        One element, int32.

    Raises:
        ValidationError: a size that is not positive, or a function that returns an array or a bool.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.arg_max_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    2
    """
    return _over("arg_max", extent, function)


def arg_min_over(extent: int, function: Callable[[Traced], Any]) -> Traced:
    """Find the position at which `function(r)` is least; of equal elements, the first one.

    Args:
        extent: the size of the range of positions, a positive integer.
        function: takes a position, and returns one element: a float or an integer.

    Returns:
        One element, int32.

    Raises:
        ValidationError: a size that is not positive, or a function that returns an array or a bool.

    >>> import numpy as np, opweave as ow
    >>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.arg_min_over(3, lambda r: x[r])))
    >>> f(np.float32([2, 3, 4])).tolist()
    0
    """
    return _over("arg_min", extent, function)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # protocols that tools ask for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    raise _no_such_name("opweave.expr has no function", name)
