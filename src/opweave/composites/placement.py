"""Writing a part of a cache, and results of which only the number depends on data."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..core.dtypes import ANY, is_float
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N
from ..ops.constants import constant
from ..support.errors import require
from .declare import check_axis, declare
from .selection import top_k

if TYPE_CHECKING:
    from ..ops import Operations

MAX_COUNT = 2**31 - 1
"""Maximum number of results: positions are int32 inside."""

MAX_PAIRS = 2**26
"""Maximum number of comparisons of elements of pairs of slices. An estimate."""


@declare(
    past=Limits(ANY, ranks=(2, N)),
    update=Limits("past", ranks="past"),
    start=Limits(("int32", "int64"), ranks=(1, 1)),
    output=Limits("past", ranks="past"),
)
def tensor_scatter(
    self: Builder,
    past: Operand,
    update: Operand,
    start: Operand | None = None,
    axis: int | None = None,
    *,
    mode: Literal["linear", "circular"] = "linear",
    label: str = "",
) -> Desc:
    """Write `update` into a copy of `past`, from a position of each batch on.

    Args:
        past: any data type [batches, ..., size, ...], such as the keys or values of a cache, with `size` along `axis`.
        update: the data type and shape of `past`, with at most `size` elements along `axis`.
        start: int32 or int64 [batches], where to write in each batch. Default: 0.
        axis: in [1, rank). Default: the last but one, or 1 for rank 2.
        mode: "linear" clamps `start` to [0, size - length of `update`]; "circular" continues at the first element after the
            last one, with `start` modulo `size`.

    Returns: An operand of the data type and shape of `past`: `output[b, start[b] + i] = update[b, i]` for axis 1. It may use
        the memory of `past`.
    Raises: the shapes do not fit, or `axis` is out of range.

    ONNX's TensorScatter.

    >>> past, update = np.zeros((2, 3), "float32"), np.float32([[1, 2], [3, 4]])
    >>> tensor_scatter(past, update, np.int64([0, 2]), 1, mode="circular").tolist()
    [[1.0, 2.0, 0.0], [4.0, 0.0, 3.0]]
    """
    # The default is filled in.
    assert axis is not None
    require(1 <= axis < past.rank, f"axis must be in [1, {past.rank}), got {axis}")
    check_shape((*past.shape[:axis], update.shape[axis], *past.shape[axis + 1 :]), "that of past", update=update)
    fits = update.shape[axis] <= past.shape[axis]
    require(fits, f"update must have at most {past.shape[axis]} elements along axis {axis}, got {update.desc}")
    check_shape((past.shape[0],), "one position for each batch", start=start)
    return past.desc


@tensor_scatter.default("axis")
def _(past: Operand) -> int:
    return max(1, past.rank - 2)


tensor_scatter.in_place(output0="past")


@tensor_scatter.decompose
def _(b: Operations, past: Operand, update: Operand, start: Operand | None, axis: int, mode: str) -> Operand:
    # Rows of the axis and all before it: [batches * middle * size, inner].
    batches, size, count = past.shape[0], past.shape[axis], update.shape[axis]
    middle, inner = prod(past.shape[1:axis]), prod(past.shape[axis + 1 :])
    places = b.reshape(constant(b, range(count), "int32"), [1, 1, count])
    if start is not None:
        first = b.reshape(b.cast(_first(b, start, size, count, mode), "int32"), [batches, 1, 1])
        places = first + places
        if mode == "circular":
            places = b.where(b.lesser(places, constant(b, size, "int32")), places, places - size)
    rows = constant(b, np.arange(batches * middle).reshape(batches, middle, 1) * size, "int32")
    rows = b.reshape(rows + places, [batches * middle * count, 1])
    lines = b.reshape(past, [batches * middle * size, inner])
    written = b.scatter_nd(lines, rows, b.reshape(update, [batches * middle * count, inner]))
    return b.reshape(written, past.shape)


def _first(b: Operations, start: Operand, size: int, count: int, mode: str) -> Operand:
    """The first positions to write, in [0, size)."""
    if mode == "linear":
        return b.clamp(start, min_value=0, max_value=size - count)
    # Quotients of integers are rounded towards zero.
    remainder = start - b.mul(b.div(start, constant(b, size, start.data_type)), constant(b, size, start.data_type))
    return b.where(b.lesser(remainder, constant(b, 0, start.data_type)), remainder + size, remainder)


@declare(input=Limits(ANY, ranks=(1, N)))
def non_zero(self: Builder, input: Operand, count: int, *, label: str = "") -> tuple[Desc, Desc]:
    """Find the positions of the first `count` elements that are not zero, and how many elements are not zero.

    Args:
        input: any data type. NaN is not zero.
        count: the number of positions, from 1 to the number of elements.

    Returns: The positions, int64 [rank, count], in the order of the elements in memory, -1 behind the last one; and the
        number of positions before that, int64 [1].
    Raises: `count` is out of range.

    ONNX's NonZero with a result of fixed size.

    >>> positions, number = non_zero(np.float32([[0, 3], [5, 0]]), 3)
    >>> positions.tolist(), number.tolist()
    ([[0, 1, -1], [1, 0, -1]], [2])
    """
    check_results(count, input.desc.element_count, "the number of elements")
    return Desc("int64", (input.rank, count)), Desc("int64", (1,))


def check_results(count: int, most: int, subject: str) -> None:
    """Require a number of results from 1 to `most`."""
    require(1 <= count <= most, f"count must be in [1, {most}], {subject}, got {count}")
    require(count <= MAX_COUNT, f"count must be at most {MAX_COUNT}, got {count}")


@non_zero.decompose
def _(b: Operations, input: Operand, count: int) -> tuple[Operand, Operand]:
    flat, number = _find_marks(b, _marks(b, input), count)
    is_none, columns, rest = b.lesser(flat, constant(b, 0, "int32")), [], flat
    for size in reversed(input.shape):
        quotient = b.div(rest, constant(b, size, "int32"))
        column = b.where(is_none, constant(b, -1, "int32"), rest - quotient * size)
        columns.append(b.reshape(column, [1, count]))
        rest = quotient
    positions = b.concat(columns[::-1], 0) if len(columns) > 1 else columns[0]
    return b.cast(positions, "int64"), b.cast(number, "int64")


def _marks(b: Operations, input: Operand) -> Operand:
    """Whether elements are not zero, int32 [elements]."""
    marks = b.not_equal(input, constant(b, 0, input.data_type))
    if is_float(input.data_type):
        # Comparisons with NaN are not defined on all GPUs.
        marks = b.logical_or(marks, b.is_nan(input))
    return b.reshape(b.cast(marks, "int32"), [input.desc.element_count])


def _find_marks(b: Operations, marks: Operand, count: int) -> tuple[Operand, Operand]:
    """Find the positions of the first `count` marks of 1 among marks of 0, int32, -1 for none; and their number, int32 [1]."""
    (size,) = marks.shape
    places = b.cumulative_sum(marks, 0, exclusive=True)
    # Elements without a mark, and marks after the first ones, write to an element that is dropped.
    last = constant(b, count, "int32")
    targets = b.min(b.where(b.cast(marks, "uint8"), places, last), last)
    empty = b.expand(constant(b, -1, "int32"), [count + 1])
    positions = b.scatter_elements(empty, targets, constant(b, range(size), "int32"), axis=0)
    number = b.min(b.reduce_sum(marks, axes=[0], keep_dimensions=True), last)
    return b.slice(positions, [0], [count]), number


@declare(
    input=Limits(ANY, ranks=(1, N)), condition=Limits(("uint8",), ranks=(1, 1)), output0=Limits("input", ranks=(1, N))
)
def compress(
    self: Builder, input: Operand, condition: Operand, count: int, axis: int | None = None, *, label: str = ""
) -> tuple[Desc, Desc]:
    """Select the slices along `axis` for which a condition holds, at most `count` of them.

    Args:
        condition: uint8 [length], at most the size of the axis; not 0 selects a slice.
        count: the number of slices of the result, from 1 to `length`.
        axis: in [0, rank). Default: the elements of the flattened input are selected.

    Returns: The selected slices in order, in the data type of `input` and its shape with `count` along the axis (a vector
        without an axis), zeros behind them; and the number of selected slices in the result, int64 [1].
    Raises: `axis` or `count` is out of range, or the condition is too long.

    ONNX's Compress with a result of fixed size.

    >>> values, number = compress(np.float32([1, 2, 3]), np.uint8([0, 1, 1]), 3)
    >>> values.tolist(), number.tolist()
    ([2.0, 3.0, 0.0], [2])
    """
    size = input.desc.element_count if axis is None else input.shape[check_axis(input, axis)]
    (length,) = condition.shape
    require(length <= size, f"condition must have at most {size} elements, got {condition.desc}")
    check_results(count, length, "the length of condition")
    shape = (count,) if axis is None else (*input.shape[:axis], count, *input.shape[axis + 1 :])
    return Desc(input.data_type, shape), Desc("int64", (1,))


@compress.decompose
def _(b: Operations, input: Operand, condition: Operand, count: int, axis: int | None) -> tuple[Operand, Operand]:
    positions, number = _find_marks(b, _marks(b, condition), count)
    x = b.reshape(input, [input.desc.element_count]) if axis is None else input
    along = axis or 0
    slices = b.gather(x, positions, axis=along)
    exists = b.reshape(b.greater_or_equal(positions, constant(b, 0, "int32")), _along(count, along, x.rank))
    return b.where(exists, slices, constant(b, 0, input.data_type)), b.cast(number, "int64")


def _along(size: int, axis: int, rank: int) -> list[int]:
    return [size if d == axis else 1 for d in range(rank)]


@declare(input=Limits(ANY, ranks=(1, N)), output0=Limits("input", ranks=(1, N)))
def unique(
    self: Builder, input: Operand, count: int, axis: int | None = None, *, sorted: bool = True, label: str = ""
) -> tuple[Desc, Desc, Desc, Desc, Desc]:
    """Find the first `count` distinct elements, or slices along an axis.

    Args:
        input: any data type, any shape. NaN is equal to NaN.
        count: the number of distinct elements to return, from 1 to the number of elements; or of slices.
        axis: in [0, rank), to compare slices along it, of which all pairs are compared: the product of their number and of
            the number of elements is at most 2**26. Default: elements of the flattened input are compared.
        sorted: whether they are in ascending order, NaN last, slices by their first elements that differ; or in the order in
            which they occur first.

    Returns: The distinct elements [count], in the data type of `input`, or slices, in the shape of `input` with `count` along
        the axis; where each occurs first in the flattened input, or along the axis, int64 [count]; which of them each element
        of the flattened input is, or each slice, int64 [elements], `count` for one that is not among them; how often each
        occurs, int64 [count]; and the number of distinct ones in the result, int64 [1]. Behind the last one, elements and
        counts are 0, and first positions are -1.
    Raises: `count` or `axis` is out of range, or there are too many pairs of slices.

    ONNX's Unique with results of fixed size.

    >>> values, first, inverse, counts, number = unique(np.float32([2, 1, 2, 3]), 4)
    >>> values.tolist(), first.tolist(), inverse.tolist(), counts.tolist(), number.tolist()
    ([1.0, 2.0, 3.0, 0.0], [1, 0, 3, -1], [1, 0, 1, 2], [1, 2, 1, 0], [3])
    """
    elements = input.desc.element_count
    size = elements if axis is None else input.shape[check_axis(input, axis)]
    check_results(count, size, "the number of elements" if axis is None else f"the size of axis {axis}")
    if axis is not None:
        fits = size * elements <= MAX_PAIRS
        require(
            fits, f"{size} slices of {input.desc} are too many to compare all pairs: {size} * {elements} > {MAX_PAIRS}"
        )
    positions = Desc("int64", (count,))
    shape = (count,) if axis is None else (*input.shape[:axis], count, *input.shape[axis + 1 :])
    return Desc(input.data_type, shape), positions, Desc("int64", (size,)), positions, Desc("int64", (1,))


@unique.decompose
def _(b: Operations, input: Operand, count: int, axis: int | None, sorted: bool) -> tuple[Operand, ...]:
    if axis is not None and input.rank > 1:
        return _unique_slices(b, input, count, axis, sorted)
    size = input.desc.element_count
    flat = b.reshape(input, [size])
    one, zero, last = (constant(b, value, "int32") for value in (1, 0, count))
    # Equal elements keep their order, so the first of a group is the one that occurs first.
    values, order = top_k(b, flat, size, 0, largest=False, index_type="int32")
    if size > 1:
        after, before = b.slice(values, [1], [size - 1]), b.slice(values, [0], [size - 1])
        differs = b.not_equal(after, before)
        if is_float(input.data_type):
            both, either = (combine(b.is_nan(after), b.is_nan(before)) for combine in (b.logical_and, b.logical_or))
            differs = b.where(either, b.logical_not(both), differs)
        begins = b.concat([constant(b, [1], "int32"), b.cast(differs, "int32")], 0)
    else:
        begins = constant(b, [1], "int32")
    is_first = b.cast(begins, "uint8")
    groups = b.cumulative_sum(begins, 0) - one
    if not sorted:
        # Number the groups by the places of their first elements.
        marks = b.scatter_elements(b.expand(zero, [size]), order, begins, axis=0)
        ranks = b.gather(b.cumulative_sum(marks, 0, exclusive=True), order)
        targets = b.where(is_first, groups, constant(b, size, "int32"))
        table = b.scatter_elements(b.expand(zero, [size + 1]), targets, ranks, axis=0)
        groups = b.gather(table, groups)
    number = b.min(b.reduce_sum(begins, axes=[0], keep_dimensions=True), last)
    groups = b.min(groups, last)
    places = b.where(is_first, groups, last)
    empty = b.expand(constant(b, -1, "int32"), [count + 1])
    first = b.slice(b.scatter_elements(empty, places, order, axis=0), [0], [count])
    exists = b.greater_or_equal(first, zero)
    distinct = b.where(exists, b.gather(flat, first), constant(b, 0, input.data_type))
    inverse = b.scatter_elements(b.expand(zero, [size]), order, groups, axis=0)
    counts = _counts(b, groups, count, size)
    return distinct, *(b.cast(result, "int64") for result in (first, inverse, counts, number))


def _counts(b: Operations, groups: Operand, count: int, size: int) -> Operand:
    """Count the elements of each group below `count`."""
    from .scatter import scatter_reduce

    ones, zeros = b.expand(constant(b, 1, "int32"), [size]), b.expand(constant(b, 0, "int32"), [count + 1])
    return b.slice(scatter_reduce(b, zeros, groups, ones, 0), [0], [count])


def _unique_slices(b: Operations, input: Operand, count: int, axis: int, sorted: bool) -> tuple[Operand, ...]:
    size = input.shape[axis]
    order = [axis, *(d for d in range(input.rank) if d != axis)]
    rows = b.reshape(b.transpose(input, permutation=order), [size, input.desc.element_count // size])
    is_less, differs = _compare_rows(b, rows)
    line, zero, last = (constant(b, value, "int32") for value in (range(size), 0, count))
    # The first slice that a slice is equal to.
    same = constant(b, 1, "int32") - differs
    leader = b.arg_max(same, 1, output_data_type="int32")
    is_first = b.equal(leader, line)
    firsts = b.cast(is_first, "int32")
    if sorted:
        groups = b.reduce_sum(is_less * b.reshape(firsts, [size, 1]), axes=[0])
    else:
        groups = b.gather(b.cumulative_sum(firsts, 0, exclusive=True), leader)
    number = b.min(b.reduce_sum(firsts, axes=[0], keep_dimensions=True), last)
    groups = b.min(groups, last)
    places = b.where(is_first, groups, last)
    empty = b.expand(constant(b, -1, "int32"), [count + 1])
    first = b.slice(b.scatter_elements(empty, places, line, axis=0), [0], [count])
    exists = b.reshape(b.greater_or_equal(first, zero), _along(count, axis, input.rank))
    distinct = b.where(exists, b.gather(input, first, axis=axis), constant(b, 0, input.data_type))
    counts = _counts(b, groups, count, size)
    return distinct, *(b.cast(result, "int64") for result in (first, groups, counts, number))


def _compare_rows(b: Operations, rows: Operand) -> tuple[Operand, Operand]:
    """Compare rows i and j by their first elements that differ: 1 if i is less, and 1 if they differ; int32 [rows, rows]."""
    size, length = rows.shape
    if length == 0:
        equal = constant(b, np.zeros((size, size)), "int32")
        return equal, equal
    one, other = b.reshape(rows, [size, 1, length]), b.reshape(rows, [1, size, length])
    is_less, differs = b.lesser(one, other), b.not_equal(one, other)
    if is_float(rows.data_type):
        # NaN is equal to NaN, and greater than all numbers.
        of_one, of_other = b.is_nan(one), b.is_nan(other)
        either, only_other = b.logical_or(of_one, of_other), b.logical_and(b.logical_not(of_one), of_other)
        is_less = b.where(either, only_other, is_less)
        differs = b.where(either, b.logical_xor(of_one, of_other), differs)
    is_less, differs = b.cast(is_less, "int32"), b.cast(differs, "int32")
    place = b.arg_max(differs, 2, keep_dimensions=True, output_data_type="int32")
    return b.reshape(b.gather_elements(is_less, place, axis=2), [size, size]), b.reduce_max(differs, axes=[2])
