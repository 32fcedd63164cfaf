"""What operations that move or pick elements say about wrong arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import opweave as ow

CONTEXT = ow.ml.create_context(device="reference")

# The builder is Any to the type checker, which would find most of these errors.
Build = Callable[[Any, Callable[..., Any]], Any]

ROWS: list[tuple[Build, str]] = [
    (lambda b, x: b.concat([], 0), "concat: takes 1 to 8192 inputs, got 0"),
    (lambda b, x: b.concat([x(1)] * 8193, 0), "concat: takes 1 to 8192 inputs, got 8193"),
    (
        lambda b, x: b.concat(x(1), 0),
        "concat: inputs must be a sequence of operands, got <MLOperand float32[1], input 'x0'>",
    ),
    (
        lambda b, x: b.concat([x(1), 1], 0),
        "concat: inputs[1] must be an operand, got 1; builder.constant('int32', 1) declares a constant",
    ),
    (lambda b, x: b.concat([x(2, 3)], 2, label="join"), "concat 'join': axis must be in [0, 2), got 2"),
    (lambda b, x: b.concat([x()], 0), "concat: inputs must have a rank in [1, 8], got float32[]"),
    (
        lambda b, x: b.concat([x(2, 3), x(2, 1), x(1, 3)], 1),
        "concat: inputs must differ in the size of axis 1 only, got float32[2, 3] and inputs[2] float32[1, 3]",
    ),
    (
        lambda b, x: b.concat([x(2, 3), x(3)], 0),
        "concat: inputs must differ in the size of axis 0 only, got float32[2, 3] and inputs[1] float32[3]",
    ),
    (
        lambda b, x: b.concat([x(2), x(2, data_type="int8")], 0),
        "concat: inputs must differ in the size of axis 0 only, got float32[2] and inputs[1] int8[2]",
    ),
    (
        lambda b, x: b.concat([x(2**30, data_type="int8")] * 2, 0),
        "concat: the result must have dimensions in [1, 2147483647], got [2147483648]",
    ),
    (lambda b, x: b.expand(x(2, 3), [2, 6]), "expand: float32[2, 3] cannot be broadcast to new_shape [2, 6]"),
    (lambda b, x: b.expand(x(2, 3), [3]), "expand: float32[2, 3] cannot be broadcast to new_shape [3]"),
    (lambda b, x: b.expand(x(1), [0]), "expand: the result must have dimensions in [1, 2147483647], got [0]"),
    (
        lambda b, x: b.expand(x(), [1] * 9),
        "expand: the result must have at most 8 dimensions, got 9: [1, 1, 1, 1, 1, 1, 1, 1, 1]",
    ),
    (
        lambda b, x: b.pad(x(2, 3), [1], [1, 1]),
        "pad: beginning_padding must have a value for each of 2 dimensions, got [1]",
    ),
    (
        lambda b, x: b.pad(x(2), [1], [1, 0]),
        "pad: ending_padding must have a value for each of 1 dimensions, got [1, 0]",
    ),
    (lambda b, x: b.pad(x(2), [1], [-1]), "pad: ending_padding[0] must be in [0, 4294967295], got -1"),
    (
        lambda b, x: b.pad(x(2, 3), [0, 3], [0, 0], mode="reflection", label="edge"),
        "pad 'edge': beginning_padding of a reflection must be smaller than the dimensions, [2, 3], got [0, 3]",
    ),
    (
        lambda b, x: b.pad(x(2, 3), [1, 2], [2, 2], mode="reflection"),
        "pad: ending_padding of a reflection must be smaller than the dimensions, [2, 3], got [2, 2]",
    ),
    (
        lambda b, x: b.pad(x(2), [1], [1], mode="wrap"),
        "pad: mode must be 'constant', 'edge' or 'reflection', got 'wrap'",
    ),
    (lambda b, x: b.pad(x(2), [1], [1], value="0"), "pad: value must be a number, got '0'"),
    (lambda b, x: b.reshape(x(2, 3), [5]), "reshape: new_shape must have the 6 elements of float32[2, 3], got [5]: 5"),
    (lambda b, x: b.reshape(x(2), []), "reshape: new_shape must have the 2 elements of float32[2], got []: 1"),
    (
        lambda b, x: b.reshape(x(2), [-1, 2]),
        "reshape: new_shape[0] must be in [0, 4294967295], got -1; sizes are given, not inferred: [1, 2]",
    ),
    (lambda b, x: b.reverse(x(2, 3), axes=[2]), "reverse: axes must be in [0, 2), got [2]"),
    (lambda b, x: b.reverse(x(2, 3), axes=[1, 1]), "reverse: axes must differ, got [1, 1]"),
    (lambda b, x: b.slice(x(4), [0, 0], [1]), "slice: starts must have a value for each of 1 dimensions, got [0, 0]"),
    (lambda b, x: b.slice(x(4), [0], []), "slice: sizes must have a value for each of 1 dimensions, got []"),
    (
        lambda b, x: b.slice(x(4), [0], [1], strides=[1, 1]),
        "slice: strides must have a value for each of 1 dimensions, got [1, 1]",
    ),
    (lambda b, x: b.slice(x(4), [0], [0]), "slice: sizes must be greater than 0, got [0]"),
    (lambda b, x: b.slice(x(4), [0], [1], strides=[0]), "slice: strides must be greater than 0, got [0]"),
    (lambda b, x: b.slice(x(4), [2], [3], label="cut"), "slice 'cut': starts [2] + sizes [3] must be within [4]"),
    (lambda b, x: b.split(x(4), 2, axis=1), "split: axis must be in [0, 1), got 1"),
    (lambda b, x: b.split(x(), 1), "split: input must have a rank in [1, 8], got float32[]"),
    (lambda b, x: b.split(x(4), 0), "split: splits must make 1 to 8192 parts, got 0"),
    (lambda b, x: b.split(x(4), []), "split: splits must make 1 to 8192 parts, got 0"),
    (lambda b, x: b.split(x(10000), 10000), "split: splits must make 1 to 8192 parts, got 10000"),
    (lambda b, x: b.split(x(8193), [1] * 8193), "split: splits must make 1 to 8192 parts, got 8193"),
    (lambda b, x: b.split(x(4), 3), "split: splits must divide the 4 elements of axis 0, got 3"),
    (lambda b, x: b.split(x(4), [4, 0]), "split: splits must be sizes greater than 0, got [4, 0]"),
    (
        lambda b, x: b.split(x(4, 2), [1, 2], axis=1),
        "split: splits must add up to the 2 elements of axis 1, got [1, 2]",
    ),
    (lambda b, x: b.tile(x(4), []), "tile: repetitions must have a value for each of 1 dimensions, got []"),
    (lambda b, x: b.tile(x(4, 2), [0, 1]), "tile: repetitions must be greater than 0, got [0, 1]"),
    (
        lambda b, x: b.transpose(x(4, 2), permutation=[0]),
        "transpose: permutation must name each axis in [0, 2) once, got [0]",
    ),
    (
        lambda b, x: b.transpose(x(4, 2), permutation=[1, 1]),
        "transpose: permutation must name each axis in [0, 2) once, got [1, 1]",
    ),
    (
        lambda b, x: b.transpose(x(4, 2), permutation=[1, 2]),
        "transpose: permutation must name each axis in [0, 2) once, got [1, 2]",
    ),
    (lambda b, x: b.triangular(x(4)), "triangular: input must have a rank in [2, 8], got float32[4]"),
    (
        lambda b, x: b.triangular(x(4, 4), diagonal=2**31),
        "triangular: diagonal must be in [-2147483648, 2147483647], got 2147483648",
    ),
    (lambda b, x: b.triangular(x(4, 4), upper=1), "triangular: upper must be True or False, got 1"),
    (lambda b, x: b.gather(x(4, 2), x(1, data_type="int32"), axis=2), "gather: axis must be in [0, 2), got 2"),
    (lambda b, x: b.gather(x(4), x(1)), "gather: indices must be int32, uint32 or int64, got float32[1]"),
    (
        lambda b, x: b.gather(x(4), x(1, data_type="uint64")),
        "gather: indices must be int32, uint32 or int64, got uint64[1]",
    ),
    (lambda b, x: b.gather(x(), x(1, data_type="int32")), "gather: input must have a rank in [1, 8], got float32[]"),
    (
        lambda b, x: b.gather_elements(x(4, 2), x(4, data_type="int32")),
        "gather_elements: indices must have the rank of input, 2, got int32[4]",
    ),
    (
        lambda b, x: b.gather_elements(x(4, 2), x(4, 2, data_type="int32"), axis=2),
        "gather_elements: axis must be in [0, 2), got 2",
    ),
    (
        lambda b, x: b.gather_elements(x(4, 2), x(3, 2, data_type="int32"), axis=1),
        "gather_elements: indices must have the shape of float32[4, 2] except for axis 1, got int32[3, 2]",
    ),
    (
        lambda b, x: b.gather_nd(x(4, 2), x(1, 3, data_type="int32")),
        "gather_nd: the last dimension of indices must be at most the rank of input, 2, got int32[1, 3]",
    ),
    (
        lambda b, x: b.gather_nd(x(4, 2), x(data_type="int32")),
        "gather_nd: indices must have a rank in [1, 8], got int32[]",
    ),
    (
        lambda b, x: b.scatter_elements(x(4, 2), x(1, 2, data_type="int32"), x(1, 2), axis=2),
        "scatter_elements: axis must be in [0, 2), got 2",
    ),
    (
        lambda b, x: b.scatter_elements(x(4, 2), x(1, 3, data_type="int32"), x(1, 3)),
        "scatter_elements: indices must have the shape of float32[4, 2] except for axis 0, got int32[1, 3]",
    ),
    (
        lambda b, x: b.scatter_elements(x(4, 2), x(1, 2, data_type="int32"), x(2, 2)),
        "scatter_elements: updates must have the shape of indices, [1, 2], got float32[2, 2]",
    ),
    (
        lambda b, x: b.scatter_elements(x(4, 2), x(1, 2, data_type="int32"), x(1, 2, data_type="int8")),
        "scatter_elements: updates must have the data type of input, float32, got int8[1, 2]",
    ),
    (
        lambda b, x: b.scatter_nd(x(4, 2), x(3, 3, data_type="int32"), x(3)),
        "scatter_nd: the last dimension of indices must be at most the rank of input, 2, got int32[3, 3]",
    ),
    (
        lambda b, x: b.scatter_nd(x(4, 2), x(3, 1, data_type="int32"), x(3), label="put"),
        "scatter_nd 'put': updates must have shape [3, 2], got float32[3]",
    ),
]


@pytest.mark.whole
@pytest.mark.parametrize(("build", "message"), ROWS, ids=[message for _, message in ROWS])
def test_messages(build: Build, message: str) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)

    def x(*shape: int, data_type: Any = "float32") -> ow.MLOperand:
        return builder.input(f"x{len(builder.inputs)}", data_type, shape)

    with pytest.raises(ow.ValidationError) as raised:
        build(builder, x)
    assert str(raised.value) == message
