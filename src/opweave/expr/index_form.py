"""Build arrays from functions of a position: `compute`, reductions, and stored intermediates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.shapes import reduced
from ..support.errors import ValidationError, require
from . import ir
from .array import Traced, as_array, axes_of, positions_of, truth
from .ir import Cast, Expr, Index, Load, Reduce, Reduction, Stored


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
    sizes = _check_sizes(tuple(shape) if isinstance(shape, Sequence) else (shape,), "compute")
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


def over(reduction: Reduction, extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Reduce `function(r0, r1, …)` over all positions in `extents`."""
    sizes = _check_sizes(tuple(extents) if isinstance(extents, Sequence) else (extents,), f"{reduction}_over")
    if reduction.startswith("arg_"):
        require(len(sizes) == 1, f"{reduction}_over takes one size, got {list(sizes)}")
    variables = tuple(Index(size) for size in sizes)
    element = as_array(function(*(Traced((), variable) for variable in variables)))
    require(not element.shape, f"{reduction}_over: the function must return one element, got {list(element.shape)}")
    return Traced((), _reduce(reduction, variables, element.body))


def _reduce(reduction: Reduction, variables: tuple[Index, ...], body: Expr) -> Expr:
    if body.type == "bool":
        raise ValidationError(f"{reduction}: bool cannot be reduced; cast it to a data type")
    return Reduce(reduction, variables, Cast(body, "int32") if body.type == "index" else body)


def reduce(reduction: Reduction, x: Traced, axes: Sequence[int] | None, keep_dimensions: bool) -> Traced:
    """Reduce an array over axes."""
    array = as_array(x)
    rank = array.rank
    require(
        axes is None or isinstance(axes, Sequence), f"{reduction}: axes must be a sequence of integers, got {axes!r}"
    )
    requested = range(rank) if axes is None else axes
    require(
        all(-rank <= axis < rank for axis in requested),
        f"{reduction}: axes must be in [{-rank}, {rank}), got {list(requested)}",
    )
    chosen = [axis % rank for axis in requested]
    shape = reduced(array.shape, chosen, keep_dimensions)
    if not chosen:
        return array
    old_axes = axes_of(array.shape)
    variables = {axis: Index(array.shape[axis]) for axis in sorted(chosen)}
    kept = [axis for axis in range(array.rank) if axis not in variables]
    body = ir.substitute(array.body, {old_axes[axis]: variable for axis, variable in variables.items()})
    result = _reduce(reduction, tuple(variables.values()), body)
    if not keep_dimensions:
        new_axes = positions_of(shape)
        result = ir.substitute(
            result, {old_axes[axis]: new_axes[k] for k, axis in enumerate(kept) if old_axes[axis] is not new_axes[k]}
        )
    return Traced(shape, result)


def _check_sizes(sizes: tuple[int, ...], function: str) -> tuple[int, ...]:
    for size in sizes:
        require(
            isinstance(size, int) and not isinstance(size, bool) and size > 0,
            f"{function}: sizes must be positive integers, got {list(sizes)}",
        )
    return sizes
