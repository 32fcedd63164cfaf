"""Reductions of arrays over axes, and of functions over positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..core.dtypes import INFO, INTEGERS, DataType
from ..core.operation import parameter_names
from ..core.shapes import reduced_shape
from ..core.sizes import may_exceed
from ..support.errors import ValidationError, require
from . import ir
from .array import Traced, as_array, axes_of, cast, positions_of
from .docstrings import F, add_sections
from .index_form import check_sizes
from .ir import Cast, Expr, Index, Reduce, Reduction

_TAKES = {
    "x": "floats or integers",
    "axes": "in [-rank, rank). Default: all",
    "axis": "in [-rank, rank)",
    "keep_dimensions": "whether the axes stay, with size 1",
    "extents": "the size of the range of positions, or a size for each of several axes; positive integers",
    "extent": "the size of the range of positions, a positive integer",
    "function": "takes one position for each axis, and returns one element: a float or an integer",
}


def _document(returns: str, errors: str, example: str, result: str) -> Callable[[F], F]:
    def complete(function: F) -> F:
        takes = {name: _TAKES[name] for name in parameter_names(function)}
        return add_sections(takes, returns, errors, f"{example}\n{result}")(function)

    return complete


def _over_axes(result: str) -> Callable[[F], F]:
    example = ">>> ow.expression(lambda x: ow.expr.{}(x, [1]))(np.float32([[1, 2], [3, 4]])).tolist()"
    returns = "An array of the type of `x`, without these axes"
    return _document(returns, "another type, or axes out of range", example, result)


def _over_axis(result: str) -> Callable[[F], F]:
    example = ">>> ow.expression(lambda x: ow.expr.{}(x, 1))(np.float32([[1, 2], [4, 3]])).tolist()"
    return _document("An int32 array without the axis", "another type, or an axis out of range", example, result)


def _over_positions(result: str, returns: str = "of the type of the terms") -> Callable[[F], F]:
    example = """>>> f = ow.expression(lambda x: ow.expr.compute((), lambda: ow.expr.{}(3, lambda r: x[r])))
>>> f(np.float32([2, 3, 4])).tolist()"""
    errors = "a size that is not positive, or a function that returns an array or a bool"
    return _document(f"One element, {returns}", errors, example, result)


@_over_axes("[3.0, 7.0]")
def reduce_sum(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Add elements over axes."""
    return _reduce("sum", x, axes, keep_dimensions)


@_over_axes("[2.0, 12.0]")
def reduce_product(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Multiply elements over axes."""
    return _reduce("product", x, axes, keep_dimensions)


@_over_axes("[2.0, 4.0]")
def reduce_max(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Find the greatest element over axes."""
    return _reduce("max", x, axes, keep_dimensions)


@_over_axes("[1.0, 3.0]")
def reduce_min(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Find the least element over axes."""
    return _reduce("min", x, axes, keep_dimensions)


@_over_axes("[1.5, 3.5]")
def reduce_mean(x: Traced, axes: Sequence[int] | None = None, *, keep_dimensions: bool = False) -> Traced:
    """Compute the mean over axes; integers are truncated, and sums of fewer than 64 bits do not overflow."""
    array = as_array(x)
    if array.data_type not in (*INTEGERS, "index"):
        total = _reduce("sum", array, axes, keep_dimensions)
        return total / (math.prod(array.shape) // math.prod(total.shape))
    own, wide = ir.storage(array.data_type), _type_of_sums(array)
    total = _reduce("sum", cast(array, wide), axes, keep_dimensions)
    return cast(total / (math.prod(array.shape) // math.prod(total.shape)), own)


def _type_of_sums(array: Traced) -> DataType:
    """The integer type that holds the sum of all elements; sums of 64-bit integers have 64 bits, and wrap around."""
    info = INFO[ir.storage(array.data_type)]
    is_small = info.bits == 8 and not may_exceed(math.prod(array.shape), 2**23)
    return INFO[f"{'int' if info.kind == 'i' else 'uint'}{32 if is_small else 64}"].name


@_over_axis("[1, 0]")
def arg_max(x: Traced, axis: int, *, keep_dimensions: bool = False) -> Traced:
    """Find the position of the greatest element along an axis; of equal elements, the first one."""
    return _reduce("arg_max", x, [axis], keep_dimensions)


@_over_axis("[0, 1]")
def arg_min(x: Traced, axis: int, *, keep_dimensions: bool = False) -> Traced:
    """Find the position of the least element along an axis; of equal elements, the first one."""
    return _reduce("arg_min", x, [axis], keep_dimensions)


@_over_positions("9.0")
def sum_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Add `function(r, …)` for all positions.

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


@_over_positions("24.0")
def product_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Multiply `function(r, …)` for all positions."""
    return _over("product", extents, function)


@_over_positions("4.0")
def max_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Find the greatest `function(r, …)` of all positions."""
    return _over("max", extents, function)


@_over_positions("2.0")
def min_over(extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Find the least `function(r, …)` of all positions."""
    return _over("min", extents, function)


@_over_positions("2", "int32")
def arg_max_over(extent: int, function: Callable[[Traced], Any]) -> Traced:
    """Find the position at which `function(r)` is greatest; of equal elements, the first one."""
    return _over("arg_max", extent, function)


@_over_positions("0", "int32")
def arg_min_over(extent: int, function: Callable[[Traced], Any]) -> Traced:
    """Find the position at which `function(r)` is least; of equal elements, the first one."""
    return _over("arg_min", extent, function)


def _over(reduction: Reduction, extents: int | Sequence[int], function: Callable[..., Any]) -> Traced:
    """Reduce `function(r0, r1, …)` over all positions in `extents`."""
    sizes = check_sizes(extents, f"{reduction}_over")
    if reduction.startswith("arg_"):
        require(len(sizes) == 1, f"{reduction}_over takes one size, got {list(sizes)}")
    variables = tuple(Index(size) for size in sizes)
    element = as_array(function(*(Traced((), variable) for variable in variables)))
    require(not element.shape, f"{reduction}_over: the function must return one element, got {list(element.shape)}")
    return Traced((), _reduce_element(reduction, variables, element.body))


def _reduce_element(reduction: Reduction, variables: tuple[Index, ...], body: Expr) -> Expr:
    if body.type == "bool":
        raise ValidationError(f"{reduction}: bool cannot be reduced; cast it to a data type")
    return Reduce(reduction, variables, Cast(body, "int32") if body.type == "index" else body)


def _reduce(reduction: Reduction, x: Traced, axes: Sequence[int] | None, keep_dimensions: bool) -> Traced:
    array = as_array(x)
    rank = array.rank
    is_sequence = axes is None or (isinstance(axes, Sequence) and all(hasattr(axis, "__index__") for axis in axes))
    require(is_sequence, f"{reduction}: axes must be a sequence of integers, got {axes!r}")
    requested = range(rank) if axes is None else axes
    require(
        all(-rank <= axis < rank for axis in requested),
        f"{reduction}: axes must be in [{-rank}, {rank}), got {list(requested)}",
    )
    chosen = [axis % rank for axis in requested]
    shape = reduced_shape(array.shape, chosen, keep_dimensions)
    if not chosen:
        return array
    old_axes = axes_of(array.shape)
    variables = {axis: Index(array.shape[axis]) for axis in sorted(chosen)}
    kept = [axis for axis in range(array.rank) if axis not in variables]
    body = ir.substitute(array.body, {old_axes[axis]: variable for axis, variable in variables.items()})
    result = _reduce_element(reduction, tuple(variables.values()), body)
    if not keep_dimensions:
        new_axes = positions_of(shape)
        result = ir.substitute(
            result, {old_axes[axis]: new_axes[k] for k, axis in enumerate(kept) if old_axes[axis] is not new_axes[k]}
        )
    return Traced(shape, result)


__all__ = [
    "arg_max",
    "arg_max_over",
    "arg_min",
    "arg_min_over",
    "max_over",
    "min_over",
    "product_over",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_product",
    "reduce_sum",
    "sum_over",
]
