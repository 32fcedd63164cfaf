"""Gather and scatter: gather, gatherElements, gatherND, scatterElements, scatterND.

Indices count from 0; negative ones count from the end of their dimension. All are clamped to [-N, N - 1] first, where N
is the size of the dimension: -N - 5 is the first element, N + 5 the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.dtypes import ANY, INDICES
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N, op
from ..core.size_possibilities import may_equal_shape
from ..support.errors import require
from .constants import constant

if TYPE_CHECKING:
    from .operations import Operations


@op(input=Limits(ANY, ranks=(1, N)), indices=Limits(INDICES), output=Limits("input", ranks=(1, N)))
def gather(self: Builder, input: Operand, indices: Operand, *, axis: int = 0, label: str = "") -> Desc:
    """Pick slices of `input` along `axis`, one for each index.

    Args:
        indices: int32, uint32 or int64, any rank; negative ones count from the end, others out of range are clamped.
        axis: in [0, rank of `input`).

    Returns: An operand of the data type of `input`; its shape is that of `input` with the axis replaced by the shape of
        `indices`.
    Raises: `axis` is out of range.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gather

    >>> ow.ops.gather(np.float32([[1, 2], [3, 4], [5, 6]]), np.int32([2, 0])).tolist()
    [[5.0, 6.0], [1.0, 2.0]]
    """
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    _check_elements(input, indices, input.shape[axis])
    return Desc(input.data_type, (*input.shape[:axis], *indices.shape, *input.shape[axis + 1 :]))


def _check_elements(input: Operand, indices: Operand, *sizes: int) -> None:
    """Require elements in the dimensions of these sizes, if there are indices for them."""
    require(
        0 not in sizes or 0 in indices.shape,
        f"indices must be empty where a dimension has no elements, got {indices.desc} for {input.desc}",
    )


def _check_aligned(input: Operand, indices: Operand, axis: int) -> None:
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    aligned_shape = (*input.shape[:axis], indices.shape[axis], *input.shape[axis + 1 :])
    require(
        may_equal_shape(indices.shape, aligned_shape),
        f"indices must have the shape of {input.desc} except for axis {axis}, got {indices.desc}",
    )
    _check_elements(input, indices, input.shape[axis])


def _coordinates(b: Operations, indices: Operand, axis: int) -> Operand:
    """The full coordinates of the elements at `indices` along `axis`: [number of indices, rank]."""
    columns = []
    for dimension, size in enumerate(indices.shape):
        if dimension == axis:
            values = indices
        else:
            line = constant(b, range(size), indices.data_type)
            sizes = [size if d == dimension else 1 for d in range(indices.rank)]
            values = b.expand(b.reshape(line, sizes), indices.shape)
        columns.append(b.reshape(values, [indices.desc.element_count, 1]))
    return b.concat(columns, 1)


@op(input=Limits(ANY, ranks=(1, N)), indices=Limits(INDICES, ranks="input"), output=Limits("input", ranks="input"))
def gather_elements(self: Builder, input: Operand, indices: Operand, *, axis: int = 0, label: str = "") -> Desc:
    """Pick single elements of `input`: each index replaces its own coordinate along `axis`.

    Args:
        indices: int32, uint32 or int64, of the shape of `input`, but of any size along `axis`; negative ones count from
            the end, others out of range are clamped.

    Returns: An operand of the data type of `input` and the shape of `indices`: for axis 0 and rank 2,
        `output[i, j] = input[indices[i, j], j]`.
    Raises: `axis` is out of range, or the shapes do not fit.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gatherelements

    >>> ow.ops.gather_elements(np.float32([[1, 2], [3, 4]]), np.int32([[1, 0]])).tolist()
    [[3.0, 2.0]]
    """
    _check_aligned(input, indices, axis)
    return Desc(input.data_type, indices.shape)


@gather_elements.decompose
def _(b: Operations, input: Operand, indices: Operand, axis: int) -> Operand:
    return b.reshape(b.gather_nd(input, _coordinates(b, indices, axis)), indices.shape)


def _slice_shape(input: Operand, indices: Operand) -> tuple[int, ...]:
    *counts, size = indices.shape
    require(size > 0, f"the last dimension of indices must be at least 1, got {indices.desc}")
    # A size that is known only when the graph runs is compared with each number.
    coordinates = next((count for count in range(input.rank + 1) if count == size), None)
    require(
        coordinates is not None,
        f"the last dimension of indices must be at most the rank of input, {input.rank}, got {indices.desc}",
    )
    _check_elements(input, indices, *input.shape[:coordinates])
    return (*counts, *input.shape[coordinates:])


@op(input=Limits(ANY, ranks=(1, N)), indices=Limits(INDICES, ranks=(1, N)), output=Limits("input", ranks=(0, N)))
def gather_nd(self: Builder, input: Operand, indices: Operand, *, label: str = "") -> Desc:
    """Pick slices of `input` by their coordinates in its leading dimensions.

    Args:
        indices: int32, uint32 or int64 [..., coordinates], with at most as many coordinates as `input` has dimensions;
            negative ones count from the end, others out of range are clamped.

    Returns: An operand of the data type of `input` and the shape [..., *input.shape[coordinates:]].
    Raises: more coordinates than dimensions.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gathernd

    >>> ow.ops.gather_nd(np.float32([[1, 2], [3, 4]]), np.int32([[1, 0], [0, 1]])).tolist()
    [3.0, 2.0]
    """
    return Desc(input.data_type, _slice_shape(input, indices))


@op(
    input=Limits(ANY, ranks=(1, N)),
    indices=Limits(INDICES, ranks="input"),
    updates=Limits("input", ranks="input"),
    output=Limits("input", ranks="input"),
)
def scatter_elements(
    self: Builder, input: Operand, indices: Operand, updates: Operand, *, axis: int = 0, label: str = ""
) -> Desc:
    """Replace single elements of `input` by `updates`: each index replaces its own coordinate along `axis`.

    Args:
        indices: int32, uint32 or int64, of the shape of `input`, but of any size along `axis`; negative ones count from
            the end, others out of range are clamped. If several refer to one element, which update is written is
            undefined.
        updates: the data type of `input`, the shape of `indices`.

    Returns: An operand of the data type and shape of `input`: a copy of it in which, for axis 0 and rank 2,
        `output[indices[i, j], j] = updates[i, j]`.
    Raises: `axis` is out of range, or the shapes do not fit.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatterelements

    >>> ow.ops.scatter_elements(np.float32([[1, 2], [3, 4]]), np.int32([[1, 0]]), np.float32([[10, 20]])).tolist()
    [[1.0, 20.0], [10.0, 4.0]]
    """
    _check_aligned(input, indices, axis)
    require(
        may_equal_shape(updates.shape, indices.shape),
        f"updates must have the shape of indices, {list(indices.shape)}, got {updates.desc}",
    )
    return input.desc


@scatter_elements.decompose
def _(b: Operations, input: Operand, indices: Operand, updates: Operand, axis: int) -> Operand:
    lines = b.reshape(updates, [updates.desc.element_count])
    return b.scatter_nd(input, _coordinates(b, indices, axis), lines)


@op(
    input=Limits(ANY, ranks=(1, N)),
    indices=Limits(INDICES, ranks=(1, N)),
    updates=Limits("input", ranks=(0, N)),
    output=Limits("input", ranks=(1, N)),
)
def scatter_nd(self: Builder, input: Operand, indices: Operand, updates: Operand, *, label: str = "") -> Desc:
    """Replace slices of `input` by `updates`, at coordinates in its leading dimensions.

    Args:
        indices: int32, uint32 or int64 [..., coordinates], with at most as many coordinates as `input` has dimensions;
            negative ones count from the end, others out of range are clamped. If several refer to one slice, which
            update is written is undefined.
        updates: the data type of `input`, [..., *input.shape[coordinates:]].

    Raises: more coordinates than dimensions, or updates of a different shape.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-scatternd

    >>> ow.ops.scatter_nd(np.float32([1, 2, 3]), np.int32([[2], [0]]), np.float32([10, 20])).tolist()
    [20.0, 2.0, 10.0]
    """
    check_shape(_slice_shape(input, indices), updates=updates)
    return input.desc
