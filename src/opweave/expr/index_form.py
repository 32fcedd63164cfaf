"""Build arrays from functions of a position: `compute`, and stored intermediates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.size_bounds import lower_bound
from ..core.sizes import Size
from ..support.errors import require
from . import ir
from .array import Traced, as_array, axes_of, positions_of, truth
from .ir import Expr, Index, Load, Stored


def compute(shape: Sequence[int], function: Callable[..., Any]) -> Traced:
    """Define an array by its elements: the element at `i, j, …` is `function(i, j, …)`.

    Args:
        shape: positive integers.
        function: takes one position for each axis, and returns one element.

    Returns:
        An array of that shape, in the type of the elements.

    Raises:
        ValidationError: a size that is not positive, a function that does not return one element, or an index that may be
            out of range.

    >>> import numpy as np, opweave as ow
    >>> transposed = ow.expression(lambda x: ow.expr.compute((3, 2), lambda i, j: x[j, i]))
    >>> transposed(np.float32([[1, 2, 3], [4, 5, 6]])).tolist()
    [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    """
    sizes = check_sizes(shape, "compute")
    placeholders = tuple(Index(size) for size in sizes)
    element = as_array(function(*(Traced((), variable) for variable in placeholders)))
    require(not element.shape, f"compute: the function must return one element, got an array {list(element.shape)}")
    return Traced(sizes, ir.substitute(element.body, dict(zip(placeholders, positions_of(sizes), strict=True))))


def store(array: Traced) -> Traced:
    """Compute an array completely before it is read, instead of recomputing elements at each use.

    Use it for intermediates that are expensive and read at several positions, such as the first pass of a separable
    filter.

    Args:
        array: an array that does not depend on a position of an enclosing `compute` or reduction.

    Returns:
        The same array, which is read from memory.

    Raises:
        ValidationError: the array depends on such a position.

    >>> import numpy as np, opweave as ow
    >>> @ow.expression
    ... def blurred(x):
    ...     h, w = x.shape
    ...     rows = ow.expr.store(ow.expr.compute((h, w - 1), lambda i, j: x[i, j] + x[i, j + 1]))
    ...     return ow.expr.compute((h - 1, w - 1), lambda i, j: (rows[i, j] + rows[i + 1, j]) / 4)
    >>> blurred(np.float32([[0, 4], [4, 8]])).tolist()
    [[4.0]]
    """
    source = Stored(axes_of(array.shape), array.body)
    require(
        array.body.free <= set(source.axes),
        "store: the array must not depend on a position of an enclosing compute or reduction",
    )
    body: Expr = Load(source, positions_of(array.shape))
    if array.data_type == "bool":
        body = truth(body)
    return Traced(array.shape, body)


def check_sizes(sizes: int | Sequence[int], function: str) -> tuple[int, ...]:
    """One or several sizes as a tuple of positive integers; `function` is the caller, for the message."""
    sizes = tuple(sizes) if isinstance(sizes, Sequence) else (sizes,)
    for size in sizes:
        require(_is_positive(size), f"{function}: sizes must be positive integers, got {list(sizes)}")
    return sizes


def _is_positive(size: object) -> bool:
    if isinstance(size, Size):
        return lower_bound(size) >= 1 or size > 0
    return isinstance(size, int) and not isinstance(size, bool) and size > 0
