"""Sorting, the largest elements, positions in sorted tables, and partial sums, products and extremes."""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.dtypes import DataType, is_float
from ...core.graph import MLOperand
from ...core.sizes import Size
from ...ops.constants import constant
from ..registry import AtenCall, as_type, axis_of, converts, refuse_if


@converts("aten.topk.default")
def top_k(
    b: MLGraphBuilder, self: MLOperand, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[MLOperand, ...]:
    """Find the largest or smallest elements along an axis, in order, and where they are."""
    refuse_if(self.rank == 0, "its input is a scalar")
    refuse_if(not isinstance(k, Size) and k < 1, f"k is {k}")
    result: tuple[MLOperand, ...] = composites.top_k(b, self, k, axis_of(dim, self.rank), largest=largest)
    return result


@converts("aten.sort.default")
def sort(b: MLGraphBuilder, self: MLOperand, dim: int = -1, descending: bool = False) -> tuple[MLOperand, ...]:
    """Sort along an axis: the elements, and where they were."""
    refuse_if(self.rank == 0, "its input is a scalar")
    return top_k(b, self, self.shape[axis_of(dim, self.rank)], dim, descending)


@converts("aten.sort.stable")
def _(
    b: MLGraphBuilder, self: MLOperand, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[MLOperand, ...]:
    # Equal elements keep their order in `composites.top_k`.
    return sort(b, self, dim, descending)


@converts("aten.argsort.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int = -1, descending: bool = False) -> MLOperand:
    return sort(b, self, dim, descending)[1]


@converts("aten.argsort.stable")
def _(b: MLGraphBuilder, self: MLOperand, *, stable: bool = True, dim: int = -1, descending: bool = False) -> MLOperand:
    return sort(b, self, dim, descending)[1]


@converts("aten.kthvalue.default")
def _(b: MLGraphBuilder, self: MLOperand, k: int, dim: int = -1, keepdim: bool = False) -> tuple[MLOperand, ...]:
    axis = axis_of(dim, self.rank)
    values, positions = top_k(b, self, k, dim, largest=False)
    starts = [0] * self.rank
    starts[axis] = k - 1
    sizes = [*self.shape[:axis], 1, *self.shape[axis + 1 :]]
    shape = sizes if keepdim else [*self.shape[:axis], *self.shape[axis + 1 :]]
    return tuple(b.reshape(b.slice(y, starts, sizes), shape) for y in (values, positions))


@converts("aten.median.default", "aten.median.dim", "aten.nanmedian.default", "aten.nanmedian.dim")
def _(b: MLGraphBuilder, self: MLOperand, dim: int | None = None, keepdim: bool = False, *, call: AtenCall) -> Any:
    """The lower median. NaN gives NaN, except for `nanmedian`, whose rows may have fewer elements."""
    x = b.reshape(self, [prod(self.shape)]) if dim is None or not self.rank else self
    axis = axis_of(0 if dim is None else dim, x.rank)
    size = x.shape[axis]
    refuse_if(isinstance(size, Size) or size == 0, f"the size of the axis is {size}")
    values, positions = top_k(b, x, size, axis, largest=False)
    shape = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
    middle = b.expand(as_type(b, (size - 1) // 2, "int64"), shape)
    if is_float(x.data_type):
        nans = b.reduce_sum(b.cast(b.is_nan(x), "int64"), axes=[axis], keep_dimensions=True)
        zero, one = as_type(b, 0, "int64"), as_type(b, 1, "int64")
        if "nanmedian" in call.name:
            # NaN is sorted behind all numbers.
            count = b.sub(as_type(b, size, "int64"), nans)
            middle = b.div(b.max(b.sub(count, one), zero), as_type(b, 2, "int64"))
        else:
            middle = b.where(b.greater(nans, zero), b.sub(as_type(b, size, "int64"), nans), middle)
    chosen = [b.gather_elements(y, middle, axis=axis) for y in (values, positions)]
    if dim is None:
        return b.reshape(chosen[0], [])
    keeps = keepdim and self.rank > 0
    kept = shape if keeps else [*self.shape[:axis], *self.shape[axis + 1 :]]
    return tuple(b.reshape(y, kept) for y in chosen)


def _count_smaller(
    b: MLGraphBuilder, values: MLOperand, sorted_values: MLOperand, is_right: bool, has_int32: bool
) -> MLOperand:
    """Count the elements of each sorted row that are less than a value, or with `is_right` not greater."""
    compare = b.lesser_or_equal if is_right else b.lesser
    smaller = compare(sorted_values, values)
    if is_float(values.data_type):  # NaN is sorted behind all numbers
        smaller = b.logical_or(smaller, b.is_nan(values))
    data_type: DataType = "int32" if has_int32 else "int64"
    return b.reduce_sum(b.cast(smaller, data_type), axes=[smaller.rank - 1])


def _in_one_type(b: MLGraphBuilder, call: AtenCall, first: Any, second: Any) -> list[MLOperand]:
    data_type = call.common_type(0, 1)
    return [as_type(b, value, data_type) for value in (first, second)]


@converts("aten.bucketize.Tensor")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    boundaries: MLOperand,
    *,
    out_int32: bool = False,
    right: bool = False,
    call: AtenCall,
) -> MLOperand:
    values, table = _in_one_type(b, call, self, boundaries)
    return _count_smaller(b, b.reshape(values, [*values.shape, 1]), table, right, out_int32)


@converts("aten.searchsorted.Tensor")
def _(
    b: MLGraphBuilder,
    sorted_sequence: MLOperand,
    self: MLOperand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: MLOperand | None = None,
    call: AtenCall,
) -> MLOperand:
    refuse_if(sorter is not None, "it has a sorter")
    table, values = _in_one_type(b, call, sorted_sequence, self)
    is_right = right or side == "right"
    if table.rank > 1:  # rows of values in rows of the table
        table = b.reshape(table, [*table.shape[:-1], 1, table.shape[-1]])
    return _count_smaller(b, b.reshape(values, [*values.shape, 1]), table, is_right, out_int32)


@converts("aten.histc.default")
def _(b: MLGraphBuilder, self: MLOperand, bins: int = 100, min: Any = 0, max: Any = 0, *, call: AtenCall) -> MLOperand:
    """The number of elements in each of equal ranges from `min` to `max`; NaN and elements outside of them count in none."""
    kind = self.data_type if is_float(self.data_type) else "float32"
    count = prod(self.shape)
    x = b.reshape(as_type(b, self, kind), [count])
    if min == max:
        refuse_if(isinstance(count, Size) or not count, "its ranges are those of elements whose number may be 0")
        low, high, one = b.reduce_min(x), b.reduce_max(x), as_type(b, 1, kind)
        is_equal = b.equal(low, high)
        low, high = b.where(is_equal, b.sub(low, one), low), b.where(is_equal, b.add(high, one), high)
    else:
        low, high = as_type(b, min, kind), as_type(b, max, kind)
    # The last range has its upper end. PyTorch rounds as these operations do.
    place = b.div(b.mul(b.sub(x, low), as_type(b, bins, kind)), b.sub(high, low))
    is_in = b.logical_and(b.greater_or_equal(x, low), b.lesser_or_equal(x, high))
    index = b.cast(b.clamp(b.where(is_in, place, as_type(b, 0, kind)), min_value=0, max_value=bins - 1), "int64")
    counts = composites.scatter_reduce(
        b, b.expand(as_type(b, 0, "int32"), [bins]), index, b.cast(is_in, "int32"), axis=0, reduction="add"
    )
    return as_type(b, counts, call.data_type)


# Partial results ------------------------------------------------------------------------------------------------------


@converts("aten.cumsum.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, *, dtype: Any = None, call: AtenCall) -> MLOperand:
    x = as_type(b, self, call.data_type)
    return x if x.rank == 0 else b.cumulative_sum(x, axis_of(dim, x.rank))


@converts("aten.cumprod.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, *, dtype: Any = None, call: AtenCall) -> MLOperand:
    x = as_type(b, self, call.data_type)
    if x.rank == 0:
        return x
    result: MLOperand = composites.cumulative_product(b, x, axis_of(dim, x.rank))
    return result


@converts("aten.logcumsumexp.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int) -> MLOperand:
    """Partial sums of exponentials, in log2(size) steps that double the reach: each sum subtracts its own maximum."""
    if not self.rank:
        return self
    axis = axis_of(dim, self.rank)
    size = self.shape[axis]
    refuse_if(isinstance(size, Size), "the size of the axis is not known")
    x, reach = self, 1
    while reach < size:
        starts = [0] * x.rank
        first = [*x.shape[:axis], reach, *x.shape[axis + 1 :]]
        sizes = [*x.shape[:axis], size - reach, *x.shape[axis + 1 :]]
        nothing = b.expand(as_type(b, -inf, x.data_type), first)
        x = log_add_exp(b, x, b.concat([nothing, b.slice(x, starts, sizes)], axis))
        reach *= 2
    return x


def log_add_exp(b: MLGraphBuilder, x: MLOperand, y: MLOperand) -> MLOperand:
    """log(exp(x) + exp(y)): the larger one, and log1p of exp(-|x - y|)."""
    largest = b.max(x, y)
    # Equal infinities have no difference.
    distance = b.where(b.equal(x, y), as_type(b, 0, x.data_type), b.neg(b.abs(b.sub(x, y))))
    return b.where(b.is_infinite(largest), largest, b.add(largest, composites.log1p(b, b.exp(distance))))


@converts("aten.logaddexp.default")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
    return log_add_exp(b, *call.promote(b, self, other))


def _partial_extremes(b: MLGraphBuilder, x: MLOperand, dim: int, is_maximum: bool) -> tuple[MLOperand, ...]:
    """Partial maxima and where they are, in log2(size) steps that double the reach of each element."""
    refuse_if(x.rank == 0, "its input is a scalar")
    axis = axis_of(dim, x.rank)
    size = x.shape[axis]
    refuse_if(isinstance(size, Size), "the size of the axis is not known")
    shape = [1] * x.rank
    shape[axis] = size
    positions = b.expand(b.constant(np.arange(size, dtype=np.int64).reshape(shape)), x.shape)
    reach = 1
    while reach < size:
        starts, before = [0] * x.rank, [0] * x.rank
        before[axis] = reach
        sizes = [*x.shape[:axis], size - reach, *x.shape[axis + 1 :]]
        # The first elements see themselves: equal elements keep the later position.
        first = [*x.shape[:axis], reach, *x.shape[axis + 1 :]]
        earlier = b.concat([b.slice(x, starts, first), b.slice(x, starts, sizes)], axis)
        earlier_positions = b.concat([b.slice(positions, starts, first), b.slice(positions, starts, sizes)], axis)
        beats = b.greater(earlier, x) if is_maximum else b.lesser(earlier, x)
        if is_float(x.data_type):
            # NaN beats all numbers, and stays.
            beats = b.where(b.is_nan(x), constant(b, 0, "uint8"), b.logical_or(beats, b.is_nan(earlier)))
        x, positions = b.where(beats, earlier, x), b.where(beats, earlier_positions, positions)
        reach *= 2
    return x, positions


@converts("aten.cummax.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int) -> tuple[MLOperand, ...]:
    return _partial_extremes(b, self, dim, True)


@converts("aten.cummin.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int) -> tuple[MLOperand, ...]:
    return _partial_extremes(b, self, dim, False)
