"""Selection of the largest elements, and operands that mark positions."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal

from ..core.dtypes import ANY, FLOATS, INFO, DataType, is_float
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..ops.constants import constant
from ..support.errors import require
from .declare import check_axis, column, declare, last_axis

if TYPE_CHECKING:
    from ..ops import Operations

MAX_COUNTED = 2048
"""Maximum size of an axis for `_by_counting`, which compares all pairs of elements. The size is also at most 4 * k, because
`_one_by_one` takes k steps."""


@declare(input=Limits(ANY, ranks=(1, N)))
def top_k(
    self: Builder,
    input: Operand,
    k: int,
    axis: int | None = None,
    *,
    largest: bool = True,
    index_type: Literal["int32", "int64"] = "int64",
    label: str = "",
) -> tuple[Desc, Desc]:
    """Find the `k` largest (or smallest) elements along an axis, in order, and where they are.

    Of equal elements the first comes first. NaN counts as larger than positive infinity.

    Args:
        k: the number of elements, from 1 to the size of the axis.
        axis: in [0, rank). Default: the last one.
        largest: whether to look for the largest, or for the smallest elements.
        index_type: "int32" or "int64", the data type of the positions.

    Returns: The elements, in the data type of `input`, and their positions along the axis; both have the shape of
        `input` with `k` elements along the axis.
    Raises: there is no such axis, or it has fewer elements than `k`.

    ONNX's TopK with sorted=1.

    >>> values, positions = top_k(np.float32([2, 7, 1, 7]), 3)
    >>> values.tolist(), positions.tolist()
    ([7.0, 7.0, 2.0], [1, 3, 0])
    """
    axis = check_axis(input, axis)
    require(1 <= k <= input.shape[axis], f"k must be in [1, {input.shape[axis]}], the size of axis {axis}, got {k}")
    shape = (*input.shape[:axis], k, *input.shape[axis + 1 :])
    return Desc(input.data_type, shape), Desc(index_type, shape)


top_k.default("axis")(last_axis)


@top_k.decompose
def _(b: Operations, input: Operand, k: int, axis: int, largest: bool, index_type: DataType) -> tuple[Operand, Operand]:
    # Comparisons with NaN are false, or not defined on GPUs. Infinity replaces NaN as the key; `is_first` orders the two.
    keys, is_first = input, None
    if is_float(input.data_type):
        is_nan = b.is_nan(input)
        keys = b.where(is_nan, constant(b, float("inf"), input.data_type), input)
        is_first = is_nan if largest else b.logical_not(is_nan)
    choose = _by_counting if input.shape[axis] <= min(MAX_COUNTED, 4 * k) else _one_by_one
    positions = b.cast(choose(b, keys, is_first, k, axis, largest), index_type)
    return b.gather_elements(input, positions, axis=axis), positions


def _by_counting(b: Operations, keys: Operand, is_first: Operand | None, k: int, axis: int, largest: bool) -> Operand:
    """Return the positions of the first `k` elements. The rank of an element is the number of elements before it.

    Keys are compared first. Of elements with equal keys, one with `is_first` comes before others.
    """
    count, shape = keys.shape[axis], keys.shape
    # [outer, element, other, inner]: whether the other comes before the element.
    outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
    of_element, of_other = [outer, count, 1, inner], [outer, 1, count, inner]
    element, other = b.reshape(keys, of_element), b.reshape(keys, of_other)
    line = constant(b, range(count), "int32")
    before = b.lesser(b.reshape(line, [1, 1, count, 1]), b.reshape(line, [1, count, 1, 1]))
    if is_first is not None:
        this, that = b.reshape(is_first, of_element), b.reshape(is_first, of_other)
        before = b.logical_or(b.greater(that, this), b.logical_and(b.equal(that, this), before))
    beyond = b.greater(other, element) if largest else b.lesser(other, element)
    before = b.logical_or(beyond, b.logical_and(b.equal(other, element), before))
    ranks = b.reduce_sum(b.cast(before, "int32"), axes=[2])
    positions = b.expand(b.reshape(line, [1, count, 1]), [outer, count, inner])
    ordered = b.scatter_elements(positions, ranks, positions, axis=1)
    first = b.slice(ordered, [0, 0, 0], [outer, k, inner])
    return b.reshape(first, [*shape[:axis], k, *shape[axis + 1 :]])


def _one_by_one(b: Operations, keys: Operand, is_first: Operand | None, k: int, axis: int, largest: bool) -> Operand:
    """Return the positions of the first `k` elements: find the best remaining element `k` times."""
    # The mask `left` excludes elements. The worst value alone cannot, because other elements may have it, too.
    line = b.reshape(constant(b, range(keys.shape[axis]), "int32"), column(axis, keys.shape[axis], keys.rank))
    best = b.reduce_max if largest else b.reduce_min
    wide = b.cast(keys, "int32") if keys.data_type in ("int8", "uint8") else keys
    worst = constant(b, _worst(wide.data_type, largest), wide.data_type)
    left = b.expand(constant(b, 1, "uint8"), keys.shape)
    # Scores are floats: OpenVINO finds no largest integer of 32 bits, and a step on another engine would divide the graph.
    priority = None if is_first is None else b.cast(is_first, "float32") + 1
    positions = []
    for _ in range(k):
        extreme = best(b.where(left, wide, worst), axes=[axis], keep_dimensions=True)
        candidates = b.cast(b.logical_and(left, b.equal(wide, extreme)), "float32")
        scores = candidates if priority is None else candidates * priority
        position = b.arg_max(scores, axis, keep_dimensions=True, output_data_type="int32")
        left = b.logical_and(left, b.not_equal(line, position))
        positions.append(position)
    return b.concat(positions, axis)


def _worst(data_type: DataType, largest: bool) -> float:
    if is_float(data_type):
        return float("-inf" if largest else "inf")
    return INFO[data_type].lowest if largest else INFO[data_type].highest


@declare(indices=Limits(("int32", "int64"), ranks=(0, N - 1)))
def one_hot(
    self: Builder,
    indices: Operand,
    depth: int,
    axis: int | None = None,
    *,
    on: float = 1.0,
    off: float = 0.0,
    data_type: DataType = "float32",
    label: str = "",
) -> Desc:
    """Mark positions on a new axis.

    Args:
        indices: int32 or int64, rank up to 7. Those in [-depth, 0) count from the end, others out of range mark nothing.
        depth: the size of the new axis.
        axis: the position of the new axis, in [0, rank of `indices`]. Default: last.
        on: the value at a position.
        off: the value everywhere else.
        data_type: the data type of the result.

    Returns: An operand of `data_type`, in the shape of `indices` with the new axis.
    Raises: `depth` is not positive, or `axis` is out of range.

    ONNX's OneHot.

    >>> one_hot(np.int64([0, 2, -1, 5]), 3, data_type="uint8").tolist()
    [[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
    """
    # The default is filled in.
    assert axis is not None
    require(depth > 0, f"depth must be greater than 0, got {depth}")
    require(0 <= axis <= indices.rank, f"axis must be in [0, {indices.rank}], got {axis}")
    return Desc(data_type, (*indices.shape[:axis], depth, *indices.shape[axis:]))


@one_hot.default("axis")
def _(indices: Operand) -> int:
    return indices.rank


@one_hot.decompose
def _(b: Operations, indices: Operand, depth: int, axis: int, on: float, off: float, data_type: DataType) -> Operand:
    positions = b.where(b.lesser(indices, constant(b, 0, indices.data_type)), indices + depth, indices)
    positions = b.reshape(positions, [*indices.shape[:axis], 1, *indices.shape[axis:]])
    line = b.reshape(constant(b, range(depth), indices.data_type), column(axis, depth, indices.rank + 1))
    marked = b.equal(positions, line)
    if (on, off) == (1, 0):
        return b.cast(marked, data_type)
    return b.where(marked, *(constant(b, _number(value, data_type), data_type) for value in (on, off)))


def _number(value: float, data_type: DataType) -> float:
    return value if is_float(data_type) else int(value)


@declare(input=Limits(FLOATS, ranks=(1, N)))
def hard_max(self: Builder, input: Operand, axis: int | None = None, *, label: str = "") -> Desc:
    """Mark the largest element along an axis with 1, and all others with 0; of several largest ones, the first.

    Args:
        axis: in [0, rank). Default: the last one.

    Returns: An operand of the data type and shape of `input`. The results for NaN are not specified.

    ONNX's Hardmax.

    >>> hard_max(np.float32([[1, 3, 3], [2, 1, 0]])).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    check_axis(input, axis)
    return input.desc


hard_max.default("axis")(last_axis)


@hard_max.decompose
def _(b: Operations, input: Operand, axis: int) -> Operand:
    size = input.shape[axis]
    line = b.reshape(constant(b, range(size), "int64"), column(axis, size, input.rank))
    first = b.arg_max(input, axis, keep_dimensions=True, output_data_type="int64")
    return b.cast(b.equal(first, line), input.data_type)
