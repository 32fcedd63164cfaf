"""ONNX operators that change shapes, or make tensors of a given shape."""

from __future__ import annotations

from math import prod

import numpy as np

from ....composites import depth_to_space, space_to_depth
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ....core.shapes import broadcast
from ....core.sizes import Size, is_same_size
from ....ops.constants import line
from ...model.booleans import bool_as_uint8
from ...model.protobuf import TensorProto, array_of, dtype_of
from ...model.registry import (
    DATA_TYPES,
    Tensor,
    Unsupported,
    constant_of,
    constant_or_same,
    converts,
    integers,
    normalize_axis,
    shape_of,
    unsupported_if,
)
from .windows import reshape


@converts("Reshape")
def _(b: MLGraphBuilder, data: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    old, target = shape_of(data), integers(shape, "the shape")
    if not allowzero:
        target = [old[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in target:
        # Sizes with names that stay cancel out, whatever they are.
        rest, others = list(old), []
        for size in (size for size in target if size != -1):
            places = [k for k, other in enumerate(rest) if isinstance(size, Size) and is_same_size(size, other)]
            if places:
                rest.pop(places[0])
            else:
                others.append(size)
        count = prod(others)
        unsupported_if(not count or prod(rest) % count, f"{list(old)} does not fit the shape {target}")
        target[target.index(-1)] = prod(rest) // count
    return reshape(b, data, target)


@converts("Flatten")
def _(b: MLGraphBuilder, input: Tensor, *, axis: int = 1) -> Tensor:
    shape = shape_of(input)
    unsupported_if(not -len(shape) <= axis <= len(shape), f"axis {axis} is out of range for rank {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return reshape(b, input, [prod(shape[:axis]), prod(shape[axis:])])


@converts("Squeeze", moved=["axes"])
def _(b: MLGraphBuilder, data: Tensor, axes: Tensor | None = None) -> Tensor:
    shape = shape_of(data)
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    axis_list = ones if axes is None else integers(axes, "the list of axes")
    removed = {normalize_axis(axis, len(shape)) for axis in axis_list}
    if any(shape[axis] != 1 for axis in removed):
        raise Unsupported(f"the axes {sorted(removed)} of {list(shape)} are not all 1")
    return reshape(b, data, [size for axis, size in enumerate(shape) if axis not in removed])


@converts("Unsqueeze", moved=["axes"])
def _(b: MLGraphBuilder, data: Tensor, axes: Tensor | None = None) -> Tensor:
    axis_list = integers(axes, "the list of axes")
    rest = iter(shape_of(data))
    rank = len(shape_of(data)) + len(axis_list)
    added = {normalize_axis(axis, rank) for axis in axis_list}
    unsupported_if(len(added) < len(axis_list), f"axes {axis_list} contain duplicates")
    return reshape(b, data, [1 if axis in added else next(rest) for axis in range(rank)])


@converts("Identity")
def _(b: MLGraphBuilder, input: Tensor) -> Tensor:
    return input


@converts("Dropout", moved=["ratio"])
def _(
    b: MLGraphBuilder,
    data: Tensor,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int = 0,
    opset: int,
    outputs: int,
    types: list[int],
) -> tuple[Tensor, ...]:
    unsupported_if(
        training_mode is not None and constant_of(training_mode, "training_mode").any(), "it is in training mode"
    )
    if outputs < 2:
        return (data,)
    # Nothing is dropped. Before operator set 10, the mask had the type of the data.
    dtype = np.dtype(bool) if opset >= 10 else dtype_of(types[0])
    return data, np.ones(shape_of(data), dtype)


@converts("Expand")
def _(b: MLGraphBuilder, input: Tensor, shape: Tensor) -> Tensor:
    old = shape_of(input)
    result_shape = broadcast(old, tuple(integers(shape, "the shape")))
    return input if result_shape == old else b.expand(input, result_shape)


@converts("ConstantOfShape")
def _(b: MLGraphBuilder, input: Tensor, *, value: TensorProto | None = None) -> Tensor:
    # Small results are folded. A large one takes memory only while the graph runs.
    single = np.zeros((), np.float32) if value is None else array_of(value).reshape(())
    return b.expand(b.constant(bool_as_uint8(single)), integers(input, "the shape"))


@converts("Range")
def _(b: MLGraphBuilder, start: Tensor, limit: Tensor, delta: Tensor, *, types: list[int]) -> Tensor:
    # Here, the length has a name: ranges of numbers are folded. Whole floats are exact up to 2**24.
    is_known = not any(isinstance(constant_or_same(value), MLOperand) for value in (start, limit, delta))
    unsupported_if(not is_known, "WebNN has no operation for it")
    is_whole = all(constant_of(value, "the range").dtype.kind in "iuO" for value in (start, limit, delta))
    unsupported_if(not is_whole, "its numbers are no integers")
    (first,), (end,), (step,) = (integers(value, "the range") for value in (start, limit, delta))
    unsupported_if(isinstance(step, Size) or step == 0, "its step is not a number")
    count, data_type = -((first - end) // step), DATA_TYPES[types[0]]
    unsupported_if(count < 1, "its output is empty")
    places = b.cast(line(b, 0, count, "int32", [count]), data_type)
    return b.add(b.mul(places, b.constant(data_type, step)), b.constant(data_type, int(first)))


@converts("EyeLike")
def _(b: MLGraphBuilder, input: Tensor, *, dtype: int = 0, k: int = 0, types: list[int]) -> Tensor:
    rows, columns = shape_of(input)
    return np.eye(rows, columns, k, dtype_of(dtype or types[0]))


@converts("DepthToSpace")
def _(b: MLGraphBuilder, input: MLOperand, *, blocksize: int, mode: str = "DCR") -> MLOperand:
    return depth_to_space(b, input, blocksize, mode=mode.lower())


@converts("SpaceToDepth")
def _(b: MLGraphBuilder, input: MLOperand, *, blocksize: int, mode: str = "DCR") -> MLOperand:
    unsupported_if(mode != "DCR", f"its mode is {mode!r}")
    return space_to_depth(b, input, blocksize)
